/* learner_ranks.h: how tensor-parallel ranks divide the sums over outputs of a backward pass. Law: NUMERICS.md 15.4. */
#ifndef IV_MODEL_LEARNER_RANKS_H
#define IV_MODEL_LEARNER_RANKS_H

#include "model/model.h"

/* Leaves of one rank: q, k and v; gate and up of dense layers, and of shared experts (1 if there are none); the head;
 * the projection before layers with a state (1 if there are none). */
typedef struct iv_learner_leaves {
    size_t qkv, wide_qkv, up, shared, head, mixer;
} iv_learner_leaves;

/* Leaves of q, k and v over all ranks. */
size_t iv_qkv_leaves(size_t kv_heads);

/* IV_UNSUPPORTED names a layer whose leaves the model's ranks do not divide. */
iv_status iv_learner_divide(const iv_model *m, iv_learner_leaves *out, iv_error *err);

/* The order of the additions, if every rank has one node of so many leaves. */
void iv_learner_node_order(size_t ranks, size_t leaves, iv_tree_order *out);

#endif
