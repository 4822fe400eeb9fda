/* tree.h: the leaves of a dot product and the order in which they are added. Law: NUMERICS.md section 3.3. */
#ifndef IV_NUMERICS_TREE_H
#define IV_NUMERICS_TREE_H

#include <stddef.h>
#include <stdint.h>

enum { IV_LEAVES_MAX = 8, IV_CHAIN_STEP = 16 };

/* Sums whose terms tensor-parallel ranks divide (the inputs of o and down) have up to 8 leaves, the others up to 4. */
typedef enum iv_sum_kind { IV_SUM_WHOLE, IV_SUM_OF_RANKS } iv_sum_kind;

/* k rounded up to whole steps of 16: the tail is padded with zeros on both sides. */
static inline size_t iv_padded_k(size_t k) { return (k + IV_CHAIN_STEP - 1) / IV_CHAIN_STEP * IV_CHAIN_STEP; }

/* The largest power of two, at most 4 or 8, that cuts k_padded into equal leaves of whole steps. */
static inline int iv_leaf_count(size_t k_padded, iv_sum_kind kind) {
    int leaves = kind == IV_SUM_OF_RANKS ? IV_LEAVES_MAX : IV_LEAVES_MAX / 2;
    while (leaves > 1 && k_padded % (size_t)(IV_CHAIN_STEP * leaves) != 0) leaves /= 2;
    return leaves;
}

/* An expert's layers are never cut over ranks: one chain. */
enum { IV_EXPERT_LEAVES = 1 };

/* A node: leaves [index << level, (index + 1) << level). */
typedef struct iv_tree_node {
    int level;
    size_t index;
} iv_tree_node;

enum { IV_COVER_MAX = 32 }; /* nodes of one cover of leaves below 2^16 */

static inline size_t iv_tree_first_leaf(iv_tree_node n) { return n.index << n.level; }

/* The canonical nodes of leaves [first, last), last <= 2^16: the largest aligned blocks inside, in order. They are the
 * largest nodes that the owner of these leaves can compute alone. Returns their number. */
size_t iv_tree_cover(size_t first, size_t last, iv_tree_node nodes[IV_COVER_MAX]);

/* The additions that complete a tree from the nodes that cover it: value[to] += value[from], in order. value[0] is then
 * the root. */
typedef struct iv_tree_order {
    size_t count;
    uint8_t to[IV_LEAVES_MAX - 1], from[IV_LEAVES_MAX - 1];
} iv_tree_order;

/* nodes[0..count) cover, in order, a whole tree of at most IV_LEAVES_MAX leaves. */
void iv_tree_order_make(const iv_tree_node *nodes, size_t count, iv_tree_order *order);

#endif
