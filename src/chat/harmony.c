/* harmony.c: gpt-oss's answers: messages of channels, one after another:
 *
 *     <|start|>assistant to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>json<|message|>TEXT<|end|>
 *
 * The prompt has written the first <|start|>assistant. <|return|> ends the last message, <|call|> one to a function.
 *
 *     analysis                         reasoning
 *     to=functions.NAME                a call, whichever channel it is in, if tools are searched
 *     final, commentary without to=    content; several are on lines of their own
 *
 * A header that is none of these stays content with its marks, and so does a call whose text is no JSON object. A
 * header that the answer's end cuts off is dropped. Spelled marks end no message inside of a call's JSON, nor in the
 * final message of an answer with a constraint, which ends with it. */
#include "chat/chat_parts.h"

#include <string.h>

enum { HEADER_BYTES_MAX = 1024 };

static const char MESSAGE[] = "<|message|>", START[] = "<|start|>", CHANNEL[] = "<|channel|>";

static const iv_chat_tags ends = {{"<|end|>", "<|return|>", "<|call|>", "<|start|>"}, 4};

typedef struct words {
    const char *s;
    size_t n;
} words;

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Up to white space or a mark. */
static words word_at(const char *s, const char *end) {
    words w = {s, 0};
    while (s + w.n < end && !is_space(s[w.n]) && s[w.n] != '<') w.n++;
    return w;
}

static bool is(words w, const char *what) { return w.n == strlen(what) && memcmp(w.s, what, w.n) == 0; }

static bool begins(words w, const char *what) { return w.n >= strlen(what) && memcmp(w.s, what, strlen(what)) == 0; }

/* ---- headers ------------------------------------------------------------------------------------------ */

typedef struct header {
    words role, channel, recipient;
} header;

/* s: up to <|message|>. */
static header read_header(const char *s, size_t n) {
    const char *end = s + n, *channel = n ? memmem(s, n, CHANNEL, strlen(CHANNEL)) : NULL;
    header h = {.role = {"assistant", 9}};
    if (begins((words){s, n}, START)) h.role = word_at(s + strlen(START), end);
    if (channel) h.channel = word_at(channel + strlen(CHANNEL), end);
    const char *to = n ? memmem(s, n, "to=", 3) : NULL;
    if (to && (to == s || is_space(to[-1]))) h.recipient = word_at(to + 3, end);
    return h;
}

static bool names_tool(const json_t *tools, words name) {
    json_t *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)tools, i, one) {
        json_t *nested = json_object_get(one, "function");
        const char *own = json_string_value(json_object_get(nested ? nested : one, "name"));
        if (own && is(name, own)) return true;
    }
    return false;
}

static bool splits(const iv_chat_text *c) { return c->split && !c->joined; }

/* What a message is; *name: of a call's function. */
static iv_harmony_part part_of(const iv_chat_text *c, const header *h, words *name) {
    static const char functions[] = "functions.";
    size_t skip = strlen(functions);
    *name = h->recipient;
    if (begins(*name, functions)) name->s += skip, name->n -= skip;
    bool to_function = name->n && (name->s != h->recipient.s || names_tool(c->schemas, *name));
    if (!is(h->role, "assistant")) return IV_HARMONY_RAW;
    if (to_function) return c->tools && c->form == IV_TOOL_FORM_HARMONY ? IV_HARMONY_CALL : IV_HARMONY_RAW;
    if (is(h->channel, "analysis")) return splits(c) ? IV_HARMONY_REASONING : IV_HARMONY_RAW;
    return splits(c) && !h->recipient.n ? IV_HARMONY_CONTENT : IV_HARMONY_RAW;
}

/* Whether the text may be a header: it begins with a mark or a recipient. */
static iv_calls_found may_be_header(const char *s, size_t n) {
    static const char *const starts[] = {"<|start|>", "<|channel|>", "<|message|>", " to=", "to="};
    iv_calls_found best = IV_CALLS_WRONG;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        size_t length = strlen(starts[i]);
        if (memcmp(s, starts[i], n < length ? n : length) != 0) continue;
        if (n >= length) return IV_CALLS_DONE;
        best = IV_CALLS_MORE;
    }
    return best;
}

/* ---- messages ----------------------------------------------------------------------------------------- */

/* The first text that is no reasoning. */
static void end_reasoning(iv_chat_text *c, size_t before) {
    if (c->answered) return;
    c->answered = true;
    c->reasoning_bytes = c->reasoning.len ? c->pushed - iv_chat_pending(c).n - before : 0;
}

static void begin_message(iv_chat_text *c, iv_harmony_part part) {
    c->part = part, c->state = IV_CHAT_MESSAGE, c->raw = part == IV_HARMONY_RAW || !splits(c);
    c->joint = part == IV_HARMONY_REASONING ? c->reasoning.len > 0 : !c->raw && c->content.len > 0;
    if (part != IV_HARMONY_REASONING) end_reasoning(c, 0);
}

static void add_text(iv_chat_text *c, const char *s, size_t n) {
    bool joint = n && c->joint;
    if (joint) c->joint = false;
    if (c->part == IV_HARMONY_REASONING) {
        if (joint) iv_chat_add_reasoning(c, "\n", 1);
        iv_chat_add_reasoning(c, s, n);
    } else {
        if (joint) iv_chat_add_content(c, "\n", 1);
        iv_chat_add_content(c, s, n);
    }
}

