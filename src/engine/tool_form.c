/* tool_form.c: the form in which a model writes tool calls. The chat template decides first: it renders a conversation
 * with a call, and the text around the call gives the form. */
#include "engine/text_model.h"
#include "chat/forms.h"

#include <stdio.h>
#include <string.h>

#define NAME "probe_name"
#define KEY "probe_key"

/* Call ids have nine characters, which Mistral's templates require. */
static const char conversation[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"probe\"}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"tool_calls\": [{\"id\": \"probe0001\", \"type\": \"function\", \"function\": {\"name\": \"" NAME
    "\", \"arguments\": {\"" KEY
    "\": \"x\"}}}]}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"" NAME
    "\", \"description\": \"probe\", \"parameters\": {\"type\": \"object\", \"properties\": {\"" KEY
    "\": {\"type\": \"string\"}}}}}], \"add_generation_prompt\": false}";

enum { BEFORE_BYTES = 96 /* examined before a name */ };

typedef struct span {
    const char *s;
    size_t n;
} span;

static bool ends_with(span text, const char *end) {
    size_t n = strlen(end);
    return text.n >= n && memcmp(text.s + text.n - n, end, n) == 0;
}

static bool is(span text, const char *what) { return text.n == strlen(what) && ends_with(text, what); }

static bool contains(span text, const char *what) { return text.n && memmem(text.s, text.n, what, strlen(what)); }

/* The offset of the last occurrence. */
static bool find_last(span text, const char *what, size_t *at) {
    bool found = false;
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= text.n; i++)
        if (memcmp(text.s + i, what, n) == 0) *at = i, found = true;
    return found;
}

/* The form of a JSON object, from the text before a call's name and between the name and its arguments. */
static bool form_of_json(span before, span between, iv_tool_form *form) {
    static const char sign[] = "[TOOL_CALLS]";
    bool quoted = ends_with(before, "{\"name\": \"") || ends_with(before, "{\"name\":\"");
    bool ends_args = ends_with(between, "[ARGS]");
    if (ends_with(before, sign)) {
        bool with_id = ends_args && between.n >= 9 && memcmp(between.s, "[CALL_ID]", 9) == 0;
        *form = with_id     ? IV_TOOL_FORM_MISTRAL_CALL_ID
                : ends_args ? IV_TOOL_FORM_MISTRAL_ARGS
                            : IV_TOOL_FORM_MISTRAL_NAME;
        return with_id || is(between, "[ARGS]") || between.n == 0;
    }
    static const struct {
        const char *sign;
        iv_tool_form form;
    } signs[] = {{"[TOOL_CALLS]", IV_TOOL_FORM_MISTRAL},    {"functools[", IV_TOOL_FORM_PHI4_MINI},
                 {"<|tool_call|>[", IV_TOOL_FORM_GRANITE},  {"<|tool_call|> [", IV_TOOL_FORM_GRANITE},
                 {"<tool_call>[", IV_TOOL_FORM_GRANITE},    {"<tool_calls>[", IV_TOOL_FORM_HUNYUAN},
                 {"<tool_calls>\n[", IV_TOOL_FORM_HUNYUAN}, {"<tool_call>", IV_TOOL_FORM_HERMES}};
    bool parameters = is(between, "\", \"parameters\": ") || is(between, "\",\"parameters\":");
    *form = IV_TOOL_FORM_LLAMA3_JSON;
    for (size_t i = 0; i < sizeof signs / sizeof *signs && *form == IV_TOOL_FORM_LLAMA3_JSON; i++)
        if (contains(before, signs[i].sign)) *form = signs[i].form;
    return quoted && (*form != IV_TOOL_FORM_LLAMA3_JSON || parameters);
}

/* Up to BEFORE_BYTES in front of an offset. */
static span in_front(span all, size_t at) {
    size_t from = at > BEFORE_BYTES ? at - BEFORE_BYTES : 0;
    return (span){all.s + from, at - from};
}

