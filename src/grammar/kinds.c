/* kinds.c: constraints as automata: the reasoning that may precede the constrained part, and that part. */
#include "grammar/kinds.h"
#include "base/utf8.h"
#include "format/json.h"
#include "grammar/bnf.h"
#include "grammar/free_text.h"
#include "grammar/regular.h"
#include "grammar/tool_parts.h"

#include <string.h>

static const char FORMAT[] = "json_schema"; /* prefix of a schema's errors */

enum { CHOICES_MAX = 20000, LINES_AFTER_REASONING = 2 };

const char *iv_constraint_name(iv_constraint_kind kind) {
    static const char *const names[] = {
        "none",       "json_object",       "json_schema",        "regex",   "choice", "tool_call",
        "tool_calls", "tool_call_or_json", "tool_calls_or_json", "grammar", "tokens"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "none";
}

/* ---- kinds without JSON -------------------------------------------------------------------------------- */

static iv_status write_regex(iv_kind_builder *m, const char *text, uint32_t from, uint32_t to, iv_error *err) {
    iv_regular r;
    IV_TRY(iv_regular_parse("regex", text, strlen(text), true, m->arena, &r, err));
    return iv_regular_spell("regex", &r, m->a, (iv_writing){IV_SPELL_RAW, IV_NO_RULE, 0}, 0, SIZE_MAX, from, to, err);
}

static iv_status write_grammar(iv_kind_builder *m, const char *text, uint32_t from, uint32_t to, iv_error *err) {
    iv_bnf g;
    IV_TRY(iv_bnf_read("grammar", text, strlen(text), m->arena, &g, err));
    return iv_bnf_write("grammar", &g, m->arena, m->a, from, to, err);
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

/* ---- reasoning, JSON, the whole ------------------------------------------------------------------------ */

/* Any bytes up to the first of the marks; the state after it. */
static uint32_t write_free(iv_kind_builder *m, const char *const marks[2], uint32_t from) {
    iv_free_text text = {.end = IV_TEXT_FORBIDDEN, .not_first = ""};
    uint32_t end = iv_automaton_state(m->a);
    for (int i = 0; i < 2; i++) iv_free_text_mark(&text, m->vocabulary, marks[i], end);
    iv_free_text_write(m->a, &text, from);
    return end;
}

/* The state where the constrained part begins. Line ends may follow the reasoning, as models are trained to write them;
 * without them models derail. */
static uint32_t write_tagged_reasoning(iv_kind_builder *m, const iv_reasoning_marks *marks, bool open, uint32_t from) {
    iv_automaton *a = m->a;
    uint32_t reasoning_text = iv_automaton_state(a), content = iv_automaton_state(a);
    iv_automaton_skip(a, from, open ? reasoning_text : content);
    for (int i = 0; i < 2 && !open && marks->begin[i]; i++)
        iv_tool_mark_write_to(m, from, marks->begin[i], reasoning_text);
    uint32_t end = write_free(m, marks->end, reasoning_text);
    iv_automaton_skip(a, end, content);
    for (int i = 0; i < LINES_AFTER_REASONING; i++) {
        end = iv_automaton_text(a, end, "\n");
        iv_automaton_skip(a, end, content);
    }
    return content;
}

/* Harmony's: any number of messages of the channel analysis. */
static uint32_t write_analysis(iv_kind_builder *m, bool open, uint32_t from) {
    static const char *const marks[2] = {"<|end|>"};
    iv_automaton *a = m->a;
    uint32_t message = iv_automaton_state(a), next = iv_automaton_state(a);
    iv_automaton_skip(a, from, open ? message : next);
    iv_tool_mark_write_to(m, next, "<|channel|>analysis<|message|>", message);
    iv_tool_mark_write_to(m, write_free(m, marks, message), "<|start|>assistant", next);
    return next;
}

/* Harmony's content is a message of its own. */
static uint32_t write_final(iv_kind_builder *m, uint32_t from) {
    return iv_tool_mark_write(m, from, "<|channel|>final<|message|>");
}

static bool calls(iv_constraint_kind kind) {
    return kind >= IV_CONSTRAINT_TOOL_CALL && kind <= IV_CONSTRAINT_TOOL_CALLS_OR_JSON;
}

static uint32_t write_reasoning(iv_kind_builder *m, iv_constraint_kind kind, iv_reasoning reasoning, uint32_t from) {
    iv_reasoning_form form = iv_reasoning_form_in(reasoning);
    bool open = iv_reasoning_without_form(reasoning) == IV_REASONING_OPEN;
    if (reasoning == IV_REASONING_NONE) return from;
    if (form != IV_REASONING_FORM_HARMONY) return write_tagged_reasoning(m, iv_reasoning_marks_of(form), open, from);
    from = write_analysis(m, open, from);
    return calls(kind) ? from : write_final(m, from);
}

/* Calls begin in their own state: no JSON may follow one. */
static iv_status write_calls_or_json(iv_kind_builder *m, json_t *json, bool several, uint32_t from, uint32_t to,
                                     iv_error *err) {
    json_t *schema = json_object_get(json, "schema");
    uint32_t first = iv_automaton_state(m->a);
    m->format = iv_automaton_state(m->a);
    const char *form = json_string_value(json_object_get(json, "form"));
    bool channels = form && strcmp(form, iv_tool_form_name(IV_TOOL_FORM_HARMONY)) == 0;
    iv_automaton_skip(m->a, from, first), iv_automaton_skip(m->a, channels ? write_final(m, from) : from, m->format);
    if (!schema) return iv_fail(err, IV_INVALID, "tools: schema: wanted a JSON schema next to them, found nothing");
    IV_TRY(iv_tool_calls_write(m, json, several, first, to, err));
    return iv_schema_write(&m->common, FORMAT, schema, schema, m->format, to, err);
}

static iv_status write_json_kind(iv_kind_builder *m, iv_constraint_kind kind, json_t *json, uint32_t from, uint32_t to,
                                 iv_error *err) {
    if (kind == IV_CONSTRAINT_CHOICE) return write_choice(json, m->a, from, to, err);
    if (kind == IV_CONSTRAINT_JSON_SCHEMA) return iv_schema_write(&m->common, FORMAT, json, json, from, to, err);
    if (kind >= IV_CONSTRAINT_TOOL_CALL_OR_JSON)
        return write_calls_or_json(m, json, kind == IV_CONSTRAINT_TOOL_CALLS_OR_JSON, from, to, err);
    return iv_tool_calls_write(m, json, kind == IV_CONSTRAINT_TOOL_CALLS, from, to, err);
}

iv_status iv_kind_compile(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_arena *arena, iv_automaton *a, iv_error *err) {
    const char *name = iv_constraint_name(kind);
    iv_kind_builder m = {.arena = arena, .a = a, .vocabulary = v, .common = {.a = a, .arena = arena}};
    json_t *json = NULL;
    iv_status status;
    int32_t root = iv_automaton_rule(a, name);
    uint32_t end = iv_automaton_state(a);
    if (root < 0) return iv_automaton_finish(a, err);
    iv_automaton_end(a, end);
    uint32_t from = write_reasoning(&m, kind, reasoning, a->rules[root].start);
    if (kind == IV_CONSTRAINT_JSON_OBJECT) {
        status = iv_schema_write(&m.common, name, NULL, NULL, from, end, err);
    } else if (kind == IV_CONSTRAINT_REGEX) {
        status = write_regex(&m, text, from, end, err);
    } else if (kind == IV_CONSTRAINT_GRAMMAR) {
        status = write_grammar(&m, text, from, end, err);
    } else {
        status = iv_json_parse(name, text, strlen(text), &json, err);
        if (status == IV_FORMAT) status = err->status = IV_INVALID; /* not a file format error */
        if (status == IV_OK) status = write_json_kind(&m, kind, json, from, end, err);
        json_decref(json);
    }
    if (status != IV_OK) return status;
    status = iv_automaton_finish(a, err);
    if (status == IV_OK || status == IV_INVALID) IV_TRY(iv_tool_calls_check(&m, err)); /* a more specific error */
    if (status == IV_OK && m.format && !a->alive[m.format])
        return iv_fail(err, IV_INVALID, "%s: no finite text satisfies it", FORMAT);
    return status;
}
