/* weight_gradient.h: dW = dY^T X, a sum over tokens. Law: NUMERICS.md 15; token_axis.h. */
#ifndef IV_KERNELS_WEIGHT_GRADIENT_H
#define IV_KERNELS_WEIGHT_GRADIENT_H

#include "kernels/matrix.h"
#include "kernels/token_axis.h"

typedef struct iv_weight_gradient_args {
    const iv_token_axis *axis;
    const iv_matrix *x; /* pack_columns: n = inputs, k_padded = axis->padded, inner dimension the axis */
    iv_dtype type;      /* of dy and x */
    const void *dy;     /* [rows][dy_stride]: n columns of each row are used */
    size_t dy_stride, n;
    const iv_axis_sums *sums;
    size_t offset, stride; /* element [i][j] of the gradient is sum[offset + i * stride + j] */
} iv_weight_gradient_args;

/* Scratch for an axis of up to `padded` tokens. False when the size overflows. */
bool iv_weight_gradient_scratch(size_t padded, size_t threads, size_t *bytes);

/* The compute's scratch must suffice. Over threads. */
void iv_weight_gradient(const iv_compute *c, const iv_weight_gradient_args *args);

#endif
