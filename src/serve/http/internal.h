/* internal.h: the shared structs of the HTTP server: the server, its connections, their requests. Calls go one
 * way: http_listen and http -> http_serve -> http_admit -> http_request -> http_connection.
 *
 * Invariants: a connection has one request at a time; its answer is sent before the next request is read, so answers
 * are in order and output is bounded by one answer. Functions called by handlers never call back: callbacks of the
 * user run from the loop only. A connection is freed only by the loop, a request only when it ends. */
#ifndef IV_SERVE_HTTP_INTERNAL_H
#define IV_SERVE_HTTP_INTERNAL_H

#include "base/buf.h"
#include "serve/http/http.h"
#include "serve/http/parse.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/socket.h>

enum {
    IV_HTTP_BACKLOG = 4096,
    IV_HTTP_PACE_BYTES = 8 << 20,    /* body_ms is allowed per this many bytes of a long body */
    IV_HTTP_READ_BYTES = 64 << 10,   /* per read */
    IV_HTTP_UNSENT_BYTES = 64 << 10, /* limit of unsent bytes in the kernel per client */
    IV_HTTP_KEEP_BYTES = 16 << 10,   /* larger buffers are freed when they are empty */
    IV_HTTP_REFUSALS_MAX = 512,      /* upper bound of iv_http.refusals_max */
    IV_HTTP_LINGER_MS = 1000, /* a refused client may still be sending: its bytes are read and dropped this long */
    IV_HTTP_CROWDED_LINGER_MS = 200, /* when half of refusals_max are used */
    IV_HTTP_CLIENT_BUCKETS = 4096,   /* size of the clients' hash table */
    IV_HTTP_LATE_MS = 1000,          /* after a drain's deadline, to send the last events */
    IV_HTTP_LOOK_MS = 200,           /* while reading is paused: interval of checks whether the client is gone ... */
    IV_HTTP_FIRST_LOOK_MS = 5,       /* ... and the first check after it ended its side */
    IV_HTTP_ACCEPT_RETRY_MS = 100,   /* after running out of files */
    IV_HTTP_ID_BYTES_MAX = 128,
    IV_HTTP_CLIENT_BYTES = 46 /* of an IPv6 address */
};
/* Bodies of open requests and input read ahead, on all connections; bodies beyond it are refused with 503. One body
 * of the greatest length fits next to what is read ahead. */
#define IV_HTTP_INPUT_BYTES_MAX ((size_t)1 << 30)
#define IV_HTTP_BODY_BYTES_MAX (IV_HTTP_INPUT_BYTES_MAX / 2)

/* API keys: one key, or those of a file, which may be read again. Only digests are kept. */
enum { IV_KEYS_MAX = 64 };

typedef struct iv_keys {
    size_t count; /* 0: no keys */
    uint8_t digests[IV_KEYS_MAX][32];
} iv_keys;

typedef enum iv_connection_state {
    IV_CONNECTION_HEAD,   /* waits for a head */
    IV_CONNECTION_BODY,   /* has a head, waits for the body */
    IV_CONNECTION_HANDLE, /* the handler owns the request */
    IV_CONNECTION_FLUSH,  /* the request has ended; its last bytes are being sent */
    IV_CONNECTION_LINGER, /* the answer is sent; drops further input */
    IV_CONNECTION_DEAD    /* closed; freed by the loop */
} iv_connection_state;

typedef struct iv_http_client iv_http_client; /* an address with connections */

