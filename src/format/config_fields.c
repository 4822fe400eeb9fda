/* config_fields.c: the table, and what is made from it. */
#include "format/config_fields.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

const char *const iv_rope_kind_names[IV_ROPE_KINDS] = {
    [IV_ROPE_DEFAULT] = "default", [IV_ROPE_LINEAR] = "linear",
    [IV_ROPE_LLAMA3] = "llama3",   [IV_ROPE_YARN] = "yarn",
    [IV_ROPE_NONE] = "none",       [IV_ROPE_LONG] = "longrope",
    [IV_ROPE_NTK] = "dynamic",     [IV_ROPE_PROPORTIONAL] = "proportional"};
static const char *const norm_places[] = {
    [IV_NORMS_BEFORE] = "before", [IV_NORMS_BEHIND] = "behind", [IV_NORMS_BOTH] = "both", [IV_NORMS_SHARED] = "shared"};
static const char *const activations[] = {[IV_ACTIVATION_SILU] = "silu",
                                          [IV_ACTIVATION_GELU_TANH] = "gelu_tanh",
                                          [IV_ACTIVATION_SILU_CLAMPED] = "silu_clamped",
                                          [IV_ACTIVATION_RELU2] = "relu2",
                                          [IV_ACTIVATION_XIELU] = "xielu"};
static const char *const router_scores[] = {[IV_SCORE_SOFTMAX] = "softmax", [IV_SCORE_SIGMOID] = "sigmoid"};
static const char *const mixers[] = {[IV_MIXER_ATTENTION] = "attention",
                                     [IV_MIXER_DELTA] = "gated_delta",
                                     [IV_MIXER_CONV] = "short_conv",
                                     [IV_MIXER_SCAN] = "mamba2",
                                     [IV_MIXER_NONE] = "none"};
static const char *const mlp_kinds[] = {[IV_MLP_DENSE] = "dense", [IV_MLP_EXPERTS] = "experts", [IV_MLP_NONE] = "none"};
static const char *const scan_norms[] = {
    [IV_SCAN_NORM_NONE] = "none", [IV_SCAN_NORM_GATED] = "gated", [IV_SCAN_NORM_UNGATED] = "ungated"};

enum {
    REQUIRED = IV_FIELD_REQUIRED,
    OPTIONAL = IV_FIELD_OPTIONAL,
    EXPERTS = IV_FIELD_EXPERTS,
    ARITHMETIC = IV_FIELD_ARITHMETIC,
    MEMORY = IV_FIELD_MEMORY,
    BOTH = ARITHMETIC | MEMORY,
    LINE = ARITHMETIC | IV_FIELD_OWN_LINE
};

