/* fingerprint.c: the identity of an answer's maker: all that may change a bit, and nothing that may not.
 * A baseline's begins with its own name: there much else may change a bit, and nobody should mistake it. */
#include "engine/engine.h"
#include "numerics/version.h"

#include <stdio.h>
#include <string.h>

/* Configuration that reaches the arithmetic, as exact text: integers, and doubles in hexadecimal. */
static void describe_config(const iv_model_config *c, iv_digest *d) {
    char line[512];
    int n = snprintf(line, sizeof line,
                     "%s %lld %lld %lld %lld %lld %lld eps %a rope %d %a %a %a %a %lld tie %d bias %d %d %d norm %d "
                     "window %lld experts %lld %lld %lld %d\n",
                     c->model_type, (long long)c->vocab_size, (long long)c->hidden_size, (long long)c->layers,
                     (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim, c->rms_norm_eps, (int)c->rope,
                     c->rope_theta, c->rope_factor, c->rope_low_freq_factor, c->rope_high_freq_factor,
                     (long long)c->rope_original_positions, c->tie_embeddings, c->attention_bias, c->attention_out_bias,
                     c->mlp_bias, c->qk_norm, (long long)c->sliding_window, (long long)c->experts,
                     (long long)c->experts_per_token, (long long)c->moe_intermediate_size, c->norm_topk_prob);
    iv_digest_add(d, line, (size_t)n);
    if (c->rope == IV_ROPE_YARN) {
        n = snprintf(line, sizeof line, "yarn %a %a %a %a %a %d\n", c->rope_beta_fast, c->rope_beta_slow,
                     c->rope_attention, c->rope_mscale, c->rope_mscale_all_dim, c->rope_truncate);
        iv_digest_add(d, line, (size_t)n);
        n = c->rope_attn_factor == 1 ? 0 : snprintf(line, sizeof line, "attn %a\n", c->rope_attn_factor);
        iv_digest_add(d, line, (size_t)n);
    }
    for (int64_t i = 0; i < c->layers; i++) {
        char kind[2] = {c->sliding_layers[i] ? 's' : 'f', c->moe_layers[i] ? 'm' : 'd'};
        iv_digest_add(d, kind, sizeof kind);
    }
}

iv_status iv_fingerprint_make(const iv_engine *e, char out[IV_FINGERPRINT_BYTES], iv_error *err) {
    uint8_t part[32] = {0}, all[32];
    char hex[65], head[128];
    const char *maker = e->numerics == IV_INVAR ? "iv" : iv_numerics_name(e->numerics);
    const char *arithmetic = e->arithmetic == IV_TC16 ? "tc16" : "fma32", *dtype = iv_dtype_name(e->model->dtype);
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "fingerprint: no memory");
    int n = snprintf(head, sizeof head, "invar fingerprint 1\nnumerics %d\n%s %s\n", IV_NUMERICS_VERSION, arithmetic,
                     dtype);
    iv_digest_add(d, head, (size_t)n);
    if (e->numerics != IV_INVAR) iv_digest_add(d, maker, strlen(maker)); /* no baseline shares a hash with the law */
    describe_config(&e->model->config, d);
    iv_digest_add(d, e->model->weights_digest, sizeof part);
    if (e->text_model->tokenizer) iv_tokenizer_digest(e->text_model->tokenizer, part);
    iv_digest_add(d, part, sizeof part);
    memset(part, 0, sizeof part);
    if (e->text_model->chat) iv_chat_template_digest(e->text_model->chat, part);
    iv_digest_add(d, part, sizeof part);
    iv_digest_finish(d, all);
    iv_digest_hex(all, hex);
    snprintf(out, IV_FINGERPRINT_BYTES, "%s%d-%s-%s-%.16s", maker, IV_NUMERICS_VERSION, arithmetic, dtype, hex);
    return IV_OK;
}

/* The digests that the fingerprint is made of, each by itself: they say which part of two fingerprints differs. */
iv_status iv_identity_make(iv_engine *e, iv_error *err) {
    uint8_t part[32];
    iv_identity_parts *parts = &e->identity;
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "fingerprint: no memory");
    describe_config(&e->model->config, d);
    iv_digest_finish(d, part);
    iv_digest_hex(part, parts->configuration);
    iv_digest_hex(e->model->weights_digest, parts->weights);
    if (e->text_model->tokenizer) {
        iv_tokenizer_digest(e->text_model->tokenizer, part);
        iv_digest_hex(part, parts->tokenizer);
    }
    if (e->text_model->chat) {
        iv_chat_template_digest(e->text_model->chat, part);
        iv_digest_hex(part, parts->chat_template);
    }
    return IV_OK;
}
