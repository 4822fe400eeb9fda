/* divergence.c: comparing rows. Invariant: equal bits give exactly 0 for all values. */
#include "divergence.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Maps floats to integers in the same order. */
static uint32_t ordered(float x) {
    uint32_t u = bits_of(x);
    return u >> 31 ? ~u : u | 0x80000000u;
}

uint64_t cli_ulp_distance(float a, float b) {
    uint32_t x = ordered(a), y = ordered(b);
    return x > y ? x - y : y - x;
}

size_t cli_first_difference(const float *a, const float *b, size_t n) {
    if (memcmp(a, b, n * sizeof *a) == 0) return n;
    size_t i = 0;
    while (i < n && bits_of(a[i]) == bits_of(b[i])) i++;
    return i;
}

/* probability of x = exp(x - greatest) / sum. */
typedef struct softmax {
    double greatest, sum;
} softmax;

static bool softmax_of(const float *row, size_t n, softmax *s) {
    *s = (softmax){.greatest = -HUGE_VAL};
    for (size_t i = 0; i < n; i++) {
        if (isnan(row[i])) return false;
        if (row[i] > s->greatest) s->greatest = row[i];
    }
    if (!isfinite(s->greatest)) return false;
    for (size_t i = 0; i < n; i++) s->sum += exp(row[i] - s->greatest);
    return true;
}

static double probability_gap(const softmax *x, float a, const softmax *y, float b) {
    return fabs(exp(a - x->greatest) / x->sum - exp(b - y->greatest) / y->sum);
}

double cli_probability_divergence(const float *a, const float *b, size_t n) {
    softmax x, y;
    double most = 0;
    if (cli_first_difference(a, b, n) == n) return 0;
    if (!softmax_of(a, n, &x) || !softmax_of(b, n, &y)) return 1;
    for (size_t i = 0; i < n; i++) most = fmax(most, probability_gap(&x, a[i], &y, b[i]));
    return most;
}

/* Ids of the top `most` values, by insertion: most is small. Returns their number. */
static size_t top_ids(const float *row, size_t n, size_t most, size_t out[CLI_TOP_MAX]) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = count;
        while (at > 0 && row[out[at - 1]] < row[i]) at--;
        if (at >= most) continue;
        if (count < most) count++;
        memmove(out + at + 1, out + at, (count - at - 1) * sizeof *out);
        out[at] = i;
    }
    return count;
}

double cli_top_divergence(const float *a, const float *b, size_t n, size_t most) {
    softmax x, y;
    size_t top[CLI_TOP_MAX], count;
    double worst = 0;
    if (most > CLI_TOP_MAX) most = CLI_TOP_MAX;
    if (cli_first_difference(a, b, n) == n) return 0;
    if (!softmax_of(a, n, &x) || !softmax_of(b, n, &y)) return 1;
    for (int side = 0; side < 2; side++) {
        count = top_ids(side ? b : a, n, most, top);
        for (size_t i = 0; i < count; i++) worst = fmax(worst, probability_gap(&x, a[top[i]], &y, b[top[i]]));
    }
    return worst;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

size_t cli_count_unique(const char **texts, size_t n) {
    size_t unique = n > 0;
    if (n > 1) qsort(texts, n, sizeof *texts, by_text);
    for (size_t i = 1; i < n; i++) unique += strcmp(texts[i - 1], texts[i]) != 0;
    return unique;
}

static double log_sum(const float *x, size_t n) {
    double most = (double)x[cli_largest(x, n)], sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
    return most + log(sum);
}

double cli_kl_divergence(const float *p, const float *q, size_t n) {
    double of_p = log_sum(p, n), of_q = log_sum(q, n), kl = 0;
    for (size_t i = 0; i < n; i++) {
        double a = (double)p[i] - of_p, b = (double)q[i] - of_q, weight = exp(a);
        if (weight > 0) kl += weight * (a - b);
    }
    return kl > 0 ? kl : 0;
}

size_t cli_largest(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}