/* Names and values are between marks. Kimi's template writes a call's id instead of its name. */
static bool has_marks(span all, iv_tool_form form) {
    const iv_tool_marks *m = iv_tool_marks_of(form);
    char open[80], key[80];
    size_t name, from;
    if (m->kind == IV_TOOLS_MARKED) {
        size_t json;
        const char *named = m->named + strspn(m->named, "\n");
        snprintf(open, sizeof open, "%s%s", form == IV_TOOL_FORM_KIMI_K2 ? "" : NAME,
                 form == IV_TOOL_FORM_KIMI_K2 ? named : m->named);
        return find_last(all, "{\"" KEY, &json) && find_last((span){all.s, json}, open, &from) &&
               json - from < strlen(open) + 4 && contains(in_front(all, from), m->function);
    }
    snprintf(open, sizeof open, "%s%s", m->function, NAME);
    snprintf(key, sizeof key, "%s%s%s", m->key, KEY, m->keyed);
    if (m->kind != IV_TOOLS_TAGS || !find_last(all, open, &name)) return false;
    size_t behind = name + strlen(open);
    return contains(in_front(all, name), m->open) && contains((span){all.s + behind, all.n - behind}, key);
}

/* Forms that are not JSON objects. */
static bool form_of_marks(span all, iv_tool_form *form) {
    size_t at;
    for (*form = IV_TOOL_FORM_HERMES; *form < IV_TOOL_FORM_NONE; ++*form)
        if (has_marks(all, *form)) return true;
    *form = IV_TOOL_FORM_HARMONY;
    if (contains(all, "to=functions." NAME) && contains(all, "<|channel|>")) return true;
    if (!find_last(all, NAME "(" KEY "=", &at)) return false;
    const span before = in_front(all, at);
    *form = contains(before, "<function_calls>")    ? IV_TOOL_FORM_OLMO3
            : contains(before, "<|python_start|>[") ? IV_TOOL_FORM_LLAMA4_PYTHONIC
                                                    : IV_TOOL_FORM_PYTHONIC;
    return *form != IV_TOOL_FORM_PYTHONIC || ends_with(before, "[");
}

static bool form_of_template(const iv_text_model *t, iv_tool_form *form) {
    iv_text text = {0};
    iv_error unused;
    size_t key, name;
    if (!t->chat || iv_render_chat(t, conversation, strlen(conversation), NULL, &text, &unused) != IV_OK) return false;
    span all = {text.data, text.bytes};
    bool marks = form_of_marks(all, form);
    bool found = !marks && find_last(all, "{\"" KEY, &key) && find_last((span){all.s, key}, NAME, &name);
    if (found) {
        size_t behind = name + strlen(NAME);
        found = form_of_json(in_front(all, name), (span){all.s + behind, key - behind}, form);
    }
    iv_text_free(&text);
    return marks || found;
}

static bool knows(const iv_text_model *t, const char *token) {
    int32_t id;
    return t->tokenizer && iv_tokenizer_find(t->tokenizer, token, strlen(token), &id);
}

/* Without a template that shows calls, the first row all of whose tokens the vocabulary has. */
static const struct {
    const char *tokens[2];
    iv_tool_form form;
} vocabularies[] = {{{"<|channel|>", "<|call|>"}, IV_TOOL_FORM_HARMONY},
                    {{"<arg_key>", "<tool_call>"}, IV_TOOL_FORM_GLM},
                    {{"<tool_call>"}, IV_TOOL_FORM_HERMES},
                    {{"[TOOL_CALLS]", "[ARGS]"}, IV_TOOL_FORM_MISTRAL_ARGS},
                    {{"[TOOL_CALLS]"}, IV_TOOL_FORM_MISTRAL},
                    {{"<seed:tool_call>"}, IV_TOOL_FORM_SEED_OSS},
                    {{"<minimax:tool_call>"}, IV_TOOL_FORM_MINIMAX_M2},
                    {{"<tool_calls>"}, IV_TOOL_FORM_HUNYUAN},
                    {{"<|tool_call|>", "<|tool|>"}, IV_TOOL_FORM_PHI4_MINI},
                    {{"<|tool_call|>"}, IV_TOOL_FORM_GRANITE},
                    {{"<|tool_calls_section_begin|>"}, IV_TOOL_FORM_KIMI_K2},
                    {{"<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>"}, IV_TOOL_FORM_DEEPSEEK_V3},
                    {{"<function_calls>"}, IV_TOOL_FORM_OLMO3},
                    {{"<|python_start|>"}, IV_TOOL_FORM_LLAMA4_PYTHONIC},
                    {{"<|python_tag|>"}, IV_TOOL_FORM_LLAMA3_JSON}};

iv_tool_form iv_tool_form_of(const iv_text_model *t) {
    iv_tool_form form;
    if (form_of_template(t, &form)) return form;
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        const char *const *tokens = vocabularies[i].tokens;
        if (knows(t, tokens[0]) && (!tokens[1] || knows(t, tokens[1]))) return vocabularies[i].form;
    }
    return IV_TOOL_FORM_HERMES;
}