#define AT(member) offsetof(iv_model_config, member)
static const iv_config_field model_rows[] = {
    {"vocab_size", AT(vocab_size), IV_FIELD_INT, REQUIRED | BOTH, .label = "", .min = 1, .max = IV_VOCAB_MAX},
    {"hidden_size", AT(hidden_size), IV_FIELD_INT, REQUIRED | BOTH, .label = "", .min = 1, .max = IV_HIDDEN_MAX},
    /* Without a label: it is the length of tensors, whose shapes are hashed with the weights. */
    {"intermediate_size", AT(intermediate_size), IV_FIELD_INT, REQUIRED | MEMORY, .min = 1, .max = IV_INTERMEDIATE_MAX},
    {"num_hidden_layers", AT(layers), IV_FIELD_INT, REQUIRED | BOTH, .label = "", .min = 1, .max = IV_LAYERS_MAX},
    {"num_attention_heads", AT(heads), IV_FIELD_INT, REQUIRED | BOTH, .label = "", .min = 1, .max = IV_HEADS_MAX},
    {"num_key_value_heads", AT(kv_heads), IV_FIELD_INT, BOTH, .label = ""},
    {"head_dim", AT(head_dim), IV_FIELD_INT, BOTH, .label = ""},
    {"wide_head_dim", AT(wide_head_dim), IV_FIELD_INT, LINE | MEMORY, .label = "wide"},
    {"wide_kv_heads", AT(wide_kv_heads), IV_FIELD_INT, LINE | MEMORY, .label = "wide"},
    {"q_lora_rank", AT(q_rank), IV_FIELD_INT, LINE | MEMORY, .label = "latent"},
    {"kv_lora_rank", AT(kv_rank), IV_FIELD_INT, LINE | MEMORY, .label = "latent"},
    {"qk_rope_head_dim", AT(rope_dim), IV_FIELD_INT, LINE | MEMORY, .label = "latent"},
    {"v_head_dim", AT(value_dim), IV_FIELD_INT, LINE | MEMORY, .label = "latent"},
    {"latent_eps", AT(latent_eps), IV_FIELD_REAL, LINE, .label = "latent"},
    {"max_position_embeddings", AT(max_positions), IV_FIELD_INT, REQUIRED, .min = 1, .max = IV_POSITIONS_MAX},
    {"rms_norm_eps", AT(rms_norm_eps), IV_FIELD_REAL, OPTIONAL | ARITHMETIC, .label = "eps", .min = 1e-30, .max = 1},
    {"ropes", AT(ropes), IV_FIELD_ROPES, .uses = ARITHMETIC},
    {"tie_word_embeddings", AT(tie_embeddings), IV_FIELD_FLAG, OPTIONAL | BOTH, .label = "tie"},
    {"attention_bias", AT(attention_bias), IV_FIELD_FLAG, BOTH, .label = "bias"},
    {"attention_out_bias", AT(attention_out_bias), IV_FIELD_FLAG, BOTH, .label = ""},
    {"mlp_bias", AT(mlp_bias), IV_FIELD_FLAG, BOTH, .label = ""},
    {"qk_norm", AT(qk_norm), IV_FIELD_FLAG, BOTH, .label = "norm"},
    {"qk_norm_whole", AT(qk_norm_whole), IV_FIELD_FLAG, LINE | MEMORY, .label = "norm over heads"},
    {"qk_norm_plain", AT(qk_norm_plain), IV_FIELD_FLAG, LINE | MEMORY, .label = "norm without weights"},
    {"value_norm", AT(value_norm), IV_FIELD_FLAG, LINE, .label = "norm of values"},
    {"layer_scalars", AT(layer_scalars), IV_FIELD_FLAG, LINE | MEMORY, .label = "layer scalars"},
    {"qk_norm_behind", AT(qk_norm_behind), IV_FIELD_FLAG, LINE, .label = "norm behind rotation"},
    {"sliding_window", AT(sliding_window), IV_FIELD_INT, BOTH, .label = "window"},
    {"num_experts", AT(experts), IV_FIELD_INT, BOTH, .label = "experts"},
    {"num_experts_per_tok", AT(experts_per_token), IV_FIELD_INT, REQUIRED | EXPERTS | BOTH, .label = "", .min = 1,
     .max = IV_EXPERTS_MAX},
    {"moe_intermediate_size", AT(moe_intermediate_size), IV_FIELD_INT, REQUIRED | EXPERTS | BOTH, .label = "", .min = 1,
     .max = IV_INTERMEDIATE_MAX},
    {"norm_topk_prob", AT(norm_topk_prob), IV_FIELD_FLAG, OPTIONAL | EXPERTS | ARITHMETIC, .label = ""},
    {"scoring_func", AT(router_score), IV_FIELD_CHOICE, LINE, .label = "router", .choices = router_scores},
    {"router_bias", AT(router_bias), IV_FIELD_FLAG, LINE | MEMORY, .label = "router"},
    {"router_correction", AT(router_correction), IV_FIELD_FLAG, LINE | MEMORY, .label = "router"},
    {"n_group", AT(router_groups), IV_FIELD_INT, LINE, .label = "router"},
    {"topk_group", AT(router_chosen_groups), IV_FIELD_INT, LINE, .label = "router"},
    {"routed_scaling_factor", AT(routed_scale), IV_FIELD_REAL, LINE, .label = "routed", .neutral = 1},
    {"router_scales_inputs", AT(router_scales_inputs), IV_FIELD_FLAG, LINE, .label = "routed inputs"},
    {"router_least", AT(router_least), IV_FIELD_REAL, LINE, .label = "router least"},
    {"shared_expert_intermediate_size", AT(shared_intermediate_size), IV_FIELD_INT, LINE | MEMORY, .label = "shared"},
    {"expert_norms", AT(expert_norms), IV_FIELD_FLAG, LINE | MEMORY, .label = "expert norms"},
    {"shared_expert_gate", AT(shared_gate), IV_FIELD_FLAG, LINE | MEMORY, .label = "shared"},
    {"attention_multiplier", AT(attention_scale), IV_FIELD_REAL, OPTIONAL | LINE, .label = "scores", .min = 1e-6,
     .max = 1e6},
    {"attn_logit_softcapping", AT(attention_cap), IV_FIELD_REAL, OPTIONAL | LINE, .label = "scores", .max = 1e6},
    {"embedding_multiplier", AT(embedding_scale), IV_FIELD_REAL, OPTIONAL | LINE, .label = "embedding", .neutral = 1,
     .min = 1e-6, .max = 1e6},
    {"embedding_multiplier_typed", AT(embedding_scale_typed), IV_FIELD_FLAG, LINE, .label = "embedding"},
    {"residual_multiplier", AT(residual_scale), IV_FIELD_REAL, OPTIONAL | LINE | MEMORY, .label = "residual",
     .neutral = 1, .min = 1e-6, .max = 1e6},
    {"logits_scaling", AT(logits_divisor), IV_FIELD_REAL, OPTIONAL | LINE, .label = "logits", .neutral = 1, .min = 1e-6,
     .max = 1e6},
    {"final_logit_softcapping", AT(logits_cap), IV_FIELD_REAL, OPTIONAL | LINE, .label = "logits", .max = 1e6},
    {"layer_norm", AT(layer_norm), IV_FIELD_FLAG, LINE | MEMORY, .label = "norms centered"},
    {"embedding_norm", AT(embedding_norm), IV_FIELD_FLAG, LINE | MEMORY, .label = "embedding normed"},
    {"post_norm_eps", AT(post_norm_eps), IV_FIELD_REAL, LINE, .label = "eps behind"},
    {"final_norm_plain", AT(final_norm_plain), IV_FIELD_FLAG, LINE | MEMORY, .label = "final norm"},
    {"unit_offset_norms", AT(unit_offset_norms), IV_FIELD_FLAG, LINE | MEMORY, .label = "norms offset"},
    {"attention_sinks", AT(attention_sinks), IV_FIELD_FLAG, LINE | MEMORY, .label = "sinks"},
    {"linear_num_key_heads", AT(linear_key_heads), IV_FIELD_INT, LINE | MEMORY, .label = "linear"},
    {"linear_num_value_heads", AT(linear_value_heads), IV_FIELD_INT, LINE | MEMORY, .label = "linear"},
    {"linear_key_head_dim", AT(linear_key_dim), IV_FIELD_INT, LINE | MEMORY, .label = "linear"},
    {"linear_value_head_dim", AT(linear_value_dim), IV_FIELD_INT, LINE | MEMORY, .label = "linear"},
    {"linear_conv_kernel_dim", AT(linear_conv_taps), IV_FIELD_INT, LINE | MEMORY, .label = "linear"},
    {"mamba_conv_bias", AT(scan_conv_bias), IV_FIELD_FLAG, LINE | MEMORY, .label = "scan"},
    {"mamba_norm", AT(scan_norm), IV_FIELD_CHOICE, LINE | MEMORY, .label = "scan", .choices = scan_norms},
    {"time_step_low", AT(scan_step_low), IV_FIELD_REAL, LINE, .label = "scan"},
    {"time_step_high", AT(scan_step_high), IV_FIELD_REAL, LINE, .label = "scan"},
    {"attention_in_multiplier", AT(attention_in_scale), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"key_multiplier", AT(key_scale), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"attention_out_multiplier", AT(attention_out_scale), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"mlp_gate_multiplier", AT(gate_scale), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"mlp_down_multiplier", AT(mlp_out_scale), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"ssm_out_multiplier", AT(scan_out_scale), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"ssm_z_multiplier", AT(scan_in_scale[0]), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"ssm_x_multiplier", AT(scan_in_scale[1]), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"ssm_b_multiplier", AT(scan_in_scale[2]), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"ssm_c_multiplier", AT(scan_in_scale[3]), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"ssm_dt_multiplier", AT(scan_in_scale[4]), IV_FIELD_REAL, LINE | MEMORY, .label = "parts", .neutral = 1},
    {"layers", AT(layer), IV_FIELD_LAYERS, .uses = BOTH},
};
#undef AT

