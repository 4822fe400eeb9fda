/* tool_tags.c: calls whose arguments are text between marks (IV_TOOLS_TAGS): NAME, then each argument with its own
 * marks. Strings are written as they are, other values as JSON; src/chat reads them back as values that satisfy the
 * schema. */
#include "grammar/tool_parts.h"
#include "grammar/schema_names.h"
#include "format/json.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <string.h>

enum {
    EXCLUDE_EFFORT = 2560, /* per state of a pattern, with these words */
    LOOK_EFFORT = 8,       /* per lookup of a parameter's types */
    OPEN_NAME_BYTES = 64,
    NAME_WRITABLE_BYTES_MAX = 256,
    ENDS = 3,
    END_BYTES = 32
};

typedef struct writer {
    iv_kind_builder *m;
    const iv_tool_marks *marks;
    char ends_text[ENDS][END_BYTES];
    const char *ends[ENDS + 1]; /* the ends of a value: none may occur in one */
    json_t *parameters;         /* the schema of all */
    uint32_t from, to;
    unsigned kinds; /* of a value: the types it may be parsed as */
} writer;

/* A value ends at its mark, or where the mark was forgotten, at a line that begins with another. */
static void list_ends(writer *w) {
    const char *const marks[ENDS] = {w->marks->value_end, w->marks->key, w->marks->function_end};
    for (size_t i = 0, count = 0; i < ENDS; i++) {
        if (i && !w->marks->function_end) continue;
        snprintf(w->ends_text[count], END_BYTES, "%s%s", i ? "\n" : "", marks[i]);
        w->ends[count] = w->ends_text[count], count++;
    }
}

/* Whether a name can be between the marks: 1 to 256 bytes, no '<', '>' or control characters; no '"' where the marks
 * have it. */
static bool name_is_writable(const iv_tool_marks *marks, const char *name) {
    size_t n = strlen(name);
    bool quoted = strchr(marks->named, '"') != NULL;
    for (const char *c = name; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7f || *c == '<' || *c == '>' || (quoted && *c == '"')) return false;
    return n > 0 && n <= NAME_WRITABLE_BYTES_MAX;
}

/* ---- values of parameters ------------------------------------------------------------------------------ */

/* The characters with which a text would be parsed as another type. null is a single word, so its first letter is
 * allowed. */
static void first_of_others(const writer *w, unsigned kinds, char out[20]) {
    static const struct {
        unsigned kinds;
        const char *characters;
    } firsts[] = {{IV_KIND_INTEGER | IV_KIND_NUMBER, "-0123456789"},
                  {IV_KIND_BOOLEAN, "tf"},
                  {IV_KIND_ARRAY, "["},
                  {IV_KIND_OBJECT, "{"}};
    strcpy(out, w->marks->value_lines ? "" : "\n"); /* a line end there would be one around the value */
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++)
        if (kinds & firsts[i].kinds) strcat(out, firsts[i].characters);
}

static bool is_writable_text(const writer *w, const char *text, const char *not_first) {
    bool good = !*text || !strchr(not_first, *text);
    for (const char *const *end = w->ends; *end; end++) {
        bool begins = (*end)[0] == '\n' && strncmp(text, *end + 1, strlen(*end) - 1) == 0;
        good = good && !begins && !strstr(text, *end);
    }
    return good;
}

/* A rule, plus one; 0: the automaton has failed. */
static int32_t beyond_ascii(iv_schema_set *s) {
    uint32_t from, to;
    iv_spell_tails tails = {0};
    int32_t *slot = &s->common->beyond_ascii;
    if (!*slot && iv_schema_new_rule(s, slot, &from, &to) >= 0)
        iv_codepoints_spell(&iv_beyond_ascii, s->a, IV_SPELL_RAW, from, to, &tails);
    return *slot;
}

static iv_status write_text(const writer *w, iv_schema_set *s, json_t *plain, const char *where, iv_error *err) {
    iv_schema_text t;
    iv_regular m;
    char not_first[20];
    uint32_t from = w->from, to = w->to;
    IV_TRY(iv_schema_text_read(s, plain, where, &t, err));
    first_of_others(w, w->kinds, not_first);
    bool free = t.any && t.min == 0 && t.max == SIZE_MAX && strlen(not_first) == !w->marks->value_lines;
    int32_t *common = &s->common->any_text;
    if (free && *common) {
        iv_automaton_call(s->a, w->from, *common - 1, w->to);
        return IV_OK;
    }
    if (free) {
        int32_t rule = iv_schema_new_rule(s, common, &from, &to);
        if (rule < 0) return IV_OK;
        iv_automaton_call(s->a, w->from, rule, w->to);
    }
    IV_TRY(iv_schema_charge(s, t.m.state_count, EXCLUDE_EFFORT, where, err));
    IV_TRY(iv_regular_exclude(t.where, &t.m, w->ends, not_first, s->arena, &m, err));
    iv_writing how = {IV_SPELL_RAW, IV_NO_RULE, beyond_ascii(s)};
    return iv_regular_spell(t.where, &m, s->a, how, t.min, t.max, from, to, err);
}

