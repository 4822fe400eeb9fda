/* marked_call.c: marks around a name and JSON. Incomplete marks are matched again when more text has come. */
#include "chat/tool_calls.h"

#include <string.h>

enum { NAME_BYTES_MAX = 256 };

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static void skip_space(iv_marked_call *k, const char *s, size_t n) {
    while (k->at < n && is_space(s[k->at])) k->at++;
}

static iv_calls_found take(iv_marked_call *k, const char *s, size_t n, const char *mark) {
    size_t length = strlen(mark), left = n - k->at;
    if (memcmp(s + k->at, mark, left < length ? left : length) != 0) return IV_CALLS_WRONG;
    if (left < length) return IV_CALLS_MORE;
    k->at += length;
    return IV_CALLS_DONE;
}

/* White space of a mark may be missing or more. */
static iv_calls_found take_loose(iv_marked_call *k, const char *s, size_t n, const char *mark) {
    while (is_space(*mark)) mark++;
    size_t length = strlen(mark);
    char solid[64];
    while (length && is_space(mark[length - 1])) length--;
    memcpy(solid, mark, length), solid[length] = 0;
    skip_space(k, s, n);
    return take(k, s, n, solid);
}

static iv_calls_found scan_name(iv_marked_call *k, const char *s, size_t n) {
    if (k->name_end == 0) {
        skip_space(k, s, n);
        k->name = k->at;
        size_t end = k->at;
        while (end < n && end - k->at <= NAME_BYTES_MAX && (iv_tool_name_is_bare(s + end, 1) || s[end] == ':')) end++;
        if (end == n) return IV_CALLS_MORE; /* the name begins again with more text */
        if (end == k->at || end - k->at > NAME_BYTES_MAX) return IV_CALLS_WRONG;
        k->name_end = k->at = end;
    }
    iv_calls_found found = take_loose(k, s, n, k->marks->named);
    if (found == IV_CALLS_DONE) k->step = IV_MARKED_JSON, k->scan = (iv_json_scan){0};
    return found;
}

static iv_calls_found scan_json(iv_marked_call *k, const char *s, size_t n) {
    if (k->scanned == 0) {
        skip_space(k, s, n);
        if (k->at == n) return IV_CALLS_MORE;
        if (s[k->at] != '{') return IV_CALLS_WRONG;
        k->json = k->at;
    }
    for (; k->at < n; k->at++, k->scanned++) {
        iv_json_scanned found = iv_json_scan_byte(&k->scan, s[k->at]);
        if (found == IV_JSON_WRONG) return IV_CALLS_WRONG;
        if (found == IV_JSON_MORE) continue;
        k->json_end = ++k->at, k->step = IV_MARKED_END;
        return IV_CALLS_DONE;
    }
    return IV_CALLS_MORE;
}

/* The end of a block of code may be missing. */
static iv_calls_found scan_end(iv_marked_call *k, const char *s, size_t n) {
    size_t from = k->json_end;
    k->at = from;
    iv_calls_found found = k->marks->value_end ? take_loose(k, s, n, k->marks->value_end) : IV_CALLS_DONE;
    if (found == IV_CALLS_MORE) return found;
    if (found == IV_CALLS_WRONG) k->at = from;
    found = take_loose(k, s, n, k->marks->function_end);
    if (found == IV_CALLS_DONE) k->step = IV_MARKED_WHOLE;
    return found;
}

static iv_calls_found advance(iv_marked_call *k, const char *s, size_t n) {
    iv_calls_found found;
    switch (k->step) {
    case IV_MARKED_OPEN:
        found = k->bare ? IV_CALLS_DONE : take_loose(k, s, n, k->marks->function);
        if (found == IV_CALLS_DONE) k->step = IV_MARKED_NAME;
        return found;
    case IV_MARKED_NAME: return scan_name(k, s, n);
    case IV_MARKED_JSON: return scan_json(k, s, n);
    case IV_MARKED_END: return scan_end(k, s, n);
    case IV_MARKED_WHOLE: break;
    }
    return IV_CALLS_WRONG;
}

iv_calls_found iv_marked_call_scan(iv_marked_call *k, const char *s, size_t n, bool last) {
    while (k->step != IV_MARKED_WHOLE) {
        iv_calls_found found = advance(k, s, n);
        if (found == IV_CALLS_DONE) continue;
        /* An answer may end with its arguments. */
        if (last && k->step == IV_MARKED_END && found == IV_CALLS_MORE)
            k->at = n, k->step = IV_MARKED_WHOLE;
        else
            return last ? IV_CALLS_WRONG : found;
    }
    return IV_CALLS_DONE;
}

bool iv_marked_call_take(const iv_marked_call *k, const char *s, iv_chat_call *out) {
    static const char prefix[] = "functions.";
    const char *name = s + k->name;
    size_t n = k->name_end - k->name, skip = sizeof prefix - 1;
    for (size_t i = n; i-- > 0;)
        if (name[i] == ':') n = i;
    if (n > skip && memcmp(name, prefix, skip) == 0) name += skip, n -= skip;
    *out = (iv_chat_call){0};
    return n && iv_chat_call_make(name, n, s + k->json, k->json_end - k->json, out);
}
