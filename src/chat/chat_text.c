/* chat_text.c: a state machine over the text; tags are searched only where they can begin. */
#include "chat/chat_parts.h"

#include <string.h>

static const iv_tool_marks *marks_of(const iv_chat_text *c) { return iv_tool_marks_of(c->form); }

static void add_tag(iv_chat_tags *list, const char *tag) {
    if (tag && *tag) list->tags[list->count++] = tag;
}

/* The tags that begin a call. */
static iv_chat_tags start_tags(const iv_chat_text *c) {
    const iv_tool_marks *m = marks_of(c);
    iv_chat_tags list = {.count = 0};
    bool bare = m->kind == IV_TOOLS_MARKED || (m->kind == IV_TOOLS_TAGS && (m->several || m->value_lines));
    add_tag(&list, m->open), add_tag(&list, m->open_too);
    if (bare) add_tag(&list, m->function);
    return list;
}

/* The tag that closes a block of calls, which each of them leaves. */
static const char *block_end(const iv_chat_text *c) {
    const iv_tool_marks *m = marks_of(c);
    bool left = m->kind == IV_TOOLS_LIST || m->kind == IV_TOOLS_MARKED || (m->kind == IV_TOOLS_TAGS && m->several) ||
                (m->kind == IV_TOOLS_PYTHON && !m->lines);
    return left ? m->close : NULL;
}

static bool is_harmony(const iv_chat_text *c) {
    return c->reasoning_form == IV_REASONING_FORM_HARMONY || c->form == IV_TOOL_FORM_HARMONY;
}

/* Whether the whole content may be a call without a tag. */
static bool bare_kind(const iv_chat_text *c) {
    return marks_of(c)->kind == IV_TOOLS_BARE || (marks_of(c)->kind == IV_TOOLS_PYTHON && !marks_of(c)->lines);
}

void iv_chat_text_init(iv_chat_text *c, bool split, bool inside, bool tools, bool one_call) {
    *c = (iv_chat_text){.split = split, .tools = tools, .one_call = one_call};
    c->state = !split ? IV_CHAT_BEGIN : inside ? IV_CHAT_REASONING : IV_CHAT_START;
}

