/* http.h: an HTTP/1.1 server on one thread, over libevent: connections, limits, routes, responses, event streams.
 * Independent of models.
 *
 * Protocol errors are answered with 400 and the connection closed: two Content-Lengths, Content-Length together with
 * Transfer-Encoding, a coding other than chunked, no Host, control bytes in the head, a bare line feed. Exceeded
 * limits are 408, 413 or 431. Responses are HTTP/1.1 with Content-Length, or chunked for streams. */
#ifndef IV_SERVE_HTTP_HTTP_H
#define IV_SERVE_HTTP_HTTP_H

#include "base/buf.h"
#include "base/status.h"

typedef struct iv_http iv_http;
typedef struct iv_http_request iv_http_request; /* one request and its response */

typedef enum iv_http_access {
    IV_HTTP_OPEN,           /* no key: health */
    IV_HTTP_KEY,            /* the API key, if there is one */
    IV_HTTP_ADMIN,          /* the admin key; without one the route is off (403), unless iv_http_control_is_open */
    IV_HTTP_CACHE,          /* like ADMIN; with options.open_cache like KEY */
    IV_HTTP_ALWAYS = 1 << 4 /* flag: also while the server drains; the drain does not wait for it */
} iv_http_access;

typedef struct iv_http_route {
    const char *method; /* "GET", "POST"; "*" for both */
    const char *path;   /* exact; a trailing slash in the request is ignored. A trailing "*" matches any rest */
    unsigned access;    /* an iv_http_access, perhaps with IV_HTTP_ALWAYS */
    void (*handle)(void *user, iv_http_request *q); /* on the loop's thread; must not block */
} iv_http_route;

typedef struct iv_http_options {
    const char *host;                          /* "127.0.0.1"; a name: all its addresses */
    uint16_t port;                             /* 0: any free one, see iv_http_port */
    const char *api_key, *admin_key;           /* NULL: none. Compared in constant time; "Authorization: Bearer KEY" */
    const char *api_key_file, *admin_key_file; /* instead: files of keys (iv_keys_read) */
    bool open_cache;                           /* routes that can only slow others down, not change their answers */
    const char *allowed_origins; /* allowed origins of web pages, besides the server's own: a comma-separated list or
                                    "*"; NULL: none. Requests from other origins are 403 */
    /* Host names of the server, besides localhost, *.localhost, `host` and addresses: a comma-separated list with
     * "*.NAME" or "*"; NULL: none. Requests for other names are 403, unless there is an API key: see admit.c. */
    const char *allowed_hosts;
    size_t connections_max;        /* 4096; more are refused with 503 */
    size_t client_connections_max; /* per address (IPv6: its first 64 bits); more are 429. 0: no limit */
    size_t head_bytes_max;         /* 16 KiB */
    size_t body_bytes_max;         /* 8 MiB; --max-request-body */
    uint32_t head_ms, body_ms,
        idle_ms;             /* deadlines: 10 s for a head, 30 s for 8 MiB of a body, 65 s between requests */
    size_t stream_bytes_max; /* 256 KiB of a stream are buffered for a slow reader before it is full, ... */
    size_t unread_bytes_max; /* ... and more while all connections buffer at most 64 MiB; --max-unread-bytes */
    uint32_t stall_ms;       /* 30 s without reading; then the rest of the answer is dropped */
    /* An answer was cut: of q, or after q had ended (NULL). May be NULL. */
    void (*cut)(void *user, const iv_http_request *q, size_t dropped_bytes);
    void (*log)(void *user, const iv_http_request *q, int status, double seconds, size_t bytes); /* may be NULL */
} iv_http_options;

void iv_http_options_init(iv_http_options *o);

/* Binds and listens (backlog 4096) on every address of the host, on one port. Addresses that this machine lacks are
 * skipped if another works; an address in use is an error. IV_IO names address and reason. */
iv_status iv_http_open(const iv_http_options *o, const iv_http_route *routes, size_t count, void *user, iv_http **out,
                       iv_error *err);
uint16_t iv_http_port(const iv_http *h);
/* The i-th listening address in numeric form; false: no more. */
enum { IV_HTTP_LISTENERS_MAX = 16, IV_HTTP_ADDRESS_BYTES = 80 };
bool iv_http_address(const iv_http *h, size_t i, char out[IV_HTTP_ADDRESS_BYTES]);
/* The server has no keys and listens at loopback addresses only: its programs may use IV_HTTP_ADMIN routes. */
bool iv_http_control_is_open(const iv_http *h);
/* Runs the loop until iv_http_stop. */
iv_status iv_http_run(iv_http *h, iv_error *err);
/* From the loop's thread: refuses new requests with 503, and ends when open requests have ended or deadline_ms
 * passed. Then calls `late` (may be NULL), which ends the remaining requests, and allows one second to send its
 * output. */
void iv_http_drain(iv_http *h, uint32_t deadline_ms, void (*late)(void *user), void *user);
void iv_http_stop(iv_http *h); /* from any thread or a signal handler: ends the loop now */
/* Handlers of open requests are notified through on_gone. NULL is fine. */
void iv_http_close(iv_http *h);
size_t iv_http_connections(const iv_http *h);
uint64_t iv_http_accepted(const iv_http *h); /* connections so far */
uint64_t iv_http_cut(const iv_http *h);      /* answers cut so far: see options.cut */
/* As in the options, or what the limit of open files allows. */
size_t iv_http_connections_max(const iv_http *h);
uint64_t iv_http_refused(const iv_http *h); /* connections refused because there were too many */
/* Takes keys, key files, allowed hosts and origins, open_cache, client_connections_max, body_bytes_max and
 * unread_bytes_max from these options, for requests from now on, and reads the key files. On an error nothing
 * changes. Strings are copied. */
