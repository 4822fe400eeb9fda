/* latent.h: latent attention on a GPU, as launchers: what ops.h says of launchers holds for these. Law: NUMERICS.md 18.
 *
 * A page of a layer is [64][rank + turns]: a token's normed latent, then its key that turns. All query heads of a rank
 * read it, and the first `rank` elements of a key are its value. */
#ifndef IV_KERNELS_CUDA_LATENT_H
#define IV_KERNELS_CUDA_LATENT_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { IV_GPU_LATENT_MAX = 2048 }; /* rank + turns: rows of the general kernel fit shared memory */

/* Steps 3 and 2's norm: one row of the layer's first product becomes a token's key, and the input of q_b. */
typedef struct iv_gpu_latent_rows_args {
    iv_dtype type;
    size_t rows, low, rank, turns; /* low: of q_a, which begins a row; 0: there is none */
    const float *x;                /* [rows][x_stride]; c and k begin at column latent_at */
    size_t x_stride, latent_at;
    const float *q_norm, *kv_norm; /* [low], [rank] */
    float eps;
    const float *cosine, *sine; /* [position][turns / 2] */
    const int32_t *positions;   /* [rows] */
    const int64_t *slots;       /* [rows]: page * 64 + slot; -1: no key is written or checked */
    void *pages;
    void *low_out; /* [rows][low_stride], zero from low on */
    size_t low_stride;
    uint64_t *bad; /* becomes min(*bad, layer << 32 | row) if a key is not finite, which is not written then */
    uint32_t layer;
} iv_gpu_latent_rows_args;
int iv_gpu_latent_rows(const iv_gpu_latent_rows_args *a, iv_gpu_stream stream);

/* Steps 4 and 5: heads of `keeps` + `turns` elements. */
typedef struct iv_gpu_latent_queries_args {
    iv_dtype type;
    size_t rows, heads, keeps, turns, rank;
    const float *x; /* [rows][x_stride]: heads from column 0 on */
    size_t x_stride;
    const float *cosine, *sine, *query; /* query: [position] or NULL */
    const int32_t *positions;
    void *still; /* [rows][heads][still_head]: u, zero from `keeps` on */
    size_t still_head;
    void *q; /* [rows][heads][rank + turns]: p, behind the place of z */
} iv_gpu_latent_queries_args;
int iv_gpu_latent_queries(const iv_gpu_latent_queries_args *a, iv_gpu_stream stream);

/* Steps 6 and 8: out[row][head][j] = R(chain(+0; x[row][head], row j of the head's matrix)). Strides in elements. */
typedef struct iv_gpu_head_products_args {
    iv_arithmetic arithmetic;
    iv_dtype type, w_type; /* of x and out, and of w: another of 16 bits only next to float32 */
    size_t heads, rows, n, k;
    const void *w; /* [heads], w_apart bytes apart: [n][k padded to 16], zero from k on */
    size_t w_apart;
    const void *x;
    size_t x_stride, x_head;
    void *out;
    size_t out_stride, out_head;
} iv_gpu_head_products_args;
int iv_gpu_head_products(const iv_gpu_head_products_args *a, iv_gpu_stream stream);
/* The kernels that it chooses from; `tiles` refuses what iv_head_products_fit_tiles does not take. */
int iv_head_products_general(const iv_gpu_head_products_args *a, iv_gpu_stream stream);
int iv_head_products_tiles(const iv_gpu_head_products_args *a, iv_gpu_stream stream);
bool iv_head_products_fit_tiles(const iv_gpu_head_products_args *a);

/* ---- attention (attention_plan.c plans) ----------------------------------------------------------------------------
 *
 * Step 7, as iv_gpu_attention and its plan, for a shape with one KV head whose head_dim is `rank`, and a group that is
 * the same on every rank. q is [rows][heads][rank + turns], out [rows][heads][rank]; args.kv has the pages. */
size_t iv_gpu_latent_plan_bytes(const iv_gpu_attention_shape *s, size_t turns, size_t rows_max, size_t spans_max);
size_t iv_gpu_latent_plan(const iv_gpu_attention_shape *s, size_t turns, const iv_gpu_span *spans, size_t count,
                          int sms, void *plan, size_t bytes);
int iv_gpu_latent_attention(const iv_gpu_attention_args *a, size_t turns, iv_gpu_stream stream);

/* The same, `general` or as chosen: both have the same bits. */
size_t iv_latent_plan_as(const iv_gpu_attention_shape *s, size_t turns, bool general, const iv_gpu_span *spans,
                         size_t count, int sms, void *plan, size_t bytes);
int iv_latent_attention_as(const iv_gpu_attention_args *a, size_t turns, bool general, iv_gpu_stream stream);

/* Is there a kernel on tensor cores for the shape? */
bool iv_latent_fits_tiles(const iv_gpu_attention_shape *s, size_t turns);
/* How it packs the heads: a tile has `rows` packed rows at most; a tall one `tokens` of `width` heads. */
typedef struct iv_latent_packing {
    int rows, width, slices, tokens;
} iv_latent_packing;
iv_latent_packing iv_latent_short_tiles(size_t group);
iv_latent_packing iv_latent_tall_tiles(size_t group);
int iv_latent_tiles(const iv_gpu_attention_args *a, size_t turns, int workers, iv_gpu_stream stream);
int iv_latent_general(const iv_gpu_attention_args *a, size_t turns, int workers, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif
