/* config_latent.c: see config_latent.h. Defaults are those of DeepseekV3Config. */
#include "format/config_latent.h"
#include "numerics/rope.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What this code has one form of, and what families have different defaults of. */
static iv_status check_members(const iv_json_object *o, const iv_model_config *c, iv_error *err) {
    bool bias = false, found;
    int64_t kv_heads = c->heads, step = 1;
    const char *method = NULL;
    static const char *const required[] = {"routed_scaling_factor", "n_group", "topk_group"};
    IV_TRY(iv_json_object_bool(o, "attention_bias", &bias, &found, err));
    if (bias)
        return iv_fail(err, IV_UNSUPPORTED, "%s: attention_bias: wanted false with latent attention, found true",
                       o->file);
    IV_TRY(iv_json_object_int(o, "num_key_value_heads", 1, IV_HEADS_MAX, &kv_heads, &found, err));
    if (kv_heads != c->heads)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: num_key_value_heads: wanted num_attention_heads, %" PRId64
                       ", with latent attention, found %" PRId64,
                       o->file, c->heads, kv_heads);
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!iv_json_object_has(o, required[i])) return iv_json_object_missing(o, required[i], "a number", err);
    if (!iv_json_object_has(o, "first_k_dense_replace") && !iv_json_object_has(o, "mlp_layer_types"))
        return iv_json_object_missing(o, "first_k_dense_replace", "an integer", err);
    IV_TRY(iv_json_object_int(o, "moe_layer_freq", 1, INT32_MAX, &step, &found, err));
    if (step != 1) return iv_fail(err, IV_UNSUPPORTED, "%s: moe_layer_freq: wanted 1, found %" PRId64, o->file, step);
    IV_TRY(iv_json_object_string(o, "topk_method", &method, &found, err));
    if (!method || strcmp(method, "noaux_tc") == 0) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: topk_method: wanted noaux_tc, found '%.60s'", o->file, method);
}

iv_status iv_config_parse_latent(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t nope = 128;
    const struct {
        const char *name;
        int64_t *to, value, max; /* value: when it is absent */
    } sizes[] = {{"q_lora_rank", &c->q_rank, 1536, IV_HIDDEN_MAX},
                 {"kv_lora_rank", &c->kv_rank, 512, IV_LATENT_MAX},
                 {"qk_nope_head_dim", &nope, 128, IV_HEAD_DIM_MAX},
                 {"qk_rope_head_dim", &c->rope_dim, 64, IV_HEAD_DIM_MAX},
                 {"v_head_dim", &c->value_dim, 128, IV_HEAD_DIM_MAX}};
    bool found;
    IV_TRY(check_members(o, c, err));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bool lacks = iv_json_object_lacks(o, sizes[i].name);
        if (lacks) *sizes[i].to = sizes[i].value;
        if (!lacks && !iv_json_object_has(o, sizes[i].name) && i == 0) continue; /* null: no low rank */
        IV_TRY(iv_json_object_int(o, sizes[i].name, 1, sizes[i].max, sizes[i].to, &found, err));
        if (!lacks && !found) return iv_json_object_missing(o, sizes[i].name, "an integer", err);
    }
    c->kv_heads = 1, c->head_dim = nope + c->rope_dim, c->latent_eps = 1e-6;
    if (c->rope_dim % 2 != 0)
        return iv_fail(err, IV_FORMAT, "%s: qk_rope_head_dim: wanted an even number, found %" PRId64, o->file,
                       c->rope_dim);
    if (c->head_dim <= IV_HEAD_DIM_MAX) return IV_OK;
    return iv_fail(err, IV_FORMAT,
                   "%s: qk_nope_head_dim and qk_rope_head_dim: wanted at most %d in all, found %" PRId64, o->file,
                   IV_HEAD_DIM_MAX, c->head_dim);
}

iv_status iv_config_use_latent(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool neighbours = true, found;
    iv_rope_config *r = &c->ropes[0];
    IV_TRY(iv_json_object_bool(o, "rope_interleave", &neighbours, &found, err));
    r->neighbours = neighbours;
    if (r->kind != IV_ROPE_YARN || r->mscale_all_dim == 0) return IV_OK;
    double m = iv_rope_yarn_mscale(r->factor, r->mscale_all_dim);
    c->attention_scale = (1 / sqrt((double)c->head_dim)) * (m * m);
    return IV_OK;
}

iv_status iv_config_check_no_latent(const iv_model_config *c, const char *what, iv_error *err) {
    if (!c->kv_rank) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "model_type %s: %s has no latent attention yet (device cpu has it)",
                   c->model_type, what);
}
