/* expert_bias.h: biases of experts, added to the rows of iv_gpu_route's groups. Law: NUMERICS.md section 9. */
#ifndef IV_KERNELS_CUDA_EXPERT_BIAS_H
#define IV_KERNELS_CUDA_EXPERT_BIAS_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iv_gpu_expert_bias_args {
    int32_t first, count;           /* this GPU's experts */
    const int32_t *offsets, *slots; /* as of iv_gpu_groups */
    const int32_t *ids;             /* [rows * k], by slot */
    size_t entries;                 /* rows * k */
    const float *bias;              /* [count][bias_stride], of this GPU's experts */
    size_t n, bias_stride;
    float *x; /* [entries][x_stride] */
    size_t x_stride;
    const float *weights; /* NULL: rows of x are entries; else slots, and x = weight * (x + bias) */
    float *ones;          /* NULL, or [entries]: set to 1 by slot, as weights of a product that is weighted later */
} iv_gpu_expert_bias_args;

/* x = canon(x + bias), then the weight, for the entries of this GPU's experts. */
int iv_gpu_expert_bias(const iv_gpu_expert_bias_args *a, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif
