/* schema_value.c: the values of one kind that plain keywords allow: numbers, literals (enum, const), arrays
 * and objects. */
#include "base/size.h"
#include "base/utf8.h"
#include "grammar/schema.h"
#include "grammar/schema_names.h"
#include "grammar/spell.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* The tighter of an inclusive and an exclusive bound. */
static iv_status read_bound(const iv_schema_set *s, const json_t *schema, const char *key, const char *exclusive_key,
                            bool least, const char *where, iv_bound *out, iv_error *err) {
    const json_t *plain = json_object_get(schema, key), *open = json_object_get(schema, exclusive_key);
    *out = (iv_bound){0};
    if (json_is_boolean(open)) { /* draft 4: of the other bound */
        bool exclusive = json_is_true(open);
        open = exclusive ? plain : NULL, plain = exclusive ? NULL : plain;
    }
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
    return iv_fail(err, IV_LIMIT, "%s: %.300s: %s: wanted less than 10^16 and at most 15 decimal places", s->name,
                   where, use_open ? exclusive_key : key);
}

static iv_status read_step(const iv_schema_set *s, const json_t *schema, const char *where, iv_step *out,
                           iv_error *err) {
    const json_t *step = json_object_get(schema, "multipleOf");
    *out = (iv_step){0};
    if (!step) return IV_OK;
    if (!json_is_number(step) || json_number_value(step) <= 0)
        return iv_schema_fail(s, IV_INVALID, where, "multipleOf: wanted a number over 0", err);
    if (iv_step_read(step, out)) return IV_OK;
    return iv_fail(err, IV_LIMIT, "%s: %.300s: multipleOf: wanted a step of at most %d in units of its last digit",
                   s->name, where, IV_STEP_MAX);
}

static iv_status write_number(iv_schema_set *s, json_t *schema, const char *where, bool whole, uint32_t from,
                              uint32_t to, iv_error *err) {
    iv_bound low, high;
    IV_TRY(read_bound(s, schema, "minimum", "exclusiveMinimum", true, where, &low, err));
    IV_TRY(read_bound(s, schema, "maximum", "exclusiveMaximum", false, where, &high, err));
    iv_step step;
    IV_TRY(read_step(s, schema, where, &step, err));
    if (low.given || high.given || whole || step.multiple)
        iv_number_spell(s->a, whole, &low, &high, &step, from, to);
    else
        iv_automaton_call(s->a, from, iv_schema_any_number(s), to);
    return IV_OK;
}

enum { LITERAL_DEPTH_MAX = 64, LITERALS_MAX = 20000 };

/* ---- literals that the other keywords allow ------------------------------------------------------------ */

static size_t length_of(const json_t *string) {
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(string); i++)
        n += ((unsigned char)json_string_value(string)[i] & 0xc0) != 0x80;
    return n;
}

/* Keywords that bound a count or a number. */
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
        const json_t *open = json_object_get(schema, limits[i].least ? "exclusiveMinimum" : "exclusiveMaximum");
        bool exclusive = limits[i].open || (limits[i].kinds & IV_KIND_NUMBER && json_is_true(open));
        if (limits[i].least ? x < y : x > y) return false;
        if (exclusive && x == y) return false;
    }
    return true;
}

/* Keywords that are not evaluated on literals. */
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
                {"patternProperties", IV_KIND_OBJECT},
                {"propertyNames", IV_KIND_OBJECT},
                {"multipleOf", IV_KIND_INTEGER | IV_KIND_NUMBER},
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
    return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s: %s: not supported next to \"enum\" or \"const\"", s->name, where,
                   hard);
}

/* ---- literals ------------------------------------------------------------------------------------------ */

static void literal_text(iv_automaton *a, const char *text, uint32_t from, uint32_t to) {
    iv_automaton_text_to(a, from, text, strlen(text), to);
}

/* The fewest digits that read back as the same number. */
static void literal_number(iv_automaton *a, const json_t *v, uint32_t from, uint32_t to) {
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
    literal_text(a, text, from, to);
}

