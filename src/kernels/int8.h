/* int8.h: linear layers of int8 codes (NUMERICS.md 20): their matrices, the kernels of a CPU, and the products. The
 * int32 sums are exact, so tiles, threads and ranks may cut them anywhere.
 *
 * A panel of 32 outputs is [32] scales (float32), [32] sums of the output's codes (int32), and the codes [k/4][32][4],
 * zero from k to k_padded. A matrix of k = 0 has scales alone. In a memory space rows stay: codes [n][k_padded], then
 * scales [n], both in the order of iv_matrix_row_index. */
#ifndef IV_KERNELS_INT8_H
#define IV_KERNELS_INT8_H

#include "kernels/compute.h"
#include "kernels/linear.h"
#include "kernels/matrix.h"
#include "numerics/int8.h"

enum { IV_INT8_HEAD_BYTES = 2 * 4 * IV_PANEL_COLUMNS };

typedef struct iv_int8_panel {
    const float *scales; /* [32] */
    const int32_t *sums; /* [32] */
    const int8_t *codes; /* iv_int8_at */
} iv_int8_panel;

/* The index of element k of column c among a panel's codes. */
static inline size_t iv_int8_at(size_t k, size_t c) { return (k / 4 * IV_PANEL_COLUMNS + c) * 4 + k % 4; }

/* ---- matrices ------------------------------------------------------------------------------------------------ */

/* Makes m one of int8 codes whose products have 1 or 2 terms; iv_matrix_shape was called before. False when a size
 * overflows. */
bool iv_int8_shape(iv_matrix *m, int terms);

iv_int8_panel iv_int8_panel_of(const iv_matrix *m, size_t p);

/* Quantizes rows [first, first + count), each m->k numbers of `type` from `column` of a row of `columns`, which are the
 * whole row of the layer: its scale is theirs. The numbers are rounded to m->type before. The data must have been
 * zeroed. Callers with disjoint rows may run at once. */
void iv_int8_put(iv_matrix *m, iv_dtype type, const void *rows, size_t columns, size_t column, size_t first,
                 size_t count);

/* The same from codes and scales as a file has them, rows of `columns` codes. */
void iv_int8_put_codes(iv_matrix *m, const uint8_t *codes, const float *scales, size_t columns, size_t column,
                       size_t first, size_t count);

/* Row n as floats: code * scale; k elements. */
void iv_int8_row(const iv_matrix *m, size_t n, float *out);

/* The same three for a matrix of rows, whose data is in `memspace`. iv_int8_get: rows of m->type, `stride` elements
 * apart. */
iv_status iv_int8_put_in(iv_matrix *m, iv_memspace *memspace, iv_dtype type, const void *rows, size_t columns,
                         size_t column, size_t first, size_t count, iv_error *err);
iv_status iv_int8_put_codes_in(iv_matrix *m, iv_memspace *memspace, const uint8_t *codes, const float *scales,
                               size_t columns, size_t column, size_t first, size_t count, iv_error *err);
iv_status iv_int8_get(const iv_matrix *m, iv_memspace *memspace, void *rows, size_t stride, size_t first, size_t count,
                      iv_error *err);

/* ---- kernels ------------------------------------------------------------------------------------------------- */

/* What depends on instructions. Codes of activations are the kernel's own, `code_bytes` each. */
typedef struct iv_int8_kernel {
    const char *name;
    size_t rows_max;   /* of codes in a tile */
    size_t code_bytes; /* at most 2 */
    /* iv_ref_int8_magnitude */
    uint32_t (*magnitude)(iv_dtype type, const void *x, size_t n);
    /* iv_ref_int8_codes; zeros to n_padded, a multiple of 16. */
    void (*quantize)(iv_dtype type, const void *x, size_t n, size_t n_padded, float inverse, int terms, void *high,
                     void *low);
    /* out[rows][32]: int32 sums of rows of codes, `stride` bytes apart, and a panel, over k_padded. */
    void (*products)(const void *codes, size_t stride, size_t rows, const iv_int8_panel *panel, size_t k_padded,
                     int32_t *out);
    /* out[32]: iv_ref_int8_result of sums[terms][32]. */
    void (*results)(const int32_t *sums, int terms, float row_scale, const float *scales, float *out);
} iv_int8_kernel;

extern const iv_int8_kernel iv_int8_scalar;

/* ---- products ------------------------------------------------------------------------------------------------ */

/* The op table's entry: the magnitude of each row. */
void iv_int8_magnitudes(const iv_compute *c, const iv_linear_args *a, uint32_t *out);

/* The layer: of a matrix that holds all of K. As iv_linear, whose scratch suffices. */
void iv_int8_linear(const iv_compute *c, const iv_linear_args *a);

/* A rank's part of K: sums[rows][terms][n], from the magnitudes of whole rows. */
void iv_int8_sums(const iv_compute *c, const iv_linear_args *a, const uint32_t *magnitudes, int32_t *sums);

/* Columns [column, column + count) of a row as floats, column a multiple of 32: from whole sums [terms][stride], which
 * begin with that column. */
void iv_int8_results(const iv_compute *c, const iv_matrix *w, uint32_t magnitude, const int32_t *sums, size_t stride,
                     size_t column, size_t count, float *out);

#endif