iv_status iv_http_reload(iv_http *h, const iv_http_options *o, iv_error *err);
/* Reads the key files again; on an error all keys stay as before. Counts may be NULL. */
iv_status iv_http_read_keys(iv_http *h, size_t *api, size_t *admin, iv_error *err);
/* How often accepting failed because the process had no free file. It is retried. */
uint64_t iv_http_files_short(const iv_http *h);

/* Raises this process's limit of open files as needed and allowed; IV_LIMIT if it stays too low. iv_http_open calls
 * it; callers that do long work first, or open files, may call it earlier. callers: files they will open. */
iv_status iv_http_check_files(size_t connections, size_t callers, iv_error *err);

/* Calls `ready` on the loop's thread whenever fd (an eventfd) is readable; the callee reads it. */
iv_status iv_http_watch(iv_http *h, int fd, void (*ready)(void *user), void *user, iv_error *err);
/* Calls `tick` every ms milliseconds. */
iv_status iv_http_every(iv_http *h, uint32_t ms, void (*tick)(void *user), void *user, iv_error *err);
/* Calls `caught` on the loop's thread for a signal. */
iv_status iv_http_signal(iv_http *h, int number, void (*caught)(void *user), void *user, iv_error *err);

/* ---- a request: strings live as long as the request. These calls never call back: handlers and on_gone run from the
 * loop only.  */
const char *iv_http_request_method(const iv_http_request *q);
const char *iv_http_request_path(const iv_http_request *q); /* decoded, without query and trailing slash */
const char *iv_http_request_query(const iv_http_request *q, const char *name); /* decoded; NULL when absent */
const char *iv_http_request_body(const iv_http_request *q, size_t *bytes);     /* NUL-terminated */
/* Moves the body to the caller, who may outlive the request; *out must be empty. */
void iv_http_request_take_body(iv_http_request *q, iv_buf *out);
const char *iv_http_request_id(const iv_http_request *q);        /* x-request-id as given, or generated; sent back */
const char *iv_http_request_route(const iv_http_request *q);     /* iv_http_route.path; NULL: none was found */
const char *iv_http_request_client(const iv_http_request *q);    /* its address, without the port; "": unknown */
const char *iv_http_request_forwarded(const iv_http_request *q); /* X-Forwarded-For as sent; NULL: none */

/* What an answer was, for the log. */
typedef struct iv_http_answer {
    size_t prompt_tokens, completion_tokens;
    const char *finish; /* a constant; NULL: no answer of a model */
} iv_http_answer;
void iv_http_request_note_answer(iv_http_request *q, const iv_http_answer *a);
const iv_http_answer *iv_http_request_answer(const iv_http_request *q);

/* ---- a response: a reply, or a stream. The request is freed after reply, after stream_end, and after on_gone.  */
/* Before the response begins. Control bytes of the value become "?". */
void iv_http_request_add_header(iv_http_request *q, const char *name, const char *value);
void iv_http_request_reply(iv_http_request *q, int status, const char *type, const void *body, size_t bytes);
/* Begins a chunked 200. */
void iv_http_request_stream(iv_http_request *q, const char *type);
/* Appends whole events, sent once the caller is back in the loop. They are buffered however slowly the client reads.
 * False: the client is gone, or no memory (on_gone will be called, unless q is ended before). */
bool iv_http_request_write(iv_http_request *q, const void *bytes, size_t n);
/* The client reads slowly and the caller should write no more for now. After true, `space` of iv_http_request_on_space
 * is called when most of the buffer was read. */
bool iv_http_request_is_full(iv_http_request *q);
/* For streams, called from the loop with the user of iv_http_request_on_gone. stalled: the client has read nothing
 * for stall_ms; buffered events after the current one were dropped. The callee writes a last event and ends the
 * stream. */
void iv_http_request_on_space(iv_http_request *q, void (*space)(void *user), void (*stalled)(void *user));
void iv_http_request_stream_end(iv_http_request *q);
/* Called once if the client leaves, or its stream is cut, before the response has ended; q is invalid afterwards.
 * Without it, q lives until it is answered, and the answer is dropped.
 *
 * A client that has sent its request may shut down its side of the connection and wait for the answer. A closed
 * client looks the same, until data sent to it is answered with a reset. So a client that ends its side before its
 * response has begun gets a "100 Continue" at once; in a stream the next event has that effect. An HTTP/1.0 client
 * may receive nothing before its response: its loss is found when the response is sent. */
void iv_http_request_on_gone(iv_http_request *q, void (*gone)(void *user), void *user);

/* ---- a request without a connection: a handler called inside the program ------------------------------ */
typedef void iv_http_request_replied(void *user, int status, const void *body, size_t bytes);
/* A POST of this body to a path, a constant. Body and id are copied; a long id is truncated. `replied` is called once,
 * from the handler or later; q is freed after it. Streams are not allowed. NULL: no memory. */
iv_http_request *iv_http_request_local(const char *path, const char *id, const void *body, size_t bytes,
                                       iv_http_request_replied *replied, void *user);
/* Before its reply: the result is no longer needed. Like a client that leaves. */
void iv_http_request_local_drop(iv_http_request *q);

#endif