#define AT(member) offsetof(iv_rope_config, member)
static const iv_config_field rope_rows[] = {
    {"rope_type", AT(kind), IV_FIELD_CHOICE, ARITHMETIC, .label = "rope", .choices = iv_rope_kind_names},
    {"rope_theta", AT(theta), IV_FIELD_REAL, ARITHMETIC, .label = ""},
    {"factor", AT(factor), IV_FIELD_REAL, ARITHMETIC, .label = ""},
    {"low_freq_factor", AT(low_freq_factor), IV_FIELD_REAL, ARITHMETIC, .label = ""},
    {"high_freq_factor", AT(high_freq_factor), IV_FIELD_REAL, ARITHMETIC, .label = ""},
    {"original_max_position_embeddings", AT(original_positions), IV_FIELD_INT, ARITHMETIC, .label = ""},
    {"beta_fast", AT(beta_fast), IV_FIELD_REAL, LINE, .label = "yarn"},
    {"beta_slow", AT(beta_slow), IV_FIELD_REAL, LINE, .label = "yarn"},
    {"attention_factor", AT(attention), IV_FIELD_REAL, LINE, .label = "yarn"},
    {"mscale", AT(mscale), IV_FIELD_REAL, LINE, .label = "yarn"},
    {"mscale_all_dim", AT(mscale_all_dim), IV_FIELD_REAL, LINE, .label = "yarn"},
    {"truncate", AT(truncate), IV_FIELD_FLAG, LINE, .label = "yarn"},
    {"attn_factor", AT(attn_factor), IV_FIELD_REAL, LINE, .label = "attn", .neutral = 1},
    {"llama_4_scaling_beta", AT(query_beta), IV_FIELD_REAL, LINE, .label = "queries"},
    {"query_shift", AT(query_shift), IV_FIELD_INT, LINE, .label = "queries"},
    {"extended", AT(extended), IV_FIELD_FLAG, LINE, .label = "extended"},
    {"rotary_dim", AT(rotated), IV_FIELD_INT, LINE, .label = "part"},
    {"head_dim", AT(head_dim), IV_FIELD_INT, LINE, .label = "head"},
    {"interleaved", AT(neighbours), IV_FIELD_FLAG, LINE, .label = "part"},
};
#undef AT

