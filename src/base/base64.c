/* base64.c: libcrypto's block functions take an int: long texts go in pieces of whole groups. */
#include "base/base64.h"
#include "base/size.h"

#include <openssl/evp.h>

enum { GROUP = 4, BYTES = 3, PIECE_GROUPS = 1 << 20 };

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