/* The values, with strings written as they are; strings that cannot be written are left out. */
static iv_status write_values(const writer *w, iv_schema_set *s, json_t *plain, const char *where, iv_error *err) {
    json_t *list, *v;
    size_t i;
    char not_first[20];
    first_of_others(w, w->kinds, not_first);
    IV_TRY(iv_schema_values(s, plain, where, &list, err));
    json_array_foreach(list, i, v) {
        const char *text = json_string_value(v);
        if (!text)
            IV_TRY(iv_schema_value(s, v, where, w->from, w->to, err));
        else if (strlen(text) == json_string_length(v) && is_writable_text(w, text, not_first))
            iv_automaton_text_to(s->a, w->from, text, strlen(text), w->to);
    }
    return IV_OK;
}

/* Without a type, the value is a text. */
static iv_status write_value(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err) {
    const writer *w = user;
    json_t *type = json_object_get(plain, "type");
    unsigned allowed = iv_json_keyword_kinds(plain);
    if (json_object_get(plain, "enum") || json_object_get(plain, "const")) return write_values(w, s, plain, where, err);
    if (type)
        IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    else if (!allowed)
        allowed = IV_KIND_STRING;
    if (allowed & IV_KIND_STRING) IV_TRY(write_text(w, s, plain, where, err));
    allowed &= ~(unsigned)IV_KIND_STRING;
    if (!allowed) return IV_OK;
    static const char *const names[] = {"null", "boolean", "number", "array", "object"};
    json_t *others = json_copy(plain), *list = json_array();
    bool ok = others && list && json_array_append(s->made, others) == 0;
    for (size_t i = 0; ok && i < sizeof names / sizeof *names; i++) {
        unsigned bits = iv_json_kind_named(names[i]) & allowed;
        const char *name = bits == IV_KIND_INTEGER ? "integer" : names[i];
        if (bits) ok = json_array_append_new(list, json_string(name)) == 0;
    }
    ok = json_object_set_new(others, "type", list) == 0 && ok;
    json_decref(others); /* s->made keeps it */
    return ok ? iv_schema_plain(s, others, where, w->from, w->to, err) : iv_schema_no_memory(s, err);
}

/* After the mark of a key and the name. */
static iv_status write_rest(const writer *w, iv_schema_set *s, json_t *schema, const char *name, const char *where,
                            uint32_t from, uint32_t to, iv_error *err) {
    size_t looks;
    unsigned kinds = iv_json_parameter_kinds(w->parameters, name, &looks);
    IV_TRY(iv_schema_charge(s, looks, LOOK_EFFORT, where, err));
    const iv_tool_marks *marks = w->marks;
    const char *line = marks->value_lines ? "\n" : "";
    writer value = *w;
    uint32_t at = iv_tool_mark_write(w->m, from, marks->keyed);
    if (marks->value) at = iv_tool_mark_write(w->m, iv_automaton_text(s->a, at, "\n"), marks->value);
    value.kinds = kinds, value.from = iv_automaton_text(s->a, at, line), value.to = iv_automaton_state(s->a);
    at = iv_tool_mark_write(w->m, iv_automaton_text(s->a, value.to, line), marks->value_end);
    iv_automaton_text_to(s->a, at, "\n", 1, to);
    return iv_schema_each(s, schema, where, write_value, &value, err);
}

/* ---- the parameters ------------------------------------------------------------------------------------ */

static bool is_required(const json_t *required, const char *name) {
    const json_t *one;
    size_t i;
    json_array_foreach(required, i,
                       one) if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

/* Advances *at. */
static iv_status write_named(const writer *w, iv_schema_set *s, const char *name, json_t *schema, bool required,
                             const char *where, uint32_t *at, iv_error *err) {
    uint32_t next = iv_automaton_state(s->a);
    if (!name_is_writable(w->marks, name))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: %.300s: the model's tool call form requires names of 1 to %d bytes without '<', '>' and "
                       "control characters",
                       s->name, where, NAME_WRITABLE_BYTES_MAX);
    uint32_t named = iv_automaton_text(s->a, iv_tool_mark_write(w->m, *at, w->marks->key), name);
    IV_TRY(write_rest(w, s, schema, name, where, named, next, err));
    if (!required) iv_automaton_skip(s->a, *at, next);
    *at = next;
    return IV_OK;
}

static void write_end(const writer *w, uint32_t at) {
    if (w->marks->function_end) at = iv_tool_mark_write(w->m, at, w->marks->function_end);
    iv_automaton_skip(w->m->a, at, w->to);
}

