/* tp_plan.c: leaves first; heads, experts and vocabulary follow from them. */
#include "model/tp_plan.h"
#include "base/size.h"
#include "kernels/kernels.h"

/* The first of `total` items that rank r owns; rank 0 always has one if total > 0. */
static size_t first_of(size_t r, size_t ranks, size_t total) { return (r * total + ranks - 1) / ranks; }

static size_t leaves_of(size_t k) { return (size_t)iv_leaf_count(iv_padded_k(k), IV_SUM_OF_RANKS); }

static void cut_rank(iv_row_cut *c, size_t k, size_t leaves, size_t first, size_t last, bool baseline) {
    size_t leaf_k = iv_padded_k(k) / leaves;
    iv_tree_node nodes[IV_COVER_MAX];
    *c = (iv_row_cut){.first = iv_size_min(first * leaf_k, k)};
    c->k = iv_size_min(last * leaf_k, k) - c->first;
    if (baseline && c->k) {
        c->nodes = 1;
        c->node[0].k = c->k, c->node[0].leaves = (int)leaves_of(c->k);
        return;
    }
    c->nodes = iv_tree_cover(first, last, nodes);
    IV_ASSERT(c->nodes <= IV_RANK_NODES_MAX);
    for (size_t i = 0; i < c->nodes; i++) {
        size_t from = iv_tree_first_leaf(nodes[i]) * leaf_k, to = from + (leaf_k << nodes[i].level);
        c->node[i].at = nodes[i], c->node[i].leaves = 1 << nodes[i].level;
        c->node[i].column = from - c->first, c->node[i].k = iv_size_min(to, k) - from;
    }
}

static void rank_order(iv_tree_order *order, size_t nodes) {
    IV_ASSERT(nodes >= 1 && nodes <= IV_LEAVES_MAX);
    *order = (iv_tree_order){.count = nodes - 1};
    for (size_t i = 0; i + 1 < nodes; i++) order->from[i] = (uint8_t)(i + 1);
}

/* Divides K inputs over the ranks, leaf by leaf. */
static void cut_rows(iv_row_cuts *cuts, size_t k, size_t ranks, bool baseline) {
    size_t leaves = leaves_of(k), count = 0;
    iv_tree_node all[IV_LEAVES_MAX];
    for (size_t r = 0; r < ranks; r++) {
        iv_row_cut *c = &cuts->of[r];
        cut_rank(c, k, leaves, first_of(r, ranks, leaves), first_of(r + 1, ranks, leaves), baseline);
        for (size_t i = 0; i < c->nodes; i++) all[count++] = c->node[i].at;
    }
    if (baseline)
        rank_order(&cuts->order, count);
    else
        iv_tree_order_make(all, count, &cuts->order);
}

static void shard_of(const iv_model_config *c, const iv_tp_plan *tp, size_t r, bool wide, iv_tp_shard *s) {
    size_t dim = (size_t)(wide         ? c->wide_head_dim
                          : c->kv_rank ? c->value_dim
                                       : c->head_dim),
           group = (size_t)(c->heads / (wide ? c->wide_kv_heads : c->kv_heads));
    const iv_row_cut *out = &iv_tp_out(tp, wide)->of[r];
    *s = (iv_tp_shard){0};
    if (out->k) {
        s->head_first = out->first / dim;
        s->heads = (out->first + out->k + dim - 1) / dim - s->head_first;
        s->kv_head_first = s->head_first / group;
        s->kv_heads = (s->head_first + s->heads - 1) / group + 1 - s->kv_head_first;
    }
    const iv_row_cut *delta = &tp->mixer_out.of[r];
    if (delta->k && c->linear_value_heads) {
        size_t value = (size_t)c->linear_value_dim, per_key = (size_t)(c->linear_value_heads / c->linear_key_heads);
        s->linear_value_first = delta->first / value;
        s->linear_values = (delta->first + delta->k + value - 1) / value - s->linear_value_first;
        s->linear_key_first = s->linear_value_first / per_key;
        s->linear_keys = (s->linear_value_first + s->linear_values - 1) / per_key + 1 - s->linear_key_first;
    }
    s->expert_first = first_of(r, tp->ranks, (size_t)c->experts);
    s->experts = first_of(r + 1, tp->ranks, (size_t)c->experts) - s->expert_first;
    size_t vocab = (size_t)c->vocab_size, panels = (vocab + IV_PANEL_COLUMNS - 1) / IV_PANEL_COLUMNS;
    s->vocab_first = iv_size_min(first_of(r, tp->ranks, panels) * IV_PANEL_COLUMNS, vocab);
    s->vocab = iv_size_min(first_of(r + 1, tp->ranks, panels) * IV_PANEL_COLUMNS, vocab) - s->vocab_first;
}