void iv_chat_text_free(iv_chat_text *c) {
    iv_buf_free(&c->pending), iv_buf_free(&c->space), iv_buf_free(&c->reasoning), iv_buf_free(&c->content),
        iv_buf_free(&c->header);
    for (size_t i = 0; i < c->call_count; i++) iv_chat_call_free(&c->calls[i]);
    c->call_count = 0;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

typedef iv_chat_rest rest;

/* Once per push, however many parts it has. */
static void close_up(iv_chat_text *c) {
    iv_buf *b = &c->pending;
    if (c->taken == 0) return;
    memmove(b->data, b->data + c->taken, b->len - c->taken);
    b->len -= c->taken, c->taken = 0;
    b->data[b->len] = 0;
}

/* ---- tool calls --------------------------------------------------------------------------------------- */

static bool take_call(iv_chat_text *c, const char *s, size_t n) {
    iv_chat_call call;
    return c->call_count < IV_CHAT_CALLS_MAX && iv_chat_call_read(s, n, false, &call) && iv_chat_take_call(c, call);
}

/* Finds the end of a call's text: the first end tag outside its strings. */
static bool find_call_end(iv_chat_text *c, size_t *n) {
    const char *end = marks_of(c)->close;
    size_t tag = strlen(end);
    const rest p = iv_chat_pending(c);
    for (; c->searched + tag <= p.n; c->searched++) {
        const char *s = p.s + c->searched;
        bool is_tag = *s == '<' && memcmp(s, end, tag) == 0;
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
    const char *s = iv_chat_pending(c).s;
    size_t before = c->call_count;
    if (take_call(c, s, n)) {
        iv_buf_clear(&c->space);
    } else {
        if (c->quoted_end) n = c->quoted_end - 1, closed = c->quotes_wrong = true;
        iv_chat_add_content(c, marks_of(c)->open, strlen(marks_of(c)->open));
        iv_chat_add_content(c, s, n);
        if (closed) iv_chat_add_content(c, marks_of(c)->close, strlen(marks_of(c)->close));
    }
    iv_chat_drop(c, n + (closed ? strlen(marks_of(c)->close) : 0));
    iv_chat_place_calls(c, before);
    c->searched = c->quoted_end = 0, c->in_string = c->escaped = false;
    c->state = IV_CHAT_CONTENT;
}

/* From here on calls of the other forms are searched. start_tag: the tag that was found; NULL: none. */
static void begin_calls(iv_chat_text *c, const char *start_tag) {
    const iv_tool_marks *m = marks_of(c);
    bool in_call = start_tag && m->function && strcmp(start_tag, m->function) == 0;
    bool mistral = m->open && strcmp(m->open, "[TOOL_CALLS]") == 0;
    c->found = (iv_chat_calls){.llama = m->kind == IV_TOOLS_BARE, .list_only = !mistral};
    c->tags = (iv_tags_call){.marks = m, .tools = c->schemas, .bare = in_call};
    c->marked = (iv_marked_call){.marks = m, .bare = in_call};
    c->python = (iv_python_calls){.marks = m, .bare = !start_tag};
    c->start_tag = start_tag;
    c->state = IV_CHAT_CALLS;
}

/* Examines the pending text. */
static iv_calls_found scan_calls(iv_chat_text *c, rest p, bool last) {
    switch (marks_of(c)->kind) {
    case IV_TOOLS_TAGS: return iv_tags_call_scan(&c->tags, p.s, p.n, last);
    case IV_TOOLS_MARKED: return iv_marked_call_scan(&c->marked, p.s, p.n, last);
    case IV_TOOLS_PYTHON: return iv_python_calls_scan(&c->python, p.s, p.n, last);
    default: return iv_chat_calls_scan(&c->found, p.s, p.n, last);
    }
}

/* Takes the calls found in s: their count and their bytes. */
static size_t take_calls(iv_chat_text *c, rest p, size_t *bytes) {
    const char *s = p.s;
    iv_chat_call *out = c->calls + c->call_count;
    size_t room = IV_CHAT_CALLS_MAX - c->call_count;
    switch (marks_of(c)->kind) {
    case IV_TOOLS_TAGS:
        *bytes = c->tags.at;
        if (!room) return 0;
        if (iv_tags_call_take(&c->tags, s, p.n, out)) return 1;
        c->failed = true;
        return 0;
    case IV_TOOLS_MARKED: *bytes = c->marked.at; return room && iv_marked_call_take(&c->marked, s, out);
    case IV_TOOLS_PYTHON: *bytes = c->python.bytes; return iv_python_calls_take(&c->python, s, out, room);
    default: *bytes = c->found.at; return iv_chat_calls_take(&c->found, s, out, room);
    }
}

/* The pending text may be calls; otherwise it becomes content. False: more text is needed. */
static bool turn_calls(iv_chat_text *c, bool last) {
    const rest p = iv_chat_pending(c);
    bool tags = marks_of(c)->kind == IV_TOOLS_TAGS;
    iv_calls_found found = scan_calls(c, p, last);
    if (found == IV_CALLS_MORE) return false;
    size_t count = 0, bytes = 0;
    if (found == IV_CALLS_DONE) count = take_calls(c, p, &bytes);
    if (count) {
        size_t before = c->call_count;
        c->call_count += count;
        while (c->one_call && c->call_count > 1) iv_chat_call_free(&c->calls[--c->call_count]);
        iv_buf_clear(&c->space);
        iv_chat_drop(c, bytes);
        iv_chat_place_calls(c, before);
        c->after_calls = true;
    } else if (c->start_tag) {
        iv_chat_add_content(c, c->start_tag, strlen(c->start_tag));
    }
    /* No search inside an unfinished value or beyond the maximum number of calls: each could cost the whole rest. */
    size_t text = !tags || count ? 0 : found == IV_CALLS_DONE ? bytes : c->tags.cut ? p.n : 0;
    iv_chat_add_content(c, p.s, text);
    iv_chat_drop(c, text);
    c->state = IV_CHAT_CONTENT;
    return c->pending.len > 0;
}

/* ---- the state machine -------------------------------------------------------------------------------- */

/* Which of the tags the text begins with; MORE: it is too short to tell. */
static iv_calls_found begins_with(const char *s, size_t n, const iv_chat_tags *list, const char **tag) {
    iv_calls_found best = IV_CALLS_WRONG;
    *tag = NULL;
    for (size_t i = 0; i < list->count; i++) {
        size_t length = strlen(list->tags[i]);
        if (memcmp(s, list->tags[i], n < length ? n : length) != 0) continue;
        if (n >= length) {
            *tag = list->tags[i];
            return IV_CALLS_DONE;
        }
        best = IV_CALLS_MORE;
    }
    return best;
}

static iv_chat_tags reasoning_tags(const iv_chat_text *c, bool begin) {
    const iv_reasoning_marks *r = iv_reasoning_marks_of(c->reasoning_form);
    iv_chat_tags list = {.count = 0};
    for (int i = 0; i < 2; i++) add_tag(&list, begin ? r->begin[i] : r->end[i]);
    return list;
}

static bool turn_start(iv_chat_text *c, bool last) {
    const rest p = iv_chat_pending(c);
    const iv_chat_tags tags = reasoning_tags(c, true);
    const char *tag;
    size_t from = 0;
    while (from < p.n && is_space(p.s[from])) from++;
    if (begins_with(p.s + from, p.n - from, &tags, &tag) == IV_CALLS_MORE && !last) return false;
    size_t n = tag ? from + strlen(tag) : 0;
    if (tag && c->joined) iv_chat_add_content(c, p.s, n);
    iv_chat_drop(c, n);
    c->state = tag ? IV_CHAT_REASONING : IV_CHAT_BEGIN;
    return true;
}

/* Decides between calls and JSON. False: more text is needed. */
static bool decide_calls_or_json(iv_chat_text *c, bool last) {
    const rest p = iv_chat_pending(c);
    const iv_chat_tags tags = start_tags(c);
    const char *tag;
    size_t from = 0;
    while (from < p.n && is_space(p.s[from])) from++;
    iv_calls_found found;
    if (c->form == IV_TOOL_FORM_LLAMA3_JSON)
        found = iv_chat_calls_open(c->schemas, p.s + from, p.n - from);
    else if (c->form == IV_TOOL_FORM_PYTHONIC)
        found = iv_python_calls_open(c->schemas, p.s + from, p.n - from);
    else
        found = begins_with(p.s + from, p.n - from, &tags, &tag);
    c->no_calls = found == IV_CALLS_WRONG;
    return found != IV_CALLS_MORE || last;
}

/* The mark around the content, if the form has one. False: more text is needed. */
static bool unwrap(iv_chat_text *c, bool last) {
    const rest p = iv_chat_pending(c);
    iv_chat_tags tags = {.count = 0};
    const char *tag;
    size_t from = 0;
    add_tag(&tags, c->split && !c->joined ? iv_reasoning_marks_of(c->reasoning_form)->answer : NULL);
    while (from < p.n && is_space(p.s[from])) from++;
    if (!tags.count || c->wrapped) return true;
    if (begins_with(p.s + from, p.n - from, &tags, &tag) == IV_CALLS_MORE && !last) return false;
    if (!tag) return true;
    size_t n = from + strlen(tag);
    iv_chat_drop(c, n);
    c->reasoning_bytes += c->reasoning_bytes ? n : 0;
    c->wrapped = c->trimming = true;
    return c->pending.len > 0 || last;
}

/* Llama's and Python's calls may begin the content without a tag. */
static bool turn_begin(iv_chat_text *c, bool last) {
    if (!unwrap(c, last)) return false;
    if (c->calls_or_json && iv_chat_looks_for_calls(c) && !decide_calls_or_json(c, last)) return false;
    const rest p = iv_chat_pending(c);
    bool bare = iv_chat_looks_for_calls(c) && bare_kind(c);
    size_t from = 0;
    while (bare && from < p.n && is_space(p.s[from])) from++;
    if (bare && from == p.n && !last) return false;
    c->state = IV_CHAT_CONTENT;
    char first = marks_of(c)->kind == IV_TOOLS_PYTHON ? '[' : '{';
    if (bare && from < p.n && p.s[from] == first) c->call_begin = c->pushed - p.n + from, begin_calls(c, NULL);
    return true;
}

static bool turn_call(iv_chat_text *c, bool last) {
    size_t n = iv_chat_pending(c).n;
    bool closed = find_call_end(c, &n);
    if (!closed && !last) return false;
    end_call(c, n, closed);
    return c->pending.len > 0;
}

/* Passes reasoning on, up to its end. */
static bool turn_reasoning(iv_chat_text *c, bool last) {
    const iv_chat_tags tags = reasoning_tags(c, false);
    const rest p = iv_chat_pending(c);
    const char *tag;
    size_t n = iv_chat_find_tag(p, &tags, last, &tag);
    if (c->joined)
        iv_chat_add_content(c, p.s, n);
    else
        iv_chat_add_reasoning(c, p.s, n);
    iv_chat_drop(c, n + (tag ? strlen(tag) : 0));
    if (!tag) return false;
    if (c->joined) iv_chat_add_content(c, tag, strlen(tag));
    c->trimming = c->trim && !c->joined;
    c->state = IV_CHAT_BEGIN, c->reasoning_bytes = c->joined ? 0 : c->pushed - iv_chat_pending(c).n;
    return true;
}

/* A tag that is no part of a call: dropped at its place, text elsewhere. */
static bool end_block(iv_chat_text *c, const char *tag) {
    const char *answer_end = c->wrapped ? iv_reasoning_marks_of(c->reasoning_form)->answer_end : NULL;
    if (answer_end && strcmp(tag, answer_end) == 0) {
        if (!iv_buf_puts(&c->space, tag)) c->failed = true;
        c->closed = true;
        return true;
    }
    if (!block_end(c) || strcmp(tag, block_end(c)) != 0) return false;
    if (c->after_calls)
        iv_buf_clear(&c->space);
    else
        iv_chat_add_content(c, tag, strlen(tag));
    return true;
}

/* Passes content on, up to the next tag. */
static bool turn_content(iv_chat_text *c, bool last) {
    iv_chat_tags tags = {.count = 0};
    if (iv_chat_looks_for_calls(c)) tags = start_tags(c), add_tag(&tags, block_end(c));
    if (c->wrapped) add_tag(&tags, iv_reasoning_marks_of(c->reasoning_form)->answer_end);
    const rest p = iv_chat_pending(c);
    const char *tag;
    size_t n = iv_chat_find_tag(p, &tags, last, &tag);
    iv_chat_add_content(c, p.s, n);
    c->call_begin = c->pushed - p.n + n;
    iv_chat_drop(c, n + (tag ? strlen(tag) : 0));
    if (!tag) return false;
    if (end_block(c, tag)) return true;
    if (marks_of(c)->kind == IV_TOOLS_JSON)
        c->state = IV_CHAT_CALL;
    else
        begin_calls(c, tag);
    return true;
}

/* One step in the current state; false: more text is needed. */
static bool turn(iv_chat_text *c, bool last) {
    if (is_harmony(c)) return iv_chat_turn_harmony(c, last);
    switch (c->state) {
    case IV_CHAT_START: return turn_start(c, last);
    case IV_CHAT_REASONING: return turn_reasoning(c, last);
    case IV_CHAT_BEGIN: return turn_begin(c, last);
    case IV_CHAT_CALL: return turn_call(c, last);
    case IV_CHAT_CALLS: return turn_calls(c, last);
    default: return turn_content(c, last);
    }
}

void iv_chat_text_push(iv_chat_text *c, const char *text, size_t n) {
    close_up(c);
    if (n && !iv_buf_append(&c->pending, text, n)) c->failed = true;
    c->pushed += n;
    while (c->pending.len && turn(c, false)) {}
}

static bool in_call(const iv_chat_text *c) {
    bool message = c->state == IV_CHAT_MESSAGE && c->part == IV_HARMONY_CALL;
    return c->state == IV_CHAT_CALL || c->state == IV_CHAT_CALLS || message;
}

void iv_chat_text_end(iv_chat_text *c) {
    while ((c->pending.len || in_call(c)) && turn(c, true)) {}
    bool kept = c->call_count == 0 && !c->closed && c->space.len;
    if (kept && !iv_buf_append(&c->content, c->space.data, c->space.len)) c->failed = true;
    iv_buf_clear(&c->space);
}

size_t iv_chat_text_decided(const iv_chat_text *c) { return c->pushed - iv_chat_pending(c).n; }

size_t iv_chat_text_reasoning_bytes(const iv_chat_text *c) {
    if (c->joined) return 0;
    if (is_harmony(c)) return !c->split ? 0 : c->answered ? c->reasoning_bytes : c->pushed;
    return c->state == IV_CHAT_START || c->state == IV_CHAT_REASONING ? c->pushed : c->reasoning_bytes;
}
