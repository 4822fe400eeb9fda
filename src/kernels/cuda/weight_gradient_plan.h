/* weight_gradient_plan.h: what the sums over tokens of a pass do, range by range, as kernels take it; and the kernels
 * of weight gradients that weight_gradient.c chooses from. Law: NUMERICS.md 15.3; token_axis.h.
 *
 * A range is one chain. At its end it joins the subtrees that wait for it, in ascending level, and goes to a place: the
 * sums, if the pass ends there, or the memory of the kernel, if a later range of the pass takes it from there. */
#ifndef IV_KERNELS_CUDA_WEIGHT_GRADIENT_PLAN_H
#define IV_KERNELS_CUDA_WEIGHT_GRADIENT_PLAN_H

#include "kernels/cuda/learn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum iv_sum_place {
    IV_SUM_WAITS, /* at level `joins` of the kernel's own memory */
    IV_SUM_LEVEL, /* level[joins] of the sums */
    IV_SUM_SUM    /* sum of the sums: an open chain, or the root */
} iv_sum_place;

typedef struct iv_sum_range {
    uint32_t begin, end; /* of the padded axis */
    uint8_t continues;   /* the chain begins at the sums' sum, not at +0 */
    uint8_t joins;       /* levels 0 to joins - 1 are added */
    uint8_t from_sums;   /* bit i: level i comes from the sums */
    uint8_t to;          /* iv_sum_place */
} iv_sum_range;

typedef struct iv_sum_plan {
    int ranges;
    int waits; /* subtrees that wait in the kernel's memory, over the whole pass */
    iv_sum_range range[IV_VIRTUAL_RANKS_MAX];
    iv_axis_sums sums;
} iv_sum_plan;

/* False if the axis is invalid, or a level that is needed is NULL. */
bool iv_sum_plan_make(const iv_token_axis *axis, const iv_axis_sums *sums, iv_sum_plan *out);

/* Tiles of the kernel for Hopper: 128 outputs by 256 or 128 inputs; a pair of CTAs shares its inputs. */
typedef enum iv_weight_gradient_shape {
    IV_GRADIENT_256_PAIR,
    IV_GRADIENT_128_PAIR,
    IV_GRADIENT_128,
    IV_GRADIENT_SHAPES
} iv_weight_gradient_shape;

/* tc16 on compute capability 9.0, rows and strides of whole 16 bytes; limits of what may wait in a pass. */
bool iv_gpu_weight_gradient_takes(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan,
                                  iv_weight_gradient_shape shape);
int iv_gpu_weight_gradient_wgmma(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan,
                                 iv_weight_gradient_shape shape, iv_gpu_stream stream);

/* The shape that iv_gpu_weight_gradient takes; IV_GRADIENT_SHAPES: the generic kernel. */
iv_weight_gradient_shape iv_gpu_weight_gradient_choose(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan);

/* Scratch of one multiprocessor. */
enum { IV_WEIGHT_GRADIENT_SCRATCH = 512 << 10 };

/* Everything, on the CUDA cores (fma32) or by mma.sync (tc16, compute capability 9.0). */
int iv_gpu_weight_gradient_generic(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif

#endif
