/* model_config.c: a table of the families; the rest is parsed field by field.
 *
 * Invariant: after success every size is within its named maximum and the sizes are consistent, so products of any
 * three of them fit 64 bits. */
#include "format/model_config.h"
#include "base/file.h"
#include "format/foreign.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The layers with a sliding window. */
typedef enum slide_rule {
    SLIDE_NEVER,     /* the family has no window; the fields are not read */
    SLIDE_ALL,       /* every layer */
    SLIDE_FROM_LAYER /* layer_types, else layers from max_window_layers on */
} slide_rule;

typedef struct family_facts {
    const char *model_type;
    iv_family family;
    int64_t kv_heads;       /* when num_key_value_heads is absent; 0: as many as heads */
    int64_t head_dim;       /* when head_dim is absent; 0: hidden_size / heads */
    int64_t bos_id, eos_id; /* when absent; -1: none */
    slide_rule slides;
    bool window_switch; /* sliding_window counts only with use_sliding_window */
    bool qk_norm;
    bool moe;
    bool mlp_bias_field;
} family_facts;

/* From the configuration_*.py and modeling_*.py files of transformers 4.51 to 5. */
static const family_facts families[] = {
    {"qwen3", IV_QWEN3, 32, 128, -1, -1, SLIDE_FROM_LAYER, true, true, false, false},
    {"qwen3_moe", IV_QWEN3_MOE, 4, 0, -1, -1, SLIDE_ALL, true, true, true, false},
    {"qwen2", IV_QWEN2, 32, 0, -1, -1, SLIDE_FROM_LAYER, true, false, false, false},
    {"llama", IV_LLAMA, 0, 0, 1, 2, SLIDE_NEVER, false, false, false, true},
    {"mistral", IV_MISTRAL, 8, 0, 1, 2, SLIDE_ALL, false, false, false, false},
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

#define ROPE_THETA_DEFAULT 10000.0
#define RMS_NORM_EPS_DEFAULT 1e-6
#define SLIDING_WINDOW_DEFAULT 4096
#define MAX_WINDOW_LAYERS_DEFAULT 28

static iv_status missing(const iv_json_object *o, const char *key, const char *wanted, iv_error *err) {
    return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted %s, found nothing", o->file, o->path, key, wanted);
}

static iv_status required_int(const iv_json_object *o, const char *key, int64_t min, int64_t max, int64_t *out,
                              iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_int(o, key, min, max, out, &found, err));
    return found ? IV_OK : missing(o, key, "an integer", err);
}

static iv_status required_real(const iv_json_object *o, const char *key, double min, double max, double *out,
                               iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_real(o, key, min, max, out, &found, err));
    return found ? IV_OK : missing(o, key, "a number", err);
}

static iv_status bool_or(const iv_json_object *o, const char *key, bool fallback, bool *out, iv_error *err) {
    bool found;
    *out = fallback;
    return iv_json_object_bool(o, key, out, &found, err);
}

static bool is_absent(const iv_json_object *o, const char *key) { return !json_object_get(o->json, key); }

/* ---- what kind of model ---- */

static iv_status parse_family(const iv_json_object *o, const family_facts **out, iv_error *err) {
    const char *type = NULL;
    bool found;
    IV_TRY(iv_json_object_string(o, "model_type", &type, &found, err));
    if (!found) return missing(o, "model_type", "a string", err);
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (strcmp(type, families[i].model_type) == 0) {
            *out = &families[i];
            return IV_OK;
        }
    iv_buf known = {0};
    bool ok = true;
    for (int i = 0; i < FAMILY_COUNT && ok; i++)
        ok = iv_buf_printf(&known, "%s%s", i ? ", " : "", families[i].model_type);
    iv_status status = iv_fail(err, IV_UNSUPPORTED, "%s: model_type '%.60s' is not supported (supported: %s)", o->file,
                               type, ok ? known.data : "?");
    iv_buf_free(&known);
    return status;
}

/* A classifier or reward model of a known family has another head: running it as a language model would
 * answer with noise. */
