/* tool_calls.c: the forms of calls as automata, each as chat templates write it back (chat/forms.c has the marks):
 *
 *     hermes            <tool_call>\n{"name": "NAME", "arguments": {...}}\n</tool_call>, one to a line
 *     llama3_json       {"name": "NAME", "parameters": {...}}, one: templates know no second
 *     mistral           [TOOL_CALLS][{"name": "NAME", "arguments": {...}}, ...], each perhaps with an "id"
 *     mistral_name      [TOOL_CALLS]NAME{...}, again and again
 *     mistral_args      [TOOL_CALLS]NAME[ARGS]{...}
 *     mistral_call_id   [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}
 *     granite, phi4_mini_json, hunyuan_a13b    a list of objects, as mistral
 *     qwen3_coder       <tool_call>\n<function=NAME>\n then for each argument
 *                       <parameter=KEY>\nVALUE\n</parameter>\n and </function>\n</tool_call>, one to a line
 *     seed_oss, minimax_m2, glm45              other marks for the same parts
 *     deepseek_v3, deepseek_v31, kimi_k2       marks around NAME and {...}
 *     pythonic, llama4_pythonic, olmo3         NAME(KEY=VALUE, ...), the values as JSON
 *     openai            <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}, one: it ends the
 * answer
 */
#include "grammar/kinds.h"
#include "format/json.h"
#include "grammar/free_text.h"
#include "grammar/schema.h"
#include "grammar/tool_parts.h"

#include <stdio.h>
#include <string.h>

/* ---- one call ------------------------------------------------------------------------------------------ */

enum { TOOLS_MAX = 512, TOOL_NAME_BYTES_MAX = 256, CALL_ID_CHARS = 9 };

static uint32_t write_call_id(iv_automaton *a, uint32_t from) {
    static const char ranges[] = "azAZ09";
    for (int i = 0; i < CALL_ID_CHARS && a->failed == IV_OK; i++) {
        uint32_t next = iv_automaton_state(a);
        for (int k = 0; k < 6; k += 2) iv_automaton_bytes(a, from, (uint8_t)ranges[k], (uint8_t)ranges[k + 1], next);
        from = next;
    }
    return from;
}

/* {"name": "NAME", KEY: {...}}; Mistral's form allows an "id" at the end. */
static iv_status write_object_call(iv_kind_builder *m, const iv_tool_entry *entry, const char *name, iv_tool_form form,
                                   json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    bool bare = form == IV_TOOL_FORM_LLAMA3_JSON;
    uint32_t at = iv_automaton_text(a, from, "{\"name\""), next = iv_automaton_state(a);
    iv_json_string_spell(a, name, strlen(name), iv_json_mark(a, at, ':'), next);
    at = iv_automaton_text(a, iv_json_mark(a, next, ','), bare ? "\"parameters\"" : "\"arguments\"");
    next = iv_automaton_state(a);
    uint32_t marked = iv_automaton_state(a);
    if (bare && m->format) /* nothing before has distinguished it from other JSON */
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
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return iv_tool_arguments_write(m, entry->name, parameters, at, next, err);
}

/* NAME, the form's marks, {...}. A bare name cannot be escaped, so not every name is allowed. */
static iv_status write_bare_call(iv_kind_builder *m, const iv_tool_entry *entry, iv_tool_form form, const char *name,
                                 json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    iv_automaton *a = m->a;
    IV_TRY(iv_tool_name_check(entry, name, err));
    uint32_t at = iv_automaton_text(a, from, name);
    if (form == IV_TOOL_FORM_MISTRAL_CALL_ID) at = write_call_id(a, iv_tool_mark_write(m, at, "[CALL_ID]"));
    if (form != IV_TOOL_FORM_MISTRAL_NAME) at = iv_tool_mark_write(m, at, "[ARGS]");
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return iv_tool_arguments_write(m, entry->name, parameters, at, to, err);
}

/* Any number below 1000, without leading zeros. */
static uint32_t write_index(iv_automaton *a, uint32_t from) {
    uint32_t to = iv_automaton_state(a), at = iv_automaton_state(a);
    iv_automaton_bytes(a, from, '0', '0', to);
    iv_automaton_bytes(a, from, '1', '9', at);
    for (int digits = 1; digits < 3 && a->failed == IV_OK; digits++) {
        uint32_t next = iv_automaton_state(a);
        iv_automaton_skip(a, at, to);
        iv_automaton_bytes(a, at, '0', '9', next);
        at = next;
    }
    iv_automaton_skip(a, at, to);
    return to;
}

