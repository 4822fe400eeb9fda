/* linear_cost.h: how long a configuration of the wgmma family (linear_wgmma_sm90a.cu) takes for a dense layer, by a
 * model whose constants were fitted to measurements on an H200 (bench/gpu/fit_linear.py): of layers in turn, as in
 * a model, or of single ones, whichever made the faster steps. Of two configurations of one layer the cheaper is taken,
 * and only between such can it be asked; bits do not depend on it. Plain C: tested where no GPU is. */
#ifndef IV_KERNELS_CUDA_LINEAR_COST_H
#define IV_KERNELS_CUDA_LINEAR_COST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Variants of the wgmma family: weights on wgmma's 64-row side; tokens on it; and the same by clusters of two CTAs that
 * share weights. */
enum { IV_WGMMA_SWAPPED, IV_WGMMA_WIDE, IV_WGMMA_PAIR };

enum { IV_H200_SMS = 132 };

typedef struct iv_linear_cost_args {
    size_t rows, n, k;  /* of the layer; k padded */
    int leaves;         /* of the matrix */
    int tile_n, tile_m; /* outputs and tokens of a tile */
    int variant;        /* one of the above */
    int split_k, stages; /* CTAs that share a tile's leaves; of a ring */
    int resident;       /* CTAs that fit on an SM */
    int sms;            /* that may be used */
    bool swiglu;
} iv_linear_cost_args;

/* Microseconds; HUGE_VAL for a tile that no dense layer takes. */
double iv_linear_cost(const iv_linear_cost_args *a);

#ifdef __cplusplus
}
#endif
#endif
