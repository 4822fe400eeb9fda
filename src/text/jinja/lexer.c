/* lexer.c: template text -> tokens. */
#include "text/jinja/parser.h"
#include "base/utf8.h"
#include "text/jinja/strings.h"

#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    ivj_pool *pool;
    const char *name, *s;
    size_t n, at;
    uint32_t line;
    bool line_starting; /* the last tag ended with a newline, or no text was read yet */
    ivj_tokens *out;
    iv_error *err;
} lexer;

static iv_status lex_tag(lexer *x, bool block);

/* ---- text between tags ---- */

iv_status ivj_normalise(ivj_pool *pool, const char *name, const char *s, size_t n, ivj_value *out, iv_error *err) {
    char *copy = ivj_pool_alloc(pool, n + 1, 1);
    if (!copy) return iv_fail(err, IV_NO_MEMORY, "%.200s: no memory for %zu bytes", name, n);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n') continue;
        copy[len++] = s[i] == '\r' ? '\n' : s[i];
    }
    if (len && copy[len - 1] == '\n') len--;
    *out = ivj_string(copy, len);
    return IV_OK;
}

static iv_status lex_fail(lexer *x, const char *message) {
    return iv_fail(x->err, IV_TEMPLATE, "%.200s:%u: %s", x->name, x->line, message);
}

static void advance(lexer *x, size_t to) {
    for (; x->at < to; x->at++) x->line += x->s[x->at] == '\n';
}

static iv_status add_token(lexer *x, ivj_token token) {
    ivj_tokens *t = x->out;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        ivj_token *at = realloc(t->at, cap * sizeof *at);
        if (!at) return iv_fail(x->err, IV_NO_MEMORY, "%.200s: no memory for %zu tokens", x->name, cap);
        t->at = at;
        t->cap = cap;
    }
    t->at[t->n++] = token;
    return IV_OK;
}

static size_t skip_space(const lexer *x, size_t i) {
    while (i < x->n) {
        uint32_t cp;
        size_t len = ivj_cp_next(x->s + i, x->n - i, &cp);
        if (!ivj_cp_is_space(cp)) break;
        i += len;
    }
    return i;
}

static bool at_text(const lexer *x, size_t i, const char *text) {
    size_t n = strlen(text);
    return x->n - i >= n && memcmp(x->s + i, text, n) == 0;
}

/* If the tag end "%}", "#}" or "}}" is at i, the position after it and the whitespace it removes, otherwise 0. block: a
 * plain end removes one newline after it; + prevents that. */
static size_t tag_end(const lexer *x, size_t i, const char *end, bool block) {
    if (i >= x->n) return 0;
    if (x->s[i] == '-' && at_text(x, i + 1, end)) return skip_space(x, i + 3);
    if (block && x->s[i] == '+' && at_text(x, i + 1, end)) return i + 3;
    if (!at_text(x, i, end)) return 0;
    return block && i + 2 < x->n && x->s[i + 2] == '\n' ? i + 3 : i + 2;
}

/* End of the text [from, tag) after whitespace control. */
static size_t stripped_end(const lexer *x, size_t from, size_t tag, char sign, bool lstrip) {
    size_t end = tag;
    if (sign == '-') {
        while (end > from) {
            uint32_t cp;
            size_t len = ivj_cp_last(x->s + from, end - from, &cp);
            if (!ivj_cp_is_space(cp)) break;
            end -= len;
        }
        return end;
    }
    if (sign == '+' || !lstrip) return end;
    size_t line = tag;
    while (line > from && x->s[line - 1] != '\n') line--;
    if (line == from && !x->line_starting) return end;
    return skip_space(x, line) >= tag ? line : end;
}

static iv_status emit_text(lexer *x, size_t from, size_t to) {
    if (to == from) return IV_OK;
    return add_token(x, (ivj_token){.type = IVJ_T_TEXT, .line = x->line, .s = x->s + from, .n = (uint32_t)(to - from)});
}

static char sign_at(const lexer *x, size_t i) { return i < x->n && (x->s[i] == '-' || x->s[i] == '+') ? x->s[i] : 0; }

