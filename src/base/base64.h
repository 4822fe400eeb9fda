/* base64.h: base64 (libcrypto), with padding and without line ends. */
#ifndef IV_BASE_BASE64_H
#define IV_BASE_BASE64_H

#include "base/buf.h"

bool iv_base64_encode(const void *bytes, size_t n, iv_buf *out); /* appends; false: no memory */

#endif