static iv_status check_architecture(const iv_json_object *o, iv_error *err) {
    static const char suffix[] = "ForCausalLM";
    if (!iv_json_object_has(o, "architectures")) return IV_OK;
    const json_t *list = json_object_get(o->json, "architectures");
    if (!json_is_array(list))
        return iv_fail(err, IV_FORMAT, "%s: architectures: wanted an array, found %s", o->file,
                       iv_json_type_name(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item))
            return iv_fail(err, IV_FORMAT, "%s: architectures[%zu]: wanted a string, found %s", o->file, i,
                           iv_json_type_name(item));
        size_t n = json_string_length(item), tail = sizeof suffix - 1;
        if (n < tail || memcmp(json_string_value(item) + n - tail, suffix, tail) != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: architecture '%.100s' is not a causal language model", o->file,
                           json_string_value(item));
    }
    return IV_OK;
}

static iv_status check_not_quantized(const iv_json_object *o, iv_error *err) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!iv_json_object_has(o, keys[i])) continue;
        const char *method = json_string_value(json_object_get(json_object_get(o->json, keys[i]), "quant_method"));
        return iv_fail(err, IV_UNSUPPORTED, "%s: %s: weights quantized by '%.60s' are not supported", o->file, keys[i],
                       method ? method : "an unnamed method");
    }
    return IV_OK;
}

static iv_status parse_dtype_key(const iv_json_object *o, const char *key, bool *found, iv_dtype *out, iv_error *err) {
    static const iv_dtype known[] = {IV_BF16, IV_F16, IV_F32, IV_F64};
    const char *name = NULL;
    IV_TRY(iv_json_object_string(o, key, &name, found, err));
    if (!*found) return IV_OK;
    size_t prefix = strncmp(name, "torch.", 6) == 0 ? 6 : 0; /* spelling of some programs */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name + prefix, iv_dtype_name(known[i])) == 0) {
            *out = known[i];
            return IV_OK;
        }
    return iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted bfloat16, float16, float32 or float64, found '%.60s'", o->file,
                   key, name);
}

static iv_status parse_dtype(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    iv_dtype old = IV_BF16;
    bool has_old;
    IV_TRY(parse_dtype_key(o, "dtype", &c->has_dtype, &c->dtype, err));
    IV_TRY(parse_dtype_key(o, "torch_dtype", &has_old, &old, err));
    if (has_old && c->has_dtype && old != c->dtype)
        return iv_fail(err, IV_FORMAT, "%s: dtype says %s, torch_dtype says %s", o->file, iv_dtype_name(c->dtype),
                       iv_dtype_name(old));
    if (has_old) c->dtype = old;
    c->has_dtype |= has_old;
    return IV_OK;
}

/* ---- sizes ---- */

static iv_status parse_heads(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    c->kv_heads = is_absent(o, "num_key_value_heads") && f->kv_heads ? f->kv_heads : c->heads;
    IV_TRY(iv_json_object_int(o, "num_key_value_heads", 1, IV_HEADS_MAX, &c->kv_heads, &found, err));
    if (c->heads % c->kv_heads != 0)
        return iv_fail(err, IV_FORMAT, "%s: num_key_value_heads: wanted a divisor of %" PRId64 " heads, %s %" PRId64,
                       o->file, c->heads, found ? "found" : "the default is", c->kv_heads);
    c->head_dim = f->head_dim;
    IV_TRY(iv_json_object_int(o, "head_dim", 2, IV_HEAD_DIM_MAX, &c->head_dim, &found, err));
    if (!found && f->head_dim == 0) {
        if (c->hidden_size % c->heads != 0)
            return iv_fail(err, IV_FORMAT, "%s: hidden_size: wanted a multiple of %" PRId64 " heads, found %" PRId64,
                           o->file, c->heads, c->hidden_size);
        c->head_dim = c->hidden_size / c->heads;
    }
    if (c->head_dim < 2 || c->head_dim > IV_HEAD_DIM_MAX || c->head_dim % 2 != 0)
        return iv_fail(err, IV_FORMAT, "%s: head_dim: wanted an even number from 2 to %d, found %" PRId64, o->file,
                       IV_HEAD_DIM_MAX, c->head_dim);
    return IV_OK;
}

