/* base64.c: libcrypto's block functions take an int: long texts go in pieces of whole groups. */
#include "base/base64.h"
#include "base/size.h"

#include <openssl/evp.h>
#include <string.h>

enum { GROUP = 4, BYTES = 3, PIECE_GROUPS = 1 << 20 };

iv_base64 iv_base64_decode(const char *text, size_t n, iv_buf *out) {
    size_t start = out->len, padding = 0;
    if (n % GROUP) return IV_BASE64_DAMAGED;
    while (padding < 2 && padding < n && text[n - 1 - padding] == '=') padding++;
    for (size_t i = 0; i < n; i++) { /* libcrypto skips white space */
        unsigned char c = (unsigned char)text[i];
        bool letter =
            (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
        if (!letter && i < n - padding) return IV_BASE64_DAMAGED;
    }
    if (!iv_buf_reserve(out, n / GROUP * BYTES + 1)) return IV_BASE64_NO_MEMORY;
    for (size_t at = 0, m; at < n; at += m) {
        m = iv_size_min(n - at, (size_t)PIECE_GROUPS * GROUP);
        int got = EVP_DecodeBlock((unsigned char *)out->data + out->len, (const unsigned char *)text + at, (int)m);
        if (got < 0) {
            out->len = start;
            return IV_BASE64_DAMAGED;
        }
        out->len += (size_t)got;
    }
    out->len -= padding;
    return IV_BASE64_OK;
}

bool iv_base64_encode(const void *bytes, size_t n, iv_buf *out) {
    size_t groups = n / BYTES + (n % BYTES != 0), room;
    if (!iv_size_mul(groups, GROUP, &room) || !iv_size_add(room, 1, &room) || !iv_buf_reserve(out, room)) return false;
    for (size_t at = 0, m; at < n; at += m) {
        m = iv_size_min(n - at, (size_t)PIECE_GROUPS * BYTES);
        out->len +=
            (size_t)EVP_EncodeBlock((unsigned char *)out->data + out->len, (const unsigned char *)bytes + at, (int)m);
    }
    return true;
}
