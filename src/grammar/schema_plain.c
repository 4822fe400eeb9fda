/* schema_plain.c: a schema of plain keywords: which kinds of values it allows, numbers and arrays. */
#include "grammar/number.h"
#include "grammar/schema_parts.h"

#include <math.h>
#include <string.h>

static iv_status kind_of(const iv_schema_set *s, const json_t *name, const char *where, unsigned *out, iv_error *err) {
    unsigned bits = json_is_string(name) ? iv_json_kind_named(json_string_value(name)) : 0;
    *out |= bits;
    if (bits) return IV_OK;
    return iv_schema_fail(s, IV_INVALID, where,
                          "type: wanted null, boolean, integer, number, string, array or object, or a list of them",
                          err);
}

iv_status iv_schema_kinds(const iv_schema_set *s, const json_t *type, const char *where, unsigned *out, iv_error *err) {
    const json_t *one;
    size_t i;
    *out = 0;
    if (!json_is_array(type)) return kind_of(s, type, where, out, err);
    json_array_foreach(type, i, one) IV_TRY(kind_of(s, one, where, out, err));
    return IV_OK;
}

iv_status iv_schema_count(const iv_schema_set *s, const json_t *schema, const char *key, const char *where, size_t *out,
                          iv_error *err) {
    const json_t *v = json_object_get(schema, key);
    double x = json_number_value(v);
    if (!v) return IV_OK;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        return iv_fail(err, IV_INVALID, "%s: %.300s: %s: wanted an integer of 0 or more", s->name, where, key);
    if (x > IV_SCHEMA_COUNT_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %.300s: %s: wanted at most %d, found %.0f", s->name, where, key,
                       IV_SCHEMA_COUNT_MAX, x);
    *out = (size_t)x;
    return IV_OK;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* The tighter of an inclusive and an exclusive bound. */
static iv_status read_bound(const iv_schema_set *s, const json_t *schema, const char *key, const char *exclusive_key,
                            bool least, const char *where, iv_bound *out, iv_error *err) {
    const json_t *plain = json_object_get(schema, key), *open = json_object_get(schema, exclusive_key);
    *out = (iv_bound){0};
    if ((plain && !json_is_number(plain)) || (open && !json_is_number(open)))
        return iv_fail(err, IV_INVALID, "%s: %.300s: %s: wanted a number", s->name, where,
                       plain && !json_is_number(plain) ? key : exclusive_key);
    if (!plain && !open) return IV_OK;
    bool use_open = open != NULL;
    if (plain && open) {
        double x = json_number_value(plain), y = json_number_value(open);
        use_open = least ? y >= x : y <= x;
    }
    if (iv_bound_read(use_open ? open : plain, least, use_open, out)) return IV_OK;
    return iv_fail(err, IV_LIMIT, "%s: %.300s: %s: wanted less than 10^16 and at most 15 digits behind the point",
                   s->name, where, use_open ? exclusive_key : key);
}

static iv_status write_number(iv_schema_set *s, json_t *schema, const char *where, bool whole, uint32_t from,
                              uint32_t to, iv_error *err) {
    iv_bound low, high;
    IV_TRY(read_bound(s, schema, "minimum", "exclusiveMinimum", true, where, &low, err));
    IV_TRY(read_bound(s, schema, "maximum", "exclusiveMaximum", false, where, &high, err));
    if (low.given || high.given || whole)
        iv_number_spell(s->a, whole, &low, &high, from, to);
    else
        iv_automaton_call(s->a, from, iv_schema_any_number(s), to);
    return IV_OK;
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

typedef struct array_shape {
    json_t *prefix, *items;
    size_t prefix_count, min, max;
    int32_t *rules; /* of the prefix */
    int32_t rest;   /* of the others */
} array_shape;

static iv_status read_array(iv_schema_set *s, json_t *schema, const char *where, array_shape *w, iv_error *err) {
    json_t *one, *unique = json_object_get(schema, "uniqueItems");
    size_t i;
    *w = (array_shape){
        .prefix = json_object_get(schema, "prefixItems"), .items = json_object_get(schema, "items"), .max = SIZE_MAX};
    if (unique && !json_is_false(unique))
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "uniqueItems: only false is supported", err);
    if (w->prefix && !json_is_array(w->prefix))
        return iv_schema_fail(s, IV_INVALID, where, "prefixItems: wanted a list of schemas", err);
    if (json_is_array(w->items))
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "items: wanted a schema (lists are \"prefixItems\")", err);
    IV_TRY(iv_schema_count(s, schema, "minItems", where, &w->min, err));
    IV_TRY(iv_schema_count(s, schema, "maxItems", where, &w->max, err));
    w->prefix_count = json_array_size(w->prefix);
    IV_TRY(iv_schema_spend(s, w->prefix_count, IV_EFFORT_MEMBER, where, err));
    w->rules = IV_ARENA_NEW(s->arena, w->prefix_count + 1, int32_t);
    if (!w->rules) return iv_schema_no_memory(s, err);
    json_array_foreach(w->prefix, i, one)
        IV_TRY(iv_schema_rule(s, one, iv_schema_at_index(s, where, "prefixItems", i), &w->rules[i], err));
    w->rest = iv_schema_any(s);
    return w->items ? iv_schema_rule(s, w->items, iv_schema_at(s, where, "items"), &w->rest, err) : IV_OK;
}

