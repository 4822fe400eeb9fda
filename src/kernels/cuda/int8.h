/* int8.h: linear layers of int8 codes on GPUs (NUMERICS.md 20): rows become codes, codes are multiplied, sums of ranks
 * are added. int32 sums are exact, so tiles, instructions and ranks may cut K anywhere. int8.c chooses; int8_*.cu
 * compute. Launchers are as those of ops.h. */
#ifndef IV_KERNELS_CUDA_INT8_H
#define IV_KERNELS_CUDA_INT8_H

#include "kernels/cuda/ops.h"
#include "numerics/int8.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows to codes (int8_rows.cu) -------------------------------------------------------------------------------- */

/* out[row] = the largest |x| of a row of k numbers, as iv_ref_int8_magnitude. */
int iv_gpu_int8_magnitudes(iv_dtype type, const void *x, size_t x_stride, size_t k, size_t rows, uint32_t *out,
                           iv_gpu_stream stream);

/* All rows get the largest magnitude: a baseline's scale for a batch (NUMERICS.md 14). */
int iv_gpu_int8_batch_magnitude(uint32_t *magnitudes, size_t rows, iv_gpu_stream stream);

typedef struct iv_gpu_int8_rows {
    iv_dtype type;
    const void *x;
    size_t x_stride, k; /* elements; k: of x, at most code_stride */
    size_t rows;
    int terms;
    /* Magnitudes of whole rows as parts of ranks, [rows] each, of which the largest counts; parts 0: of x itself. */
    const uint32_t *part[IV_RANKS_MAX];
    int parts;
    int8_t *codes;      /* [rows][terms][code_stride], zero from k on */
    size_t code_stride; /* bytes, a multiple of 16 */
    float *scales;      /* [rows] */
} iv_gpu_int8_rows;
int iv_gpu_int8_quantize(const iv_gpu_int8_rows *a, iv_gpu_stream stream);

/* normed = R(RMSNorm(x)) as iv_gpu_rmsnorm, and its codes. normed NULL: codes alone. a->x and parts are not used; k is
 * that of x. */
int iv_gpu_int8_rmsnorm(const float *x, const float *weight, float eps, void *normed, size_t stride,
                        const iv_gpu_int8_rows *a, iv_gpu_stream stream);

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* w is of iv_matrix_shape_rows and iv_int8_shape: codes [n][k_padded], then scales [n]. */
static inline const float *iv_gpu_int8_scales(const iv_gpu_matrix *w) {
    return (const float *)(const void *)((const char *)w->data + w->n * w->k_padded);
}

typedef struct iv_gpu_int8_args {
    iv_gpu_linear_args l; /* but x, x_stride and fused; l.w.terms says how many codes an input has */
    const int8_t *codes;  /* of the rows that l would read as x: [][terms][code_stride] */
    size_t code_stride;
    const float *scales; /* [] */
    int32_t *sums;       /* NULL, or [rows][terms][n] instead of outputs: of this part of K. Not with groups */
} iv_gpu_int8_args;

typedef enum iv_gpu_int8_family {
    IV_GPU_INT8_DOTS,   /* dp4a, any GPU */
    IV_GPU_INT8_MMA8,   /* mma.sync m8n8k16, since Turing */
    IV_GPU_INT8_MMA16,  /* mma.sync m16n8k32, machine code for Hopper */
    IV_GPU_INT8_STREAM, /* few rows, on Hopper: mma.sync behind a ring of TMA copies */
    IV_GPU_INT8_WGMMA,  /* on Hopper */
    IV_GPU_INT8_FAMILIES
} iv_gpu_int8_family;

typedef struct iv_gpu_int8_config {
    iv_gpu_int8_family family;
    int tile_n, tile_m; /* outputs and rows */
    int split_k;        /* CTAs of a cluster that divide K */
    int stages;
    int ctas; /* on a multiprocessor */
} iv_gpu_int8_config;

/* As those of ops.h for linear layers. */
size_t iv_gpu_int8_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count);
iv_gpu_int8_config iv_gpu_int8_choose(const iv_gpu_int8_args *a);
void iv_gpu_int8_describe(const iv_gpu_int8_config *c, char *text, size_t bytes);
int iv_gpu_int8_linear(const iv_gpu_int8_args *a, iv_gpu_stream stream);
int iv_gpu_int8_linear_with(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream stream);

size_t iv_gpu_int8_generic_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count);
int iv_gpu_int8_generic_launch(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream s);
/* Has the current GPU machine code for Hopper's instructions? */
bool iv_gpu_int8_on_hopper(void);
size_t iv_gpu_int8_stream_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count);
int iv_gpu_int8_stream_launch(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream s);
bool iv_gpu_int8_stream_prefer(const iv_gpu_int8_args *a, iv_gpu_int8_config *c);
size_t iv_gpu_int8_wgmma_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count);
int iv_gpu_int8_wgmma_launch(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream s);
bool iv_gpu_int8_wgmma_prefer(const iv_gpu_int8_args *a, iv_gpu_int8_config *c);

/* ---- sums of ranks ------------------------------------------------------------------------------------------------
 */

typedef struct iv_gpu_int8_reduction {
    const int32_t *part[IV_RANKS_MAX]; /* [rows][terms][n] */
    int parts, terms;
    size_t rows, n;
    const float *row_scales, *scales; /* [rows], [n] */
    const float *bias;                /* [n] or NULL */
    float *x;                         /* [rows][n]: x = canon(x + y) */
} iv_gpu_int8_reduction;
int iv_gpu_int8_reduce(const iv_gpu_int8_reduction *a, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif
