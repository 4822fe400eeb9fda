/* tokenizer_steps.c: normalizer, pre_tokenizer, decoder and post_processor of a tokenizer.json.
 *
 * Each is one step or a Sequence of them, so all are flattened into arrays. */
#include "base/size.h"
#include "base/utf8.h"
#include "format/json.h"
#include "format/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

typedef struct parser {
    const char *name;
    iv_tokenizer_json *out;
    iv_error *err;
} parser;

typedef iv_status (*read_step)(parser *p, const iv_field *f, const char *type);

static iv_status unsupported(const parser *p, const char *where, const char *type) {
    return iv_fail(p->err, IV_UNSUPPORTED, "%s: %s: type \"%.100s\" is not supported", p->name, where, type);
}

static iv_status too_many(const parser *p, const char *where) {
    return iv_fail(p->err, IV_LIMIT, "%s: %s: more than %d steps", p->name, where, IV_TOKENIZER_STEPS_MAX);
}

/* One step, or the members of a Sequence in order; null and absent are no step. list is the Sequence's key.
 */
static iv_status read_steps(parser *p, const char *where, const json_t *v, const char *list, int depth,
                            read_step read) {
    if (!v || json_is_null(v)) return IV_OK;
    if (depth > IV_TOKENIZER_NESTING_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: %s: Sequence nested over %d deep", p->name, where,
                       IV_TOKENIZER_NESTING_MAX);
    iv_field f = {p->name, where, v, &p->out->arena, p->err};
    iv_str type;
    IV_TRY(iv_field_str(&f, "type", &type));
    if (strcmp(type.data, "Sequence") != 0) return read(p, &f, type.data);
    const json_t *members = json_object_get(v, list);
    if (!json_is_array(members))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.%s: wanted an array, found %s", p->name, where, list,
                       iv_json_type_name(members));
    for (size_t i = 0; i < json_array_size(members); i++) {
        char path[200];
        snprintf(path, sizeof path, "%.150s.%s[%zu]", where, list, i);
        IV_TRY(read_steps(p, path, json_array_get(members, i), list, depth + 1, read));
    }
    return IV_OK;
}

static iv_status read_pattern(const parser *p, const iv_field *f, iv_pattern *out) {
    const json_t *v = json_object_get(f->obj, "pattern");
    iv_field inner = {f->name, f->where, v, f->arena, f->err};
    iv_str string, regex;
    IV_TRY(iv_field_str_or_null(&inner, "String", &string));
    IV_TRY(iv_field_str_or_null(&inner, "Regex", &regex));
    if (!string.data == !regex.data)
        return iv_fail(p->err, IV_FORMAT, "%s: %s.pattern: wanted one of String and Regex", p->name, f->where);
    *out = (iv_pattern){regex.data ? regex : string, regex.data != NULL};
    if (out->text.len == 0) return iv_fail(p->err, IV_UNSUPPORTED, "%s: %s.pattern: empty", p->name, f->where);
    return IV_OK;
}

/* A string that must be exactly one character. */
static iv_status read_char(const parser *p, const iv_field *f, const char *key, iv_str *out) {
    IV_TRY(iv_field_str(f, key, out));
    if (out->len && iv_utf8_length((const uint8_t *)out->data, out->len) == out->len) return IV_OK;
    return iv_fail(p->err, IV_FORMAT, "%s: %s.%s: wanted one character", p->name, f->where, key);
}

static iv_status read_prepend(const parser *p, const iv_field *f, iv_prepend_scheme *out) {
    static const char *const names[] = {"never", "first", "always"};
    iv_str scheme;
    bool add;
    IV_TRY(iv_field_str_or_null(f, "prepend_scheme", &scheme));
    IV_TRY(iv_field_bool_or(f, "add_prefix_space", true, &add));
    *out = IV_PREPEND_ALWAYS;
    if (scheme.data) {
        size_t i = 0;
        while (i < 3 && strcmp(scheme.data, names[i]) != 0) i++;
        if (i == 3)
            return iv_fail(p->err, IV_FORMAT, "%s: %s.prepend_scheme: wanted never, first or always, found \"%.40s\"",
                           p->name, f->where, scheme.data);
        *out = (iv_prepend_scheme)i;
    }
    if (!add && scheme.data && *out != IV_PREPEND_NEVER)
        return iv_fail(p->err, IV_FORMAT, "%s: %s: add_prefix_space is false but prepend_scheme is \"%s\"", p->name,
                       f->where, scheme.data);
    if (!add) *out = IV_PREPEND_NEVER;
    return IV_OK;
}

/* ---- normalizer ---- */

static iv_status read_normalizer(parser *p, const iv_field *f, const char *type) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip"};
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(type, names[kind]) != 0) kind++;
    if (kind == kinds) return unsupported(p, f->where, type);
    if (p->out->normalizer_count == IV_TOKENIZER_STEPS_MAX) return too_many(p, f->where);
    iv_normalizer_spec *s = &p->out->normalizers[p->out->normalizer_count++];
    s->kind = (iv_normalizer_kind)kind;
    switch (s->kind) {
    case IV_NORMALIZE_PREPEND: return iv_field_str(f, "prepend", &s->content);
    case IV_NORMALIZE_REPLACE: IV_TRY(read_pattern(p, f, &s->pattern)); return iv_field_str(f, "content", &s->content);
    case IV_NORMALIZE_STRIP:
        IV_TRY(iv_field_bool(f, "strip_left", &s->left));
        return iv_field_bool(f, "strip_right", &s->right);
    default: return IV_OK;
    }
}

/* ---- pre_tokenizer ---- */

static iv_status read_behavior(const parser *p, const iv_field *f, iv_match_behavior fallback, bool required,
                               iv_match_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    iv_str s;
    *out = fallback;
    IV_TRY(required ? iv_field_str(f, "behavior", &s) : iv_field_str_or_null(f, "behavior", &s));
    if (!s.data) return IV_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(s.data, names[i]) != 0) continue;
        *out = (iv_match_behavior)i;
        return IV_OK;
    }
    return iv_fail(p->err, IV_FORMAT, "%s: %s.behavior: \"%.40s\" is not known", p->name, f->where, s.data);
}

static iv_status read_metaspace(const parser *p, const iv_field *f, iv_pretokenizer_spec *s) {
    IV_TRY(read_char(p, f, "replacement", &s->replacement));
    IV_TRY(read_prepend(p, f, &s->prepend));
    return iv_field_bool_or(f, "split", true, &s->split);
}

static iv_status read_pretokenizer(parser *p, const iv_field *f, const char *type) {
    static const char *const names[] = {"Split",       "ByteLevel",  "Metaspace",      "Digits",
                                        "Punctuation", "Whitespace", "WhitespaceSplit"};
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(type, names[kind]) != 0) kind++;
    if (kind == kinds) return unsupported(p, f->where, type);
    if (p->out->pretokenizer_count == IV_TOKENIZER_STEPS_MAX) return too_many(p, f->where);
    iv_pretokenizer_spec *s = &p->out->pretokenizers[p->out->pretokenizer_count++];
    s->kind = (iv_pretokenizer_kind)kind;
    switch (s->kind) {
    case IV_PRETOKENIZE_SPLIT:
        IV_TRY(read_pattern(p, f, &s->pattern));
        IV_TRY(read_behavior(p, f, IV_MATCH_ISOLATED, true, &s->behavior));
        return iv_field_bool(f, "invert", &s->invert);
    case IV_PRETOKENIZE_BYTE_LEVEL:
        IV_TRY(iv_field_bool(f, "add_prefix_space", &s->add_prefix_space));
        return iv_field_bool_or(f, "use_regex", true, &s->use_regex);
    case IV_PRETOKENIZE_METASPACE: return read_metaspace(p, f, s);
    case IV_PRETOKENIZE_DIGITS: {
        bool individual;
        IV_TRY(iv_field_bool(f, "individual_digits", &individual));
        s->behavior = individual ? IV_MATCH_ISOLATED : IV_MATCH_CONTIGUOUS;
        return IV_OK;
    }
    case IV_PRETOKENIZE_PUNCTUATION: return read_behavior(p, f, IV_MATCH_ISOLATED, false, &s->behavior);
    default: return IV_OK;
    }
}

/* ---- decoder ---- */

static iv_status read_decoder(parser *p, const iv_field *f, const char *type) {
    static const char *const names[] = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(type, names[kind]) != 0) kind++;
    if (kind == kinds) return unsupported(p, f->where, type);
    if (p->out->decoder_count == IV_TOKENIZER_STEPS_MAX) return too_many(p, f->where);
    iv_decoder_spec *s = &p->out->decoders[p->out->decoder_count++];
    s->kind = (iv_decoder_kind)kind;
    switch (s->kind) {
    case IV_DECODE_REPLACE: IV_TRY(read_pattern(p, f, &s->pattern)); return iv_field_str(f, "content", &s->content);
    case IV_DECODE_STRIP:
        IV_TRY(read_char(p, f, "content", &s->content));
        IV_TRY(iv_field_count(f, "start", IV_TOKEN_BYTES_MAX, &s->start));
        return iv_field_count(f, "stop", IV_TOKEN_BYTES_MAX, &s->stop);
    case IV_DECODE_METASPACE:
        IV_TRY(read_char(p, f, "replacement", &s->content));
        return read_prepend(p, f, &s->prepend);
    default: return IV_OK;
    }
}