iv_status iv_schema_array(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                          iv_error *err) {
    array_shape w;
    IV_TRY(read_array(s, schema, where, &w, err));
    if (w.min > w.max) return IV_OK; /* no array is so */
    size_t unrolled = w.max != SIZE_MAX ? w.max : w.min > w.prefix_count ? w.min : w.prefix_count;
    uint32_t at = iv_automaton_text(s->a, from, "[");
    for (size_t i = 0;; i++) { /* `at`: behind i items */
        if (s->a->failed != IV_OK) return IV_OK;
        if (i >= w.min) iv_automaton_bytes(s->a, at, ']', ']', to);
        if (i == w.max) return IV_OK;
        uint32_t item = i == 0 ? at : iv_json_mark(s->a, at, ',');
        int32_t rule = i < w.prefix_count ? w.rules[i] : w.rest;
        if (i >= unrolled && i > 0) { /* all further ones are alike */
            iv_automaton_call(s->a, item, rule, at);
            return IV_OK;
        }
        uint32_t next = iv_automaton_state(s->a);
        iv_automaton_call(s->a, item, rule, next);
        at = next;
    }
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static void write_words(iv_automaton *a, unsigned allowed, uint32_t from, uint32_t to) {
    if (allowed & IV_KIND_NULL) iv_automaton_text_to(a, from, "null", 4, to);
    if (allowed & IV_KIND_BOOLEAN) {
        iv_automaton_text_to(a, from, "true", 4, to);
        iv_automaton_text_to(a, from, "false", 5, to);
    }
}

iv_status iv_schema_plain(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                          iv_error *err) {
    const json_t *type = json_object_get(schema, "type");
    unsigned allowed = IV_KIND_ALL;
    if (json_object_get(schema, "const") || json_object_get(schema, "enum"))
        return iv_schema_literals(s, schema, where, from, to, err);
    if (type) {
        IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    } else if (iv_json_keyword_kinds(schema)) {
        allowed = iv_json_keyword_kinds(schema); /* who speaks of lengths means a string */
    } else {
        iv_automaton_call(s->a, from, iv_schema_any(s), to);
        return IV_OK;
    }
    write_words(s->a, allowed, from, to);
    if (allowed & (IV_KIND_INTEGER | IV_KIND_NUMBER))
        IV_TRY(write_number(s, schema, where, !(allowed & IV_KIND_NUMBER), from, to, err));
    if (allowed & IV_KIND_STRING) IV_TRY(iv_schema_string(s, schema, where, from, to, err));
    if (allowed & IV_KIND_ARRAY) IV_TRY(iv_schema_array(s, schema, where, from, to, err));
    return allowed & IV_KIND_OBJECT ? iv_schema_object(s, schema, where, from, to, err) : IV_OK;
}