/* Marks around NAME and {...}. */
static iv_status write_marked_call(iv_kind_builder *m, const iv_tool_entry *entry, iv_tool_form form, const char *name,
                                   json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    IV_TRY(iv_tool_name_check(entry, name, err));
    bool numbered = form == IV_TOOL_FORM_KIMI_K2;
    uint32_t at = iv_tool_mark_write(m, from, marks->function), end = iv_automaton_state(m->a);
    at = iv_automaton_text(m->a, iv_automaton_text(m->a, at, numbered ? "functions." : ""), name);
    if (numbered) at = write_index(m->a, iv_automaton_text(m->a, at, ":"));
    at = iv_tool_mark_write(m, at, marks->named);
    iv_tool_mark_write_to(m, iv_tool_mark_write(m, end, marks->value_end ? marks->value_end : ""), marks->function_end,
                          to);
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return iv_tool_arguments_write(m, entry->name, parameters, at, end, err);
}

/* Harmony's: a message to the function. */
static iv_status write_channel_call(iv_kind_builder *m, const iv_tool_entry *entry, const char *name,
                                    json_t *parameters, uint32_t from, uint32_t to, iv_error *err) {
    IV_TRY(iv_tool_name_check(entry, name, err));
    uint32_t at = iv_tool_mark_write(m, from, "<|channel|>commentary to=functions.");
    at = iv_tool_mark_write(m, iv_automaton_text(m->a, at, name), " <|constrain|>json<|message|>");
    m->tools[m->tool_count++] = (iv_tool_entry){at, entry->name};
    return iv_tool_arguments_write(m, entry->name, parameters, at, to, err);
}

static iv_status write_call(iv_kind_builder *m, json_t *tool, size_t index, iv_tool_form form, uint32_t from,
                            uint32_t to, iv_error *err) {
    const char *name = json_string_value(json_object_get(tool, "name"));
    json_t *parameters = json_object_get(tool, "parameters");
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    char where[400];
    if (!name || !*name || strlen(name) > TOOL_NAME_BYTES_MAX ||
        strlen(name) != json_string_length(json_object_get(tool, "name")))
        return iv_fail(err, IV_INVALID, "tools[%zu].name: wanted a string of 1 to %d bytes without NUL", index,
                       TOOL_NAME_BYTES_MAX);
    snprintf(where, sizeof where, "parameters of tool \"%s\"", name);
    iv_tool_entry entry = {.name = iv_arena_strndup(m->arena, where, strlen(where))};
    if (!entry.name) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    switch (marks->kind) {
    case IV_TOOLS_TAGS: return iv_tool_tags_write(m, marks, &entry, name, parameters, from, to, err);
    case IV_TOOLS_PYTHON: return iv_tool_python_write(m, &entry, name, parameters, from, to, err);
    case IV_TOOLS_MARKED: return write_marked_call(m, &entry, form, name, parameters, from, to, err);
    case IV_TOOLS_CHANNELS: return write_channel_call(m, &entry, name, parameters, from, to, err);
    default: break;
    }
    if (form > IV_TOOL_FORM_MISTRAL && form <= IV_TOOL_FORM_MISTRAL_CALL_ID)
        return write_bare_call(m, &entry, form, name, parameters, from, to, err);
    return write_object_call(m, &entry, name, form, parameters, from, to, err);
}

/* ---- the marks around calls ---------------------------------------------------------------------------- */

/* The states between which calls go. */
typedef struct around {
    uint32_t open, close;
} around;

static const char *or_nothing(const char *text) { return text ? text : ""; }

/* Both spellings of the first mark. */
static void write_open(iv_kind_builder *m, const iv_tool_marks *marks, uint32_t from, uint32_t to) {
    if (marks->open)
        iv_tool_mark_write_to(m, from, marks->open, to);
    else
        iv_automaton_skip(m->a, from, to);
    if (marks->open_too) iv_tool_mark_write_to(m, from, marks->open_too, to);
}

static void write_close(iv_kind_builder *m, const char *before, const char *mark, uint32_t from, uint32_t to) {
    iv_automaton_skip(m->a, iv_tool_mark_write(m, iv_automaton_text(m->a, from, before), or_nothing(mark)), to);
}

