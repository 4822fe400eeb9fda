/* config_scan.c: see config_scan.h. Defaults are those of GraniteMoeHybridConfig, NemotronHConfig and FalconH1Config.
 */
#include "format/config_scan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void iv_config_neutral_scales(iv_model_config *c) {
    c->attention_in_scale = c->key_scale = c->attention_out_scale = c->scan_out_scale = 1;
    c->gate_scale = c->mlp_out_scale = 1;
    for (int i = 0; i < IV_SCAN_PARTS; i++) c->scan_in_scale[i] = 1;
}

/* ---- kinds of layers ----------------------------------------------------------------------------------------- */

typedef struct kind {
    const char *names[3]; /* transformers' of today and of before */
    char letter;          /* of hybrid_override_pattern; 0: only nemotron_h's layers are of one block */
    iv_mixer_kind mixer;
    iv_mlp_kind mlp; /* of nemotron_h */
} kind;

static const kind kinds[] = {{{"linear_attention", "mamba", "mamba2"}, 'M', IV_MIXER_SCAN, IV_MLP_NONE},
                             {{"full_attention", "attention", NULL}, '*', IV_MIXER_ATTENTION, IV_MLP_NONE},
                             {{"mlp", NULL, NULL}, '-', IV_MIXER_NONE, IV_MLP_DENSE},
                             {{"moe", NULL, NULL}, 'E', IV_MIXER_NONE, IV_MLP_EXPERTS}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const kind *kind_of(const char *name, bool blocks) {
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 0; i < 3 && kinds[k].names[i] && (blocks || kinds[k].mlp == IV_MLP_NONE); i++)
            if (strcmp(name, kinds[k].names[i]) == 0) return &kinds[k];
    return NULL;
}

static const char *list_name(const iv_json_object *o) {
    return iv_json_object_has(o, "layers_block_type") ? "layers_block_type" : "layer_types";
}

/* The layers of the file's list, or of the pattern; NULL in *kind ends them. */
static iv_status read_kinds(const iv_json_object *o, bool blocks, const kind *of[IV_LAYERS_MAX + 1], iv_error *err) {
    const char *name = list_name(o), *pattern = NULL;
    const json_t *list = json_object_get(o->json, name);
    bool found, has_list = iv_json_object_has(o, name);
    size_t n = json_array_size(list);
    if (!has_list && blocks) {
        IV_TRY(iv_json_object_string(o, "hybrid_override_pattern", &pattern, &found, err));
        n = pattern ? strlen(pattern) : 0;
    }
    if (!pattern && !json_is_array(list))
        return has_list ? iv_fail(err, IV_FORMAT, "%s: %s: wanted an array of strings, found %s", o->file, name,
                                  iv_json_type_name(list))
                        : iv_json_object_missing(o, blocks ? "layers_block_type" : name, "an array of strings", err);
    if (n < 1 || n > IV_LAYERS_MAX)
        return iv_fail(err, IV_FORMAT, "%s: %s: wanted 1 to %d layers, found %zu", o->file,
                       pattern ? "hybrid_override_pattern" : name, IV_LAYERS_MAX, n);
    for (size_t i = 0; i < n; i++) {
        const char *type = pattern ? NULL : json_string_value(json_array_get(list, i));
        of[i] = type ? kind_of(type, blocks) : NULL;
        for (size_t k = 0; pattern && k < KINDS; k++)
            if (kinds[k].letter == pattern[i]) of[i] = &kinds[k];
        if (of[i]) continue;
        if (pattern)
            return iv_fail(err, IV_UNSUPPORTED, "%s: hybrid_override_pattern[%zu]: wanted M, *, - or E, found '%c'",
                           o->file, i, pattern[i]);
        return iv_fail(err, IV_UNSUPPORTED, "%s: %s[%zu]: wanted %s, found %.60s", o->file, name, i,
                       blocks ? "linear_attention, full_attention, mlp or moe" : "linear_attention or full_attention",
                       type ? type : "no string");
    }
    of[n] = NULL;
    return IV_OK;
}

iv_status iv_config_use_scan_names(const iv_json_object *o, iv_scan_family family, iv_error *err) {
    const kind *of[IV_LAYERS_MAX + 1];
    json_int_t n = 0;
    if (family != IV_SCAN_NEMOTRON) return IV_OK;
    IV_TRY(read_kinds(o, true, of, err));
    while (of[n]) n++;
    return json_object_set_new(o->json, "num_hidden_layers", json_integer(n)) == 0
               ? IV_OK
               : iv_fail(err, IV_NO_MEMORY, "%s: no memory", o->file);
}

