/* rope.h: rotary position tables, made in double and rounded once. Law: NUMERICS.md section 6.
 *
 * Source of the method: Su et al. 2021 (RoPE, half-split form of the Hugging Face models), the llama3 rule of Llama
 * 3.1, and YaRN (Peng et al. 2023) as Hugging Face's transformers compute it. Own sine, cosine, exponential and
 * logarithm: no libm. */
#ifndef IV_NUMERICS_ROPE_H
#define IV_NUMERICS_ROPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct iv_rope_rule {
    double theta;
    double factor;               /* 1 when the frequencies are not scaled */
    double low_freq, high_freq;  /* llama3 only; low_freq 0 means all frequencies are divided by factor */
    double original_positions;   /* llama3 and yarn only */
    double beta_fast, beta_slow; /* yarn only: turns over the original positions; beta_fast 0 means another rule */
    bool truncate;               /* yarn only: between whole pairs */
    const double *factors;       /* longrope only: [pairs], divides the frequency of each; else NULL */
} iv_rope_rule;

/* The logarithm of the factor as yarn scales with it, 0.1 mscale log(factor) + 1; 1 for a factor of 1. */
double iv_rope_yarn_mscale(double factor, double mscale);

/* What yarn multiplies cosines and sines with: of a factor, and of mscale and mscale_all_dim (0: not given). */
double iv_rope_yarn_attention(double factor, double mscale, double mscale_all);

/* The same of longrope, by how far positions are stretched (1 or more) over the original ones. */
double iv_rope_long_attention(double factor, double original_positions);

/* The theta of "dynamic" scaling with a constant alpha; head_dim above 2. */
double iv_rope_ntk_theta(double theta, double alpha, size_t head_dim);

/* Writes the frequency of each of head_dim/2 pairs. */
void iv_rope_frequencies(const iv_rope_rule *rule, size_t head_dim, double *frequencies);

/* One table row: cosine and sine of position * frequency, times `attention`, for head_dim/2 pairs. */
void iv_rope_row(const double *frequencies, size_t pairs, int64_t position, double attention, float *cosine,
                 float *sine);

#endif
