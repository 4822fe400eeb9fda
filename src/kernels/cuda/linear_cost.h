/* linear_cost.h: the cost model that chooses the configuration of a dense layer in the wgmma family
 * (linear_wgmma_sm90a.cu). Its constants are fitted to measurements on an H200 (bench/gpu/fit_linear.py). Costs of
 * configurations of the same layer can be compared, and nothing else; the bits do not depend on them. Plain C, tested
 * without a GPU. */
#ifndef IV_KERNELS_CUDA_LINEAR_COST_H
#define IV_KERNELS_CUDA_LINEAR_COST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Variants of the wgmma family: weights on wgmma's 64-row side (swapped), tokens on it (wide), and wide tiles in
 * clusters of two CTAs that multicast their weights. */
enum { IV_WGMMA_SWAPPED, IV_WGMMA_WIDE, IV_WGMMA_PAIR };

enum { IV_H200_SMS = 132 };

typedef struct iv_linear_cost_args {
    size_t rows, n, k;   /* of the layer; k padded */
    int leaves;          /* of the matrix */
    int tile_n, tile_m;  /* outputs and tokens of a tile */
    int variant;         /* one of the above */
    int split_k, stages; /* CTAs that divide a tile's leaves; stages of a ring */
    bool halves;         /* two CTAs divide each tile of the last wave */
    int resident;        /* CTAs that fit on an SM */
    int sms;             /* available SMs */
    bool swiglu;
    double weight_bytes; /* of a weight: 2, or those of a code with its share of a scale */
} iv_linear_cost_args;

/* Estimated microseconds; HUGE_VAL for a tile that is not used with these rows, and for halves with few
 * rows or that would not fit in one wave. */
double iv_linear_cost(const iv_linear_cost_args *a);

#ifdef __cplusplus
}
#endif
#endif
