/* http_chunks.h: a chunked request body, piece by piece, taken strictly. A pure function of bytes. */
#ifndef IV_SERVE_HTTP_CHUNKS_H
#define IV_SERVE_HTTP_CHUNKS_H

#include "base/buf.h"
#include "base/status.h"

enum { IV_HTTP_CHUNK_LINE_MAX = 256, IV_HTTP_TRAILER_BYTES_MAX = 4096 };

typedef struct iv_http_chunks {
    int state;
    size_t left;    /* of the chunk being read; while its line is read: its size so far */
    size_t line;    /* bytes of the line so far */
    size_t trailer; /* bytes after the last chunk */
} iv_http_chunks;

/* Takes bytes from n, appends what they carry to *body (at most body_max) and counts what it took in *used. Returns 0
 * and *done once the body has ended, or the status to refuse it with and *err. Zero-initialise *c. */
int iv_http_chunks_feed(iv_http_chunks *c, const char *bytes, size_t n, iv_buf *body, size_t body_max, size_t *used,
                        bool *done, iv_error *err);

/* What a body is refused with that is longer than body_max, by either way of telling its length; or_more: the rest was
 * not looked at. Returns 413. */
int iv_http_body_too_long(size_t body_max, size_t found, bool or_more, iv_error *err);

#endif
