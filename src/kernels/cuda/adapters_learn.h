/* adapters_learn.h: ops of an adapter that learns (NUMERICS.md 19.1), as launchers (ops.h): its rounded factors from
 * the master weights, and the gradients of its products' outputs. The other products are those of adapters.h and
 * learn.h.
 */
#ifndef IV_KERNELS_CUDA_ADAPTERS_LEARN_H
#define IV_KERNELS_CUDA_ADAPTERS_LEARN_H

#include "kernels/cuda/adapters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix of n rows of k elements, of which element (i, j) is R(masters[from + i * row + j * column]). */
typedef struct iv_gpu_learned_factor {
    int64_t from, row, column; /* in elements */
    int64_t to;                /* in bytes, from the memory of all factors on; a multiple of 16 */
    int32_t n, k;
    int32_t leaves; /* of iv_gpu_pack_factor, whose form it has; 0: rows `stride` elements apart */
    int32_t stride;
} iv_gpu_learned_factor;

/* factors [count]: on the GPU. What a factor's form has as padding becomes +0; between plain rows nothing is written.
 */
int iv_gpu_pack_learned(iv_arithmetic arithmetic, iv_dtype type, const float *masters,
                        const iv_gpu_learned_factor *factors, size_t count, void *to, iv_gpu_stream stream);

enum { IV_GPU_COLUMN_RUNS_MAX = 3 };

/* Columns of a module among those of a layer's concatenated outputs (learn.h): in each leaf of `from_leaf` columns the
 * runs of `n` from `from` on become those of `to_leaf` columns from `to` on. All are multiples of 16 but n. */
typedef struct iv_gpu_column_runs {
    struct {
        uint32_t from, to, n; /* n: of a leaf; +0 up to the next multiple of 16 */
        uint32_t all;         /* outputs of all leaves; +0 behind them */
    } run[IV_GPU_COLUMN_RUNS_MAX];
    size_t runs, leaves, from_leaf, to_leaf;
} iv_gpu_column_runs;

/* dz = R(canon(scale * dy)): rows of dy [rows][dy_stride], of dz [rows][leaves * to_leaf]. row [rows]: +0 where it is
 * negative; NULL: nowhere. */
typedef struct iv_gpu_scale_columns_args {
    iv_dtype type;
    float scale;
    iv_gpu_column_runs columns;
    const int32_t *row;
    size_t rows;
    const void *dy;
    size_t dy_stride;
    void *dz;
} iv_gpu_scale_columns_args;
int iv_gpu_scale_columns(const iv_gpu_scale_columns_args *a, iv_gpu_stream stream);

enum { IV_GPU_INPUT_TERMS_MAX = 4 };

/* dx = canon(dx + canon(dt A)) for one module after another: rows of dt [rows][dt_stride] from `first` on, and A's
 * transposed factor of [k][rank] (iv_gpu_pack_learned, one leaf), of each. */
typedef struct iv_gpu_input_terms_args {
    iv_dtype type;
    struct {
        const void *factor;
        int32_t rank, first; /* first: a multiple of 16 */
    } term[IV_GPU_INPUT_TERMS_MAX];
    size_t terms;
    const void *dt;
    size_t dt_stride, rows, k;
    float *dx;     /* [rows][k] */
    void *rounded; /* NULL, or instead of dx: [rows][k] = R(dx); dx keeps what it was */
} iv_gpu_input_terms_args;

/* In tc16, where rows are aligned; else each module is a term of iv_gpu_adapter_outer with scale 1. */
bool iv_gpu_input_terms_takes(iv_arithmetic arithmetic, const iv_gpu_input_terms_args *a);
int iv_gpu_input_terms(const iv_gpu_input_terms_args *a, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif
