/* stats.c: splitmix64, sorting, percentiles and histograms. */
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 40, BUCKETS_MAX = 64 };

uint64_t cli_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double cli_random_unit(uint64_t *state) { return ((double)(cli_random(state) >> 11) + 1) * 0x1p-53; }

bool cli_sample_add(cli_sample *s, double value) {
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 256;
        double *more = room <= SIZE_MAX / sizeof *more ? realloc(s->values, room * sizeof *more) : NULL;
        if (!more) return false;
        s->values = more, s->room = room;
    }
    s->values[s->count++] = value;
    return true;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void cli_sample_sort(cli_sample *s) {
    if (s->count) qsort(s->values, s->count, sizeof *s->values, by_size);
}

void cli_sample_free(cli_sample *s) {
    free(s->values);
    *s = (cli_sample){0};
}

double cli_sample_mean(const cli_sample *s) {
    double sum = 0;
    for (size_t i = 0; i < s->count; i++) sum += s->values[i];
    return s->count ? sum / (double)s->count : 0;
}

double cli_sample_percentile(const cli_sample *s, double percent) {
    if (s->count == 0) return 0;
    double at = percent / 100 * (double)(s->count - 1);
    size_t below = (size_t)at;
    if (below + 1 >= s->count) return s->values[s->count - 1];
    return s->values[below] + (at - (double)below) * (s->values[below + 1] - s->values[below]);
}

/* The n-th edge of the buckets, in milliseconds: 0.001, 0.002, 0.005, 0.01, ... */
static double edge(size_t n) {
    static const double steps[] = {1, 2, 5};
    return steps[n % 3] * pow(10, (double)(n / 3) - 3);
}

void cli_sample_histogram(const cli_sample *s, const char *title, FILE *out) {
    size_t counts[BUCKETS_MAX] = {0}, first = BUCKETS_MAX, last = 0, most = 0;
    if (s->count == 0) return;
    for (size_t i = 0; i < s->count; i++) {
        size_t b = 0;
        while (b + 1 < BUCKETS_MAX && s->values[i] * 1e3 >= edge(b)) b++;
        if (++counts[b] > most) most = counts[b];
        if (b < first) first = b;
        if (b > last) last = b;
    }
    fprintf(out, "\n%s\n", title);
    for (size_t b = first; b <= last; b++) {
        int length = (int)ceil((double)counts[b] / (double)most * BAR);
        fprintf(out, "  up to %8.9g ms |%.*s%*s| %zu\n", edge(b), length, "########################################",
                BAR - length, "", counts[b]);
    }
}
