/* tags_call.c: calls whose arguments are text between marks. Incomplete marks are matched again from their start when
 * more text has come. */
#include "base/json_out.h"
#include "format/json.h"
#include "format/json_schema.h"
#include "chat/tool_calls.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SPACE_MAX = 256, NAME_MAX_BYTES = 256, SCHEMA_VISITS_MAX = 1 << 23 /* schema nodes visited per call */ };

/* ---- tags --------------------------------------------------------------------------------------------- */

/* Result of a match; MAYBE: the text ends too early. */
typedef enum match { NO, MAYBE, YES } match;

typedef struct cursor {
    const char *s;
    size_t n, at;
} cursor;

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static void skip_space(cursor *c) {
    size_t most = c->at + SPACE_MAX;
    while (c->at < c->n && c->at < most && is_space(c->s[c->at])) c->at++;
}

/* Advances after the text on YES. */
static match take(cursor *c, const char *what) {
    size_t n = strlen(what), left = c->n - c->at;
    if (memcmp(c->s + c->at, what, left < n ? left : n) != 0) return NO;
    if (left < n) return MAYBE;
    c->at += n;
    return YES;
}

/* Takes a name and the mark after it. */
static match take_name(cursor *c, const char *mark, size_t *from, size_t *end) {
    *from = c->at;
    for (*end = c->at; *end < c->n; ++*end) {
        unsigned char b = (unsigned char)c->s[*end];
        if (b == (unsigned char)*mark && *end > *from) {
            c->at = *end;
            return take(c, mark);
        }
        if (b < 0x20 || b == 0x7f || b == '<' || b == '>' || *end - *from == NAME_MAX_BYTES) return NO;
    }
    return MAYBE;
}

/* Takes a name that a line end or another mark follows. */
static match take_bare_name(cursor *c, size_t *from, size_t *end) {
    skip_space(c);
    *from = *end = c->at;
    while (*end < c->n && *end - *from < NAME_MAX_BYTES && iv_tool_name_is_bare(c->s + *end, 1)) ++*end;
    c->at = *end;
    if (*end == c->n) return MAYBE;
    return *end > *from && (c->s[*end] == '<' || is_space(c->s[*end])) ? YES : NO;
}

/* Takes a name and what follows it, up to the value. */
static match take_key(const iv_tool_marks *marks, cursor *c, size_t *from, size_t *end) {
    match m = take_name(c, marks->keyed, from, end);
    if (m != YES || !marks->value) return m;
    skip_space(c);
    return take(c, marks->value);
}

typedef enum tag { PARAMETER, FUNCTION_END, CALL_END } tag;

/* Takes the next tag after white space; from, end: a parameter's name. */
static match take_tag(const iv_tool_marks *marks, cursor *c, tag *which, size_t *from, size_t *end) {
    const char *const tags[] = {marks->key, marks->function_end, marks->close};
    match best = NO;
    skip_space(c);
    for (int i = 0; i < 3; i++) {
        match m = tags[i] ? take(c, tags[i]) : NO;
        if (m == MAYBE) best = MAYBE;
        if (m != YES) continue;
        *which = (tag)i;
        return i == PARAMETER ? take_key(marks, c, from, end) : YES;
    }
    return best;
}

/* ---- the tools ---------------------------------------------------------------------------------------- */

/* Whether a tool has this name; its parameters. */
static bool find_tool(const json_t *tools, const char *name, size_t n, json_t **parameters) {
    json_t *one;
    size_t i;
    *parameters = NULL;
    json_array_foreach((json_t *)(uintptr_t)tools, i, one) {
        json_t *nested = json_object_get(one, "function"), *function = nested ? nested : one;
        const char *own = json_string_value(json_object_get(function, "name"));
        if (!own || strlen(own) != n || memcmp(own, name, n) != 0) continue;
        *parameters = json_object_get(function, "parameters");
        return true;
    }
    return false;
}

typedef struct own_name {
    char text[NAME_MAX_BYTES + 1];
} own_name;

