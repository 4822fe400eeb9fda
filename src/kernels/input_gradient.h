/* input_gradient.h: dX = dY W, a sum over the outputs of linear layers that share an input, as a linear layer over the
 * transposed weights. Law: NUMERICS.md 15.4. */
#ifndef IV_KERNELS_INPUT_GRADIENT_H
#define IV_KERNELS_INPUT_GRADIENT_H

#include "kernels/compute.h"
#include "kernels/matrix.h"

enum { IV_OUTPUT_SLICES_MAX = 6 };

/* The outputs of one layer: n columns of dy. */
typedef struct iv_output_slice {
    const char *rows; /* its weights, [n] */
    size_t n, leaf;   /* outputs; those of a leaf, of which the last may have fewer */
} iv_output_slice;

typedef struct iv_input_gradient_args {
    iv_dtype type, weight_type; /* of dy and of the sum; of the weights, this or float32 */
    iv_output_slice slice[IV_OUTPUT_SLICES_MAX];
    size_t slices;
    size_t leaves;       /* each is a leaf slice of every slice */
    size_t row_bytes, k; /* from one output's weights to the next; inputs */
    const void *dy;      /* [rows][dy_stride], the slices' columns in order */
    size_t dy_stride, rows;
    void *transposed;      /* capacity for the transposed weights: iv_matrix_bytes of k outputs and run inputs */
    void *dy_run;          /* capacity for [rows][run] */
    const void **row_list; /* capacity for [run] */
} iv_input_gradient_args;

/* The inputs of the transposed layer: all leaves' parts, each padded to a multiple of 16. */
size_t iv_input_gradient_run(const iv_input_gradient_args *a);

/* Packs the weights, and dy unless it is in order already: dX = *transposed of *x. Over threads. */
void iv_input_gradient_pack(const iv_compute *c, const iv_input_gradient_args *a, iv_matrix *transposed, const void **x,
                            size_t *x_stride);

#endif