static bool turn_header(iv_chat_text *c, bool last) {
    const iv_chat_rest p = iv_chat_pending(c);
    iv_calls_found found = may_be_header(p.s, p.n);
    const char *message = memmem(p.s, p.n, MESSAGE, strlen(MESSAGE));
    size_t n = message ? (size_t)(message - p.s) : p.n;
    bool goes_on = found != IV_CALLS_WRONG && !message && p.n <= HEADER_BYTES_MAX + strlen(MESSAGE);
    if (goes_on && !last) return false;
    if (goes_on && found == IV_CALLS_DONE) {
        if (!splits(c)) iv_chat_add_content(c, p.s, p.n);
        iv_chat_drop(c, p.n);
        return false;
    }
    if (found != IV_CALLS_DONE || !message || n > HEADER_BYTES_MAX) { /* text without a header is content */
        c->final = true;                                              /* a continued message */
        begin_message(c, IV_HARMONY_CONTENT);
        add_text(c, p.s, 1); /* so that it does not begin a message again */
        iv_chat_drop(c, 1);
        return true;
    }
    words name;
    header h = read_header(p.s, n);
    iv_harmony_part part = part_of(c, &h, &name);
    size_t all = n + strlen(MESSAGE);
    c->call_begin = c->pushed - p.n;
    iv_buf_clear(&c->header);
    bool kept = part == IV_HARMONY_CALL || part == IV_HARMONY_RAW;
    if (kept && !iv_buf_append(&c->header, p.s, all)) c->failed = true;
    c->name_at = name.n ? (size_t)(name.s - p.s) : 0, c->name_bytes = name.n;
    c->final = part == IV_HARMONY_CONTENT && is(h.channel, "final");
    iv_chat_drop(c, all);
    begin_message(c, part);
    c->searched = 0, c->scanned = false, c->found.scan = (iv_json_scan){0};
    if (part == IV_HARMONY_RAW) iv_chat_add_content(c, c->header.data, c->header.len);
    return true;
}

/* The text of a call is whole. tag: what ends it; NULL: the answer's end. */
static void end_call(iv_chat_text *c, iv_chat_rest p, size_t n, const char *tag) {
    iv_chat_call call;
    size_t before = c->call_count, bytes = n + (tag ? strlen(tag) : 0);
    bool starts = tag && strcmp(tag, START) == 0; /* belongs to the next message */
    if (starts) bytes = n;
    size_t from = 0, solid = n;
    while (from < n && is_space(p.s[from])) from++;
    while (solid > from && is_space(p.s[solid - 1])) solid--;
    bool is_call = before < IV_CHAT_CALLS_MAX && c->header.data &&
                   iv_chat_call_make(c->header.data + c->name_at, c->name_bytes, p.s + from, solid - from, &call);
    if (is_call) {
        iv_chat_take_call(c, call);
        iv_buf_clear(&c->space);
    } else {
        iv_chat_add_content(c, c->header.data, c->header.len);
        iv_chat_add_content(c, p.s, bytes);
    }
    iv_chat_drop(c, bytes);
    iv_chat_place_calls(c, before);
    c->state = IV_CHAT_HEADER;
}

/* Up to the end of its object; if it is none, from its beginning. */
static void scan_arguments(iv_chat_text *c, iv_chat_rest p, bool last) {
    bool begun = c->found.scan.depth > 0;
    for (; !c->scanned && c->searched < p.n; c->searched++) {
        char byte = p.s[c->searched];
        if (!begun && is_space(byte)) continue;
        iv_json_scanned found = iv_json_scan_byte(&c->found.scan, byte);
        begun = true;
        if (found == IV_JSON_MORE) continue;
        c->scanned = true;
        if (found == IV_JSON_WRONG) c->searched = 0;
        if (found == IV_JSON_DONE) c->searched++;
        break;
    }
    if (!c->scanned && last) c->scanned = true, c->searched = 0;
}

static bool turn_call(iv_chat_text *c, bool last) {
    const iv_chat_rest p = iv_chat_pending(c);
    const char *tag;
    scan_arguments(c, p, last);
    if (!c->scanned) return false;
    size_t from = c->searched, n = from + iv_chat_find_tag((iv_chat_rest){p.s + from, p.n - from}, &ends, last, &tag);
    c->searched = n;
    if (!tag && !last) return false;
    end_call(c, p, n, tag);
    return iv_chat_pending(c).n > 0;
}

static bool turn_message(iv_chat_text *c, bool last) {
    static const iv_chat_tags none = {.count = 0};
    if (c->part == IV_HARMONY_CALL) return turn_call(c, last);
    const iv_chat_rest p = iv_chat_pending(c);
    const char *tag;
    bool whole = c->final && (c->trim || c->calls_or_json);
    size_t n = iv_chat_find_tag(p, whole ? &none : &ends, last, &tag);
    add_text(c, p.s, n);
    size_t bytes = tag && strcmp(tag, START) != 0 ? strlen(tag) : 0;
    if (c->raw) add_text(c, p.s + n, bytes);
    iv_chat_drop(c, n + bytes);
    if (!tag) return false;
    c->state = IV_CHAT_HEADER;
    return iv_chat_pending(c).n > 0;
}

bool iv_chat_turn_harmony(iv_chat_text *c, bool last) {
    if (c->state == IV_CHAT_START || c->state == IV_CHAT_BEGIN) {
        c->state = IV_CHAT_HEADER;
    } else if (c->state == IV_CHAT_REASONING) {
        begin_message(c, splits(c) ? IV_HARMONY_REASONING : IV_HARMONY_CONTENT);
    }
    return c->state == IV_CHAT_HEADER ? turn_header(c, last) : turn_message(c, last);
}
