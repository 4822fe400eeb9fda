/* pack_columns.h: panels of a matrix given by rows of its transpose: the inner dimension of the panels is the rows.
 * Weight gradients take activations so (inner: tokens), input gradients take weights so (inner: outputs). */
#ifndef IV_KERNELS_PACK_COLUMNS_H
#define IV_KERNELS_PACK_COLUMNS_H

#include "kernels/compute.h"
#include "kernels/matrix.h"

/* out->n columns of out->k_padded rows: row i is out->n elements of `from` at rows[i], or zeros where it is NULL.
 * Rounds to out->type: `from` is that type or float32. out->data has iv_matrix_bytes. Over threads. */
void iv_pack_columns(const iv_compute *c, iv_dtype from, const void *const *rows, iv_matrix *out);

/* The same on the calling thread, for panels [first, last). */
void iv_pack_column_panels(const iv_kernels *k, iv_dtype from, const void *const *rows, iv_matrix *out, size_t first,
                           size_t last);

#endif
