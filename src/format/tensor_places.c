/* tensor_places.c: the table of forms. */
#include "format/tensor_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const iv_tensor_prefixes[] = {
    "model.", "model.language_model.", "language_model.model.", "language_model.", "backbone.", "", NULL};

/* Which part of the stored tensor. */
typedef enum part {
    WHOLE,
    Q,
    K,
    V,
    GATE,
    UP,
    NUMBER, /* of shape [] */
    GATED_QUERY,
    QUERY_GATE, /* of attention with an output gate */
    CONV,
    LINEAR_Q,
    LINEAR_K,
    LINEAR_V, /* of in_proj_qkv */
    CONV_B,
    CONV_C,
    CONV_X,
    LATENT_KEY,
    LATENT_VALUE,
    SCAN_Z,
    SCAN_X,
    SCAN_B,
    SCAN_C,
    SCAN_DT, /* of a scan's in_proj */
    FUSED_Q,
    FUSED_K,
    FUSED_V,
    FUSED_Z,
    FUSED_B,
    FUSED_A,
    EXPERT_GATE,
    EXPERT_UP,
    EXPERT_DOWN /* last */
} part;

/* Names without "model.layers.N." and without ".weight" or ".bias"; * is an expert's number, or a head's. */
typedef struct form {
    unsigned bit;
    const char *name, *stored;
    part part;
    bool transposed, alternate; /* of experts: gates and ups are rows in turn */
} form;

