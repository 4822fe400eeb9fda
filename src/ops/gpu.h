/* gpu.h: the ops on a GPU as a table, so that a build without CUDA has none of them. Entries have the arguments of
 * invar_ops.h, which are checked already as far as the CPU can read them, and run between iv_ops_enter and
 * iv_ops_leave. */
#ifndef IV_OPS_GPU_H
#define IV_OPS_GPU_H

#include "ops/context.h"

typedef struct iv_ops_gpu {
    void (*close)(iv_ops *ops);
    iv_status (*begin)(iv_ops *ops, iv_error *err); /* of a call; `end` follows even if it fails */
    void (*end)(iv_ops *ops);
    iv_status (*set_stream)(iv_ops *ops, void *stream, iv_error *err);
    iv_status (*synchronize)(iv_ops *ops, iv_error *err);
    iv_status (*write)(iv_ops *ops, const float *from, size_t n, float *to, iv_error *err); /* from this process */
    /* rows */
    iv_status (*round)(iv_ops *ops, const float *x, size_t n, void *out, iv_error *err);
    iv_status (*rms_norm)(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                          bool typed, void *out, iv_error *err);
    iv_status (*rms_norm_backward)(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                                   const float *dy, const float *add, float *dx, const iv_ops_pass *pass,
                                   const iv_axis_sums *sums, iv_error *err); /* pass: NULL without sums */
    iv_status (*swiglu)(iv_ops *ops, const float *gate_up, size_t rows, size_t n, void *gate, void *up, void *out,
                        iv_error *err);
    iv_status (*swiglu_backward)(iv_ops *ops, const void *gate, const void *up, const float *da, size_t rows, size_t n,
                                 bool typed, void *dgate_up, iv_error *err);
    iv_status (*embedding)(iv_ops *ops, const void *weight, bool weight_float, size_t vocab, size_t n,
                           const int32_t *ids, size_t count, float *out, iv_error *err);
    iv_status (*embedding_backward)(iv_ops *ops, size_t vocab, size_t n, const int32_t *ids, const uint32_t *ranks,
                                    size_t virtual_ranks, const float *dx, size_t count, float *out, iv_error *err);
    iv_status (*logprobs)(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                          float temperature, float *logprobs, float *max, float *sum, iv_error *err);
    iv_status (*logprobs_backward)(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                                   float temperature, const float *max, const float *sum, const float *dlogprobs,
                                   bool typed, void *dlogits, iv_error *err);
    /* linear layers */
    iv_status (*linear)(iv_ops *ops, const iv_ops_linear *l, const void *x, size_t rows, bool accumulate, float *out,
                        iv_error *err);
    iv_status (*input_gradient)(iv_ops *ops, const iv_ops_linear *l, const void *dy, size_t rows, float *dx,
                                iv_error *err);
    iv_status (*weight_gradient)(iv_ops *ops, const iv_ops_linear *l, const iv_ops_pass *pass, const void *dy,
                                 const void *x, const iv_axis_sums *sums, iv_error *err);
    iv_status (*column_sums)(iv_ops *ops, const iv_ops_pass *pass, const float *dy, size_t stride, size_t n,
                             const iv_axis_sums *sums, iv_error *err);
    /* attention */
    iv_status (*rope)(iv_ops *ops, const iv_ops_attention *a, size_t rows, float *qkv, void *q, void *k, void *v,
                      void *q_raw, void *k_raw, iv_error *err);
    iv_status (*rope_backward)(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q_raw,
                               const void *k_raw, float *dqkv, const iv_ops_pass *pass, const iv_axis_sums *sums,
                               iv_error *err); /* sums[2], with head norms */
    iv_status (*attention)(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q, const void *k,
                           const void *v, void *out, float *lse2, iv_error *err);
    iv_status (*attention_backward)(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q, const void *k,
                                    const void *v, const void *out, const void *dout, const float *lse2, float *dqkv,
                                    iv_error *err);
    /* experts */
    iv_status (*route)(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                       int32_t *ids, float *weights, iv_error *err);
    iv_status (*route_backward)(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                                const int32_t *ids, const float *weights, const float *dweights, float *dlogits,
                                iv_error *err);
    iv_status (*expert_sum)(iv_ops *ops, const int32_t *ids, const float *terms, size_t rows, size_t k, size_t n,
                            float *out, iv_error *err);
    iv_status (*expert_weight_gradient)(iv_ops *ops, const float *da, const void *act, size_t rows, size_t n,
                                        float *out, iv_error *err);
    iv_status (*scale_rows)(iv_ops *ops, float *x, const float *by, size_t rows, size_t n, iv_error *err);
    /* optimizer */
    iv_status (*block_sums)(iv_ops *ops, const float *gradient, size_t n, double *sums, iv_error *err);
    iv_status (*adamw)(iv_ops *ops, const iv_adamw_step *step, bool decay, const float *gradient, size_t n, float *w,
                       float *m, float *v, iv_error *err);
    iv_status (*tree_sum)(iv_ops *ops, const float *const *from, size_t count, size_t n, float *out, iv_error *err);
} iv_ops_gpu;

/* A context whose base the caller fills, except `gpu`. */
iv_status iv_ops_open_gpu(size_t ordinal, iv_arithmetic arithmetic, const iv_ops_memory *memory, iv_ops **out,
                          iv_error *err);

#endif
