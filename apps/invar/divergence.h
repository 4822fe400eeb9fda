/* divergence.h: how far two runs are apart. Pure functions of whole rows of logits; all of it in double and none of it
 * fed back into a model. */
#ifndef INVAR_CLI_DIVERGENCE_H
#define INVAR_CLI_DIVERGENCE_H

#include <stddef.h>
#include <stdint.h>

/* Steps from one float to the other along all floats in order, -0 and +0 being two of them: 0 exactly when the bits are
 * the same. NaN lie beyond the infinities. */
uint64_t cli_ulp_distance(float a, float b);

/* The first element whose bits differ; n when none does. */
size_t cli_first_difference(const float *a, const float *b, size_t n);

/* The largest |softmax(a) - softmax(b)| over all n tokens, 0 to 1. Rows of the same bits: 0. Else a row that has no
 * softmax (NaN, +infinity, or nothing above -infinity) is as far away as can be: 1. */
double cli_probability_divergence(const float *a, const float *b, size_t n);

/* The same over the `most` likeliest tokens of either row only; among equals the smaller id is likelier. */
enum { CLI_TOP_MAX = 20 };
double cli_top_divergence(const float *a, const float *b, size_t n, size_t most);

/* How many different texts there are. Sorts texts. */
size_t cli_count_unique(const char **texts, size_t n);

#endif
