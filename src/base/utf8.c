/* utf8.c: the well-formed byte sequences of Unicode 15, table 3-7. */
#include "base/utf8.h"

#include <string.h>

/* Lead byte -> length and the permitted range of the second byte. */
static size_t lead(uint8_t c, uint8_t *low, uint8_t *high) {
    *low = 0x80, *high = 0xbf;
    if (c < 0x80) return 1;
    if (c < 0xc2) return 0;
    if (c < 0xe0) return 2;
    if (c < 0xf0) {
        if (c == 0xe0) *low = 0xa0;
        if (c == 0xed) *high = 0x9f;
        return 3;
    }
    if (c > 0xf4) return 0;
    if (c == 0xf0) *low = 0x90;
    if (c == 0xf4) *high = 0x8f;
    return 4;
}

/* The length that the lead byte announces, 0 if the sequence is malformed; *have: how many of the n bytes fit it. */
static size_t scan(const uint8_t *s, size_t n, size_t *have) {
    uint8_t low, high;
    *have = 0;
    if (n == 0) return 0;
    size_t want = lead(s[0], &low, &high);
    if (want == 0) return 0;
    *have = 1;
    while (*have < want && *have < n) {
        uint8_t c = s[*have];
        bool fits = *have == 1 ? c >= low && c <= high : c >= 0x80 && c <= 0xbf;
        if (!fits) return 0;
        ++*have;
    }
    return want;
}

size_t iv_utf8_length(const uint8_t *s, size_t n) {
    size_t have, want = scan(s, n, &have);
    return have == want ? want : 0;
}

bool iv_utf8_is_partial(const uint8_t *s, size_t n) {
    size_t have, want = scan(s, n, &have);
    return want > 0 && have == n && have < want;
}

size_t iv_utf8_decode(const uint8_t *s, size_t n, uint32_t *cp) {
    size_t len = iv_utf8_length(s, n);
    static const uint8_t mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    if (len == 0) return 0;
    uint32_t v = s[0] & mask[len];
    for (size_t i = 1; i < len; i++) v = v << 6 | (s[i] & 0x3f);
    *cp = v;
    return len;
}

size_t iv_utf8_encode(uint32_t cp, uint8_t out[4]) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t mark[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len - 1; i > 0; i--, cp >>= 6) out[i] = (uint8_t)(0x80 | (cp & 0x3f));
    out[0] = (uint8_t)(mark[len] | cp);
    return len;
}

bool iv_utf8_valid(const uint8_t *s, size_t n, size_t *bad) {
    for (size_t i = 0; i < n;) {
        size_t len = iv_utf8_length(s + i, n - i);
        if (len == 0) {
            if (bad) *bad = i;
            return false;
        }
        i += len;
    }
    return true;
}

size_t iv_utf8_mark(const char *s, size_t n) { return n >= 3 && memcmp(s, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; }