static own_name name_of(const char *name, size_t n) {
    own_name out;
    memcpy(out.text, name, n), out.text[n] = 0;
    return out;
}

static bool is_property(const iv_tags_call *k, const char *name, size_t n) {
    own_name own = name_of(name, n);
    return json_object_get(json_object_get(k->parameters, "properties"), own.text) != NULL;
}

/* Beyond the limit on schema nodes, values are strings. */
static unsigned kinds_of(iv_tags_call *k, const char *name, size_t n) {
    own_name own = name_of(name, n);
    size_t schema_visits;
    if (!k->parameters || k->schema_visits > SCHEMA_VISITS_MAX) return IV_KIND_STRING;
    unsigned kinds = iv_json_parameter_kinds(k->parameters, own.text, &schema_visits);
    k->schema_visits += schema_visits;
    return kinds;
}

/* ---- values ------------------------------------------------------------------------------------------- */

/* The end of a value and the tag that must follow; *after: where that begins. */
static match take_value_end(const iv_tags_call *k, const char *s, size_t n, size_t at, size_t *after) {
    cursor c = {s, n, at};
    tag unused;
    size_t from, end;
    match m = take(&c, k->marks->value_end);
    *after = c.at;
    return m == YES ? take_tag(k->marks, &c, &unused, &from, &end) : m;
}

/* The next tag at the start of a line, where the end of the value is missing. */
static match take_forgotten_end(const iv_tags_call *k, const char *s, size_t n, size_t at) {
    cursor c = {s, n, at};
    size_t from, end;
    tag which;
    if (at == 0 || s[at - 1] != '\n' || !k->marks->function_end) return NO;
    match m = take_tag(k->marks, &c, &which, &from, &end);
    if (m != YES || which == CALL_END) return m == YES ? NO : m;
    if (which == PARAMETER)
        return is_property(k, s + from, end - from) ? take(&c, k->marks->value_lines ? "\n" : "") : NO;
    skip_space(&c);
    return take(&c, k->marks->close);
}

/* Without lines of its own, a value that begins with a line end is written as if it had. */
static void end_value(iv_tags_call *k, const char *s, size_t end, size_t at) {
    bool forgotten = end == at; /* the next tag is on a line of its own */
    bool begins = k->value < end && s[k->value] == '\n';
    if (begins) k->value++;
    if ((begins || forgotten || k->marks->value_lines) && k->value < end && s[end - 1] == '\n') end--;
    k->value_end = end, k->at = at, k->step = IV_TAGS_TAG;
}

/* An object or list: up to its closing bracket, then to the end of the value. NO: it is text. */
static match scan_json(iv_tags_call *k, const char *s, size_t n) {
    for (; k->value_form == IV_TAGS_JSON && k->scanned < n; k->scanned++) {
        iv_json_scanned found = iv_json_scan_byte(&k->scan, s[k->scanned]);
        if (found == IV_JSON_WRONG) return NO;
        if (found == IV_JSON_DONE) k->value_form = IV_TAGS_CLOSED;
    }
    if (k->value_form == IV_TAGS_JSON) return MAYBE;
    cursor c = {s, n, k->scanned};
    size_t after;
    skip_space(&c);
    match m = take_value_end(k, s, n, c.at, &after);
    if (m == YES) end_value(k, s, c.at, after);
    return m;
}

static match scan_text(iv_tags_call *k, const char *s, size_t n, bool last) {
    for (; k->at < n; k->at++) {
        const char *found = memchr(s + k->at, '<', n - k->at);
        size_t after;
        k->at = found ? (size_t)(found - s) : n;
        if (!found) break;
        match m = take_value_end(k, s, n, k->at, &after);
        match forgotten = m == NO ? take_forgotten_end(k, s, n, k->at) : NO;
        if (m == YES || forgotten == YES) {
            end_value(k, s, k->at, m == YES ? after : k->at);
            return YES;
        }
        if ((m == MAYBE || forgotten == MAYBE) && !last) return MAYBE;
    }
    return MAYBE;
}