/* Any parameters with names of letters, digits, '_', '-' and '.'. A repeated name counts once. */
static iv_status write_open(const writer *w, iv_schema_set *s, json_t *plain, json_t *rest, const char *where,
                            uint32_t at, iv_error *err) {
    static const char ranges[] = "azAZ09__--..";
    size_t min = 0, max = SIZE_MAX;
    iv_automaton *a = s->a;
    const char *rest_where = iv_schema_at(s, where, "additionalProperties");
    IV_TRY(iv_schema_count(s, plain, "minProperties", where, &min, err));
    IV_TRY(iv_schema_count(s, plain, "maxProperties", where, &max, err));
    if (min > 1)
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "minProperties: the model's tool call form requires 0 or 1 without \"properties\"", err);
    for (size_t i = 0; a->failed == IV_OK; i++) {
        if (i >= min) write_end(w, at);
        if (i == max) return IV_OK;
        bool last = max == SIZE_MAX && i >= min;
        uint32_t name = iv_tool_mark_write(w->m, at, w->marks->key), next = last ? at : iv_automaton_state(a);
        uint32_t named = iv_automaton_state(a);
        for (size_t k = 0; k < OPEN_NAME_BYTES; k++) {
            uint32_t on = iv_automaton_state(a);
            for (size_t r = 0; r + 1 < sizeof ranges; r += 2)
                iv_automaton_bytes(a, name, (uint8_t)ranges[r], (uint8_t)ranges[r + 1], on);
            iv_automaton_skip(a, on, named);
            name = on;
        }
        IV_TRY(write_rest(w, s, rest, "", rest_where, named, next, err));
        if (last) return IV_OK;
        at = next;
    }
    return IV_OK;
}

/* One alternative of the parameters. Properties other than the named ones are not written. */
static iv_status write_object(iv_schema_set *s, json_t *plain, const char *where, void *user, iv_error *err) {
    const writer *w = user;
    json_t *type = json_object_get(plain, "type"), *listed = json_object_get(plain, "properties");
    json_t *rest = json_object_get(plain, "additionalProperties"), *required = json_object_get(plain, "required"), *v;
    const char *name, *listed_where = iv_schema_at(s, where, "properties");
    unsigned allowed = IV_KIND_OBJECT;
    uint32_t at = w->from;
    size_t i;
    if (type) IV_TRY(iv_schema_kinds(s, type, where, &allowed, err));
    if (!(allowed & IV_KIND_OBJECT)) return IV_OK;
    if (json_object_get(plain, "enum") || json_object_get(plain, "const"))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "enum, const: not supported for arguments in the model's tool call form", err);
    if ((listed && !json_is_object(listed)) || (required && !json_is_array(required)))
        return iv_schema_fail(s, IV_INVALID, where, "wanted \"properties\", an object, and \"required\", a list", err);
    if (iv_schema_has_names(plain))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "patternProperties, propertyNames: not supported in the model's tool call form", err);
    bool open = rest ? !json_is_false(rest) : !listed, named = json_object_size(listed) || json_array_size(required);
    if (!rest) rest = json_true();
    if (!named && open) return write_open(w, s, plain, rest, where, at, err);
    if (json_object_get(plain, "minProperties") || json_object_get(plain, "maxProperties"))
        return iv_schema_fail(s, IV_UNSUPPORTED, where,
                              "minProperties, maxProperties: not supported next to \"properties\"", err);
    IV_TRY(iv_schema_charge(s, 1 + json_object_size(listed), 1 + json_array_size(required), where, err));
    json_object_foreach(listed, name, v) {
        const char *at_name = iv_schema_at(s, listed_where, name);
        IV_TRY(write_named(w, s, name, v, is_required(required, name), at_name, &at, err));
    }
    json_array_foreach(required, i, v) {
        name = json_string_value(v);
        if (!name) return iv_schema_fail(s, IV_INVALID, where, "required: wanted strings", err);
        if (json_object_get(listed, name)) continue;
        IV_TRY(write_named(w, s, name, rest, true, iv_schema_at(s, where, "required"), &at, err));
    }
    write_end(w, at);
    return IV_OK;
}

/* The parameters up to and including the function's end. parameters: their schema; NULL, null, true: any. `name`
 * prefixes errors. */
static iv_status write_parameters(iv_kind_builder *m, const iv_tool_marks *marks, const char *name, json_t *parameters,
                                  uint32_t from, uint32_t to, iv_error *err) {
    iv_schema_set s;
    bool none = !parameters || json_is_null(parameters);
    writer w = {.m = m, .marks = marks, .parameters = parameters, .from = from, .to = to};
    list_ends(&w);
    IV_TRY(iv_schema_set_open(&s, name, parameters, &m->common, err));
    iv_status status = iv_schema_each(&s, none ? json_true() : parameters, "#", write_object, &w, err);
    if (status == IV_OK) status = iv_schema_set_compile(&s, err);
    iv_schema_set_close(&s);
    return status;
}

iv_status iv_tool_tags_write(iv_kind_builder *m, const iv_tool_marks *marks, const iv_tool_entry *entry,
                             const char *name, json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    if (!name_is_writable(marks, name))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: the model's tool call form requires a name without '<', '>'%s and control characters",
                       entry->name, strchr(marks->named, '"') ? ", '\"'" : "");
    uint32_t at = iv_automaton_text(a, m->function ? m->function : iv_automaton_text(a, from, marks->function), name);
    at = iv_automaton_text(a, at, marks->named);
    if (strcmp(marks->named, "\n") != 0) at = iv_automaton_text(a, at, "\n");
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return write_parameters(m, marks, entry->name, parameters, at, to, err);
}
