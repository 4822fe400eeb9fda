/* http_head.h: the head of an HTTP/1.1 request, taken strictly: what two readers could understand differently is
 * refused, never repaired. Pure functions of bytes. */
#ifndef IV_SERVE_HTTP_HEAD_H
#define IV_SERVE_HTTP_HEAD_H

#include "base/status.h"

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

#endif