static iv_status literal_value(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                               uint32_t to, iv_error *err);

static iv_status literal_array(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                               uint32_t to, iv_error *err) {
    uint32_t at = iv_automaton_text(s->a, from, "[");
    const json_t *one;
    size_t i;
    json_array_foreach(v, i, one) {
        uint32_t next = iv_automaton_state(s->a);
        if (i) at = iv_json_mark(s->a, at, ',');
        IV_TRY(literal_value(s, one, where, depth + 1, at, next, err));
        at = next;
    }
    iv_automaton_bytes(s->a, at, ']', ']', to);
    return IV_OK;
}

static iv_status literal_object(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
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
        IV_TRY(literal_value(s, one, where, depth + 1, iv_json_mark(s->a, named, ':'), next, err));
        at = next;
    }
    iv_automaton_bytes(s->a, at, '}', '}', to);
    return IV_OK;
}

static iv_status literal_value(iv_schema_set *s, const json_t *v, const char *where, int depth, uint32_t from,
                               uint32_t to, iv_error *err) {
    if (depth > LITERAL_DEPTH_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %.300s: a value nested over %d deep", s->name, where, LITERAL_DEPTH_MAX);
    switch (json_typeof(v)) {
    case JSON_OBJECT: return literal_object(s, v, where, depth, from, to, err);
    case JSON_ARRAY: return literal_array(s, v, where, depth, from, to, err);
    case JSON_STRING: iv_json_string_spell(s->a, json_string_value(v), json_string_length(v), from, to); return IV_OK;
    case JSON_INTEGER:
    case JSON_REAL: literal_number(s->a, v, from, to); return IV_OK;
    case JSON_TRUE: literal_text(s->a, "true", from, to); return IV_OK;
    case JSON_FALSE: literal_text(s->a, "false", from, to); return IV_OK;
    default: literal_text(s->a, "null", from, to); return IV_OK;
    }
}

iv_status iv_schema_value(iv_schema_set *s, const json_t *v, const char *where, uint32_t from, uint32_t to,
                          iv_error *err) {
    return literal_value(s, v, where, 0, from, to, err);
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
    if (list) IV_TRY(iv_schema_charge(s, json_array_size(list), IV_EFFORT_VALUE, where, err));
    json_array_foreach(list, i, v) {
        IV_TRY(allows(s, schema, v, where, &good, err));
        ok = ok && (!good || json_array_append(*out, v) == 0);
    }
    return ok ? IV_OK : iv_schema_no_memory(s, err);
}

static iv_status write_literals(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                                iv_error *err) {
    json_t *list, *v;
    size_t i;
    IV_TRY(iv_schema_values(s, schema, where, &list, err));
    json_array_foreach(list, i, v) IV_TRY(literal_value(s, v, where, 0, from, to, err));
    return IV_OK;
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

enum { UNIQUE_MAX = 8 /* values of items that differ: a state for each set of them */ };

typedef struct array_shape {
    json_t *prefix, *items;
    size_t prefix_count, min, max;
    int32_t *rules; /* of the prefix */
    int32_t rest;   /* of further items */
    bool unique;
} array_shape;

static iv_status read_array(iv_schema_set *s, json_t *schema, const char *where, array_shape *w, iv_error *err) {
    json_t *one, *unique = json_object_get(schema, "uniqueItems");
    const char *rest = "items";
    size_t i;
    *w = (array_shape){
        .prefix = json_object_get(schema, "prefixItems"), .items = json_object_get(schema, "items"), .max = SIZE_MAX};
    if (unique && !json_is_boolean(unique))
        return iv_schema_fail(s, IV_INVALID, where, "uniqueItems: wanted true or false", err);
    w->unique = json_is_true(unique);
    if (w->prefix && !json_is_array(w->prefix))
        return iv_schema_fail(s, IV_INVALID, where, "prefixItems: wanted a list of schemas", err);
    if (json_is_array(w->items)) { /* before draft 2020-12 */
        if (w->prefix) return iv_schema_fail(s, IV_INVALID, where, "items: a list next to \"prefixItems\"", err);
        w->prefix = w->items, w->items = json_object_get(schema, rest = "additionalItems");
    }
    IV_TRY(iv_schema_count(s, schema, "minItems", where, &w->min, err));
    IV_TRY(iv_schema_count(s, schema, "maxItems", where, &w->max, err));
    w->prefix_count = json_array_size(w->prefix);
    IV_TRY(iv_schema_charge(s, w->prefix_count, IV_EFFORT_MEMBER, where, err));
    w->rules = IV_ARENA_NEW(s->arena, w->prefix_count + 1, int32_t);
    if (!w->rules) return iv_schema_no_memory(s, err);
    json_array_foreach(w->prefix, i, one)
        IV_TRY(iv_schema_rule(s, one, iv_schema_at_index(s, where, "prefixItems", i), &w->rules[i], err));
    w->rest = iv_schema_any(s);
    return w->items ? iv_schema_rule(s, w->items, iv_schema_at(s, where, rest), &w->rest, err) : IV_OK;
}

/* The few values that items may have; NULL: they may have others. */
static iv_status item_values(iv_schema_set *s, json_t *items, const char *where, json_t **out, iv_error *err) {
    iv_schema_parts p;
    *out = NULL;
    iv_status status = iv_schema_parts_open(s, items, where, &p, err);
    const char *type = json_string_value(json_object_get(p.plain, "type"));
    bool listed = json_object_get(p.plain, "enum") || json_object_get(p.plain, "const");
    if (status == IV_OK && json_array_size(p.choices) == 0 && listed)
        status = iv_schema_values(s, p.plain, where, out, err);
    else if (status == IV_OK && json_array_size(p.choices) == 0 && type && strcmp(type, "boolean") == 0)
        if (!(*out = json_pack("[b, b]", 1, 0)) || json_array_append_new(s->made, *out) != 0)
            status = iv_schema_no_memory(s, err);
    iv_schema_parts_close(&p);
    return status;
}

/* One of each value: equal numbers are one value, whatever their spelling. */
static bool repeats(const json_t *list, size_t at) {
    const json_t *v = json_array_get(list, at);
    for (size_t i = 0; i < at; i++) {
        const json_t *known = json_array_get(list, i);
        bool numbers = json_is_number(v) && json_is_number(known);
        if (numbers ? json_number_value(v) == json_number_value(known) : json_equal(v, known)) return true;
    }
    return false;
}

/* A state for each set of values that were used. */
static iv_status write_unique(iv_schema_set *s, const array_shape *w, const char *where, uint32_t from, uint32_t to,
                              iv_error *err) {
    uint32_t states[1 << UNIQUE_MAX];
    int32_t rules[UNIQUE_MAX];
    json_t *list = NULL;
    size_t n = 0;
    if (w->items && !w->prefix_count) IV_TRY(item_values(s, w->items, where, &list, err));
    if (!list || json_array_size(list) > UNIQUE_MAX)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: %.300s: uniqueItems: supported with \"maxItems\" of 1 or items of at most %d values (enum)",
                       s->name, where, UNIQUE_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t begin, end = iv_automaton_state(s->a);
        if (json_is_object(json_array_get(list, i)) || json_is_array(json_array_get(list, i)))
            return iv_schema_fail(s, IV_UNSUPPORTED, where, "uniqueItems: not supported for lists and objects", err);
        if (repeats(list, i)) continue;
        if ((rules[n] = iv_automaton_rule(s->a, s->name)) < 0) return iv_automaton_finish(s->a, err);
        begin = s->a->rules[rules[n++]].start;
        iv_automaton_end(s->a, end);
        IV_TRY(literal_value(s, json_array_get(list, i), where, 0, begin, end, err));
    }
    states[0] = iv_automaton_text(s->a, from, "[");
    for (uint32_t set = 1; set < (uint32_t)1 << n; set++) states[set] = iv_automaton_state(s->a);
    for (uint32_t set = 0; set < (uint32_t)1 << n && s->a->failed == IV_OK; set++) {
        size_t count = (size_t)__builtin_popcount(set);
        if (count >= w->min && count <= w->max) iv_automaton_bytes(s->a, states[set], ']', ']', to);
        if (count >= w->max) continue;
        uint32_t item = set ? iv_json_mark(s->a, states[set], ',') : states[set];
        for (size_t i = 0; i < n; i++)
            if (!(set >> i & 1)) iv_automaton_call(s->a, item, rules[i], states[set | (uint32_t)1 << i]);
    }
    return IV_OK;
}

static iv_status write_array(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                             iv_error *err) {
    array_shape w;
    IV_TRY(read_array(s, schema, where, &w, err));
    if (w.min > w.max) return IV_OK; /* no such array */
    if (w.unique && w.max > 1) return write_unique(s, &w, where, from, to, err);
    size_t unrolled = w.max != SIZE_MAX ? w.max : w.min > w.prefix_count ? w.min : w.prefix_count;
    uint32_t at = iv_automaton_text(s->a, from, "[");
    for (size_t i = 0;; i++) { /* `at`: after i items */
        if (s->a->failed != IV_OK) return IV_OK;
        if (i >= w.min) iv_automaton_bytes(s->a, at, ']', ']', to);
        if (i == w.max) return IV_OK;
        uint32_t item = i == 0 ? at : iv_json_mark(s->a, at, ',');
        int32_t rule = i < w.prefix_count ? w.rules[i] : w.rest;
        if (i >= unrolled && i > 0) { /* all further items are alike */
            iv_automaton_call(s->a, item, rule, at);
            return IV_OK;
        }
        uint32_t next = iv_automaton_state(s->a);
        iv_automaton_call(s->a, item, rule, next);
        at = next;
    }
}

enum { NAME_CHARACTERS_MAX = 256 /* of a listed property if others are allowed */ };

typedef struct property {
    const char *name;
    size_t bytes;
    bool required;
    int32_t rule;
} property;

typedef struct object_shape {
    property *properties;
    size_t count, min, max;
    bool open;      /* others are allowed */
    int32_t rest;   /* their rule */
    bool patterned; /* names is used: patternProperties, propertyNames */
    iv_schema_names names;
} object_shape;

/* ---- unlisted names ------------------------------------------------------------------------------------ */

typedef struct name {
    const uint32_t *characters;
    size_t count;
} name;

typedef struct namer {
    iv_schema_set *s;
    name *names; /* sorted */
    uint32_t free, to;
    iv_spell_tails free_tails;
} namer;

static int by_characters(const void *a, const void *b) {
    const name *x = a, *y = b;
    for (size_t i = 0; i < x->count && i < y->count; i++)
        if (x->characters[i] != y->characters[i]) return x->characters[i] < y->characters[i] ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count);
}