static match scan_value(iv_tags_call *k, const char *s, size_t n, bool last) {
    if (k->value_form == IV_TAGS_UNKNOWN) {
        while (k->scanned < n && is_space(s[k->scanned])) k->scanned++;
        if (k->scanned == n && !last) return MAYBE;
        char first = k->scanned < n ? s[k->scanned] : 0;
        bool json = (first == '{' && k->kinds & IV_KIND_OBJECT) || (first == '[' && k->kinds & IV_KIND_ARRAY);
        k->value_form = json ? IV_TAGS_JSON : IV_TAGS_TEXT;
        k->scan = (iv_json_scan){0};
    }
    if (k->value_form != IV_TAGS_TEXT) {
        match m = scan_json(k, s, n);
        if (m == YES || (m == MAYBE && !last)) return m;
        k->value_form = IV_TAGS_TEXT;
    }
    return scan_text(k, s, n, last);
}

/* ---- the state machine -------------------------------------------------------------------------------- */

static match scan_open(iv_tags_call *k, cursor *c) {
    if (!k->bare) skip_space(c);
    match m = k->bare ? YES : take(c, k->marks->function);
    if (m == YES) k->at = c->at, k->step = IV_TAGS_NAME;
    return m;
}

static match scan_name(iv_tags_call *k, cursor *c) {
    match m = *k->marks->function ? take_name(c, k->marks->named, &k->name, &k->name_end)
                                  : take_bare_name(c, &k->name, &k->name_end);
    if (m != YES) return m;
    bool known = find_tool(k->tools, c->s + k->name, k->name_end - k->name, &k->parameters);
    k->at = c->at, k->step = IV_TAGS_TAG;
    return known || !k->bare ? YES : NO;
}

static match scan_tag(iv_tags_call *k, cursor *c) {
    tag which;
    match m = take_tag(k->marks, c, &which, &k->key, &k->key_end);
    if (m != YES) return m;
    k->at = c->at;
    k->step = which == PARAMETER ? IV_TAGS_VALUE : which == FUNCTION_END ? IV_TAGS_AFTER : IV_TAGS_WHOLE;
    if (which != PARAMETER) return YES;
    k->value = k->scanned = k->at, k->value_form = IV_TAGS_UNKNOWN;
    k->kinds = kinds_of(k, c->s + k->key, k->key_end - k->key);
    return YES;
}

static match scan_after(iv_tags_call *k, cursor *c, bool last) {
    skip_space(c);
    match m = k->marks->several ? NO : take(c, k->marks->close); /* else the block may hold another call */
    if (m == MAYBE && !last) return MAYBE;
    if (m == YES) k->at = c->at;
    k->step = IV_TAGS_WHOLE;
    return YES;
}

/* YES: it advanced. */
static match advance(iv_tags_call *k, const char *s, size_t n, bool last) {
    cursor c = {s, n, k->at};
    switch (k->step) {
    case IV_TAGS_OPEN: return scan_open(k, &c);
    case IV_TAGS_NAME: return scan_name(k, &c);
    case IV_TAGS_TAG: return scan_tag(k, &c);
    case IV_TAGS_VALUE: return scan_value(k, s, n, last);
    case IV_TAGS_AFTER: return scan_after(k, &c, last);
    case IV_TAGS_WHOLE: break;
    }
    return NO;
}

iv_calls_found iv_tags_call_scan(iv_tags_call *k, const char *s, size_t n, bool last) {
    while (k->step != IV_TAGS_WHOLE) {
        match m = advance(k, s, n, last);
        if (m == YES) continue;
        if (m == MAYBE && !last) return IV_CALLS_MORE;
        k->cut = m == MAYBE;
        return IV_CALLS_WRONG;
    }
    return IV_CALLS_DONE;
}

/* ---- the JSON of a value ------------------------------------------------------------------------------ */

