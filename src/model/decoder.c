/* decoder.c: the order of a decoder's blocks, the only place that knows it (NUMERICS.md 8.2).
 *
 * This is the order with norms before the blocks; IV_NORMS_SHARED has one for both. R(v) rounds to the model's type;
 * all other values are float32. [Parts in brackets] depend on the family; Qwen3 has head norms, and no bias.
 *
 *     x = embedding of the token                             embed
 *     for each layer:
 *         normed   = R(rmsnorm(x))                           norm, or the end of the op before
 *         q, k, v  = W_qkv normed [+ bias]                   qkv
 *         q, k     = rope([rmsnorm per head] of q, k)        rope_kv
 *         q, k, v  = R(q), R(k), R(v); k, v into the pages   rope_kv
 *         attended = R(softmax(q k) v), weights rounded too  attention
 *         [or attended of a layer with a state               recurrent]
 *         x       += W_out attended [+ bias]                 attention_out
 *         normed   = R(rmsnorm(x))                           attention_out
 *         act      = R(silu(gate) up), gate and up = W_gate_up normed [+ bias]
 *         x       += W_down act [+ bias]                     mlp; or experts: a weighted sum of such MLPs
 *         [a layer may have one of the two blocks alone; of two layers the second may share the first one's norm]
 *     logits = W_head R(rmsnorm(x))                          head
 */
#include "model/decoder.h"

/* The layer's first norm. */
static iv_norm norm_of_layer(const iv_model *m, size_t i) {
    const iv_layer_config *c = &m->config.layer[i];
    if (c->mixer == IV_MIXER_NONE) return (iv_norm){IV_NORM_MLP, i};
    return (iv_norm){c->norm_kept ? IV_NORM_KEPT : IV_NORM_ATTENTION, i};
}

/* The norm that reads x after layer i. */
static iv_norm norm_after(const iv_model *m, size_t i) {
    if (i + 1 < (size_t)m->config.layers) return norm_of_layer(m, i + 1);
    return (iv_norm){.kind = IV_NORM_FINAL};
}

/* The norm that reads x after the layer's mixer. */
static iv_norm norm_of_mlp(const iv_model *m, size_t i) {
    if (m->config.layer[i].mlp == IV_MLP_NONE) return norm_after(m, i);
    return (iv_norm){m->config.layer[i].norms == IV_NORMS_SHARED ? IV_NORM_KEPT : IV_NORM_MLP, i};
}

static iv_status mlp_block(iv_backend *b, const iv_layer *l, size_t i, iv_norm next, iv_error *err) {
    switch (l->config->mlp) {
    case IV_MLP_DENSE: return b->ops->mlp(b, i, next, err);
    case IV_MLP_EXPERTS: return b->ops->experts(b, i, next, err);
    case IV_MLP_NONE: return IV_OK;
    }
    IV_ASSERT(!"a kind of MLP that has no op");
    return IV_UNSUPPORTED;
}

/* A layer after its first norm. `attention_only`: it ends with `attended`. */
static iv_status layer_forward(const iv_model *m, iv_backend *b, size_t i, bool attention_only, iv_error *err) {
    iv_mixer_kind mixer = m->layers[i].config->mixer;
    IV_TRY(b->ops->qkv(b, i, err));
    if (mixer == IV_MIXER_NONE) return attention_only ? IV_OK : mlp_block(b, &m->layers[i], i, norm_after(m, i), err);
    if (mixer != IV_MIXER_ATTENTION) {
        IV_TRY(b->ops->recurrent(b, i, err));
    } else {
        IV_TRY(b->ops->rope_kv(b, i, err));
        IV_TRY(b->ops->attention(b, i, err));
    }
    if (attention_only) return IV_OK;
    IV_TRY(b->ops->attention_out(b, i, norm_of_mlp(m, i), err));
    return mlp_block(b, &m->layers[i], i, norm_after(m, i), err);
}

iv_status iv_decoder_forward(const iv_model *m, iv_backend *b, iv_error *err) {
    IV_TRY(b->ops->embed(b, err));
    IV_TRY(b->ops->norm(b, norm_of_layer(m, 0), err));
    for (size_t i = 0; i < (size_t)m->config.layers; i++) IV_TRY(layer_forward(m, b, i, false, err));
    return b->ops->head(b, err);
}

iv_status iv_decoder_recompute(const iv_model *m, iv_backend *b, size_t layer, iv_recompute what, iv_error *err) {
    if (what == IV_RECOMPUTE_NONE) return IV_OK;
    IV_TRY(b->ops->norm(b, norm_of_layer(m, layer), err));
    return layer_forward(m, b, layer, what == IV_RECOMPUTE_ATTENTION, err);
}

static iv_status mlp_block_backward(const iv_model *m, iv_backend *b, size_t i, iv_error *err) {
    if (m->layers[i].config->mlp == IV_MLP_EXPERTS)
        IV_TRY(b->ops->experts_backward(b, i, err));
    else
        IV_TRY(b->ops->mlp_backward(b, i, err));
    return b->ops->norm_backward(b, norm_of_mlp(m, i), err);
}

static iv_status attention_block_backward(const iv_model *m, iv_backend *b, size_t i, iv_error *err) {
    IV_TRY(b->ops->attention_out_backward(b, i, err));
    if (m->layers[i].config->mixer != IV_MIXER_ATTENTION) {
        IV_TRY(b->ops->recurrent_backward(b, i, err));
    } else {
        IV_TRY(b->ops->attention_backward(b, i, err));
        IV_TRY(b->ops->rope_kv_backward(b, i, err));
    }
    IV_TRY(b->ops->qkv_backward(b, i, err));
    return b->ops->norm_backward(b, norm_of_layer(m, i), err);
}

iv_status iv_decoder_backward(const iv_model *m, iv_backend *b, iv_error *err) {
    IV_TRY(b->ops->head_backward(b, err));
    for (size_t i = (size_t)m->config.layers; i-- > 0;) {
        IV_TRY(b->ops->restore(b, i, err));
        if (m->layers[i].config->mlp != IV_MLP_NONE) IV_TRY(mlp_block_backward(m, b, i, err));
        if (m->layers[i].config->mixer != IV_MIXER_NONE) IV_TRY(attention_block_backward(m, b, i, err));
    }
    return b->ops->embed_backward(b, err);
}
