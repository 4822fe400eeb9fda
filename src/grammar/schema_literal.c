/* schema_literal.c: enum and const: values written out. */
#include "base/utf8.h"
#include "grammar/schema_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LITERAL_DEPTH_MAX = 64, LITERALS_MAX = 20000 };

/* ---- which values the keywords beside it allow --------------------------------------------------------- */

static size_t length_of(const json_t *string) {
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(string); i++)
        n += ((unsigned char)json_string_value(string)[i] & 0xc0) != 0x80;
    return n;
}

/* What a count or number of the value must be at least and at most. */
typedef struct limit {
    const char *key;
    unsigned kinds;
    bool least, open;
} limit;

static const limit limits[] = {
    {"minLength", IV_KIND_STRING, true, false},
    {"maxLength", IV_KIND_STRING, false, false},
    {"minItems", IV_KIND_ARRAY, true, false},
    {"maxItems", IV_KIND_ARRAY, false, false},
    {"minProperties", IV_KIND_OBJECT, true, false},
    {"maxProperties", IV_KIND_OBJECT, false, false},
    {"minimum", IV_KIND_INTEGER | IV_KIND_NUMBER, true, false},
    {"maximum", IV_KIND_INTEGER | IV_KIND_NUMBER, false, false},
    {"exclusiveMinimum", IV_KIND_INTEGER | IV_KIND_NUMBER, true, true},
    {"exclusiveMaximum", IV_KIND_INTEGER | IV_KIND_NUMBER, false, true},
};

static double measure(const json_t *v) {
    if (json_is_string(v)) return (double)length_of(v);
    if (json_is_array(v)) return (double)json_array_size(v);
    if (json_is_object(v)) return (double)json_object_size(v);
    return json_number_value(v);
}

static bool within(const json_t *schema, const json_t *v) {
    double x = measure(v);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const json_t *bound = json_object_get(schema, limits[i].key);
        if (!json_is_number(bound) || !(iv_json_kind_of(v) & limits[i].kinds)) continue;
        double y = json_number_value(bound);
        if (limits[i].least ? x < y : x > y) return false;
        if (limits[i].open && x == y) return false;
    }
    return true;
}

/* Keywords that would need more than a look at the value. */
static const char *hard_keyword(const json_t *schema, unsigned kind) {
    static const struct {
        const char *key;
        unsigned kinds;
    } hard[] = {{"pattern", IV_KIND_STRING},
                {"format", IV_KIND_STRING},
                {"items", IV_KIND_ARRAY},
                {"prefixItems", IV_KIND_ARRAY},
                {"properties", IV_KIND_OBJECT},
                {"required", IV_KIND_OBJECT},
                {"additionalProperties", IV_KIND_OBJECT},
                {"uniqueItems", IV_KIND_ARRAY}};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
        if (hard[i].kinds & kind && json_object_get(schema, hard[i].key)) return hard[i].key;
    return NULL;
}

static iv_status allows(const iv_schema_set *s, const json_t *schema, const json_t *v, const char *where, bool *out,
                        iv_error *err) {
    const json_t *type = json_object_get(schema, "type"), *only = json_object_get(schema, "const");
    unsigned kind = iv_json_kind_of(v), allowed = IV_KIND_ALL;
    if (type) IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    *out = kind & allowed && within(schema, v) && (!only || json_equal(only, v));
    const char *hard = *out ? hard_keyword(schema, kind) : NULL;
    if (!hard) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s: %s: not supported beside \"enum\" or \"const\"", s->name, where,
                   hard);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void write_text(iv_automaton *a, const char *text, uint32_t from, uint32_t to) {
    iv_automaton_text_to(a, from, text, strlen(text), to);
}

/* The fewest digits that read back as the same number. */
static void write_number(iv_automaton *a, const json_t *v, uint32_t from, uint32_t to) {
    char text[40];
    if (json_is_integer(v)) {
        snprintf(text, sizeof text, "%" PRId64, (int64_t)json_integer_value(v));
    } else {
        int digits = 1;
        double x = json_real_value(v);
        if (x == floor(x) && fabs(x) < 1e15)
            snprintf(text, sizeof text, "%.1f", x);
        else
            do snprintf(text, sizeof text, "%.*g", digits, x);
            while (strtod(text, NULL) != x && digits++ < 17);
    }
    write_text(a, text, from, to);
}

