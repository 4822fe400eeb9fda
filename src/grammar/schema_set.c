/* schema_set.c: the base of the schema compiler: errors, effort, the rules of a document and of any value. Nothing here
 * compiles a schema: iv_schema_rule only queues it. */
#include "base/size.h"
#include "grammar/schema.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors and effort --------------------------------------------------------------------------------- */

iv_status iv_schema_no_memory(const iv_schema_set *s, iv_error *err) {
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", s->name);
}

iv_status iv_schema_fail(const iv_schema_set *s, iv_status status, const char *where, const char *text, iv_error *err) {
    return iv_fail(err, status, "%s: %.300s: %s", s->name, where, text);
}

iv_status iv_schema_charge(iv_schema_set *s, size_t times, size_t each, const char *where, iv_error *err) {
    size_t all, most = s->a->effort_max ? s->a->effort_max : IV_AUTOMATON_EFFORT_MAX;
    if (iv_size_mul(times, each, &all) && all <= most - s->a->effort) {
        s->a->effort += all;
        return IV_OK;
    }
    return iv_schema_fail(s, IV_LIMIT, where,
                          "too much work: too many schemas, names, values or repetitions are combined", err);
}

/* Escapes ~ and / as in RFC 6901. The pointer is for people: it is truncated if it is long. */
const char *iv_schema_at(iv_schema_set *s, const char *where, const char *key) {
    char text[400];
    size_t n = iv_size_min(strlen(where), 300);
    memcpy(text, where, n);
    text[n++] = '/';
    for (; *key && n < sizeof text - 3; key++) {
        if (*key != '~' && *key != '/')
            text[n++] = *key;
        else
            text[n++] = '~', text[n++] = *key == '~' ? '0' : '1';
    }
    const char *out = iv_arena_strndup(s->arena, text, n);
    return out ? out : "";
}

const char *iv_schema_at_index(iv_schema_set *s, const char *where, const char *key, size_t index) {
    char text[160];
    snprintf(text, sizeof text, "%.100s/%zu", key, index);
    size_t n = strlen(where) + strlen(text) + 2;
    char *out = iv_arena_alloc(s->arena, n, 1);
    if (out) snprintf(out, n, "%s/%s", where, text);
    return out ? out : "";
}

/* ---- the set ------------------------------------------------------------------------------------------- */

iv_status iv_schema_set_open(iv_schema_set *s, const char *name, json_t *root, iv_schema_common *common,
                             iv_error *err) {
    *s = (iv_schema_set){.a = common->a, .arena = common->arena, .name = name, .root = root, .common = common};
    s->made = json_array(), s->known = json_object();
    if (s->made && s->known) return IV_OK;
    iv_schema_set_close(s);
    return iv_schema_no_memory(s, err);
}

void iv_schema_set_close(iv_schema_set *s) {
    json_decref(s->made), json_decref(s->known);
    free(s->jobs);
    s->made = s->known = NULL, s->jobs = NULL;
}

/* The text of a schema without subschemas, as a key: equal schemas share one rule. NULL: it has subschemas, or memory
 * ran out. The caller frees it. */
