/* digest.h: SHA-256 (libcrypto). */
#ifndef IV_BASE_DIGEST_H
#define IV_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

typedef struct iv_digest iv_digest; /* a running hash */

iv_digest *iv_digest_new(void); /* NULL when memory is out */
void iv_digest_add(iv_digest *d, const void *bytes, size_t n);
void iv_digest_finish(iv_digest *d, uint8_t out[32]); /* also frees d */

void iv_digest_of(const void *bytes, size_t n, uint8_t out[32]);
void iv_digest_hex(const uint8_t digest[32], char out[65]); /* lower case, NUL-terminated */

#endif
