/* digest.c: a thin wrapper of EVP. In libcrypto SHA-256 fails only for lack of memory, which is asserted. */
#include "base/digest.h"
#include "base/status.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct iv_digest {
    EVP_MD_CTX *ctx;
};

iv_digest *iv_digest_new(void) {
    iv_digest *d = malloc(sizeof *d);
    if (!d) return NULL;
    d->ctx = EVP_MD_CTX_new();
    if (!d->ctx || EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(d->ctx);
        free(d);
        return NULL;
    }
    return d;
}

void iv_digest_add(iv_digest *d, const void *bytes, size_t n) { IV_ASSERT(EVP_DigestUpdate(d->ctx, bytes, n) == 1); }

void iv_digest_finish(iv_digest *d, uint8_t out[32]) {
    IV_ASSERT(EVP_DigestFinal_ex(d->ctx, out, NULL) == 1);
    EVP_MD_CTX_free(d->ctx);
    free(d);
}

void iv_digest_of(const void *bytes, size_t n, uint8_t out[32]) {
    IV_ASSERT(EVP_Digest(bytes, n, out, NULL, EVP_sha256(), NULL) == 1);
}

void iv_digest_hex(const uint8_t digest[32], char out[65]) {
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[64] = 0;
}
