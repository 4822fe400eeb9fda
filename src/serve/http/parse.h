/* parse.h: the head of an HTTP/1.1 request, and a chunked body, parsed strictly. Anything that two readers could
 * understand differently is refused, never repaired. Pure functions of bytes. */
#ifndef IV_SERVE_HTTP_PARSE_H
#define IV_SERVE_HTTP_PARSE_H

#include "base/buf.h"
#include "base/status.h"

/* ---- the head ----------------------------------------------------------------------------------------- */

enum { IV_HTTP_FIELDS_MAX = 100, IV_HTTP_QUERY_MAX = 32, IV_HTTP_METHOD_BYTES_MAX = 16 };

typedef struct iv_http_pair {
    const char *name, *value;
} iv_http_pair;

/* Strings point into the text that was parsed. */
typedef struct iv_http_head {
    const char *method;
    const char *path; /* decoded, UTF-8 without control bytes, begins with "/"; "*" for OPTIONS */
    const char *host; /* with its port: of a target http://HOST/..., else of Host; NULL: neither, as HTTP/1.0 allows */
    int minor;        /* HTTP/1.minor: 0 or 1 */
    iv_http_pair fields[IV_HTTP_FIELDS_MAX];
    iv_http_pair query[IV_HTTP_QUERY_MAX]; /* decoded */
    size_t field_count, query_count;
    bool keep_alive, expects_continue, chunked;
    size_t length; /* of the body by Content-Length, 0 without; SIZE_MAX if it does not fit */
} iv_http_head;

typedef enum iv_http_scanned { IV_HTTP_SCAN_MORE, IV_HTTP_SCAN_END, IV_HTTP_SCAN_BAD } iv_http_scanned;

/* Finds the end of a head in n bytes, of which *scanned are already examined, and updates *scanned. END: *scanned is
 * the head's length with its empty line (2: an empty line before the head, to be skipped). BAD, with *err: a byte
 * that is not allowed, found as soon as it arrives. */
iv_http_scanned iv_http_head_scan(const char *bytes, size_t n, size_t *scanned, iv_error *err);

/* Parses the n bytes of a scanned head, in place. Returns 0, or the HTTP status of the refusal and *err. */
int iv_http_head_parse(char *text, size_t n, iv_http_head *head, iv_error *err);

/* The first field of that name; NULL if absent. */
const char *iv_http_head_field(const iv_http_head *head, const char *name);

bool iv_http_is_token(const char *s); /* RFC 9110: a valid method or field name */

/* ---- a chunked body ----------------------------------------------------------------------------------- */

enum { IV_HTTP_CHUNK_LINE_MAX = 256, IV_HTTP_TRAILER_BYTES_MAX = 4096 };

typedef struct iv_http_chunks {
    int state;
    size_t left;    /* of the current chunk; in a size line: its size so far */
    size_t line;    /* bytes of the current line */
    size_t trailer; /* bytes after the last chunk */
} iv_http_chunks;

/* Takes up to n bytes, appends their data to *body (at most body_max) and sets *used. Returns 0, with *done at the
 * body's end, or the HTTP status of the refusal and *err. Zero-initialise *c. */
int iv_http_chunks_feed(iv_http_chunks *c, const char *bytes, size_t n, iv_buf *body, size_t body_max, size_t *used,
                        bool *done, iv_error *err);

/* The refusal of a body longer than body_max, of known or chunked length; or_more: the rest was not read. Returns
 * 413. */
int iv_http_body_too_long(size_t body_max, size_t found, bool or_more, iv_error *err);

#endif