static bool is_word(const char *s, size_t n, const char *word) {
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* The kind of a JSON value; 0: not JSON. */
static unsigned kind_of(const char *s, size_t n) {
    iv_error unused;
    json_t *v = NULL;
    if (n == 0 || iv_json_parse_repeating("value", s, n, &v, &unused) != IV_OK) return 0;
    unsigned kind = iv_json_kind_of(v);
    if (json_is_real(v)) { /* integers beyond 64 bits are parsed as reals */
        bool fraction = memchr(s, '.', n) || memchr(s, 'e', n) || memchr(s, 'E', n);
        kind = fraction ? IV_KIND_NUMBER : IV_KIND_INTEGER;
    }
    json_decref(v);
    return kind;
}

/* Templates write true, false and null back as Python does: True, False, None. */
static const char *word_of(const char *s, size_t n) {
    static const char *const text_model[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof text_model / sizeof *text_model; i++)
        if (is_word(s, n, text_model[i])) return text_model[i];
    return is_word(s, n, "none") ? "null" : NULL;
}

static bool write_string(const char *s, size_t n, iv_buf *out) {
    iv_json_out o = {.buf = out};
    iv_out_string(&o, s, n);
    return !o.failed;
}

bool iv_tags_value_write(unsigned kinds, const char *text, size_t n, iv_buf *out) {
    unsigned others = kinds & ~(unsigned)IV_KIND_STRING;
    if (!others) return write_string(text, n, out);
    if (kinds & IV_KIND_STRING) {
        if (others & IV_KIND_NULL && is_word(text, n, "null")) return iv_buf_puts(out, "null");
        bool tight = n && !is_space(text[0]) && !is_space(text[n - 1]);
        return tight && kind_of(text, n) & others ? iv_buf_append(out, text, n) : write_string(text, n, out);
    }
    const char *s = text;
    size_t bytes = n;
    while (bytes && is_space(*s)) s++, bytes--;
    while (bytes && is_space(s[bytes - 1])) bytes--;
    const char *word = word_of(s, bytes);
    if (word) return iv_buf_puts(out, word);
    return kind_of(s, bytes) ? iv_buf_append(out, s, bytes) : write_string(text, n, out);
}

/* ---- the finished call -------------------------------------------------------------------------------- */

static bool keep_value(const iv_tags_call *k, const char *s, json_t *values) {
    own_name own = name_of(s + k->key, k->key_end - k->key);
    iv_buf text = {0};
    bool ok = iv_tags_value_write(k->kinds, s + k->value, k->value_end - k->value, &text) &&
              json_object_set_new_nocheck(values, own.text, json_stringn_nocheck(text.data, text.len)) == 0;
    iv_buf_free(&text);
    return ok;
}

/* With the spaces that most writers of arguments use. */
static bool write_arguments(json_t *values, iv_buf *out) {
    const char *key;
    json_t *v;
    bool ok = iv_buf_puts(out, "{"), first = true;
    json_object_foreach(values, key, v) {
        iv_json_out o = {.buf = out};
        ok = ok && (first || iv_buf_puts(out, ", "));
        if (ok) iv_out_string(&o, key, strlen(key));
        ok = ok && !o.failed && iv_buf_puts(out, ": ") &&
             iv_buf_append(out, json_string_value(v), json_string_length(v));
        first = false;
    }
    return ok && iv_buf_puts(out, "}");
}

bool iv_tags_call_take(const iv_tags_call *k, const char *s, size_t n, iv_chat_call *out) {
    iv_tags_call again = {.marks = k->marks, .tools = k->tools, .bare = k->bare};
    json_t *values = json_object();
    iv_buf text = {0};
    bool ok = values != NULL;
    while (ok && again.step != IV_TAGS_WHOLE) {
        bool in_value = again.step == IV_TAGS_VALUE;
        ok = advance(&again, s, n, true) == YES && (!in_value || keep_value(&again, s, values));
    }
    ok = ok && write_arguments(values, &text);
    *out = (iv_chat_call){0};
    if (ok) *out = (iv_chat_call){.name = strndup(s + k->name, k->name_end - k->name), .arguments = text.data};
    if (!ok || !out->name) free(text.data), *out = (iv_chat_call){0};
    json_decref(values);
    return out->name != NULL;
}
