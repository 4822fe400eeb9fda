/* pretokenize.c: each step cuts a piece into the pieces of the next step.
 *
 * A step finds segments: matches and the text between them, which cover the piece in order. The behavior determines
 * which segments are merged and which are dropped. A piece passes through all later steps before the next one is
 * searched, so memory is bounded by the longest piece. */
#include "text/pretokenize.h"
#include "base/utf8.h"
#include "text/charset.h"
#include "text/normalize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct iv_segment {
    size_t start, end;
} iv_segment;

/* Our own patterns, in PCRE2's language. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SPACE_PATTERN "[" IV_CHARSET_SPACE "]"

/* The reference's Punctuation step uses Unicode 8: it lacks later punctuation, and still has two characters that later
 * versions removed. */
#define PUNCTUATION_PATTERN                                                                                  \
    "(?![\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b4e}\\x{1b4f}\\x{1b7d}-\\x{1b7f}\\x{2e43}-\\x{2e4f}"   \
    "\\x{2e52}-\\x{2e5d}\\x{10d6e}\\x{10ead}\\x{10f55}-\\x{10f59}\\x{10f86}-\\x{10f89}\\x{113d4}-\\x{113d8}" \
    "\\x{1144b}-\\x{1144f}\\x{1145a}-\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}\\x{1183b}\\x{11944}-\\x{"     \
    "11946}"                                                                                                 \
    "\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11aa2}\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11c41}-\\x{"     \
    "11c45}"                                                                                                 \
    "\\x{11c70}\\x{11c71}\\x{11ef7}\\x{11ef8}\\x{11f43}-\\x{11f4f}\\x{11fff}\\x{12ff1}\\x{12ff2}"            \
    "\\x{16d6d}-\\x{16d6f}\\x{16e97}-\\x{16e9a}\\x{16fe2}\\x{1e5ff}\\x{1e95e}\\x{1e95f}])"                   \
    "[!-/:-@\\[-`{-~\\p{P}\\x{166d}\\x{111c9}]"

/* ---- compiling ---- */

static iv_status open_digits(const char *where, iv_regex **out, iv_error *err) {
    iv_buf p = {0};
    bool memory;
    /* The last two ranges are from Unicode 17; only this step of the reference has them. */
    bool ok = iv_buf_putc(&p, '[') && iv_charset_property(&p, "N", 1, &memory) &&
              iv_buf_puts(&p, "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]");
    iv_status status = ok ? iv_regex_open_raw(where, p.data, out, err) : iv_text_full(&p, 0, err);
    iv_buf_free(&p);
    return status;
}

/* Runs of word characters, and runs that are neither word nor space; joiners are word characters here. */
static iv_status open_whitespace(const char *where, iv_regex **out, iv_error *err) {
    iv_buf word = {0}, p = {0};
    bool ok = iv_charset_word(&word) && iv_buf_puts(&word, "\\x{200c}\\x{200d}") &&
              iv_buf_printf(&p, "[%s]+|[^%s" IV_CHARSET_SPACE "]+", word.data, word.data);
    iv_status status = ok ? iv_regex_open_raw(where, p.data, out, err) : iv_text_full(&p, 0, err);
    iv_buf_free(&word);
    iv_buf_free(&p);
    return status;
}

static iv_status open_step(const char *where, const iv_pretokenizer_spec *s, iv_regex **out, iv_error *err) {
    static const iv_pattern gpt2 = {{GPT2_PATTERN, sizeof GPT2_PATTERN - 1}, true};
    iv_pattern replacement = {s->replacement, false};
    switch (s->kind) {
    case IV_PRETOKENIZE_SPLIT: return iv_regex_open(where, &s->pattern, out, err);
    case IV_PRETOKENIZE_BYTE_LEVEL: return s->use_regex ? iv_regex_open(where, &gpt2, out, err) : IV_OK;
    case IV_PRETOKENIZE_METASPACE: return s->split ? iv_regex_open(where, &replacement, out, err) : IV_OK;
    case IV_PRETOKENIZE_DIGITS: return open_digits(where, out, err);
    case IV_PRETOKENIZE_PUNCTUATION: return iv_regex_open_raw(where, PUNCTUATION_PATTERN, out, err);
    case IV_PRETOKENIZE_WHITESPACE: return open_whitespace(where, out, err);
    case IV_PRETOKENIZE_WHITESPACE_SPLIT: return iv_regex_open_raw(where, SPACE_PATTERN, out, err);
    }
    return IV_OK;
}

