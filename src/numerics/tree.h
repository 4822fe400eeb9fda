/* tree.h: how a dot product is cut into leaves and how the leaves are added. Law: NUMERICS.md section 3.3. */
#ifndef IV_NUMERICS_TREE_H
#define IV_NUMERICS_TREE_H

#include <stddef.h>

enum { IV_LEAVES_MAX = 8, IV_CHAIN_STEP = 16 };

/* k rounded up to whole steps of 16: the tail is padded with zeros on both sides. */
static inline size_t iv_padded_k(size_t k) { return (k + IV_CHAIN_STEP - 1) / IV_CHAIN_STEP * IV_CHAIN_STEP; }

/* The largest power of two, at most 8, that cuts k_padded into equal leaves of whole steps. */
static inline int iv_leaf_count(size_t k_padded) {
    int leaves = IV_LEAVES_MAX;
    while (leaves > 1 && k_padded % (size_t)(IV_CHAIN_STEP * leaves) != 0) leaves /= 2;
    return leaves;
}

#endif
