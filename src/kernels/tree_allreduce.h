/* tree_allreduce.h: the additions between the ranks' nodes of a row-parallel layer. Law: NUMERICS.md section 3.3. */
#ifndef IV_KERNELS_TREE_ALLREDUCE_H
#define IV_KERNELS_TREE_ALLREDUCE_H

#include "base/dtype.h"
#include "numerics/attention.h"
#include "numerics/tree.h"

enum { IV_ALLREDUCE_COLUMNS = 256 }; /* most columns of one call */

/* x[i] = canon(x[i] + y[i]), where y is the tree's root over node[0..order->count], canonical, and, with a bias,
 * canon(y + bias). n <= IV_ALLREDUCE_COLUMNS. The additions between nodes are the arithmetic's: flushed in fma32. */
void iv_tree_allreduce(iv_arithmetic arithmetic, const iv_tree_order *order, const float *const *node,
                       const float *bias, size_t n, float *x);

/* x[i] = canon(x[i] + y[i]), y canonical and, with a bias, canon(y + bias). */
void iv_residual_add(const float *y, const float *bias, size_t n, float *x);

/* The op table's entry: columns [column, column + n) of one row of `hidden`. */
typedef struct iv_allreduce_args {
    const iv_tree_order *order;
    const float *const *node; /* [order->count + 1][n], in tree order */
    const float *bias;        /* [n] or NULL */
    size_t n;                 /* at most IV_ALLREDUCE_COLUMNS */
    float *x;                 /* [n] of the residual stream */
    iv_dtype dtype;           /* of the run */
    size_t hidden, column;
} iv_allreduce_args;

#endif
