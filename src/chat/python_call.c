/* python_call.c: calls as those of Python functions. The scan finds their end by brackets and quotes; then they are
 * parsed, and their values written as JSON. */
#include "base/buf.h"
#include "base/json_out.h"
#include "base/utf8.h"
#include "chat/tool_calls.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 200, NAME_BYTES_MAX = 256, DIGITS_MAX = 8 };

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* ---- the end ------------------------------------------------------------------------------------------ */

static void scan_string(iv_python_calls *k, char c) {
    if (k->escaped)
        k->escaped = false;
    else if (c == '\\')
        k->escaped = true;
    else if (c == k->quote)
        k->quote = 0;
}

/* Up to the bracket after the first name: anything else is text. */
static iv_calls_found scan_first(iv_python_calls *k, char c) {
    bool list = !k->marks->lines;
    if (k->depth == 0 && list) {
        if (is_space(c)) return IV_CALLS_MORE;
        if (c != '[') return IV_CALLS_WRONG;
        k->depth = 1;
        return IV_CALLS_MORE;
    }
    if (iv_tool_name_is_bare(&c, 1) && !(k->name_bytes && k->begun)) {
        k->name_bytes++;
        return k->name_bytes > NAME_BYTES_MAX ? IV_CALLS_WRONG : IV_CALLS_MORE;
    }
    if (is_space(c)) {
        k->begun = k->name_bytes > 0;
        return IV_CALLS_MORE;
    }
    if (c != '(' || !k->name_bytes) return IV_CALLS_WRONG;
    k->named = true, k->depth++;
    return IV_CALLS_MORE;
}

static iv_calls_found scan_byte(iv_python_calls *k, char c) {
    if (k->quote) {
        scan_string(k, c);
        return IV_CALLS_MORE;
    }
    if (!k->named) return scan_first(k, c);
    if (c == '"' || c == '\'') k->quote = c;
    if ((c == '(' || c == '[' || c == '{') && ++k->depth > DEPTH_MAX) return IV_CALLS_WRONG;
    if (c != ')' && c != ']' && c != '}') return IV_CALLS_MORE;
    if (k->depth == 0) return IV_CALLS_WRONG;
    return --k->depth || k->marks->lines ? IV_CALLS_MORE : IV_CALLS_DONE;
}

/* One call to a line: up to the closing mark outside strings. */
static iv_calls_found scan_lines(iv_python_calls *k, const char *s, size_t n, bool last) {
    const char *close = k->marks->close;
    size_t length = strlen(close);
    for (; k->at < n; k->at++) {
        size_t left = n - k->at;
        bool may = !k->quote && k->depth == 0 && memcmp(s + k->at, close, left < length ? left : length) == 0;
        if (may && left < length && !last) return IV_CALLS_MORE;
        if (may && left >= length) {
            k->end = k->at, k->bytes = k->at + length;
            return IV_CALLS_DONE;
        }
        if (scan_byte(k, s[k->at]) == IV_CALLS_WRONG) return IV_CALLS_WRONG;
    }
    k->end = k->bytes = n;
    return !last ? IV_CALLS_MORE : k->named && k->depth == 0 && !k->quote ? IV_CALLS_DONE : IV_CALLS_WRONG;
}

iv_calls_found iv_python_calls_scan(iv_python_calls *k, const char *s, size_t n, bool last) {
    if (k->marks->lines) return scan_lines(k, s, n, last);
    for (; !k->closed && k->at < n; k->at++) {
        iv_calls_found found = scan_byte(k, s[k->at]);
        if (found == IV_CALLS_WRONG) return found;
        if (found == IV_CALLS_DONE) k->closed = true, k->end = k->bytes = k->at + 1;
    }
    if (!k->closed) return last ? IV_CALLS_WRONG : IV_CALLS_MORE;
    if (!k->bare) return IV_CALLS_DONE;
    for (; k->at < n; k->at++)
        if (!is_space(s[k->at])) return IV_CALLS_WRONG;
    k->bytes = n;
    return last ? IV_CALLS_DONE : IV_CALLS_MORE;
}

