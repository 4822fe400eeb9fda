/* chat.c: conversations -> text with the assistant's spans -> ids and mask.
 *
 * The spans come from the template's {% generation %} blocks. A template without them is rendered up to each turn of
 * the assistant, with the generation prompt, and after it: if each text begins with the previous one, the text between
 * is the turn. White space after the turn's end is not learned. */
#include "train/data/line.h"
#include "base/size.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

#define TAGS "put {%% generation %%} and {%% endgeneration %%} around the assistant's text in chat_template.jinja"

bool iv_train_line_has_template(const iv_train_line *l) { return l->text && l->text->chat; }

static bool is_assistant(const json_t *message) {
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

/* Unless the data leaves it out: "train": false or "weight": 0. */
static bool learned(const json_t *message) { return !json_is_false(json_object_get(message, "train")); }

/* IV_INVALID and IV_UNSUPPORTED concern the file here. */
static iv_status prefix(const iv_train_line *l) {
    if (l->err->status == IV_INVALID || l->err->status == IV_UNSUPPORTED) l->err->status = IV_FORMAT;
    return iv_train_line_prefix(l);
}

iv_status iv_train_line_read_messages(const iv_train_line *l, const char *name, const json_t *messages, json_t **out,
                                      size_t *assistant) {
    const iv_template *template =
        iv_train_line_has_template(l) ? iv_chat_template_chosen(l->text->chat, l->root) : NULL;
    const json_t *message;
    char shown[IV_JSON_SHOWN_BYTES];
    size_t i;
    *assistant = 0, *out = NULL;
    if (!json_is_array(messages))
        return iv_train_line_fail(l, "%s: wanted a list of messages, found %s", name, iv_json_shown(messages, shown));
    if (json_array_size(messages) == 0)
        return iv_train_line_fail(l, "%s: wanted at least one message, found none", name);
    json_t *list = json_array();
    if (!list) return iv_train_line_no_memory(l);
    if (iv_chat_fit_read(template, name, true, messages, list, l->err) != IV_OK) {
        json_decref(list);
        return prefix(l);
    }
    json_array_foreach(list, i, message) *assistant += is_assistant(message) && learned(message);
    *out = list;
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
    json_t *variables, *messages; /* messages: for the template, without "train" */
    bool *left_out;               /* [messages]: not learned, though it is the assistant's */
    size_t from;                  /* the first message that may be learned */
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

/* Removes the generation blocks of turns that are left out. Those of message i are the ones that the text of the first
 * i + 1 messages has in addition to that of the first i. */
static iv_status leave_out(chat *c) {
    iv_train_line *l = c->l;
    size_t n = json_array_size(c->messages), kept = 0, at = 0;
    iv_text_spans some = {0};
    iv_status status = IV_OK;
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        if (!is_assistant(json_array_get(c->messages, i))) continue;
        status = i + 1 < n ? render(c, i + 1, false, &l->partial, &some) : IV_OK;
        size_t end = i + 1 < n ? some.count : l->spans.count;
        if (status == IV_OK && (end < at || end > l->spans.count))
            status = iv_train_line_fail(l,
                                        "message %zu: wanted as many generation blocks as without the messages "
                                        "after it, found others: the turn cannot be left out",
                                        i);
        for (; status == IV_OK && at < end; at++)
            if (!c->left_out[i]) l->spans.at[kept++] = l->spans.at[at];
    }
    free(some.at);
    l->spans.count = kept;
    return status;
}

static bool leaves_out(const chat *c) {
    for (size_t i = 0; i < json_array_size(c->messages); i++)
        if (c->left_out[i]) return true;
    return false;
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

/* What the generation prompt has after the header of a turn, such as "<think>\n", is given to the model: where a turn
 * begins with it, it is not learned. */
static iv_status skip_prompted(chat *c) {
    static const char header[] = "assistant\n";
    iv_train_line *l = c->l;
    size_t n = json_array_size(c->messages), length = strlen(header);
    if (n < 2) return IV_OK;
    iv_buf prompt = {0};
    iv_status status = render(c, n, true, &prompt, NULL);
    if (status == IV_OK && begins_with(&prompt, &l->rendered)) {
        const char *given = prompt.data + l->rendered.len, *at = strstr(given, header);
        const char *tail = at ? at + length : "";
        size_t skip = strlen(tail);
        for (size_t i = 0; i < l->spans.count && skip; i++) {
            iv_text_span *s = &l->spans.at[i];
            if (s->end - s->start > skip && memcmp(l->rendered.data + s->start, tail, skip) == 0) s->start += skip;
        }
    }
    iv_buf_free(&prompt);
    return status;
}

static iv_status find_spans(chat *c) {
    iv_train_line *l = c->l;
    size_t n = json_array_size(c->messages);
    IV_TRY(render(c, n, false, &l->rendered, &l->spans));
    bool tagged = c->tagged;
    if (tagged && leaves_out(c)) IV_TRY(leave_out(c));
    const iv_template *chosen = iv_chat_template_chosen(l->text->chat, c->variables);
    if (tagged && !iv_template_has_generation(chosen)) IV_TRY(skip_prompted(c)); /* marks that we added */
    if (tagged && c->from == 0) return IV_OK;
    if (tagged) {
        IV_TRY(render(c, c->from, true, &l->partial, NULL));
        if (!begins_with(&l->rendered, &l->partial))
            return iv_train_line_fail(l, "prompt: wanted its text at the beginning of the text with the completion, "
                                         "found another: the chat template changes the prompt when messages follow it");
        clip(&l->spans, l->partial.len);
        return IV_OK;
    }
    l->spans.count = 0;
    for (size_t i = c->from; i < n; i++)
        if (is_assistant(json_array_get(c->messages, i)) && !c->left_out[i]) IV_TRY(find_turn(c, i));
    return IV_OK;
}

/* ---- ids ---- */

static iv_status need_template(const iv_train_line *l) {
    if (!l->text) return iv_train_line_fail(l, "wanted \"ids\", as there is no tokenizer; found messages");
    if (l->text->chat) return IV_OK;
    *l->err = l->text->no_chat;
    return iv_train_line_prefix(l);
}

static void close_chat(chat *c) {
    free(c->left_out);
    json_decref(c->variables), json_decref(c->messages);
}

/* Takes "train" out of the messages, which templates do not know. */
static iv_status split_learned(chat *c) {
    size_t i;
    json_t *message;
    c->left_out = calloc(json_array_size(c->messages) + 1, sizeof *c->left_out);
    if (!c->left_out) return iv_train_line_no_memory(c->l);
    json_array_foreach(c->messages, i, message) {
        c->left_out[i] = is_assistant(message) && !learned(message);
        json_object_del(message, "train");
    }
    return IV_OK;
}

/* messages: as read; their objects change. */
static iv_status fit(chat *c, const char *name, json_t *messages, size_t from) {
    size_t given = json_array_size(messages);
    if (json_object_set(c->variables, "messages", messages) != 0) return iv_train_line_no_memory(c->l);
    if (iv_chat_template_fit(c->l->text->chat, c->variables, name, c->l->err) != IV_OK) return prefix(c->l);
    size_t joined = given - json_array_size(messages); /* at the beginning */
    c->from = from > joined ? from - joined : 0;
    c->messages = json_incref(messages);
    return split_learned(c);
}

static iv_status open_chat(iv_train_line *l, const char *name, json_t *messages, size_t from, chat *c) {
    *c = (chat){.l = l};
    IV_TRY(need_template(l));
    IV_TRY(make_variables(l, &c->variables));
    iv_status status = fit(c, name, messages, from);
    if (status != IV_OK) close_chat(c);
    return status;
}

iv_status iv_train_line_learn(iv_train_line *l, json_t *messages, size_t from) {
    chat c;
    IV_TRY(open_chat(l, "messages", messages, from, &c));
    iv_status status = find_spans(&c);
    close_chat(&c);
    if (status != IV_OK) return status;
    return iv_train_line_encode(l, l->rendered.data, l->rendered.len, IV_ENCODE_PARSE_SPECIAL, l->spans.at,
                                l->spans.count);
}

iv_status iv_train_line_prompt(iv_train_line *l, const char *name, json_t *messages) {
    chat c;
    IV_TRY(open_chat(l, name, messages, 0, &c));
    iv_status status = render(&c, json_array_size(c.messages), true, &l->rendered, NULL);
    close_chat(&c);
    if (status != IV_OK) return status;
    return iv_train_line_encode(l, l->rendered.data, l->rendered.len, IV_ENCODE_PARSE_SPECIAL, NULL, 0);
}
