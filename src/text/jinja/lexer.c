/* lexer.c: the text between tags, and where tags begin and end. What is inside a tag: lexer_tag.c.
 *
 * Invariant: `line` is the line of s[at]. */
#include "text/jinja/lexer_tag.h"
#include "text/jinja/unicode.h"

#include <stdlib.h>
#include <string.h>

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

iv_status ivj_lex_fail(ivj_lexer *x, const char *message) {
    return iv_fail(x->err, IV_TEMPLATE, "%.200s:%u: %s", x->name, x->line, message);
}

void ivj_lex_advance(ivj_lexer *x, size_t to) {
    for (; x->at < to; x->at++) x->line += x->s[x->at] == '\n';
}

iv_status ivj_lex_emit(ivj_lexer *x, ivj_token token) {
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

size_t ivj_lex_skip_space(const ivj_lexer *x, size_t i) {
    while (i < x->n) {
        uint32_t cp;
        size_t len = ivj_cp_next(x->s + i, x->n - i, &cp);
        if (!ivj_cp_is_space(cp)) break;
        i += len;
    }
    return i;
}

static bool at_text(const ivj_lexer *x, size_t i, const char *text) {
    size_t n = strlen(text);
    return x->n - i >= n && memcmp(x->s + i, text, n) == 0;
}

size_t ivj_lex_tag_end(const ivj_lexer *x, size_t i, const char *end, bool block) {
    if (i >= x->n) return 0;
    if (x->s[i] == '-' && at_text(x, i + 1, end)) return ivj_lex_skip_space(x, i + 3);
    if (block && x->s[i] == '+' && at_text(x, i + 1, end)) return i + 3;
    if (!at_text(x, i, end)) return 0;
    return block && i + 2 < x->n && x->s[i + 2] == '\n' ? i + 3 : i + 2;
}

/* End of the text [from, tag) once whitespace control has had its say. */
static size_t stripped_end(const ivj_lexer *x, size_t from, size_t tag, char sign, bool lstrip) {
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
    return ivj_lex_skip_space(x, line) >= tag ? line : end;
}

static iv_status emit_text(ivj_lexer *x, size_t from, size_t to) {
    if (to == from) return IV_OK;
    return ivj_lex_emit(x,
                        (ivj_token){.type = IVJ_T_TEXT, .line = x->line, .s = x->s + from, .n = (uint32_t)(to - from)});
}

static char sign_at(const ivj_lexer *x, size_t i) {
    return i < x->n && (x->s[i] == '-' || x->s[i] == '+') ? x->s[i] : 0;
}

/* Position after `{% raw %}` that starts at i, or 0. */
static size_t raw_begin(const ivj_lexer *x, size_t i) {
    i += 2;
    if (sign_at(x, i)) i++;
    i = ivj_lex_skip_space(x, i);
    if (!at_text(x, i, "raw")) return 0;
    i = ivj_lex_skip_space(x, i + 3);
    if (at_text(x, i, "-%}")) return ivj_lex_skip_space(x, i + 3);
    return at_text(x, i, "%}") ? i + 2 : 0;
}

/* The same for `{% endraw %}`. */
static size_t raw_end(const ivj_lexer *x, size_t i) {
    i += 2;
    if (sign_at(x, i)) i++;
    i = ivj_lex_skip_space(x, i);
    return at_text(x, i, "endraw") ? ivj_lex_tag_end(x, ivj_lex_skip_space(x, i + 6), "%}", true) : 0;
}

static iv_status lex_raw(ivj_lexer *x) {
    size_t from = x->at;
    for (size_t i = from; i + 1 < x->n; i++) {
        if (!at_text(x, i, "{%")) continue;
        size_t end = raw_end(x, i);
        if (!end) continue;
        IV_TRY(emit_text(x, from, stripped_end(x, from, i, sign_at(x, i + 2), true)));
        ivj_lex_advance(x, end);
        return IV_OK;
    }
    if (from == x->n) return IV_OK; /* as Jinja2: nothing after the opening tag is no error */
    return ivj_lex_fail(x, "{% raw %} without {% endraw %}");
}

static iv_status skip_comment(ivj_lexer *x) {
    size_t i = x->at + 2;
    if (sign_at(x, i)) i++;
    for (size_t j = i; j < x->n; j++) {
        size_t end = ivj_lex_tag_end(x, j, "#}", true);
        if (!end) continue;
        ivj_lex_advance(x, end);
        return IV_OK;
    }
    if (i < x->n) return ivj_lex_fail(x, "a comment without its end");
    ivj_lex_advance(x, x->n);
    return IV_OK;
}

/* The first tag at or after i; x->n if there is none. */
static size_t find_tag(const ivj_lexer *x, size_t i) {
    for (; i + 1 < x->n; i++)
        if (x->s[i] == '{' && (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#')) return i;
    return x->n;
}

static iv_status lex_next(ivj_lexer *x) {
    size_t tag = find_tag(x, x->at);
    if (tag == x->n) {
        IV_TRY(emit_text(x, x->at, tag));
        ivj_lex_advance(x, tag);
        return IV_OK;
    }
    char kind = x->s[tag + 1], sign = sign_at(x, tag + 2);
    IV_TRY(emit_text(x, x->at, stripped_end(x, x->at, tag, sign, kind != '{')));
    ivj_lex_advance(x, tag);
    size_t raw = kind == '%' ? raw_begin(x, tag) : 0;
    if (raw) {
        ivj_lex_advance(x, raw);
        x->line_starting = x->s[raw - 1] == '\n';
        IV_TRY(lex_raw(x));
    } else if (kind == '#') {
        IV_TRY(skip_comment(x));
    } else {
        ivj_lex_advance(x, tag + (sign ? 3 : 2));
        IV_TRY(ivj_lex_tag(x, kind == '%'));
    }
    x->line_starting = x->s[x->at - 1] == '\n';
    return IV_OK;
}

iv_status ivj_lex(ivj_pool *pool, const char *name, ivj_value source, ivj_tokens *out, iv_error *err) {
    ivj_lexer x = {.pool = pool,
                   .name = name,
                   .s = source.u.s,
                   .n = source.n,
                   .line = 1,
                   .line_starting = true,
                   .out = out,
                   .err = err};
    while (x.at < x.n) IV_TRY(lex_next(&x));
    return ivj_lex_emit(&x, (ivj_token){.type = IVJ_T_END, .line = x.line, .s = "end of template", .n = 15});
}