/* ---- post_processor ---- */

/* The ids of the special token that a template piece names, appended at ids[*count]. */
static iv_status read_special(const parser *p, const iv_field *f, const char *token, int32_t *ids, size_t *count) {
    const json_t *list = json_object_get(json_object_get(json_object_get(f->obj, "special_tokens"), token), "ids");
    if (!json_is_array(list))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.special_tokens: no ids for \"%.100s\"", p->name, f->where, token);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || (unsigned long long)id >= p->out->id_count || !p->out->by_id[id].data)
            return iv_fail(p->err, IV_FORMAT, "%s: %s.special_tokens: \"%.100s\" has an id that is no token", p->name,
                           f->where, token);
        if (*count == IV_TEMPLATE_TOKENS_MAX)
            return iv_fail(p->err, IV_LIMIT, "%s: %s.single: more than %d special tokens on one side", p->name,
                           f->where, IV_TEMPLATE_TOKENS_MAX);
        ids[(*count)++] = (int32_t)id;
    }
    return IV_OK;
}

/* In a Sequence a later template goes around an earlier one: its left ids come first, its right ids last. */
static iv_status wrap_template(const parser *p, const iv_field *f, const int32_t *left, size_t left_count,
                               const int32_t *right, size_t right_count) {
    iv_tokenizer_json *t = p->out;
    if (t->before_count + left_count > IV_TEMPLATE_TOKENS_MAX || t->after_count + right_count > IV_TEMPLATE_TOKENS_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: %s: more than %d special tokens on one side", p->name, f->where,
                       IV_TEMPLATE_TOKENS_MAX);
    memmove(t->before + left_count, t->before, t->before_count * sizeof *t->before);
    memcpy(t->before, left, left_count * sizeof *left);
    t->before_count += left_count;
    memcpy(t->after + t->after_count, right, right_count * sizeof *right);
    t->after_count += right_count;
    return IV_OK;
}

static iv_status read_template(const parser *p, const iv_field *f) {
    const json_t *single = json_object_get(f->obj, "single");
    int32_t ids[2][IV_TEMPLATE_TOKENS_MAX];
    size_t count[2] = {0}, texts = 0;
    if (!json_is_array(single))
        return iv_fail(p->err, IV_FORMAT, "%s: %s.single: wanted an array, found %s", p->name, f->where,
                       iv_json_type_name(single));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *token = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        const json_t *text = json_object_get(json_object_get(piece, "Sequence"), "id");
        if (json_is_string(token)) {
            size_t side = texts > 0;
            IV_TRY(read_special(p, f, json_string_value(token), ids[side], &count[side]));
        } else if (json_is_string(text) && strcmp(json_string_value(text), "A") == 0) {
            texts++;
        } else {
            return iv_fail(p->err, IV_FORMAT, "%s: %s.single[%zu]: wanted a SpecialToken or the Sequence A", p->name,
                           f->where, i);
        }
    }
    if (texts != 1)
        return iv_fail(p->err, IV_UNSUPPORTED, "%s: %s.single: wanted the Sequence A once, found it %zu times", p->name,
                       f->where, texts);
    return wrap_template(p, f, ids[0], count[0], ids[1], count[1]);
}

static iv_status read_processor(parser *p, const iv_field *f, const char *type) {
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(p, f);
    if (strcmp(type, "ByteLevel") == 0) return IV_OK; /* moves offsets only, never ids */
    return unsupported(p, f->where, type);
}

iv_status iv_tokenizer_json_steps(const char *name, const json_t *root, iv_tokenizer_json *out, iv_error *err) {
    parser p = {name, out, err};
    const json_t *decoder = json_object_get(root, "decoder");
    out->has_decoder = decoder && !json_is_null(decoder);
    IV_TRY(read_steps(&p, "normalizer", json_object_get(root, "normalizer"), "normalizers", 0, read_normalizer));
    IV_TRY(
        read_steps(&p, "pre_tokenizer", json_object_get(root, "pre_tokenizer"), "pretokenizers", 0, read_pretokenizer));
    IV_TRY(read_steps(&p, "decoder", decoder, "decoders", 0, read_decoder));
    return read_steps(&p, "post_processor", json_object_get(root, "post_processor"), "processors", 0, read_processor);
}
