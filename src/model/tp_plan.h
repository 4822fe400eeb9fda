/* tp_plan.h: the parts of a model that each tensor-parallel rank owns. A pure function of the configuration: every rank
 * computes it for all ranks.
 *
 * Row-parallel layers (attention's output, down) are cut at leaves: a rank owns consecutive leaves of K and adds up
 * their canonical nodes (numerics/tree.h); adding all ranks' nodes in tree order completes the tree of NUMERICS.md
 * section 3.3 with the additions of one rank. A baseline (NUMERICS.md section 14) instead has one node a rank, over
 * that rank's K, and adds rank by rank; so do int8 layers (section 20), whose sums are exact. Layers before such a
 * layer are cut by what its inputs need: query heads, the KV heads they read, columns of gate and up. A rank without a
 * leaf of attention's output has no heads.
 */
#ifndef IV_MODEL_TP_PLAN_H
#define IV_MODEL_TP_PLAN_H

#include "base/ranks.h"
#include "base/status.h"
#include "format/model_config.h"
#include "numerics/tree.h"

enum { IV_RANK_NODES_MAX = 4 }; /* canonical nodes of consecutive leaves among eight */
_Static_assert((int)IV_RANKS_MAX <= (int)IV_LEAVES_MAX, "a rank has a leaf at least");

/* One rank's inputs of a row-parallel layer. */
typedef struct iv_row_cut {
    size_t first, k; /* inputs [first, first + k), without padding, which the last node adds again */
    size_t nodes;
    struct {
        iv_tree_node at;
        size_t column, k; /* its inputs, from `first` on */
        int leaves;
    } node[IV_RANK_NODES_MAX];
} iv_row_cut;

/* How all ranks cut one kind of row-parallel layer. */
typedef struct iv_row_cuts {
    iv_row_cut of[IV_RANKS_MAX];
    iv_tree_order order; /* of all ranks' nodes, in rank order */
} iv_row_cuts;

typedef struct iv_tp_shard {
    size_t head_first, heads;       /* query heads; one divided by a leaf boundary belongs to two ranks */
    size_t kv_head_first, kv_heads; /* those that the query heads read */
    /* Of linear attention: value heads, likewise, and the key heads that they read. */
    size_t linear_key_first, linear_keys, linear_value_first, linear_values;
    size_t expert_first, experts;
    size_t vocab_first, vocab; /* columns of the head: whole panels */
} iv_tp_shard;

typedef struct iv_tp_plan {
    size_t ranks;
    iv_tp_shard shard[IV_RANKS_MAX];
    iv_tp_shard wide[IV_RANKS_MAX]; /* the same with the heads of layers that are wide; those of `shard` without any */
    iv_row_cuts out, down;          /* down: of dense layers */
    iv_row_cuts wide_out;
    iv_row_cuts mixer_out;   /* out of layers with a state; no cut where there are none */
    iv_row_cuts shared;      /* down of the shared expert; a rank may have none of it */
    iv_row_cuts expert_down; /* of one expert, which one rank has whole */
} iv_tp_plan;

/* A rank's shard as a layer has heads, and how attention's output is cut there. */
static inline const iv_tp_shard *iv_tp_shard_of(const iv_tp_plan *tp, size_t rank, bool wide) {
    return wide ? &tp->wide[rank] : &tp->shard[rank];
}
static inline const iv_row_cuts *iv_tp_out(const iv_tp_plan *tp, bool wide) { return wide ? &tp->wide_out : &tp->out; }

/* IV_UNSUPPORTED names the reason if a model cannot be sharded over this number of ranks. */
iv_status iv_tp_plan_make(const iv_model_config *config, size_t ranks, bool baseline, iv_tp_plan *out, iv_error *err);

/* The columns [*first, *first + *n) of what a layer's mixer gives (attention, a delta rule, a short convolution) that
 * the rank has: whole heads. */
void iv_tp_mixer_columns(const iv_tp_plan *tp, const iv_model_config *config, size_t rank, size_t layer, size_t *first,
                         size_t *n);

/* KV heads held by all ranks together: more than the model's if ranks duplicate one. */
size_t iv_tp_plan_kv_heads(const iv_tp_plan *tp);

#endif