/* The first two are letters of the fingerprint's text, see describe_layers. */
#define AT(member) offsetof(iv_layer_config, member)
static const iv_config_field layer_rows[] = {
    {"sliding_window", AT(window), IV_FIELD_INT, .uses = BOTH},
    {"mlp", AT(mlp), IV_FIELD_CHOICE, BOTH, .choices = mlp_kinds},
    {"rope", AT(rope), IV_FIELD_CHOICE, LINE, .label = "rope"},
    {"norms", AT(norms), IV_FIELD_CHOICE, LINE | MEMORY, .label = "norms", .choices = norm_places},
    {"activation", AT(activation.kind), IV_FIELD_CHOICE, LINE | MEMORY, .label = "activation", .choices = activations},
    {"activation_limit", AT(activation.limit), IV_FIELD_REAL, LINE, .label = "activation"},
    {"activation_alpha", AT(activation.alpha), IV_FIELD_REAL, LINE, .label = "activation"},
    {"wide", AT(wide), IV_FIELD_FLAG, LINE | MEMORY, .label = "wide"},
    {"values_are_keys", AT(values_are_keys), IV_FIELD_FLAG, LINE | MEMORY, .label = "values"},
    {"mixer", AT(mixer), IV_FIELD_CHOICE, LINE | MEMORY, .label = "mixer", .choices = mixers},
    {"attention_gate", AT(attention_gate), IV_FIELD_FLAG, LINE | MEMORY, .label = "mixer"},
    {"norm_kept", AT(norm_kept), IV_FIELD_FLAG, LINE | MEMORY, .label = "kept"},
};
#undef AT