#define DELTA (IV_STORED_DELTA & ~IV_STORED_MTP)
#define FUSED (IV_STORED_DELTA_FUSED & ~IV_STORED_MTP)
static const form forms[] = {
    {IV_STORED_QKV, "self_attn.q_proj", "self_attn.qkv_proj", .part = Q},
    {IV_STORED_QKV, "self_attn.k_proj", "self_attn.qkv_proj", .part = K},
    {IV_STORED_QKV, "self_attn.v_proj", "self_attn.qkv_proj", .part = V},
    {IV_STORED_GATE_UP, "mlp.gate_proj", "mlp.gate_up_proj", .part = GATE},
    {IV_STORED_GATE_UP, "mlp.up_proj", "mlp.gate_up_proj", .part = UP},
    {IV_STORED_MIXTRAL, "mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias", .part = WHOLE},
    {IV_STORED_MIXTRAL, "mlp.gate", "block_sparse_moe.gate", .part = WHOLE},
    {IV_STORED_MIXTRAL, "mlp.experts.*.gate_proj", "block_sparse_moe.experts.*.w1", .part = WHOLE},
    {IV_STORED_MIXTRAL, "mlp.experts.*.down_proj", "block_sparse_moe.experts.*.w2", .part = WHOLE},
    {IV_STORED_MIXTRAL, "mlp.experts.*.up_proj", "block_sparse_moe.experts.*.w3", .part = WHOLE},
    {IV_STORED_EXPERTS, "mlp.experts.*.gate_proj", "mlp.experts.gate_up_proj", .part = EXPERT_GATE},
    {IV_STORED_EXPERTS, "mlp.experts.*.up_proj", "mlp.experts.gate_up_proj", .part = EXPERT_UP},
    {IV_STORED_EXPERTS, "mlp.experts.*.down_proj", "mlp.experts.down_proj", .part = EXPERT_DOWN},
    {IV_STORED_TRANSPOSED, "mlp.experts.*.gate_proj", "mlp.experts.gate_up_proj", .part = EXPERT_GATE,
     .transposed = true},
    {IV_STORED_TRANSPOSED, "mlp.experts.*.up_proj", "mlp.experts.gate_up_proj", .part = EXPERT_UP, .transposed = true},
    {IV_STORED_TRANSPOSED, "mlp.experts.*.down_proj", "mlp.experts.down_proj", .part = EXPERT_DOWN, .transposed = true},
    {IV_STORED_GPT_OSS, "mlp.gate", "mlp.router", .part = WHOLE},
    {IV_STORED_GPT_OSS, "mlp.experts.*.gate_proj", "mlp.experts.gate_up_proj", .part = EXPERT_GATE, .transposed = true,
     .alternate = true},
    {IV_STORED_GPT_OSS, "mlp.experts.*.up_proj", "mlp.experts.gate_up_proj", .part = EXPERT_UP, .transposed = true,
     .alternate = true},
    {IV_STORED_GPT_OSS, "mlp.experts.*.down_proj", "mlp.experts.down_proj", .part = EXPERT_DOWN, .transposed = true,
     .alternate = true},
    {IV_STORED_GPT_OSS, "mlp.experts.*.gate_proj", "mlp.experts.gate_up_proj", .part = EXPERT_GATE, .alternate = true},
    {IV_STORED_GPT_OSS, "mlp.experts.*.up_proj", "mlp.experts.gate_up_proj", .part = EXPERT_UP, .alternate = true},
    {IV_STORED_GPT_OSS, "mlp.experts.*.down_proj", "mlp.experts.down_proj", .part = EXPERT_DOWN, .alternate = true},
    {IV_STORED_GLM4_NORMS, "post_attention_layernorm", "post_self_attn_layernorm", .part = WHOLE},
    {IV_STORED_GLM4_NORMS, "pre_feedforward_layernorm", "post_attention_layernorm", .part = WHOLE},
    {IV_STORED_GLM4_NORMS, "post_feedforward_layernorm", "post_mlp_layernorm", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.gate", "feed_forward.router", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.gate_proj", "feed_forward.gate_proj", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.up_proj", "feed_forward.up_proj", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.down_proj", "feed_forward.down_proj", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.shared_experts.gate_proj", "feed_forward.shared_expert.gate_proj", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.shared_experts.up_proj", "feed_forward.shared_expert.up_proj", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.shared_experts.down_proj", "feed_forward.shared_expert.down_proj", .part = WHOLE},
    {IV_STORED_LLAMA4, "mlp.experts.*.gate_proj", "feed_forward.experts.gate_up_proj", .part = EXPERT_GATE,
     .transposed = true},
    {IV_STORED_LLAMA4, "mlp.experts.*.up_proj", "feed_forward.experts.gate_up_proj", .part = EXPERT_UP,
     .transposed = true},
    {IV_STORED_LLAMA4, "mlp.experts.*.down_proj", "feed_forward.experts.down_proj", .part = EXPERT_DOWN,
     .transposed = true},
    {IV_STORED_GEMMA4, "mlp.gate", "router.proj", .part = WHOLE},
    {IV_STORED_GEMMA4, "mlp.shared_experts.gate_proj", "mlp.gate_proj", .part = WHOLE},
    {IV_STORED_GEMMA4, "mlp.shared_experts.up_proj", "mlp.up_proj", .part = WHOLE},
    {IV_STORED_GEMMA4, "mlp.shared_experts.down_proj", "mlp.down_proj", .part = WHOLE},
    {IV_STORED_GEMMA4, "mlp.experts.*.gate_proj", "experts.gate_up_proj", .part = EXPERT_GATE},
    {IV_STORED_GEMMA4, "mlp.experts.*.up_proj", "experts.gate_up_proj", .part = EXPERT_UP},
    {IV_STORED_GEMMA4, "mlp.experts.*.down_proj", "experts.down_proj", .part = EXPERT_DOWN},
    {IV_STORED_APERTUS, "input_layernorm", "attention_layernorm", .part = WHOLE},
    {IV_STORED_APERTUS, "post_attention_layernorm", "feedforward_layernorm", .part = WHOLE},
    {IV_STORED_APERTUS, "mlp.act_fn.beta", "mlp.act_fn.beta", .part = NUMBER},
    {IV_STORED_APERTUS, "mlp.act_fn.eps", "mlp.act_fn.eps", .part = NUMBER},
    {IV_STORED_HUNYUAN_NORMS, "self_attn.q_norm", "self_attn.query_layernorm", .part = WHOLE},
    {IV_STORED_HUNYUAN_NORMS, "self_attn.k_norm", "self_attn.key_layernorm", .part = WHOLE},
    {IV_STORED_QUERY_GATE, "self_attn.q_proj", "self_attn.q_proj", .part = GATED_QUERY},
    {IV_STORED_QUERY_GATE, "self_attn.gate_proj", "self_attn.q_proj", .part = QUERY_GATE},
    {DELTA, "linear_attn.conv1d", "linear_attn.conv1d", .part = CONV},
    {DELTA, "linear_attn.q_proj", "linear_attn.in_proj_qkv", .part = LINEAR_Q},
    {DELTA, "linear_attn.k_proj", "linear_attn.in_proj_qkv", .part = LINEAR_K},
    {DELTA, "linear_attn.v_proj", "linear_attn.in_proj_qkv", .part = LINEAR_V},
    {DELTA, "linear_attn.z_proj", "linear_attn.in_proj_z", .part = WHOLE},
    {DELTA, "linear_attn.b_proj", "linear_attn.in_proj_b", .part = WHOLE},
    {DELTA, "linear_attn.a_proj", "linear_attn.in_proj_a", .part = WHOLE},
    {FUSED, "linear_attn.conv1d", "linear_attn.conv1d", .part = CONV},
    {FUSED, "linear_attn.q_proj", "linear_attn.in_proj_qkvz", .part = FUSED_Q},
    {FUSED, "linear_attn.k_proj", "linear_attn.in_proj_qkvz", .part = FUSED_K},
    {FUSED, "linear_attn.v_proj", "linear_attn.in_proj_qkvz", .part = FUSED_V},
    {FUSED, "linear_attn.z_proj", "linear_attn.in_proj_qkvz", .part = FUSED_Z},
    {FUSED, "linear_attn.b_proj", "linear_attn.in_proj_ba", .part = FUSED_B},
    {FUSED, "linear_attn.a_proj", "linear_attn.in_proj_ba", .part = FUSED_A},
    {IV_STORED_LFM2, "input_layernorm", "operator_norm", .part = WHOLE},
    {IV_STORED_LFM2, "post_attention_layernorm", "ffn_norm", .part = WHOLE},
    {IV_STORED_LFM2, "self_attn.q_norm", "self_attn.q_layernorm", .part = WHOLE},
    {IV_STORED_LFM2, "self_attn.k_norm", "self_attn.k_layernorm", .part = WHOLE},
    {IV_STORED_LFM2, "self_attn.o_proj", "self_attn.out_proj", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.gate_proj", "feed_forward.w1", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.down_proj", "feed_forward.w2", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.up_proj", "feed_forward.w3", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.gate.e_score_correction_bias", "feed_forward.expert_bias", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.gate", "feed_forward.gate", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.experts.*.gate_proj", "feed_forward.experts.*.w1", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.experts.*.down_proj", "feed_forward.experts.*.w2", .part = WHOLE},
    {IV_STORED_LFM2, "mlp.experts.*.up_proj", "feed_forward.experts.*.w3", .part = WHOLE},
    {IV_STORED_LFM2, "conv.b_proj", "conv.in_proj", .part = CONV_B},
    {IV_STORED_LFM2, "conv.c_proj", "conv.in_proj", .part = CONV_C},
    {IV_STORED_LFM2, "conv.x_proj", "conv.in_proj", .part = CONV_X},
    {IV_STORED_LFM2, "conv.conv", "conv.conv", .part = CONV},
    {IV_STORED_LATENT, "self_attn.k_b_proj.*", "self_attn.kv_b_proj", .part = LATENT_KEY},
    {IV_STORED_LATENT, "self_attn.v_b_proj.*", "self_attn.kv_b_proj", .part = LATENT_VALUE},
    {IV_STORED_SCAN, "mamba.z_proj", "mamba.in_proj", .part = SCAN_Z},
    {IV_STORED_SCAN, "mamba.x_proj", "mamba.in_proj", .part = SCAN_X},
    {IV_STORED_SCAN, "mamba.b_proj", "mamba.in_proj", .part = SCAN_B},
    {IV_STORED_SCAN, "mamba.c_proj", "mamba.in_proj", .part = SCAN_C},
    {IV_STORED_SCAN, "mamba.dt_proj", "mamba.in_proj", .part = SCAN_DT},
    {IV_STORED_SCAN, "mamba.conv1d.weight", "mamba.conv1d.weight", .part = CONV},
    {IV_STORED_GRANITE_HYBRID, "mlp.gate", "block_sparse_moe.router.layer", .part = WHOLE},
    {IV_STORED_GRANITE_HYBRID, "mlp.experts.*.gate_proj", "block_sparse_moe.input_linear.weight", .part = EXPERT_GATE},
    {IV_STORED_GRANITE_HYBRID, "mlp.experts.*.up_proj", "block_sparse_moe.input_linear.weight", .part = EXPERT_UP},
    {IV_STORED_GRANITE_HYBRID, "mlp.experts.*.down_proj", "block_sparse_moe.output_linear.weight", .part = EXPERT_DOWN},
    {IV_STORED_GRANITE_HYBRID, "mlp.shared_experts.gate_proj", "shared_mlp.input_linear", .part = GATE},
    {IV_STORED_GRANITE_HYBRID, "mlp.shared_experts.up_proj", "shared_mlp.input_linear", .part = UP},
    {IV_STORED_GRANITE_HYBRID, "mlp.shared_experts.down_proj", "shared_mlp.output_linear", .part = WHOLE},
    {IV_STORED_GRANITE_HYBRID, "mlp.gate_proj", "shared_mlp.input_linear", .part = GATE},
    {IV_STORED_GRANITE_HYBRID, "mlp.up_proj", "shared_mlp.input_linear", .part = UP},
    {IV_STORED_GRANITE_HYBRID, "mlp.down_proj", "shared_mlp.output_linear", .part = WHOLE},
    {IV_STORED_FALCON_H1, "post_attention_layernorm", "pre_ff_layernorm", .part = WHOLE},
    {IV_STORED_FALCON_H1, "mlp.gate_proj", "feed_forward.gate_proj", .part = WHOLE},
    {IV_STORED_FALCON_H1, "mlp.up_proj", "feed_forward.up_proj", .part = WHOLE},
    {IV_STORED_FALCON_H1, "mlp.down_proj", "feed_forward.down_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mamba.z_proj", "mixer.in_proj", .part = SCAN_Z},
    {IV_STORED_NEMOTRON_H, "mamba.x_proj", "mixer.in_proj", .part = SCAN_X},
    {IV_STORED_NEMOTRON_H, "mamba.b_proj", "mixer.in_proj", .part = SCAN_B},
    {IV_STORED_NEMOTRON_H, "mamba.c_proj", "mixer.in_proj", .part = SCAN_C},
    {IV_STORED_NEMOTRON_H, "mamba.dt_proj", "mixer.in_proj", .part = SCAN_DT},
    {IV_STORED_NEMOTRON_H, "mamba.conv1d.weight", "mixer.conv1d.weight", .part = CONV},
    {IV_STORED_NEMOTRON_H, "mamba.conv1d.bias", "mixer.conv1d.bias", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mamba.A_log", "mixer.A_log", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mamba.D", "mixer.D", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mamba.dt_bias", "mixer.dt_bias", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mamba.norm", "mixer.norm", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mamba.out_proj", "mixer.out_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "input_layernorm", "norm", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "post_attention_layernorm", "norm", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "self_attn.q_proj", "mixer.q_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "self_attn.k_proj", "mixer.k_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "self_attn.v_proj", "mixer.v_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "self_attn.o_proj", "mixer.o_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.up_proj", "mixer.up_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.down_proj", "mixer.down_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.gate", "mixer.gate", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.experts.*.up_proj", "mixer.experts.*.up_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.experts.*.down_proj", "mixer.experts.*.down_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.shared_experts.up_proj", "mixer.shared_experts.up_proj", .part = WHOLE},
    {IV_STORED_NEMOTRON_H, "mlp.shared_experts.down_proj", "mixer.shared_experts.down_proj", .part = WHOLE},
};
#undef DELTA
#undef FUSED
enum { FORMS = sizeof forms / sizeof *forms };

/* Alone or behind "model.". */
static const char *const towers[] = {"visual.",       "vision_tower.",   "vision_model.",      "multi_modal_projector.",
                                     "mm_projector.", "vision_adapter.", "vision_projection.", "audio_tower.",
                                     "embed_vision.", "embed_audio."};

/* ---- names ---------------------------------------------------------------------------------------------- */

/* Splits "model.layers.12.mlp.up_proj.weight" behind the layer's number. NULL: no layer's. */
static const char *in_layer(const char *name, long *layer) {
    static const char layers[] = "model.layers.";
    char *end;
    if (strncmp(name, layers, sizeof layers - 1) != 0) return NULL;
    *layer = strtol(name + sizeof layers - 1, &end, 10);
    return *end == '.' ? end + 1 : NULL;
}

/* The rest of the name behind the pattern, ".weight" or nothing; NULL: another name. */
static const char *match(const char *pattern, const char *name, long *expert) {
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            char *end;
            *expert = strtol(name, &end, 10);
            if (end == name) return NULL;
            name = end;
        } else if (*pattern != *name++)
            return NULL;
    }
    return !*name || (*name == '.' && !strchr(name + 1, '.')) ? name : NULL;
}

