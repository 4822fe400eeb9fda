/* buf.h: a growable byte string, and growth of the public iv_ids. */
#ifndef IV_BASE_BUF_H
#define IV_BASE_BUF_H

#include "invar_status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct iv_buf {
    char *data; /* owned; NULL while empty and never grown */
    size_t len, cap;
    size_t limit; /* maximum len, 0 means none */
} iv_buf;

/* Each returns false when memory is out or the limit would be passed; the buffer is then unchanged. */
bool iv_buf_reserve(iv_buf *buf, size_t extra);
bool iv_buf_append(iv_buf *buf, const void *bytes, size_t n);
bool iv_buf_puts(iv_buf *buf, const char *s);
bool iv_buf_putc(iv_buf *buf, char c);
bool iv_buf_printf(iv_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void iv_buf_clear(iv_buf *buf); /* keeps the memory */
void iv_buf_free(iv_buf *buf);

/* ---- token ids ---- */

/* False when memory is out; the array is then unchanged. */
bool iv_ids_reserve(iv_ids *ids, size_t extra);
bool iv_ids_push(iv_ids *ids, int32_t id);
bool iv_ids_append(iv_ids *ids, const int32_t *from, size_t n);

#endif
