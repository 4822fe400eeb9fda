/* normalize.c: the steps that are not Unicode normalization, and running them in order. */
#include "text/normalize.h"
#include "base/utf8.h"
#include "text/charset.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

iv_status iv_text_full(const iv_buf *buf, size_t extra, iv_error *err) {
    if (buf->limit && extra > buf->limit - buf->len)
        return iv_fail(err, IV_LIMIT, "tokenizer: a step makes the text longer than %zu bytes", buf->limit);
    return iv_fail(err, IV_NO_MEMORY, "tokenizer: no memory for a text of %zu bytes", buf->len);
}

iv_status iv_normalizer_open(const char *name, const iv_normalizer_spec *steps, size_t count, iv_normalizer *out,
                             iv_error *err) {
    *out = (iv_normalizer){.steps = steps, .count = count};
    for (size_t i = 0; i < count; i++) {
        char where[400];
        if (steps[i].kind != IV_NORMALIZE_REPLACE) continue;
        snprintf(where, sizeof where, "%.300s: normalizer", name);
        iv_status status = iv_regex_open(where, &steps[i].pattern, &out->regexes[i], err);
        if (status != IV_OK) {
            iv_normalizer_close(out);
            return status;
        }
    }
    return IV_OK;
}

void iv_normalizer_close(iv_normalizer *n) {
    for (size_t i = 0; i < n->count; i++) iv_regex_close(n->regexes[i]);
    *n = (iv_normalizer){0};
}

/* Letters that got a lower case after utf8proc's Unicode 15, and the one that lowers to two characters. */
static uint32_t lower(uint32_t cp) {
    static const uint32_t pairs[][2] = {{0x1c89, 0x1c8a}, {0xa7cb, 0x264},  {0xa7cc, 0xa7cd}, {0xa7ce, 0xa7cf},
                                        {0xa7d2, 0xa7d3}, {0xa7d4, 0xa7d5}, {0xa7da, 0xa7db}, {0xa7dc, 0x19b}};
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] == cp) return pairs[i][1];
    if (cp >= 0x10d50 && cp <= 0x10d65) return cp + 0x20;
    if (cp >= 0x16ea0 && cp <= 0x16eb8) return cp + 0x1b;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

static bool append_lower(const char *text, size_t n, iv_buf *out) {
    for (size_t i = 0; i < n;) {
        uint8_t bytes[4];
        uint32_t cp;
        i += iv_utf8_decode((const uint8_t *)text + i, n - i, &cp);
        if (cp == 0x130 ? !iv_buf_puts(out, "i\xcc\x87") : !iv_buf_append(out, bytes, iv_utf8_encode(lower(cp), bytes)))
            return false;
    }
    return true;
}

static bool append_stripped(const iv_normalizer_spec *s, const char *text, size_t n, iv_buf *out) {
    size_t start = 0, end = s->right ? 0 : n;
    bool leading = s->left;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = iv_utf8_decode((const uint8_t *)text + i, n - i, &cp);
        bool space = iv_charset_is_space(cp);
        i += len;
        if (leading && space) start = i;
        if (!space) leading = false;
        if (!space && s->right) end = i;
    }
    return end <= start || iv_buf_append(out, text + start, end - start);
}

static iv_status append_replaced(const iv_regex *re, iv_regex_work *work, iv_str content, const char *text, size_t n,
                                 iv_buf *out, iv_error *err) {
    iv_regex_scan scan = {0};
    size_t done = 0;
    for (bool found = n > 0; found;) {
        IV_TRY(iv_regex_next(re, work, text, n, &scan, &found, err));
        size_t upto = found ? scan.start : n;
        if (!iv_buf_append(out, text + done, upto - done)) return iv_text_full(out, upto - done, err);
        if (!found) break;
        if (!iv_buf_append(out, content.data, content.len)) return iv_text_full(out, content.len, err);
        done = scan.end;
    }
    return IV_OK;
}

static iv_status apply_step(const iv_normalizer *norm, size_t i, iv_regex_work *work, const char *text, size_t n,
                            iv_buf *out, iv_error *err) {
    const iv_normalizer_spec *s = &norm->steps[i];
    size_t most = 4; /* bytes of one append */
    bool ok = true;
    switch (s->kind) {
    case IV_NORMALIZE_NFC:
    case IV_NORMALIZE_NFD:
    case IV_NORMALIZE_NFKC:
    case IV_NORMALIZE_NFKD: return iv_unicode_normalize(s->kind, text, n, out, err);
    case IV_NORMALIZE_REPLACE: return append_replaced(norm->regexes[i], work, s->content, text, n, out, err);
    case IV_NORMALIZE_LOWERCASE: ok = append_lower(text, n, out); break;
    case IV_NORMALIZE_PREPEND:
        most = n + s->content.len;
        ok = n == 0 || (iv_buf_append(out, s->content.data, s->content.len) && iv_buf_append(out, text, n));
        break;
    case IV_NORMALIZE_STRIP:
        most = n;
        ok = append_stripped(s, text, n, out);
        break;
    }
    return ok ? IV_OK : iv_text_full(out, most, err);
}

iv_status iv_normalizer_apply(const iv_normalizer *norm, iv_regex_work *work, const char *text, size_t n, iv_buf *out,
                              iv_buf *spare, iv_error *err) {
    /* The last step must write to out, so the first writes to whichever buffer makes that come true. */
    for (size_t i = 0; i < norm->count; i++) {
        iv_buf *to = (norm->count - i) % 2 ? out : spare;
        iv_buf_clear(to);
        IV_TRY(apply_step(norm, i, work, text, n, to, err));
        text = to->data, n = to->len;
    }
    if (norm->count) return IV_OK;
    iv_buf_clear(out);
    return iv_buf_append(out, text, n) ? IV_OK : iv_text_full(out, n, err);
}