typedef struct iv_connection iv_connection;
struct iv_connection {
    iv_http *http;
    iv_connection *next, *previous; /* list of all */
    iv_connection *next_work;
    int fd;
    iv_connection_state state;
    bool queued;       /* in http->work */
    bool serving;      /* inside iv_connection_serve */
    bool begun;        /* the first byte of the head has come */
    bool refused;      /* over a limit: gets an error and is closed */
    bool paused;       /* not reading: the input buffer is full */
    bool ended;        /* the client has shut down its side */
    bool closing;      /* close after the answer */
    bool late;         /* its request came during the drain */
    bool cut;          /* its client has read nothing for too long and gets a last event */
    bool unread;       /* closing with unread bytes of the request */
    uint64_t since;    /* time of the last state change, milliseconds */
    uint64_t ended_at; /* when the client ended its side */
    uint64_t progress; /* time of the last send, or of the first unsent byte */
    uint64_t armed;    /* time of the timer; 0: off */
    iv_buf in, out;
    size_t in_at, scanned; /* in_at: consumed of in; scanned: examined since in_at */
    size_t in_counted;     /* counted in http->input_bytes */
    size_t out_at;         /* sent bytes of out */
    size_t out_counted;    /* counted in http->unread_bytes */
    iv_http_request *request;
    iv_http_client *client; /* NULL: not counted */
    char address[IV_HTTP_CLIENT_BYTES];
    struct event reading, writing, timer;
};

struct iv_http_request {
    iv_http *http;
    iv_connection *connection;        /* NULL: the client left or was cut */
    iv_http_request *next, *previous; /* of all */
    iv_http_request *next_gone;
    char *text; /* storage of head */
    iv_http_head head;
    const iv_http_route *route;
    iv_buf body;
    size_t body_left;
    size_t body_taken; /* counted in http->input_bytes until the request ends */
    iv_http_chunks chunks;
    iv_buf fields; /* added by the handler */
    char id[IV_HTTP_ID_BYTES_MAX + 1];
    char client[IV_HTTP_CLIENT_BYTES];
    iv_http_answer answer;
    bool handled, streaming, in_chunks, gone_queued; /* handled: passed to its handler */
    bool probed;                                     /* the client ended its side and was sent a 100 */
    int status;                                      /* 0: the response has not begun */
    uint64_t began;                                  /* microseconds */
    size_t sent;                                     /* bytes of the response body */
    bool full;                                       /* iv_http_request_is_full returned true */
    void (*gone)(void *user);
    void (*space)(void *user);
    void (*stall)(void *user);
    void *gone_user;
    iv_http_request_replied *replied; /* without a connection: http and connection are NULL */
    void *replied_user;
};

typedef struct iv_http_watcher iv_http_watcher;
struct iv_http_watcher {
    struct event *event;
    void (*call)(void *user);
    void *user;
    iv_http_watcher *next;
};

struct iv_http {
    iv_http_options o; /* its strings are not kept, except these */
    char *host, *allowed_hosts, *allowed_origins;
    char *api_key_file, *admin_key_file;
    iv_keys api_keys, admin_keys;
    bool loopback; /* all listening addresses are */
    const iv_http_route *routes;
    size_t route_count;
    void *user;
    struct event_base *base;
    struct {
        int fd;
        struct event *accepting;
    } listeners[IV_HTTP_LISTENERS_MAX];
    size_t listener_count;
    int waker;
    struct event *accept_again, *waking, *working, *drain_end;
    iv_http_watcher *watchers;
    iv_connection *connections, *work;
    iv_http_request *requests, *gone;
    size_t connection_count, input_bytes;
    size_t unread_bytes;  /* unsent bytes of all connections */
    size_t refused_count; /* connections being refused, of connection_count */
    size_t refusals_max;  /* concurrent connections; further clients wait in the backlog */
    bool accept_paused;
    uint64_t accepted_total, refused_total, cut_total, files_short;
    iv_http_client *clients[IV_HTTP_CLIENT_BUCKETS];
    uint64_t client_seed;
    bool draining, drain_passed;
    void (*drain_late)(void *user); /* NULL: none, or already called */
    void *drain_user;
    char *scratch; /* IV_HTTP_READ_BYTES */
    uint64_t id_state;
    int64_t date_at;
    char date[32];
};

/* ---- connection.c: records; calls nothing above it */
uint64_t iv_http_now_us(void);
static inline uint64_t iv_http_now_ms(void) { return iv_http_now_us() / 1000; }
/* Schedules the loop's work: queued connections and lost clients. */
static inline void iv_http_wake_work(iv_http *h) { event_active(h->working, EV_TIMEOUT, 0); }

