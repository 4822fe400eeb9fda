/* http_connection.h: what the files of the HTTP server share: the server, its connections, their requests.
 *
 * Invariants: one request at a time on a connection; what it answers is sent before the next request is looked at, so
 * answers come in order and output is bounded by one answer. Calls of a handler never call back: callbacks of the
 * user run from the loop alone. A connection is freed only by iv_http_serve_work, an request only when it ends. */
#ifndef IV_SERVE_HTTP_INTERNAL_H
#define IV_SERVE_HTTP_INTERNAL_H

#include "base/buf.h"
#include "serve/http.h"
#include "serve/http_parse.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/socket.h>

enum {
    IV_HTTP_BACKLOG = 4096,
    IV_HTTP_PACE_BYTES = 8 << 20,    /* of a long body may take body_ms each */
    IV_HTTP_READ_BYTES = 64 << 10,   /* of one read */
    IV_HTTP_UNSENT_BYTES = 64 << 10, /* the kernel holds for one client */
    IV_HTTP_KEEP_BYTES = 16 << 10,   /* larger buffers are freed when they are empty */
    IV_HTTP_REFUSALS_MAX = 512,      /* of iv_http.refusals_max */
    IV_HTTP_LINGER_MS = 1000,        /* a refused client may still be sending: so long we listen, and drop it */
    IV_HTTP_CROWDED_LINGER_MS = 200, /* when half of refusals_max are used */
    IV_HTTP_CLIENT_BUCKETS = 4096,   /* of the table of clients */
    IV_HTTP_LATE_MS = 1000,          /* after a drain's deadline, for the last text_model to those who waited */
    IV_HTTP_LOOK_MS = 200,           /* while nothing is read: how often we look whether the client is gone ... */
    IV_HTTP_FIRST_LOOK_MS = 5,       /* ... and how soon after it ended its side */
    IV_HTTP_ACCEPT_RETRY_MS = 100,   /* after running out of files */
    IV_HTTP_ID_BYTES_MAX = 128
};
/* Bodies of open requests and what waits behind them, of all connections; bodies beyond it are refused with 503. One of
 * the greatest length has room beside what is read ahead. */
#define IV_HTTP_INPUT_BYTES_MAX ((size_t)1 << 30)
#define IV_HTTP_BODY_BYTES_MAX (IV_HTTP_INPUT_BYTES_MAX / 2)

/* The keys that open a server: one that was given, or those of a file, which may be read again. Only digests are kept.
 */
enum { IV_KEYS_MAX = 64 };

typedef struct iv_keys {
    size_t count; /* 0: there is none */
    uint8_t digests[IV_KEYS_MAX][32];
} iv_keys;

typedef enum iv_connection_state {
    IV_CONNECTION_HEAD,   /* wants a head, or waits for its first byte */
    IV_CONNECTION_BODY,   /* has a head, wants the body */
    IV_CONNECTION_HANDLE, /* the request is its handler's */
    IV_CONNECTION_FLUSH,  /* the request has ended; its last bytes are being sent */
    IV_CONNECTION_LINGER, /* nothing more to say; dropping what still comes */
    IV_CONNECTION_DEAD    /* closed; freed soon */
} iv_connection_state;

typedef struct iv_http_client iv_http_client; /* an address that has connections */

typedef struct iv_connection iv_connection;
struct iv_connection {
    iv_http *http;
    iv_connection *next, *previous; /* of all */
    iv_connection *next_work;
    int fd;
    iv_connection_state state;
    bool queued;       /* in the list of work */
    bool serving;      /* inside iv_connection_serve */
    bool begun;        /* a byte of the head is there */
    bool refused;      /* one too many: it gets an error and is closed */
    bool paused;       /* not reading: enough waits */
    bool ended;        /* the client sends no more */
    bool closing;      /* after what is being sent */
    bool late;         /* what it asks came while the server drains */
    bool cut;          /* its client has read nothing for too long, and gets one more chance to */
    bool unread;       /* closing, with bytes of the request perhaps still on their way */
    uint64_t since;    /* when its state began, milliseconds */
    uint64_t ended_at; /* when the client ended its side */
    uint64_t progress; /* when bytes were last sent, or first had to wait */
    uint64_t armed;    /* when the timer fires; 0: it does not */
    iv_buf in, out;
    size_t in_at, scanned; /* consumed of in; looked at since in_at */
    size_t in_counted;     /* of http->input_bytes */
    size_t out_at;         /* sent of out */
    size_t out_counted;    /* of http->unread_bytes */
    iv_http_request *request;
    iv_http_client *client; /* NULL: not counted */
    struct event reading, writing, timer;
};

