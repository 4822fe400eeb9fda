/* config_members.c: the tables of members and their harmless values.
 *
 * The first group is read by transformers 4.51 to 5 for the families of model_config.c (modeling, masking, rotary and
 * cache code), the second by vLLM and transformers for their relatives. A file of these families that holds one of the
 * second with another value is of a model that such code computes differently. Members that matter in training alone
 * (dropouts, the router's loss) are not here, nor are those that choose an implementation of the same arithmetic. */
#include "format/config_members.h"

#include <string.h>

typedef struct config_member {
    const char *key, *harmless; /* JSON values, separated by bars; null is always harmless */
} config_member;

static const config_member members[] = {
    /* read for these families */
    {"is_causal", "true"},
    {"per_layer_config", "{}"},
    {"attention_chunk_size", "0"},
    {"num_kv_shared_layers", "0"},
    {"kv_sharing_modes", "[]|{}"},
    {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"},
    {"pruned_heads", "{}|[]"},
    /* which tokens a query sees */
    {"use_bidirectional_attention", "false"},
    {"bidirectional", "false"},
    {"bidirectional_attention", "false"},
    {"causal_attention", "true"},
    {"causal", "true"},
    {"interleaved_sliding_window", "[]"},
    {"sliding_window_pattern", "1"},
    {"_sliding_window_pattern", "1"},
    {"global_attn_every_n_layers", "0|1"},
    {"cross_attention_layers", "[]"},
    /* scales and caps of scores, residuals and logits */
    {"attention_multiplier", ""},
    {"query_pre_attn_scalar", ""},
    {"attn_logit_softcapping", "0"},
    {"final_logit_softcapping", "0"},
    {"logits_soft_cap", "0"},
    {"embedding_multiplier", "1"},
    {"residual_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "1"},
    {"output_multiplier", "1"},
    {"qk_scale_factor", "1"},
    {"post_norm_eps", ""},
    {"scale_emb", "1"},
    {"scale_depth", ""},
    {"dim_model_base", ""},
    {"attention_in_multiplier", "1"},
    {"attention_out_multiplier", "1"},
    {"key_multiplier", "1"},
    {"lm_head_multiplier", "1"},
    {"mlp_multipliers", "[1,1]|[]"},
    {"attn_temperature_tuning", "false|0"},
    {"llama_4_scaling", "{}"},
    {"clip_qkv", ""},
    /* positions */
    {"no_rope_layers", "[]"},
    {"no_rope_layer_interval", "0"},
    {"nope_layer_interval", "0"},
    {"rope_interleave", "false"},
    {"rope_interleaved", "false"},
    {"rope_is_neox_style", "true"},
    {"is_neox_style", "true"},
    {"rotary_pct", "1"},
    {"rope_pct", "1"},
    {"rope_percent", "1"},
    {"rotary_percent", "1"},
    {"rotary_dim", ""},
    {"rope_local_base_freq", ""},
    {"alibi", "false"},
    {"use_alibi", "false"},
    {"position_embedding_type", "\"rope\"|\"rotary\""},
    /* blocks */
    {"parallel_attn", "false"},
    {"use_parallel_block", "true"},
    {"use_gated_activation", "true"},
    {"parallel_residual", "false"},
    {"use_parallel_residual", "false"},
    {"apply_residual_connection_post_layernorm", "false"},
    {"rms_norm_add_unit_offset", "false"},
    {"zero_centered_gamma", "false"},
    {"norm_after", "false"},
    {"post_norm", "false"},
    {"hidden_activation", "\"silu\"|\"swish\""},
    {"mlp_hidden_act", "\"silu\"|\"swish\""},
    {"swiglu_limit", "0"},
    {"swiglu_alpha", "1"},
    {"attention_k_eq_v", "false"},
    {"hidden_size_per_layer_input", "0"},
    {"use_double_wide_mlp", "false"},
    {"attn_output_gate", "false"},
    /* experts */
    {"routed_scaling_factor", "1"},
    {"scoring_func", "\"softmax\""},
    {"n_group", "0|1"},
    {"topk_group", "0|1"},
    {"first_k_dense_replace", "0"},
    {"n_shared_experts", "0"},
    {"num_shared_experts", "0"},
    {"shared_expert_intermediate_size", "0"},
    {"shared_intermediate_size", "0"},
    {"use_routing_bias", "true"},
    {"use_expert_bias", "false"},
    /* a norm of q and k, in families without one */
    {"use_qk_norm", "false"},
    {"qk_norm", "false"},
    {"qk_layernorm", "false"},
};

static const config_member rope_members[] = {
    {"llama_4_scaling_beta", "0"},
    {"rope_interleaved", "false"},
};

/* As numbers where both are: 1 is 1.0. */
static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (!json_is_array(a) || !json_is_array(b)) return json_equal(a, b);
    bool same = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; same && i < json_array_size(a); i++)
        same = same_value(json_array_get(a, i), json_array_get(b, i));
    return same;
}

static iv_status is_harmless(const char *values, const json_t *found, bool *out, iv_error *err) {
    *out = false;
    while (*values && !*out) {
        size_t n = strcspn(values, "|");
        json_t *value = json_loadb(values, n, JSON_DECODE_ANY, NULL);
        if (!value) return iv_fail(err, IV_NO_MEMORY, "config.json: no memory");
        *out = same_value(value, found);
        json_decref(value);
        values += n + (values[n] == '|');
    }
    return IV_OK;
}

static bool is_read(const char *key, const char *const *reads, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (reads[i] && strcmp(reads[i], key) == 0) return true;
    return false;
}

static iv_status check(const iv_json_object *o, const config_member *table, size_t count, const char *const *reads,
                       size_t read_count, iv_error *err) {
    for (size_t i = 0; i < count; i++) {
        char shown[IV_JSON_SHOWN_BYTES];
        const config_member *m = &table[i];
        const json_t *found = json_object_get(o->json, m->key);
        bool harmless;
        if (!iv_json_object_has(o, m->key) || is_read(m->key, reads, read_count)) continue;
        IV_TRY(is_harmless(m->harmless, found, &harmless, err));
        if (harmless) continue;
        const char *type = json_string_value(json_object_get(o->json, "model_type"));
        return iv_fail(err, IV_UNSUPPORTED, "%s: %s%s: wanted %.*s (others are not implemented%s%.60s), found %s",
                       o->file, o->path, m->key, *m->harmless ? (int)strcspn(m->harmless, "|") : 4,
                       *m->harmless ? m->harmless : "null", type ? " for " : "", type ? type : "",
                       iv_json_shown(found, shown));
    }
    return IV_OK;
}

iv_status iv_config_members_check(const iv_json_object *o, const char *const *reads, size_t count, iv_error *err) {
    return check(o, members, sizeof members / sizeof *members, reads, count, err);
}

iv_status iv_config_rope_check(const iv_json_object *o, const char *read, iv_error *err) {
    return check(o, rope_members, sizeof rope_members / sizeof *rope_members, &read, 1, err);
}