/* The number of a layer in files. */
static long file_layer(const iv_model_config *c, long layer) {
    return c->layers_of_one ? layer / (long)c->layers_of_one : layer;
}

static const char *family_prefix(const iv_model_config *c) {
    return c->stored & IV_STORED_INSIDE       ? "model.language_model."
           : c->stored & IV_STORED_OUTSIDE    ? "language_model.model."
           : c->stored & IV_STORED_NEMOTRON_H ? "backbone."
                                              : "model.";
}

/* With the checkpoint's prefix instead of "model."; the head is outside of it, but for a wrapper around all. */
static void prefixed(const iv_model_config *c, const char *prefix, const char *name, char out[IV_PLACE_NAME_BYTES]) {
    static const struct {
        unsigned bit;
        const char *name, *stored;
    } outer[] = {{IV_STORED_LFM2, "model.norm.weight", "model.embedding_norm.weight"},
                 {IV_STORED_FALCON_H1, "model.norm.weight", "model.final_layernorm.weight"},
                 {IV_STORED_NEMOTRON_H, "model.norm.weight", "model.norm_f.weight"},
                 {IV_STORED_NEMOTRON_H, "model.embed_tokens.weight", "model.embeddings.weight"}};
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
        if (c->stored & outer[i].bit && strcmp(name, outer[i].name) == 0) {
            name = outer[i].stored;
            break;
        }
    if (strncmp(name, "model.", 6) == 0)
        snprintf(out, IV_PLACE_NAME_BYTES, "%s%s", prefix, name + 6);
    else
        snprintf(out, IV_PLACE_NAME_BYTES, "%s%s",
                 strcmp(prefix, "language_model.model.") == 0 ? "language_model." : "", name);
}

