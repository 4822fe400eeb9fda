/* chat_text.c: a small machine over the text: tags are looked for only where they can begin. */
#include "serve/api/chat_text.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

static const char THINK[] = "<think>", THOUGHT[] = "</think>", CALL[] = "<tool_call>", CALLED[] = "</tool_call>";

void iv_chat_text_init(iv_chat_text *c, bool split, bool inside, bool tools, bool one_call) {
    *c = (iv_chat_text){.tools = tools, .one_call = one_call};
    c->state = !split ? IV_CHAT_CONTENT : inside ? IV_CHAT_REASONING : IV_CHAT_START;
}

void iv_chat_text_free(iv_chat_text *c) {
    iv_buf_free(&c->pending), iv_buf_free(&c->space), iv_buf_free(&c->reasoning), iv_buf_free(&c->content);
    for (size_t i = 0; i < c->call_count; i++) free(c->calls[i].name), free(c->calls[i].arguments);
    c->call_count = 0;
}

static void add(iv_chat_text *c, iv_buf *to, const char *s, size_t n) {
    if (n && !iv_buf_append(to, s, n)) c->failed = true;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static void drop(iv_buf *b, size_t n) {
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

/* With tools, white space around calls is no content: it waits for what follows. */
static void add_content(iv_chat_text *c, const char *s, size_t n) {
    while (c->trimming && n && *s == '\n') s++, n--;
    if (n == 0) return;
    size_t solid = n;
    c->trimming = false;
    while (c->tools && solid && is_space(s[solid - 1])) solid--;
    if (solid) {
        if (!c->content.len) c->calls_before = c->call_count;
        add(c, &c->content, c->space.data, c->space.len);
        iv_buf_clear(&c->space);
        add(c, &c->content, s, solid);
    }
    add(c, &c->space, s + solid, n - solid);
}

/* ---- tool calls ---------------------------------------------------------------------------------------- */

/* Byte for byte as the model wrote them: read and written again, numbers would be others. */
static char *arguments_text(const json_t *object, const char *s, size_t n) {
    const char *key = json_object_get(object, "arguments") ? "arguments" : "parameters", *text;
    const json_t *arguments = json_object_get(object, key);
    size_t bytes;
    if (!arguments) return strdup("{}");
    if (json_is_string(arguments)) return strdup(json_string_value(arguments));
    if (!json_is_object(arguments) || !iv_json_member_text(s, n, key, &text, &bytes)) return NULL;
    return strndup(text, bytes);
}

static bool take_call(iv_chat_text *c, const char *s, size_t n) {
    iv_error err;
    json_t *object = NULL;
    if (c->call_count == IV_CHAT_CALLS_MAX) return false;
    if (iv_json_parse_repeating("tool call", s, n, &object, &err) != IV_OK) return false;
    const char *name = json_string_value(json_object_get(object, "name"));
    iv_chat_call call = {0};
    if (name && *name && strlen(name) == json_string_length(json_object_get(object, "name"))) {
        call.name = strdup(name);
        call.arguments = arguments_text(object, s, n);
    }
    json_decref(object);
    if (!call.name || !call.arguments) {
        free(call.name), free(call.arguments);
        return false;
    }
    if (c->one_call && c->call_count) {
        free(call.name), free(call.arguments);
        return true;
    }
    c->calls[c->call_count++] = call;
    return true;
}

/* Where a call's text ends: at the first end tag that is not inside a string of it. */
static bool find_call_end(iv_chat_text *c, size_t *n) {
    size_t tag = strlen(CALLED);
    for (; c->searched + tag <= c->pending.len; c->searched++) {
        const char *s = c->pending.data + c->searched;
        bool is_tag = *s == '<' && memcmp(s, CALLED, tag) == 0;
        if (is_tag && (c->quotes_wrong || !c->in_string)) {
            *n = c->searched;
            return true;
        }
        if (is_tag && !c->quoted_end) c->quoted_end = c->searched + 1;
        if (c->escaped)
            c->escaped = false;
        else if (*s == '"')
            c->in_string = !c->in_string;
        else
            c->escaped = c->in_string && *s == '\\';
    }
    return false;
}

/* The text of a call is over: `closed` if its end tag was there. What is no call may have a quote too few, and ends at
 * the first tag of all. That is looked for once in a text: each time, it could be all of the rest. */
static void end_call(iv_chat_text *c, size_t n, bool closed) {
    if (take_call(c, c->pending.data, n)) {
        iv_buf_clear(&c->space);
    } else {
        if (c->quoted_end) n = c->quoted_end - 1, closed = c->quotes_wrong = true;
        add_content(c, CALL, strlen(CALL));
        add_content(c, c->pending.data, n);
        if (closed) add_content(c, CALLED, strlen(CALLED));
    }
    drop(&c->pending, n + (closed ? strlen(CALLED) : 0));
    c->searched = c->quoted_end = 0, c->in_string = c->escaped = false;
    c->state = IV_CHAT_CONTENT;
}

/* ---- the machine --------------------------------------------------------------------------------------- */

/* How many last bytes may be the beginning of the tag. */
static size_t held(const iv_buf *b, const char *tag) {
    size_t n = strlen(tag) - 1;
    if (n > b->len) n = b->len;
    while (n && memcmp(b->data + b->len - n, tag, n) != 0) n--;
    return n;
}

static char *find(const iv_buf *b, const char *tag) {
    return b->len ? memmem(b->data, b->len, tag, strlen(tag)) : NULL;
}

/* One turn in the present state; false: more text is needed. */
static bool turn(iv_chat_text *c, bool last) {
    iv_buf *p = &c->pending;
    const char *tag = c->state == IV_CHAT_REASONING ? THOUGHT : CALL;
    if (c->state == IV_CHAT_START) {
        size_t from = 0, n = strlen(THINK);
        while (from < p->len && is_space(p->data[from])) from++;
        bool may = p->len - from < n && !last && memcmp(p->data + from, THINK, p->len - from) == 0;
        if (may) return false;
        bool is = p->len - from >= n && memcmp(p->data + from, THINK, n) == 0;
        if (is) drop(p, from + n);
        c->state = is ? IV_CHAT_REASONING : IV_CHAT_CONTENT;
        return true;
    }
    if (c->state == IV_CHAT_CONTENT && !c->tools) {
        add_content(c, p->data, p->len);
        iv_buf_clear(p);
        return false;
    }
    size_t n = p->len;
    if (c->state == IV_CHAT_CALL) {
        bool closed = find_call_end(c, &n);
        if (!closed && !last) return false;
        end_call(c, n, closed);
        return p->len > 0;
    }
    char *at = find(p, tag);
    n = at ? (size_t)(at - p->data) : p->len - (last ? 0 : held(p, tag));
    if (c->state == IV_CHAT_REASONING)
        add(c, &c->reasoning, p->data, n);
    else
        add_content(c, p->data, n);
    drop(p, n + (at ? strlen(tag) : 0));
    if (at) c->trimming = c->trim && c->state == IV_CHAT_REASONING;
    if (at) c->state = c->state == IV_CHAT_REASONING ? IV_CHAT_CONTENT : IV_CHAT_CALL;
    return at != NULL;
}

void iv_chat_text_push(iv_chat_text *c, const char *text, size_t n) {
    add(c, &c->pending, text, n);
    while (c->pending.len && turn(c, false)) {}
}

void iv_chat_text_end(iv_chat_text *c) {
    while ((c->pending.len || c->state == IV_CHAT_CALL) && turn(c, true)) {}
    if (c->call_count == 0) add(c, &c->content, c->space.data, c->space.len);
    iv_buf_clear(&c->space);
}
