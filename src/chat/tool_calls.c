/* tool_calls.c: reads a call from JSON; finds calls in the forms of Llama and Mistral: a state machine finds the end
 * of the calls, then they are parsed. */
#include "chat/tool_calls.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one call ----------------------------------------------------------------------------------------- */

/* Arguments are copied from the text: parsing and printing could change their numbers. */

static bool is_json_object(const char *s, size_t n) {
    iv_error unused;
    json_t *v = NULL;
    bool is = iv_json_parse_repeating("arguments", s, n, &v, &unused) == IV_OK && json_is_object(v);
    json_decref(v);
    return is;
}

static char *arguments_text(const json_t *object, const char *s, size_t n, bool whole) {
    const char *key = json_object_get(object, "arguments") ? "arguments" : "parameters", *text;
    const json_t *arguments = json_object_get(object, key);
    size_t bytes;
    if (!arguments) return whole ? NULL : strdup("{}");
    if (json_is_string(arguments)) {
        text = json_string_value(arguments), bytes = json_string_length(arguments);
        if (bytes == 0) return strdup("{}");
        return is_json_object(text, bytes) ? strndup(text, bytes) : NULL;
    }
    if (!json_is_object(arguments) || !iv_json_member_text(s, n, key, &text, &bytes)) return NULL;
    return strndup(text, bytes);
}

static bool is_whole(iv_chat_call *call) {
    if (call->name && call->arguments) return true;
    iv_chat_call_free(call);
    return false;
}

bool iv_chat_call_read(const char *s, size_t n, bool whole, iv_chat_call *out) {
    iv_error unused;
    json_t *object = NULL;
    *out = (iv_chat_call){0};
    if (iv_json_parse_repeating("tool call", s, n, &object, &unused) != IV_OK) return false;
    const char *name = json_string_value(json_object_get(object, "name"));
    if (name && *name && strlen(name) == json_string_length(json_object_get(object, "name"))) {
        out->name = strdup(name);
        out->arguments = arguments_text(object, s, n, whole);
    }
    json_decref(object);
    return is_whole(out);
}

bool iv_chat_call_make(const char *name, size_t name_bytes, const char *arguments, size_t n, iv_chat_call *out) {
    *out = (iv_chat_call){0};
    if (!name_bytes || memchr(name, 0, name_bytes) || !is_json_object(arguments, n)) return false;
    *out = (iv_chat_call){.name = strndup(name, name_bytes), .arguments = strndup(arguments, n)};
    return is_whole(out);
}