static void stored_name(const form *f, const char *prefix, long layer, long expert, const char *suffix,
                        char out[IV_PLACE_NAME_BYTES]) {
    const char *star = strchr(f->stored, '*');
    int before = star ? (int)(star - f->stored) : (int)strlen(f->stored);
    char number[24] = "";
    if (star) snprintf(number, sizeof number, "%ld", expert);
    if (f->part >= EXPERT_GATE) suffix = strcmp(suffix, ".bias") == 0 ? "_bias" : "";
    snprintf(out, IV_PLACE_NAME_BYTES, "%slayers.%ld.%.*s%s%s%s", prefix, layer, before, f->stored, number,
             star ? star + 1 : "", suffix);
}

/* ---- places --------------------------------------------------------------------------------------------- */

static void of_experts(const iv_model_config *c, const form *f, size_t expert, int ndim, size_t rows, size_t columns,
                       iv_tensor_place *out) {
    bool transposed = f->transposed && ndim == 2, alternate = f->alternate && f->part != EXPERT_DOWN;
    size_t all = f->part == EXPERT_DOWN ? rows : 2 * rows, first = f->part == EXPERT_UP ? (alternate ? 1 : rows) : 0;
    *out = (iv_tensor_place){.ndim = ndim + 1, .begin = first, .step = alternate ? 2 : 1, .transposed = transposed};
    out->shape[0] = c->experts;
    out->shape[1] = (int64_t)(transposed ? columns : all), out->shape[2] = (int64_t)(transposed ? all : columns);
    if (transposed)
        out->block = expert;
    else
        out->begin += expert * all;
}