/* ---- values ------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *s;
    size_t n, at;
    iv_buf *out;
    bool no_memory;
} reader;

static char peek(const reader *r) { return r->at < r->n ? r->s[r->at] : 0; }

static void skip_space(reader *r) {
    while (r->at < r->n && is_space(r->s[r->at])) r->at++;
}

static bool put(reader *r, const char *s, size_t n) {
    if (n && !iv_buf_append(r->out, s, n)) r->no_memory = true;
    return !r->no_memory;
}

static bool take(reader *r, char c) {
    skip_space(r);
    if (peek(r) != c || r->at == r->n) return false;
    r->at++;
    return true;
}

static bool read_digits(reader *r, size_t count, unsigned base, uint32_t *out) {
    char digits[DIGITS_MAX + 1] = {0}, *end;
    if (r->at + count > r->n) return false;
    memcpy(digits, r->s + r->at, count);
    if (is_space(*digits) || *digits == '-' || *digits == '+' || strchr(digits, 'x') || strchr(digits, 'X'))
        return false;
    *out = (uint32_t)strtoul(digits, &end, (int)base);
    r->at += count;
    return (size_t)(end - digits) == count;
}

static bool put_code(iv_buf *text, uint32_t code) {
    char bytes[4];
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
    return iv_buf_append(text, bytes, iv_utf8_encode(code, (uint8_t *)bytes));
}

/* After \u: a character, or two halves of one as JSON writes them. */
static bool read_unicode(reader *r, uint32_t *code) {
    uint32_t low;
    size_t at;
    if (!read_digits(r, 4, 16, code)) return false;
    if (*code < 0xd800 || *code >= 0xdc00 || r->at + 2 > r->n || memcmp(r->s + r->at, "\\u", 2) != 0) return true;
    at = r->at, r->at += 2;
    if (read_digits(r, 4, 16, &low) && low >= 0xdc00 && low < 0xe000)
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    else
        r->at = at;
    return true;
}

/* After a backslash. Unknown escapes keep it, but JSON's \/. */
static bool read_escape(reader *r, iv_buf *text) {
    static const char letters[] = "abfnrtv\\'\"/", meanings[] = "\a\b\f\n\r\t\v\\'\"/";
    char c = peek(r);
    const char *known = c ? strchr(letters, c) : NULL;
    uint32_t code = 0;
    if (r->at == r->n) return false;
    if (known) {
        r->at++;
        return iv_buf_putc(text, meanings[known - letters]);
    }
    if (c >= '0' && c <= '7') {
        for (int i = 0; i < 3 && peek(r) >= '0' && peek(r) <= '7'; i++)
            code = 8 * code + (uint32_t)(r->s[r->at++] - '0');
        return put_code(text, code);
    }
    r->at++;
    if (c == '\n') return true;
    if (c == 'x') return read_digits(r, 2, 16, &code) && put_code(text, code);
    if (c == 'u') return read_unicode(r, &code) && put_code(text, code);
    if (c == 'U') return read_digits(r, 8, 16, &code) && put_code(text, code);
    return iv_buf_putc(text, '\\') && iv_buf_putc(text, c);
}

static bool read_text(reader *r, iv_buf *text) {
    char quote = peek(r);
    if (quote != '"' && quote != '\'') return false;
    for (r->at++; r->at < r->n && r->s[r->at] != quote;) {
        char c = r->s[r->at++];
        if (!(c == '\\' ? read_escape(r, text) : iv_buf_putc(text, c))) return false;
    }
    return r->at++ < r->n;
}

/* As it is written, if that is JSON. */
static bool read_string(reader *r) {
    iv_buf text = {0};
    iv_json_out o = {.buf = r->out};
    const char *from = r->s + r->at;
    bool ok = read_text(r, &text);
    json_t *same = ok && *from == '"'
                       ? json_loadb(from, (size_t)(r->s + r->at - from), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                       : NULL;
    if (same)
        ok = put(r, from, (size_t)(r->s + r->at - from));
    else if (ok)
        iv_out_string(&o, text.data ? text.data : "", text.len);
    json_decref(same);
    iv_buf_free(&text);
    return ok && !o.failed;
}

/* A number that JSON has, too. */
static bool read_number(reader *r) {
    size_t from = r->at, at = r->at + (peek(r) == '-'), digits = at;
    while (at < r->n && is_digit(r->s[at])) at++;
    if (at == digits || (r->s[digits] == '0' && at - digits > 1)) return false;
    if (at < r->n && r->s[at] == '.') {
        digits = ++at;
        while (at < r->n && is_digit(r->s[at])) at++;
        if (at == digits) return false;
    }
    if (at < r->n && (r->s[at] == 'e' || r->s[at] == 'E')) {
        at++;
        if (at < r->n && (r->s[at] == '-' || r->s[at] == '+')) at++;
        digits = at;
        while (at < r->n && is_digit(r->s[at])) at++;
        if (at == digits) return false;
    }
    r->at = at;
    return put(r, r->s + from, at - from);
}

static bool read_word(reader *r) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    size_t end = r->at;
    while (end < r->n && iv_tool_name_is_bare(r->s + end, 1)) end++;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i][0]);
        if (n != end - r->at || memcmp(r->s + r->at, words[i][0], n) != 0) continue;
        r->at = end;
        return put(r, words[i][1], strlen(words[i][1]));
    }
    return false;
}