static iv_status use_kinds(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err) {
    const kind *of[IV_LAYERS_MAX + 1];
    bool blocks = family == IV_SCAN_NEMOTRON;
    int64_t n = 0;
    IV_TRY(read_kinds(o, blocks, of, err));
    while (of[n]) n++;
    if (n != c->layers)
        return iv_fail(err, IV_FORMAT, "%s: %s: wanted an array of %" PRId64 " entries, found %" PRId64, o->file,
                       list_name(o), c->layers, n);
    for (int64_t i = 0; i < n; i++) {
        c->layer[i].mixer = of[i]->mixer;
        if (blocks) c->layer[i].mlp = of[i]->mlp;
    }
    return IV_OK;
}

/* ---- sizes --------------------------------------------------------------------------------------------------- */

typedef struct names {
    const char *heads, *head_dim, *groups, *state, *taps, *bias, *proj_bias;
    int64_t default_heads, default_groups, default_state;
} names;

static const names names_of[] = {
    [IV_SCAN_GRANITE] = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
                         "mamba_conv_bias", "mamba_proj_bias", 128, 1, 256},
    [IV_SCAN_NEMOTRON] = {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel",
                          "use_conv_bias", "use_bias", 128, 8, 128},
    [IV_SCAN_FALCON] = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
                        "mamba_conv_bias", "mamba_proj_bias", 128, 1, 256}};

/* The values of all heads: of nemotron_h they follow from the heads. */
static iv_status parse_width(const iv_json_object *o, iv_scan_family family, const iv_model_config *c, int64_t *width,
                             iv_error *err) {
    int64_t expand = 2;
    bool found;
    *width = 0;
    if (family == IV_SCAN_NEMOTRON) return IV_OK;
    IV_TRY(iv_json_object_int(o, "mamba_expand", 1, 1024, &expand, &found, err));
    *width = expand * c->hidden_size;
    if (family != IV_SCAN_FALCON) return IV_OK;
    if (iv_json_object_lacks(o, "mamba_d_ssm")) *width = 1024;
    return iv_json_object_int(o, "mamba_d_ssm", 1, IV_HIDDEN_MAX, width, &found, err);
}

static iv_status parse_head(const iv_json_object *o, const names *n, int64_t width, iv_model_config *c, iv_error *err) {
    const char *word = json_string_value(json_object_get(o->json, n->head_dim));
    bool found = false, made = width && (!word || strcmp(word, "auto") == 0);
    c->linear_value_dim = made ? width / c->linear_value_heads : 64;
    if (!word || !made)
        IV_TRY(iv_json_object_int(o, n->head_dim, 1, IV_HEAD_DIM_MAX, &c->linear_value_dim, &found, err));
    if (width && c->linear_value_dim * c->linear_value_heads != width)
        return iv_fail(err, IV_FORMAT,
                       "%s: %s: wanted %" PRId64 " values over %" PRId64 " heads, found %" PRId64 " each", o->file,
                       n->head_dim, width, c->linear_value_heads, c->linear_value_dim);
    if (c->linear_value_dim <= IV_HEAD_DIM_MAX) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %s: wanted 1 to %d, found %" PRId64, o->file, n->head_dim, IV_HEAD_DIM_MAX,
                   c->linear_value_dim);
}

static iv_status refuse_true(const iv_json_object *o, const char *name, iv_error *err) {
    bool value = false, found;
    IV_TRY(iv_json_object_bool(o, name, &value, &found, err));
    return value ? iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted false, found true", o->file, name) : IV_OK;
}

static iv_status parse_sizes(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err) {
    const names *n = &names_of[family];
    int64_t width;
    bool found;
    c->linear_value_heads = n->default_heads, c->linear_key_heads = n->default_groups;
    c->linear_key_dim = n->default_state, c->linear_conv_taps = 4, c->scan_conv_bias = true;
    IV_TRY(iv_json_object_int(o, n->heads, 1, IV_HEADS_MAX, &c->linear_value_heads, &found, err));
    IV_TRY(iv_json_object_int(o, n->groups, 1, IV_HEADS_MAX, &c->linear_key_heads, &found, err));
    IV_TRY(iv_json_object_int(o, n->state, 1, IV_HEAD_DIM_MAX, &c->linear_key_dim, &found, err));
    IV_TRY(iv_json_object_int(o, n->taps, 1, IV_CONV_TAPS_MAX, &c->linear_conv_taps, &found, err));
    IV_TRY(iv_json_object_bool(o, n->bias, &c->scan_conv_bias, &found, err));
    IV_TRY(refuse_true(o, n->proj_bias, err));
    if (family == IV_SCAN_FALCON) IV_TRY(refuse_true(o, "projectors_bias", err));
    IV_TRY(parse_width(o, family, c, &width, err));
    IV_TRY(parse_head(o, n, width, c, err));
    if (c->linear_value_heads % c->linear_key_heads == 0) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %s: wanted a divisor of %" PRId64 " heads, found %" PRId64, o->file, n->groups,
                   c->linear_value_heads, c->linear_key_heads);
}