/* Rows of a key head in a fused projection: those of its parts one behind another. */
static void of_key_head(const iv_model_config *c, part p, size_t columns, iv_tensor_place *out) {
    size_t heads = (size_t)c->linear_key_heads, group = (size_t)c->linear_value_heads / heads;
    size_t key = (size_t)c->linear_key_dim, value = group * (size_t)c->linear_value_dim;
    const size_t rows[] = {key, key, value, value, group, group};
    bool second = p >= FUSED_B;
    size_t from = second ? FUSED_B : FUSED_Q, to = second ? FUSED_A : FUSED_Z, all = 0, begin = 0;
    for (size_t i = from; i <= to; i++) {
        if (i == (size_t)p) begin = all;
        all += rows[i - FUSED_Q];
    }
    *out = (iv_tensor_place){.ndim = 2,
                             .shape = {(int64_t)(heads * all), (int64_t)columns},
                             .begin = begin,
                             .step = 1,
                             .run = rows[p - FUSED_Q],
                             .stride = all};
}

/* Parts of a linear-attention layer, and of attention with an output gate. */
static void of_heads(const iv_model_config *c, part p, int ndim, size_t rows, size_t columns, iv_tensor_place *out) {
    size_t key = (size_t)(c->linear_key_heads * c->linear_key_dim), taps = (size_t)c->linear_conv_taps;
    size_t value = (size_t)(c->linear_value_heads * c->linear_value_dim), head = (size_t)c->head_dim;
    if (p >= FUSED_Q) {
        of_key_head(c, p, columns, out);
        return;
    }
    *out = (iv_tensor_place){.ndim = ndim, .shape = {(int64_t)(2 * key + value), (int64_t)columns}, .step = 1};
    if (p == CONV) {
        *out = (iv_tensor_place){.ndim = 3, .shape = {(int64_t)(rows / taps), 1, (int64_t)taps}, .step = 1};
    } else if (p == GATED_QUERY || p == QUERY_GATE) {
        out->shape[0] = (int64_t)(2 * rows), out->run = head, out->stride = 2 * head;
        out->begin = p == QUERY_GATE ? head : 0;
    } else if (p >= CONV_B) {
        out->shape[0] = (int64_t)(3 * rows), out->begin = (size_t)(p - CONV_B) * rows;
    } else
        out->begin = p == LINEAR_Q ? 0 : p == LINEAR_K ? key : 2 * key;
}

