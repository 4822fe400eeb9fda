/* scan.h: selective scans (Mamba-2) for a batch of rows: delta layers (delta.h) without the substitution, with steps in
 * place of betas, a bias of the convolution, and a norm over groups of heads. Law: NUMERICS.md 17.2.
 *
 * The ops run in this order: iv_delta_inputs, iv_delta_open, iv_scan_mix, iv_delta_heads, iv_scan_gate of all rows;
 * then, with a norm, iv_scan_norm of all rows with the factors of their heads. */
#ifndef IV_KERNELS_SCAN_H
#define IV_KERNELS_SCAN_H

#include "kernels/delta.h"

typedef struct iv_scan_args {
    const float *conv_bias; /* [channels] or NULL */
    const float *skip;      /* [value_heads]: D */
    float step_low, step_high;
    bool gate_behind; /* the gate is applied to the norm's output, not to its input */
} iv_scan_args;

/* Row i of the span: convolution, C and B, steps. False: a B is not finite. */
bool iv_scan_mix(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i);

/* The gate of a row; without a norm that is all. sums: [value_heads], those of the squares of each head's values, for
 * the norm; NULL without one. */
void iv_scan_gate(const iv_compute *c, const iv_delta_args *a, size_t row, float *sums);

/* The norm of a row, and the gate behind it. factors: [value_heads], 1 / sqrt(mean square + eps) of the head's group.
 */
void iv_scan_norm(const iv_compute *c, const iv_delta_args *a, size_t row, const float *factors);

#endif