struct iv_http_request {
    iv_http *http;
    iv_connection *connection;        /* NULL: the client left, or was cut */
    iv_http_request *next, *previous; /* of all */
    iv_http_request *next_gone;
    char *text; /* what head points into */
    iv_http_head head;
    const iv_http_route *route;
    iv_buf body;
    size_t body_left;
    size_t body_taken; /* of http->input_bytes, which it counts in until the request ends */
    iv_http_chunks chunks;
    iv_buf fields; /* of the response, added by the handler */
    char id[IV_HTTP_ID_BYTES_MAX + 1];
    bool handled, streaming, in_chunks, gone_queued; /* handled: the handler knows it */
    bool probed;                                     /* the client ended its side: a 100 tells whether it is gone */
    int status;                                      /* 0: no answer has begun */
    uint64_t began;                                  /* microseconds */
    size_t sent;                                     /* bytes of the answer's body */
    bool full;                                       /* iv_http_request_is_full has said so */
    void (*gone)(void *user);
    void (*room)(void *user);
    void (*stall)(void *user);
    void *gone_user;
    iv_http_request_replied *replied; /* of one without a connection; http and connection are then NULL */
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
    iv_http_options o; /* its strings are not kept but for these */
    char *host, *allowed_hosts, *allowed_origins;
    char *api_key_file, *admin_key_file;
    iv_keys api_keys, admin_keys;
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
    size_t unread_bytes;  /* that wait for clients, on all connections */
    size_t refused_count; /* of connection_count: connections that are being refused */
    size_t refusals_max;  /* so many at once; while there are, others wait in the backlog */
    bool accept_paused;
    uint64_t refused_total, files_short;
    iv_http_client *clients[IV_HTTP_CLIENT_BUCKETS];
    uint64_t client_seed;
    bool draining, drain_passed;
    void (*drain_late)(void *user); /* NULL: none, or called */
    void *drain_user;
    char *scratch; /* IV_HTTP_READ_BYTES */
    uint64_t id_state;
    int64_t date_at;
    char date[32];
};

/* ---- http_connection.c: records; calls nothing above it */
uint64_t iv_http_now_us(void);
static inline uint64_t iv_http_now_ms(void) { return iv_http_now_us() / 1000; }
/* The loop serves queued connections and reports lost clients soon. */
static inline void iv_http_wake_work(iv_http *h) { event_active(h->working, EV_TIMEOUT, 0); }

/* Counts a connection of the address; false: it has too many. *out: for iv_http_client_leave, may be NULL. */
bool iv_http_client_enter(iv_http *h, const struct sockaddr *from, iv_http_client **out);
void iv_http_client_leave(iv_http *h, iv_http_client *client);

iv_http_request *iv_http_request_new(iv_connection *c);
void iv_http_request_end(iv_http_request *q);        /* the answer is complete: frees q, the connection goes on */
void iv_http_request_leave(iv_http_request *q);      /* its connection is lost */
void iv_http_request_queue_gone(iv_http_request *q); /* if its client has left and its handler wants to know */
void iv_http_request_call_gone(iv_http_request *q);  /* from the loop; frees it */

bool iv_http_has_room(const iv_http *h); /* for one more connection, if only to refuse it */
void iv_http_begin_accepting(iv_http *h);
void iv_http_resume_accept(iv_http *h); /* after a connection was closed */

void iv_connection_queue(iv_connection *c); /* serve it soon */
bool iv_connection_flush(iv_connection *c); /* sends what it can; false: the client is gone */
void iv_connection_lose(iv_connection *c, bool reset);
void iv_connection_free(iv_connection *c);
static inline size_t iv_connection_waiting(const iv_connection *c) { return c->out.len - c->out_at; }
/* Updates http->unread_bytes after out or out_at have changed. */
void iv_connection_count_output(iv_connection *c);
/* A drain waits for it: its request or its answer is not complete. */
bool iv_connection_busy(const iv_connection *c);

/* ---- http_request.c */
void iv_http_request_take_id(iv_http_request *q); /* the client's x-request-id, once the head is parsed */
/* Whether the list of origins has it. */
bool iv_http_origin_allowed(const char *allowed, const char *origin);
/* Answers with the error's JSON. unread: the request was not read to its end, so the connection closes. */
void iv_http_request_refuse(iv_http_request *q, int status, bool unread, const char *message);
void iv_http_request_call_room(iv_http_request *q);    /* from the loop, if there is */
void iv_http_request_call_stalled(iv_http_request *q); /* from the loop: its client has read nothing for too long */

/* ---- http_admit.c */
/* Adds a key: visible ASCII without spaces. `where` heads errors. */
iv_status iv_keys_add(iv_keys *keys, const char *key, const char *where, iv_error *err);
/* Replaces the keys by those of a file: one a line; empty lines and lines that begin with # are passed over. A file
 * without keys is an error, for it would let everyone in. After an error the keys are as before. */
iv_status iv_keys_read(iv_keys *keys, const char *path, iv_error *err);
/* Is it one of them? The time this takes does not depend on how much of a key was right, nor on its length. */
bool iv_keys_have(const iv_keys *keys, const char *given);

/* Whether the server answers requests for this host (iv_http_head.host). */
bool iv_http_host_allowed(const iv_http *h, const char *host);
/* A list of host names, or NULL: whether each could be one. */
iv_status iv_http_check_hosts(const char *list, iv_error *err);
/* A list of origins, or NULL: whether each could be one. */
iv_status iv_http_check_origins(const char *list, iv_error *err);
/* Whether the request may be handled, once its head is there; sets q->route. False: it has been answered. */
bool iv_http_admit(iv_http_request *q);

/* ---- http_serve.c */
/* Takes the socket, also when it fails. from: NULL if it is not known. */
bool iv_connection_open(iv_http *h, int fd, const struct sockaddr *from);
void iv_connection_serve(iv_connection *c); /* as far as it goes now */

/* ---- http_listen.c */
iv_status iv_http_listen(iv_http *h, const char *host, uint16_t port, iv_error *err);
bool iv_http_accept(iv_http *h);         /* on all listeners, once there is a loop; false: no memory */
void iv_http_stop_listening(iv_http *h); /* sockets in the backlogs are reset */
/* Once all else is open: how many connections the limit of open files allows. */
iv_status iv_http_limit_connections(iv_http *h, iv_error *err);

#endif