/* A number that may be infinite, as Python writes it or as newer files do; HUGE_VAL then. */
static bool number_of(const json_t *v, double *out) {
    const char *word = json_string_value(json_is_object(v) ? json_object_get(v, "__float__") : v);
    if (word && *word == '\1') word++; /* iv_json_parse_python */
    *out = word && strcmp(word, "Infinity") == 0 ? HUGE_VAL : json_number_value(v);
    return json_is_number(v) || *out == HUGE_VAL;
}

/* time_step_limit; nemotron_h has time_step_min alone. */
static iv_status parse_steps(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err) {
    const json_t *list = json_object_get(o->json, "time_step_limit");
    double low = 0, high = HUGE_VAL;
    bool found;
    if (family == IV_SCAN_NEMOTRON) {
        c->scan_step_low = 0.001;
        return iv_json_object_real(o, "time_step_min", 0, 1e6, &c->scan_step_low, &found, err);
    }
    if (!iv_json_object_has(o, "time_step_limit")) return IV_OK;
    if (json_array_size(list) != 2 || !number_of(json_array_get(list, 0), &low) ||
        !number_of(json_array_get(list, 1), &high) || !(low >= 0 && low <= high && low < 1e30 && high > 0))
        return iv_fail(err, IV_FORMAT, "%s: time_step_limit: wanted two numbers, 0 <= low <= high, found %s of %zu",
                       o->file, iv_json_type_name(list), json_array_size(list));
    c->scan_step_low = low, c->scan_step_high = high == HUGE_VAL ? 0 : high;
    return IV_OK;
}

/* ---- norms and scales ---------------------------------------------------------------------------------------- */

static iv_status parse_norm(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err) {
    const char *act = NULL;
    bool norm = false, before = true, found;
    c->scan_norm = IV_SCAN_NORM_GATED;
    if (family == IV_SCAN_NEMOTRON) {
        IV_TRY(iv_json_object_real(o, "layer_norm_epsilon", 1e-30, 1, &c->rms_norm_eps, &found, err));
        IV_TRY(iv_json_object_string(o, "mamba_hidden_act", &act, &found, err));
        if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: mamba_hidden_act: wanted silu, found '%.60s'", o->file, act);
    }
    if (family != IV_SCAN_FALCON) return IV_OK;
    IV_TRY(iv_json_object_bool(o, "mamba_rms_norm", &norm, &found, err));
    IV_TRY(iv_json_object_bool(o, "mamba_norm_before_gate", &before, &found, err));
    c->scan_norm = !norm ? IV_SCAN_NORM_NONE : before ? IV_SCAN_NORM_UNGATED : IV_SCAN_NORM_GATED;
    return IV_OK;
}

/* An array of n numbers, if it is there. */
static iv_status parse_list(const iv_json_object *o, const char *name, size_t n, double *out, iv_error *err) {
    const json_t *list = json_object_get(o->json, name);
    if (!iv_json_object_has(o, name)) return IV_OK;
    bool good = json_is_array(list) && json_array_size(list) == n;
    for (size_t i = 0; good && i < n; i++) {
        out[i] = json_number_value(json_array_get(list, i));
        good = out[i] >= 1e-6 && out[i] <= 1e6;
    }
    if (good) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %s: wanted an array of %zu numbers from 1e-6 to 1e6, found %s of %zu", o->file,
                   name, n, iv_json_type_name(list), json_array_size(list));
}

static iv_status parse_scales(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    double head = 1, in = 1, mlp[2] = {1, 1};
    const struct {
        const char *name;
        double *to;
    } all[] = {{"attention_in_multiplier", &c->attention_in_scale},
               {"attention_out_multiplier", &c->attention_out_scale},
               {"key_multiplier", &c->key_scale},
               {"ssm_out_multiplier", &c->scan_out_scale},
               {"ssm_in_multiplier", &in},
               {"lm_head_multiplier", &head}};
    bool found;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        IV_TRY(iv_json_object_real(o, all[i].name, 1e-6, 1e6, all[i].to, &found, err));
    IV_TRY(parse_list(o, "mlp_multipliers", 2, mlp, err));
    IV_TRY(parse_list(o, "ssm_multipliers", IV_SCAN_PARTS, c->scan_in_scale, err));
    for (int i = 0; i < IV_SCAN_PARTS; i++) c->scan_in_scale[i] *= in;
    c->gate_scale = mlp[0], c->mlp_out_scale = mlp[1], c->logits_divisor = 1 / head;
    return IV_OK;
}