static iv_status write_value(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                             uint32_t to, iv_error *err);

static iv_status write_array(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                             uint32_t to, iv_error *err) {
    uint32_t at = iv_automaton_text(s->a, from, "[");
    const json_t *one;
    size_t i;
    json_array_foreach(v, i, one) {
        uint32_t next = iv_automaton_state(s->a);
        if (i) at = iv_json_mark(s->a, at, ',');
        IV_TRY(write_value(s, one, where, depth + 1, at, next, err));
        at = next;
    }
    iv_automaton_bytes(s->a, at, ']', ']', to);
    return IV_OK;
}

static iv_status write_object(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                              uint32_t to, iv_error *err) {
    uint32_t at = iv_automaton_text(s->a, from, "{");
    const char *key;
    json_t *one;
    bool first = true;
    json_object_foreach((json_t *)(uintptr_t)v, key, one) {
        uint32_t named = iv_automaton_state(s->a), next = iv_automaton_state(s->a);
        if (!first) at = iv_json_mark(s->a, at, ',');
        first = false;
        iv_json_string_spell(s->a, key, strlen(key), at, named);
        IV_TRY(write_value(s, one, where, depth + 1, iv_json_mark(s->a, named, ':'), next, err));
        at = next;
    }
    iv_automaton_bytes(s->a, at, '}', '}', to);
    return IV_OK;
}

static iv_status write_value(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                             uint32_t to, iv_error *err) {
    if (depth > LITERAL_DEPTH_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %.300s: a value nested over %d deep", s->name, where, LITERAL_DEPTH_MAX);
    switch (json_typeof(v)) {
    case JSON_OBJECT: return write_object(s, v, where, depth, from, to, err);
    case JSON_ARRAY: return write_array(s, v, where, depth, from, to, err);
    case JSON_STRING: iv_json_string_spell(s->a, json_string_value(v), json_string_length(v), from, to); return IV_OK;
    case JSON_INTEGER:
    case JSON_REAL: write_number(s->a, v, from, to); return IV_OK;
    case JSON_TRUE: write_text(s->a, "true", from, to); return IV_OK;
    case JSON_FALSE: write_text(s->a, "false", from, to); return IV_OK;
    default: write_text(s->a, "null", from, to); return IV_OK;
    }
}

iv_status iv_schema_value(iv_schema_set *s, const json_t *v, const char *where, uint32_t from, uint32_t to,
                          iv_error *err) {
    return write_value(s, v, where, 0, from, to, err);
}

iv_status iv_schema_values(iv_schema_set *s, const json_t *schema, const char *where, json_t **out, iv_error *err) {
    json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const"), *v;
    size_t i;
    bool good, ok = true;
    if (list && !json_is_array(list)) return iv_schema_fail(s, IV_INVALID, where, "enum: wanted a list", err);
    if (json_array_size(list) > LITERALS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %.300s: enum: %zu values, at most %d are read", s->name, where,
                       json_array_size(list), LITERALS_MAX);
    if (!(*out = json_array()) || json_array_append_new(s->made, *out) != 0) return iv_schema_no_memory(s, err);
    if (!list) {
        IV_TRY(allows(s, schema, only, where, &good, err));
        ok = !good || json_array_append(*out, only) == 0;
    }
    if (list) IV_TRY(iv_schema_spend(s, json_array_size(list), IV_EFFORT_VALUE, where, err));
    json_array_foreach(list, i, v) {
        IV_TRY(allows(s, schema, v, where, &good, err));
        ok = ok && (!good || json_array_append(*out, v) == 0);
    }
    return ok ? IV_OK : iv_schema_no_memory(s, err);
}

iv_status iv_schema_literals(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                             iv_error *err) {
    json_t *list, *v;
    size_t i;
    IV_TRY(iv_schema_values(s, schema, where, &list, err));
    json_array_foreach(list, i, v) IV_TRY(write_value(s, v, where, 0, from, to, err));
    return IV_OK;
}
