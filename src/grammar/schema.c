/* schema.c: from a schema to its rule: references, combinations, and the rules that wait to be compiled. */
#include "grammar/schema_parts.h"
#include "base/size.h"
#include "grammar/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REFERENCES_MAX = 64 /* one after another, with nothing in between */ };

/* ---- the known keywords -------------------------------------------------------------------------------- */

static const char *const labels[] = {"title",          "description",   "default",  "examples",    "example",
                                     "$schema",        "$id",           "$comment", "deprecated",  "readOnly",
                                     "writeOnly",      "discriminator", "$defs",    "definitions", "contentMediaType",
                                     "contentEncoding"};
static const char *const plain_words[] = {"type",
                                          "const",
                                          "enum",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum",
                                          "items",
                                          "prefixItems",
                                          "minItems",
                                          "maxItems",
                                          "uniqueItems",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "minProperties",
                                          "maxProperties"};
static const char *const joining_words[] = {"$ref", "allOf", "anyOf", "oneOf"};

static bool among(const char *key, const char *const *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, words[i]) == 0) return true;
    return false;
}

#define AMONG(key, words) among((key), (words), sizeof(words) / sizeof *(words))

/* ---- words --------------------------------------------------------------------------------------------- */

iv_status iv_schema_no_memory(const iv_schema_set *s, iv_error *err) {
    return iv_fail(err, IV_NO_MEMORY, "%s: no memory", s->name);
}

iv_status iv_schema_fail(const iv_schema_set *s, iv_status status, const char *where, const char *text, iv_error *err) {
    return iv_fail(err, status, "%s: %.300s: %s", s->name, where, text);
}

iv_status iv_schema_spend(iv_schema_set *s, size_t times, size_t each, const char *where, iv_error *err) {
    size_t all, most = s->a->effort_max ? s->a->effort_max : IV_AUTOMATON_EFFORT_MAX;
    if (iv_size_mul(times, each, &all) && all <= most - s->a->effort) {
        s->a->effort += all;
        return IV_OK;
    }
    return iv_schema_fail(s, IV_LIMIT, where,
                          "too much work: too many schemas, names, values or repetitions are combined", err);
}

/* As RFC 6901 has it: ~ and / are escaped. A place is for people: it is cut where it becomes long. */
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
                             iv_automaton *a, iv_arena *arena, iv_error *err) {
    *s = (iv_schema_set){.a = a, .arena = arena, .name = name, .root = root, .common = common};
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

/* What a schema without schemas in it says, as a key: equal ones are one rule, however often they stand in a document.
 * NULL: it has some, or memory is out. For free(). */
static char *leaf_key(json_t *schema) {
    const char *key;
    json_t *value, *one, *plain;
    size_t i;
    if (!json_is_object(schema) || !(plain = json_object())) return NULL;
    bool leaf = true;
    json_object_foreach(schema, key, value) {
        leaf = leaf && !json_is_object(value) && strcmp(key, "$ref") != 0;
        json_array_foreach(value, i, one) leaf = leaf && !json_is_object(one) && !json_is_array(one);
        if (leaf && !AMONG(key, labels)) leaf = json_object_set(plain, key, value) == 0;
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
    if (*rule < 0) return iv_automaton_finish(s->a, err); /* says what is full */
    s->jobs[s->job_count++] = (struct iv_schema_job){schema, full + strlen(s->name) + 2, *rule};
    return IV_OK;
}

/* ---- any value ----------------------------------------------------------------------------------------- */

int32_t iv_schema_fresh(iv_schema_set *s, int32_t *slot, uint32_t *from, uint32_t *to) {
    int32_t rule = iv_automaton_rule(s->a, s->name);
    *from = *to = 0;
    if (rule < 0) return IV_NO_RULE;
    *slot = rule + 1;
    *from = s->a->rules[rule].start, *to = iv_automaton_state(s->a);
    iv_automaton_end(s->a, *to);
    return rule;
}

int32_t iv_schema_any_number(iv_schema_set *s) {
    uint32_t from, to;
    const iv_bound none = {0};
    if (s->common->any_number) return s->common->any_number - 1;
    int32_t rule = iv_schema_fresh(s, &s->common->any_number, &from, &to);
    if (rule >= 0) iv_number_spell(s->a, false, &none, &none, from, to);
    return rule;
}

int32_t iv_schema_any_array(iv_schema_set *s) {
    uint32_t from, to;
    if (s->common->any_array) return s->common->any_array - 1;
    int32_t rule = iv_schema_fresh(s, &s->common->any_array, &from, &to);
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
    int32_t rule = iv_schema_fresh(s, &s->common->any_object, &from, &to);
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
    int32_t rule = iv_schema_fresh(s, &s->common->any, &from, &to);
    if (rule < 0) return IV_NO_RULE;
    int32_t parts[] = {iv_schema_any_string(s), iv_schema_any_number(s), iv_schema_any_array(s),
                       iv_schema_any_object(s)};
    for (size_t i = 0; i < 3; i++) iv_automaton_text_to(s->a, from, words[i], strlen(words[i]), to);
    for (size_t i = 0; i < 4; i++)
        if (parts[i] >= 0) iv_automaton_call(s->a, from, parts[i], to);
    return s->a->failed == IV_OK ? rule : IV_NO_RULE;
}

uint32_t iv_json_mark(iv_automaton *a, uint32_t from, char mark) {
    uint32_t behind = iv_automaton_state(a);
    iv_automaton_bytes(a, from, (uint8_t)mark, (uint8_t)mark, behind);
    return iv_json_space(a, behind);
}

uint32_t iv_json_space(iv_automaton *a, uint32_t from) {
    uint32_t on = iv_automaton_state(a);
    iv_automaton_bytes(a, from, ' ', ' ', on);
    iv_automaton_skip(a, from, on);
    return on;
}

/* ---- references ---------------------------------------------------------------------------------------- */

static iv_status resolve(iv_schema_set *s, const json_t *ref, const char *where, json_t **out, const char **place,
                         iv_error *err) {
    const char *text = json_string_value(ref);
    if (!text) return iv_schema_fail(s, IV_INVALID, where, "$ref: wanted a string", err);
    if (text[0] != '#' || (text[1] && text[1] != '/'))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "$ref: wanted \"#\" or a JSON pointer in this document, \"#/...\"", err);
    *out = iv_json_pointer(s->root, text);
    if (!*out) return iv_fail(err, IV_INVALID, "%s: %.300s: $ref: \"%.100s\" is not there", s->name, where, text);
    *place = iv_arena_strndup(s->arena, text, iv_size_min(strlen(text), 300));
    return *place ? IV_OK : iv_schema_no_memory(s, err);
}

/* ---- keywords ------------------------------------------------------------------------------------------ */

static iv_status check_keywords(const iv_schema_set *s, json_t *schema, const char *where, iv_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(schema))
        return iv_schema_fail(s, IV_INVALID, where, "wanted a schema: an object, true or false", err);
    json_object_foreach(schema, key, value) {
        if (AMONG(key, labels) || AMONG(key, plain_words) || AMONG(key, joining_words)) continue;
        return iv_fail(err, IV_UNSUPPORTED, "%s: %.300s/%.100s: this keyword is not supported", s->name, where, key);
    }
    return IV_OK;
}