static bool read_value(reader *r, size_t depth);

/* Elements up to the closing bracket, with members' names in an object. A comma may be last. */
static bool read_elements(reader *r, char close, size_t depth) {
    for (bool first = true; !take(r, close); first = false) {
        if (!first && !put(r, ", ", 2)) return false;
        skip_space(r);
        if (close == '}' && (!read_string(r) || !take(r, ':') || !put(r, ": ", 2))) return false;
        if (!read_value(r, depth + 1)) return false;
        skip_space(r);
        if (peek(r) != close && !take(r, ',')) return false;
    }
    return true;
}

static bool read_value(reader *r, size_t depth) {
    skip_space(r);
    char c = peek(r), close = c == '[' ? ']' : c == '(' ? ')' : '}';
    if (depth > DEPTH_MAX) return false;
    if (c == '"' || c == '\'') return read_string(r);
    if (c == '-' || is_digit(c)) return read_number(r);
    if (c != '[' && c != '(' && c != '{') return read_word(r);
    r->at++;
    return put(r, c == '{' ? "{" : "[", 1) && read_elements(r, close, depth) && put(r, c == '{' ? "}" : "]", 1);
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static bool read_name(reader *r, const char **name, size_t *n) {
    skip_space(r);
    *name = r->s + r->at;
    while (r->at < r->n && iv_tool_name_is_bare(r->s + r->at, 1)) r->at++;
    *n = (size_t)(r->s + r->at - *name);
    return *n > 0;
}

/* KEY=VALUE, ...) */
static bool read_arguments(reader *r) {
    iv_json_out o = {.buf = r->out};
    const char *key;
    size_t n;
    for (bool first = true; !take(r, ')'); first = false) {
        if ((!first && !put(r, ", ", 2)) || !read_name(r, &key, &n) || !take(r, '=')) return false;
        o.comma = false;
        iv_out_string(&o, key, n);
        if (o.failed || !put(r, ": ", 2) || !read_value(r, 0)) return false;
        skip_space(r);
        if (peek(r) != ')' && !take(r, ',')) return false;
    }
    return true;
}

static bool read_call(reader *r, iv_chat_call *out) {
    const char *name;
    size_t n;
    iv_buf text = {0};
    r->out = &text;
    bool ok = read_name(r, &name, &n) && take(r, '(') && put(r, "{", 1) && read_arguments(r) && put(r, "}", 1);
    ok = ok && iv_chat_call_make(name, n, text.data, text.len, out);
    iv_buf_free(&text);
    return ok;
}

size_t iv_python_calls_take(const iv_python_calls *k, const char *s, iv_chat_call *out, size_t room) {
    reader r = {.s = s, .n = k->end};
    bool lines = k->marks->lines, ok = lines || take(&r, '[');
    size_t count = 0;
    while (ok) {
        skip_space(&r);
        if (lines ? r.at == r.n : peek(&r) == ']') break;
        ok = count < room && read_call(&r, &out[count]);
        if (!ok) break;
        count++;
        skip_space(&r);
        if (!lines) ok = peek(&r) == ']' || take(&r, ',');
    }
    while (!ok && count) iv_chat_call_free(&out[--count]);
    return count;
}

iv_calls_found iv_python_calls_open(const json_t *tools, const char *s, size_t n) {
    iv_calls_found best = IV_CALLS_WRONG;
    json_t *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)tools, i, one) {
        json_t *nested = json_object_get(one, "function");
        const char *name = json_string_value(json_object_get(nested ? nested : one, "name"));
        size_t length = name ? strlen(name) : 0, some = n ? n - 1 : 0;
        if (!length || (n && *s != '[') || memcmp(s + (n > 0), name, some < length ? some : length) != 0) continue;
        if (some > length) {
            if (s[1 + length] == '(') return IV_CALLS_DONE;
            continue;
        }
        best = IV_CALLS_MORE;
    }
    return best;
}
