/* config_wrapper.c: the table of wrappers, and text_config as a configuration of its own. */
#include "format/config_wrapper.h"
#include "format/tensor_places.h"

#include <string.h>

static const iv_config_wrapper wrappers[] = {
    {"gemma3", "gemma3_text", IV_STORED_TOWERS | IV_STORED_OUTSIDE},
    {"gemma4", "gemma4_text", IV_STORED_TOWERS | IV_STORED_INSIDE},
    {"llama4", "llama4_text", IV_STORED_TOWERS | IV_STORED_OUTSIDE},
    {"kimi_k25", "kimi_k2", IV_STORED_TOWERS | IV_STORED_OUTSIDE},
    {"muse_glimmer", "muse_glimmer_text", IV_STORED_TOWERS | IV_STORED_INSIDE},
    {"mistral3", "mistral", IV_STORED_TOWERS | IV_STORED_OUTSIDE},
    {"internvl", "qwen2", IV_STORED_TOWERS | IV_STORED_OUTSIDE},
    {"qwen2_vl", "qwen2_vl_text", IV_STORED_TOWERS},
    {"qwen2_5_vl", "qwen2_5_vl_text", IV_STORED_TOWERS},
    {"qwen3_vl", "qwen3_vl_text", IV_STORED_TOWERS | IV_STORED_INSIDE},
    {"qwen3_vl_moe", "qwen3_vl_moe_text", IV_STORED_TOWERS | IV_STORED_INSIDE | IV_STORED_TRANSPOSED},
    {"qwen3_5", "qwen3_5_text", IV_STORED_TOWERS | IV_STORED_INSIDE},
    {"qwen3_5_moe", "qwen3_5_moe_text", IV_STORED_TOWERS | IV_STORED_INSIDE},
};
enum { WRAPPERS = sizeof wrappers / sizeof *wrappers };

const iv_config_wrapper *iv_config_wrapper_at(size_t i) { return i < WRAPPERS ? &wrappers[i] : NULL; }

static bool take(json_t *to, const json_t *from, const char *key, bool replaces) {
    json_t *value = json_object_get(from, key);
    if (!value || json_is_null(value)) return true;
    json_t *own = json_object_get(to, key);
    return (own && !json_is_null(own) && !replaces) || json_object_set(to, key, value) == 0;
}

/* The whole's type of weights and tying are the saved ones; text_config's dtype is often that of its default. */
static bool merge(json_t *flat, const json_t *whole) {
    static const char *const of_whole[] = {"architectures", "quantization_config", "compression_config",
                                           "dtype",         "torch_dtype",         "tie_word_embeddings"};
    static const char *const of_text[] = {"bos_token_id", "eos_token_id", "pad_token_id", "is_causal",
                                          "use_bidirectional_attention"};
    bool ok = true;
    bool typed = json_object_get(whole, "dtype") || json_object_get(whole, "torch_dtype");
    if (typed) json_object_del(flat, "dtype"), json_object_del(flat, "torch_dtype");
    for (size_t i = 0; i < sizeof of_whole / sizeof *of_whole; i++) ok = ok && take(flat, whole, of_whole[i], true);
    for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++) ok = ok && take(flat, whole, of_text[i], false);
    return ok;
}

iv_status iv_config_unwrap(const iv_json_object *whole, json_t **flat, const iv_config_wrapper **out, iv_error *err) {
    const char *type = json_string_value(json_object_get(whole->json, "model_type"));
    iv_json_object text;
    *out = NULL, *flat = NULL;
    for (size_t i = 0; type && i < WRAPPERS; i++)
        if (strcmp(type, wrappers[i].model_type) == 0) *out = &wrappers[i];
    bool inside = *out && iv_json_object_has(whole, "text_config");
    if (inside)
        IV_TRY(iv_json_object_of(whole->file, "text_config.", json_object_get(whole->json, "text_config"), &text, err));
    *flat = json_copy(inside ? text.json : whole->json); /* older files have its members at the top */
    bool ok = *flat && (!inside || merge(*flat, whole->json));
    const json_t *own = inside && ok ? json_object_get(*flat, "model_type") : NULL;
    if (ok && *out && (!own || json_is_null(own)))
        ok = json_object_set_new(*flat, "model_type", json_string((*out)->text_type)) == 0;
    if (ok) return IV_OK;
    json_decref(*flat);
    *flat = NULL;
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", whole->file);
}
