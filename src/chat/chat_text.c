/* chat_text.c: a state machine over the text; tags are searched only where they can begin. */
#include "chat/chat_text.h"

#include <string.h>

static const char THINK[] = "<think>", THOUGHT[] = "</think>", CALL[] = "<tool_call>", CALLED[] = "</tool_call>",
                  FUNCTION[] = "<function=";

typedef const char *const *tags; /* NULL-terminated */

/* The tags that begin a call. */
static tags start_tags(const iv_chat_text *c) {
    static const char *const hermes[] = {CALL, NULL}, *const llama[] = {"<|python_tag|>", NULL},
                             *const mistral[] = {"[TOOL_CALLS]", NULL}, *const coder[] = {CALL, FUNCTION, NULL};
    switch (c->form) {
    case IV_TOOL_FORM_HERMES: return hermes;
    case IV_TOOL_FORM_LLAMA3_JSON: return llama;
    case IV_TOOL_FORM_QWEN3_CODER: return coder;
    default: return mistral;
    }
}

static bool looks_for_calls(const iv_chat_text *c) { return c->tools && !c->no_calls && c->form != IV_TOOL_FORM_NONE; }

void iv_chat_text_init(iv_chat_text *c, bool split, bool inside, bool tools, bool one_call) {
    *c = (iv_chat_text){.tools = tools, .one_call = one_call};
    c->state = !split ? IV_CHAT_BEGIN : inside ? IV_CHAT_REASONING : IV_CHAT_START;
}

void iv_chat_text_free(iv_chat_text *c) {
    iv_buf_free(&c->pending), iv_buf_free(&c->space), iv_buf_free(&c->reasoning), iv_buf_free(&c->content);
    for (size_t i = 0; i < c->call_count; i++) iv_chat_call_free(&c->calls[i]);
    c->call_count = 0;
}