/* ---- combinations -------------------------------------------------------------------------------------- */

/* What a schema says, taken apart. */
typedef struct parts {
    json_t *plain;   /* all plain keywords, merged; owned */
    json_t *choices; /* arrays of anyOf and oneOf; owned */
    bool nothing;    /* a false was among them */
} parts;

static iv_status take_apart(iv_schema_set *s, json_t *schema, const char *where, int depth, parts *out, iv_error *err) {
    const char *key, *place;
    json_t *value, *plain, *target;
    size_t i;
    if (depth > REFERENCES_MAX)
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "refers to itself with nothing in between", err);
    out->nothing |= json_is_false(schema);
    if (json_is_boolean(schema)) return IV_OK;
    IV_TRY(iv_schema_spend(s, 1 + json_object_size(schema), IV_EFFORT_SCHEMA, where, err));
    IV_TRY(check_keywords(s, schema, where, err));
    if (!(plain = json_object())) return iv_schema_no_memory(s, err);
    bool ok = true;
    json_object_foreach(schema, key, value) if (AMONG(key, plain_words)) ok =
        ok && json_object_set(plain, key, value) == 0;
    iv_status status = ok ? iv_schema_merge(s, out->plain, plain, where, err) : iv_schema_no_memory(s, err);
    json_decref(plain);
    IV_TRY(status);
    if ((value = json_object_get(schema, "$ref"))) {
        IV_TRY(resolve(s, value, where, &target, &place, err));
        IV_TRY(take_apart(s, target, place, depth + 1, out, err));
    }
    value = json_object_get(schema, "allOf");
    if (value && !json_is_array(value)) return iv_schema_fail(s, IV_INVALID, where, "allOf: wanted a list", err);
    json_array_foreach(value, i, target)
        IV_TRY(take_apart(s, target, iv_schema_at_index(s, where, "allOf", i), depth + 1, out, err));
    for (int k = 2; k < 4; k++) {
        value = json_object_get(schema, joining_words[k]);
        if (!value) continue;
        if (json_array_size(value) == 0)
            return iv_fail(err, IV_INVALID, "%s: %.300s/%s: wanted a list of schemas", s->name, where,
                           joining_words[k]);
        if (json_array_append_new(out->choices, json_pack("{s:O, s:s}", "list", value, "at",
                                                          iv_schema_at(s, where, joining_words[k]))) != 0)
            return iv_schema_no_memory(s, err);
    }
    return IV_OK;
}

/* For json_decref. Rules of what is in `plain` know it by address: it stays. */
static iv_status open_parts(iv_schema_set *s, json_t *schema, const char *where, parts *out, iv_error *err) {
    *out = (parts){.plain = json_object(), .choices = json_array()};
    if (!out->plain || !out->choices || json_array_append(s->made, out->plain) != 0) return iv_schema_no_memory(s, err);
    return take_apart(s, schema, where, 0, out, err);
}