iv_status iv_config_use_scan_layers(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err) {
    bool experts = false, found;
    int64_t count = 8;
    if (family == IV_SCAN_GRANITE) {
        IV_TRY(iv_json_object_int(o, "num_local_experts", 0, IV_EXPERTS_MAX, &count, &found, err));
        experts = count > 0;
        IV_TRY(use_kinds(o, family, c, err));
    } else if (family == IV_SCAN_NEMOTRON) {
        IV_TRY(use_kinds(o, family, c, err));
    } else {
        if (c->layers > IV_LAYERS_MAX / 2)
            return iv_fail(err, IV_FORMAT, "%s: num_hidden_layers: wanted 1 to %d, found %" PRId64, o->file,
                           IV_LAYERS_MAX / 2, c->layers);
        c->layers *= 2, c->layers_of_one = 2;
        for (int64_t i = 1; i < c->layers; i += 2) c->layer[i].mixer = IV_MIXER_SCAN;
        for (int64_t i = 0; i < c->layers; i += 2) c->layer[i].mlp = IV_MLP_NONE;
        IV_TRY(parse_scales(o, c, err));
    }
    for (int64_t i = 0; experts && i < c->layers; i++) c->layer[i].mlp = IV_MLP_EXPERTS;
    if (iv_config_has_mlp(c, IV_MLP_EXPERTS)) c->experts_per_token = 2; /* when it is absent */
    if (!iv_config_mixers(c, IV_MIXER_ATTENTION))
        return iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted a full_attention layer, found none", o->file, list_name(o));
    IV_TRY(parse_norm(o, family, c, err));
    if (!iv_config_mixers(c, IV_MIXER_SCAN)) return IV_OK;
    IV_TRY(parse_steps(o, family, c, err));
    return parse_sizes(o, family, c, err);
}

iv_status iv_config_parse_scan(const iv_json_object *o, iv_scan_family family, iv_model_config *c, bool *nope,
                               iv_error *err) {
    const char *positions = NULL;
    bool found, rotates = family == IV_SCAN_FALCON;
    if (family == IV_SCAN_GRANITE) {
        IV_TRY(iv_json_object_string(o, "position_embedding_type", &positions, &found, err));
        rotates = positions && strcmp(positions, "rope") == 0;
        if (positions && !rotates && strcmp(positions, "nope") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: position_embedding_type: wanted rope or nope, found '%.60s'",
                           o->file, positions);
    }
    for (int64_t i = 0; i < c->layers; i++) {
        nope[i] = !rotates;
        c->layer[i].norm_kept = family == IV_SCAN_FALCON && c->layer[i].mixer == IV_MIXER_SCAN;
    }
    return IV_OK;
}

/* ---- MLPs ---------------------------------------------------------------------------------------------------- */

static iv_status use_nemotron_mlps(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    const char *act = NULL;
    int64_t shared = 1;
    bool found;
    IV_TRY(iv_json_object_string(o, "mlp_hidden_act", &act, &found, err));
    if (act && strcmp(act, "relu2") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: mlp_hidden_act: wanted relu2, found '%.60s'", o->file, act);
    IV_TRY(use_kinds(o, IV_SCAN_NEMOTRON, c, err));
    if (!c->experts) return IV_OK;
    if (iv_json_object_has(o, "moe_latent_size"))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: moe_latent_size: wanted null (experts of a latent are not implemented)", o->file);
    if (c->mlp_bias)
        return iv_fail(err, IV_UNSUPPORTED, "%s: mlp_bias: wanted false in a model with experts, found true", o->file);
    c->shared_intermediate_size = 7688;
    IV_TRY(iv_json_object_int(o, "n_shared_experts", 0, 1, &shared, &found, err));
    IV_TRY(iv_json_object_int(o, "moe_shared_expert_intermediate_size", 1, IV_INTERMEDIATE_MAX,
                              &c->shared_intermediate_size, &found, err));
    if (!shared) c->shared_intermediate_size = 0;
    return IV_OK;
}

iv_status iv_config_use_scan_mlps(const iv_json_object *o, iv_scan_family family, iv_model_config *c, iv_error *err) {
    int64_t shared = 1024;
    bool found;
    if (family == IV_SCAN_NEMOTRON) return use_nemotron_mlps(o, c, err);
    if (family != IV_SCAN_GRANITE) return IV_OK;
    IV_TRY(iv_json_object_int(o, "shared_intermediate_size", 1, IV_INTERMEDIATE_MAX, &shared, &found, err));
    if (c->experts)
        c->shared_intermediate_size = shared;
    else
        c->intermediate_size = shared; /* the shared MLP is the layer's only one */
    return IV_OK;
}
