/* config_wide.c */
#include "format/config_wide.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GLOBAL_HEAD_DIM = 512 }; /* when global_head_dim is absent */

/* What this family's files may hold and is not read here. */
static iv_status check_members(const iv_json_object *o, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    const json_t *of_layers = json_object_get(o->json, "hidden_size_per_layer_input"),
                 *both = json_object_get(o->json, "use_bidirectional_attention");
    if (!of_layers || json_number_value(of_layers) != 0)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: hidden_size_per_layer_input: wanted 0, found %s: embeddings of layers "
                       "are not implemented for gemma4",
                       o->file,
                       of_layers ? iv_json_shown(of_layers, shown)
                                 : "256, "
                                   "which is meant when it is absent");
    const char *which = json_string_value(both);
    if (!both || json_is_null(both) || json_is_false(both) || (which && strcmp(which, "vision") == 0)) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: use_bidirectional_attention: wanted null or \"vision\", found %s", o->file,
                   iv_json_shown(both, shown));
}

static iv_status take_size(const iv_json_object *o, const char *key, int64_t max, int64_t *out, iv_error *err) {
    int64_t value = 0;
    bool found;
    IV_TRY(iv_json_object_int(o, key, 1, max, &value, &found, err));
    if (!found) return IV_OK;
    if (*out && *out != value)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %s%s: wanted %" PRId64 " as in the layers before, found %" PRId64,
                       o->file, o->path, key, *out, value);
    *out = value;
    return IV_OK;
}

/* An object of sizes for each layer that differs. */
static iv_status parse_layer_sizes(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    const char *key, *name;
    json_t *value, *member;
    json_object_foreach(json_object_get(o->json, "per_layer_config"), key, value) {
        char path[120];
        iv_json_object inner;
        snprintf(path, sizeof path, "per_layer_config.%.60s.", key);
        IV_TRY(iv_json_object_of(o->file, path, value, &inner, err));
        json_object_foreach(value, name, member) {
            if (strcmp(name, "head_dim") != 0 && strcmp(name, "num_key_value_heads") != 0)
                return iv_fail(err, IV_UNSUPPORTED, "%s: %s%.60s is not supported", o->file, path, name);
        }
        IV_TRY(take_size(&inner, "head_dim", IV_HEAD_DIM_MAX, &c->wide_head_dim, err));
        IV_TRY(take_size(&inner, "num_key_value_heads", IV_HEADS_MAX, &c->wide_kv_heads, err));
    }
    return IV_OK;
}

static bool by_layer(const iv_json_object *o) { return json_is_object(json_object_get(o->json, "per_layer_config")); }

iv_status iv_config_parse_wide(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool keys = false, found;
    IV_TRY(check_members(o, err));
    IV_TRY(iv_json_object_bool(o, "attention_k_eq_v", &keys, &found, err));
    if (by_layer(o)) {
        IV_TRY(parse_layer_sizes(o, c, err));
    } else {
        c->wide_head_dim = GLOBAL_HEAD_DIM;
        IV_TRY(iv_json_object_int(o, "global_head_dim", 2, IV_HEAD_DIM_MAX, &c->wide_head_dim, &found, err));
        if (keys) IV_TRY(take_size(o, "num_global_key_value_heads", IV_HEADS_MAX, &c->wide_kv_heads, err));
    }
    if (!c->wide_head_dim) c->wide_head_dim = c->head_dim;
    if (!c->wide_kv_heads) c->wide_kv_heads = c->kv_heads;
    if (c->wide_head_dim % 2 != 0 || c->heads % c->wide_kv_heads != 0)
        return iv_fail(err, IV_FORMAT,
                       "%s: layers that see all positions: wanted an even head_dim and a divisor of %" PRId64
                       " heads, found %" PRId64 " and %" PRId64,
                       o->file, c->heads, c->wide_head_dim, c->wide_kv_heads);
    return IV_OK;
}

/* The layers of per_layer_config are those that see all positions. */
static iv_status check_layers(const iv_json_object *o, const iv_model_config *c, iv_error *err) {
    const json_t *sizes = json_object_get(o->json, "per_layer_config");
    size_t wide = 0;
    const char *key;
    json_t *value;
    for (int64_t i = 0; i < c->layers; i++) wide += c->layer[i].window == 0;
    json_object_foreach((json_t *)sizes, key, value) {
        char *end;
        long layer = strtol(key, &end, 10);
        if (*end || end == key || layer < 0 || layer >= c->layers || c->layer[layer].window != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: per_layer_config.%.60s: wanted a layer of full_attention", o->file,
                           key);
    }
    if (!by_layer(o) || json_object_size(sizes) == 0 || json_object_size(sizes) == wide) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: per_layer_config: wanted all %zu layers of full_attention, found %zu",
                   o->file, wide, json_object_size(sizes));
}

iv_status iv_config_use_wide(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool keys = false, found, other = c->wide_head_dim != c->head_dim || c->wide_kv_heads != c->kv_heads;
    IV_TRY(iv_json_object_bool(o, "attention_k_eq_v", &keys, &found, err));
    c->layer[c->layers - 1].window = 0, c->layer[c->layers - 1].rope = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        bool all = c->layer[i].window == 0;
        c->layer[i].wide = all && other, c->layer[i].values_are_keys = all && keys;
    }
    return check_layers(o, c, err);
}
