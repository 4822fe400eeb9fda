/* buf.c: growable arrays of bytes and of token ids: doubling growth, for bytes with an optional ceiling. */
#include "base/buf.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

bool iv_buf_reserve(iv_buf *buf, size_t extra) {
    size_t need, with_nul;
    if (!iv_size_add(buf->len, extra, &need) || !iv_size_add(need, 1, &with_nul)) return false;
    if (buf->limit && need > buf->limit) return false;
    if (with_nul <= buf->cap) return true;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < with_nul)
        if (!iv_size_mul(cap, 2, &cap)) return false;
    if (buf->limit && cap > buf->limit) cap = buf->limit + 1;
    char *data = realloc(buf->data, cap);
    if (!data) return false;
    buf->data = data;
    buf->cap = cap;
    buf->data[buf->len] = 0;
    return true;
}

bool iv_buf_append(iv_buf *buf, const void *bytes, size_t n) {
    if (!iv_buf_reserve(buf, n)) return false;
    if (n) memcpy(buf->data + buf->len, bytes, n);
    buf->len += n;
    buf->data[buf->len] = 0;
    return true;
}

bool iv_buf_puts(iv_buf *buf, const char *s) { return iv_buf_append(buf, s, strlen(s)); }
bool iv_buf_putc(iv_buf *buf, char c) { return iv_buf_append(buf, &c, 1); }

bool iv_buf_printf(iv_buf *buf, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    bool ok = n >= 0 && iv_buf_reserve(buf, (size_t)n);
    if (ok) {
        vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, again);
        buf->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
    return ok;
}

void iv_buf_clear(iv_buf *buf) {
    buf->len = 0;
    if (buf->data) buf->data[0] = 0;
}

void iv_buf_free(iv_buf *buf) {
    free(buf->data);
    *buf = (iv_buf){.limit = buf->limit};
}

/* ---- token ids ---- */

bool iv_ids_reserve(iv_ids *ids, size_t extra) {
    size_t need, bytes, cap = ids->capacity ? ids->capacity : 64;
    if (!iv_size_add(ids->count, extra, &need)) return false;
    if (need <= ids->capacity) return true;
    while (cap < need)
        if (!iv_size_mul(cap, 2, &cap)) return false;
    if (!iv_size_mul(cap, sizeof *ids->data, &bytes)) return false;
    int32_t *data = realloc(ids->data, bytes);
    if (!data) return false;
    ids->data = data;
    ids->capacity = cap;
    return true;
}

bool iv_ids_push(iv_ids *ids, int32_t id) {
    if (ids->count == ids->capacity && !iv_ids_reserve(ids, 1)) return false;
    ids->data[ids->count++] = id;
    return true;
}

bool iv_ids_append(iv_ids *ids, const int32_t *from, size_t n) {
    if (!iv_ids_reserve(ids, n)) return false;
    if (n) memcpy(ids->data + ids->count, from, n * sizeof *from);
    ids->count += n;
    return true;
}

void iv_ids_free(iv_ids *ids) {
    free(ids->data);
    *ids = (iv_ids){0};
}
