/* gptq.h: codes of a layer's rows that leave its outputs near for given inputs (GPTQ), in float64 and one written
 * order, so that they are the same on every machine and for every number of threads.
 *
 *     H[i][j]  = sum over the inputs x, in their order, of x[i] x[j]: products of two float32 are exact
 *     H       += damping * mean(diagonal) * I; or I, where all inputs are zero
 *     H        = (I + A) D (I + A)^T, A strictly upper triangular, D diagonal, from the last column to the first
 *     c_k      = w_k + sum over j < k, in their order, of e_j A[j][k]
 *     code_k   = the nearest of c_k in float32 (quantize.h)
 *     e_k      = w_k - W(code_k), W as the file's reader has it (NUMERICS.md 16)
 *
 * A group's scale is that of its corrected numbers, as if its own columns were not rounded: v_k = w_k + the sum over
 * columns before the group of e_j A[j][k], then over the group's own before k of (w_j - v_j) A[j][k]. With an order of
 * columns of its own (activation order) scales come from w itself, so that groups stay those of the file. */
#ifndef IV_NUMERICS_GPTQ_H
#define IV_NUMERICS_GPTQ_H

#include "base/dtype.h"
#include "numerics/weight_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IV_GPTQ_ROWS = 8 };

/* Matrices are [k][k], of which the lower triangle is used: H[i][j] with j <= i; after factoring row i has A[j][i] in
 * columns j < i and D[i] in column i. */

/* Adds `count` inputs, float32 numbers, to rows [first, end) of H. x: [count][k]. Callers with disjoint rows may run at
 * once; the order of the inputs counts, their division into calls does not. */
void iv_gptq_add(double *h, size_t k, size_t first, size_t end, const double *x, size_t count);

void iv_gptq_damp(double *h, size_t k, double damping);

/* H with columns in another order: column i of out is column order[i]. */
void iv_gptq_reorder(const double *h, size_t k, const uint32_t *order, double *out);

/* The columns by falling diagonal, equal ones by their number. False: no memory. */
bool iv_gptq_order(const double *h, size_t k, uint32_t *order);

/* Factors H from column `end` - 1 down to `begin`, whose rows behind `end` are done and were taken off by
 * iv_gptq_take. False: a number of D is not above zero. */
bool iv_gptq_factor(double *h, size_t k, size_t begin, size_t end);

/* Takes the factored columns [begin, end) off row `row` < begin. Callers with different rows may run at once. */
void iv_gptq_take(double *h, size_t k, size_t begin, size_t end, size_t row);

typedef struct iv_gptq_layer {
    const double *factor;  /* of the columns in `order` */
    const uint32_t *order; /* NULL: as they are */
    size_t columns, group; /* columns that share a scale, which divides them */
    iv_weight_format format;
    iv_dtype type; /* of the tensor: of its scales, and of W */
    float global;  /* as iv_quantize_scale takes it */
} iv_gptq_layer;

/* `rows` rows, at most IV_GPTQ_ROWS. w: [rows][columns]. codes: [rows][columns], as iv_quantize_codes; scales:
 * [rows][columns / group], as stored; values: [rows][columns], W. scratch: [iv_gptq_scratch] doubles. */
size_t iv_gptq_scratch(size_t columns);
void iv_gptq_rows(const iv_gptq_layer *l, size_t rows, const float *w, uint8_t *codes, float *scales, float *values,
                  double *scratch);

#endif