const iv_config_table iv_model_fields = {model_rows, sizeof model_rows / sizeof *model_rows},
                      iv_rope_fields = {rope_rows, sizeof rope_rows / sizeof *rope_rows},
                      iv_layer_fields = {layer_rows, sizeof layer_rows / sizeof *layer_rows};

_Static_assert(sizeof(iv_rope_kind) == sizeof(int) && sizeof(iv_mlp_kind) == sizeof(int) &&
                   sizeof(iv_norm_places) == sizeof(int) && sizeof(iv_activation_kind) == sizeof(int) &&
                   sizeof(iv_router_score) == sizeof(int) && sizeof(iv_mixer_kind) == sizeof(int) &&
                   sizeof(iv_scan_norm_kind) == sizeof(int),
               "an enum is read as an int");

double iv_config_value(const void *of, const iv_config_field *f) {
    const char *at = (const char *)of + f->offset;
    switch (f->kind) {
    case IV_FIELD_INT: return (double)*(const int64_t *)(const void *)at;
    case IV_FIELD_REAL: return *(const double *)(const void *)at;
    case IV_FIELD_FLAG: return *(const bool *)(const void *)at;
    case IV_FIELD_CHOICE: return *(const int *)(const void *)at;
    case IV_FIELD_ROPES:
    case IV_FIELD_LAYERS: break;
    }
    return 0;
}

void iv_config_set_value(void *of, const iv_config_field *f, double value) {
    char *at = (char *)of + f->offset;
    switch (f->kind) {
    case IV_FIELD_INT: *(int64_t *)(void *)at = (int64_t)value; break;
    case IV_FIELD_REAL: *(double *)(void *)at = value; break;
    case IV_FIELD_FLAG: *(bool *)(void *)at = value != 0; break;
    case IV_FIELD_CHOICE: *(int *)(void *)at = (int)value; break;
    case IV_FIELD_ROPES:
    case IV_FIELD_LAYERS: break;
    }
}

/* ---- parsing ---- */

static iv_status read_row(const iv_json_object *o, const iv_config_field *f, iv_model_config *c, iv_error *err) {
    char *at = (char *)c + f->offset;
    bool found = false;
    if (f->kind == IV_FIELD_INT)
        IV_TRY(iv_json_object_int(o, f->name, (int64_t)f->min, (int64_t)f->max, (void *)at, &found, err));
    else if (f->kind == IV_FIELD_REAL)
        IV_TRY(iv_json_object_real(o, f->name, f->min, f->max, (void *)at, &found, err));
    else
        IV_TRY(iv_json_object_bool(o, f->name, (void *)at, &found, err));
    if (found || !(f->uses & IV_FIELD_REQUIRED) || iv_config_value(c, f) != 0) return IV_OK;
    return iv_json_object_missing(o, f->name, f->kind == IV_FIELD_INT ? "an integer" : "a number", err);
}

iv_status iv_config_read(const iv_json_object *o, bool experts, iv_model_config *c, iv_error *err) {
    for (size_t i = 0; i < iv_model_fields.count; i++) {
        const iv_config_field *f = &iv_model_fields.fields[i];
        if ((f->uses & (REQUIRED | OPTIONAL)) && !(f->uses & EXPERTS) == !experts) IV_TRY(read_row(o, f, c, err));
    }
    return IV_OK;
}

/* ---- the fingerprint's text ---- */

