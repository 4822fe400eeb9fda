/* sampler.h: logits -> token. Pure: the same logits, parameters, history, seed and position give the same token.
 *
 * Order (law, section 10): logit bias, repetition, frequency and presence penalties; forbidden tokens; temperature (0:
 * the largest logit); top-k, top-p, min-p on the total order (larger logit, then smaller id); then Gumbel-max with
 * noise that depends on (seed, position, id) alone, never on a batch slot, a rank or the clock. */
#ifndef IV_SAMPLE_SAMPLER_H
#define IV_SAMPLE_SAMPLER_H

#include "base/status.h"
#include "kernels/kernels.h"

#include <stdbool.h>

typedef struct iv_sampling {
    float temperature, top_p, min_p;
    int32_t top_k; /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty;
    const iv_logit_bias *bias;
    size_t bias_count;
    uint64_t seed;
    const uint64_t *allowed; /* a bit for each id: 0 forbids the token; some are 1. NULL: all are allowed */
} iv_sampling;

/* What a sequence has seen, for the penalties: an entry per distinct token. */
typedef struct iv_seen {
    int32_t id;
    uint32_t generated; /* times among the generated tokens; 0: in the prompt only */
} iv_seen;

/* Room for one vocabulary, reused from token to token. */
typedef struct iv_sampler {
    size_t vocab;
    float *work;    /* [vocab] */
    int32_t *order; /* [vocab] */
    uint64_t *mask; /* [(vocab + 63) / 64], for the caller to make iv_sampling.allowed in */
} iv_sampler;

iv_status iv_sampler_open(iv_sampler *s, size_t vocab, iv_error *err);
void iv_sampler_close(iv_sampler *s);

/* Chooses the token that will stand at `position` (0 for the first of the sequence). logits: no NaN, and the largest is
 * finite; should it overflow when divided by the temperature, the smallest id of those that did is chosen. */
int32_t iv_sample(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, const float *logits,
                  const iv_seen *seen, size_t seen_count, uint64_t position);

/* The same, and the token's log-probability among the kept ones (10.7): what it was drawn with; 0 where nothing was
 * drawn, because the temperature is 0 or its division overflowed. NULL: not wanted. */
int32_t iv_sample_with_logprob(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, const float *logits,
                               const iv_seen *seen, size_t seen_count, uint64_t position, float *logprob);

/* The Gumbel noise of one token: -log(-log(1 - v)), v in [2^-33, 1) from Philox(seed; id, position). */
float iv_gumbel(uint64_t seed, uint64_t position, int32_t id);

/* The same from the 32 random bits of a token: from 22.87 for 0 down to -2.81, never rising; within 2^-13 of the
 * exact value (the rounding of 1 - v, worst where it sets in at v = 2^-12). */
float iv_gumbel_of(uint32_t bits);

/* The n likeliest tokens of logits in the total order, with log softmax (x - max) - log_sum. n at most 32. */
enum { IV_TOP_MAX = 32 };
void iv_top_logprobs(const iv_kernels *kernels, const float *logits, size_t vocab, float max, float log_sum,
                     iv_logprob *out, size_t n);

#endif
