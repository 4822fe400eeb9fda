/* base64.h: base64 (libcrypto), with padding and without line ends. */
#ifndef IV_BASE_BASE64_H
#define IV_BASE_BASE64_H

#include "base/buf.h"

typedef enum iv_base64 { IV_BASE64_OK, IV_BASE64_DAMAGED, IV_BASE64_NO_MEMORY } iv_base64;

/* Appends the bytes of a text; after an error *out is as before. */
iv_base64 iv_base64_decode(const char *text, size_t n, iv_buf *out);
bool iv_base64_encode(const void *bytes, size_t n, iv_buf *out); /* appends; false: no memory */

#endif
