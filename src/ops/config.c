/* config.c: a configuration as the engine reads it. */
#include "format/model_config.h"
#include "model/rope_tables.h"
#include "ops/gpu.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_ops_config_parse(const char *json, size_t bytes, iv_ops_config *out, iv_error *err) {
    iv_model_config c;
    IV_TRY(iv_model_config_parse("config", json, bytes, &c, err));
    *out = (iv_ops_config){.vocab_size = (size_t)c.vocab_size,
                           .hidden_size = (size_t)c.hidden_size,
                           .intermediate_size = (size_t)c.intermediate_size,
                           .layers = (size_t)c.layers,
                           .heads = (size_t)c.heads,
                           .kv_heads = (size_t)c.kv_heads,
                           .head_dim = (size_t)c.head_dim,
                           .max_positions = (size_t)c.max_positions,
                           .rms_norm_eps = (float)c.rms_norm_eps,
                           .tie_embeddings = c.tie_embeddings,
                           .attention_bias = c.attention_bias,
                           .attention_out_bias = c.attention_out_bias,
                           .mlp_bias = c.mlp_bias,
                           .qk_norm = c.qk_norm,
                           .sliding_window = c.sliding_window,
                           .experts = (size_t)c.experts,
                           .experts_per_token = (size_t)c.experts_per_token,
                           .moe_intermediate_size = (size_t)c.moe_intermediate_size,
                           .norm_topk_prob = c.norm_topk_prob};
    _Static_assert(sizeof out->sliding_layers == sizeof c.sliding_layers, "as many layers");
    _Static_assert(sizeof out->moe_layers == sizeof c.moe_layers, "as many layers");
    memcpy(out->sliding_layers, c.sliding_layers, sizeof out->sliding_layers);
    memcpy(out->moe_layers, c.moe_layers, sizeof out->moe_layers);
    strncpy(out->model_type, c.model_type, sizeof out->model_type - 1);
    return IV_OK;
}

/* Through this process's memory. */
static iv_status write_tables(iv_ops *ops, const iv_model_config *c, size_t positions, float *cosine, float *sine,
                              iv_error *err) {
    size_t n = positions * (size_t)c->head_dim / 2;
    float *tables = malloc((2 * n + 1) * sizeof *tables);
    if (!tables) return iv_fail(err, IV_NO_MEMORY, "rope tables: no memory for %zu positions", positions);
    iv_rope_tables(c, ops->pool, positions, tables, tables + n);
    iv_status status = ops->gpu->write(ops, tables, n, cosine, err);
    if (status == IV_OK) status = ops->gpu->write(ops, tables + n, n, sine, err);
    free(tables);
    return status;
}

iv_status iv_ops_rope_tables(iv_ops *ops, const char *json, size_t bytes, size_t positions, float *cosine, float *sine,
                             iv_error *err) {
    iv_model_config c;
    IV_TRY(iv_model_config_parse("config", json, bytes, &c, err));
    if (positions > IV_POSITIONS_MAX)
        return iv_fail(err, IV_LIMIT, "rope tables: wanted at most %d positions, found %zu", IV_POSITIONS_MAX,
                       positions);
    IV_TRY(iv_ops_enter(ops, "rope tables", err));
    if (ops->gpu) return iv_ops_leave(ops, write_tables(ops, &c, positions, cosine, sine, err));
    iv_rope_tables(&c, ops->pool, positions, cosine, sine);
    return iv_ops_leave(ops, IV_OK);
}
