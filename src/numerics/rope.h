/* rope.h: rotary position tables, made in double and rounded once. Law: NUMERICS.md section 6.
 *
 * Source of the method: Su et al. 2021 (RoPE, half-split form of the Hugging Face models) and the
 * llama3 rule of Llama 3.1. Own sine, cosine, exponential and logarithm: no libm. */
#ifndef IV_NUMERICS_ROPE_H
#define IV_NUMERICS_ROPE_H

#include <stddef.h>
#include <stdint.h>

typedef struct iv_rope_rule {
    double theta;
    double factor;              /* 1 when the frequencies are not scaled */
    double low_freq, high_freq; /* llama3 only; low_freq 0 means all frequencies are divided by factor */
    double original_positions;  /* llama3 only */
} iv_rope_rule;

/* Writes the frequency of each of head_dim/2 pairs. */
void iv_rope_frequencies(const iv_rope_rule *rule, size_t head_dim, double *frequencies);

/* One table row: cosine and sine of position * frequency for head_dim/2 pairs. */
void iv_rope_row(const double *frequencies, size_t pairs, int64_t position, float *cosine, float *sine);

#endif
