/* linear.h: y = W x for many rows, over threads. The bits are the tile kernel's: the distribution of rows
 * and panels over threads is free. */
#ifndef IV_KERNELS_LINEAR_H
#define IV_KERNELS_LINEAR_H

#include "kernels/compute.h"
#include "kernels/matrix.h"

typedef struct iv_linear_args {
    const iv_matrix *weight;
    iv_dtype type; /* of x: the weight's, or F32 in fma32 */
    const void *x; /* [rows][x_stride] elements, weight->k of each row used */
    size_t x_stride;
    size_t rows;
    const float *bias; /* [weight->n] or NULL: added after the tree, rounded once */
    float *out;        /* [rows][out_stride] */
    size_t out_stride;
    bool accumulate; /* out += result instead of out = result (the residual): rounded once */
    bool from_zero;  /* out = +0 + result, which leaves no negative zero */
} iv_linear_args;

/* Scratch that iv_linear needs for up to `rows` rows of k inputs. False when the size overflows. */
bool iv_linear_scratch(size_t rows, size_t k, size_t *bytes);

/* The compute's scratch must suffice, and where the weight is packed, its `widened`. */
void iv_linear(const iv_compute *c, const iv_linear_args *args);

/* The same with K cut into `leaves` chains, a power of two that divides the weight's own. */
void iv_linear_split_k(const iv_compute *c, const iv_linear_args *args, int leaves);

/* Chains that continue from accumulators: acc += x W^T over the weight's k, for results too long to sum at once. The
 * accumulators are rows * panels * 32 floats in the kernel's own order, which begins at zero; iv_linear_result brings
 * them into rows, NaN canonical. The tile's rows and panels never change. */
void iv_linear_continue(const iv_compute *c, const iv_linear_args *args, float *acc);
void iv_linear_result(const iv_compute *c, const iv_linear_args *args, const float *acc);

#endif
