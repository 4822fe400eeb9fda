/* kinds.c: the texts of constraints -> automata: what may stand before the constrained part, and that part. */
#include "grammar/kinds.h"
#include "base/utf8.h"
#include "format/json.h"
#include "grammar/regular.h"
#include "grammar/schema.h"

#include <string.h>

enum { CHOICES_MAX = 20000, TOOLS_MAX = 512, TOOL_NAME_BYTES_MAX = 256, LINES_AFTER_REASONING = 2 };

const char *iv_constraint_name(iv_constraint_kind kind) {
    static const char *const names[] = {"none",   "json_object", "json_schema", "regex",
                                        "choice", "tool_call",   "tool_calls"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "none";
}

/* Where a tool's arguments begin, and what they are called. */
typedef struct tool_place {
    uint32_t state;
    const char *name;
} tool_place;

/* What an automaton is made with. */
typedef struct maker {
    iv_arena *arena;
    iv_automaton *a;
    iv_schema_common common;
    tool_place *tools; /* [tool_count] */
    size_t tool_count;
} maker;

/* ---- the parts ----------------------------------------------------------------------------------------- */

/* root: what references of the schema are looked up in. */
static iv_status write_schema(maker *m, const char *name, json_t *root, json_t *schema, uint32_t from, uint32_t to,
                              iv_error *err) {
    iv_schema_set set;
    int32_t rule;
    IV_TRY(iv_schema_set_open(&set, name, root, &m->common, m->a, m->arena, err));
    iv_status status = iv_schema_rule(&set, schema, "#", &rule, err);
    if (status == IV_OK) iv_automaton_call(m->a, from, rule, to);
    if (status == IV_OK) status = iv_schema_set_compile(&set, err);
    iv_schema_set_close(&set);
    return status;
}

static iv_status write_object(maker *m, uint32_t from, uint32_t to, iv_error *err) {
    iv_schema_set set;
    IV_TRY(iv_schema_set_open(&set, "json_object", NULL, &m->common, m->a, m->arena, err));
    int32_t rule = iv_schema_any_object(&set);
    if (rule >= 0) iv_automaton_call(m->a, from, rule, to);
    iv_schema_set_close(&set);
    return IV_OK;
}

static iv_status write_regex(maker *m, const char *text, uint32_t from, uint32_t to, iv_error *err) {
    iv_regular r;
    IV_TRY(iv_regular_parse("regex", text, strlen(text), true, m->arena, &r, err));
    return iv_regular_spell("regex", &r, m->a, (iv_writing){IV_SPELL_RAW, IV_NO_RULE}, 0, SIZE_MAX, from, to, err);
}

static iv_status write_choice(const json_t *list, iv_automaton *a, uint32_t from, uint32_t to, iv_error *err) {
    const json_t *one;
    size_t i, count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > CHOICES_MAX)
        return iv_fail(err, IV_INVALID, "choice: wanted a list of 1 to %d strings, found %s of %zu", CHOICES_MAX,
                       iv_json_type_name(list), count);
    json_array_foreach(list, i, one) {
        if (!json_is_string(one) || json_string_length(one) == 0)
            return iv_fail(err, IV_INVALID, "choice[%zu]: wanted a string that is not empty, found %s", i,
                           json_is_string(one) ? "\"\"" : iv_json_type_name(one));
        iv_automaton_text_to(a, from, json_string_value(one), json_string_length(one), to);
    }
    return IV_OK;
}

/* ---- tool calls: <tool_call>\n{"name": "NAME", "arguments": {...}}\n</tool_call> ------------------------- */

/* Arguments are an object, also where their schema would allow more. */
static iv_status write_arguments(maker *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                 iv_error *err) {
    json_t *type = json_object_get(parameters, "type"), *one;
    size_t i;
    bool may = !type || (json_is_string(type) && strcmp(json_string_value(type), "object") == 0);
    if (!parameters || json_is_null(parameters) || json_is_true(parameters)) return write_object(m, from, to, err);
    json_array_foreach(type, i, one) may |= json_is_string(one) && strcmp(json_string_value(one), "object") == 0;
    if (!may) return iv_fail(err, IV_INVALID, "%s: #: type: wanted \"object\": arguments are one", name);
    if (json_is_string(type) || !json_is_object(parameters))
        return write_schema(m, name, parameters, parameters, from, to, err);
    json_t *object = json_copy(parameters);
    bool ok = object && json_object_set_new(object, "type", json_string("object")) == 0;
    iv_status status = ok ? write_schema(m, name, parameters, object, from, to, err)
                          : iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    json_decref(object);
    return status;
}

static iv_status write_call(maker *m, json_t *tool, size_t index, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    const char *name = json_string_value(json_object_get(tool, "name"));
    char where[400];
    if (!name || !*name || strlen(name) > TOOL_NAME_BYTES_MAX ||
        strlen(name) != json_string_length(json_object_get(tool, "name")))
        return iv_fail(err, IV_INVALID, "tools[%zu].name: wanted a string of 1 to %d bytes without NUL", index,
                       TOOL_NAME_BYTES_MAX);
    snprintf(where, sizeof where, "parameters of tool \"%s\"", name);
    char *kept = iv_arena_strndup(m->arena, where, strlen(where));
    if (!kept) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    uint32_t at = iv_automaton_text(a, from, "{\"name\""), next = iv_automaton_state(a);
    iv_json_string_spell(a, name, strlen(name), iv_json_mark(a, at, ':'), next);
    at = iv_automaton_text(a, iv_json_mark(a, next, ','), "\"arguments\"");
    next = iv_automaton_state(a);
    at = iv_json_mark(a, at, ':');
    iv_automaton_bytes(a, next, '}', '}', to);
    m->tools[m->tool_count++] = (tool_place){at, kept};
    return write_arguments(m, kept, json_object_get(tool, "parameters"), at, next, err);
}