void iv_chat_call_free(iv_chat_call *call) {
    free(call->name), free(call->arguments);
    *call = (iv_chat_call){0};
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* ---- finding calls ------------------------------------------------------------------------------------ */

static iv_calls_found scan_json(iv_chat_calls *k, char c) {
    iv_json_scanned found = iv_json_scan_byte(&k->scan, c);
    if (found == IV_JSON_WRONG) return IV_CALLS_WRONG;
    if (found == IV_JSON_MORE) return IV_CALLS_MORE;
    k->values++, k->step = IV_CALLS_AFTER;
    return k->llama ? IV_CALLS_MORE : IV_CALLS_DONE;
}

static iv_calls_found begin_json(iv_chat_calls *k, char c) {
    k->step = IV_CALLS_JSON, k->json = k->at;
    k->scan = (iv_json_scan){0};
    return scan_json(k, c);
}

/* [ARGS], or once before it [CALL_ID]. */
static iv_calls_found scan_bracket(iv_chat_calls *k, const char *s) {
    static const char args[] = "[ARGS]", call_id[] = "[CALL_ID]";
    size_t n = k->at - k->bracket;
    bool id = s[k->bracket + 1] == call_id[1] && !k->with_id;
    const char *wanted = id ? call_id : args;
    if (s[k->at] != wanted[n]) return IV_CALLS_WRONG;
    if (wanted[n + 1]) return IV_CALLS_MORE;
    k->step = id ? IV_CALLS_ID : IV_CALLS_ARGS;
    k->with_id |= id;
    return IV_CALLS_MORE;
}

static iv_calls_found begin_bracket(iv_chat_calls *k) {
    k->step = IV_CALLS_BRACKET, k->bracket = k->at;
    return IV_CALLS_MORE;
}

static iv_calls_found scan_before(iv_chat_calls *k, char c) {
    if (is_space(c)) return IV_CALLS_MORE;
    if (c == (k->llama ? '{' : '[')) return begin_json(k, c);
    if (k->llama || k->list_only || !iv_tool_name_is_bare(&c, 1)) return IV_CALLS_WRONG;
    k->step = IV_CALLS_NAME, k->name = k->at;
    return IV_CALLS_MORE;
}

static iv_calls_found scan_name(iv_chat_calls *k, char c) {
    bool goes_on = k->step == IV_CALLS_NAME && iv_tool_name_is_bare(&c, 1);
    if (goes_on) return IV_CALLS_MORE;
    if (k->step == IV_CALLS_NAME) k->name_end = k->at;
    k->step = IV_CALLS_NAMED;
    if (is_space(c)) return IV_CALLS_MORE;
    return c == '{' ? begin_json(k, c) : c == '[' ? begin_bracket(k) : IV_CALLS_WRONG;
}

static iv_calls_found scan_byte(iv_chat_calls *k, const char *s) {
    char c = s[k->at];
    switch (k->step) {
    case IV_CALLS_BEFORE: return scan_before(k, c);
    case IV_CALLS_NAME:
    case IV_CALLS_NAMED: return scan_name(k, c);
    case IV_CALLS_BRACKET: return scan_bracket(k, s);
    case IV_CALLS_ID:
        if (c == '[') return begin_bracket(k);
        return is_space(c) || iv_tool_name_is_bare(&c, 1) ? IV_CALLS_MORE : IV_CALLS_WRONG;
    case IV_CALLS_ARGS: return is_space(c) ? IV_CALLS_MORE : c == '{' ? begin_json(k, c) : IV_CALLS_WRONG;
    case IV_CALLS_JSON: return scan_json(k, c);
    case IV_CALLS_AFTER:
        if (c == ';') k->step = IV_CALLS_BEFORE;
        return c == ';' || is_space(c) ? IV_CALLS_MORE : IV_CALLS_WRONG;
    }
    return IV_CALLS_WRONG;
}

iv_calls_found iv_chat_calls_scan(iv_chat_calls *k, const char *s, size_t n, bool last) {
    for (; k->at < n; k->at++) {
        iv_calls_found found = scan_byte(k, s);
        if (found == IV_CALLS_MORE) continue;
        if (found == IV_CALLS_DONE) k->at++;
        return found;
    }
    if (!last) return IV_CALLS_MORE;
    bool whole = k->llama && k->values && (k->step == IV_CALLS_BEFORE || k->step == IV_CALLS_AFTER);
    return whole ? IV_CALLS_DONE : IV_CALLS_WRONG;
}

/* ---- the start of a call ------------------------------------------------------------------------------ */

/* Advances over `what`, or the part of it that is available; false: other text. */
static bool pass(const char **s, size_t *n, const char *what) {
    size_t some = strlen(what) < *n ? strlen(what) : *n;
    bool is = memcmp(*s, what, some) == 0;
    *s += some, *n -= some;
    return is;
}

static void pass_space(const char **s, size_t *n) {
    if (*n && **s == ' ') ++*s, --*n;
}

/* A byte of a name, with the escapes that src/grammar writes. */
static bool pass_spelled(const char **s, size_t *n, char c) {
    static const char marks[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
    const char *mark = strchr(marks, c);
    char text[8] = {c, 0};
    if (mark)
        text[0] = '\\', text[1] = escapes[mark - marks];
    else if ((unsigned char)c < 0x20)
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    return pass(s, n, text);
}

static iv_calls_found open_call(const char *name, const char *s, size_t n) {
    bool is = pass(&s, &n, "{\"name\":");
    pass_space(&s, &n);
    for (is = is && pass(&s, &n, "\""); is && *name; name++) is = pass_spelled(&s, &n, *name);
    is = is && pass(&s, &n, "\",");
    pass_space(&s, &n);
    is = is && pass(&s, &n, "\"parameters\"");
    if (!is || (n && *s != ':')) return IV_CALLS_WRONG;
    return n ? IV_CALLS_DONE : IV_CALLS_MORE;
}

iv_calls_found iv_chat_calls_open(const json_t *tools, const char *s, size_t n) {
    iv_calls_found best = IV_CALLS_WRONG;
    json_t *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)tools, i, one) {
        json_t *nested = json_object_get(one, "function");
        const char *name = json_string_value(json_object_get(nested ? nested : one, "name"));
        iv_calls_found found = name ? open_call(name, s, n) : IV_CALLS_WRONG;
        if (found == IV_CALLS_DONE) return found;
        if (found == IV_CALLS_MORE) best = found;
    }
    return best;
}

/* ---- the finished calls ------------------------------------------------------------------------------- */

/* Parses the objects in s[at, end), separated by bytes of `between`. */
static size_t take_objects(const char *s, size_t at, size_t end, const char *between, bool whole, iv_chat_call *out,
                           size_t room) {
    size_t count = 0;
    for (;;) {
        while (at < end && (is_space(s[at]) || strchr(between, s[at]))) at++;
        if (at == end) return count;
        size_t bytes = iv_json_scan_end(s + at, end - at);
        bool is_call = s[at] == '{' && bytes && count < room && iv_chat_call_read(s + at, bytes, whole, &out[count]);
        if (!is_call) break;
        at += bytes, count++;
    }
    while (count) iv_chat_call_free(&out[--count]);
    return 0;
}

static bool is_json(const char *s, size_t n) {
    iv_error unused;
    json_t *v = NULL;
    bool is = iv_json_parse_repeating("tool calls", s, n, &v, &unused) == IV_OK;
    json_decref(v);
    return is;
}

size_t iv_chat_calls_take(const iv_chat_calls *k, const char *s, iv_chat_call *out, size_t room) {
    if (k->llama) return take_objects(s, 0, k->at, ";", true, out, room);
    const char *json = s + k->json;
    size_t n = k->at - k->json;
    if (*json == '{') return room && iv_chat_call_make(s + k->name, k->name_end - k->name, json, n, out);
    return is_json(json, n) ? take_objects(json, 1, n - 1, ",", false, out, room) : 0;
}