/* After the first mark of a block at `begin` to the end of its last at `end`. */
static around write_block(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t begin, uint32_t end) {
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    iv_automaton *a = m->a;
    around r = {begin, iv_automaton_state(a)};
    bool list = marks->kind == IV_TOOLS_LIST || (marks->kind == IV_TOOLS_PYTHON && !marks->lines);
    if (list) {
        r.open = iv_automaton_state(a);
        iv_automaton_text_to(a, begin, "[", 1, r.open);
        if (marks->open) iv_automaton_text_to(a, begin, " [", 2, r.open); /* some templates have a space before it */
        write_close(m, "]", marks->close, r.close, end);
        if (several) iv_automaton_skip(a, iv_json_mark(a, r.close, ','), r.open);
        return r;
    }
    bool lines = marks->kind != IV_TOOLS_MARKED && !(marks->named && strcmp(marks->named, "\n") == 0);
    if (lines) r.open = iv_automaton_text(a, begin, "\n");
    write_close(m, lines ? "\n" : "", marks->close, r.close, end);
    bool goes_on = several && (marks->several || marks->lines || marks->kind == IV_TOOLS_MARKED);
    if (goes_on) iv_automaton_skip(a, iv_automaton_text(a, r.close, lines || marks->value_end ? "\n" : ""), r.open);
    return r;
}

/* Forms with a block for each call write them one to a line. */
static bool has_block_each(const iv_tool_marks *marks) {
    return marks->kind == IV_TOOLS_JSON || (marks->kind == IV_TOOLS_TAGS && !marks->several);
}

static bool is_named_mistral(iv_tool_form form) {
    return form > IV_TOOL_FORM_MISTRAL && form <= IV_TOOL_FORM_MISTRAL_CALL_ID;
}

/* The answer is calls. */
static around write_around(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to) {
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    iv_automaton *a = m->a;
    around r = {from, iv_automaton_state(a)};
    if (marks->kind == IV_TOOLS_BARE || marks->kind == IV_TOOLS_CHANNELS) {
        iv_automaton_skip(a, r.close, to);
        return r;
    }
    uint32_t begin = iv_automaton_state(a), end = iv_automaton_state(a);
    write_open(m, marks, from, begin);
    if (is_named_mistral(form)) {
        r.open = begin;
        iv_automaton_skip(a, r.close, to);
        if (several) iv_automaton_skip(a, r.close, from);
        return r;
    }
    r = write_block(m, form, several, begin, end);
    iv_automaton_skip(a, end, to);
    if (several && has_block_each(marks)) iv_automaton_text_to(a, end, "\n", 1, from);
    return r;
}

/* ---- calls in any text --------------------------------------------------------------------------------- */

/* Blocks after any text; a model may omit the coder's first mark. Without `several` no other follows. */
static around write_in_text(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to) {
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    iv_automaton *a = m->a;
    bool coder = form == IV_TOOL_FORM_QWEN3_CODER;
    uint32_t begin = iv_automaton_state(a), rest = several ? from : iv_automaton_state(a);
    iv_free_text text = {.end = to, .not_first = ""}, plain = text;
    around r = {begin, iv_automaton_state(a)};
    if (is_named_mistral(form))
        iv_automaton_skip(a, r.close, rest);
    else
        r = write_block(m, form, several, begin, rest);
    iv_free_text_mark(&text, m->vocabulary, marks->open, begin);
    iv_free_text_mark(&text, m->vocabulary, marks->open_too, begin);
    if (coder) {
        m->function = iv_automaton_state(a);
        iv_automaton_text_to(a, r.open, marks->function, strlen(marks->function), m->function);
        iv_free_text_mark(&text, m->vocabulary, marks->function, m->function);
    }
    iv_free_text_write(a, &text, from);
    if (several) return r;
    iv_free_text_mark(&plain, m->vocabulary, marks->open, IV_TEXT_FORBIDDEN);
    iv_free_text_mark(&plain, m->vocabulary, marks->open_too, IV_TEXT_FORBIDDEN);
    if (coder) iv_free_text_mark(&plain, m->vocabulary, marks->function, IV_TEXT_FORBIDDEN);
    iv_free_text_write(a, &plain, rest);
    return r;
}

