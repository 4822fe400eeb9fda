/* split.c: each step turns the pieces of one text into the pieces of the next.
 *
 * A step looks at one piece at a time: it finds segments (matches and what lies between them, covering the
 * piece in order), then the behaviour says which segments join and which are dropped. */
#include "text/split.h"
#include "base/size.h"
#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/charset.h"
#include "text/normalize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct iv_segment {
    size_t start, end;
    bool match;
} iv_segment;

/* Our own patterns, in PCRE2's language. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SPACE_PATTERN "[" IV_CHARSET_SPACE "]"

/* The reference's Punctuation step is of Unicode 8: later punctuation is not in it, two characters still are.
 */
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
    /* The last two ranges are of Unicode 17, which only this step of the reference knows. */
    bool ok = iv_buf_putc(&p, '[') && iv_charset_property(&p, "N", 1, &memory) &&
              iv_buf_puts(&p, "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]");
    iv_status status = ok ? iv_regex_open_raw(where, p.data, out, err) : iv_text_full(&p, 0, err);
    iv_buf_free(&p);
    return status;
}

/* Runs of word characters and runs of what is neither word nor space; joiners count as word characters here.
 */
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

iv_status iv_splitter_open(const char *name, const iv_pretokenizer_spec *steps, size_t count, iv_splitter *out,
                           iv_error *err) {
    *out = (iv_splitter){.steps = steps, .count = count};
    for (size_t i = 0; i < count; i++) {
        char where[400];
        snprintf(where, sizeof where, "%.300s: pre_tokenizer", name);
        iv_status status = open_step(where, &steps[i], &out->regexes[i], err);
        if (status != IV_OK) {
            iv_splitter_close(out);
            return status;
        }
    }
    return IV_OK;
}

void iv_splitter_close(iv_splitter *s) {
    for (size_t i = 0; i < s->count; i++) iv_regex_close(s->regexes[i]);
    *s = (iv_splitter){0};
}

/* ---- segments ---- */

static bool grow(void **items, size_t *cap, size_t len, size_t size) {
    size_t bytes, more = *cap ? *cap : 64;
    if (len < *cap) return true;
    if (!iv_size_mul(more, 2, &more) || !iv_size_mul(more, size, &bytes)) return false;
    void *p = realloc(*items, bytes);
    if (!p) return false;
    *items = p, *cap = more;
    return true;
}

static iv_status push_segment(iv_split_work *w, size_t start, size_t end, bool match, iv_error *err) {
    if (!grow((void **)&w->segments, &w->segment_cap, w->segment_count, sizeof *w->segments))
        return iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory for %zu segments", w->segment_count);
    w->segments[w->segment_count++] = (iv_segment){start, end, match};
    return IV_OK;
}

/* The matches of re (NULL: none) in the text and what is between them, in order. */
static iv_status find_segments(const iv_regex *re, iv_regex_work *rw, iv_split_work *w, const char *text, size_t n,
                               bool invert, iv_error *err) {
    iv_regex_scan scan = {0};
    size_t done = 0;
    w->segment_count = 0;
    for (bool found = re && n; found;) {
        IV_TRY(iv_regex_next(re, rw, text, n, &scan, &found, err));
        if (!found) break;
        if (done != scan.start) IV_TRY(push_segment(w, done, scan.start, invert, err));
        IV_TRY(push_segment(w, scan.start, scan.end, !invert, err));
        done = scan.end;
    }
    return done == n ? IV_OK : push_segment(w, done, n, invert, err);
}

/* Joins segments in place as the behaviour says; drops those that are removed. */
static void join_segments(iv_split_work *w, iv_split_behavior behavior) {
    iv_segment *s = w->segments;
    size_t out = 0;
    bool previous = false; /* whether the segment before was a match */
    for (size_t i = 0; i < w->segment_count; i++) {
        iv_segment seg = s[i];
        bool join = false;
        if (behavior == IV_SPLIT_REMOVED && seg.match) continue;
        if (behavior == IV_SPLIT_CONTIGUOUS) join = seg.match == previous;
        if (behavior == IV_SPLIT_MERGED_WITH_PREVIOUS) join = seg.match && !previous;
        if (behavior == IV_SPLIT_MERGED_WITH_NEXT) join = !seg.match && previous;
        previous = seg.match;
        if (join && out > 0)
            s[out - 1].end = seg.end;
        else
            s[out++] = seg;
    }
    w->segment_count = out;
}

/* ---- pieces ---- */

static iv_status push_piece(iv_pieces *p, size_t start, size_t len, bool at_start, iv_error *err) {
    if (len == 0) return IV_OK;
    if (!grow((void **)&p->items, &p->cap, p->len, sizeof *p->items))
        return iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory for %zu pieces", p->len);
    p->items[p->len++] = (iv_piece){start, len, at_start};
    return IV_OK;
}