/* From the state after the first `depth` characters, common to names[first..last). */
static bool spell_others(namer *w, size_t first, size_t last, size_t depth, uint32_t from) {
    iv_automaton *a = w->s->a;
    iv_codepoints listed = {0};
    bool listed_here = w->names[first].count == depth;
    if (!listed_here) iv_automaton_bytes(a, from, '"', '"', w->to);
    for (size_t i = first + listed_here; i < last && a->failed == IV_OK;) {
        uint32_t c = w->names[i].characters[depth];
        size_t end = i;
        while (end < last && w->names[end].characters[depth] == c) end++;
        iv_codepoints one = {0};
        iv_spell_tails tails = {0};
        uint32_t next = iv_automaton_state(a);
        if (!iv_codepoints_add(&one, w->s->arena, c, c) || !iv_codepoints_add(&listed, w->s->arena, c, c)) return false;
        iv_codepoints_spell(&one, a, IV_SPELL_JSON, from, next, &tails);
        if (!spell_others(w, i, end, depth + 1, next)) return false;
        i = end;
    }
    if (!iv_codepoints_normalize(&listed, w->s->arena) || !iv_codepoints_invert(&listed, w->s->arena)) return false;
    iv_codepoints_spell(&listed, a, IV_SPELL_JSON, from, w->free, &w->free_tails);
    return true;
}

