/* data_chat.c: conversations -> text with the assistant's spans -> ids and mask.
 *
 * The spans come from the template's {% generation %} blocks. A template without them is rendered up to each turn of
 * the assistant, with the generation prompt, and after it: if each text begins with the previous one, the text between
 * is the turn. White space after the turn's end is not learned. */
#include "train/data_line.h"
#include "base/size.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

#define TAGS "put {%% generation %%} and {%% endgeneration %%} around the assistant's text in chat_template.jinja"

bool iv_train_line_has_template(const iv_train_line *l) { return l->text && l->text->chat; }

iv_status iv_train_line_check_messages(const iv_train_line *l, const char *name, const json_t *messages,
                                       size_t *assistant) {
    const json_t *message;
    char shown[IV_JSON_SHOWN_BYTES];
    size_t i;
    *assistant = 0;
    if (!json_is_array(messages))
        return iv_train_line_fail(l, "%s: wanted a list of messages, found %s", name, iv_json_shown(messages, shown));
    if (json_array_size(messages) == 0)
        return iv_train_line_fail(l, "%s: wanted at least one message, found none", name);
    json_array_foreach(messages, i, message) {
        const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
        if (!json_is_object(message))
            return iv_train_line_fail(l, "%s[%zu]: wanted an object, found %s", name, i, iv_json_shown(message, shown));
        if (!json_is_string(role))
            return iv_train_line_fail(l, "%s[%zu].role: wanted a string, found %s", name, i,
                                      iv_json_shown(role, shown));
        if (content && !json_is_string(content) && !json_is_null(content) && !json_is_array(content))
            return iv_train_line_fail(l, "%s[%zu].content: wanted a string or a list of parts, found %s", name, i,
                                      iv_json_shown(content, shown));
        *assistant += strcmp(json_string_value(role), "assistant") == 0;
    }
    return IV_OK;
}

/* ---- rendering ---- */

/* "tools": a list, or a list as JSON text. Its value in *out, owned by the caller; NULL: none. */
static iv_status read_tools(const iv_train_line *l, json_t **out) {
    json_t *tools = json_object_get(l->root, "tools");
    char shown[IV_JSON_SHOWN_BYTES];
    *out = NULL;
    if (!tools || json_is_null(tools)) return IV_OK;
    if (json_is_string(tools)) {
        iv_status status = iv_json_parse("tools", json_string_value(tools), json_string_length(tools), out, l->err);
        if (status != IV_OK) return iv_train_line_prefix(l);
    } else {
        *out = json_incref(tools);
    }
    if (json_is_array(*out)) return IV_OK;
    iv_status status = iv_train_line_fail(l, "tools: wanted a list, found %s", iv_json_shown(*out, shown));
    json_decref(*out);
    *out = NULL;
    return status;
}

/* The template's variables, except the messages. */
static iv_status make_variables(const iv_train_line *l, json_t **out) {
    json_t *more = json_object_get(l->root, "chat_template_kwargs"), *tools;
    char shown[IV_JSON_SHOWN_BYTES];
    if (more && !json_is_null(more) && !json_is_object(more))
        return iv_train_line_fail(l, "chat_template_kwargs: wanted an object, found %s", iv_json_shown(more, shown));
    if (json_object_get(more, "messages") || json_object_get(more, "add_generation_prompt"))
        return iv_train_line_fail(l, "chat_template_kwargs: wanted other variables than \"messages\" and "
                                     "\"add_generation_prompt\", found one of them");
    IV_TRY(read_tools(l, &tools));
    *out = json_object();
    bool ok = *out && (!json_is_object(more) || json_object_update(*out, more) == 0) &&
              (!tools || json_object_set(*out, "tools", tools) == 0);
    json_decref(tools);
    if (ok) return IV_OK;
    json_decref(*out);
    return iv_train_line_no_memory(l);
}

/* A conversation being rendered. */
typedef struct chat {
    iv_train_line *l;
    json_t *variables, *messages;
    bool tagged;
} chat;

/* The first n messages. spans may be NULL. */
static iv_status render(chat *c, size_t n, bool generation_prompt, iv_buf *out, iv_text_spans *spans) {
    iv_train_line *l = c->l;
    const char *date = l->options->date ? l->options->date : IV_TRAIN_DATE;
    json_t *some = json_array();
    bool ok = some != NULL;
    for (size_t i = 0; ok && i < n; i++) ok = json_array_append(some, json_array_get(c->messages, i)) == 0;
    ok = ok && json_object_set(c->variables, "messages", some) == 0 &&
         json_object_set_new(c->variables, "add_generation_prompt", json_boolean(generation_prompt)) == 0;
    json_decref(some);
    if (!ok) return iv_train_line_no_memory(l);
    if (iv_chat_template_render_spans(l->text->chat, c->variables, date, out, spans, &c->tagged, l->err) == IV_OK)
        return iv_buf_reserve(out, 0) ? IV_OK : iv_train_line_no_memory(l);
    return iv_train_line_prefix(l);
}