static void add_text(iv_digest *d, const char *text) { iv_digest_add(d, text, strlen(text)); }

static void add_value(iv_digest *d, const void *of, const iv_config_field *f) {
    char text[64];
    double v = iv_config_value(of, f);
    if (f->kind == IV_FIELD_REAL)
        snprintf(text, sizeof text, " %a", v);
    else
        snprintf(text, sizeof text, " %" PRId64, (int64_t)v);
    add_text(d, text);
}

/* The rows of a table that are not LAYERS; those of the first line, which may hold rotary settings. */
static void describe_first_line(const iv_config_table *t, const void *of, iv_digest *d) {
    for (size_t i = 0; i < t->count; i++) {
        const iv_config_field *f = &t->fields[i];
        if (f->kind == IV_FIELD_ROPES) describe_first_line(&iv_rope_fields, (const char *)of + f->offset, d);
        if (!(f->uses & ARITHMETIC) || (f->uses & IV_FIELD_OWN_LINE) || !f->label) continue;
        if (*f->label) add_text(d, " "), add_text(d, f->label);
        add_value(d, of, f);
    }
}

/* The lines of OWN_LINE, each after `prefix`. */
static void describe_lines(const iv_config_table *t, const void *of, const char *prefix, iv_digest *d) {
    for (size_t i = 0, end; i < t->count; i = end) {
        const iv_config_field *f = &t->fields[i];
        bool written = false;
        for (end = i; end < t->count && (end == i || (f->label && t->fields[end].label == f->label)); end++)
            written |= (t->fields[end].uses & IV_FIELD_OWN_LINE) &&
                       iv_config_value(of, &t->fields[end]) != t->fields[end].neutral;
        if (!written) continue;
        add_text(d, prefix), add_text(d, f->label);
        for (size_t j = i; j < end; j++) add_value(d, of, &t->fields[j]);
        add_text(d, "\n");
    }
}

static void describe_layers(const iv_model_config *c, iv_digest *d) {
    for (int64_t i = 0; i < c->layers; i++) {
        char kind[2] = {c->layer[i].window ? 's' : 'f', "dmn"[c->layer[i].mlp]};
        iv_digest_add(d, kind, sizeof kind);
    }
    for (int64_t i = 0; i < c->layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "\nlayer %" PRId64 " ", i);
        describe_lines(&iv_layer_fields, &c->layer[i], prefix, d);
        if (c->layer[i].window == 0 || c->layer[i].window == c->sliding_window) continue;
        snprintf(prefix, sizeof prefix, "\nlayer %" PRId64 " window %" PRId64 "\n", i, c->layer[i].window);
        add_text(d, prefix);
    }
}

/* The list that is in use. */
static void describe_long(const iv_model_config *c, iv_digest *d) {
    const iv_rope_config *r = &c->ropes[0];
    if (r->kind != IV_ROPE_LONG) return;
    for (int64_t i = 0; i < (r->rotated ? r->rotated : iv_config_rope_dim(c, 0)) / 2; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%a", i ? " " : "long ", c->long_factors[r->extended][i]);
        add_text(d, text);
    }
    add_text(d, "\n");
}

void iv_config_describe(const iv_model_config *c, iv_digest *d) {
    add_text(d, c->model_type);
    describe_first_line(&iv_model_fields, c, d);
    add_text(d, "\n");
    describe_lines(&iv_model_fields, c, "", d);
    describe_lines(&iv_rope_fields, &c->ropes[0], "", d);
    describe_long(c, d);
    for (int i = 1; i < c->rope_count; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "ropes %d ", i);
        add_text(d, prefix);
        describe_first_line(&iv_rope_fields, &c->ropes[i], d);
        add_text(d, "\n");
        describe_lines(&iv_rope_fields, &c->ropes[i], prefix, d);
    }
    describe_layers(c, d);
}

/* ---- comparison ---- */