static iv_status check(const iv_model_config *c, size_t ranks, iv_error *err) {
    size_t k = (size_t)c->intermediate_size, leaves = leaves_of(k);
    if (ranks < 1 || ranks > IV_RANKS_MAX)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted 1 to %d, found %zu", IV_RANKS_MAX, ranks);
    if (iv_config_has_mlp(c, IV_MLP_DENSE) && ranks > leaves)
        return iv_fail(err, IV_UNSUPPORTED,
                       "tensor_parallel_size: intermediate_size %zu is summed in %zu leaves, one rank needs one: "
                       "wanted at most %zu, found %zu",
                       k, leaves, leaves, ranks);
    if (iv_config_has_mlp(c, IV_MLP_EXPERTS) && ranks > (size_t)c->experts)
        return iv_fail(err, IV_UNSUPPORTED,
                       "tensor_parallel_size: one rank needs an expert: wanted at most %zu, found %zu",
                       (size_t)c->experts, ranks);
    return IV_OK;
}

iv_status iv_tp_plan_make(const iv_model_config *c, size_t ranks, bool baseline, iv_tp_plan *out, iv_error *err) {
    IV_TRY(check(c, ranks, err));
    *out = (iv_tp_plan){.ranks = ranks};
    cut_rows(&out->out, (size_t)(c->heads * (c->kv_rank ? c->value_dim : c->head_dim)), ranks, baseline);
    if (c->linear_value_heads)
        cut_rows(&out->mixer_out, (size_t)(c->linear_value_heads * c->linear_value_dim), ranks, baseline);
    if (iv_config_mixers(c, IV_MIXER_CONV)) cut_rows(&out->mixer_out, (size_t)c->hidden_size, ranks, baseline);
    cut_rows(&out->down, (size_t)c->intermediate_size, ranks, baseline);
    if (c->shared_intermediate_size) cut_rows(&out->shared, (size_t)c->shared_intermediate_size, ranks, baseline);
    if (c->experts) cut_rows(&out->expert_down, (size_t)c->moe_intermediate_size, 1, baseline);
    bool wide = iv_config_has_wide(c);
    if (wide) cut_rows(&out->wide_out, (size_t)(c->heads * c->wide_head_dim), ranks, baseline);
    for (size_t r = 0; r < ranks; r++) {
        shard_of(c, out, r, false, &out->shard[r]);
        shard_of(c, out, r, wide, &out->wide[r]);
    }
    return IV_OK;
}

void iv_tp_mixer_columns(const iv_tp_plan *tp, const iv_model_config *c, size_t rank, size_t layer, size_t *first,
                         size_t *n) {
    bool wide = c->layer[layer].wide;
    const iv_tp_shard *s = iv_tp_shard_of(tp, rank, wide);
    size_t head = (size_t)(wide         ? c->wide_head_dim
                           : c->kv_rank ? c->value_dim
                                        : c->head_dim),
           value = (size_t)c->linear_value_dim;
    switch (c->layer[layer].mixer) {
    case IV_MIXER_ATTENTION: *first = s->head_first * head, *n = s->heads * head; return;
    case IV_MIXER_DELTA:
    case IV_MIXER_SCAN: *first = s->linear_value_first * value, *n = s->linear_values * value; return;
    case IV_MIXER_NONE: *first = 0, *n = 0; return;
    case IV_MIXER_CONV: *first = tp->mixer_out.of[rank].first, *n = tp->mixer_out.of[rank].k; return;
    }
    IV_ASSERT(!"a kind of mixer without columns");
}

size_t iv_tp_plan_kv_heads(const iv_tp_plan *tp) {
    size_t heads = 0;
    for (size_t r = 0; r < tp->ranks; r++) heads += tp->shard[r].kv_heads;
    return heads;
}
