/* decode.c: the decoder steps. part() and end_token() are the input of a step, and call the next step. */
#include "text/decode.h"
#include "base/utf8.h"
#include "text/charset.h"
#include "text/normalize.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

iv_status iv_decoder_open(const char *name, const iv_tokenizer_json *spec, iv_decoder *out, iv_error *err) {
    *out = (iv_decoder){.steps = spec->decoders, .count = spec->decoder_count, .join_with_spaces = !spec->has_decoder};
    for (size_t i = 0; i < out->count; i++) {
        char where[400];
        if (out->steps[i].kind != IV_DECODE_REPLACE) continue;
        snprintf(where, sizeof where, "%.300s: decoder", name);
        iv_status status = iv_regex_open(where, &out->steps[i].pattern, &out->regexes[i], err);
        if (status != IV_OK) {
            iv_decoder_close(out);
            return status;
        }
    }
    return IV_OK;
}

void iv_decoder_close(iv_decoder *d) {
    for (size_t i = 0; i < d->count; i++) iv_regex_close(d->regexes[i]);
    *d = (iv_decoder){0};
}

iv_status iv_decode_begin(const iv_decoder *d, iv_decode_run *run, iv_error *err) {
    *run = (iv_decode_run){.decoder = d, .work = iv_regex_work_new()};
    return run->work ? IV_OK : iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory to decode");
}

void iv_decode_end(iv_decode_run *run) {
    for (size_t i = 0; i < IV_TOKENIZER_STEPS_MAX; i++) {
        iv_buf_free(&run->states[i].held);
        iv_buf_free(&run->states[i].bytes);
    }
    iv_regex_work_free(run->work);
    *run = (iv_decode_run){0};
}

bool iv_decode_reserve(iv_decode_run *run, size_t bytes) {
    bool ok = true;
    for (size_t i = 0; i < run->decoder->count; i++)
        ok = ok && iv_buf_reserve(&run->states[i].held, bytes) && iv_buf_reserve(&run->states[i].bytes, bytes);
    return ok;
}

static iv_status part(iv_decode_run *run, size_t step, const char *s, size_t n);
static iv_status end_token(iv_decode_run *run, size_t step);

static iv_status whole_token(iv_decode_run *run, size_t step, const char *s, size_t n) {
    IV_TRY(part(run, step, s, n));
    return end_token(run, step);
}

static iv_status hold(iv_decode_run *run, iv_buf *buf, const char *s, size_t n) {
    return iv_buf_append(buf, s, n) ? IV_OK : iv_text_full(buf, n, run->err);
}

/* ---- Replace ---- */

static iv_status replace_token(iv_decode_run *run, size_t step) {
    iv_decode_state *st = &run->states[step];
    iv_str content = run->decoder->steps[step].content;
    iv_regex_scan scan = {0};
    size_t done = 0;
    for (bool found = st->held.len > 0; found;) {
        IV_TRY(iv_regex_next(run->decoder->regexes[step], run->work, st->held.data, st->held.len, &scan, &found,
                             run->err));
        size_t upto = found ? scan.start : st->held.len;
        if (upto > done) IV_TRY(part(run, step + 1, st->held.data + done, upto - done));
        if (!found) break;
        IV_TRY(part(run, step + 1, content.data, content.len));
        done = scan.end;
    }
    iv_buf_clear(&st->held);
    return end_token(run, step + 1);
}

/* ---- ByteFallback ---- */

