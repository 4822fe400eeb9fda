/* http.h: an HTTP/1.1 server on one thread, over libevent: connections, limits, routes, responses, event streams.
 * Knows nothing of models.
 *
 * What breaks the protocol is answered with 400 and the connection closed: two Content-Lengths, Content-Length beside
 * Transfer-Encoding, another coding than chunked, no Host, control bytes in the head, a bare line feed. What exceeds a
 * limit is 408, 413 or 431. Responses that begin are HTTP/1.1 with Content-Length, or chunked for streams. */
#ifndef IV_SERVE_HTTP_H
#define IV_SERVE_HTTP_H

#include "base/buf.h"
#include "base/status.h"

typedef struct iv_http iv_http;
typedef struct iv_http_request iv_http_request; /* one request and its response */

typedef enum iv_http_access {
    IV_HTTP_OPEN,           /* anybody: health */
    IV_HTTP_KEY,            /* the API key, if there is one */
    IV_HTTP_ADMIN,          /* the admin key; without one the route is off (403) */
    IV_HTTP_CACHE,          /* like ADMIN; with options.open_cache like KEY */
    IV_HTTP_ALWAYS = 1 << 4 /* beside one of these: also while the server drains, which does not wait for it */
} iv_http_access;

typedef struct iv_http_route {
    const char *method; /* "GET", "POST"; "*" for both */
    const char *path;   /* exact; a trailing slash in the request is ignored. A last "*" stands for any rest */
    unsigned access;    /* an iv_http_access, perhaps with IV_HTTP_ALWAYS */
    void (*handle)(void *user, iv_http_request *q); /* on the loop's thread; must not block */
} iv_http_route;

typedef struct iv_http_options {
    const char *host;                          /* "127.0.0.1"; of a name all addresses */
    uint16_t port;                             /* 0: any free one, see iv_http_port */
    const char *api_key, *admin_key;           /* NULL: none. Compared in constant time; "Authorization: Bearer KEY" */
    const char *api_key_file, *admin_key_file; /* instead: files of keys, see keys.h */
    bool open_cache;                           /* routes that can only make others wait, not change what they get */
    const char *allowed_origins; /* of web pages that may ask, beside its own: "*", or with commas; NULL: none.
                                  * A request that names another one is 403 */
    /* Names by which the server may be asked, next to localhost, *.localhost, `host` and addresses: with commas,
     * "*.NAME", "*"; NULL: no more. Requests by other names are 403, unless there is an API key: see http_host.c. */
    const char *allowed_hosts;
    size_t connections_max;        /* 4096; more are refused with 503 */
    size_t client_connections_max; /* of one address (of IPv6: its first 64 bits); more are 429. 0: no limit */
    size_t head_bytes_max;         /* 16 KiB */
    size_t body_bytes_max;         /* 8 MiB; --max-request-body */
    uint32_t head_ms, body_ms,
        idle_ms;             /* deadlines: 10 s for a head, 30 s for 8 MiB of a body, 65 s between requests */
    size_t stream_bytes_max; /* 256 KiB of a stream wait for a slow reader before it is full, ... */
    size_t unread_bytes_max; /* ... and more while no more than 64 MiB wait on all connections; --max-unread-bytes */
    uint32_t stall_ms;       /* 30 s in which a client reads nothing, and the rest of its answer is dropped */
    /* An answer was cut so: by q, or after it had ended (NULL). May be NULL. */
    void (*cut)(void *user, const iv_http_request *q, size_t dropped_bytes);
    void (*log)(void *user, const iv_http_request *q, int status, double seconds, size_t bytes); /* may be NULL */
} iv_http_options;

void iv_http_options_init(iv_http_options *o);

/* Binds and listens (backlog 4096) on every address that the host has, on one port. An address that this machine does
 * not have is passed over while there is another; one that is taken is an error. IV_IO names address and reason. */
iv_status iv_http_open(const iv_http_options *o, const iv_http_route *routes, size_t count, void *user, iv_http **out,
                       iv_error *err);
uint16_t iv_http_port(const iv_http *h);
/* The i-th address it listens on, as digits; false: there are no more. */
enum { IV_HTTP_LISTENERS_MAX = 16, IV_HTTP_ADDRESS_BYTES = 80 };
bool iv_http_address(const iv_http *h, size_t i, char out[IV_HTTP_ADDRESS_BYTES]);
/* Runs the loop until iv_http_stop. */
iv_status iv_http_run(iv_http *h, iv_error *err);
/* From the loop's thread: answers new requests with 503, ends when the requests that were open have ended or
 * deadline_ms passed. Then it calls `late` (may be NULL), which ends them, and allows a second for what that wrote to
 * be sent. */
