/* gguf_put_config.c: a configuration as metadata, and whether it comes back. */
#include "base/json_out.h"
#include "format/config_fields.h"
#include "format/gguf_put.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct putting {
    iv_gguf_keys *k;
    const char *arch;
} putting;

static const char *key_of(const putting *p, const char *suffix, char key[128]) {
    snprintf(key, 128, "%s.%s", p->arch, suffix);
    return key;
}

static void put_count(const putting *p, const char *suffix, int64_t value) {
    char key[128];
    iv_gguf_put_u32(p->k, key_of(p, suffix, key), (uint32_t)value);
}

static void put_real(const putting *p, const char *suffix, double value) {
    char key[128];
    iv_gguf_put_f32(p->k, key_of(p, suffix, key), (float)value);
}

static void put_rope(const putting *p, const iv_model_config *c) {
    const iv_rope_config *r = &c->ropes[0]; /* of the layers that see all positions */
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].window == 0) r = &c->ropes[c->layer[i].rope];
    char key[128];
    put_count(p, "rope.dimension_count", c->head_dim), put_real(p, "rope.freq_base", r->theta);
    if (r->kind != IV_ROPE_LINEAR && r->kind != IV_ROPE_YARN) return;
    const char *kind = r->kind == IV_ROPE_YARN ? "yarn" : "linear";
    iv_gguf_put_text(p->k, key_of(p, "rope.scaling.type", key), kind, strlen(kind));
    put_real(p, "rope.scaling.factor", r->factor);
    if (r->kind == IV_ROPE_YARN) put_count(p, "rope.scaling.original_context_length", r->original_positions);
}

iv_status iv_gguf_put_config(iv_gguf_keys *k, const iv_model_config *c, iv_error *err) {
    putting p = {k, iv_gguf_arch_of(c->model_type)};
    if (!p.arch)
        return iv_fail(
            err, IV_UNSUPPORTED,
            "model_type %s: GGUF is written for llama, mistral, mixtral, qwen2, qwen3, qwen3_moe and gemma3_text",
            c->model_type);
    bool mixtral = c->experts && strcmp(p.arch, "llama") == 0;
    iv_gguf_put_text(k, "general.architecture", p.arch, strlen(p.arch));
    iv_gguf_put_text(k, "general.type", "model", 5);
    put_count(&p, "vocab_size", c->vocab_size), put_count(&p, "context_length", c->max_positions);
    put_count(&p, "embedding_length", c->hidden_size), put_count(&p, "block_count", c->layers);
    put_count(&p, "feed_forward_length", mixtral ? c->moe_intermediate_size : c->intermediate_size);
    put_count(&p, "attention.head_count", c->heads), put_count(&p, "attention.head_count_kv", c->kv_heads);
    put_count(&p, "attention.key_length", c->head_dim), put_count(&p, "attention.value_length", c->head_dim);
    put_real(&p, "attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    if (c->sliding_window) put_count(&p, "attention.sliding_window", c->sliding_window);
    put_rope(&p, c);
    if (!c->experts) return IV_OK;
    put_count(&p, "expert_count", c->experts), put_count(&p, "expert_used_count", c->experts_per_token);
    if (!mixtral) put_count(&p, "expert_feed_forward_length", c->moe_intermediate_size);
    return IV_OK;
}

size_t iv_gguf_rope_freqs(const iv_model_config *c, float out[IV_HEAD_DIM_MAX / 2]) {
    const iv_rope_config *r = &c->ropes[0];
    const double pi = 3.14159265358979323846;
    size_t n = (size_t)c->head_dim / 2;
    if (r->kind != IV_ROPE_LLAMA3) return 0;
    for (size_t i = 0; i < n; i++) {
        double wave = 2 * pi * pow(r->theta, 2.0 * (double)i / (double)c->head_dim);
        double original = (double)r->original_positions, low = r->low_freq_factor, high = r->high_freq_factor;
        double smooth = (original / wave - low) / (high - low);
        double divisor = wave < original / high  ? 1
                         : wave > original / low ? r->factor
                                                 : 1 / ((1 - smooth) / r->factor + smooth);
        out[i] = (float)divisor;
    }
    return n;
}

/* The members of a configuration's JSON that the file need not give back: names of families, and what depends on the
 * files' types. */
static bool is_compared(const char *name) {
    static const char *const others[] = {"model_type",   "dtype",        "stored",
                                         "bos_token_id", "pad_token_id", "eos_token_id"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i]) == 0) return false;
    return true;
}

static iv_status to_json(const iv_model_config *c, json_t **out, iv_error *err) {
    iv_text text = {0};
    IV_TRY(iv_config_to_json(c, &text, err));
    *out = json_loadb(text.data, text.bytes, 0, NULL);
    iv_text_free(&text);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "configuration: no memory");
}

static iv_status compare(const json_t *want, json_t *found, iv_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)want, name, value) {
        if (!is_compared(name) || json_equal(value, json_object_get(found, name))) continue;
        char *a = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        char *b = json_dumps(json_object_get(found, name), JSON_ENCODE_ANY | JSON_COMPACT);
        iv_fail(err, IV_UNSUPPORTED, "%s: GGUF has no place for %.200s: it would be read as %.200s", name, a ? a : "it",
                b ? b : "nothing");
        free(a), free(b);
        return IV_UNSUPPORTED;
    }
    return IV_OK;
}

iv_status iv_gguf_check_config(const iv_gguf_set *s, const iv_model_config *c, iv_error *err) {
    iv_buf text = {0};
    json_t *want = NULL, *found = NULL;
    iv_model_config *back = calloc(1, sizeof *back);
    iv_status status =
        back ? iv_gguf_config_json(s, &text, err) : iv_fail(err, IV_NO_MEMORY, "configuration: no memory");
    if (status == IV_OK) status = iv_model_config_parse(s->paths[0], text.data, text.len, back, err);
    if (status == IV_OK) status = to_json(c, &want, err);
    if (status == IV_OK) status = to_json(back, &found, err);
    if (status == IV_OK) status = compare(want, found, err);
    json_decref(want), json_decref(found);
    iv_buf_free(&text);
    free(back);
    return status;
}
