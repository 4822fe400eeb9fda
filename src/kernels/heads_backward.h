/* heads_backward.h: from the gradients of attention's q, k and v to those of the linear layers' outputs: back through
 * the rotation and the head norms. Law: NUMERICS.md 15.7. */
#ifndef IV_KERNELS_HEADS_BACKWARD_H
#define IV_KERNELS_HEADS_BACKWARD_H

#include "kernels/attention_backward.h"

typedef struct iv_heads_backward_args {
    iv_dtype type;
    size_t heads, kv_heads, dim, leaves; /* leaves of the sums over heads */
    const float *q_norm, *k_norm;        /* [dim], or NULL: there are none */
    const float *v_norm;                 /* of the values' norm, [dim], whose weights have no gradient; or NULL */
    const void *v_raw;                   /* [rows][kv_heads * dim] before it, typed */
    bool values_are_keys;                /* before the norms: k's gradient becomes that of both */
    bool norms_behind;                   /* the rotation: q_raw and k_raw are rotated */
    float eps;
    const float *cosine, *sine;    /* [position][dim / 2] */
    const iv_row_range *sequences; /* each from its position 0 on */
    size_t sequence_count;
    const void *q_raw, *k_raw; /* [rows][heads * dim] and [rows][kv_heads * dim] before the norms, typed; unused without
                                * norms */
    float *dqkv;               /* [rows][stride], (heads + 2 * kv_heads) * dim of each: in place */
    size_t stride;
    float *terms; /* [rows][2][dim]: a row's terms of q_norm and k_norm; unused without norms */
} iv_heads_backward_args;

/* Adds up leaves in the tree: a power of two of vectors of n floats, into the first. */
void iv_add_leaves(float *leaf, size_t leaves, size_t n);

/* Over threads. */
void iv_heads_backward(const iv_compute *c, const iv_heads_backward_args *args, size_t rows);

#endif