void iv_http_drain(iv_http *h, uint32_t deadline_ms, void (*late)(void *user), void *user);
void iv_http_stop(iv_http *h); /* from any thread or a signal watcher: ends the loop now */
/* Open requests are told that they are gone. NULL is fine. */
void iv_http_close(iv_http *h);
size_t iv_http_connections(const iv_http *h);
/* As in the options, or as many as the limit of open files leaves room for. */
size_t iv_http_connections_max(const iv_http *h);
uint64_t iv_http_refused(const iv_http *h); /* connections that were one too many */
/* Reads the files of keys again; after an error all keys are as before. Counts of keys may be NULL. */
iv_status iv_http_read_keys(iv_http *h, size_t *api, size_t *admin, iv_error *err);
/* How often a client could not be taken in because no more files could be opened. It is, once that is possible. */
uint64_t iv_http_files_short(const iv_http *h);

/* Raises this process's limit of open files as far as it may and is wanted; IV_LIMIT if what there is would not do.
 * Part of iv_http_open; before it, for callers that will do much in between, and open files themselves. */
iv_status iv_http_check_files(size_t connections, size_t callers, iv_error *err);

/* Calls `ready` on the loop's thread whenever fd (an eventfd) is readable; the callee reads it. */
iv_status iv_http_watch(iv_http *h, int fd, void (*ready)(void *user), void *user, iv_error *err);
/* Calls `tick` every ms milliseconds. */
iv_status iv_http_every(iv_http *h, uint32_t ms, void (*tick)(void *user), void *user, iv_error *err);
/* Calls `caught` on the loop's thread for a signal. */
iv_status iv_http_signal(iv_http *h, int number, void (*caught)(void *user), void *user, iv_error *err);

/* ---- a request: strings live as long as the request. None of these calls calls back: handlers and on_gone run from
 * the loop alone. */
const char *iv_http_request_method(const iv_http_request *q);
const char *iv_http_request_path(const iv_http_request *q); /* decoded, without query and trailing slash */
const char *iv_http_request_query(const iv_http_request *q, const char *name); /* decoded; NULL when absent */
const char *iv_http_request_body(const iv_http_request *q, size_t *bytes);     /* NUL-terminated */
/* The body becomes the caller's, who may outlive the request; *out must be empty. q has none any more. */
void iv_http_request_take_body(iv_http_request *q, iv_buf *out);
const char *iv_http_request_id(const iv_http_request *q); /* q-request-id as given, or one that was made; sent back */

/* ---- a response: a reply, or a stream. The request is gone after reply, after stream_end, and after on_gone. */
/* Before it begins. Control bytes of the value become "?". */
void iv_http_request_add_header(iv_http_request *q, const char *name, const char *value);
void iv_http_request_reply(iv_http_request *q, int status, const char *type, const void *body, size_t bytes);
/* Begins a 200 in pieces (chunked). */
void iv_http_request_stream(iv_http_request *q, const char *type);
/* One more piece, whole events; sent with others once the caller is back in the loop. It is kept however slowly the
 * client reads. False: the client is gone, or no memory (on_gone will be called, unless q is ended before). */
bool iv_http_request_write(iv_http_request *q, const void *bytes, size_t n);
/* Its client reads slowly, and so much waits that the caller should write no more for now. Once true, `room` of
 * iv_http_request_on_room is called when most of it was read. */
bool iv_http_request_is_full(iv_http_request *q);
/* For streams, with the user of iv_http_request_on_gone; from the loop. stalled: the client has read nothing for
 * stall_ms; what waited was dropped from the next event on. The callee writes a last event and ends the stream. */
void iv_http_request_on_room(iv_http_request *q, void (*room)(void *user), void (*stalled)(void *user));
void iv_http_request_stream_end(iv_http_request *q);
/* Called once if the client leaves, or its stream is cut, before the response has ended; after it q must not be used.
 * Without it, q stays until it is answered, into the void.
 *
 * A client that has sent its request may end its side of the connection and wait for the answer (shutdown). One that is
 * gone (close) ends it too; what is sent to that one is answered with a reset. So a client that ends its side before
 * its response has begun gets a "100 Continue" at once; in a stream that has begun the next piece has that effect. To
 * an HTTP/1.0 client nothing may be sent before its response: that it is gone shows when the response is sent. */
void iv_http_request_on_gone(iv_http_request *q, void (*gone)(void *user), void *user);

/* ---- an request without a connection: a handler's request and reply inside the program */
typedef void iv_http_request_replied(void *user, int status, const void *body, size_t bytes);
/* A POST with this body (copied; also id, which is cut where it is too long). `replied` is called once, from the
 * handler or later; q is gone after it. It must not ask for a stream. NULL: no memory. */
iv_http_request *iv_http_request_local(const char *id, const void *body, size_t bytes, iv_http_request_replied *replied,
                                       void *user);
/* Before its reply: nobody wants it any more. As a client that leaves. */
void iv_http_request_local_drop(iv_http_request *q);

#endif
