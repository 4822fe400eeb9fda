/* rows.h: the scalar reference of every op that works on one row of floats.
 *
 * Results are fp32. RMSNorm, RoPE and activations make NaN canonical; sums, routing weights and combined terms are
 * used by an op that does. If an output is stored in the GEMM type, the caller rounds it with floats.h. Law:
 * NUMERICS.md section 4. */
#ifndef IV_NUMERICS_ROWS_H
#define IV_NUMERICS_ROWS_H

#include "numerics/activation.h"

#include <stddef.h>
#include <stdint.h>

enum { IV_ROW_LANES = 256, IV_EXPERTS_PER_TOKEN_MAX = 64 };

/* Sum over lanes: element i is added to lane i mod 256 in ascending i; lanes then fold at strides 128, 64 ... 1. */
float iv_ref_fold_lanes(float lanes[IV_ROW_LANES]);

/* r = 1 / sqrt(mean of squares + eps). */
float iv_ref_rms_factor(const float *x, float eps, size_t n);

/* out[i] = (x[i] * r) * weight[i]. */
void iv_ref_rmsnorm(const float *x, const float *weight, float eps, size_t n, float *out);

/* The parts of a norm over several heads, whose elements ranks share: a head's sum of squares, in lanes; the factor of
 * all of them, their sums added in order; and out[i] = (x[i] * r) * weight[i]. */
float iv_ref_squares(const float *x, size_t n);
float iv_ref_heads_factor(const float *squares, size_t heads, size_t head_dim, float eps);
void iv_ref_norm_by(const float *x, const float *weight, float r, size_t n, float *out);

/* out[i] = x[i] - the mean of x, whose sum is in lanes. A LayerNorm is the RMSNorm of a centered row. */
void iv_ref_center(const float *x, size_t n, float *out);

/* Rotates the pairs (x[i], x[i + pairs]) by the table row, in place. */
void iv_ref_rope(float *x, const float *cosine, const float *sine, size_t pairs);

/* out[i] = the activation of gate[i] and up[i]; gate may be NULL if it has none. */
void iv_ref_activate(const iv_activation *a, const float *gate, const float *up, size_t n, float *out);

/* xIELU's numbers from a layer's weights: softplus(alpha_p), beta + softplus(alpha_n), in double. */
iv_activation iv_ref_xielu(float alpha_p, float alpha_n, float beta, float eps);

/* x[i] = outer * tanh(x[i] * inner): a soft cap, of logits (inner = 1 / cap, outer = cap) or of attention's scores. */
void iv_ref_cap(float *x, float inner, float outer, size_t n);

/* From a head's products to logits: x / divisor, then the cap; 0: none. */
typedef struct iv_logit_shape {
    float divisor, cap;
} iv_logit_shape;

/* The slope of a shaped logit y, times the gradient d. A logit of -infinity, which was forbidden, has d. */
float iv_ref_shape_gradient(iv_logit_shape shape, float y, float d);

/* x[0..n) are the logits of ids [first, first + n): -infinity for those whose bit in `allowed` (10.2) is 0. */
void iv_ref_forbid(float *x, size_t first, size_t n, const uint64_t *allowed);

/* The largest element and the sum of exponentials relative to it, in lanes. */
void iv_ref_sum_exp(const float *x, size_t n, float *max, float *sum);

/* The same with the sum's logarithm: log softmax of x[i] is (x[i] - max) - log_sum. */
void iv_ref_log_sum_exp(const float *x, size_t n, float *max, float *log_sum);

/* Natural logarithm and exponential by the law's v_log and v_exp. */
float iv_ref_log(float x);
float iv_ref_exp(float x);

/* Routes one token, 1 <= k <= experts: the k largest logits in order (larger logit first, then smaller id), with
 * softmax weights over all experts, divided by the selected weights' sum (added in that order) if normalise. */
void iv_ref_route(const float *logits, size_t experts, size_t k, int normalise, int32_t *ids, float *weights);

/* Sorts the k experts of a token by id, as the combine tree takes them. */
void iv_ref_sort_experts(int32_t *ids, float *weights, size_t k);

/* Adds k expert outputs of one element, 1 <= k <= IV_EXPERTS_PER_TOKEN_MAX. terms[i] belongs to expert ids[i]
 * (ascending, distinct); the sum is the binary tree over expert ids in which an absent side passes the other through.
 */
float iv_ref_combine(const int32_t *ids, const float *terms, size_t k);

#endif