/* Position after `{% raw %}` that starts at i, or 0. */
static size_t raw_begin(const lexer *x, size_t i) {
    i += 2;
    if (sign_at(x, i)) i++;
    i = skip_space(x, i);
    if (!at_text(x, i, "raw")) return 0;
    i = skip_space(x, i + 3);
    if (at_text(x, i, "-%}")) return skip_space(x, i + 3);
    return at_text(x, i, "%}") ? i + 2 : 0;
}

/* The same for `{% endraw %}`. */
static size_t raw_end(const lexer *x, size_t i) {
    i += 2;
    if (sign_at(x, i)) i++;
    i = skip_space(x, i);
    return at_text(x, i, "endraw") ? tag_end(x, skip_space(x, i + 6), "%}", true) : 0;
}

static iv_status lex_raw(lexer *x) {
    size_t from = x->at;
    for (size_t i = from; i + 1 < x->n; i++) {
        if (!at_text(x, i, "{%")) continue;
        size_t end = raw_end(x, i);
        if (!end) continue;
        IV_TRY(emit_text(x, from, stripped_end(x, from, i, sign_at(x, i + 2), true)));
        advance(x, end);
        return IV_OK;
    }
    if (from == x->n) return IV_OK; /* as in Jinja2, an opening tag at the very end is no error */
    return lex_fail(x, "{% raw %} without {% endraw %}");
}

static iv_status skip_comment(lexer *x) {
    size_t i = x->at + 2;
    if (sign_at(x, i)) i++;
    for (size_t j = i; j < x->n; j++) {
        size_t end = tag_end(x, j, "#}", true);
        if (!end) continue;
        advance(x, end);
        return IV_OK;
    }
    if (i < x->n) return lex_fail(x, "a comment without its end");
    advance(x, x->n);
    return IV_OK;
}