static iv_status read_name(iv_schema_set *s, const property *p, const char *where, name *out, iv_error *err) {
    uint32_t *characters = IV_ARENA_NEW(s->arena, p->bytes + 1, uint32_t);
    if (!characters) return iv_schema_no_memory(s, err);
    *out = (name){.characters = characters};
    for (size_t i = 0; i < p->bytes;)
        i += iv_utf8_decode((const uint8_t *)p->name + i, p->bytes - i, &characters[out->count++]);
    if (out->count <= NAME_CHARACTERS_MAX) return IV_OK;
    return iv_fail(err, IV_LIMIT,
                   "%s: %.300s: a property's name of %zu characters, at most %d where others are allowed", s->name,
                   where, out->count, NAME_CHARACTERS_MAX);
}

/* A rule for every name except the listed ones, in one spelling each: an escape would make another text. */
static iv_status make_names(iv_schema_set *s, const object_shape *w, const char *where, int32_t *rule, iv_error *err) {
    if (w->count == 0) {
        *rule = iv_schema_any_string(s);
        return IV_OK;
    }
    iv_automaton *a = s->a;
    namer n = {.s = s, .names = IV_ARENA_NEW(s->arena, w->count, name)};
    if (!n.names) return iv_schema_no_memory(s, err);
    for (size_t i = 0; i < w->count; i++) IV_TRY(read_name(s, &w->properties[i], where, &n.names[i], err));
    qsort(n.names, w->count, sizeof *n.names, by_characters);
    *rule = iv_automaton_rule(a, s->name);
    if (*rule < 0) return iv_automaton_finish(a, err);
    uint32_t begin = iv_automaton_text(a, a->rules[*rule].start, "\"");
    n.free = iv_automaton_state(a), n.to = iv_automaton_state(a);
    iv_automaton_end(a, n.to);
    iv_codepoints all = {0};
    bool ok = iv_codepoints_invert(&all, s->arena) && spell_others(&n, 0, w->count, 0, begin);
    iv_codepoints_spell(&all, a, IV_SPELL_JSON, n.free, n.free, &n.free_tails);
    iv_automaton_bytes(a, n.free, '"', '"', n.to);
    return ok ? IV_OK : iv_schema_no_memory(s, err);
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static property *find(const object_shape *w, const char *text) {
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->properties[i].name, text) == 0) return &w->properties[i];
    return NULL;
}

