/* tool_calls.c: the forms of calls as automata, each as chat templates write it back:
 *
 *     hermes            <tool_call>\n{"name": "NAME", "arguments": {...}}\n</tool_call>, one to a line
 *     llama3_json       {"name": "NAME", "parameters": {...}}, one: templates know no second
 *     mistral           [TOOL_CALLS][{"name": "NAME", "arguments": {...}}, ...], each perhaps with an "id"
 *     mistral_name      [TOOL_CALLS]NAME{...}, again and again
 *     mistral_args      [TOOL_CALLS]NAME[ARGS]{...}
 *     mistral_call_id   [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}
 *     qwen3_coder <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>\n</tool_call>, one
 * to a line */
#include "grammar/tool_calls.h"
#include "format/json.h"
#include "grammar/tool_parameters.h"

#include <string.h>

enum { TOOLS_MAX = 512, TOOL_NAME_BYTES_MAX = 256, CALL_ID_CHARS = 9 };

const char *iv_tool_form_name(iv_tool_form form) {
    static const char *const names[] = {"hermes",       "llama3_json",     "mistral",     "mistral_name",
                                        "mistral_args", "mistral_call_id", "qwen3_coder", "none"};
    return (size_t)form < sizeof names / sizeof *names ? names[form] : "none";
}

bool iv_tool_name_is_bare(const char *name, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        char c = name[i], lower = (char)(c | 0x20);
        if (!(lower >= 'a' && lower <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.')
            return false;
    }
    return bytes > 0;
}

/* ---- the parts of a call ------------------------------------------------------------------------------- */

/* Arguments are an object, also where their schema would allow more. */
static iv_status write_arguments(iv_kind_maker *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                 iv_error *err) {
    json_t *type = json_object_get(parameters, "type"), *one;
    size_t i;
    bool may = !type || (json_is_string(type) && strcmp(json_string_value(type), "object") == 0);
    if (!parameters || json_is_null(parameters) || json_is_true(parameters))
        return iv_kind_write_object(m, from, to, err);
    json_array_foreach(type, i, one) may |= json_is_string(one) && strcmp(json_string_value(one), "object") == 0;
    if (!may) return iv_fail(err, IV_INVALID, "%s: #: type: wanted \"object\": arguments are one", name);
    if (json_is_string(type) || !json_is_object(parameters))
        return iv_kind_write_schema(m, name, parameters, parameters, from, to, err);
    json_t *object = json_copy(parameters);
    bool ok = object && json_object_set_new(object, "type", json_string("object")) == 0;
    iv_status status = ok ? iv_kind_write_schema(m, name, parameters, object, from, to, err)
                          : iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    json_decref(object);
    return status;
}

/* The token where the vocabulary has it as a special one, else its spelling. */
static void write_special(iv_kind_maker *m, uint32_t from, iv_special special, uint32_t to) {
    const char *name = iv_special_name(special);
    if (m->vocabulary && m->vocabulary->specials[special] >= 0)
        iv_automaton_special(m->a, from, special, to);
    else
        iv_automaton_text_to(m->a, from, name, strlen(name), to);
}

static uint32_t write_call_id(iv_automaton *a, uint32_t from) {
    static const char ends[] = "azAZ09";
    for (int i = 0; i < CALL_ID_CHARS && a->failed == IV_OK; i++) {
        uint32_t next = iv_automaton_state(a);
        for (int k = 0; k < 6; k += 2) iv_automaton_bytes(a, from, (uint8_t)ends[k], (uint8_t)ends[k + 1], next);
        from = next;
    }
    return from;
}

/* {"name": "NAME", KEY: {...}}, Mistral's perhaps with an "id" at its end. */
static iv_status write_object_call(iv_kind_maker *m, const iv_tool_place *place, const char *name, iv_tool_form form,
                                   json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    bool bare = form == IV_TOOL_FORM_LLAMA3_JSON;
    uint32_t at = iv_automaton_text(a, from, "{\"name\""), next = iv_automaton_state(a);
    iv_json_string_spell(a, name, strlen(name), iv_json_mark(a, at, ':'), next);
    at = iv_automaton_text(a, iv_json_mark(a, next, ','), bare ? "\"parameters\"" : "\"arguments\"");
    next = iv_automaton_state(a);
    uint32_t marked = iv_automaton_state(a);
    if (bare && m->format) /* no sign has told it from other JSON */
        iv_automaton_cut(a, at, ':', marked);
    else
        iv_automaton_bytes(a, at, ':', ':', marked);
    at = iv_json_space(a, marked);
    iv_automaton_bytes(a, next, '}', '}', to);
    if (form == IV_TOOL_FORM_MISTRAL) {
        uint32_t id = iv_automaton_text(a, iv_json_mark(a, next, ','), "\"id\"");
        id = write_call_id(a, iv_automaton_text(a, iv_json_mark(a, id, ':'), "\""));
        iv_automaton_text_to(a, id, "\"}", 2, to);
    }
    m->tools[m->tool_count++] = (iv_tool_place){at, place->name};
    return write_arguments(m, place->name, parameters, at, next, err);
}

/* NAME{...} and what may stand between the two. A name is not escaped there, so that not every one can be written. */
static iv_status write_bare_call(iv_kind_maker *m, const iv_tool_place *place, iv_tool_form form, const char *name,
                                 json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    if (!iv_tool_name_is_bare(name, strlen(name)))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: the model's form of calls wants a name of letters, digits, '_', '-' and '.'", place->name);
    uint32_t at = iv_automaton_text(a, from, name), next;
    if (form == IV_TOOL_FORM_MISTRAL_CALL_ID) {
        next = iv_automaton_state(a);
        write_special(m, at, IV_SPECIAL_CALL_ID, next);
        at = write_call_id(a, next);
    }
    if (form != IV_TOOL_FORM_MISTRAL_NAME) {
        next = iv_automaton_state(a);
        write_special(m, at, IV_SPECIAL_ARGS, next);
        at = next;
    }
    m->tools[m->tool_count++] = (iv_tool_place){at, place->name};
    return write_arguments(m, place->name, parameters, at, to, err);
}

/* <function=NAME> and the parameters, each in a tag of its own. */
static iv_status write_tagged_call(iv_kind_maker *m, const iv_tool_place *place, const char *name, json_t *parameters,
                                   uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    if (!iv_tool_name_is_writable(name))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: the model's form of calls wants a name without '<', '>' and control characters",
                       place->name);
    uint32_t at = iv_automaton_text(a, iv_automaton_text(a, from, "<function="), name);
    at = iv_automaton_text(a, at, ">\n");
    m->tools[m->tool_count++] = (iv_tool_place){at, place->name};
    return iv_tool_parameters_write(m, place->name, parameters, at, to, err);
}

static iv_status write_call(iv_kind_maker *m, json_t *tool, size_t index, iv_tool_form form, uint32_t from, uint32_t to,
                            iv_error *err) {
    const char *name = json_string_value(json_object_get(tool, "name"));
    json_t *parameters = json_object_get(tool, "parameters");
    char where[400];
    if (!name || !*name || strlen(name) > TOOL_NAME_BYTES_MAX ||
        strlen(name) != json_string_length(json_object_get(tool, "name")))
        return iv_fail(err, IV_INVALID, "tools[%zu].name: wanted a string of 1 to %d bytes without NUL", index,
                       TOOL_NAME_BYTES_MAX);
    snprintf(where, sizeof where, "parameters of tool \"%s\"", name);
    iv_tool_place place = {.name = iv_arena_strndup(m->arena, where, strlen(where))};
    if (!place.name) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    if (form == IV_TOOL_FORM_QWEN3_CODER) return write_tagged_call(m, &place, name, parameters, from, to, err);
    if (form > IV_TOOL_FORM_MISTRAL) return write_bare_call(m, &place, form, name, parameters, from, to, err);
    return write_object_call(m, &place, name, form, parameters, from, to, err);
}

/* ---- the forms ----------------------------------------------------------------------------------------- */

/* What stands around the calls: each goes from *open to *close. */
static void write_around(iv_kind_maker *m, iv_tool_form form, bool several, uint32_t from, uint32_t to, uint32_t *open,
                         uint32_t *close) {
    iv_automaton *a = m->a;
    *open = from, *close = iv_automaton_state(a);
    if (form == IV_TOOL_FORM_HERMES || form == IV_TOOL_FORM_QWEN3_CODER) {
        *open = iv_automaton_text(a, from, "<tool_call>\n");
        uint32_t end = iv_automaton_text(a, *close, "\n</tool_call>");
        iv_automaton_skip(a, end, to);
        if (several) iv_automaton_text_to(a, end, "\n", 1, from);
        return;
    }
    if (form == IV_TOOL_FORM_LLAMA3_JSON) {
        iv_automaton_skip(a, *close, to);
        return;
    }
    *open = iv_automaton_state(a);
    if (form == IV_TOOL_FORM_MISTRAL) { /* some templates have a space before the list */
        uint32_t begin = iv_automaton_state(a);
        write_special(m, from, IV_SPECIAL_TOOL_CALLS, begin);
        iv_automaton_text_to(a, begin, "[", 1, *open);
        iv_automaton_text_to(a, begin, " [", 2, *open);
        iv_automaton_text_to(a, *close, "]", 1, to);
        if (several) iv_automaton_skip(a, iv_json_mark(a, *close, ','), *open);
        return;
    }
    write_special(m, from, IV_SPECIAL_TOOL_CALLS, *open);
    iv_automaton_skip(a, *close, to);
    if (several) iv_automaton_skip(a, *close, from);
}

static iv_status read_form(const json_t *json, iv_tool_form *form, const json_t **list, iv_error *err) {
    *form = IV_TOOL_FORM_HERMES, *list = json;
    if (!json_is_object(json)) return IV_OK;
    const char *name = json_string_value(json_object_get(json, "form"));
    *list = json_object_get(json, "tools");
    while (*form < IV_TOOL_FORM_NONE && (!name || strcmp(name, iv_tool_form_name(*form)) != 0)) ++*form;
    if (*form != IV_TOOL_FORM_NONE) return IV_OK;
    return iv_fail(err, IV_INVALID, "tools: form: wanted a form of calls, found \"%.40s\"", name ? name : "nothing");
}

iv_status iv_tool_calls_write(iv_kind_maker *m, const json_t *json, bool several, uint32_t from, uint32_t to,
                              iv_error *err) {
    iv_tool_form form;
    const json_t *list;
    json_t *one;
    size_t i;
    uint32_t open, close;
    IV_TRY(read_form(json, &form, &list, err));
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > TOOLS_MAX)
        return iv_fail(err, IV_INVALID, "tools: wanted a list of 1 to %d, found %s of %zu", TOOLS_MAX,
                       iv_json_type_name(list), count);
    if (!(m->tools = IV_ARENA_NEW(m->arena, count, iv_tool_place)))
        return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    write_around(m, form, several, from, to, &open, &close);
    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        if (m->a->failed != IV_OK) return IV_OK;
        IV_TRY(write_call(m, one, i, form, open, close, err));
    }
    return IV_OK;
}

iv_status iv_tool_calls_check(const iv_kind_maker *m, iv_error *err) {
    for (size_t i = 0; i < m->tool_count; i++)
        if (!m->a->alive[m->tools[i].state])
            return iv_fail(err, IV_INVALID, "%s: no object that ends can satisfy them", m->tools[i].name);
    return IV_OK;
}