/* "<0xHH>" -> the byte, otherwise -1. As in the reference, one sign may precede one digit. */
static int byte_token(const char *s, size_t n) {
    static const char digits[] = "0123456789abcdef";
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    const char *low = s[4] ? strchr(digits, tolower((unsigned char)s[4])) : NULL;
    const char *high = s[3] == '+' ? digits : s[3] ? strchr(digits, tolower((unsigned char)s[3])) : NULL;
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* End of a run of byte tokens: its text if well formed, otherwise one U+FFFD per byte. */
static iv_status flush_bytes(iv_decode_run *run, size_t step) {
    iv_buf *b = &run->states[step].bytes;
    if (b->len == 0) return IV_OK;
    if (iv_utf8_valid((const uint8_t *)b->data, b->len, NULL)) {
        IV_TRY(whole_token(run, step + 1, b->data, b->len));
    } else {
        for (size_t i = 0; i < b->len; i++) IV_TRY(whole_token(run, step + 1, REPLACEMENT, 3));
    }
    iv_buf_clear(b);
    return IV_OK;
}

static iv_status byte_fallback_token(iv_decode_run *run, size_t step) {
    iv_decode_state *st = &run->states[step];
    int byte = byte_token(st->held.data, st->held.len);
    if (byte >= 0) {
        char c = (char)byte;
        iv_buf_clear(&st->held);
        return hold(run, &st->bytes, &c, 1);
    }
    IV_TRY(flush_bytes(run, step));
    IV_TRY(whole_token(run, step + 1, st->held.data, st->held.len));
    iv_buf_clear(&st->held);
    return IV_OK;
}

/* ---- ByteLevel ---- */

/* Passes on the certain part of st->bytes: well-formed sequences unchanged, and one U+FFFD for each maximal prefix of a
 * sequence that was not completed (as the reference's lossy conversion). At the end no bytes may be left. */
static iv_status settle_bytes(iv_decode_run *run, size_t step, bool at_end) {
    iv_buf *b = &run->states[step].bytes;
    const uint8_t *s = (const uint8_t *)b->data;
    size_t good = 0, i = 0;
    while (i < b->len) {
        size_t len = iv_utf8_length(s + i, b->len - i);
        if (len) {
            i += len;
            continue;
        }
        if (i > good) IV_TRY(part(run, step + 1, b->data + good, i - good));
        good = i;
        if (!at_end && iv_utf8_is_partial(s + i, b->len - i)) break;
        size_t bad = 1;
        while (bad < b->len - i && iv_utf8_is_partial(s + i, bad + 1)) bad++;
        IV_TRY(part(run, step + 1, REPLACEMENT, 3));
        good = i += bad;
    }
    if (i > good) IV_TRY(part(run, step + 1, b->data + good, i - good));
    memmove(b->data, b->data + i, b->len - i);
    b->len -= i;
    b->data[b->len] = 0;
    return IV_OK;
}

/* The bytes of a token if each of its characters maps to a byte; otherwise (an added token) its text unchanged. */
static iv_status byte_level_token(iv_decode_run *run, size_t step) {
    iv_decode_state *st = &run->states[step];
    size_t before = st->bytes.len;
    bool mapped = true;
    for (size_t i = 0; mapped && i < st->held.len;) {
        uint32_t cp;
        i += iv_utf8_decode((const uint8_t *)st->held.data + i, st->held.len - i, &cp);
        int byte = iv_byte_level_decode(cp);
        char c = (char)byte;
        mapped = byte >= 0;
        if (mapped) IV_TRY(hold(run, &st->bytes, &c, 1));
    }
    if (!mapped) {
        st->bytes.len = before;
        IV_TRY(hold(run, &st->bytes, st->held.data, st->held.len));
    }
    iv_buf_clear(&st->held);
    return st->bytes.len ? settle_bytes(run, step, false) : IV_OK;
}

bool iv_decode_token_bytes(const iv_decoder *d, iv_str token, iv_buf *out, bool *known) {
    size_t before = out->len;
    bool mapped = d->count == 1 && d->steps[0].kind == IV_DECODE_BYTE_LEVEL, fallback = false;
    for (size_t i = 0; i < d->count; i++) fallback |= d->steps[i].kind == IV_DECODE_BYTE_FALLBACK;
    int byte = fallback ? byte_token(token.data, token.len) : -1;
    *known = mapped || byte >= 0;
    if (byte >= 0) return iv_buf_putc(out, (char)byte);
    for (size_t i = 0; mapped && i < token.len;) {
        uint32_t cp;
        i += iv_utf8_decode((const uint8_t *)token.data + i, token.len - i, &cp);
        int one = iv_byte_level_decode(cp);
        mapped = one >= 0;
        if (mapped && !iv_buf_putc(out, (char)one)) return false;
    }
    if (mapped || !*known) return true;
    out->len = before; /* an added token: its text unchanged */
    return iv_buf_append(out, token.data, token.len);
}

/* ---- Strip ---- */

/* Drops up to `start` leading characters equal to content. Up to `stop` trailing ones are held back, in case the token
 * ends there; older held characters are passed on. */
static iv_status strip_part(iv_decode_run *run, size_t step, const char *s, size_t n) {
    const iv_decoder_spec *spec = &run->decoder->steps[step];
    iv_decode_state *st = &run->states[step];
    iv_str c = spec->content;
    for (size_t i = 0; i < n;) {
        size_t len = iv_utf8_length((const uint8_t *)s + i, n - i);
        bool equal = len == c.len && memcmp(s + i, c.data, len) == 0;
        const char *at = s + i;
        i += len;
        if (!st->left_done && equal && st->stripped < spec->start) {
            st->stripped++;
            continue;
        }
        st->left_done = true;
        if (!equal || spec->stop == 0) {
            if (st->held.len) IV_TRY(part(run, step + 1, st->held.data, st->held.len));
            iv_buf_clear(&st->held);
            IV_TRY(part(run, step + 1, at, len));
            continue;
        }
        if (st->held.len == spec->stop * c.len)
            IV_TRY(part(run, step + 1, at, len));
        else
            IV_TRY(hold(run, &st->held, at, len));
    }
    return IV_OK;
}

static iv_status strip_end(iv_decode_run *run, size_t step) {
    iv_decode_state *st = &run->states[step];
    iv_buf_clear(&st->held);
    st->stripped = 0;
    st->left_done = false;
    return end_token(run, step + 1);
}

/* ---- Metaspace ---- */

/* The mark becomes a space; in the first token it is dropped (unless it is never prepended). */
static iv_status metaspace_part(iv_decode_run *run, size_t step, const char *s, size_t n) {
    const iv_decoder_spec *spec = &run->decoder->steps[step];
    bool drop = run->states[step].token_index == 0 && spec->prepend != IV_PREPEND_NEVER;
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        size_t len = iv_utf8_length((const uint8_t *)s + i, n - i);
        if (len == spec->content.len && memcmp(s + i, spec->content.data, len) == 0) {
            if (i > done) IV_TRY(part(run, step + 1, s + done, i - done));
            if (!drop) IV_TRY(part(run, step + 1, " ", 1));
            done = i + len;
        }
        i += len;
    }
    return n > done ? part(run, step + 1, s + done, n - done) : IV_OK;
}

