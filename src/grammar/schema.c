/* schema.c: from a schema to its rule: choices, the queue of schemas to compile. */
#include "grammar/schema.h"

#include <stdio.h>
#include <string.h>

/* A schema equivalent to the parts, with one branch of the first choice. */
static json_t *with_branch(iv_schema_set *s, const iv_schema_parts *p, json_t *branch) {
    json_t *all = json_pack("[O, O]", p->plain, branch);
    bool ok = all != NULL;
    for (size_t i = 1; ok && i < json_array_size(p->choices); i++) {
        const json_t *choice = json_array_get(p->choices, i);
        ok = json_array_append_new(all, json_pack("{s:O}", json_string_value(json_object_get(choice, "key")),
                                                  json_object_get(choice, "list"))) == 0;
    }
    json_t *schema = ok ? json_pack("{s:O}", "allOf", all) : NULL;
    json_decref(all);
    return schema && json_array_append_new(s->made, schema) == 0 ? schema : NULL;
}

/* The branches of the first choice; NULL: there is none. */
static iv_status first_branches(iv_schema_set *s, const iv_schema_parts *p, const char *where, json_t **list,
                                iv_error *err) {
    const json_t *first = json_array_get(p->choices, 0);
    const char *key = json_string_value(json_object_get(first, "key"));
    *list = json_object_get(first, "list");
    if (!key || strcmp(key, "oneOf") != 0) return IV_OK;
    return iv_schema_exclusive(s, p->plain, json_array_size(p->choices) == 1, *list, where, list, err);
}

static iv_status write_choices(iv_schema_set *s, const iv_schema_parts *p, const char *where, uint32_t from,
                               uint32_t to, iv_error *err) {
    json_t *first = json_array_get(p->choices, 0), *list, *branch;
    bool alone = json_object_size(p->plain) == 0 && json_array_size(p->choices) == 1;
    const char *target_where = json_string_value(json_object_get(first, "at"));
    size_t i;
    IV_TRY(first_branches(s, p, where, &list, err));
    json_array_foreach(list, i, branch) {
        int32_t rule;
        char index[24];
        snprintf(index, sizeof index, "%zu", i);
        IV_TRY(iv_schema_charge(s, json_array_size(p->choices), IV_EFFORT_MEMBER, where, err));
        json_t *one = alone ? branch : with_branch(s, p, branch);
        if (!one) return iv_schema_no_memory(s, err);
        IV_TRY(iv_schema_rule(s, one, alone ? iv_schema_at(s, target_where, index) : where, &rule, err));
        iv_automaton_call(s->a, from, rule, to);
    }
    return IV_OK;
}

static iv_status write_combined(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                                iv_error *err) {
    iv_schema_parts p;
    iv_status status = iv_schema_parts_open(s, schema, where, &p, err);
    if (status == IV_OK && !p.nothing)
        status = json_array_size(p.choices) ? write_choices(s, &p, where, from, to, err)
                                            : iv_schema_plain(s, p.plain, where, from, to, err);
    iv_schema_parts_close(&p);
    return status;
}

static iv_status each(iv_schema_set *s, json_t *schema, const char *where, int depth, iv_schema_writer *write,
                      void *user, iv_error *err) {
    iv_schema_parts p;
    if (depth > IV_SCHEMA_REFERENCES_MAX)
        return iv_schema_fail(s, IV_UNSUPPORTED, where, "refers to itself with nothing in between", err);
    iv_status status = iv_schema_parts_open(s, schema, where, &p, err);
    json_t *list = NULL, *branch;
    size_t i;
    if (status == IV_OK && !p.nothing) status = first_branches(s, &p, where, &list, err);
    if (status == IV_OK && !p.nothing && !list) status = write(s, p.plain, where, user, err);
    if (status == IV_OK && !p.nothing) json_array_foreach(list, i, branch) {
            json_t *one = with_branch(s, &p, branch);
            status = one ? each(s, one, where, depth + 1, write, user, err) : iv_schema_no_memory(s, err);
            if (status != IV_OK) break;
        }
    iv_schema_parts_close(&p);
    return status;
}

iv_status iv_schema_each(iv_schema_set *s, json_t *schema, const char *where, iv_schema_writer *write, void *user,
                         iv_error *err) {
    return each(s, schema, where, 0, write, user, err);
}

/* A reference with only labels next to it shares its target's rule: so recursion ends. */
static bool is_reference(json_t *schema) {
    const char *key;
    json_t *value;
    if (!json_object_get(schema, "$ref")) return false;
    json_object_foreach(schema, key, value) if (strcmp(key, "$ref") != 0 && !iv_schema_is_label(key)) return false;
    return true;
}

static iv_status compile(iv_schema_set *s, const struct iv_schema_job *job, iv_error *err) {
    uint32_t from = s->a->rules[job->rule].start, to = iv_automaton_state(s->a);
    json_t *schema = job->schema;
    iv_automaton_end(s->a, to);
    if (json_is_false(schema)) return IV_OK; /* no path */
    IV_TRY(iv_schema_check_keywords(s, schema, job->where, err));
    if (is_reference(schema)) {
        json_t *target;
        const char *target_where;
        int32_t rule;
        IV_TRY(iv_schema_resolve(s, json_object_get(schema, "$ref"), job->where, &target, &target_where, err));
        IV_TRY(iv_schema_rule(s, target, target_where, &rule, err));
        iv_automaton_call(s->a, from, rule, to);
        return IV_OK;
    }
    static const char *const joining[] = {"$ref", "allOf", "anyOf", "oneOf"};
    for (size_t i = 0; i < sizeof joining / sizeof *joining; i++)
        if (json_object_get(schema, joining[i])) return write_combined(s, schema, job->where, from, to, err);
    return iv_schema_plain(s, schema, job->where, from, to, err);
}

iv_status iv_schema_set_compile(iv_schema_set *s, iv_error *err) {
    while (s->jobs_done < s->job_count && s->a->failed == IV_OK) {
        struct iv_schema_job job = s->jobs[s->jobs_done++]; /* by value: the array may move */
        IV_TRY(compile(s, &job, err));
    }
    return IV_OK;
}

iv_status iv_schema_write(iv_schema_common *common, const char *name, json_t *root, json_t *schema, uint32_t from,
                          uint32_t to, iv_error *err) {
    iv_schema_set s;
    int32_t rule;
    iv_status status = IV_OK;
    IV_TRY(iv_schema_set_open(&s, name, root, common, err));
    if (schema)
        status = iv_schema_rule(&s, schema, "#", &rule, err);
    else
        rule = iv_schema_any_object(&s);
    if (status == IV_OK && rule >= 0) iv_automaton_call(s.a, from, rule, to);
    if (status == IV_OK) status = iv_schema_set_compile(&s, err);
    iv_schema_set_close(&s);
    return status;
}