static bool begins_with(const iv_buf *text, const iv_buf *start) {
    return text->len >= start->len && memcmp(text->data, start->data, start->len) == 0;
}

/* ---- spans of the assistant ---- */

/* Leaves out what lies before byte `from`. */
static void clip(iv_text_spans *spans, size_t from) {
    size_t n = 0;
    for (size_t i = 0; i < spans->count; i++) {
        iv_text_span s = spans->at[i];
        if (s.end > from) spans->at[n++] = (iv_text_span){iv_size_max(s.start, from), s.end};
    }
    spans->count = n;
}

static bool push_span(iv_text_spans *spans, size_t start, size_t end) {
    if (spans->count == spans->capacity) {
        size_t bytes, cap = spans->capacity ? spans->capacity : 8;
        if (!iv_size_mul(cap, 2 * sizeof *spans->at, &bytes)) return false;
        iv_text_span *wider = realloc(spans->at, bytes);
        if (!wider) return false;
        spans->at = wider, spans->capacity = 2 * cap;
    }
    spans->at[spans->count++] = (iv_text_span){start, end};
    return true;
}

static iv_status no_prefix(const chat *c, size_t turn, const char *which) {
    return iv_train_line_fail(c->l,
                              "message %zu: the chat template has no generation mask, and its text %s this turn of the "
                              "assistant does not begin the text with it: the turn cannot be found; " TAGS,
                              turn, which);
}

/* The turn at index i as a span of `rendered`, the text of all messages. */
static iv_status find_turn(chat *c, size_t i) {
    iv_train_line *l = c->l;
    iv_buf before = {0};
    iv_status status = render(c, i, true, &before, NULL);
    if (status == IV_OK) status = render(c, i + 1, false, &l->partial, NULL);
    if (status == IV_OK && !begins_with(&l->partial, &before)) status = no_prefix(c, i, "before");
    if (status == IV_OK && !begins_with(&l->rendered, &l->partial))
        status = iv_train_line_fail(l,
                                    "message %zu: the chat template has no generation mask, and it writes this turn "
                                    "of the assistant in another way when messages follow it; " TAGS,
                                    i);
    size_t start = before.len, end = l->partial.len;
    while (end > start && strchr(" \t\r\n", l->partial.data[end - 1])) end--;
    iv_buf_free(&before);
    if (status != IV_OK || end == start) return status;
    return push_span(&l->spans, start, end) ? IV_OK : iv_train_line_no_memory(l);
}

static bool is_assistant(const json_t *message) {
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

static iv_status find_spans(chat *c, size_t from) {
    iv_train_line *l = c->l;
    size_t n = json_array_size(c->messages);
    IV_TRY(render(c, n, false, &l->rendered, &l->spans));
    if (c->tagged && from == 0) return IV_OK;
    if (c->tagged) {
        IV_TRY(render(c, from, true, &l->partial, NULL));
        if (!begins_with(&l->rendered, &l->partial))
            return iv_train_line_fail(l, "prompt: wanted its text at the beginning of the text with the completion, "
                                         "found another: the chat template changes the prompt when messages follow it");
        clip(&l->spans, l->partial.len);
        return IV_OK;
    }
    l->spans.count = 0;
    for (size_t i = from; i < n; i++)
        if (is_assistant(json_array_get(c->messages, i))) IV_TRY(find_turn(c, i));
    return IV_OK;
}

/* ---- ids ---- */

static iv_status need_template(const iv_train_line *l) {
    if (!l->text) return iv_train_line_fail(l, "wanted \"ids\", as there is no tokenizer; found messages");
    if (l->text->chat) return IV_OK;
    *l->err = l->text->no_chat;
    return iv_train_line_prefix(l);
}

static iv_status open_chat(iv_train_line *l, json_t *messages, chat *c) {
    *c = (chat){.l = l, .messages = messages};
    IV_TRY(need_template(l));
    return make_variables(l, &c->variables);
}

iv_status iv_train_line_learn(iv_train_line *l, json_t *messages, size_t from) {
    chat c;
    IV_TRY(open_chat(l, messages, &c));
    iv_status status = find_spans(&c, from);
    json_decref(c.variables);
    if (status != IV_OK) return status;
    return iv_train_line_encode(l, l->rendered.data, l->rendered.len, IV_ENCODE_PARSE_SPECIAL, l->spans.at,
                                l->spans.count);
}

iv_status iv_train_line_prompt(iv_train_line *l, json_t *messages) {
    chat c;
    IV_TRY(open_chat(l, messages, &c));
    iv_status status = render(&c, json_array_size(messages), true, &l->rendered, NULL);
    json_decref(c.variables);
    if (status != IV_OK) return status;
    return iv_train_line_encode(l, l->rendered.data, l->rendered.len, IV_ENCODE_PARSE_SPECIAL, NULL, 0);
}