static char *leaf_key(json_t *schema) {
    const char *key;
    json_t *value, *one, *plain;
    size_t i;
    if (!json_is_object(schema) || !(plain = json_object())) return NULL;
    bool leaf = true;
    json_object_foreach(schema, key, value) {
        if (iv_schema_is_label(key)) continue;
        leaf = leaf && !json_is_object(value) && strcmp(key, "$ref") != 0;
        json_array_foreach(value, i, one) leaf = leaf && !json_is_object(one) && !json_is_array(one);
        if (leaf) leaf = json_object_set(plain, key, value) == 0;
    }
    char *text = leaf ? json_dumps(plain, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(plain);
    return text;
}

/* A schema's address as a key, and its rule if it has one. */
static bool known_at(const iv_schema_set *s, const json_t *schema, char key[32], int32_t *rule) {
    snprintf(key, 32, "%" PRIxPTR, (uintptr_t)schema);
    const json_t *known = json_object_get(s->known, key);
    if (known) *rule = (int32_t)json_integer_value(known);
    return known != NULL;
}

static iv_status add_rule(iv_schema_set *s, json_t *schema, const char *where, int32_t *rule, iv_error *err);

iv_status iv_schema_rule(iv_schema_set *s, json_t *schema, const char *where, int32_t *rule, iv_error *err) {
    char address[32];
    if (known_at(s, schema, address, rule)) return IV_OK;
    char *key = leaf_key(schema);
    const json_t *known = key ? json_object_get(s->known, key) : NULL;
    iv_status status = IV_OK;
    if (known)
        *rule = (int32_t)json_integer_value(known);
    else
        status = add_rule(s, schema, where, rule, err);
    bool ok = json_is_boolean(schema) || json_object_set_new(s->known, address, json_integer(*rule)) == 0;
    if (ok && key && !known) ok = json_object_set_new(s->known, key, json_integer(*rule)) == 0;
    free(key);
    return status != IV_OK || ok ? status : iv_schema_no_memory(s, err);
}

static iv_status add_rule(iv_schema_set *s, json_t *schema, const char *where, int32_t *rule, iv_error *err) {
    *rule = json_is_true(schema) ? iv_schema_any(s) : IV_NO_RULE;
    if (*rule >= 0) return IV_OK;
    if (s->job_count == s->job_capacity) {
        size_t n = s->job_capacity ? 2 * s->job_capacity : 32;
        struct iv_schema_job *more = realloc(s->jobs, n * sizeof *more);
        if (!more) return iv_schema_no_memory(s, err);
        s->jobs = more, s->job_capacity = n;
    }
    size_t bytes = strlen(s->name) + strlen(where) + 3;
    char *full = iv_arena_alloc(s->arena, bytes, 1);
    if (!full) return iv_schema_no_memory(s, err);
    snprintf(full, bytes, "%s: %s", s->name, where);
    *rule = iv_automaton_rule(s->a, full);
    if (*rule < 0) return iv_automaton_finish(s->a, err); /* reports the limit */
    s->jobs[s->job_count++] = (struct iv_schema_job){schema, full + strlen(s->name) + 2, *rule};
    return IV_OK;
}

/* ---- shared keywords ----------------------------------------------------------------------------------- */

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

/* ---- any value ----------------------------------------------------------------------------------------- */

int32_t iv_schema_new_rule(iv_schema_set *s, int32_t *slot, uint32_t *from, uint32_t *to) {
    int32_t rule = iv_automaton_rule(s->a, s->name);
    *from = *to = 0;
    if (rule < 0) return IV_NO_RULE;
    *slot = rule + 1;
    *from = s->a->rules[rule].start, *to = iv_automaton_state(s->a);
    iv_automaton_end(s->a, *to);
    return rule;
}

int32_t iv_schema_any_string(iv_schema_set *s) {
    uint32_t from, to;
    iv_spell_tails tails = {0};
    if (s->common->any_string) return s->common->any_string - 1;
    int32_t rule = iv_schema_new_rule(s, &s->common->any_string, &from, &to);
    if (rule < 0) return rule;
    uint32_t body = iv_automaton_text(s->a, from, "\"");
    iv_codepoints_spell(NULL, s->a, IV_SPELL_JSON_FREELY, body, body, &tails);
    iv_automaton_bytes(s->a, body, '"', '"', to);
    return rule;
}

int32_t iv_schema_any_number(iv_schema_set *s) {
    uint32_t from, to;
    const iv_bound none = {0};
    if (s->common->any_number) return s->common->any_number - 1;
    int32_t rule = iv_schema_new_rule(s, &s->common->any_number, &from, &to);
    if (rule >= 0) iv_number_spell(s->a, false, &none, &none, NULL, from, to);
    return rule;
}

static int32_t any_array(iv_schema_set *s) {
    uint32_t from, to;
    if (s->common->any_array) return s->common->any_array - 1;
    int32_t rule = iv_schema_new_rule(s, &s->common->any_array, &from, &to);
    int32_t any = rule >= 0 ? iv_schema_any(s) : IV_NO_RULE;
    if (any < 0) return IV_NO_RULE;
    uint32_t begin = iv_automaton_text(s->a, from, "["), more = iv_automaton_state(s->a);
    iv_automaton_bytes(s->a, begin, ']', ']', to), iv_automaton_bytes(s->a, more, ']', ']', to);
    iv_automaton_call(s->a, begin, any, more);
    iv_automaton_call(s->a, iv_json_mark(s->a, more, ','), any, more);
    return rule;
}

int32_t iv_schema_any_object(iv_schema_set *s) {
    uint32_t from, to;
    if (s->common->any_object) return s->common->any_object - 1;
    int32_t rule = iv_schema_new_rule(s, &s->common->any_object, &from, &to);
    int32_t any = rule >= 0 ? iv_schema_any(s) : IV_NO_RULE;
    int32_t string = any >= 0 ? iv_schema_any_string(s) : IV_NO_RULE;
    if (string < 0) return IV_NO_RULE;
    uint32_t begin = iv_automaton_text(s->a, from, "{"), key = iv_automaton_state(s->a),
             more = iv_automaton_state(s->a);
    iv_automaton_bytes(s->a, begin, '}', '}', to), iv_automaton_bytes(s->a, more, '}', '}', to);
    iv_automaton_call(s->a, begin, string, key);
    iv_automaton_call(s->a, iv_json_mark(s->a, key, ':'), any, more);
    iv_automaton_call(s->a, iv_json_mark(s->a, more, ','), string, key);
    return rule;
}

int32_t iv_schema_any(iv_schema_set *s) {
    static const char *const words[] = {"true", "false", "null"};
    uint32_t from, to;
    if (s->common->any) return s->common->any - 1;
    int32_t rule = iv_schema_new_rule(s, &s->common->any, &from, &to);
    if (rule < 0) return IV_NO_RULE;
    int32_t parts[] = {iv_schema_any_string(s), iv_schema_any_number(s), any_array(s), iv_schema_any_object(s)};
    for (size_t i = 0; i < 3; i++) iv_automaton_text_to(s->a, from, words[i], strlen(words[i]), to);
    for (size_t i = 0; i < 4; i++)
        if (parts[i] >= 0) iv_automaton_call(s->a, from, parts[i], to);
    return s->a->failed == IV_OK ? rule : IV_NO_RULE;
}