static iv_status split_piece(const iv_splitter *s, size_t step, iv_regex_work *rw, iv_split_work *w, iv_piece piece,
                             iv_error *err) {
    const iv_pretokenizer_spec *spec = &s->steps[step];
    bool whitespace = spec->kind == IV_PRETOKENIZE_WHITESPACE;
    iv_split_behavior behavior = spec->behavior;
    if (whitespace || spec->kind == IV_PRETOKENIZE_WHITESPACE_SPLIT) behavior = IV_SPLIT_REMOVED;
    IV_TRY(find_segments(s->regexes[step], rw, w, w->current.text.data + piece.start, piece.len,
                         spec->invert || whitespace, err));
    join_segments(w, behavior);
    for (size_t i = 0; i < w->segment_count; i++) {
        iv_segment seg = w->segments[i];
        IV_TRY(
            push_piece(&w->next, piece.start + seg.start, seg.end - seg.start, piece.at_start && seg.start == 0, err));
    }
    return IV_OK;
}

static iv_status byte_level_piece(const iv_splitter *s, size_t step, iv_regex_work *rw, iv_split_work *w,
                                  iv_piece piece, iv_error *err) {
    const char *text = w->current.text.data + piece.start;
    iv_buf_clear(&w->line);
    bool ok = !s->steps[step].add_prefix_space || *text == ' ' || iv_buf_putc(&w->line, ' ');
    if (!ok || !iv_buf_append(&w->line, text, piece.len)) return iv_text_full(&w->line, piece.len + 1, err);
    IV_TRY(find_segments(s->regexes[step], rw, w, w->line.data, w->line.len, false, err));
    iv_buf *out = &w->next.text;
    for (size_t i = 0; i < w->segment_count; i++) {
        iv_segment seg = w->segments[i];
        size_t start = out->len;
        size_t most = 2 * (seg.end - seg.start);
        if (!iv_buf_reserve(out, most)) return iv_text_full(out, most, err);
        for (size_t k = seg.start; k < seg.end; k++)
            out->len += iv_byte_level_encode((uint8_t)w->line.data[k], out->data + out->len);
        IV_TRY(push_piece(&w->next, start, out->len - start, piece.at_start && seg.start == 0, err));
    }
    return IV_OK;
}

static iv_status metaspace_piece(const iv_splitter *s, size_t step, iv_regex_work *rw, iv_split_work *w, iv_piece piece,
                                 iv_error *err) {
    const iv_pretokenizer_spec *spec = &s->steps[step];
    const char *text = w->current.text.data + piece.start;
    iv_str mark = spec->replacement;
    iv_buf *out = &w->next.text;
    size_t base = out->len;
    bool marked = *text == ' ' || (piece.len >= mark.len && memcmp(text, mark.data, mark.len) == 0);
    bool prepend = spec->prepend == IV_PREPEND_ALWAYS || (spec->prepend == IV_PREPEND_FIRST && piece.at_start);
    bool ok = marked || !prepend || iv_buf_append(out, mark.data, mark.len);
    for (size_t i = 0; ok && i < piece.len; i++)
        ok = text[i] == ' ' ? iv_buf_append(out, mark.data, mark.len) : iv_buf_putc(out, text[i]);
    if (!ok) return iv_text_full(out, mark.len, err);
    IV_TRY(find_segments(s->regexes[step], rw, w, out->data + base, out->len - base, false, err));
    join_segments(w, IV_SPLIT_MERGED_WITH_NEXT);
    for (size_t i = 0; i < w->segment_count; i++) {
        iv_segment seg = w->segments[i];
        IV_TRY(push_piece(&w->next, base + seg.start, seg.end - seg.start, piece.at_start && seg.start == 0, err));
    }
    return IV_OK;
}

static iv_status apply_step(const iv_splitter *s, size_t step, iv_regex_work *rw, iv_split_work *w, iv_error *err) {
    iv_pretokenizer_kind kind = s->steps[step].kind;
    bool rewrites = kind == IV_PRETOKENIZE_BYTE_LEVEL || kind == IV_PRETOKENIZE_METASPACE;
    iv_buf_clear(&w->next.text);
    w->next.len = 0;
    for (size_t i = 0; i < w->current.len; i++) {
        iv_piece piece = w->current.items[i];
        if (kind == IV_PRETOKENIZE_BYTE_LEVEL)
            IV_TRY(byte_level_piece(s, step, rw, w, piece, err));
        else if (kind == IV_PRETOKENIZE_METASPACE)
            IV_TRY(metaspace_piece(s, step, rw, w, piece, err));
        else
            IV_TRY(split_piece(s, step, rw, w, piece, err));
    }
    iv_pieces done = w->current;
    w->current = w->next, w->next = done;
    if (!rewrites) { /* the new pieces are of the old text */
        iv_buf text = w->current.text;
        w->current.text = w->next.text, w->next.text = text;
    }
    return IV_OK;
}

iv_status iv_splitter_apply(const iv_splitter *s, iv_regex_work *regex_work, iv_split_work *work, const char *text,
                            size_t n, bool at_start, iv_error *err) {
    work->current.len = 0;
    iv_buf_clear(&work->current.text);
    if (!iv_buf_append(&work->current.text, text, n)) return iv_text_full(&work->current.text, n, err);
    IV_TRY(push_piece(&work->current, 0, n, at_start, err));
    for (size_t i = 0; i < s->count; i++) IV_TRY(apply_step(s, i, regex_work, work, err));
    return IV_OK;
}

void iv_split_work_free(iv_split_work *work) {
    iv_buf_free(&work->current.text);
    iv_buf_free(&work->next.text);
    iv_buf_free(&work->line);
    free(work->current.items);
    free(work->next.items);
    free(work->segments);
    *work = (iv_split_work){0};
}
