/* answer_forms.c: how a model's answers are divided: the form of its reasoning, from its template or vocabulary, the
 * state after a prompt, and the parts of a text. */
#include "chat/chat_text.h"
#include "engine/text_model.h"
#include "base/buf.h"
#include "base/json_out.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

static bool knows(const iv_text_model *t, const char *token) {
    int32_t id;
    return token && t->tokenizer && iv_tokenizer_find(t->tokenizer, token, strlen(token), &id);
}

/* ---- the form ----------------------------------------------------------------------------------------- */

/* Both signs are in the template's text, or among the tokens. */
static const struct {
    iv_reasoning_form form;
    const char *signs[2];
    bool tokens; /* a vocabulary that has them decides, too */
} signs[] = {{IV_REASONING_FORM_HARMONY, {"<|channel|>", "<|message|>"}, true},
             {IV_REASONING_FORM_SEED_OSS, {"<seed:think>", "<seed:think>"}, true},
             {IV_REASONING_FORM_MISTRAL, {"[THINK]", "[THINK]"}, true},
             {IV_REASONING_FORM_ERNIE45, {"<response>", "<think>"}, false},
             {IV_REASONING_FORM_HUNYUAN, {"<answer>", "<think>"}, false},
             {IV_REASONING_FORM_GRANITE, {"Here is my thought process", "Here is my response"}, false}};

iv_reasoning_form iv_reasoning_form_of(const iv_text_model *t) {
    json_t *none = json_object();
    const iv_template *own = t->chat && none ? iv_chat_template_chosen(t->chat, none) : NULL;
    iv_reasoning_form form = IV_REASONING_FORM_THINK;
    for (size_t pass = 0; pass < 2 && form == IV_REASONING_FORM_THINK; pass++)
        for (size_t i = 0; i < sizeof signs / sizeof *signs && form == IV_REASONING_FORM_THINK; i++) {
            const char *const *s = signs[i].signs;
            bool has = pass == 0 ? own && iv_template_contains(own, s[0]) && iv_template_contains(own, s[1])
                                 : !own && signs[i].tokens && knows(t, s[0]) && knows(t, s[1]);
            if (has) form = signs[i].form;
        }
    json_decref(none);
    return form;
}

/* ---- after a prompt ----------------------------------------------------------------------------------- */

/* Does the text end with the mark, ignoring white space after it? */
static bool ends_with(const char *text, size_t n, const char *mark) {
    size_t length = mark ? strlen(mark) : 0;
    while (n && strchr(" \n\t\r", text[n - 1]) && text[n - 1]) n--;
    return mark && n >= length && memcmp(text + n - length, mark, length) == 0;
}

/* The last occurrence; NULL: none. */
static const char *last(const char *text, size_t n, const char *mark) {
    const char *found = NULL, *end = text + n;
    size_t length = strlen(mark);
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), mark, length)) != NULL; at++) found = at;
    return found;
}

/* By the message that the prompt has left open. */
static iv_reasoning after_channels(const char *prompt, size_t bytes) {
    const char *start = last(prompt, bytes, "<|start|>"), *from = start ? start : prompt;
    size_t n = bytes - (size_t)(from - prompt);
    const char *message = n ? memmem(from, n, "<|message|>", 11) : NULL;
    size_t body = message ? n - (size_t)(message - from) : 0;
    if (!message || last(message, body, "<|end|>") || last(message, body, "<|call|>")) return IV_REASONING_OPTIONAL;
    bool analysis = last(from, (size_t)(message - from), "<|channel|>analysis") != NULL;
    return analysis ? IV_REASONING_OPEN : IV_REASONING_NONE;
}

static iv_reasoning after_marks(const iv_text_model *t, const iv_reasoning_marks *marks, const char *prompt,
                                size_t bytes) {
    bool known = knows(t, marks->begin[0]) && knows(t, marks->end[0]);
    for (int i = 0; i < 2; i++)
        if (ends_with(prompt, bytes, marks->begin[i])) return IV_REASONING_OPEN;
    for (int i = 0; i < 2; i++)
        if (ends_with(prompt, bytes, marks->end[i])) return IV_REASONING_NONE;
    if (ends_with(prompt, bytes, marks->answer)) return IV_REASONING_NONE;
    /* Marks that are no tokens are asked for by the prompt itself. */
    bool asked = marks->begin[1] && last(prompt, bytes, marks->begin[0]) != NULL;
    return known || (t->tokenizer && asked) ? IV_REASONING_OPTIONAL : IV_REASONING_NONE;
}