static iv_status write_calls(maker *m, const json_t *list, bool several, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    json_t *one;
    size_t i, count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > TOOLS_MAX)
        return iv_fail(err, IV_INVALID, "tools: wanted a list of 1 to %d, found %s of %zu", TOOLS_MAX,
                       iv_json_type_name(list), count);
    if (!(m->tools = IV_ARENA_NEW(m->arena, count, tool_place))) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    uint32_t open = iv_automaton_text(a, from, "<tool_call>\n"), close = iv_automaton_state(a);
    uint32_t end = iv_automaton_text(a, close, "\n</tool_call>");
    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        if (a->failed != IV_OK) return IV_OK;
        IV_TRY(write_call(m, one, i, open, close, err));
    }
    iv_automaton_skip(a, end, to);
    if (several) iv_automaton_text_to(a, end, "\n", 1, from);
    return IV_OK;
}

/* A tool that cannot be called is a mistake, also beside others. */
static iv_status check_tools(const maker *m, iv_error *err) {
    for (size_t i = 0; i < m->tool_count; i++)
        if (!m->a->alive[m->tools[i].state])
            return iv_fail(err, IV_INVALID, "%s: no object that ends can satisfy them", m->tools[i].name);
    return IV_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* Any bytes up to the first </think>. Its only proper beginning that is also inside it is its "<". */
static uint32_t write_thoughts(iv_automaton *a, uint32_t from) {
    static const char tag[] = "</think>";
    enum { N = sizeof tag - 1 };
    uint32_t at[N + 1];
    at[0] = from;
    for (size_t i = 1; i <= N; i++) at[i] = iv_automaton_state(a);
    for (size_t i = 0; i < N; i++)
        for (int b = 0; b < 256; b++) {
            uint32_t to = b == tag[i] ? at[i + 1] : b == '<' ? at[1] : from;
            iv_automaton_bytes(a, at[i], (uint8_t)b, (uint8_t)b, to);
        }
    return at[N];
}

/* The state from which the constrained part begins. Line ends may follow the thoughts, as models have learnt to write
 * them: one that is kept from it goes astray. */
static uint32_t write_reasoning(iv_automaton *a, iv_reasoning reasoning, uint32_t from) {
    if (reasoning == IV_REASONING_NONE) return from;
    uint32_t thoughts = iv_automaton_state(a), content = iv_automaton_state(a);
    if (reasoning == IV_REASONING_OPTIONAL) {
        iv_automaton_skip(a, from, content);
        iv_automaton_text_to(a, from, "<think>", 7, thoughts);
    } else {
        iv_automaton_skip(a, from, thoughts);
    }
    uint32_t end = write_thoughts(a, thoughts);
    iv_automaton_skip(a, end, content);
    for (int i = 0; i < LINES_AFTER_REASONING; i++) {
        end = iv_automaton_text(a, end, "\n");
        iv_automaton_skip(a, end, content);
    }
    return content;
}

static iv_status write_json_kind(maker *m, iv_constraint_kind kind, json_t *json, uint32_t from, uint32_t to,
                                 iv_error *err) {
    if (kind == IV_CONSTRAINT_CHOICE) return write_choice(json, m->a, from, to, err);
    if (kind == IV_CONSTRAINT_JSON_SCHEMA) return write_schema(m, "json_schema", json, json, from, to, err);
    return write_calls(m, json, kind == IV_CONSTRAINT_TOOL_CALLS, from, to, err);
}

iv_status iv_kind_compile(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, iv_arena *arena,
                          iv_automaton *a, iv_error *err) {
    const char *name = iv_constraint_name(kind);
    maker m = {.arena = arena, .a = a};
    json_t *json = NULL;
    iv_status status;
    int32_t root = iv_automaton_rule(a, name);
    uint32_t end = iv_automaton_state(a);
    if (root < 0) return iv_automaton_finish(a, err);
    iv_automaton_end(a, end);
    uint32_t from = write_reasoning(a, reasoning, a->rules[root].start);
    if (kind == IV_CONSTRAINT_JSON_OBJECT) {
        status = write_object(&m, from, end, err);
    } else if (kind == IV_CONSTRAINT_REGEX) {
        status = write_regex(&m, text, from, end, err);
    } else {
        status = iv_json_parse(name, text, strlen(text), &json, err);
        if (status == IV_FORMAT) status = err->status = IV_INVALID; /* it is no file */
        if (status == IV_OK) status = write_json_kind(&m, kind, json, from, end, err);
        json_decref(json);
    }
    if (status != IV_OK) return status;
    status = iv_automaton_finish(a, err);
    if (status == IV_OK || status == IV_INVALID) IV_TRY(check_tools(&m, err)); /* says more than that nothing ends */
    return status;
}
