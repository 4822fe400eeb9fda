/* join.h: the last additions of a row-parallel layer, when the ranks' nodes have met. Law: NUMERICS.md section 3.3. */
#ifndef IV_KERNELS_TREE_ALLREDUCE_H
#define IV_KERNELS_TREE_ALLREDUCE_H

#include "base/dtype.h"
#include "numerics/attention.h"
#include "numerics/tree.h"

enum { IV_ALLREDUCE_COLUMNS = 256 }; /* most columns of one call */

/* x[i] = canon(x[i] + y[i]), where y is the tree's root over node[0..join->count], canonical, and, with a bias,
 * canon(y + bias). n <= IV_ALLREDUCE_COLUMNS. The additions between nodes are the arithmetic's: flushed in fma32. */
void iv_tree_allreduce(iv_arithmetic arithmetic, const iv_tree_join *join, const float *const *node, const float *bias,
                       size_t n, float *x);

/* The vanilla baselines' (baseline.h): an all-reduce in a ring, in the run's dtype. The `hidden` columns of a row are
 * cut into as many chunks as there are nodes; the sum of chunk c starts at node c and is rounded to the dtype at every
 * hop. The call has columns [column, column + n); x and bias as in iv_tree_allreduce. */
void iv_ring_allreduce(iv_dtype dtype, size_t nodes, const float *const *node, const float *bias, size_t hidden,
                       size_t column, size_t n, float *x);

#endif