/* Rows of a scan's projection: z, x, B, C, dt. */
static void of_scan(const iv_model_config *c, part p, size_t columns, iv_tensor_place *out) {
    size_t values = (size_t)(c->linear_value_heads * c->linear_value_dim);
    size_t group = (size_t)(c->linear_key_heads * c->linear_key_dim);
    const size_t begin[] = {0, values, 2 * values, 2 * values + group, 2 * values + 2 * group};
    *out = (iv_tensor_place){.ndim = 2,
                             .shape = {(int64_t)begin[4] + c->linear_value_heads, (int64_t)columns},
                             .begin = begin[p - SCAN_Z],
                             .step = 1};
}

/* A head's part of kv_b_proj, [heads (keys + values), rank]: its values' rows, or its keys' columns. */
static void of_latent(const iv_model_config *c, part p, size_t head, iv_tensor_place *out) {
    size_t keys = (size_t)(c->head_dim - c->rope_dim), height = keys + (size_t)c->value_dim;
    *out = (iv_tensor_place){.ndim = 2, .shape = {(int64_t)height * c->heads, c->kv_rank}, .step = 1};
    if (p == LATENT_KEY)
        out->transposed = true, out->block = head, out->height = height;
    else
        out->begin = head * height + keys;
}

static void place(const iv_model_config *c, long layer, const form *f, size_t expert, int ndim, size_t rows,
                  size_t columns, iv_tensor_place *out) {
    size_t dim = (size_t)iv_config_head_dim(c, layer), q = (size_t)c->heads * dim,
           kv = (size_t)iv_config_kv_heads(c, layer) * dim, all = rows, begin = 0;
    part p = f ? f->part : WHOLE;
    if (p >= EXPERT_GATE) {
        of_experts(c, f, expert, ndim, rows, columns, out);
        return;
    }
    if (p == LATENT_KEY || p == LATENT_VALUE) {
        of_latent(c, p, expert, out);
        return;
    }
    if (p >= SCAN_Z && p <= SCAN_DT) {
        of_scan(c, p, columns, out);
        return;
    }
    if (p >= GATED_QUERY) {
        of_heads(c, p, ndim, rows, columns, out);
        return;
    }
    if (p == Q || p == K || p == V) all = q + 2 * kv, begin = p == Q ? 0 : p == K ? q : q + kv;
    if (p == NUMBER) ndim = 0; /* its shape is [] */
    if (p == GATE || p == UP) all = 2 * rows, begin = p == UP ? rows : 0;
    *out = (iv_tensor_place){.ndim = ndim, .shape = {(int64_t)all, (int64_t)columns}, .begin = begin, .step = 1};
}

