/* single_ops.h: what the ops of invar_ops.h need on a GPU beyond those of a step (ops.h, learn.h), whose arrays are
 * laid out for each other: rows and columns into another layout, keys and values into and out of pages, and row ops
 * that a step has inside larger ones. The conventions of ops.h hold. */
#ifndef IV_KERNELS_CUDA_SINGLE_OPS_H
#define IV_KERNELS_CUDA_SINGLE_OPS_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i][c] = x[row i][column c] for i < count and c < n; +0 where the row or the column is negative, and from column n
 * to out_stride. */
typedef struct iv_gpu_take_args {
    iv_dtype type;
    const void *x;
    size_t x_stride;
    const int32_t *rows;    /* [count]; NULL: row i is i */
    const int32_t *columns; /* [n]; NULL: column c is first + c */
    size_t count, first, n;
    void *out;
    size_t out_stride;
} iv_gpu_take_args;
int iv_gpu_take(const iv_gpu_take_args *a, iv_gpu_stream stream);

/* Keys and values [rows][kv.heads * head_dim], of kv's type, to their slots. *bad becomes min(*bad, the lowest row with
 * a value that is not finite). Such values are written too. */
typedef struct iv_gpu_write_kv_args {
    const void *k, *v;
    size_t rows;
    const int64_t *slots; /* [rows]: page * 64 + slot */
    iv_gpu_kv kv;
    uint64_t *bad;
} iv_gpu_write_kv_args;
int iv_gpu_write_kv(const iv_gpu_write_kv_args *a, iv_gpu_stream stream);

/* iv_gpu_rotate into k, v [rows][kv.heads * head_dim] instead of pages, whatever the values: slots, pages and bad of
 * `a` are not used. */
int iv_gpu_rotate_rows(const iv_gpu_rotate_args *a, void *k, void *v, iv_gpu_stream stream);

/* out[row] = the product of a[row][n] and b[row][n] (of `type`), in the lanes of section 4. */
int iv_gpu_row_products(const float *a, const void *b, iv_dtype type, size_t rows, size_t n, float *out,
                        iv_gpu_stream stream);

/* x[row][i] = x[row][i] * by[row]. */
int iv_gpu_scale_rows(float *x, const float *by, size_t rows, size_t n, iv_gpu_stream stream);

/* out[i] = -d[i] / temperature: coefficients of iv_gpu_logits_backward from gradients of log-probabilities. */
int iv_gpu_logprob_coefficients(const float *d, float temperature, size_t n, float *out, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif

#endif
