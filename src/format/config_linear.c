/* config_linear.c: see config_linear.h. Defaults are those of Qwen3NextConfig and Qwen3_5TextConfig. */
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

/* layer_types, else all layers but each full_attention_interval-th. */
static iv_status parse_kinds(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t interval = FULL_ATTENTION_INTERVAL_DEFAULT;
    bool found, has_list = iv_json_object_has(o, "layer_types");
    const json_t *list = json_object_get(o->json, "layer_types");
    IV_TRY(iv_json_object_int(o, "full_attention_interval", 1, IV_LAYERS_MAX, &interval, &found, err));
    if (has_list && (!json_is_array(list) || json_array_size(list) != (size_t)c->layers))
        return iv_fail(err, IV_FORMAT, "%s: layer_types: wanted an array of %" PRId64 " entries, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (int64_t i = 0; i < c->layers; i++) {
        bool linear = (i + 1) % interval != 0;
        if (has_list) {
            const char *type = json_string_value(json_array_get(list, (size_t)i));
            linear = type && strcmp(type, "linear_attention") == 0;
            if (!type || (!linear && strcmp(type, "full_attention") != 0))
                return iv_fail(err, IV_UNSUPPORTED,
                               "%s: layer_types[%" PRId64 "]: wanted linear_attention or full_attention, found %.60s",
                               o->file, i, type ? type : "no string");
        }
        c->layer[i].mixer = linear ? IV_MIXER_DELTA : IV_MIXER_ATTENTION;
    }
    if (iv_config_mixers(c, IV_MIXER_ATTENTION)) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types: wanted a full_attention layer, found none", o->file);
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

size_t iv_config_mixers(const iv_model_config *c, iv_mixer_kind kind) {
    size_t n = 0;
    for (int64_t i = 0; i < c->layers; i++) n += c->layer[i].mixer == kind;
    return n;
}

iv_status iv_config_check_attention_only(const iv_model_config *c, const char *what, iv_error *err) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].mixer != IV_MIXER_ATTENTION || c->layer[i].attention_gate)
            return iv_fail(err, IV_UNSUPPORTED, "model_type %s: %s has no %s yet (device cpu computes answers)",
                           c->model_type, what,
                           c->layer[i].mixer != IV_MIXER_ATTENTION ? "linear attention" : "attention output gates");
    return IV_OK;
}