/* Unlisted names of "required" have the schema of other properties, but must be present. */
static iv_status read_required(iv_schema_set *s, json_t *schema, const char *where, object_shape *w, bool said,
                               iv_error *err) {
    json_t *list = json_object_get(schema, "required"), *one;
    size_t i;
    if (list && !json_is_array(list)) return iv_schema_fail(s, IV_INVALID, where, "required: wanted a list", err);
    json_array_foreach(list, i, one) {
        const char *text = json_string_value(one);
        IV_TRY(iv_schema_charge(s, 1 + w->count, IV_EFFORT_LOOK, where, err));
        if (!text) return iv_schema_fail(s, IV_INVALID, where, "required: wanted strings", err);
        property *p = find(w, text);
        if (!p) {
            p = &w->properties[w->count++];
            *p = (property){.name = text, .bytes = strlen(text), .rule = said ? w->rest : iv_schema_any(s)};
        }
        p->required = true;
    }
    return IV_OK;
}

/* Listed properties satisfy the patterns that match their names, too. */
static iv_status read_patterns(iv_schema_set *s, json_t *schema, const char *where, object_shape *w, iv_error *err) {
    json_t *listed = json_object_get(schema, "properties"), *member;
    const char **names = IV_ARENA_NEW(s->arena, w->count + 1, const char *);
    if (!names) return iv_schema_no_memory(s, err);
    for (size_t i = 0; i < w->count; i++) names[i] = w->properties[i].name;
    w->patterned = true;
    IV_TRY(iv_schema_names_open(s, schema, where, names, w->count, &w->names, err));
    for (size_t i = 0; i < w->count; i++) {
        property *p = &w->properties[i];
        json_t *own = json_object_get(listed, p->name);
        IV_TRY(iv_schema_names_member(s, &w->names, p->name, own, &member, err));
        if (member && member != own)
            IV_TRY(iv_schema_rule(s, member, iv_schema_at(s, iv_schema_at(s, where, "properties"), p->name), &p->rule,
                                  err));
    }
    return IV_OK;
}