/* Only the last rows turn: of each head of q, and of the latent with the key that all heads share. */
static iv_row_order latent_order(const iv_model_config *c, const char *rest) {
    const iv_rope_config *r = &c->ropes[0];
    size_t turns = (size_t)c->rope_dim, rotated = r->rotated ? (size_t)r->rotated : turns;
    if (rotated == turns && !r->neighbours) return (iv_row_order){0};
    if (strncmp(rest, "self_attn.q_proj.", 17) == 0 || strncmp(rest, "self_attn.q_b_proj.", 19) == 0)
        return (iv_row_order){(size_t)c->head_dim, (size_t)c->head_dim - turns, rotated, r->neighbours};
    if (strncmp(rest, "self_attn.kv_a_proj_with_mqa.", 29) == 0)
        return (iv_row_order){(size_t)c->kv_rank + turns, (size_t)c->kv_rank, rotated, r->neighbours};
    return (iv_row_order){0};
}

static iv_row_order order_of(const iv_model_config *c, long layer, const char *rest) {
    static const char *const turned[] = {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.q_norm.",
                                         "self_attn.k_norm."};
    const iv_rope_config *r = &c->ropes[c->layer[layer].rope];
    size_t head = (size_t)iv_config_head_dim(c, layer), rotated = r->rotated ? (size_t)r->rotated : head;
    if (c->kv_rank) return latent_order(c, rest);
    if (r->kind == IV_ROPE_NONE || r->kind == IV_ROPE_PROPORTIONAL || (rotated == head && !r->neighbours))
        return (iv_row_order){0};
    for (size_t i = 0; i < sizeof turned / sizeof *turned; i++)
        if (strncmp(rest, turned[i], strlen(turned[i])) == 0) return (iv_row_order){head, 0, rotated, r->neighbours};
    return (iv_row_order){0};
}

