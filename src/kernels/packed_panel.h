/* packed_panel.h: a panel of 32 outputs as codes, widened to a plain panel on the way into a product.
 *
 * A packed panel is a sequence of groups along k. A group has a head of 32 scales and, if the form has them, 32
 * seconds: numbers of the form's scale_type, or inner bytes. Where these are inner, 32 outer scales (and seconds) of
 * scale_type come before the first group of each outer one. Then codes: of 8 bits [k][32]; of 4 bits [k/8][32] words,
 * of which nibble i, from the lowest, is k + i; of 5 and 6 bits for each 16 of k the low nibbles so, and [32] words of
 * 16 or 32 bits with one or two high bits for each k, from the lowest. The last group may be shorter; its codes are
 * padded to a multiple of 16. */
#ifndef IV_KERNELS_PACKED_PANEL_H
#define IV_KERNELS_PACKED_PANEL_H

#include "kernels/kernels.h"
#include "kernels/matrix.h"

/* Makes m packed; iv_matrix_shape was called before. form: with the matrix' own group and outer, which are multiples of
 * 16 or at least m->k. False when a size overflows. */
bool iv_packed_panel_shape(iv_matrix *m, const iv_code_form *form);

/* Rows as iv_row_codes has them, of a form and a number of columns, of which the matrix begins with `column`. Callers
 * with disjoint rows may run at once. */
typedef struct iv_packed_rows_in {
    iv_row_codes rows;
    const iv_code_form *form;
    size_t columns, column;
} iv_packed_rows_in;
void iv_packed_panel_put(iv_matrix *m, const iv_packed_rows_in *in, size_t first, size_t count);

iv_packed_view iv_packed_panel_view(const iv_matrix *m, size_t p);

/* The plain panel of packed panel p, k_padded x 32 of m->type, zeros from k on. */
void iv_packed_panel_widen(const iv_kernels *kernels, const iv_matrix *m, size_t p, void *out);

/* Bytes of such a panel. */
static inline size_t iv_widened_panel_bytes(const iv_matrix *m) {
    return m->k_padded * IV_PANEL_COLUMNS * iv_dtype_bytes(m->type);
}

/* Row n as floats; k elements. */
void iv_packed_panel_row(const iv_matrix *m, size_t n, float *out);

/* The reference of iv_kernels.widen. */
void iv_widen_scalar(const iv_code_form *form, iv_dtype type, const iv_packed_group *group, size_t k, void *out);

#endif
