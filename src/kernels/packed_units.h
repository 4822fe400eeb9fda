/* packed_units.h: a matrix of codes as GPUs hold it: units of 8 outputs by 64 k, in the order in which a lane of a
 * tensor core's operand takes them.
 *
 * A leaf of K has ceil(k / 64) units for each 8 outputs, the last padded with zeros. Units lie [n / 8][leaf][unit of
 * the leaf]. A unit has the codes of row r and lane q of 0 to 3 together: those of columns 16 s + 2 q + {0, 1, 8, 9},
 * s from 0 to 3. Codes of 8 bits lie [r][q][s][4]; of 4 bits [r][q][s / 2] in words, of which nibble i is the first and
 * nibble i + 4 the second code of pair i (pairs 0 and 1 are of the even s, 2 and 3 of the odd). Then follow scales
 * [groups][8], and seconds [groups][8] if the form has them, in the form's scale_type. Inner numbers are multiplied by
 * their outer ones first, so that scales are float32, and codes of 5 and 6 bits are held as bytes of int8. */
#ifndef IV_KERNELS_PACKED_UNITS_H
#define IV_KERNELS_PACKED_UNITS_H

#include "kernels/matrix.h"
#include "kernels/packed_panel.h"
#include "kernels/unit_form.h"

/* Makes m, whose leaves are set, packed; iv_matrix_shape_rows was called before, with n a multiple of 8 and k of 16.
 * form: of the rows that iv_packed_units_put takes, with the matrix' own group, counted from its first column: a
 * multiple of 16, or at least m->k. m->codes becomes the form that the units have. False when a size overflows. */
bool iv_packed_units_shape(iv_matrix *m, const iv_code_form *form);

iv_unit_form iv_packed_units_form(const iv_matrix *m);

/* Rows [first, first + count) of the form that m was shaped for, as iv_packed_panel_put, to the matrix's memory space.
 * Callers at once must not share eight rows. */
iv_status iv_packed_units_put(iv_matrix *m, iv_memspace *memspace, const iv_packed_rows_in *in, size_t first,
                              size_t count, iv_error *err);

/* The inverse, widened: rows of m->k elements of m->type, `stride` elements apart; any first and count. */
iv_status iv_packed_units_get(const iv_matrix *m, iv_memspace *memspace, void *rows, size_t stride, size_t first,
                              size_t count, iv_error *err);

#endif