/* The forms of the family, or the others. */
static size_t add_forms(const iv_model_config *c, bool own, const char *prefix, long layer, const char *rest, int ndim,
                        size_t rows, size_t columns, iv_tensor_place *out, char (*names)[IV_PLACE_NAME_BYTES],
                        bool *exclusive) {
    size_t n = 0;
    for (size_t i = 0; i < FORMS; i++) {
        long expert = 0;
        const form *f = &forms[i];
        const char *suffix = match(f->name, rest, &expert);
        if (!suffix || !(c->stored & f->bit) == own || (!own && !(f->bit & IV_STORED_ORDINARY))) continue;
        place(c, layer, f, (size_t)expert, ndim, rows, columns, &out[n]);
        stored_name(f, prefix, file_layer(c, layer), expert, suffix, names[n++]);
        *exclusive |= !(f->bit & IV_STORED_ORDINARY);
    }
    return n;
}

size_t iv_tensor_places(const iv_model_config *c, const char *prefix, const char *name, int ndim, size_t rows,
                        size_t columns, iv_tensor_place *out, char (*names)[IV_PLACE_NAME_BYTES]) {
    long layer = 0;
    const char *rest = in_layer(name, &layer);
    size_t n = 0;
    bool exclusive = false;
    char of_file[IV_PLACE_NAME_BYTES - 32];
    if (!prefix) prefix = family_prefix(c);
    if (rest && c->layers_of_one) {
        snprintf(of_file, sizeof of_file, "model.layers.%ld.%.180s", file_layer(c, layer), rest);
        name = of_file;
    }
    if (rest) n = add_forms(c, true, prefix, layer, rest, ndim, rows, columns, out, names, &exclusive);
    if (!exclusive) {
        place(c, layer, NULL, 0, ndim, rows, columns, &out[n]);
        prefixed(c, prefix, name, names[n++]);
        if (rest) n += add_forms(c, false, prefix, layer, rest, ndim, rows, columns, out + n, names + n, &exclusive);
    }
    for (size_t i = 0; rest && i < n; i++) out[i].order = order_of(c, layer, rest);
    return n;
}

size_t iv_row_order_source(const iv_row_order *o, size_t j) {
    size_t turns = o->head - o->kept, turning = o->rotated / 2;
    if (j < o->kept) return j;
    size_t half = (j - o->kept) / (turns / 2), pair = (j - o->kept) % (turns / 2);
    if (pair >= turning) return o->kept + o->rotated + half * (turns - o->rotated) / 2 + (pair - turning);
    return o->kept + (o->neighbours ? 2 * pair + half : half * turning + pair);
}

bool iv_tensor_is_ignored(const iv_model_config *c, const char *name) {
    if (c->stored & IV_STORED_MTP && strncmp(name, "mtp.", 4) == 0) return true;
    const char *tower = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; c->stored & IV_STORED_TOWERS && i < sizeof towers / sizeof *towers; i++)
        if (strncmp(tower, towers[i], strlen(towers[i])) == 0) return true;
    for (const char *const *p = iv_tensor_prefixes; *p; p++) {
        char layers[64], *end;
        int n = snprintf(layers, sizeof layers, "%slayers.", *p);
        if (strncmp(name, layers, (size_t)n) != 0) continue;
        long layer = strtol(name + n, &end, 10);
        long end_of_layers = file_layer(c, (long)c->layers);
        if (*end == '.') return layer >= end_of_layers && layer < end_of_layers + c->predicting_layers;
    }
    return false;
}

bool iv_tensor_is_buffer(const char *name) {
    static const char *const suffixes[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t tail = strlen(suffixes[i]);
        if (n > tail && strcmp(name + n - tail, suffixes[i]) == 0) return true;
    }
    return false;
}
