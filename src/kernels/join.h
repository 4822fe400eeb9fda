/* join.h: the last additions of a row-parallel layer, when the ranks' nodes have met. Law: NUMERICS.md section 3.3. */
#ifndef IV_KERNELS_JOIN_H
#define IV_KERNELS_JOIN_H

#include "numerics/attention.h"
#include "numerics/tree.h"

enum { IV_JOIN_COLUMNS = 256 }; /* most columns of one call */

/* x[i] = canon(x[i] + y[i]), where y is the tree's root over node[0..join->count], canonical, and, with a bias,
 * canon(y + bias). n <= IV_JOIN_COLUMNS. The additions between nodes are the arithmetic's: flushed in fma32. */
void iv_join(iv_arithmetic arithmetic, const iv_tree_join *join, const float *const *node, const float *bias, size_t n,
             float *x);

#endif