/* Next to listed properties only counts that always hold, or that there is one at least. */
static iv_status check_counts(iv_schema_set *s, const char *where, object_shape *w, iv_error *err) {
    size_t required = 0;
    for (size_t i = 0; i < w->count; i++) required += w->properties[i].required;
    if (required >= w->min) w->min = 0;
    if (!w->open && !w->patterned && w->max >= w->count) w->max = SIZE_MAX;
    if (w->min <= 1 && w->max == SIZE_MAX) return IV_OK;
    return iv_schema_fail(s, IV_UNSUPPORTED, where,
                          "minProperties over 1, maxProperties: not supported next to \"properties\" or \"required\"",
                          err);
}

static iv_status read_object(iv_schema_set *s, json_t *schema, const char *where, object_shape *w, iv_error *err) {
    json_t *listed = json_object_get(schema, "properties"), *rest = json_object_get(schema, "additionalProperties"),
           *value;
    const char *key;
    *w = (object_shape){.max = SIZE_MAX,
                        .open = rest ? !json_is_false(rest) : !listed && !json_object_get(schema, "patternProperties"),
                        .rest = IV_NO_RULE};
    if (listed && !json_is_object(listed))
        return iv_schema_fail(s, IV_INVALID, where, "properties: wanted an object", err);
    IV_TRY(iv_schema_count(s, schema, "minProperties", where, &w->min, err));
    IV_TRY(iv_schema_count(s, schema, "maxProperties", where, &w->max, err));
    size_t most = json_object_size(listed) + json_array_size(json_object_get(schema, "required"));
    w->properties = IV_ARENA_NEW(s->arena, most + 1, property);
    if (!w->properties) return iv_schema_no_memory(s, err);
    IV_TRY(iv_schema_charge(s, most, IV_EFFORT_MEMBER, where, err));
    const char *listed_where = iv_schema_at(s, where, "properties");
    json_object_foreach(listed, key, value) {
        property *p = &w->properties[w->count++];
        *p = (property){.name = key, .bytes = strlen(key)};
        IV_TRY(iv_schema_rule(s, value, iv_schema_at(s, listed_where, key), &p->rule, err));
    }
    if (rest) IV_TRY(iv_schema_rule(s, rest, iv_schema_at(s, where, "additionalProperties"), &w->rest, err));
    if (w->open && !rest) w->rest = iv_schema_any(s);
    IV_TRY(read_required(s, schema, where, w, rest != NULL, err));
    if (iv_schema_has_names(schema)) IV_TRY(read_patterns(s, schema, where, w, err));
    return w->count || w->patterned ? check_counts(s, where, w, err) : IV_OK;
}

/* ---- objects as paths ---------------------------------------------------------------------------------- */