/* A schema that stands for everything taken apart, with one branch of the first choice. */
static json_t *with_branch(iv_schema_set *s, const parts *p, json_t *branch) {
    json_t *all = json_pack("[O, O]", p->plain, branch);
    bool ok = all != NULL;
    for (size_t i = 1; ok && i < json_array_size(p->choices); i++)
        ok = json_array_append_new(
                 all, json_pack("{s:O}", "anyOf", json_object_get(json_array_get(p->choices, i), "list"))) == 0;
    json_t *schema = ok ? json_pack("{s:O}", "allOf", all) : NULL;
    json_decref(all);
    return schema && json_array_append_new(s->made, schema) == 0 ? schema : NULL;
}

static iv_status write_choices(iv_schema_set *s, const parts *p, const char *where, uint32_t from, uint32_t to,
                               iv_error *err) {
    json_t *first = json_array_get(p->choices, 0), *list = json_object_get(first, "list"), *branch;
    bool alone = json_object_size(p->plain) == 0 && json_array_size(p->choices) == 1;
    const char *place = json_string_value(json_object_get(first, "at"));
    size_t i;
    json_array_foreach(list, i, branch) {
        int32_t rule;
        char index[24];
        snprintf(index, sizeof index, "%zu", i);
        IV_TRY(iv_schema_spend(s, json_array_size(p->choices), IV_EFFORT_MEMBER, where, err));
        json_t *one = alone ? branch : with_branch(s, p, branch);
        if (!one) return iv_schema_no_memory(s, err);
        IV_TRY(iv_schema_rule(s, one, alone ? iv_schema_at(s, place, index) : where, &rule, err));
        iv_automaton_call(s->a, from, rule, to);
    }
    return IV_OK;
}

static iv_status write_combined(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                                iv_error *err) {
    parts p;
    iv_status status = open_parts(s, schema, where, &p, err);
    if (status == IV_OK && !p.nothing)
        status = json_array_size(p.choices) ? write_choices(s, &p, where, from, to, err)
                                            : iv_schema_plain(s, p.plain, where, from, to, err);
    json_decref(p.plain), json_decref(p.choices);
    return status;
}

static iv_status each(iv_schema_set *s, json_t *schema, const char *where, int depth, iv_schema_writer *write,
                      void *user, iv_error *err) {
    parts p;
    if (depth > REFERENCES_MAX)
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "refers to itself with nothing in between", err);
    iv_status status = open_parts(s, schema, where, &p, err);
    json_t *list = json_object_get(json_array_get(p.choices, 0), "list"), *branch;
    size_t i;
    if (status == IV_OK && !p.nothing && !list) status = write(s, p.plain, where, user, err);
    if (status == IV_OK && !p.nothing) json_array_foreach(list, i, branch) {
            json_t *one = with_branch(s, &p, branch);
            status = one ? each(s, one, where, depth + 1, write, user, err) : iv_schema_no_memory(s, err);
            if (status != IV_OK) break;
        }
    json_decref(p.plain), json_decref(p.choices);
    return status;
}

iv_status iv_schema_each(iv_schema_set *s, json_t *schema, const char *where, iv_schema_writer *write, void *user,
                         iv_error *err) {
    return each(s, schema, where, 0, write, user, err);
}

/* A reference with nothing but labels beside it is its target's own rule: so recursion ends. */
static bool is_reference(json_t *schema) {
    const char *key;
    json_t *value;
    if (!json_object_get(schema, "$ref")) return false;
    json_object_foreach(schema, key, value) if (strcmp(key, "$ref") != 0 && !AMONG(key, labels)) return false;
    return true;
}

static iv_status compile(iv_schema_set *s, const struct iv_schema_job *job, iv_error *err) {
    uint32_t from = s->a->rules[job->rule].start, to = iv_automaton_state(s->a);
    json_t *schema = job->schema;
    iv_automaton_end(s->a, to);
    if (json_is_false(schema)) return IV_OK; /* no path */
    IV_TRY(check_keywords(s, schema, job->where, err));
    if (is_reference(schema)) {
        json_t *target;
        const char *place;
        int32_t rule;
        IV_TRY(resolve(s, json_object_get(schema, "$ref"), job->where, &target, &place, err));
        IV_TRY(iv_schema_rule(s, target, place, &rule, err));
        iv_automaton_call(s->a, from, rule, to);
        return IV_OK;
    }
    for (size_t i = 0; i < sizeof joining_words / sizeof *joining_words; i++)
        if (json_object_get(schema, joining_words[i])) return write_combined(s, schema, job->where, from, to, err);
    return iv_schema_plain(s, schema, job->where, from, to, err);
}

iv_status iv_schema_set_compile(iv_schema_set *s, iv_error *err) {
    while (s->jobs_done < s->job_count && s->a->failed == IV_OK) {
        struct iv_schema_job job = s->jobs[s->jobs_done++]; /* the array may move */
        IV_TRY(compile(s, &job, err));
    }
    return IV_OK;
}
