/* normalize.c: the normalizer's steps. NFC, NFD, NFKC and NFKD are computed over utf8proc, held at Unicode 9, the
 * version of the reference.
 *
 * utf8proc orders combining marks by swapping neighbours (quadratic in a long run of marks), and it knows later marks
 * and decompositions. Therefore characters are decomposed one by one, runs of marks are sorted by counting, and
 * characters that Unicode 9 does not have are inert: they pass through and nothing combines across them. */
#include "text/normalize.h"
#include "base/size.h"
#include "base/utf8.h"
#include "text/charset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Unicode normalization ---- */

enum { DECOMPOSED_MAX = 32 }; /* of one character; the maximum in Unicode is 18 */

typedef struct codes {
    int32_t *data;
    size_t len, cap;
} codes;

static bool codes_reserve(codes *c, size_t extra) {
    size_t need, bytes, cap = c->cap ? c->cap : 256;
    if (!iv_size_add(c->len, extra, &need)) return false;
    if (need <= c->cap) return true;
    while (cap < need)
        if (!iv_size_mul(cap, 2, &cap)) return false;
    if (!iv_size_mul(cap, sizeof *c->data, &bytes)) return false;
    int32_t *data = realloc(c->data, bytes);
    if (!data) return false;
    c->data = data, c->cap = cap;
    return true;
}

/* Ranges with every character newer than Unicode 9 that utf8proc decomposes, composes or orders (up to Unicode 16);
 * other characters in them have no such property in Unicode 9. */
static bool is_inert(uint32_t cp) {
    static const uint32_t ranges[][2] = {
        {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
        {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
        {0x32ff, 0x32ff},   {0xa7f1, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x105c0, 0x105ff},
        {0x10780, 0x107bf}, {0x10d24, 0x10d27}, {0x10d40, 0x10d8f}, {0x10eab, 0x10eac}, {0x10efa, 0x10eff},
        {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11380, 0x113ff},
        {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11900, 0x1195f}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
        {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
        {0x11f41, 0x11f42}, {0x16100, 0x1613f}, {0x16d40, 0x16d7f}, {0x16ff0, 0x16ff1}, {0x1ccd6, 0x1ccf9},
        {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
        {0x1e4ec, 0x1e4ef}, {0x1e5d0, 0x1e5ff}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
    size_t low = 0, high = sizeof ranges / sizeof *ranges;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > ranges[mid][1])
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof ranges / sizeof *ranges && cp >= ranges[low][0];
}

static unsigned combining_class(int32_t cp) {
    return cp < 0x300 ? 0 : (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* A stable sort by class of the n marks at c (no starters among them): by insertion when short, else by
 * counting. */
static bool sort_marks(int32_t *c, size_t n) {
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t cp = c[i];
            unsigned ccc = combining_class(cp);
            size_t j = i;
            for (; j > 0 && combining_class(c[j - 1]) > ccc; j--) c[j] = c[j - 1];
            c[j] = cp;
        }
        return true;
    }
    size_t first[257] = {0};
    int32_t *sorted = malloc(n * sizeof *sorted); /* n fits: as many are held in codes */
    if (!sorted) return false;
    for (size_t i = 0; i < n; i++) first[combining_class(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++) first[k] += first[k - 1];
    for (size_t i = 0; i < n; i++) sorted[first[combining_class(c[i])]++] = c[i];
    memcpy(c, sorted, n * sizeof *sorted);
    free(sorted);
    return true;
}

/* Orders, composes and writes the characters between two inert ones. */
static bool flush(codes *c, bool compose, iv_buf *out) {
    size_t len = c->len;
    for (size_t i = 0; i < c->len;) {
        size_t start = i;
        while (i < c->len && combining_class(c->data[i])) i++;
        if (i - start > 1 && !sort_marks(c->data + start, i - start)) return false;
        if (i == start) i++;
    }
    if (compose && len) {
        utf8proc_ssize_t n =
            utf8proc_normalize_utf32(c->data, (utf8proc_ssize_t)len, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        IV_ASSERT(n >= 0 && (size_t)n <= len);
        len = (size_t)n;
    }
    for (size_t i = 0; i < len; i++) {
        uint8_t bytes[4];
        if (!iv_buf_append(out, bytes, iv_utf8_encode((uint32_t)c->data[i], bytes))) return false;
    }
    c->len = 0;
    return true;
}

static bool normalize(iv_normalizer_kind form, const uint8_t *text, size_t n, codes *c, iv_buf *out) {
    bool compose = form == IV_NORMALIZE_NFC || form == IV_NORMALIZE_NFKC;
    bool compat = form == IV_NORMALIZE_NFKC || form == IV_NORMALIZE_NFKD;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = iv_utf8_decode(text + i, n - i, &cp);
        if (is_inert(cp)) {
            if (!flush(c, compose, out) || !iv_buf_append(out, text + i, len)) return false;
        } else {
            if (!codes_reserve(c, DECOMPOSED_MAX)) return false;
            int boundary = 0;
            utf8proc_ssize_t k =
                utf8proc_decompose_char((utf8proc_int32_t)cp, c->data + c->len, DECOMPOSED_MAX, options, &boundary);
            IV_ASSERT(k >= 0 && k <= DECOMPOSED_MAX);
            c->len += (size_t)k;
        }
        i += len;
    }
    return flush(c, compose, out);
}

iv_status iv_unicode_normalize(iv_normalizer_kind form, const char *text, size_t n, iv_buf *out, iv_error *err) {
    /* ASCII is normalized in all four forms; characters below U+0300 are normalized in NFC. */
    uint8_t bound = form == IV_NORMALIZE_NFC ? 0xcc : 0x80;
    size_t plain = 0;
    while (plain < n && (uint8_t)text[plain] < bound) plain++;
    if (plain == n) return iv_buf_append(out, text, n) ? IV_OK : iv_text_full(out, n, err);
    codes c = {0};
    bool ok = normalize(form, (const uint8_t *)text, n, &c, out);
    free(c.data);
    return ok ? IV_OK : iv_text_full(out, 4, err);
}

/* ---- all steps ---- */

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

/* Letters whose lower case is newer than utf8proc's Unicode 15; the caller handles the one that lowers to two
 * characters. */
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
    /* The last step must write to out; the first buffer is chosen accordingly. */
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
