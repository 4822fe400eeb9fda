/* quantization_names.c: which tensors belong together, by their names and shapes. */
#include "format/quantization.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

enum { MATCH_STEPS_MAX = 1000000 };

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* Python's re.match: from the start of the name, not to its end. */
static iv_status matches_expression(const char *pattern, const char *name, bool *out, iv_error *err) {
    int code;
    size_t at;
    *out = false;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_UTF, &code, &at, NULL);
    if (!re) return iv_fail(err, IV_UNSUPPORTED, "quantization_config: re:%.100s: no expression that is read", pattern);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(re, NULL);
    iv_status status = limits && data ? IV_OK : iv_fail(err, IV_NO_MEMORY, "quantization_config: no memory");
    if (status == IV_OK) {
        pcre2_set_match_limit(limits, MATCH_STEPS_MAX);
        int found = pcre2_match(re, (PCRE2_SPTR)name, strlen(name), 0, 0, data, limits);
        *out = found >= 0;
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            status = iv_fail(err, IV_LIMIT, "quantization_config: re:%.100s: takes too long", pattern);
    }
    pcre2_match_data_free(data), pcre2_match_context_free(limits), pcre2_code_free(re);
    return status;
}

/* Whether a list names a module: by its name or an expression. */
static iv_status names_module(const json_t *list, const char *module, bool *out, iv_error *err) {
    *out = false;
    for (size_t i = 0; !*out && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (strncmp(s, "re:", 3) == 0)
            IV_TRY(matches_expression(s + 3, module, out, err));
        else
            *out = strcmp(s, module) == 0;
    }
    return IV_OK;
}

static bool has_class(const json_t *list) {
    if (!list || json_array_size(list) == 0) return true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (strcmp(s, "Linear") == 0 || strcmp(s, "Embedding") == 0) return true;
    }
    return false;
}

/* The group that names the module, else the first one for its class; NULL: there is none, or it is to be left out. */
static iv_status look_up_group(const iv_quantization *q, const char *module, bool *ignored, const iv_quant_group **out,
                               iv_error *err) {
    bool named = false;
    *out = NULL;
    IV_TRY(names_module(q->ignore, module, ignored, err));
    for (size_t i = 0; !*ignored && !named && i < q->group_count; i++) {
        IV_TRY(names_module(q->groups[i].targets, module, &named, err));
        if (named || (!*out && has_class(q->groups[i].targets))) *out = &q->groups[i];
    }
    return IV_OK;
}

iv_status iv_quantization_group_of(const iv_quantization *q, const char *module, size_t n, const iv_quant_group **out,
                                   iv_error *err) {
    char name[IV_TENSOR_NAME_BYTES_MAX + 1];
    bool ignored;
    snprintf(name, sizeof name, "%.*s", (int)n, module);
    return look_up_group(q, name, &ignored, out, err);
}

static iv_status find_group(const iv_quantization *q, const char *module, const iv_quant_group **out, iv_error *err) {
    bool ignored;
    IV_TRY(look_up_group(q, module, &ignored, out, err));
    if (ignored)
        return iv_fail(err, IV_FORMAT, "%s: is not to be quantized by quantization_config, but its weight is", module);
    if (*out) return IV_OK;
    return iv_fail(err, IV_FORMAT, "%s: its weight is quantized, but no group of quantization_config has it", module);
}

typedef struct lookup {
    iv_quant_find *find;
    const void *user;
    const char *module;
    size_t module_bytes;
} lookup;

static const iv_tensor_info *part(const lookup *l, const char *suffix) {
    char name[IV_TENSOR_NAME_BYTES_MAX + 40];
    snprintf(name, sizeof name, "%.*s%s", (int)l->module_bytes, l->module, suffix);
    return l->find(l->user, name);
}

static void shape_scales(iv_packed *p) {
    const iv_tensor_info *s = p->scale;
    if (!s) return;
    p->scale_columns = s->ndim >= 2 ? (size_t)s->shape[s->ndim - 1] : 1;
    p->scale_rows = p->scale_columns ? s->elements / p->scale_columns : 0;
    if (p->scale_columns == 0 || p->scale_rows == 0) p->scale_columns = p->scale_rows = 1; /* refused by the check */
}

/* Scales of FP8 whose blocks the configuration does not give: of the tensor or of each row. */
static void shape_blocks(const iv_quant_group *g, iv_packed *p) {
    p->block_rows = g->block_rows, p->group = g->group;
    if (p->format == IV_WEIGHT_FP8 && g->block_rows == 0 && g->group == 0 && p->scale_rows == p->rows)
        p->block_rows = 1;
    if (p->block_rows == 0 || (p->scale && p->scale->elements == 1)) p->block_rows = p->rows;
    if (p->group == 0 || (p->scale && p->scale->elements == 1)) p->group = p->columns;
    if (p->block_rows == 0) p->block_rows = 1;
    if (p->group == 0) p->group = 1;
}

static iv_status describe(const iv_quantization *q, const iv_quant_group *g, const iv_tensor_info *t, const lookup *l,
                          iv_packed *p, iv_error *err) {
    bool blocks = ends_with(t->name, "_blocks"), along_inputs = ends_with(t->name, ".qweight");
    *p = (iv_packed){.format = g->format, .data = t};
    if (t->ndim < 2 || (blocks && t->ndim < 3))
        return iv_fail(err, IV_FORMAT, "%s: wanted %d dimensions, found %d", t->name, blocks ? 3 : 2, t->ndim);
    size_t last = (size_t)t->shape[t->ndim - 1], bits = (size_t)iv_weight_facts_of(g->format)->bits;
    p->rows = last ? t->elements / last : 0;
    p->columns = last;
    if (blocks) { /* rows of blocks of 16 bytes */
        size_t per_row = (size_t)t->shape[t->ndim - 2];
        if (last != 16 || !per_row)
            return iv_fail(err, IV_FORMAT, "%s: wanted blocks of 16 bytes, found %zu x %zu", t->name, per_row, last);
        p->columns = per_row * 32, p->rows /= per_row;
        p->scale = part(l, "_scales");
    } else if (along_inputs) {
        p->scale = part(l, ".scales"), p->zero = part(l, ".qzeros"), p->group_of = part(l, ".g_idx");
        p->columns = (size_t)t->shape[0], p->rows = last;
        if (g->format == IV_WEIGHT_AWQ)
            p->rows *= 32 / bits;
        else
            p->columns *= 32 / bits;
        p->zero_from_one = q->zero_from_one;
        if (g->format == IV_WEIGHT_AWQ && !g->zero_points) p->zero = NULL;
    } else {
        p->scale = part(l, ".weight_scale_inv");
        if (!p->scale) p->scale = part(l, ".weight_scale");
        if (g->zero_points) p->zero = part(l, ".weight_zero_point");
        if (g->format == IV_WEIGHT_NVFP4) {
            bool multiplies = q->method == IV_QUANT_MODELOPT;
            p->global = part(l, multiplies ? ".weight_scale_2" : ".weight_global_scale");
            p->global_use = multiplies ? IV_GLOBAL_MULTIPLIES : IV_GLOBAL_DIVIDES;
        }
        if (g->format == IV_WEIGHT_NVFP4 || g->format == IV_WEIGHT_MXFP4) p->columns *= 2;
        if (g->format == IV_WEIGHT_PACK4 || g->format == IV_WEIGHT_PACK8) p->columns *= 32 / bits;
        if (part(l, ".weight_g_idx"))
            return iv_fail(err, IV_UNSUPPORTED, "%.*s.weight_g_idx: groups by activation order are not read",
                           (int)l->module_bytes, l->module);
        if (g->zero_points && !p->zero)
            return iv_fail(err, IV_FORMAT,
                           "%.*s.weight_zero_point: wanted by quantization_config, not in the checkpoint",
                           (int)l->module_bytes, l->module);
    }
    shape_scales(p);
    /* of the padding in the last word, only groups tell the end */
    if (g->format == IV_WEIGHT_PACK4 && g->group && p->scale_columns * g->group < p->columns &&
        p->columns - p->scale_columns * g->group < 8)
        p->columns = p->scale_columns * g->group;
    shape_blocks(g, p);
    return iv_packed_check(p, err);
}

