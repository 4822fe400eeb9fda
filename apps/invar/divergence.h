/* divergence.h: distances between two runs. Pure functions of whole rows of logits, computed in double; nothing is fed
 * back into a model. */
#ifndef INVAR_CLI_DIVERGENCE_H
#define INVAR_CLI_DIVERGENCE_H

#include <stddef.h>
#include <stdint.h>

/* Number of floats between the two, counting -0 and +0 as two: 0 exactly if the bits are equal. NaN lie beyond the
 * infinities. */
uint64_t cli_ulp_distance(float a, float b);

/* The first element whose bits differ; n if none does. */
size_t cli_first_difference(const float *a, const float *b, size_t n);

/* The largest |softmax(a) - softmax(b)| over all n tokens, 0 to 1. Equal bits: 0. Otherwise a row without a softmax
 * (NaN, +infinity, or nothing above -infinity) has the largest distance, 1. */
double cli_probability_divergence(const float *a, const float *b, size_t n);

/* The same over the top `most` tokens of either row; ties go to the smaller id. */
enum { CLI_TOP_MAX = 20 };
double cli_top_divergence(const float *a, const float *b, size_t n, size_t most);

/* The Kullback-Leibler divergence of softmax(q) from softmax(p), in nats, at least 0. */
double cli_kl_divergence(const float *p, const float *q, size_t n);

/* The index of the largest, the first of equal ones; n > 0. */
size_t cli_largest(const float *x, size_t n);

/* Number of distinct texts. Sorts texts. */
size_t cli_count_unique(const char **texts, size_t n);

#endif