iv_status iv_pretokenizer_open(const char *name, const iv_pretokenizer_spec *steps, size_t count, iv_pretokenizer *out,
                               iv_error *err) {
    *out = (iv_pretokenizer){.steps = steps, .count = count};
    for (size_t i = 0; i < count; i++) {
        char where[400];
        snprintf(where, sizeof where, "%.300s: pre_tokenizer", name);
        iv_status status = open_step(where, &steps[i], &out->regexes[i], err);
        if (status != IV_OK) {
            iv_pretokenizer_close(out);
            return status;
        }
    }
    return IV_OK;
}

void iv_pretokenizer_close(iv_pretokenizer *s) {
    for (size_t i = 0; i < s->count; i++) iv_regex_close(s->regexes[i]);
    *s = (iv_pretokenizer){0};
}

/* ---- one call ---- */

typedef struct run {
    const iv_pretokenizer *s;
    iv_regex_work *regex;
    iv_pretokenize_work *work;
    iv_piece_taken *take;
    void *user;
    iv_error *err;
} run;

static iv_status next_step(run *r, size_t step, const char *text, size_t n, bool at_start);

/* ---- pieces ---- */

/* The segment as a piece of the next step. */
static iv_status give_piece(run *r, size_t step, const char *text, iv_segment seg, bool at_start) {
    size_t n = seg.end - seg.start;
    at_start = at_start && seg.start == 0;
    if (n == 0) return IV_OK;
    if (r->s->steps[step].kind != IV_PRETOKENIZE_BYTE_LEVEL)
        return next_step(r, step + 1, text + seg.start, n, at_start);
    iv_buf *out = &r->work->encoded[step];
    iv_buf_clear(out);
    if (!iv_buf_reserve(out, 2 * n)) return iv_text_full(out, 2 * n, r->err);
    for (size_t k = seg.start; k < seg.end; k++)
        out->len += iv_byte_level_encode((uint8_t)text[k], out->data + out->len);
    return next_step(r, step + 1, out->data, out->len, at_start);
}

/* ---- segments ---- */

/* A segment that may still be merged with its successor. */
typedef struct merger {
    run *r;
    size_t step;
    const char *text;
    bool at_start;
    iv_match_behavior behavior;
    iv_segment held;
    bool holds;
    bool previous; /* whether the previous segment was a match */
} merger;

static iv_status give_held(merger *m) {
    if (!m->holds) return IV_OK;
    m->holds = false;
    return give_piece(m->r, m->step, m->text, m->held, m->at_start);
}

static iv_status add_segment(merger *m, size_t start, size_t end, bool match) {
    bool merge = false;
    if (m->behavior == IV_MATCH_REMOVED && match) return IV_OK;
    if (m->behavior == IV_MATCH_CONTIGUOUS) merge = match == m->previous;
    if (m->behavior == IV_MATCH_MERGED_WITH_PREVIOUS) merge = match && !m->previous;
    if (m->behavior == IV_MATCH_MERGED_WITH_NEXT) merge = !match && m->previous;
    m->previous = match;
    if (merge && m->holds) {
        m->held.end = end;
        return IV_OK;
    }
    IV_TRY(give_held(m));
    m->held = (iv_segment){start, end}, m->holds = true;
    return IV_OK;
}

