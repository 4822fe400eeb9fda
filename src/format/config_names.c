/* config_names.c */
#include "format/config_names.h"

iv_status iv_config_use_experts_size(const iv_json_object *o, iv_error *err) {
    json_t *size = json_object_get(o->json, "intermediate_size");
    if (!size || json_object_get(o->json, "moe_intermediate_size")) return IV_OK;
    return json_object_set(o->json, "moe_intermediate_size", size) == 0
               ? IV_OK
               : iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
}

iv_status iv_config_use_top_k(const iv_json_object *o, iv_error *err) {
    json_t *k = json_object_get(o->json, "top_k_experts");
    if (!k || json_is_null(k)) return iv_json_object_missing(o, "top_k_experts", "an integer", err);
    return json_object_set(o->json, "num_experts_per_tok", k) == 0
               ? IV_OK
               : iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
}

iv_status iv_config_use_dense_size(const iv_json_object *o, const char *key, iv_error *err) {
    json_t *size = json_object_get(o->json, key);
    if (!size || json_is_null(size)) return iv_json_object_missing(o, key, "an integer", err);
    return json_object_set(o->json, "intermediate_size", size) == 0
               ? IV_OK
               : iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
}

iv_status iv_config_use_rotary_dim(const iv_json_object *o, int64_t head_dim, iv_error *err) {
    int64_t turns = 0;
    bool found;
    IV_TRY(iv_json_object_int(o, "rotary_dim", 2, head_dim, &turns, &found, err));
    if (!found || json_object_get(o->json, "partial_rotary_factor")) return IV_OK;
    return json_object_set_new(o->json, "partial_rotary_factor", json_real((double)turns / (double)head_dim)) == 0
               ? IV_OK
               : iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
}

iv_status iv_config_use_rope(const iv_json_object *o, const char *text, iv_error *err) {
    static const char *const settings[] = {"rope_parameters", "rope_scaling", "rope_theta"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (iv_json_object_has(o, settings[i])) return IV_OK;
    json_t *value = json_loads(text, 0, NULL);
    return value && json_object_set_new(o->json, "rope_parameters", value) == 0
               ? IV_OK
               : iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
}
