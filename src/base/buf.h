/* buf.h: a growable byte string. data is NUL-terminated after every successful call (the NUL is not counted). */
#ifndef IV_BASE_BUF_H
#define IV_BASE_BUF_H

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

#endif
