/* head_products.h: y = W_h x for each head's part of rows, with a matrix of each head. Law: NUMERICS.md section 18. */
#ifndef IV_KERNELS_HEAD_PRODUCTS_H
#define IV_KERNELS_HEAD_PRODUCTS_H

#include "kernels/compute.h"
#include "kernels/matrix.h"

typedef struct iv_head_products_args {
    const iv_matrix *weights; /* [heads], all of one shape and type, plain */
    size_t heads, rows;
    iv_dtype type;           /* of x and out: the weights', or F32 in fma32 */
    const void *x;           /* element i of head h in row r is x[r * x_stride + h * x_head + i], weights->k of them */
    size_t x_stride, x_head; /* elements */
    void *out;               /* likewise, weights->n of them */
    size_t out_stride, out_head;
} iv_head_products_args;

/* Scratch for one thread, in bytes; iv_head_products needs threads times as much. */
size_t iv_head_products_scratch(size_t k);

/* Each output is one chain from +0, rounded to the type, canonical NaN. Heads and tiles of rows go to threads. */
void iv_head_products(const iv_compute *c, const iv_head_products_args *args);

#endif