/* The first tag at or after i; x->n if there is none. */
static size_t find_tag(const lexer *x, size_t i) {
    for (; i + 1 < x->n; i++)
        if (x->s[i] == '{' && (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#')) return i;
    return x->n;
}

static iv_status lex_next(lexer *x) {
    size_t tag = find_tag(x, x->at);
    if (tag == x->n) {
        IV_TRY(emit_text(x, x->at, tag));
        advance(x, tag);
        return IV_OK;
    }
    char kind = x->s[tag + 1], sign = sign_at(x, tag + 2);
    IV_TRY(emit_text(x, x->at, stripped_end(x, x->at, tag, sign, kind != '{')));
    advance(x, tag);
    size_t raw = kind == '%' ? raw_begin(x, tag) : 0;
    if (raw) {
        advance(x, raw);
        x->line_starting = x->s[raw - 1] == '\n';
        IV_TRY(lex_raw(x));
    } else if (kind == '#') {
        IV_TRY(skip_comment(x));
    } else {
        advance(x, tag + (sign ? 3 : 2));
        IV_TRY(lex_tag(x, kind == '%'));
    }
    x->line_starting = x->s[x->at - 1] == '\n';
    return IV_OK;
}

iv_status ivj_lex(ivj_pool *pool, const char *name, ivj_value source, ivj_tokens *out, iv_error *err) {
    lexer x = {.pool = pool,
               .name = name,
               .s = source.u.s,
               .n = source.n,
               .line = 1,
               .line_starting = true,
               .out = out,
               .err = err};
    while (x.at < x.n) IV_TRY(lex_next(&x));
    return add_token(&x, (ivj_token){.type = IVJ_T_END, .line = x.line, .s = "end of template", .n = 15});
}

/* ---- inside tags ---- */

enum { NUMBER_BYTES_MAX = 400 };

static char byte_at(const lexer *x, size_t i) { return i < x->n ? x->s[i] : 0; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* End of the digits at i, with single underscores between them; i if there is no digit. */
static size_t digits_end(const lexer *x, size_t i) {
    if (!is_digit(byte_at(x, i))) return i;
    for (i++;; i++) {
        if (byte_at(x, i) == '_' && is_digit(byte_at(x, i + 1))) continue;
        if (!is_digit(byte_at(x, i))) return i;
    }
}

/* End of the float at i, or 0 if no float starts there. */
static size_t float_end(const lexer *x, size_t i) {
    if (i > 0 && x->s[i - 1] == '.') return 0;
    size_t end = digits_end(x, i), whole = end;
    if (byte_at(x, end) == '.' && is_digit(byte_at(x, end + 1))) end = digits_end(x, end + 1);
    if ((byte_at(x, end) | 0x20) == 'e') {
        size_t e = end + 1;
        if (byte_at(x, e) == '+' || byte_at(x, e) == '-') e++;
        if (is_digit(byte_at(x, e))) end = digits_end(x, e);
    }
    return end > whole ? end : 0;
}

static iv_status lex_float(lexer *x, size_t end) {
    char text[NUMBER_BYTES_MAX];
    size_t n = 0;
    if (end - x->at >= sizeof text) return lex_fail(x, "a number is too long");
    for (size_t i = x->at; i < end; i++)
        if (x->s[i] != '_') text[n++] = x->s[i];
    text[n] = 0;
    IV_TRY(add_token(x, (ivj_token){.type = IVJ_T_FLOAT,
                                    .line = x->line,
                                    .s = x->s + x->at,
                                    .n = (uint32_t)(end - x->at),
                                    .d = strtod(text, NULL)}));
    advance(x, end);
    return IV_OK;
}

static iv_status lex_int(lexer *x) {
    size_t start = x->at, i = start;
    char mark = byte_at(x, i + 1) | 0x20;
    int base = x->s[i] != '0' ? 10 : mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    size_t first = base == 10 ? i : i + 2;
    bool zero = base == 10 && x->s[i] == '0'; /* "012" is 0 and then 12 */
    int64_t v = 0;
    for (i = first; i < x->n; i++) {
        size_t j = byte_at(x, i) == '_' && i > start ? i + 1 : i;
        int d = hex_digit(byte_at(x, j));
        if (d < 0 || d >= base || (zero && d != 0)) break;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, d, &v))
            return lex_fail(x, "an integer does not fit 64 bits");
        i = j;
    }
    if (i == first) i = start + 1; /* "0x" without digits is 0 and then a name */
    IV_TRY(add_token(
        x, (ivj_token){.type = IVJ_T_INT, .line = x->line, .s = x->s + start, .n = (uint32_t)(i - start), .i = v}));
    advance(x, i);
    return IV_OK;
}

/* Reads up to `digits` digits of the base at *i as a code point; *i moves past them. */
static iv_status code_point(lexer *x, const char *s, size_t n, size_t *i, size_t digits, uint32_t base, bool exact,
                            uint32_t *cp) {
    size_t k = 0;
    for (*cp = 0; k < digits && *i < n; k++, ++*i) {
        int d = hex_digit(s[*i]);
        if (d < 0 || (uint32_t)d >= base) break;
        *cp = *cp * base + (uint32_t)d;
    }
    if (exact && k < digits) return lex_fail(x, "a string escape is cut short");
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000))
        return lex_fail(x, "a string escape is not a Unicode character");
    return IV_OK;
}

