/* config_linear.c: see config_linear.h. Defaults are those of Qwen3NextConfig, Qwen3_5TextConfig and
 * Lfm2Config. */
#include "format/config_linear.h"
#include "format/tensor_places.h"

#include <inttypes.h>
#include <string.h>

enum { FULL_ATTENTION_INTERVAL_DEFAULT = 4 };

static iv_status parse_sizes(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    const struct {
        const char *name;
        int64_t *to, value, max; /* value: when it is absent */
    } sizes[] = {{"linear_num_key_heads", &c->linear_key_heads, 16, IV_HEADS_MAX},
                 {"linear_num_value_heads", &c->linear_value_heads, 32, IV_HEADS_MAX},
                 {"linear_key_head_dim", &c->linear_key_dim, 128, IV_HEAD_DIM_MAX},
                 {"linear_value_head_dim", &c->linear_value_dim, 128, IV_HEAD_DIM_MAX},
                 {"linear_conv_kernel_dim", &c->linear_conv_taps, 4, IV_CONV_TAPS_MAX}};
    bool found;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i].to = sizes[i].value;
        IV_TRY(iv_json_object_int(o, sizes[i].name, 1, sizes[i].max, sizes[i].to, &found, err));
    }
    if (c->linear_value_heads % c->linear_key_heads == 0) return IV_OK;
    return iv_fail(err, IV_FORMAT,
                   "%s: linear_num_value_heads: wanted a multiple of %" PRId64 " key heads, found %" PRId64, o->file,
                   c->linear_key_heads, c->linear_value_heads);
}

/* layer_types: `name` or full_attention for each layer. */
static iv_status parse_list(const iv_json_object *o, iv_model_config *c, const char *name, iv_mixer_kind kind,
                            iv_error *err) {
    const json_t *list = json_object_get(o->json, "layer_types");
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: layer_types: wanted an array of %" PRId64 " entries, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(list, (size_t)i));
        bool is = type && strcmp(type, name) == 0;
        if (!type || (!is && strcmp(type, "full_attention") != 0))
            return iv_fail(err, IV_UNSUPPORTED,
                           "%s: layer_types[%" PRId64 "]: wanted %s or full_attention, found %.60s", o->file, i, name,
                           type ? type : "no string");
        c->layer[i].mixer = is ? kind : IV_MIXER_ATTENTION;
    }
    return IV_OK;
}

static iv_status check_attention(const iv_json_object *o, const iv_model_config *c, iv_error *err) {
    if (iv_config_mixers(c, IV_MIXER_ATTENTION)) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types: wanted a full_attention layer, found none", o->file);
}

/* layer_types, else all layers but each full_attention_interval-th. */
static iv_status parse_kinds(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t interval = FULL_ATTENTION_INTERVAL_DEFAULT;
    bool found;
    IV_TRY(iv_json_object_int(o, "full_attention_interval", 1, IV_LAYERS_MAX, &interval, &found, err));
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].mixer = (i + 1) % interval != 0 ? IV_MIXER_DELTA : IV_MIXER_ATTENTION;
    if (iv_json_object_has(o, "layer_types")) IV_TRY(parse_list(o, c, "linear_attention", IV_MIXER_DELTA, err));
    return check_attention(o, c, err);
}

iv_status iv_config_parse_linear(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool gated = true, found;
    IV_TRY(parse_kinds(o, c, err));
    if (iv_config_mixers(c, IV_MIXER_DELTA)) IV_TRY(parse_sizes(o, c, err));
    IV_TRY(iv_json_object_bool(o, "attn_output_gate", &gated, &found, err));
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].attention_gate = gated && c->layer[i].mixer == IV_MIXER_ATTENTION;
    if (gated) c->stored |= IV_STORED_QUERY_GATE;
    return IV_OK;
}

/* ---- short convolutions -------------------------------------------------------------------------------------- */

/* layer_types (conv, full_attention), else full_attn_idxs, else attention alone. */
static iv_status parse_conv_kinds(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t full[IV_LAYERS_MAX];
    size_t count = 0;
    bool found, has_list = iv_json_object_has(o, "layer_types");
    IV_TRY(iv_json_object_ints(o, "full_attn_idxs", 0, c->layers - 1, full, IV_LAYERS_MAX, &count, &found, err));
    if (has_list) return parse_list(o, c, "conv", IV_MIXER_CONV, err);
    for (int64_t i = 0; i < c->layers && count; i++) c->layer[i].mixer = IV_MIXER_CONV;
    for (size_t i = 0; i < count; i++) c->layer[full[i]].mixer = IV_MIXER_ATTENTION;
    return IV_OK;
}

/* intermediate_size as Lfm2MLP makes it: two thirds of it, times a factor, rounded up. */
static iv_status adjust_intermediate(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool adjusts = true, found;
    int64_t multiple = 256;
    double factor = 1;
    IV_TRY(iv_json_object_bool(o, "block_auto_adjust_ff_dim", &adjusts, &found, err));
    IV_TRY(iv_json_object_int(o, "block_multiple_of", 1, IV_INTERMEDIATE_MAX, &multiple, &found, err));
    IV_TRY(iv_json_object_real(o, "block_ffn_dim_multiplier", 1e-3, 1e3, &factor, &found, err));
    IV_TRY(iv_json_object_int(o, "block_ff_dim", 1, IV_INTERMEDIATE_MAX, &c->intermediate_size, &found, err));
    if (!adjusts) return IV_OK;
    double size = (double)(int64_t)(2.0 * (double)c->intermediate_size / 3.0) * factor;
    c->intermediate_size = ((int64_t)size + multiple - 1) / multiple * multiple;
    if (c->intermediate_size >= 1 && c->intermediate_size <= IV_INTERMEDIATE_MAX) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: intermediate_size: wanted 1 to %d after its adjustment, found %" PRId64,
                   o->file, IV_INTERMEDIATE_MAX, c->intermediate_size);
}

iv_status iv_config_parse_short_conv(const iv_json_object *o, bool adjusts, iv_model_config *c, iv_error *err) {
    bool bias = false, found;
    int64_t taps = 3;
    IV_TRY(parse_conv_kinds(o, c, err));
    IV_TRY(iv_json_object_int(o, "conv_L_cache", 1, IV_CONV_TAPS_MAX, &taps, &found, err));
    IV_TRY(iv_json_object_bool(o, "conv_bias", &bias, &found, err));
    if (bias) return iv_fail(err, IV_UNSUPPORTED, "%s: conv_bias: wanted false, found true", o->file);
    if (iv_config_mixers(c, IV_MIXER_CONV)) c->linear_conv_taps = taps;
    IV_TRY(iv_json_object_real(o, "norm_eps", 1e-30, 1, &c->rms_norm_eps, &found, err)); /* rms_norm_eps is not read */
    if (!found) c->rms_norm_eps = 1e-5;
    IV_TRY(iv_json_object_bool(o, "tie_embedding", &c->tie_embeddings, &found, err));
    IV_TRY(check_attention(o, c, err));
    return adjusts ? adjust_intermediate(o, c, err) : IV_OK;
}

size_t iv_config_mixers(const iv_model_config *c, iv_mixer_kind kind) {
    size_t n = 0;
    for (int64_t i = 0; i < c->layers; i++) n += c->layer[i].mixer == kind;
    return n;
}

bool iv_config_has_mlp(const iv_model_config *c, iv_mlp_kind kind) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].mlp == kind) return true;
    return false;
}
