/* sampler.h: logits -> token. Pure: the same logits, parameters, history, seed and position give the same token.
 *
 * Order (NUMERICS.md, 10): logit bias, repetition, frequency and presence penalties; forbidden tokens; temperature (0:
 * the largest logit); top-k, top-p, min-p on the total order (larger logit, then smaller id); then Gumbel-max with
 * noise that depends on (seed, position, id) alone, never on a batch slot, a rank or the clock. */
#ifndef IV_SAMPLE_SAMPLER_H
#define IV_SAMPLE_SAMPLER_H

#include "base/status.h"
#include "invar.h"
#include "kernels/kernels.h"

#include <stdbool.h>

typedef struct iv_sampling {
    float temperature, top_p, min_p;
    int32_t top_k; /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty;
    const iv_logit_bias *bias;
    size_t bias_count;
    uint64_t seed;
    const uint64_t *allowed; /* a bit per id: 0 forbids the token; at least one is 1. NULL: all are allowed */
} iv_sampling;

/* Tokens of a sequence, for the penalties: one entry per distinct token. */
typedef struct iv_seen {
    int32_t id;
    uint32_t generated; /* occurrences in the answer; 0: in the prompt only */
} iv_seen;

/* Memory for one vocabulary, reused for every token. */
typedef struct iv_sampler {
    size_t vocab;
    float *work;    /* [vocab] */
    int32_t *order; /* [vocab] */
    size_t kept;    /* after iv_sample: order[0, kept) are the tokens that the filters kept, larger first; 0: all */
    uint64_t *mask; /* [(vocab + 63) / 64], for the caller's iv_sampling.allowed */
} iv_sampler;

iv_status iv_sampler_open(iv_sampler *s, size_t vocab, iv_error *err);
void iv_sampler_close(iv_sampler *s);

/* Chooses the token at `position` (0: the first of the sequence). logits: no NaN, and the largest is finite. If it
 * overflows when divided by the temperature, the smallest id of those that overflow is chosen. */
int32_t iv_sample(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, const float *logits,
                  const iv_seen *seen, size_t seen_count, uint64_t position);

/* The same, and the token's sampling log-probability, among the kept tokens (NUMERICS.md, 10.7); 0 if nothing was
 * drawn, because the temperature is 0 or its division overflowed. NULL: not needed. */
int32_t iv_sample_with_logprob(iv_sampler *s, const iv_kernels *kernels, const iv_sampling *p, const float *logits,
                               const iv_seen *seen, size_t seen_count, uint64_t position, float *sampling_logprob);

/* The Gumbel noise of one token: -log(-log(1 - v)), v in [2^-33, 1) from Philox(seed; id, position). */
float iv_gumbel(uint64_t seed, uint64_t position, int32_t id);

/* The same from a token's 32 random bits: monotonically non-increasing from 22.87 (bits 0) to -2.81; within 2^-13 of
 * the exact value (the rounding of 1 - v, worst at v = 2^-12, where its use begins). */
float iv_gumbel_of(uint32_t bits);

/* The top n tokens of logits in the total order, with log softmax (x - max) - log_sum. */
enum { IV_TOP_MAX = 32 };
void iv_top_logprobs(const iv_kernels *kernels, const float *logits, size_t vocab, float max, float log_sum,
                     iv_logprob *out, size_t n);

#endif