static const char *const packed_suffixes[] = {".weight", ".weight_packed", ".qweight", "_blocks"};
static const char *const companions[] = {".weight_scale_inv", ".weight_scale",
                                         ".weight_scale_2",   ".weight_global_scale",
                                         ".weight_shape",     ".weight_zero_point",
                                         ".weight_g_idx",     ".qzeros",
                                         ".scales",           ".g_idx",
                                         "_scales",           ".input_scale",
                                         ".input_zero_point", ".input_global_scale",
                                         ".output_scale",     ".k_scale",
                                         ".v_scale",          ".activation_scale"};
enum { OF_WEIGHTS = 11 }; /* the companions after these belong to activations */
enum {
    SUFFIXES = sizeof packed_suffixes / sizeof *packed_suffixes,
    COMPANIONS = sizeof companions / sizeof *companions
};

/* The type in which a packed tensor of this name is stored. */
static bool is_packed_type(const iv_quantization *q, const iv_tensor_info *t, const char *suffix) {
    if (strcmp(suffix, "_blocks") == 0) return q->method == IV_QUANT_MXFP4 && t->dtype == IV_U8;
    if (strcmp(suffix, ".qweight") == 0) return t->dtype == IV_I32;
    if (strcmp(suffix, ".weight_packed") == 0) return t->dtype == IV_I32 || t->dtype == IV_U8;
    return t->dtype == IV_F8_E4M3 || t->dtype == IV_I8 || t->dtype == IV_U8;
}

/* Whether a format can be stored in this type: a file that says one and holds the other is refused. */
static bool fits(iv_weight_format f, iv_dtype t) {
    switch (f) {
    case IV_WEIGHT_FP8:
    case IV_WEIGHT_MXFP8: return t == IV_F8_E4M3;
    case IV_WEIGHT_INT8: return t == IV_I8;
    case IV_WEIGHT_NVFP4:
    case IV_WEIGHT_MXFP4: return t == IV_U8;
    default: return t == IV_I32;
    }
}

/* Of a packed tensor that is there, or of activations. */
static bool is_companion(const iv_quantization *q, const char *name, iv_quant_find *find, const void *user) {
    for (size_t i = 0; i < COMPANIONS; i++) {
        if (!ends_with(name, companions[i])) continue;
        if (strcmp(companions[i], "_scales") == 0 && q->method != IV_QUANT_MXFP4) continue;
        if (i >= OF_WEIGHTS) return true;
        lookup l = {.find = find, .user = user, .module = name, .module_bytes = strlen(name) - strlen(companions[i])};
        for (size_t k = 0; k < SUFFIXES; k++)
            if (part(&l, packed_suffixes[k])) return true;
    }
    return false;
}

iv_status iv_quantization_role(const iv_quantization *q, const iv_tensor_info *t, iv_quant_find *find, const void *user,
                               iv_quant_role *role, iv_packed *out, char *name, iv_error *err) {
    *role = IV_ROLE_PLAIN;
    if (q->method == IV_QUANT_NONE) return IV_OK;
    if (is_companion(q, t->name, find, user)) {
        *role = IV_ROLE_COMPANION;
        return IV_OK;
    }
    for (size_t i = 0; i < SUFFIXES; i++) {
        const char *suffix = packed_suffixes[i];
        if (!ends_with(t->name, suffix) || !is_packed_type(q, t, suffix)) continue;
        size_t n = strlen(t->name) - strlen(suffix);
        lookup l = {.find = find, .user = user, .module = t->name, .module_bytes = n};
        const iv_quant_group *g = NULL;
        memcpy(name, t->name, n), name[n] = 0;
        IV_TRY(find_group(q, name, &g, err));
        if (!fits(g->format, t->dtype))
            return iv_fail(err, IV_FORMAT, "%s: wanted %s by quantization_config, found elements of %s", t->name,
                           iv_weight_facts_of(g->format)->name, iv_dtype_name(t->dtype));
        IV_TRY(describe(q, g, t, &l, out, err));
        if (strcmp(suffix, "_blocks") != 0) memcpy(name + n, ".weight", sizeof ".weight");
        *role = IV_ROLE_PACKED;
        return IV_OK;
    }
    return IV_OK;
}