/* A call that may be the whole answer: one that begins with `first` is a call. */
static around write_whole_or_text(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to) {
    static const char spaces[] = " \n\r\t";
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    bool python = marks->kind == IV_TOOLS_PYTHON;
    iv_free_text text = {.end = to, .not_first = python ? "[ \n\r\t" : "{ \n\r\t"};
    uint32_t begin = iv_automaton_state(m->a);
    iv_free_text_mark(&text, m->vocabulary, marks->open, python ? begin : IV_TEXT_FORBIDDEN);
    iv_free_text_write(m->a, &text, from);
    for (const char *c = spaces; *c; c++) iv_automaton_bytes(m->a, from, (uint8_t)*c, (uint8_t)*c, from);
    around r = {iv_automaton_state(m->a), iv_automaton_state(m->a)};
    if (!python) {
        iv_automaton_skip(m->a, from, r.open), iv_automaton_skip(m->a, r.close, to);
        return r;
    }
    iv_automaton_text_to(m->a, from, "[", 1, r.open), iv_automaton_text_to(m->a, begin, "[", 1, r.open);
    write_close(m, "]", marks->close, r.close, to);
    iv_automaton_text_to(m->a, r.close, "]", 1, to); /* of a list without marks */
    if (several) iv_automaton_skip(m->a, iv_json_mark(m->a, r.close, ','), r.open);
    return r;
}

/* Harmony's: preambles, then a call or the final message. */
static around write_channels_or_text(iv_kind_builder *m, uint32_t from, uint32_t to) {
    iv_free_text preamble = {.end = IV_TEXT_FORBIDDEN, .not_first = ""}, final = {.end = to, .not_first = ""};
    around r = {from, iv_automaton_state(m->a)};
    uint32_t ended = iv_automaton_state(m->a);
    iv_free_text_mark(&preamble, m->vocabulary, "<|end|>", ended);
    iv_tool_mark_write_to(m, ended, "<|start|>assistant", from);
    iv_free_text_write(m->a, &preamble, iv_tool_mark_write(m, from, "<|channel|>commentary<|message|>"));
    iv_free_text_mark(&final, m->vocabulary, "<|end|>", IV_TEXT_FORBIDDEN);
    iv_free_text_write(m->a, &final, iv_tool_mark_write(m, from, "<|channel|>final<|message|>"));
    iv_automaton_skip(m->a, r.close, to);
    return r;
}

static around write_around_or_text(iv_kind_builder *m, iv_tool_form form, bool several, uint32_t from, uint32_t to) {
    const iv_tool_marks *marks = iv_tool_marks_of(form);
    if (marks->kind == IV_TOOLS_CHANNELS) return write_channels_or_text(m, from, to);
    if (marks->kind == IV_TOOLS_BARE || (marks->kind == IV_TOOLS_PYTHON && !marks->lines))
        return write_whole_or_text(m, form, several, from, to);
    return write_in_text(m, form, several, from, to);
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static iv_status read_form(const json_t *json, iv_tool_form *form, const json_t **list, iv_error *err) {
    *form = IV_TOOL_FORM_HERMES, *list = json;
    if (!json_is_object(json)) return IV_OK;
    const char *name = json_string_value(json_object_get(json, "form"));
    *list = json_object_get(json, "tools");
    for (*form = IV_TOOL_FORM_HERMES; *form < IV_TOOL_FORM_NONE; ++*form)
        if (name && strcmp(name, iv_tool_form_name(*form)) == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "tools: form: wanted a tool call form, found \"%.40s\"", name ? name : "nothing");
}

iv_status iv_tool_calls_write(iv_kind_builder *m, const json_t *json, bool several, uint32_t from, uint32_t to,
                              iv_error *err) {
    iv_tool_form form;
    const json_t *list;
    json_t *one;
    size_t i;
    around r;
    IV_TRY(read_form(json, &form, &list, err));
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > TOOLS_MAX)
        return iv_fail(err, IV_INVALID, "tools: wanted a list of 1 to %d, found %s of %zu", TOOLS_MAX,
                       iv_json_type_name(list), count);
    if (!(m->tools = IV_ARENA_NEW(m->arena, count, iv_tool_entry)))
        return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    if (json_is_true(json_object_get(json, "text")))
        r = write_around_or_text(m, form, several, from, to);
    else
        r = write_around(m, form, several, from, to);
    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        if (m->a->failed != IV_OK) return IV_OK;
        IV_TRY(write_call(m, one, i, form, r.open, r.close, err));
    }
    return IV_OK;
}

iv_status iv_tool_calls_check(const iv_kind_builder *m, iv_error *err) {
    for (size_t i = 0; i < m->tool_count; i++)
        if (!m->a->alive[m->tools[i].state])
            return iv_fail(err, IV_INVALID, "%s: no finite object satisfies them", m->tools[i].name);
    return IV_OK;
}
