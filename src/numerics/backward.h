/* backward.h: the scalar reference of every backward op that works on one row or one head. Law: NUMERICS.md 15.
 *
 * Gradients are float32. A gradient that becomes a GEMM input is rounded once to the GEMM type by the caller, except
 * where a result is described as typed. NaN is canonical in every result. */
#ifndef IV_NUMERICS_BACKWARD_H
#define IV_NUMERICS_BACKWARD_H

#include "numerics/activation.h"
#include "numerics/attention.h"

/* RMSNorm at a row x[n] with weights w: from dy the gradient of x, added to add[n] (NULL: not added), into out[n],
 * which may be dy or add. Returns the row's factor r = 1 / sqrt(mean of squares + eps). */
float iv_ref_rmsnorm_backward(const float *x, const float *w, float eps, size_t n, const float *dy, const float *add,
                              float *out);

/* The same for one of several heads with a common factor r (iv_ref_heads_factor): a head's part of the sum of
 * (dy * w) (x * r), in lanes; and the gradient of x from c, the sum of these parts in order over all elements. */
float iv_ref_norm_dot(const float *x, const float *w, float r, size_t n, const float *dy);
void iv_ref_norm_by_backward(const float *x, const float *w, float r, float c, size_t n, const float *dy, float *out);

/* One row's part of the gradient of w, added to sum[n]: dy[i] * (x[i] * r). */
void iv_ref_norm_weight_backward(const float *dy, const float *x, float r, size_t n, float *sum);

/* gate and up are typed, as the backward pass sees them; da is the gradient of the activation. Results are rounded to
 * `to`. gate and dgate are not used if it has no gate. */
void iv_ref_activate_backward(const iv_activation *a, iv_dtype type, const void *gate, const void *up, const float *da,
                              size_t n, iv_dtype to, void *dgate, void *dup);

/* A row's parts of the gradients of xIELU's two numbers, over typed x: of `positive`, the fold of lanes fma(da, x^2, l)
 * over x > 0, and of `negative` that of fma(da, e, l) over the others, e what it multiplies. */
void iv_ref_xielu_sums(const iv_activation *a, iv_dtype type, const void *x, const float *da, size_t n, float sums[2]);

/* The gradient of a row's logits, rounded to `type`: c * (softmax(x)[i] - (i == target)), with the row's max and sum as
 * iv_ref_sum_exp makes them. Only columns [first, first + n) of the row are given in x and written. */
void iv_ref_logits_backward(const float *x, size_t first, size_t n, float max, float sum, float c, size_t target,
                            iv_dtype type, void *out);

/* The logarithm to base 2 of a row's sum of weights over its maximum: what the backward pass keeps of attention's
 * statistics. max and sum are m_T and S_T of section 7. */
float iv_ref_attention_lse2(float max, float sum);

/* One query against a block of 64 keys: from raw scores q . k and products dO . v, the weights p and the gradients of
 * the scores, typed; those outside [first, last] are +0. capped: scores are tanh of scaled ones, and the gradients
 * those of the latter. */
void iv_ref_attention_gradients(iv_arithmetic arithmetic, const float *score, const float *dp, int first, int last,
                                bool capped, float scale_log2e, float lse2, float delta, iv_dtype type, void *p,
                                void *ds);

/* A row's part of the gradient of its head's sink. */
float iv_ref_sink_gradient(iv_arithmetic arithmetic, float sink, float lse2, float delta);

/* delta of a query: the product of two typed rows, in the lanes of section 4. */
float iv_ref_row_dot(iv_dtype type, const void *a, const void *b, size_t n);

/* The gradient of an expert's routing weight: the unweighted gradient da of act, times act (typed), in lanes. */
float iv_ref_expert_weight_gradient(iv_dtype type, const float *da, const void *act, size_t n);

/* A token's router logits: from the gradients dw of the weights w of its k experts, ascending ids. */
void iv_ref_route_backward(const float *logits, size_t experts, const int32_t *ids, const float *w, const float *dw,
                           size_t k, bool normalized, float *out);

/* Attention of the query heads of one KV head over one sequence of n tokens. */
typedef struct iv_ref_attention_backward_args {
    iv_arithmetic arithmetic;
    iv_dtype type; /* of every typed array */
    size_t n, head_dim, group;
    int64_t window;
    float scale_log2e, scale;   /* of scores, times log2(e); of scores */
    float score_inner;          /* 0, or as iv_ref_attention_args */
    const void *q, *out, *dout; /* [group][n][head_dim], typed */
    const void *k, *v;          /* [n][head_dim], typed */
    const float *lse2;          /* [group][n] */
} iv_ref_attention_backward_args;

/* dq: [group][n][head_dim]; dk, dv: [n][head_dim]. False if memory is out. */
bool iv_ref_attention_backward(const iv_ref_attention_backward_args *args, float *dq, float *dk, float *dv);

#endif