static iv_status check_rows(const char *name, const char *place, const iv_config_table *t, const void *want,
                            const void *found, iv_error *err) {
    for (size_t i = 0; i < t->count; i++) {
        const iv_config_field *f = &t->fields[i];
        double w = iv_config_value(want, f), x = iv_config_value(found, f);
        if (!(f->uses & MEMORY) || w == x) continue;
        if (f->choices)
            return iv_fail(err, IV_INVALID, "%s: %s%s: wanted %s as in the weights in use, found %s", name, place,
                           f->name, f->choices[(int)w], f->choices[(int)x]);
        return iv_fail(err, IV_INVALID, "%s: %s%s: wanted %.17g as in the weights in use, found %.17g", name, place,
                       f->name, w, x);
    }
    return IV_OK;
}

iv_status iv_config_check_same(const char *name, const iv_model_config *want, const iv_model_config *found,
                               iv_error *err) {
    if (strcmp(want->model_type, found->model_type) != 0)
        return iv_fail(err, IV_INVALID, "%s: model_type: wanted %s as in the weights in use, found %s", name,
                       want->model_type, found->model_type);
    IV_TRY(check_rows(name, "", &iv_model_fields, want, found, err));
    for (int64_t i = 0; i < want->layers; i++) {
        char place[48];
        snprintf(place, sizeof place, "layer %" PRId64 ": ", i);
        IV_TRY(check_rows(name, place, &iv_layer_fields, &want->layer[i], &found->layer[i], err));
    }
    return IV_OK;
}

/* ---- JSON ---- */

static void write_rows(const iv_config_table *t, const void *of, iv_json_out *out) {
    for (size_t i = 0; i < t->count; i++) {
        const iv_config_field *f = &t->fields[i];
        double v = iv_config_value(of, f);
        if (f->kind == IV_FIELD_ROPES || f->kind == IV_FIELD_LAYERS) continue;
        if (f->choices)
            iv_out_kv_text(out, f->name, f->choices[(int)v]);
        else if (f->kind == IV_FIELD_REAL)
            iv_out_kv_double(out, f->name, v);
        else if (f->kind == IV_FIELD_FLAG)
            iv_out_kv_bool(out, f->name, v != 0);
        else
            iv_out_kv_int(out, f->name, (int64_t)v);
    }
}

static bool same_layer(const iv_layer_config *a, const iv_layer_config *b) {
    for (size_t i = 0; i < iv_layer_fields.count; i++)
        if (iv_config_value(a, &iv_layer_fields.fields[i]) != iv_config_value(b, &iv_layer_fields.fields[i]))
            return false;
    return true;
}

void iv_config_write_json(const iv_model_config *c, iv_json_out *out) {
    iv_out_kv_open(out, NULL, '{');
    iv_out_kv_text(out, "model_type", c->model_type);
    write_rows(&iv_model_fields, c, out);
    iv_out_kv_open(out, "ropes", '[');
    for (int i = 0; i < c->rope_count; i++) {
        iv_out_kv_open(out, NULL, '{');
        write_rows(&iv_rope_fields, &c->ropes[i], out);
        iv_out_close(out, '}');
    }
    iv_out_close(out, ']');
    iv_out_kv_open(out, "layers", '[');
    for (int64_t i = 0, end; i < c->layers; i = end) {
        for (end = i + 1; end < c->layers && same_layer(&c->layer[i], &c->layer[end]);) end++;
        iv_out_kv_open(out, NULL, '{');
        iv_out_kv_int(out, "count", end - i);
        write_rows(&iv_layer_fields, &c->layer[i], out);
        iv_out_close(out, '}');
    }
    iv_out_close(out, ']');
    iv_out_close(out, '}');
}

iv_status iv_config_to_json(const iv_model_config *c, iv_text *out, iv_error *err) {
    iv_buf text = {0};
    iv_json_out json = {.buf = &text};
    iv_config_write_json(c, &json);
    *out = (iv_text){text.data, text.len};
    if (!json.failed) return IV_OK;
    iv_buf_free(&text);
    *out = (iv_text){0};
    return iv_fail(err, IV_NO_MEMORY, "configuration: no memory");
}
