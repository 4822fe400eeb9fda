/* packed_panel.h: a panel of 32 outputs as codes, widened to a plain panel on the way into a product.
 *
 * A packed panel is a sequence of groups along k. A group has 32 scales, 32 seconds if the form has them, both in the
 * form's scale_type, then codes: of 8 bits [k][32]; of 4 bits [k/8][32] words, of which nibble i, from the lowest, is
 * k + i. The last group may be shorter; its codes are padded to a multiple of 16. */
#ifndef IV_KERNELS_PACKED_PANEL_H
#define IV_KERNELS_PACKED_PANEL_H

#include "kernels/kernels.h"
#include "kernels/matrix.h"

/* Makes m packed; iv_matrix_shape was called before. group: columns that share a scale, at most the form's own; a
 * multiple of 16, or at least m->k. False when a size overflows. */
bool iv_packed_panel_shape(iv_matrix *m, const iv_code_form *form, size_t group);

/* Rows [first, first + count) of the matrix: code k of a row at codes[k], `stride` from row to row. The scale and
 * second of column k are at [(column + k) / group] of their rows, which are `groups` apart; column: where the matrix
 * begins among the columns that scales were given for, and `group` theirs. seconds may be NULL where the form has none.
 * Callers with disjoint rows may run at once only where they do not share a panel's columns. */
typedef struct iv_packed_rows_in {
    const uint8_t *codes;
    size_t stride;
    const float *scales, *seconds;
    size_t groups, group, column;
} iv_packed_rows_in;
void iv_packed_panel_put(iv_matrix *m, const iv_packed_rows_in *in, size_t first, size_t count);

/* The plain panel of packed panel p, k_padded x 32 of m->type, zeros from k on. */
void iv_packed_panel_widen(const iv_kernels *kernels, const iv_matrix *m, size_t p, void *out);

/* Bytes of such a panel. */
static inline size_t iv_widened_panel_bytes(const iv_matrix *m) {
    return m->k_padded * IV_PANEL_COLUMNS * iv_dtype_bytes(m->type);
}

/* Row n as floats; k elements. */
void iv_packed_panel_row(const iv_matrix *m, size_t n, float *out);

/* The reference of iv_kernels.widen. */
void iv_widen_scalar(const iv_code_form *form, iv_dtype type, const void *scales, const void *codes, size_t k,
                     void *out);

#endif
