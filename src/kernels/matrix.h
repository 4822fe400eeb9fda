/* matrix.h: a weight matrix packed once, at load: into panels of 32 outputs for CPUs, or row by row for a GPU. */
#ifndef IV_KERNELS_MATRIX_H
#define IV_KERNELS_MATRIX_H

#include "base/dtype.h"
#include "base/status.h"
#include "device/memspace.h"
#include "numerics/weight_codes.h"

#include <stdbool.h>
#include <stdint.h>

/* y[n] = sum over k of W[n][k] x[k]. The owner of the matrix allocates the data (64-byte aligned). */
typedef struct iv_matrix {
    iv_weight_format format; /* of data: the plain one of `type`, else packed_panel.h */
    iv_code_form codes;      /* of packed panels */
    iv_dtype type;           /* of the values that products see: BF16, F16 or F32 */
    size_t n, k;             /* outputs, inputs */
    size_t k_padded;         /* to a multiple of 16 */
    size_t panels;           /* of 32 outputs, the last padded with zeros; of one output where rows are kept */
    size_t panel_bytes;
    size_t panel_columns; /* 32 or 1 */
    bool paired; /* rows are n / 2 gates, then as many ups, interleaved: 8 gates, 8 ups, ... (kernels/cuda/ops.h) */
    int leaves;  /* of K */
    int terms;   /* 0, or 1 or 2: int8 codes (int8.h), whose sums of products are exact */
    unsigned char *data;
} iv_matrix;

/* Fills every field but data, leaves as for a K that no rank divides; false when a size overflows. */
bool iv_matrix_shape(iv_matrix *m, iv_dtype type, size_t n, size_t k);
/* The same with rows instead of panels: [n][k_padded]. */
bool iv_matrix_shape_rows(iv_matrix *m, iv_dtype type, size_t n, size_t k, bool paired);

/* The index of row n of W among the stored rows. */
static inline size_t iv_matrix_row_index(const iv_matrix *m, size_t n) {
    if (!m->paired) return n;
    size_t half = m->n / 2, i = n % half;
    return i / 8 * 16 + i % 8 + (n < half ? 0 : 8);
}
static inline size_t iv_matrix_bytes(const iv_matrix *m) { return m->panels * m->panel_bytes; }
static inline const unsigned char *iv_matrix_panel(const iv_matrix *m, size_t p) {
    return m->data + p * m->panel_bytes;
}

/* Packs rows [first, first + count) of W, given as m->k `from` elements a row, `stride` elements from row to row,
 * rounding to m->type if `from` differs. Not for packed matrices. The data must have been zeroed. Callers with disjoint
 * rows may run at once. */
void iv_matrix_pack(iv_matrix *m, iv_dtype from, const void *rows, size_t stride, size_t first, size_t count);

/* The same for a matrix of rows, whose data is in `memspace`. */
iv_status iv_matrix_put(iv_matrix *m, iv_memspace *memspace, iv_dtype from, const void *rows, size_t stride,
                        size_t first, size_t count, iv_error *err);

/* The inverses: rows [first, first + count) of W as m->k elements of m->type a row, `stride` elements from row to row.
 */
void iv_matrix_unpack(const iv_matrix *m, void *rows, size_t stride, size_t first, size_t count);
iv_status iv_matrix_get(const iv_matrix *m, iv_memspace *memspace, void *rows, size_t stride, size_t first,
                        size_t count, iv_error *err);

/* Row n as floats (an embedding look-up); k elements. */
void iv_matrix_row(const iv_matrix *m, size_t n, float *out);

#endif