iv_reasoning iv_reasoning_after(const iv_text_model *t, iv_reasoning_form form, const char *prompt, size_t bytes) {
    if (form == IV_REASONING_FORM_NONE) return IV_REASONING_NONE;
    iv_reasoning plain = form == IV_REASONING_FORM_HARMONY ? after_channels(prompt, bytes)
                                                           : after_marks(t, iv_reasoning_marks_of(form), prompt, bytes);
    return iv_reasoning_with_form(form, plain);
}

/* ---- tokens that texts must show ---------------------------------------------------------------------- */

typedef struct id_list {
    const iv_text_model *t;
    int32_t *ids;
    size_t count;
} id_list;

static void add_token(id_list *l, const char *token) {
    int32_t id;
    bool has = l->t->tokenizer && iv_tokenizer_find(l->t->tokenizer, token, strlen(token), &id) &&
               iv_tokenizer_is_special(l->t->tokenizer, id);
    for (size_t i = 0; has && i < l->count; i++) has = l->ids[i] != id;
    if (has && l->count < IV_FORM_IDS_MAX) l->ids[l->count++] = id;
}

/* The text, if it is a token, and the marks in it. */
static void add_marks(id_list *l, const char *text) {
    if (!text || !*text) return;
    add_token(l, text);
    for (int i = 0; i < IV_SPECIALS; i++)
        if (strstr(text, iv_special_name((iv_special)i))) add_token(l, iv_special_name((iv_special)i));
}

size_t iv_form_ids(const iv_text_model *t, iv_reasoning_form reasoning, iv_tool_form calls,
                   int32_t out[IV_FORM_IDS_MAX]) {
    const iv_reasoning_marks *r = iv_reasoning_marks_of(reasoning);
    const iv_tool_marks *c = iv_tool_marks_of(calls);
    const char *const texts[] = {r->begin[0], r->begin[1], r->end[0],    r->end[1],      r->answer, r->answer_end,
                                 c->open,     c->open_too, c->close,     c->function,    c->named,  c->key,
                                 c->keyed,    c->value,    c->value_end, c->function_end};
    id_list l = {.t = t, .ids = out};
    bool channels = reasoning == IV_REASONING_FORM_HARMONY || calls == IV_TOOL_FORM_HARMONY;
    if (channels) add_marks(&l, "<|start|><|channel|><|message|><|end|><|constrain|>");
    if (c->open && strcmp(c->open, "[TOOL_CALLS]") == 0) add_marks(&l, "[TOOL_CALLS][ARGS][CALL_ID]");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) add_marks(&l, texts[i]);
    return l.count;
}

/* ---- the parts ---------------------------------------------------------------------------------------- */

static void out_parts(const iv_chat_text *c, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_key(o, "reasoning"), iv_out_string(o, c->reasoning.data ? c->reasoning.data : "", c->reasoning.len);
    iv_out_key(o, "content"), iv_out_string(o, c->content.data ? c->content.data : "", c->content.len);
    iv_out_key(o, "tool_calls"), iv_out_open(o, '[');
    for (size_t i = 0; i < c->call_count; i++) {
        iv_out_open(o, '{');
        iv_out_kv_text(o, "name", c->calls[i].name);
        iv_out_kv_text(o, "arguments", c->calls[i].arguments);
        iv_out_close(o, '}');
    }
    iv_out_close(o, ']'), iv_out_close(o, '}');
}

static iv_status read_tools(const char *tools, json_t **out, iv_error *err) {
    IV_TRY(iv_json_parse("tools", tools, strlen(tools), out, err));
    if (json_is_array(*out)) return IV_OK;
    iv_status status = iv_fail(err, IV_INVALID, "tools: wanted a list, found %s", iv_json_type_name(*out));
    json_decref(*out);
    return status;
}

iv_status iv_answer_parts(iv_reasoning_form form, iv_reasoning after, iv_tool_form calls, const char *tools,
                          const char *text, size_t bytes, iv_text *json, iv_error *err) {
    json_t *list = NULL;
    if (tools) IV_TRY(read_tools(tools, &list, err));
    iv_chat_text *c = malloc(sizeof *c);
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    if (c) {
        iv_chat_text_init(c, form != IV_REASONING_FORM_NONE, iv_reasoning_without_form(after) == IV_REASONING_OPEN,
                          list != NULL, false);
        c->form = calls, c->reasoning_form = form, c->schemas = list;
        iv_chat_text_push(c, text, bytes);
        iv_chat_text_end(c);
        out_parts(c, &o);
    }
    bool ok = c && !c->failed && !o.failed;
    if (c) iv_chat_text_free(c);
    free(c), json_decref(list);
    if (ok) {
        *json = (iv_text){.data = out.data, .bytes = out.len};
        return IV_OK;
    }
    iv_buf_free(&out);
    return iv_fail(err, IV_NO_MEMORY, "answer: no memory for its parts");
}
