/* bench_stats.h: what measurements are made of: pseudo-random prompts, samples of times, their percentiles and shape.
 */
#ifndef INVAR_CLI_BENCH_STATS_H
#define INVAR_CLI_BENCH_STATS_H

#include "base/json_out.h"

/* splitmix64: the next number of a stream. */
uint64_t cli_random(uint64_t *state);
/* In (0, 1]. */
double cli_random_unit(uint64_t *state);

/* Values in the order they came, until sorted. */
typedef struct cli_sample {
    double *values;
    size_t count, room;
} cli_sample;

bool cli_sample_add(cli_sample *s, double value); /* false: no memory */
void cli_sample_sort(cli_sample *s);
void cli_sample_free(cli_sample *s);

double cli_sample_mean(const cli_sample *s); /* 0 where there is no value */
/* Of a sorted sample, linear between its neighbours; percent in [0, 100]. */
double cli_sample_percentile(const cli_sample *s, double percent);

/* A sorted sample of seconds as a picture in lines of text: milliseconds in buckets that grow, 1 2 5 10 20 50 ...
 * Nothing where there is no value. */
void cli_sample_picture(const cli_sample *s, const char *title, FILE *out);

#endif
