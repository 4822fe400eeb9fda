/* tool_python.c: calls as those of Python functions: NAME(KEY=VALUE, KEY=VALUE). Values are JSON, which src/chat reads
 * like Python's literals: true, false and null for True, False and None. */
#include "grammar/tool_parts.h"
#include "grammar/schema_names.h"
#include "format/json.h"
#include "grammar/schema.h"

#include <string.h>

enum { OPEN_NAME_BYTES = 64 };

typedef struct writer {
    iv_kind_builder *m;
    uint32_t from, to;
} writer;

/* Before a key: nothing was written, or something. */
typedef struct place {
    uint32_t first, later;
} place;

/* "KEY=" is written to *named by the caller from here. */
static uint32_t key_at(iv_automaton *a, place at) {
    uint32_t key = iv_automaton_state(a);
    iv_automaton_skip(a, at.first, key);
    iv_automaton_text_to(a, at.later, ", ", 2, key);
    return key;
}

static iv_status write_value(iv_schema_set *s, json_t *schema, const char *where, uint32_t from, uint32_t to,
                             iv_error *err) {
    int32_t rule;
    IV_TRY(iv_schema_rule(s, schema, where, &rule, err));
    iv_automaton_call(s->a, iv_automaton_text(s->a, from, "="), rule, to);
    return IV_OK;
}

static iv_status write_named(iv_schema_set *s, const char *name, json_t *schema, bool required, const char *where,
                             place *at, iv_error *err) {
    iv_automaton *a = s->a;
    uint32_t later = iv_automaton_state(a), first = iv_automaton_state(a);
    if (!iv_tool_name_is_bare(name, strlen(name)))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: %.300s: the model's tool call form requires names of letters, digits, '_', '-' and '.'",
                       s->name, where);
    IV_TRY(write_value(s, schema, where, iv_automaton_text(a, key_at(a, *at), name), later, err));
    if (!required) iv_automaton_skip(a, at->first, first), iv_automaton_skip(a, at->later, later);
    *at = (place){first, later};
    return IV_OK;
}

/* Any arguments. */
static iv_status write_open(const writer *w, iv_schema_set *s, json_t *rest, const char *where, iv_error *err) {
    static const char ranges[] = "azAZ09__";
    iv_automaton *a = s->a;
    place at = {w->from, iv_automaton_state(a)};
    uint32_t name = key_at(a, at), named = iv_automaton_state(a);
    for (size_t k = 0; k < OPEN_NAME_BYTES && a->failed == IV_OK; k++) {
        uint32_t on = iv_automaton_state(a);
        for (size_t r = 0; r + 1 < sizeof ranges; r += 2)
            iv_automaton_bytes(a, name, (uint8_t)ranges[r], (uint8_t)ranges[r + 1], on);
        iv_automaton_skip(a, on, named);
        name = on;
    }
    iv_automaton_text_to(a, at.first, ")", 1, w->to), iv_automaton_text_to(a, at.later, ")", 1, w->to);
    return write_value(s, rest, iv_schema_at(s, where, "additionalProperties"), named, at.later, err);
}

static bool is_required(const json_t *required, const char *name) {
    const json_t *one;
    size_t i;
    json_array_foreach(required, i, one) {
        if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    }
    return false;
}

/* One alternative of the arguments, in the order of its properties. Others than the named ones are not written. */
static iv_status write_object(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err) {
    const writer *w = user;
    json_t *type = json_object_get(plain, "type"), *listed = json_object_get(plain, "properties"), *v;
    json_t *rest = json_object_get(plain, "additionalProperties"), *required = json_object_get(plain, "required");
    const char *name, *listed_where = iv_schema_at(s, where, "properties");
    unsigned allowed = IV_KIND_OBJECT;
    place at = {w->from, iv_automaton_state(s->a)};
    size_t i;
    if (type) IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    if (!(allowed & IV_KIND_OBJECT)) return IV_OK;
    if (json_object_get(plain, "enum") || json_object_get(plain, "const") || iv_schema_has_names(plain) ||
        json_object_get(plain, "minProperties") || json_object_get(plain, "maxProperties"))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "enum, const, patternProperties, propertyNames, minProperties, maxProperties: not "
                              "supported for arguments in the model's tool call form",
                              err);
    if ((listed && !json_is_object(listed)) || (required && !json_is_array(required)))
        return iv_schema_fail(s, IV_INVALID, where, "wanted \"properties\", an object, and \"required\", a list", err);
    bool open = rest ? !json_is_false(rest) : !listed, named = json_object_size(listed) || json_array_size(required);
    if (!rest) rest = json_true();
    if (!named && open) return write_open(w, s, rest, where, err);
    IV_TRY(iv_schema_charge(s, 1 + json_object_size(listed), 1 + json_array_size(required), where, err));
    json_object_foreach(listed, name, v) {
        const char *at_name = iv_schema_at(s, listed_where, name);
        IV_TRY(write_named(s, name, v, is_required(required, name), at_name, &at, err));
    }
    json_array_foreach(required, i, v) {
        name = json_string_value(v);
        if (!name) return iv_schema_fail(s, IV_INVALID, where, "required: wanted strings", err);
        if (json_object_get(listed, name)) continue;
        IV_TRY(write_named(s, name, rest, true, iv_schema_at(s, where, "required"), &at, err));
    }
    iv_automaton_text_to(s->a, at.first, ")", 1, w->to), iv_automaton_text_to(s->a, at.later, ")", 1, w->to);
    return IV_OK;
}

iv_status iv_tool_python_write(iv_kind_builder *m, const iv_tool_entry *entry, const char *name, json_t *parameters,
                               uint32_t from, uint32_t to, iv_error *err) {
    iv_schema_set s;
    bool none = !parameters || json_is_null(parameters);
    IV_TRY(iv_tool_name_check(entry, name, err));
    uint32_t at = iv_automaton_text(m->a, iv_automaton_text(m->a, from, name), "(");
    writer w = {m, at, to};
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    IV_TRY(iv_schema_set_open(&s, entry->name, parameters, &m->common, err));
    iv_status status = iv_schema_each(&s, none ? json_true() : parameters, "#", write_object, &w, err);
    if (status == IV_OK) status = iv_schema_set_compile(&s, err);
    iv_schema_set_close(&s);
    return status;
}
