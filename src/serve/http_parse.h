/* http_parse.h: the head of an HTTP/1.1 request, and a chunked body, parsed strictly. Anything that two readers could
 * understand differently is refused, never repaired. Pure functions of bytes. */
#ifndef IV_SERVE_HTTP_PARSE_H
#define IV_SERVE_HTTP_PARSE_H

#include "base/buf.h"
#include "base/status.h"

/* ---- the head ------------------------------------------------------------------------------------------ */

enum { IV_HTTP_FIELDS_MAX = 100, IV_HTTP_QUERY_MAX = 32, IV_HTTP_METHOD_BYTES_MAX = 16 };

typedef struct iv_http_pair {
    const char *name, *value;
} iv_http_pair;

/* Strings point into the text that was parsed. */
typedef struct iv_http_head {
    const char *method;
    const char *path; /* decoded, UTF-8 without control bytes, begins with "/"; "*" for OPTIONS */
    const char *host; /* with its port: of a target http://HOST/..., else Host's; NULL: neither, as HTTP/1.0 may */
    int minor;        /* HTTP/1.minor: 0 or 1 */
    iv_http_pair fields[IV_HTTP_FIELDS_MAX];
    iv_http_pair query[IV_HTTP_QUERY_MAX]; /* decoded */
    size_t field_count, query_count;
    bool keep_alive, expects_continue, chunked;
    size_t length; /* of the body by Content-Length, 0 without; SIZE_MAX if it does not fit */
} iv_http_head;

typedef enum iv_http_scanned { IV_HTTP_SCAN_MORE, IV_HTTP_SCAN_END, IV_HTTP_SCAN_BAD } iv_http_scanned;

/* Looks for the end of a head in n bytes, of which *scanned were looked at before; notes how far it came. END: *scanned
 * is the head's length with its empty line (2: there was an empty line before it, to be skipped). BAD, with *err: a
 * byte that no head has, seen as soon as it is there. */
iv_http_scanned iv_http_head_scan(const char *bytes, size_t n, size_t *scanned, iv_error *err);

/* Parses the n bytes that a scan found, in place. Returns 0, or the status to refuse it with and *err why. */
int iv_http_head_parse(char *text, size_t n, iv_http_head *head, iv_error *err);

/* The first field of that name, NULL if there is none. */
const char *iv_http_head_field(const iv_http_head *head, const char *name);

bool iv_http_is_token(const char *s); /* RFC 9110: what a method or a field's name may be */

/* ---- a chunked body ------------------------------------------------------------------------------------ */

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