static void add(iv_chat_text *c, iv_buf *to, const char *s, size_t n) {
    if (n && !iv_buf_append(to, s, n)) c->failed = true;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The text not decided yet. */
typedef struct rest {
    const char *s;
    size_t n;
} rest;

static rest pending(const iv_chat_text *c) {
    return c->pending.len ? (rest){c->pending.data + c->taken, c->pending.len - c->taken} : (rest){"", 0};
}

static void drop(iv_chat_text *c, size_t n) {
    c->taken += n;
    if (c->taken == c->pending.len) iv_buf_clear(&c->pending), c->taken = 0;
}

/* Once per push, however many parts it has. */
static void close_up(iv_chat_text *c) {
    iv_buf *b = &c->pending;
    if (c->taken == 0) return;
    memmove(b->data, b->data + c->taken, b->len - c->taken);
    b->len -= c->taken, c->taken = 0;
    b->data[b->len] = 0;
}

/* With tools, white space around calls is dropped: it is content only if content follows. */
static void add_content(iv_chat_text *c, const char *s, size_t n) {
    while (c->trimming && n && *s == '\n') s++, n--, c->reasoning_bytes++;
    if (n == 0) return;
    size_t solid = n;
    c->trimming = false;
    while (looks_for_calls(c) && solid && is_space(s[solid - 1])) solid--;
    if (solid) {
        add(c, &c->content, c->space.data, c->space.len);
        iv_buf_clear(&c->space);
        add(c, &c->content, s, solid);
    }
    add(c, &c->space, s + solid, n - solid);
}

/* ---- tool calls --------------------------------------------------------------------------------------- */

/* After the text of calls was dropped: their places. */
static void place_calls(iv_chat_text *c, size_t from) {
    for (; from < c->call_count; from++) {
        c->calls[from].content = c->content.len;
        c->calls[from].begin = c->call_begin, c->calls[from].end = c->pushed - pending(c).n;
    }
}

static bool take_call(iv_chat_text *c, const char *s, size_t n) {
    iv_chat_call call;
    if (c->call_count == IV_CHAT_CALLS_MAX || !iv_chat_call_read(s, n, false, &call)) return false;
    if (c->one_call && c->call_count)
        iv_chat_call_free(&call);
    else
        c->calls[c->call_count++] = call;
    return true;
}

/* Finds the end of a call's text: the first end tag outside its strings. */
static bool find_call_end(iv_chat_text *c, size_t *n) {
    size_t tag = strlen(CALLED);
    const rest p = pending(c);
    for (; c->searched + tag <= p.n; c->searched++) {
        const char *s = p.s + c->searched;
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

/* Ends the text of a call; `closed`: its end tag was found. A text that is no call may have an unmatched quote; it
 * ends at its first end tag. That is searched once per text, because each search may cost the whole rest. */
static void end_call(iv_chat_text *c, size_t n, bool closed) {
    const char *s = pending(c).s;
    size_t before = c->call_count;
    if (take_call(c, s, n)) {
        iv_buf_clear(&c->space);
    } else {
        if (c->quoted_end) n = c->quoted_end - 1, closed = c->quotes_wrong = true;
        add_content(c, CALL, strlen(CALL));
        add_content(c, s, n);
        if (closed) add_content(c, CALLED, strlen(CALLED));
    }
    drop(c, n + (closed ? strlen(CALLED) : 0));
    place_calls(c, before);
    c->searched = c->quoted_end = 0, c->in_string = c->escaped = false;
    c->state = IV_CHAT_CONTENT;
}

/* From here on calls of the other forms are searched. start_tag: the tag that was found; NULL: none. */
static void begin_calls(iv_chat_text *c, const char *start_tag) {
    c->found = (iv_chat_calls){.llama = c->form == IV_TOOL_FORM_LLAMA3_JSON};
    c->coder = (iv_coder_call){.tools = c->schemas, .bare = start_tag == FUNCTION};
    c->start_tag = start_tag;
    c->state = IV_CHAT_CALLS;
}

static size_t room(const iv_chat_text *c) { return IV_CHAT_CALLS_MAX - c->call_count; }

/* Takes the calls found in s: their count and their bytes. */
static size_t take_calls(iv_chat_text *c, const char *s, size_t *bytes) {
    *bytes = c->form == IV_TOOL_FORM_QWEN3_CODER ? c->coder.at : c->found.at;
    if (c->form != IV_TOOL_FORM_QWEN3_CODER) return iv_chat_calls_take(&c->found, s, c->calls + c->call_count, room(c));
    if (!room(c)) return 0;
    if (iv_coder_call_take(&c->coder, s, &c->calls[c->call_count])) return 1;
    c->failed = true;
    return 0;
}

/* The pending text may be calls; otherwise it becomes content. False: more text is needed. */
static bool turn_calls(iv_chat_text *c, bool last) {
    const rest p = pending(c);
    bool coder = c->form == IV_TOOL_FORM_QWEN3_CODER;
    iv_calls_found found =
        coder ? iv_coder_call_scan(&c->coder, p.s, p.n, last) : iv_chat_calls_scan(&c->found, p.s, p.n, last);
    if (found == IV_CALLS_MORE) return false;
    size_t count = 0, bytes = 0;
    if (found == IV_CALLS_DONE) count = take_calls(c, p.s, &bytes);
    if (count) {
        size_t before = c->call_count;
        c->call_count += count;
        while (c->one_call && c->call_count > 1) iv_chat_call_free(&c->calls[--c->call_count]);
        iv_buf_clear(&c->space);
        drop(c, bytes);
        place_calls(c, before);
    } else if (c->start_tag) {
        add_content(c, c->start_tag, strlen(c->start_tag));
    }
    /* No search inside an unfinished value or beyond the maximum number of calls: each could cost the whole rest. */
    size_t text = !coder || count ? 0 : found == IV_CALLS_DONE ? bytes : c->coder.cut ? p.n : 0;
    add_content(c, p.s, text);
    drop(c, text);
    c->state = IV_CHAT_CONTENT;
    return c->pending.len > 0;
}

/* ---- the state machine -------------------------------------------------------------------------------- */

/* How many trailing bytes may begin the tag. */
static size_t held(rest p, const char *tag) {
    size_t n = strlen(tag) - 1;
    if (n > p.n) n = p.n;
    while (n && memcmp(p.s + p.n - n, tag, n) != 0) n--;
    return n;
}

/* Finds the first of the tags; *found: which one. NULL: none yet. */
static size_t find_tag(rest p, tags list, bool last, const char **found) {
    size_t first = p.n, open = p.n;
    *found = NULL;
    for (; *list; list++) {
        const char *at = p.n ? memmem(p.s, p.n, *list, strlen(*list)) : NULL;
        if (at && (size_t)(at - p.s) < first) first = (size_t)(at - p.s), *found = *list;
        if (!last && p.n - held(p, *list) < open) open = p.n - held(p, *list);
    }
    return *found ? first : open;
}

static bool turn_start(iv_chat_text *c, bool last) {
    const rest p = pending(c);
    size_t from = 0, n = strlen(THINK);
    while (from < p.n && is_space(p.s[from])) from++;
    bool may = p.n - from < n && !last && memcmp(p.s + from, THINK, p.n - from) == 0;
    if (may) return false;
    bool is = p.n - from >= n && memcmp(p.s + from, THINK, n) == 0;
    if (is && c->joined) add_content(c, p.s, from + n);
    if (is) drop(c, from + n);
    c->state = is ? IV_CHAT_REASONING : IV_CHAT_BEGIN;
    return true;
}

/* Whether s begins with one of the tags. */
static iv_calls_found begins_with(const char *s, size_t n, tags list) {
    iv_calls_found best = IV_CALLS_WRONG;
    for (; *list; list++) {
        size_t length = strlen(*list);
        if (memcmp(s, *list, n < length ? n : length) != 0) continue;
        if (n >= length) return IV_CALLS_DONE;
        best = IV_CALLS_MORE;
    }
    return best;
}

/* Decides between calls and JSON. False: more text is needed. */
static bool decide_calls_or_json(iv_chat_text *c, bool last) {
    const rest p = pending(c);
    size_t from = 0;
    while (from < p.n && is_space(p.s[from])) from++;
    bool llama = c->form == IV_TOOL_FORM_LLAMA3_JSON;
    iv_calls_found found = llama ? iv_chat_calls_open(c->schemas, p.s + from, p.n - from)
                                 : begins_with(p.s + from, p.n - from, start_tags(c));
    c->no_calls = found == IV_CALLS_WRONG;
    return found != IV_CALLS_MORE || last;
}

/* Llama's calls may begin the content without a tag. */
static bool turn_begin(iv_chat_text *c, bool last) {
    if (c->calls_or_json && looks_for_calls(c) && !decide_calls_or_json(c, last)) return false;
    const rest p = pending(c);
    bool bare = looks_for_calls(c) && c->form == IV_TOOL_FORM_LLAMA3_JSON;
    size_t from = 0;
    while (bare && from < p.n && is_space(p.s[from])) from++;
    if (bare && from == p.n && !last) return false;
    c->state = IV_CHAT_CONTENT;
    if (bare && from < p.n && p.s[from] == '{') c->call_begin = c->pushed - p.n + from, begin_calls(c, NULL);
    return true;
}

static bool turn_call(iv_chat_text *c, bool last) {
    size_t n = pending(c).n;
    bool closed = find_call_end(c, &n);
    if (!closed && !last) return false;
    end_call(c, n, closed);
    return c->pending.len > 0;
}

/* Passes reasoning or content on, up to the next tag. */
static bool turn_text(iv_chat_text *c, bool last) {
    static const char *const thought[] = {THOUGHT, NULL};
    const rest p = pending(c);
    bool reasoning = c->state == IV_CHAT_REASONING;
    const char *tag;
    size_t n = find_tag(p, reasoning ? thought : start_tags(c), last, &tag);
    if (reasoning && !c->joined)
        add(c, &c->reasoning, p.s, n);
    else
        add_content(c, p.s, n);
    c->call_begin = c->pushed - p.n + n;
    drop(c, n + (tag ? strlen(tag) : 0));
    if (!tag) return false;
    if (reasoning && c->joined) add_content(c, tag, strlen(tag));
    c->trimming = c->trim && reasoning && !c->joined;
    if (reasoning)
        c->state = IV_CHAT_BEGIN, c->reasoning_bytes = c->joined ? 0 : c->pushed - pending(c).n;
    else if (c->form == IV_TOOL_FORM_HERMES)
        c->state = IV_CHAT_CALL;
    else
        begin_calls(c, tag);
    return true;
}

/* One step in the current state; false: more text is needed. */
static bool turn(iv_chat_text *c, bool last) {
    switch (c->state) {
    case IV_CHAT_START: return turn_start(c, last);
    case IV_CHAT_BEGIN: return turn_begin(c, last);
    case IV_CHAT_CALL: return turn_call(c, last);
    case IV_CHAT_CALLS: return turn_calls(c, last);
    default: break;
    }
    if (c->state == IV_CHAT_REASONING || looks_for_calls(c)) return turn_text(c, last);
    add_content(c, pending(c).s, pending(c).n);
    drop(c, pending(c).n);
    return false;
}

void iv_chat_text_push(iv_chat_text *c, const char *text, size_t n) {
    close_up(c);
    add(c, &c->pending, text, n);
    c->pushed += n;
    while (c->pending.len && turn(c, false)) {}
}

void iv_chat_text_end(iv_chat_text *c) {
    while ((c->pending.len || c->state == IV_CHAT_CALL || c->state == IV_CHAT_CALLS) && turn(c, true)) {}
    if (c->call_count == 0) add(c, &c->content, c->space.data, c->space.len);
    iv_buf_clear(&c->space);
}

size_t iv_chat_text_decided(const iv_chat_text *c) { return c->pushed - pending(c).n; }

size_t iv_chat_text_reasoning_bytes(const iv_chat_text *c) {
    if (c->joined) return 0;
    return c->state == IV_CHAT_START || c->state == IV_CHAT_REASONING ? c->pushed : c->reasoning_bytes;
}