/* The matches of the step's pattern, if any, and the text between them, in order. */
static iv_status cut(run *r, size_t step, const char *text, size_t n, bool at_start, bool invert,
                     iv_match_behavior behavior) {
    merger m = {.r = r, .step = step, .text = text, .at_start = at_start, .behavior = behavior};
    const iv_regex *re = r->s->regexes[step];
    iv_regex_scan scan = {0};
    size_t done = 0;
    for (bool found = re && n; found;) {
        IV_TRY(iv_regex_next(re, r->regex, text, n, &scan, &found, r->err));
        if (!found) break;
        if (done != scan.start) IV_TRY(add_segment(&m, done, scan.start, invert));
        IV_TRY(add_segment(&m, scan.start, scan.end, !invert));
        done = scan.end;
    }
    if (done != n) IV_TRY(add_segment(&m, done, n, invert));
    return give_held(&m);
}

/* ---- steps ---- */

static iv_status byte_level(run *r, size_t step, const char *text, size_t n, bool at_start) {
    iv_buf *out = &r->work->rewritten[step];
    if (!r->s->steps[step].add_prefix_space || *text == ' ')
        return cut(r, step, text, n, at_start, false, IV_MATCH_ISOLATED);
    iv_buf_clear(out);
    if (!iv_buf_putc(out, ' ') || !iv_buf_append(out, text, n)) return iv_text_full(out, n + 1, r->err);
    return cut(r, step, out->data, out->len, at_start, false, IV_MATCH_ISOLATED);
}

static iv_status metaspace(run *r, size_t step, const char *text, size_t n, bool at_start) {
    const iv_pretokenizer_spec *spec = &r->s->steps[step];
    iv_str mark = spec->replacement;
    iv_buf *out = &r->work->rewritten[step];
    bool marked = *text == ' ' || (n >= mark.len && memcmp(text, mark.data, mark.len) == 0);
    bool prepend = spec->prepend == IV_PREPEND_ALWAYS || (spec->prepend == IV_PREPEND_FIRST && at_start);
    iv_buf_clear(out);
    bool ok = marked || !prepend || iv_buf_append(out, mark.data, mark.len);
    for (size_t i = 0; ok && i < n; i++)
        ok = text[i] == ' ' ? iv_buf_append(out, mark.data, mark.len) : iv_buf_putc(out, text[i]);
    if (!ok) return iv_text_full(out, mark.len, r->err);
    return cut(r, step, out->data, out->len, at_start, false, IV_MATCH_MERGED_WITH_NEXT);
}

static iv_status next_step(run *r, size_t step, const char *text, size_t n, bool at_start) {
    if (step == r->s->count) return r->take(r->user, text, n, r->err);
    const iv_pretokenizer_spec *spec = &r->s->steps[step];
    bool whitespace = spec->kind == IV_PRETOKENIZE_WHITESPACE;
    if (spec->kind == IV_PRETOKENIZE_BYTE_LEVEL) return byte_level(r, step, text, n, at_start);
    if (spec->kind == IV_PRETOKENIZE_METASPACE) return metaspace(r, step, text, n, at_start);
    bool removed = whitespace || spec->kind == IV_PRETOKENIZE_WHITESPACE_SPLIT;
    return cut(r, step, text, n, at_start, spec->invert || whitespace, removed ? IV_MATCH_REMOVED : spec->behavior);
}

iv_status iv_pretokenizer_apply(const iv_pretokenizer *s, iv_regex_work *regex, iv_pretokenize_work *work,
                                const char *text, size_t n, bool at_start, iv_piece_taken *take, void *user,
                                iv_error *err) {
    run r = {.s = s, .regex = regex, .work = work, .take = take, .user = user, .err = err};
    return n ? next_step(&r, 0, text, n, at_start) : IV_OK;
}

void iv_pretokenize_work_limit(iv_pretokenize_work *work, size_t bytes) {
    for (size_t i = 0; i < IV_TOKENIZER_STEPS_MAX; i++) work->rewritten[i].limit = work->encoded[i].limit = bytes;
}

void iv_pretokenize_work_free(iv_pretokenize_work *work) {
    for (size_t i = 0; i < IV_TOKENIZER_STEPS_MAX; i++)
        iv_buf_free(&work->rewritten[i]), iv_buf_free(&work->encoded[i]);
}