static iv_status parse_sizes(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    IV_TRY(required_int(o, "vocab_size", 1, IV_VOCAB_MAX, &c->vocab_size, err));
    IV_TRY(required_int(o, "hidden_size", 1, IV_HIDDEN_MAX, &c->hidden_size, err));
    IV_TRY(required_int(o, "intermediate_size", 1, IV_INTERMEDIATE_MAX, &c->intermediate_size, err));
    IV_TRY(required_int(o, "num_hidden_layers", 1, IV_LAYERS_MAX, &c->layers, err));
    IV_TRY(required_int(o, "num_attention_heads", 1, IV_HEADS_MAX, &c->heads, err));
    IV_TRY(required_int(o, "max_position_embeddings", 1, IV_POSITIONS_MAX, &c->max_positions, err));
    c->rms_norm_eps = RMS_NORM_EPS_DEFAULT;
    IV_TRY(iv_json_object_real(o, "rms_norm_eps", 1e-30, 1, &c->rms_norm_eps, &found, err));
    return parse_heads(o, f, c, err);
}

static iv_status parse_switches(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    const char *act = NULL;
    bool found, bias;
    IV_TRY(iv_json_object_string(o, "hidden_act", &act, &found, err));
    if (found && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: hidden_act: wanted silu, found '%.60s'", o->file, act);
    IV_TRY(bool_or(o, "tie_word_embeddings", false, &c->tie_embeddings, err));
    IV_TRY(bool_or(o, "attention_bias", false, &bias, err));
    /* Qwen2 always has q, k and v biases and Mistral none, regardless of the field. */
    c->attention_bias = f->family == IV_QWEN2 || (f->family != IV_MISTRAL && bias);
    c->attention_out_bias = f->family != IV_QWEN2 && f->family != IV_MISTRAL && bias;
    if (f->mlp_bias_field) IV_TRY(bool_or(o, "mlp_bias", false, &c->mlp_bias, err));
    c->qk_norm = f->qk_norm;
    return IV_OK;
}

/* ---- rotary embedding ---- */

typedef struct rope_settings {
    iv_rope_kind kind;
    double theta, factor, low, high;
    int64_t original;
    double beta_fast, beta_slow, attention, mscale, mscale_all, attn;
    bool truncate;
} rope_settings;

static bool rope_equal(const rope_settings *a, const rope_settings *b) {
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor && a->low == b->low &&
           a->high == b->high && a->original == b->original && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->attention == b->attention && a->mscale == b->mscale &&
           a->mscale_all == b->mscale_all && a->attn == b->attn && a->truncate == b->truncate;
}

static iv_status check_whole_rotary(const iv_json_object *o, iv_error *err) {
    double part = 1;
    bool found;
    IV_TRY(iv_json_object_real(o, "partial_rotary_factor", 0, 1, &part, &found, err));
    if (part == 1) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: %spartial_rotary_factor: wanted 1, found %g", o->file, o->path, part);
}

static iv_status parse_rope_kind(const iv_json_object *o, iv_rope_kind *out, iv_error *err) {
    static const char *const names[] = {[IV_ROPE_DEFAULT] = "default",
                                        [IV_ROPE_LINEAR] = "linear",
                                        [IV_ROPE_LLAMA3] = "llama3",
                                        [IV_ROPE_YARN] = "yarn"};
    const char *type = "default", *old = NULL;
    bool has_type, has_old;
    IV_TRY(iv_json_object_string(o, "rope_type", &type, &has_type, err));
    IV_TRY(iv_json_object_string(o, "type", &old, &has_old, err));
    if (has_type && has_old && strcmp(type, old) != 0)
        return iv_fail(err, IV_FORMAT, "%s: %srope_type is '%.60s', type is '%.60s'", o->file, o->path, type, old);
    if (has_old) type = old;
    if (!has_type && !has_old && iv_json_object_has(o, "factor")) return missing(o, "rope_type", "a string", err);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(type, names[i]) == 0) {
            *out = (iv_rope_kind)i;
            return IV_OK;
        }
    return iv_fail(err, IV_UNSUPPORTED,
                   "%s: %srope_type '%.60s' is not supported (supported: default, linear, llama3, yarn)", o->file,
                   o->path, type);
}

/* attn_factor and extrapolation_factor are vLLM's; transformers does not read them. */
static iv_status parse_yarn(const iv_json_object *o, rope_settings *out, iv_error *err) {
    double extrapolation = 1;
    bool found, has_attention;
    out->beta_fast = 32, out->beta_slow = 1, out->attn = 1;
    IV_TRY(iv_json_object_real(o, "beta_fast", 1e-6, 1e6, &out->beta_fast, &found, err));
    IV_TRY(iv_json_object_real(o, "beta_slow", 1e-6, 1e6, &out->beta_slow, &found, err));
    IV_TRY(iv_json_object_real(o, "attention_factor", 1e-6, 1e6, &out->attention, &has_attention, err));
    IV_TRY(iv_json_object_real(o, "mscale", 0, 1e6, &out->mscale, &found, err));
    IV_TRY(iv_json_object_real(o, "mscale_all_dim", 0, 1e6, &out->mscale_all, &found, err));
    IV_TRY(bool_or(o, "truncate", true, &out->truncate, err));
    IV_TRY(iv_json_object_real(o, "attn_factor", 1e-6, 1e6, &out->attn, &found, err));
    IV_TRY(iv_json_object_real(o, "extrapolation_factor", 0, 1e6, &extrapolation, &found, err));
    if (extrapolation != 1)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sextrapolation_factor: wanted 1, found %g", o->file, o->path,
                       extrapolation);
    if (out->attn != 1 && has_attention)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sattn_factor: wanted 1 next to attention_factor, found %g", o->file,
                       o->path, out->attn);
    if (out->theta <= 1)
        return iv_fail(err, IV_FORMAT, "%s: rope_theta: wanted more than 1 with yarn, found %g", o->file, out->theta);
    if (out->beta_fast > out->beta_slow) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %sbeta_fast: wanted more than beta_slow %g, found %g", o->file, o->path,
                   out->beta_slow, out->beta_fast);
}

/* original: the value of the whole configuration, which overrides that of the object; 0: none. */
static iv_status parse_original(const iv_json_object *o, int64_t original, rope_settings *out, iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_int(o, "original_max_position_embeddings", 1, IV_POSITIONS_MAX, &out->original, &found, err));
    if (original) out->original = original;
    if (out->kind == IV_ROPE_YARN || out->original) return IV_OK;
    return missing(o, "original_max_position_embeddings", "an integer", err);
}

static iv_status parse_rope_object(const iv_json_object *o, double theta, int64_t original, rope_settings *out,
                                   iv_error *err) {
    bool found;
    *out = (rope_settings){.theta = theta, .factor = 1};
    IV_TRY(parse_rope_kind(o, &out->kind, err));
    IV_TRY(iv_json_object_real(o, "rope_theta", 1, 1e15, &out->theta, &found, err));
    IV_TRY(check_whole_rotary(o, err));
    if (out->kind == IV_ROPE_DEFAULT) return IV_OK;
    IV_TRY(required_real(o, "factor", 1, 1e6, &out->factor, err));
    if (out->kind == IV_ROPE_LINEAR) return IV_OK;
    if (out->kind == IV_ROPE_YARN) {
        IV_TRY(parse_original(o, original, out, err));
        return parse_yarn(o, out, err);
    }
    IV_TRY(required_real(o, "low_freq_factor", 1e-6, 1e6, &out->low, err));
    IV_TRY(required_real(o, "high_freq_factor", 1e-6, 1e6, &out->high, err));
    IV_TRY(parse_original(o, original, out, err));

    if (out->low >= out->high)
        return iv_fail(err, IV_FORMAT, "%s: %shigh_freq_factor: wanted more than low_freq_factor %g, found %g", o->file,
                       o->path, out->low, out->high);
    return IV_OK;
}

/* rope_parameters may hold one object per layer type; only equal ones are one model-wide setting. */
static iv_status parse_rope_nested(const iv_json_object *o, double theta, rope_settings *out, iv_error *err) {
    const char *key, *first = NULL;
    json_t *value;
    json_object_foreach(o->json, key, value) {
        char path[120];
        snprintf(path, sizeof path, "%s%.80s.", o->path, key);
        iv_json_object inner;
        rope_settings settings;
        IV_TRY(iv_json_object_of(o->file, path, value, &inner, err));
        IV_TRY(parse_rope_object(&inner, theta, 0, &settings, err));
        if (first && !rope_equal(&settings, out))
            return iv_fail(err, IV_UNSUPPORTED, "%s: rope_parameters differ between '%.60s' and '%.60s' layers",
                           o->file, first, key);
        *out = settings;
        if (!first) first = key;
    }
    return IV_OK;
}

static bool holds_objects(json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (json_is_object(value)) return true;
    }
    return false;
}

/* *found is false for an absent, null or empty object. */
static iv_status parse_rope_member(const iv_json_object *o, const char *key, const char *path, double theta,
                                   bool *found, rope_settings *out, iv_error *err) {
    iv_json_object inner;
    *found = iv_json_object_has(o, key);
    if (!*found) return IV_OK;
    IV_TRY(iv_json_object_of(o->file, path, json_object_get(o->json, key), &inner, err));
    *found = json_object_size(inner.json) > 0;
    if (!*found) return IV_OK;
    if (holds_objects(inner.json)) return parse_rope_nested(&inner, theta, out, err);
    int64_t original = 0;
    bool has_original;
    IV_TRY(
        iv_json_object_int(o, "original_max_position_embeddings", 1, IV_POSITIONS_MAX, &original, &has_original, err));
    return parse_rope_object(&inner, theta, original, out, err);
}

/* The extended context length may be given by the factor alone. */
static void use_yarn(const rope_settings *s, iv_model_config *c) {
    int64_t original = s->original ? s->original : c->max_positions;
    double stretched = (double)original * s->factor;
    c->rope_original_positions = original;
    c->rope_beta_fast = s->beta_fast, c->rope_beta_slow = s->beta_slow, c->rope_truncate = s->truncate;
    c->rope_attention = s->attention, c->rope_mscale = s->mscale, c->rope_mscale_all_dim = s->mscale_all;
    c->rope_attn_factor = s->attn;
    if (s->original && stretched > (double)c->max_positions)
        c->max_positions = stretched < IV_POSITIONS_MAX ? (int64_t)stretched : IV_POSITIONS_MAX;
}

/* Checkpoints with linear scaling (Vicuna's) give their context length along with that of the original model. */
static iv_status use_linear(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t stretched = 0;
    bool found;
    IV_TRY(iv_json_object_int(o, "max_sequence_length", 1, IV_POSITIONS_MAX, &stretched, &found, err));
    if (stretched > c->max_positions && (double)stretched <= (double)c->max_positions * c->rope_factor)
        c->max_positions = stretched;
    return IV_OK;
}

static iv_status parse_rope(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    double theta = ROPE_THETA_DEFAULT;
    bool has_theta, has_old, has_new;
    IV_TRY(check_whole_rotary(o, err));
    IV_TRY(iv_json_object_real(o, "rope_theta", 1, 1e15, &theta, &has_theta, err));
    rope_settings old = {.theta = theta, .factor = 1}, now = old;
    IV_TRY(parse_rope_member(o, "rope_scaling", "rope_scaling.", theta, &has_old, &old, err));
    IV_TRY(parse_rope_member(o, "rope_parameters", "rope_parameters.", theta, &has_new, &now, err));
    if (has_old && has_new && !rope_equal(&old, &now))
        return iv_fail(err, IV_FORMAT, "%s: rope_scaling and rope_parameters disagree", o->file);
    if (has_old && !has_new) now = old;
    if (has_theta && now.theta != theta)
        return iv_fail(err, IV_FORMAT, "%s: rope_theta is %.17g, but %.17g among the rope settings", o->file, theta,
                       now.theta);
    c->rope = now.kind;
    c->rope_theta = now.theta;
    c->rope_factor = now.factor;
    c->rope_low_freq_factor = now.low;
    c->rope_high_freq_factor = now.high;
    c->rope_original_positions = now.original;
    if (now.kind == IV_ROPE_YARN) use_yarn(&now, c);
    return now.kind == IV_ROPE_LINEAR ? use_linear(o, c, err) : IV_OK;
}

/* ---- which layers slide ---- */

static iv_status parse_window(const iv_json_object *o, const family_facts *f, int64_t *window, iv_error *err) {
    bool on = true, found;
    *window = 0;
    if (f->slides == SLIDE_NEVER) return IV_OK;
    if (f->window_switch) IV_TRY(bool_or(o, "use_sliding_window", false, &on, err));
    int64_t value = is_absent(o, "sliding_window") ? SLIDING_WINDOW_DEFAULT : 0;
    IV_TRY(iv_json_object_int(o, "sliding_window", 1, IV_POSITIONS_MAX, &value, &found, err));
    if (on) *window = value;
    return IV_OK;
}

static iv_status parse_layer_types(const iv_json_object *o, const iv_model_config *c, bool *slides, bool *found,
                                   iv_error *err) {
    *found = iv_json_object_has(o, "layer_types");
    if (!*found) return IV_OK;
    const json_t *list = json_object_get(o->json, "layer_types");
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: layer_types: wanted an array of %" PRId64 " entries, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *type = json_string_value(item);
        if (!type)
            return iv_fail(err, IV_FORMAT, "%s: layer_types[%zu]: wanted a string, found %s", o->file, i,
                           iv_json_type_name(item));
        slides[i] = strcmp(type, "sliding_attention") == 0;
        if (!slides[i] && strcmp(type, "full_attention") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types[%zu]: '%.60s' layers are not supported", o->file, i,
                           type);
    }
    return IV_OK;
}

static iv_status parse_sliding(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool listed[IV_LAYERS_MAX] = {false}, has_list, found;
    int64_t window, from = f->slides == SLIDE_FROM_LAYER ? MAX_WINDOW_LAYERS_DEFAULT : 0;
    IV_TRY(parse_window(o, f, &window, err));
    if (f->slides == SLIDE_FROM_LAYER)
        IV_TRY(iv_json_object_int(o, "max_window_layers", 0, INT32_MAX, &from, &found, err));
    IV_TRY(parse_layer_types(o, c, listed, &has_list, err));
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = window > 0 && i >= from;
        if (has_list && listed[i] && window == 0)
            return iv_fail(err, IV_FORMAT, "%s: layer_types[%" PRId64 "] slides, but there is no sliding_window",
                           o->file, i);
        /* The reference code of the other families does not read the list: only a neutral list is safe. */
        if (has_list && f->slides != SLIDE_FROM_LAYER && listed[i] != slides)
            return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types[%" PRId64 "]: every layer of this %s model is %s",
                           o->file, i, f->model_type, slides ? "sliding_attention" : "full_attention");
        c->sliding_layers[i] = has_list ? listed[i] : slides;
        if (c->sliding_layers[i]) c->sliding_window = window;
    }
    return IV_OK;
}

/* ---- experts ---- */

static iv_status parse_expert_count(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t local = 0;
    bool has, has_local;
    IV_TRY(iv_json_object_int(o, "num_experts", 1, IV_EXPERTS_MAX, &c->experts, &has, err));
    IV_TRY(iv_json_object_int(o, "num_local_experts", 1, IV_EXPERTS_MAX, &local, &has_local, err));
    if (!has && !has_local) return missing(o, "num_experts", "an integer", err);
    if (has && has_local && local != c->experts)
        return iv_fail(err, IV_FORMAT, "%s: num_experts is %" PRId64 ", num_local_experts is %" PRId64, o->file,
                       c->experts, local);
    if (!has) c->experts = local;
    return IV_OK;
}

static iv_status parse_experts(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t step = 1, dense[IV_LAYERS_MAX];
    size_t dense_count = 0;
    bool found;
    IV_TRY(parse_expert_count(o, c, err));
    IV_TRY(required_int(o, "num_experts_per_tok", 1, c->experts, &c->experts_per_token, err));
    IV_TRY(required_int(o, "moe_intermediate_size", 1, IV_INTERMEDIATE_MAX, &c->moe_intermediate_size, err));
    IV_TRY(bool_or(o, "norm_topk_prob", false, &c->norm_topk_prob, err));
    IV_TRY(iv_json_object_int(o, "decoder_sparse_step", 1, INT32_MAX, &step, &found, err));
    IV_TRY(
        iv_json_object_ints(o, "mlp_only_layers", 0, c->layers - 1, dense, IV_LAYERS_MAX, &dense_count, &found, err));
    for (int64_t i = 0; i < c->layers; i++) c->moe_layers[i] = (i + 1) % step == 0;
    for (size_t i = 0; i < dense_count; i++) c->moe_layers[dense[i]] = false;
    return IV_OK;
}

/* ---- token ids ---- */

/* Ids from the vocabulary's end on, as in a published file whose vocabulary was cut, are those of no token. */
static iv_status parse_ids(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    int64_t ids[IV_EOS_IDS_MAX];
    size_t count = 0;
    c->bos_id = is_absent(o, "bos_token_id") ? f->bos_id : -1;
    IV_TRY(iv_json_object_int(o, "bos_token_id", -1, IV_VOCAB_MAX - 1, &c->bos_id, &found, err));
    if (c->bos_id >= c->vocab_size) c->bos_id = -1;
    c->pad_id = -1;
    IV_TRY(iv_json_object_int(o, "pad_token_id", -1, IV_VOCAB_MAX - 1, &c->pad_id, &found, err));
    IV_TRY(iv_json_object_ints(o, "eos_token_id", -1, IV_VOCAB_MAX - 1, ids, IV_EOS_IDS_MAX, &count, &found, err));
    if (is_absent(o, "eos_token_id")) ids[count++] = f->eos_id;
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < c->vocab_size) c->eos_ids[c->eos_count++] = ids[i];
    return IV_OK;
}

static iv_status parse_fields(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    const family_facts *f = NULL;
    IV_TRY(parse_family(o, &f, err));
    c->family = f->family;
    c->model_type = f->model_type;
    IV_TRY(check_architecture(o, err));
    IV_TRY(check_not_quantized(o, err));
    IV_TRY(parse_sizes(o, f, c, err));
    IV_TRY(parse_switches(o, f, c, err));
    IV_TRY(parse_rope(o, c, err));
    IV_TRY(parse_sliding(o, f, c, err));
    if (f->moe) IV_TRY(parse_experts(o, c, err));
    IV_TRY(parse_dtype(o, c, err));
    return parse_ids(o, f, c, err);
}

iv_status iv_model_config_parse(const char *name, const char *json, size_t n, iv_model_config *out, iv_error *err) {
    json_t *root;
    iv_json_object top;
    memset(out, 0, sizeof *out);
    IV_TRY(iv_json_parse_python(name, json, n, &root, err));
    iv_status status = iv_json_object_of(name, "", root, &top, err);
    if (status == IV_OK) status = parse_fields(&top, out, err);
    json_decref(root);
    return status;
}

iv_status iv_model_config_read(const char *dir, iv_model_config *out, iv_error *err) {
    iv_buf path = {0}, bytes = {0};
    iv_status status = iv_path_join(dir, "config.json", &path, err);
    if (status == IV_OK) status = iv_file_read(path.data, IV_CONFIG_BYTES_MAX, &bytes, err);
    struct stat st;
    if (status == IV_NOT_FOUND && stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        status = iv_fail(err, IV_NOT_FOUND, "%s: wanted a model directory, found %s", dir, iv_foreign_path(dir));
    else if (status == IV_NOT_FOUND && *iv_foreign_config(dir))
        status = iv_fail(err, IV_NOT_FOUND, "%s: no such file%s", path.data, iv_foreign_config(dir));
    if (status == IV_OK) status = iv_model_config_parse(path.data, bytes.data, bytes.len, out, err);
    iv_buf_free(&bytes);
    iv_buf_free(&path);
    return status;
}