/* ---- the chain ---- */

static iv_status part(iv_decode_run *run, size_t step, const char *s, size_t n) {
    if (n == 0) return IV_OK;
    if (step == run->decoder->count) return iv_buf_append(run->out, s, n) ? IV_OK : iv_text_full(run->out, n, run->err);
    switch (run->decoder->steps[step].kind) {
    case IV_DECODE_FUSE: return part(run, step + 1, s, n);
    case IV_DECODE_STRIP: return strip_part(run, step, s, n);
    case IV_DECODE_METASPACE: return metaspace_part(run, step, s, n);
    default: return hold(run, &run->states[step].held, s, n); /* these steps need the whole token */
    }
}

static iv_status end_token(iv_decode_run *run, size_t step) {
    if (step == run->decoder->count) return IV_OK;
    switch (run->decoder->steps[step].kind) {
    case IV_DECODE_REPLACE: return replace_token(run, step);
    case IV_DECODE_BYTE_FALLBACK: return byte_fallback_token(run, step);
    case IV_DECODE_BYTE_LEVEL: return byte_level_token(run, step);
    case IV_DECODE_STRIP: return strip_end(run, step);
    case IV_DECODE_METASPACE: run->states[step].token_index++; return end_token(run, step + 1);
    case IV_DECODE_FUSE: return IV_OK;
    }
    return IV_OK;
}

/* Steps release held text in order, first step first. */
static iv_status flush_step(iv_decode_run *run, size_t step) {
    switch (run->decoder->steps[step].kind) {
    case IV_DECODE_FUSE: return end_token(run, step + 1);
    case IV_DECODE_BYTE_FALLBACK: return flush_bytes(run, step);
    case IV_DECODE_BYTE_LEVEL:
        if (run->states[step].bytes.len) IV_TRY(settle_bytes(run, step, true));
        return end_token(run, step + 1);
    default: return IV_OK;
    }
}

iv_status iv_decode_token(iv_decode_run *run, iv_str token, iv_buf *out, iv_error *err) {
    run->out = out, run->err = err;
    if (run->tokens++ && run->decoder->join_with_spaces && !iv_buf_putc(out, ' ')) return iv_text_full(out, 1, err);
    return whole_token(run, 0, token.data, token.len);
}

iv_status iv_decode_boundary(iv_decode_run *run, iv_buf *out, iv_error *err) {
    run->out = out, run->err = err;
    for (size_t step = 0; step < run->decoder->count; step++) {
        iv_decode_state *st = &run->states[step];
        iv_decoder_kind kind = run->decoder->steps[step].kind;
        if (kind == IV_DECODE_BYTE_FALLBACK) IV_TRY(flush_bytes(run, step));
        if (kind == IV_DECODE_BYTE_LEVEL && st->bytes.len) IV_TRY(settle_bytes(run, step, true));
        iv_buf_clear(&st->held);
    }
    return IV_OK;
}

iv_status iv_decode_flush(iv_decode_run *run, iv_buf *out, iv_error *err) {
    run->out = out, run->err = err;
    for (size_t step = 0; step < run->decoder->count; step++) IV_TRY(flush_step(run, step));
    return IV_OK;
}