void iv_http_client_address(const struct sockaddr *from, char out[IV_HTTP_CLIENT_BYTES]); /* NULL: "" */
/* Counts a connection of the address; false: it has too many. *out may be NULL: uncounted. */
bool iv_http_client_enter(iv_http *h, const struct sockaddr *from, iv_http_client **out);

iv_http_request *iv_http_request_new(iv_connection *c);
void iv_http_request_end(iv_http_request *q);        /* the answer is complete: frees q, keeps the connection */
void iv_http_request_queue_gone(iv_http_request *q); /* if the client has left and the handler is to be notified */
void iv_http_request_call_gone(iv_http_request *q);  /* from the loop; frees it */

bool iv_http_has_capacity(const iv_http *h); /* for another connection, if only to refuse it */
void iv_http_begin_accepting(iv_http *h);

void iv_connection_queue(iv_connection *c); /* schedules iv_connection_serve */
bool iv_connection_flush(iv_connection *c); /* sends what the socket takes; false: the client is gone */
void iv_connection_lose(iv_connection *c, bool reset);
void iv_connection_free(iv_connection *c);
static inline size_t iv_connection_waiting(const iv_connection *c) { return c->out.len - c->out_at; }
/* Updates http->unread_bytes after out or out_at have changed. */
void iv_connection_count_output(iv_connection *c);
/* A drain waits for it: its request or answer is incomplete. */
bool iv_connection_busy(const iv_connection *c);

/* ---- request.c */
void iv_http_request_take_id(iv_http_request *q); /* the client's x-request-id, once the head is parsed */
/* Whether the list of origins has it. */
bool iv_http_origin_allowed(const char *allowed, const char *origin);
/* Answers with the error's JSON. unread: the request was not read to its end, so the connection closes. */
void iv_http_request_refuse(iv_http_request *q, int status, bool unread, const char *message);
void iv_http_request_call_space(iv_http_request *q);   /* from the loop: if most of the buffer was read */
void iv_http_request_call_stalled(iv_http_request *q); /* from the loop: its client has read nothing for too long */

/* ---- admit.c */
/* Adds a key: visible ASCII without spaces. `where` prefixes errors. */
iv_status iv_keys_add(iv_keys *keys, const char *key, const char *where, iv_error *err);
/* Replaces the keys by those of a file, one a line; empty lines and lines beginning with # are skipped. A file
 * without keys is an error, because it would disable authentication. On an error the keys stay as before. */
iv_status iv_keys_read(iv_keys *keys, const char *path, iv_error *err);

/* Whether the server answers requests for this host (iv_http_head.host). */
bool iv_http_host_allowed(const iv_http *h, const char *host);
/* Checks the syntax of a list of host names; NULL is fine. */
iv_status iv_http_check_hosts(const char *list, iv_error *err);
/* Checks the syntax of a list of origins; NULL is fine. */
iv_status iv_http_check_origins(const char *list, iv_error *err);
/* Decides whether the request may be handled, after its head was read; sets q->route. False: it has been answered. */
bool iv_http_admit(iv_http_request *q);

/* ---- serve.c */
/* Owns the socket, also on failure. from: NULL: unknown. */
bool iv_connection_open(iv_http *h, int fd, const struct sockaddr *from);
void iv_connection_serve(iv_connection *c); /* runs its state machine as far as possible */

/* ---- listen.c */
iv_status iv_http_listen(iv_http *h, const char *host, uint16_t port, iv_error *err);
bool iv_http_is_loopback(const iv_http *h); /* all its addresses */
bool iv_http_accept(iv_http *h);            /* starts accepting on all listeners; false: no memory */
void iv_http_stop_listening(iv_http *h);    /* closes the listeners and resets their backlogs */
/* After all else is open: limits connections to what the limit of open files allows. */
iv_status iv_http_limit_connections(iv_http *h, iv_error *err);

#endif
