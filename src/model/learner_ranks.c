/* learner_ranks.c */
#include "model/learner_ranks.h"
#include "numerics/tree.h"

/* The largest power of two, at most 8, that divides kv_heads. */
size_t iv_qkv_leaves(size_t kv_heads) {
    size_t p = IV_LEAVES_MAX;
    while (kv_heads % p) p /= 2;
    return p;
}

static size_t leaves_of(size_t n) { return (size_t)iv_leaf_count(iv_padded_k(n), IV_SUM_OF_RANKS); }

static iv_status check_leaves(size_t leaves, size_t ranks, const char *what, iv_error *err) {
    if (leaves % ranks == 0) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED,
                   "training on %zu tensor-parallel ranks: wanted a divisor of the %zu leaves of %s", ranks, leaves,
                   what);
}

/* The outputs of linear attention are divided at key heads, in equal parts. */
static iv_status check_key_heads(const iv_model *m, iv_error *err) {
    const iv_model_config *c = &m->config;
    size_t ranks = m->tp.ranks, keys = (size_t)c->linear_key_heads / ranks, value_dim = (size_t)c->linear_value_dim;
    size_t values = (size_t)c->linear_value_heads / ranks;
    for (size_t r = 0; r < ranks; r++) {
        const iv_tp_shard *s = &m->tp.shard[r];
        const iv_row_cut *out = &m->tp.mixer_out.of[r];
        if (s->linear_keys != keys || s->linear_values != values || s->linear_key_first != r * keys ||
            s->linear_value_first * value_dim != out->first || values * value_dim != out->k)
            return iv_fail(err, IV_UNSUPPORTED,
                           "training on %zu tensor-parallel ranks: wanted leaves of linear attention's output that end "
                           "where key heads do",
                           ranks);
    }
    return IV_OK;
}

/* Of the projection before layers with a state, over all ranks; `ranks` if there are none. */
static iv_status mixer_leaves(const iv_model *m, size_t *out, iv_error *err) {
    const iv_model_config *c = &m->config;
    size_t ranks = m->tp.ranks, values = (size_t)(c->linear_value_heads * c->linear_value_dim);
    *out = ranks;
    if (iv_config_mixers(c, IV_MIXER_DELTA) || iv_config_mixers(c, IV_MIXER_SCAN)) {
        *out = iv_qkv_leaves((size_t)c->linear_key_heads);
        IV_TRY(check_leaves(*out, ranks, "linear attention (key heads)", err));
        IV_TRY(check_leaves(leaves_of(values), ranks, "linear attention's output", err));
        return check_key_heads(m, err);
    }
    if (!iv_config_mixers(c, IV_MIXER_CONV)) return IV_OK;
    *out = leaves_of((size_t)c->hidden_size);
    return check_leaves(*out, ranks, "short convolutions (hidden size)", err);
}

iv_status iv_learner_divide(const iv_model *m, iv_learner_leaves *out, iv_error *err) {
    const iv_model_config *c = &m->config;
    size_t ranks = m->tp.ranks;
    size_t qkv = iv_qkv_leaves((size_t)c->kv_heads), up = leaves_of((size_t)c->intermediate_size),
           head = leaves_of((size_t)c->vocab_size),
           attended = leaves_of((size_t)(c->heads * iv_config_value_dim(c, 0)));
    bool has_wide = iv_config_has_wide(c);
    size_t wide = has_wide ? iv_qkv_leaves((size_t)c->wide_kv_heads) : qkv;
    IV_TRY(check_leaves(qkv, ranks, "q, k and v (KV heads)", err));
    IV_TRY(check_leaves(wide, ranks, "q, k and v (KV heads of layers that see all positions)", err));
    if (has_wide)
        IV_TRY(check_leaves(leaves_of((size_t)(c->heads * c->wide_head_dim)), ranks, "attention's output", err));
    IV_TRY(check_leaves(attended, ranks, "attention's output", err));
    IV_TRY(check_leaves(head, ranks, "the head (vocabulary)", err));
    bool dense = iv_config_has_mlp(c, IV_MLP_DENSE);
    if (dense) IV_TRY(check_leaves(up, ranks, "gate and up (intermediate size)", err));
    size_t shared = c->shared_intermediate_size ? leaves_of((size_t)c->shared_intermediate_size) : ranks;
    IV_TRY(check_leaves(shared, ranks, "gate and up of the shared expert", err));
    if (c->experts && (size_t)c->experts % ranks)
        return iv_fail(err, IV_UNSUPPORTED, "training on %zu tensor-parallel ranks: wanted a divisor of %lld experts",
                       ranks, (long long)c->experts);
    size_t mixer;
    IV_TRY(mixer_leaves(m, &mixer, err));
    *out = (iv_learner_leaves){qkv / ranks,    wide / ranks, dense ? up / ranks : 1,
                               shared / ranks, head / ranks, mixer / ranks};
    return IV_OK;
}

void iv_learner_node_order(size_t ranks, size_t leaves, iv_tree_order *out) {
    iv_tree_node nodes[IV_RANKS_MAX];
    int level = 0;
    while ((size_t)1 << level < leaves) level++;
    for (size_t r = 0; r < ranks; r++) nodes[r] = (iv_tree_node){level, r};
    iv_tree_order_make(nodes, ranks, out);
}
