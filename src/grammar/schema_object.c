/* schema_object.c: objects: the listed properties in their order, each there or not, then others if they are allowed.
 */
#include "base/size.h"
#include "base/utf8.h"
#include "grammar/codepoints.h"
#include "grammar/schema_parts.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_CHARACTERS_MAX = 256 /* of a property beside which others are allowed */ };

typedef struct property {
    const char *name;
    size_t bytes;
    bool required;
    int32_t rule;
} property;

typedef struct object_shape {
    property *properties;
    size_t count, min, max;
    bool open;    /* others are allowed */
    int32_t rest; /* their rule */
} object_shape;

/* ---- names that are not listed ------------------------------------------------------------------------- */

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

/* From a state behind the first `depth` characters, which names[first..last) share. */
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
    if (!iv_codepoints_settle(&listed, w->s->arena) || !iv_codepoints_invert(&listed, w->s->arena)) return false;
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
    return iv_fail(err, IV_LIMIT, "%s: %.300s: a property's name of %zu characters, at most %d beside others", s->name,
                   where, out->count, NAME_CHARACTERS_MAX);
}

/* A rule of every name but the listed ones. In one spelling each: an escape would make them another text. */
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

/* ---- reading ------------------------------------------------------------------------------------------- */

static property *find(const object_shape *w, const char *text) {
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->properties[i].name, text) == 0) return &w->properties[i];
    return NULL;
}

/* Names of "required" that are not listed are as others are, but must be there. */
static iv_status read_required(iv_schema_set *s, json_t *schema, const char *where, object_shape *w, bool said,
                               iv_error *err) {
    json_t *list = json_object_get(schema, "required"), *one;
    size_t i;
    if (list && !json_is_array(list)) return iv_schema_fail(s, IV_INVALID, where, "required: wanted a list", err);
    json_array_foreach(list, i, one) {
        const char *text = json_string_value(one);
        IV_TRY(iv_schema_spend(s, 1 + w->count, IV_EFFORT_LOOK, where, err));
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

static iv_status read_object(iv_schema_set *s, json_t *schema, const char *where, object_shape *w, iv_error *err) {
    json_t *listed = json_object_get(schema, "properties"), *rest = json_object_get(schema, "additionalProperties"),
           *value;
    const char *key;
    *w = (object_shape){.max = SIZE_MAX, .open = rest ? !json_is_false(rest) : !listed, .rest = IV_NO_RULE};
    if (listed && !json_is_object(listed))
        return iv_schema_fail(s, IV_INVALID, where, "properties: wanted an object", err);
    IV_TRY(iv_schema_count(s, schema, "minProperties", where, &w->min, err));
    IV_TRY(iv_schema_count(s, schema, "maxProperties", where, &w->max, err));
    if (json_object_size(listed) && (w->min > 0 || w->max != SIZE_MAX))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "minProperties, maxProperties: not supported beside \"properties\"", err);
    size_t most = json_object_size(listed) + json_array_size(json_object_get(schema, "required"));
    w->properties = IV_ARENA_NEW(s->arena, most + 1, property);
    if (!w->properties) return iv_schema_no_memory(s, err);
    IV_TRY(iv_schema_spend(s, most, IV_EFFORT_MEMBER, where, err));
    const char *place = iv_schema_at(s, where, "properties");
    json_object_foreach(listed, key, value) {
        property *p = &w->properties[w->count++];
        *p = (property){.name = key, .bytes = strlen(key)};
        IV_TRY(iv_schema_rule(s, value, iv_schema_at(s, place, key), &p->rule, err));
    }
    if (rest) IV_TRY(iv_schema_rule(s, rest, iv_schema_at(s, where, "additionalProperties"), &w->rest, err));
    if (w->open && !rest) w->rest = iv_schema_any(s);
    IV_TRY(read_required(s, schema, where, w, rest != NULL, err));
    if (w->count && (w->min > 0 || w->max != SIZE_MAX))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "minProperties, maxProperties: not supported beside \"required\"", err);
    return IV_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/* Any number of pairs of other names, from min to max of them. none: a state behind "{" alone, some: behind a pair. */
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

iv_status iv_schema_object(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                           iv_error *err) {
    object_shape w;
    int32_t names = IV_NO_RULE;
    iv_automaton *a = s->a;
    IV_TRY(read_object(s, schema, where, &w, err));
    if (w.open) IV_TRY(make_names(s, &w, where, &names, err));
    uint32_t none = iv_automaton_text(a, from, "{"), some = iv_automaton_state(a);
    if (w.count == 0 && w.open) {
        write_others(s, &w, names, none, to);
        return IV_OK;
    }
    if (w.min > 0) return IV_OK; /* no object without properties has any */
    for (size_t i = 0; i < w.count && a->failed == IV_OK; i++) {
        const property *p = &w.properties[i];
        uint32_t none_next = iv_automaton_state(a), some_next = iv_automaton_state(a);
        write_pair(s, p, none, some_next);
        if (i > 0) write_pair(s, p, iv_json_mark(a, some, ','), some_next);
        if (!p->required) iv_automaton_skip(a, none, none_next), iv_automaton_skip(a, some, some_next);
        none = none_next, some = some_next;
    }
    iv_automaton_bytes(a, none, '}', '}', to), iv_automaton_bytes(a, some, '}', '}', to);
    if (!w.open) return IV_OK;
    uint32_t key = iv_automaton_state(a);
    iv_automaton_call(a, none, names, key);
    iv_automaton_call(a, iv_json_mark(a, some, ','), names, key);
    iv_automaton_call(a, iv_json_mark(a, key, ':'), w.rest, some);
    return IV_OK;
}