/* From min to max pairs with other names. none: the state after "{"; some: after a pair. */
static void write_others(iv_schema_set *s, const object_shape *w, int32_t names, uint32_t none, uint32_t to) {
    iv_automaton *a = s->a;
    size_t unrolled = w->max != SIZE_MAX ? w->max : w->min;
    uint32_t at = none;
    for (size_t i = 0; a->failed == IV_OK; i++) {
        if (i >= w->min) iv_automaton_bytes(a, at, '}', '}', to);
        if (i == w->max) return;
        uint32_t key = iv_automaton_state(a), next = i >= unrolled && i > 0 ? at : iv_automaton_state(a);
        iv_automaton_call(a, i == 0 ? at : iv_json_mark(a, at, ','), names, key);
        iv_automaton_call(a, iv_json_mark(a, key, ':'), w->rest, next);
        if (next == at) return;
        at = next;
    }
}

static void write_pair(iv_schema_set *s, const property *p, uint32_t from, uint32_t to) {
    uint32_t named = iv_automaton_state(s->a);
    iv_json_string_spell(s->a, p->name, p->bytes, from, named);
    iv_automaton_call(s->a, iv_json_mark(s->a, named, ':'), p->rule, to);
}

static iv_status write_object(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                              iv_error *err) {
    object_shape w;
    int32_t names = IV_NO_RULE;
    iv_automaton *a = s->a;
    IV_TRY(read_object(s, schema, where, &w, err));
    if (w.open && !w.patterned) IV_TRY(make_names(s, &w, where, &names, err));
    uint32_t none = iv_automaton_text(a, from, "{"), some = iv_automaton_state(a);
    if (w.count == 0 && w.open && !w.patterned) {
        write_others(s, &w, names, none, to);
        return IV_OK;
    }
    if (w.min > 0 && w.count == 0 && !w.patterned) return IV_OK; /* an object without properties has none */
    for (size_t i = 0; i < w.count && a->failed == IV_OK; i++) {
        const property *p = &w.properties[i];
        uint32_t none_next = iv_automaton_state(a), some_next = iv_automaton_state(a);
        write_pair(s, p, none, some_next);
        if (i > 0) write_pair(s, p, iv_json_mark(a, some, ','), some_next);
        if (!p->required) iv_automaton_skip(a, none, none_next), iv_automaton_skip(a, some, some_next);
        none = none_next, some = some_next;
    }
    if (w.min == 0) iv_automaton_bytes(a, none, '}', '}', to);
    iv_automaton_bytes(a, some, '}', '}', to);
    if (w.patterned) {
        uint32_t other = iv_automaton_state(a);
        iv_automaton_skip(a, none, other);
        iv_automaton_skip(a, iv_json_mark(a, some, ','), other);
        return iv_schema_names_write(s, &w.names, where, w.open ? w.rest : IV_NO_RULE, other, some, err);
    }
    if (!w.open) return IV_OK;
    uint32_t key = iv_automaton_state(a);
    iv_automaton_call(a, none, names, key);
    iv_automaton_call(a, iv_json_mark(a, some, ','), names, key);
    iv_automaton_call(a, iv_json_mark(a, key, ':'), w.rest, some);
    return IV_OK;
}

/* ---- plain schemas ------------------------------------------------------------------------------------- */

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
        return write_literals(s, schema, where, from, to, err);
    if (type) {
        IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    } else if (iv_json_keyword_kinds(schema)) {
        allowed = iv_json_keyword_kinds(schema); /* the keywords imply the type */
    } else {
        iv_automaton_call(s->a, from, iv_schema_any(s), to);
        return IV_OK;
    }
    write_words(s->a, allowed, from, to);
    if (allowed & (IV_KIND_INTEGER | IV_KIND_NUMBER))
        IV_TRY(write_number(s, schema, where, !(allowed & IV_KIND_NUMBER), from, to, err));
    if (allowed & IV_KIND_STRING) IV_TRY(iv_schema_string(s, schema, where, from, to, err));
    if (allowed & IV_KIND_ARRAY) IV_TRY(write_array(s, schema, where, from, to, err));
    return allowed & IV_KIND_OBJECT ? write_object(s, schema, where, from, to, err) : IV_OK;
}
