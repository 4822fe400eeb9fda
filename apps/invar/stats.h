/* stats.h: pseudo-random numbers; samples of times, their percentiles and histograms. */
#ifndef INVAR_CLI_BENCH_STATS_H
#define INVAR_CLI_BENCH_STATS_H

#include "base/json_out.h"

/* splitmix64 (Steele, Lea, Flood 2014): the next number of a stream. */
uint64_t cli_random(uint64_t *state);
/* Uniform in (0, 1]. */
double cli_random_unit(uint64_t *state);

/* Values in order of arrival, until sorted. */
typedef struct cli_sample {
    double *values;
    size_t count, room;
} cli_sample;

bool cli_sample_add(cli_sample *s, double value); /* false: no memory */
void cli_sample_sort(cli_sample *s);
void cli_sample_free(cli_sample *s);

double cli_sample_mean(const cli_sample *s); /* 0 where there is no value */
/* Of a sorted sample, with linear interpolation; percent in [0, 100]. */
double cli_sample_percentile(const cli_sample *s, double percent);

/* Prints a sorted sample of seconds as a text histogram, in milliseconds with buckets 1 2 5 10 20 50 ... Prints nothing
 * for an empty sample. */
void cli_sample_histogram(const cli_sample *s, const char *title, FILE *out);

#endif
