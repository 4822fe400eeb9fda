/* delta.h: the scalar reference of gated delta-rule layers (Gated DeltaNet) and of selective scans (Mamba-2), which are
 * the same without the substitution. Law: NUMERICS.md section 17.
 *
 * Rows of a block of 64 positions are functions of the state at its border and of the block's rows before, so a row's
 * bits do not depend on how many rows are computed at once. */
#ifndef IV_NUMERICS_DELTA_H
#define IV_NUMERICS_DELTA_H

#include "base/dtype.h"
#include "numerics/arithmetic.h"

#include <stddef.h>

enum { IV_DELTA_BLOCK = 64, IV_DELTA_STEP = 16 };

/* log(1 + exp(x)). */
float iv_ref_softplus(float x);

/* A row's decay in the exponent, 0 - exp(a_log) * softplus(a + dt_bias). */
float iv_ref_delta_decay(float a, float dt_bias, float a_log);

/* exp(total - before): the decay from one row to a later one; `before` is +0 at the border. */
float iv_ref_delta_factor(float total, float before);

/* One channel of the causal convolution: x[0 .. taps) are its inputs, the oldest first. The result is silu of the sum.
 */
float iv_ref_delta_conv(const float *weight, const float *x, size_t taps);

/* The same with a bias, from which the sum begins. */
float iv_ref_scan_conv(float bias, const float *weight, const float *x, size_t taps);

/* A row's step of a scan, softplus(dt + dt_bias) between two limits; NaN stays. Its decay in the exponent is the step
 * times the head's rate, 0 - exp(a_log). */
float iv_ref_scan_step(float dt, float dt_bias, float low, float high);
float iv_ref_scan_rate(float a_log);

/* 1 / sqrt(sum of squares + 1e-6), the sum in lanes. */
static inline float iv_l2_factor_of(float sum) { return 1.0f / __builtin_sqrtf(sum + 1e-6f); }
float iv_ref_l2_factor(const float *x, size_t n);

/* 1 / sqrt(key_dim) in double, rounded once: the scale of queries. */
static inline float iv_delta_query_scale(size_t key_dim) { return (float)(1.0 / __builtin_sqrt((double)key_dim)); }

/* One value head of one sequence. */
typedef struct iv_ref_delta {
    iv_arithmetic arithmetic;
    iv_dtype type;             /* of q, k and of the rounded operands */
    size_t key_dim, value_dim; /* at most 512 */
    float *state;              /* [key_dim][value_dim] at the border */
    void *rounded;             /* [value_dim][padded key_dim]: R(state) */
    void *keys;                /* [64][padded key_dim] */
    void *updates;             /* [value_dim][64]: R(u) of the block's rows, +0 behind them */
    void *last;                /* [value_dim]: R(u) of the last row */
    float total[IV_DELTA_BLOCK];
    size_t rows; /* of the block */
} iv_ref_delta;

/* At position 0. False: no memory. */
bool iv_ref_delta_open(iv_ref_delta *d, iv_arithmetic arithmetic, iv_dtype type, size_t key_dim, size_t value_dim);
void iv_ref_delta_close(iv_ref_delta *d);

/* The next row: q and k in the type, padded to whole steps of 16 with zeros; out: [value_dim], canonical NaN. The 64th
 * row also moves the border. */
void iv_ref_delta_row(iv_ref_delta *d, const void *q, const void *k, const float *v, float decay, float beta,
                      float *out);

/* The next row of a scan: c and b as q and k, x: [value_dim], skip: the head's D. */
void iv_ref_scan_row(iv_ref_delta *d, const void *c, const void *b, const float *x, float decay, float step, float skip,
                     float *out);

/* R(u) of the row before: [value_dim] in the type. */
void iv_ref_delta_last_update(const iv_ref_delta *d, void *out);

#endif
