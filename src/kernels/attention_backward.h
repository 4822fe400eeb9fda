/* attention_backward.h: gradients of attention over whole sequences, over threads. Law: NUMERICS.md 15; the scalar
 * reference is iv_ref_attention_backward. */
#ifndef IV_KERNELS_ATTENTION_BACKWARD_H
#define IV_KERNELS_ATTENTION_BACKWARD_H

#include "kernels/compute.h"

typedef struct iv_row_range {
    size_t first, rows;
} iv_row_range;

typedef struct iv_attention_backward_args {
    iv_dtype type;
    size_t kv_heads, group, head_dim; /* group query heads read a KV head */
    int64_t window;                   /* as iv_first_visible takes it */
    float scale_log2e, scale;
    float score_inner;          /* as iv_attention_args */
    const float *sinks;         /* [kv_heads * group] or NULL */
    float *sink_terms;          /* with sinks: [rows][kv_heads * group], each row's part of their gradients */
    const void *q, *out, *dout; /* [rows][kv_heads * group * head_dim], typed: q as attention took it, its output, and
                                 * that output's gradient */
    const void *k, *v;          /* [rows][kv_heads * head_dim], typed */
    const float *lse2;          /* [rows][kv_heads * group] */
    float *dqkv;                /* [rows][dqkv_stride]: dq of all heads, then dk, then dv */
    size_t dqkv_stride;
    const iv_row_range *sequences; /* each from its position 0 on */
    size_t sequence_count;
} iv_attention_backward_args;

/* Scratch for one thread and sequences of up to `rows` tokens. False when the size overflows. */
bool iv_attention_backward_scratch(iv_dtype type, size_t head_dim, size_t rows, size_t *bytes);

/* The compute's scratch must hold threads times that. */
void iv_attention_backward(const iv_compute *c, const iv_attention_backward_args *args);

#endif
