/* attention_backward.h: iv_gpu_attention_backward with a choice of kernels, for tests and measurements. */
#ifndef IV_KERNELS_CUDA_ATTENTION_BACKWARD_H
#define IV_KERNELS_CUDA_ATTENTION_BACKWARD_H

#include "kernels/cuda/learn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is the shape one of the Hopper kernels'? A pure function of it. */
bool iv_attention_backward_is_hopper(const iv_gpu_attention_shape *s);

/* One of the launches of a pass over a Hopper shape; all, in this order, are the pass if the KV heads have one part. */
typedef enum iv_attention_backward_part {
    IV_BACKWARD_PREPARE, /* delta, work lists */
    IV_BACKWARD_KEYS,    /* dk, dv */
    IV_BACKWARD_QUERIES, /* dq */
    IV_BACKWARD_PARTS
} iv_attention_backward_part;
int iv_attention_backward_launch(const iv_gpu_attention_backward_args *a, iv_attention_backward_part part,
                                 iv_gpu_stream stream);

/* With `generic`: by the generic kernel, whatever the shape. */
int iv_attention_backward_as(const iv_gpu_attention_backward_args *a, bool generic, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif
