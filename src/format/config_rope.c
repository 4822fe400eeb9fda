/* config_rope.c: rotary settings in both spellings, rope_theta with rope_scaling and rope_parameters. */
#include "format/config_rope.h"
#include "format/config_fields.h"
#include "format/config_members.h"

#include <stdio.h>
#include <string.h>

#define ROPE_THETA_DEFAULT 10000.0

static iv_status required_real(const iv_json_object *o, const char *key, double min, double max, double *out,
                               iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_real(o, key, min, max, out, &found, err));
    return found ? IV_OK : iv_json_object_missing(o, key, "a number", err);
}

static bool rope_equal(const iv_rope_config *a, const iv_rope_config *b) {
    for (size_t i = 0; i < iv_rope_fields.count; i++)
        if (iv_config_value(a, &iv_rope_fields.fields[i]) != iv_config_value(b, &iv_rope_fields.fields[i]))
            return false;
    return true;
}

/* What holds for all settings of a file. */
typedef struct context {
    const iv_rope_defaults *family;
    double theta, partial; /* of the whole configuration */
    int64_t head_dim;      /* of the layers at hand */
    bool wide;             /* they are wide */
    iv_model_config *c;
} context;

/* partial: the value of the whole configuration, or the default. */
static iv_status parse_partial(const iv_json_object *o, const context *k, double *partial, iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_real(o, "partial_rotary_factor", 0, 1, partial, &found, err));
    if (k->family->part_of_head && (int64_t)((double)k->c->head_dim * *partial) == k->head_dim) *partial = 1;
    if (*partial == 1) return IV_OK;
    int64_t rotated = (int64_t)((double)k->head_dim * *partial);
    if (k->family->partial == 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %spartial_rotary_factor: wanted 1, found %g", o->file, o->path,
                       *partial);
    if (rotated >= 2 && rotated % 2 == 0) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED,
                   "%s: %spartial_rotary_factor: wanted an even part of head_dim %lld, found %g of it", o->file,
                   o->path, (long long)k->head_dim, *partial);
}

static iv_status parse_rope_kind(const iv_json_object *o, const context *k, iv_rope_kind *out, iv_error *err) {
    const char *type = "default", *old = NULL;
    bool has_type, has_old;
    IV_TRY(iv_json_object_string(o, "rope_type", &type, &has_type, err));
    IV_TRY(iv_json_object_string(o, "type", &old, &has_old, err));
    if (has_type && has_old && strcmp(type, old) != 0)
        return iv_fail(err, IV_FORMAT, "%s: %srope_type is '%.60s', type is '%.60s'", o->file, o->path, type, old);
    if (has_old) type = old;
    if (!has_type && !has_old && iv_json_object_has(o, "factor"))
        return iv_json_object_missing(o, "rope_type", "a string", err);
    if (strcmp(type, "mrope") == 0) type = "default"; /* of text: its positions are equal in all sections */
    if (strcmp(type, "su") == 0 || (strcmp(type, "yarn") == 0 && iv_json_object_has(o, "short_factor")))
        type = "longrope";                    /* names of older files */
    for (int i = 0; i < IV_ROPE_KINDS; i++) { /* no file names NONE; without alpha, frequencies depend on the length */
        bool named = i != IV_ROPE_NONE && (i != IV_ROPE_PROPORTIONAL || k->family->proportional) &&
                     (i != IV_ROPE_NTK || iv_json_object_has(o, "alpha"));
        if (named && strcmp(type, iv_rope_kind_names[i]) == 0) {
            *out = (iv_rope_kind)i;
            return IV_OK;
        }
    }
    return iv_fail(
        err, IV_UNSUPPORTED,
        "%s: %srope_type '%.60s' is not supported (supported: default, linear, llama3, yarn, longrope, dynamic with "
        "alpha)",
        o->file, o->path, type);
}

/* attn_factor and extrapolation_factor are vLLM's; transformers does not read them. */
static iv_status parse_yarn(const iv_json_object *o, iv_rope_config *out, iv_error *err) {
    double extrapolation = 1;
    bool found, has_attention;
    out->beta_fast = 32, out->beta_slow = 1, out->truncate = true;
    IV_TRY(iv_json_object_real(o, "llama_4_scaling_beta", 0, 1e6, &out->query_beta, &found, err));
    IV_TRY(iv_json_object_real(o, "beta_fast", 1e-6, 1e6, &out->beta_fast, &found, err));
    IV_TRY(iv_json_object_real(o, "beta_slow", 1e-6, 1e6, &out->beta_slow, &found, err));
    IV_TRY(iv_json_object_real(o, "attention_factor", 1e-6, 1e6, &out->attention, &has_attention, err));
    IV_TRY(iv_json_object_real(o, "mscale", 0, 1e6, &out->mscale, &found, err));
    IV_TRY(iv_json_object_real(o, "mscale_all_dim", 0, 1e6, &out->mscale_all_dim, &found, err));
    IV_TRY(iv_json_object_bool(o, "truncate", &out->truncate, &found, err));
    IV_TRY(iv_json_object_real(o, "attn_factor", 1e-6, 1e6, &out->attn_factor, &found, err));
    IV_TRY(iv_json_object_real(o, "extrapolation_factor", 0, 1e6, &extrapolation, &found, err));
    if (extrapolation != 1)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sextrapolation_factor: wanted 1, found %g", o->file, o->path,
                       extrapolation);
    if (out->attn_factor != 1 && has_attention)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sattn_factor: wanted 1 next to attention_factor, found %g", o->file,
                       o->path, out->attn_factor);
    if (out->theta <= 1)
        return iv_fail(err, IV_FORMAT, "%s: rope_theta: wanted more than 1 with yarn, found %g", o->file, out->theta);
    if (out->beta_fast > out->beta_slow) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: %sbeta_fast: wanted more than beta_slow %g, found %g", o->file, o->path,
                   out->beta_slow, out->beta_fast);
}

static iv_status parse_factors(const iv_json_object *o, const char *key, size_t count, double *out, iv_error *err) {
    const json_t *list = json_object_get(o->json, key);
    if (!json_is_array(list) || json_array_size(list) != count)
        return iv_fail(err, IV_FORMAT, "%s: %s%s: wanted an array of %zu numbers, found %s of %zu", o->file, o->path,
                       key, count, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        out[i] = json_number_value(item);
        if (!json_is_number(item) || !(out[i] >= 1e-6 && out[i] <= 1e6))
            return iv_fail(err, IV_FORMAT, "%s: %s%s[%zu]: wanted a number from 1e-6 to 1e6, found %s", o->file,
                           o->path, key, i, json_is_number(item) ? "another" : iv_json_type_name(item));
    }
    return IV_OK;
}

/* factor: only for the scale of sines and cosines; if absent, how far positions are stretched. */
static iv_status parse_long(const iv_json_object *o, const context *k, iv_rope_config *out, iv_error *err) {
    static const char *const keys[] = {"short_factor", "long_factor"}, *const scales[] = {"short_mscale",
                                                                                          "long_mscale"};
    size_t pairs = (size_t)(out->rotated ? out->rotated : k->head_dim) / 2;
    bool found;
    for (int i = 0; i < 2; i++) {
        if (iv_json_object_has(o, scales[i]))
            return iv_fail(err, IV_UNSUPPORTED, "%s: %s%s is not supported", o->file, o->path, scales[i]);
        IV_TRY(parse_factors(o, keys[i], pairs, k->c->long_factors[i], err));
    }
    out->factor = (double)k->c->max_positions / (double)out->original_positions;
    IV_TRY(iv_json_object_real(o, "factor", 1e-6, 1e6, &out->factor, &found, err));
    if (out->factor < 1) out->factor = 1;
    if (out->factor > 1 && out->original_positions < 2)
        return iv_fail(err, IV_FORMAT, "%s: %soriginal_max_position_embeddings: wanted 2 at least, found 1", o->file,
                       o->path);
    return iv_json_object_real(o, "attention_factor", 1e-6, 1e6, &out->attention, &found, err);
}

/* original: the value of the whole configuration, which overrides that of the object; 0: none. */
static iv_status parse_original(const iv_json_object *o, int64_t original, iv_rope_config *out, iv_error *err) {
    bool found;
    IV_TRY(iv_json_object_int(o, "original_max_position_embeddings", 1, IV_POSITIONS_MAX, &out->original_positions,
                              &found, err));
    if (original) out->original_positions = original;
    if (out->kind == IV_ROPE_YARN || out->original_positions) return IV_OK;
    return iv_json_object_missing(o, "original_max_position_embeddings", "an integer", err);
}

static void set_partial(const context *k, double partial, iv_rope_config *out) {
    out->rotated = partial == 1 ? 0 : (int64_t)((double)k->head_dim * partial);
}

static iv_rope_config unscaled(const context *k, double theta) {
    iv_rope_config out = {.theta = theta,
                          .factor = 1,
                          .attn_factor = 1,
                          .neighbours = k->family->neighbours,
                          .head_dim = k->wide ? k->head_dim : k->family->head_dim};
    set_partial(k, k->partial, &out);
    return out;
}

static iv_status parse_rope_object(const iv_json_object *o, const context *k, int64_t original, iv_rope_config *out,
                                   iv_error *err) {
    bool found;
    double partial = k->partial;
    *out = unscaled(k, k->theta);
    IV_TRY(parse_rope_kind(o, k, &out->kind, err));
    IV_TRY(iv_json_object_real(o, "rope_theta", 1, 1e15, &out->theta, &found, err));
    IV_TRY(parse_partial(o, k, &partial, err));
    set_partial(k, partial, out);
    IV_TRY(iv_config_rope_check(o, k->family->scales_queries ? "llama_4_scaling_beta" : NULL, err));
    if (out->kind == IV_ROPE_DEFAULT) return IV_OK;
    if (out->kind == IV_ROPE_PROPORTIONAL) return iv_json_object_real(o, "factor", 1, 1e6, &out->factor, &found, err);
    if (out->kind == IV_ROPE_LONG) {
        IV_TRY(parse_original(o, original, out, err));
        return parse_long(o, k, out, err);
    }
    if (out->kind == IV_ROPE_NTK)
        return k->head_dim == 2 || out->rotated == 2
                   ? iv_fail(err, IV_UNSUPPORTED,
                             "%s: %srope_type: wanted more than 2 dimensions with dynamic, found 2", o->file, o->path)
                   : required_real(o, "alpha", 1, 1e6, &out->factor, err);
    IV_TRY(required_real(o, "factor", 1, 1e6, &out->factor, err));
    if (out->kind == IV_ROPE_LINEAR) return IV_OK;
    if (out->kind == IV_ROPE_YARN) {
        IV_TRY(parse_original(o, original, out, err));
        return parse_yarn(o, out, err);
    }
    IV_TRY(required_real(o, "low_freq_factor", 1e-6, 1e6, &out->low_freq_factor, err));
    IV_TRY(required_real(o, "high_freq_factor", 1e-6, 1e6, &out->high_freq_factor, err));
    IV_TRY(parse_original(o, original, out, err));

    if (out->low_freq_factor >= out->high_freq_factor)
        return iv_fail(err, IV_FORMAT, "%s: %shigh_freq_factor: wanted more than low_freq_factor %g, found %g", o->file,
                       o->path, out->low_freq_factor, out->high_freq_factor);
    return IV_OK;
}

/* Settings of one member: of all layers, or of those that see all positions, and of those that slide. */
typedef struct rope_pair {
    iv_rope_config all, sliding;
    bool split; /* `sliding` is given */
} rope_pair;

/* rope_parameters may hold one object per layer type; where the family has one setting, all must be equal. */
static iv_status parse_rope_nested(const iv_json_object *o, const context *k, rope_pair *out, iv_error *err) {
    const char *key, *first = NULL;
    json_t *value;
    json_object_foreach(o->json, key, value) {
        char path[120];
        snprintf(path, sizeof path, "%s%.80s.", o->path, key);
        iv_json_object inner;
        iv_rope_config settings;
        IV_TRY(iv_json_object_of(o->file, path, value, &inner, err));
        context of_type = *k;
        of_type.wide = k->c->wide_head_dim && strcmp(key, "full_attention") == 0;
        if (of_type.wide) of_type.head_dim = k->c->wide_head_dim;
        IV_TRY(parse_rope_object(&inner, &of_type, 0, &settings, err));
        if (settings.kind == IV_ROPE_LONG && k->family->local != IV_LOCAL_SAME)
            return iv_fail(err, IV_UNSUPPORTED, "%s: %srope_type: longrope is not supported by layer type", o->file,
                           path);
        if (k->family->local != IV_LOCAL_SAME && strcmp(key, "sliding_attention") == 0) {
            out->sliding = settings, out->split = true;
            continue;
        }
        if (first && !rope_equal(&settings, &out->all))
            return iv_fail(err, IV_UNSUPPORTED, "%s: rope_parameters differ between '%.60s' and '%.60s' layers",
                           o->file, first, key);
        out->all = settings;
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
static iv_status parse_rope_member(const iv_json_object *o, const char *key, const char *path, const context *k,
                                   bool *found, rope_pair *out, iv_error *err) {
    iv_json_object inner;
    *found = iv_json_object_has(o, key);
    if (!*found) return IV_OK;
    IV_TRY(iv_json_object_of(o->file, path, json_object_get(o->json, key), &inner, err));
    *found = json_object_size(inner.json) > 0;
    if (!*found) return IV_OK;
    if (holds_objects(inner.json)) return parse_rope_nested(&inner, k, out, err);
    int64_t original = 0;
    bool has_original;
    IV_TRY(
        iv_json_object_int(o, "original_max_position_embeddings", 1, IV_POSITIONS_MAX, &original, &has_original, err));
    return parse_rope_object(&inner, k, original, &out->all, err);
}

/* The settings of layers that slide, where their own are not given. */
static iv_status parse_local(const iv_json_object *o, const context *k, rope_pair *p, iv_error *err) {
    iv_local_rope local = k->family->local;
    double theta = local == IV_LOCAL_THETA ? ROPE_THETA_DEFAULT : p->all.theta;
    bool found = false;
    if (local == IV_LOCAL_THETA) IV_TRY(iv_json_object_real(o, "rope_local_base_freq", 1, 1e15, &theta, &found, err));
    if (p->split && found && p->sliding.theta != theta)
        return iv_fail(err, IV_FORMAT, "%s: rope_local_base_freq is %.17g, but %.17g among the rope settings", o->file,
                       theta, p->sliding.theta);
    if (!p->split) p->sliding = unscaled(k, theta);
    return IV_OK;
}

/* The extended context length may be given by the factor alone. */
static void use_yarn(iv_rope_config *r, iv_model_config *c) {
    bool given = r->original_positions != 0;
    if (!given) r->original_positions = c->max_positions;
    double stretched = (double)r->original_positions * r->factor;
    if (given && stretched > (double)c->max_positions)
        c->max_positions = stretched < IV_POSITIONS_MAX ? (int64_t)stretched : IV_POSITIONS_MAX;
}

/* Checkpoints with linear scaling (Vicuna's) give their context length along with that of the original model. */
static iv_status use_linear(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t stretched = 0;
    bool found;
    IV_TRY(iv_json_object_int(o, "max_sequence_length", 1, IV_POSITIONS_MAX, &stretched, &found, err));
    if (stretched > c->max_positions && (double)stretched <= (double)c->max_positions * c->ropes[0].factor)
        c->max_positions = stretched;
    return IV_OK;
}

iv_status iv_config_parse_rope(const iv_json_object *o, const iv_rope_defaults *family, iv_model_config *c,
                               iv_error *err) {
    context k = {family,
                 family->theta != 0 ? family->theta : ROPE_THETA_DEFAULT,
                 family->partial != 0 ? family->partial : 1,
                 family->head_dim ? family->head_dim : c->head_dim,
                 false,
                 c};
    bool has_theta, has_old, has_new;
    IV_TRY(parse_partial(o, &k, &k.partial, err));
    IV_TRY(iv_json_object_real(o, "rope_theta", 1, 1e15, &k.theta, &has_theta, err));
    rope_pair old = {.all = unscaled(&k, k.theta)}, now = old;
    IV_TRY(parse_rope_member(o, "rope_scaling", "rope_scaling.", &k, &has_old, &old, err));
    IV_TRY(parse_rope_member(o, "rope_parameters", "rope_parameters.", &k, &has_new, &now, err));
    if (has_old && has_new && !rope_equal(&old.all, &now.all))
        return iv_fail(err, IV_FORMAT, "%s: rope_scaling and rope_parameters disagree", o->file);
    if (has_old && !has_new) now = old;
    if (has_theta && now.all.theta != k.theta)
        return iv_fail(err, IV_FORMAT, "%s: rope_theta is %.17g, but %.17g among the rope settings", o->file, k.theta,
                       now.all.theta);
    if (now.all.kind == IV_ROPE_YARN) use_yarn(&now.all, c);
    c->ropes[0] = now.all, c->rope_count = 1;
    if (family->local == IV_LOCAL_SAME) return now.all.kind == IV_ROPE_LINEAR ? use_linear(o, c, err) : IV_OK;
    IV_TRY(parse_local(o, &k, &now, err));
    if (!rope_equal(&now.all, &now.sliding)) c->ropes[1] = now.sliding, c->rope_count = 2;
    return IV_OK;
}
