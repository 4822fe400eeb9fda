/* tool_form.c: the form in which a model writes tool calls. The chat template decides first: it renders a conversation
 * with a call, and the text around the call gives the form. */
#include "engine/text_model.h"

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

enum { BEFORE_BYTES = 64 /* examined before a name */ };

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

/* The form, from the text before a call's name and between the name and its arguments. */
static bool form_around(span before, span between, iv_tool_form *form) {
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
    bool parameters = is(between, "\", \"parameters\": ") || is(between, "\",\"parameters\":");
    *form = contains(before, sign)            ? IV_TOOL_FORM_MISTRAL
            : contains(before, "<tool_call>") ? IV_TOOL_FORM_HERMES
                                              : IV_TOOL_FORM_LLAMA3_JSON;
    return quoted && (*form != IV_TOOL_FORM_LLAMA3_JSON || parameters);
}

/* Qwen3-Coder's calls are not JSON: a tag for the name and one for each argument. */
static bool form_of_tags(span all, iv_tool_form *form) {
    static const char open[] = "<function=" NAME ">";
    size_t name;
    *form = IV_TOOL_FORM_QWEN3_CODER;
    if (!find_last(all, open, &name)) return false;
    size_t from = name > BEFORE_BYTES ? name - BEFORE_BYTES : 0, behind = name + strlen(open);
    return contains((span){all.s + from, name - from}, "<tool_call>") &&
           contains((span){all.s + behind, all.n - behind}, "<parameter=" KEY ">");
}

static bool form_of_template(const iv_text_model *t, iv_tool_form *form) {
    iv_text text = {0};
    iv_error unused;
    size_t key, name;
    if (!t->chat || iv_render_chat(t, conversation, strlen(conversation), NULL, &text, &unused) != IV_OK) return false;
    span all = {text.data, text.bytes};
    bool tags = form_of_tags(all, form);
    bool found = !tags && find_last(all, "{\"" KEY, &key) && find_last((span){all.s, key}, NAME, &name);
    if (found) {
        size_t behind = name + strlen(NAME), from = name > BEFORE_BYTES ? name - BEFORE_BYTES : 0;
        found = form_around((span){all.s + from, name - from}, (span){all.s + behind, key - behind}, form);
    }
    iv_text_free(&text);
    return tags || found;
}

static bool knows(const iv_text_model *t, const char *token) {
    int32_t id;
    return t->tokenizer && iv_tokenizer_find(t->tokenizer, token, strlen(token), &id);
}

iv_tool_form iv_tool_form_of(const iv_text_model *t) {
    iv_tool_form form;
    if (form_of_template(t, &form)) return form;
    if (knows(t, "<tool_call>")) return IV_TOOL_FORM_HERMES;
    if (knows(t, "[TOOL_CALLS]")) return knows(t, "[ARGS]") ? IV_TOOL_FORM_MISTRAL_ARGS : IV_TOOL_FORM_MISTRAL;
    return knows(t, "<|python_tag|>") ? IV_TOOL_FORM_LLAMA3_JSON : IV_TOOL_FORM_HERMES;
}