/* The escape after the backslash at s[*i - 1]: appends its bytes at out + *len. */
static iv_status unescape(lexer *x, const char *s, size_t n, size_t *i, char *out, size_t *len) {
    static const char letters[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[(*i)++];
    const char *letter = c ? strchr(letters, c) : NULL;
    uint32_t cp;
    if (c == '\n') return IV_OK;
    if (letter) {
        out[(*len)++] = values[letter - letters];
        return IV_OK;
    }
    if (c == 'N') return lex_fail(x, "character names (\\N{...}) are not supported");
    if (c == 'x' || c == 'u' || c == 'U') {
        IV_TRY(code_point(x, s, n, i, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, true, &cp));
    } else if (c >= '0' && c <= '7') {
        --*i;
        IV_TRY(code_point(x, s, n, i, 3, 8, false, &cp));
    } else { /* not an escape: both bytes are kept */
        out[(*len)++] = '\\';
        out[(*len)++] = c;
        return IV_OK;
    }
    *len += iv_utf8_encode(cp, (uint8_t *)out + *len);
    return IV_OK;
}

static iv_status lex_string(lexer *x) {
    char quote = x->s[x->at];
    size_t from = x->at + 1, end = from;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return lex_fail(x, "a string without its closing quote");
    /* An escape is at least as long as its value: "\0" to "\777" are two bytes for at most two. */
    char *out = ivj_pool_alloc(x->pool, end - from + 1, 1);
    if (!out) return iv_fail(x->err, IV_LIMIT, "%.200s:%u: no room for a string", x->name, x->line);
    size_t len = 0;
    for (size_t i = from; i < end;) {
        if (x->s[i] != '\\')
            out[len++] = x->s[i++];
        else {
            i++;
            IV_TRY(unescape(x, x->s, end, &i, out, &len));
        }
    }
    IV_TRY(add_token(x, (ivj_token){.type = IVJ_T_STRING, .line = x->line, .s = out, .n = (uint32_t)len}));
    advance(x, end + 1);
    return IV_OK;
}

static size_t name_end(const lexer *x, size_t i) {
    while (i < x->n) {
        uint32_t cp;
        size_t len = ivj_cp_next(x->s + i, x->n - i, &cp);
        if (!ivj_cp_is_word(cp)) break;
        i += len;
    }
    return i;
}

static size_t operator_length(const lexer *x) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (x->n - x->at >= 2 && memcmp(x->s + x->at, two[i], 2) == 0) return 2;
    char c = x->s[x->at];
    return c && strchr("+-/*%~[](){}<>=.:|,;", c) ? 1 : 0;
}

static iv_status lex_one(lexer *x) {
    char c = x->s[x->at];
    if (is_digit(c)) {
        size_t end = float_end(x, x->at);
        return end ? lex_float(x, end) : lex_int(x);
    }
    if (c == '"' || c == '\'') return lex_string(x);
    size_t end = name_end(x, x->at);
    ivj_token_type type = IVJ_T_NAME;
    if (end == x->at) {
        type = IVJ_T_OPERATOR;
        end += operator_length(x);
        if (end == x->at) return lex_fail(x, "an unexpected character in a tag");
    }
    IV_TRY(add_token(x, (ivj_token){.type = type, .line = x->line, .s = x->s + x->at, .n = (uint32_t)(end - x->at)}));
    advance(x, end);
    return IV_OK;
}

/* Reads the tokens of one tag, from after its opening through its end. */
static iv_status lex_tag(lexer *x, bool block) {
    char open[IVJ_MAX_NESTING * 4]; /* expected closing brackets, innermost last */
    size_t depth = 0;
    const char *end_text = block ? "%}" : "}}";
    IV_TRY(add_token(
        x, (ivj_token){
               .type = block ? IVJ_T_BLOCK_BEGIN : IVJ_T_OUTPUT_BEGIN, .line = x->line, .s = "begin of tag", .n = 12}));
    for (;;) {
        size_t end = depth ? 0 : tag_end(x, x->at, end_text, block);
        if (end) {
            IV_TRY(add_token(
                x, (ivj_token){
                       .type = block ? IVJ_T_BLOCK_END : IVJ_T_OUTPUT_END, .line = x->line, .s = end_text, .n = 2}));
            advance(x, end);
            return IV_OK;
        }
        size_t token = skip_space(x, x->at);
        if (token > x->at) {
            advance(x, token);
            continue; /* check for the end of the tag first */
        }
        if (x->at >= x->n) return IV_OK; /* the parser reports the missing end of the tag */
        char c = x->s[x->at];
        const char *pair = c ? strchr("()[]{}", c) : NULL;
        if (pair && strchr("([{", c)) {
            if (depth == sizeof open)
                return iv_fail(x->err, IV_LIMIT, "%.200s:%u: brackets are nested more than %zu deep", x->name, x->line,
                               sizeof open);
            open[depth++] = pair[1];
        } else if (pair && (depth == 0 || open[--depth] != c)) {
            return lex_fail(x, "a closing bracket without its opening one");
        }
        IV_TRY(lex_one(x));
    }
}
