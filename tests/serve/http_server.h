/* http_server.h: a server of http.h on a thread; the test controls its handlers. */
#ifndef IV_TESTS_HTTP_SERVER_H
#define IV_TESTS_HTTP_SERVER_H

#include "http_client.h"
#include "serve/http/internal.h"

#include <signal.h>

enum { HELD_MAX = 64, TICKING_MAX = 1024, TICKED = 20 };

typedef struct served served;
typedef struct holding {
    served *s;
    size_t index;
} holding;

struct served {
    iv_http *http;
    uint16_t port;
    pthread_t thread;
    int fd; /* an eventfd that is watched */
    pthread_mutex_t lock;
    iv_http_request *held[HELD_MAX]; /* requests to /hold without an answer; NULL once gone */
    holding holdings[HELD_MAX];
    size_t held_count;
    atomic_int handled, gone, woken, ticks, caught, logged, last_status, connections;
    atomic_int posted; /* task for the loop's thread at the next wake-up */
    struct {
        iv_http_request *http_request;
        int name, next;
    } ticking[TICKING_MAX]; /* streams that get a piece per tick */
    size_t ticking_count;
};

enum { NOTHING, ANSWER_HELD, DRAIN, DRAIN_NOTIFIED, STREAM_HELD, WRITE_HELD, END_HELD };

static inline void on_gone(void *user) {
    const holding *h = user;
    h->s->held[h->index] = NULL;
    atomic_fetch_add(&h->s->gone, 1);
}

static inline void handle_echo(void *user, iv_http_request *q) {
    served *s = user;
    size_t n;
    const char *body = iv_http_request_body(q, &n);
    const char *query = iv_http_request_query(q, "q"), *agent = iv_http_head_field(&q->head, "user-AGENT");
    char text[60000];
    int length = snprintf(text, sizeof text, "%s %s q=%s agent=%s %zu:%.*s", iv_http_request_method(q),
                          iv_http_request_path(q), query ? query : "-", agent ? agent : "-", n, (int)n, body);
    iv_http_request_add_header(q, "x-extra", "a\r\nb: c");
    atomic_fetch_add(&s->handled, 1);
    iv_http_request_reply(q, 200, "text/plain", text, (size_t)length);
}

static inline void handle_size(void *user, iv_http_request *q) {
    (void)user;
    size_t n;
    char text[32];
    iv_http_request_body(q, &n);
    iv_http_request_reply(q, 200, "text/plain", text, (size_t)snprintf(text, sizeof text, "%zu", n));
}

static inline void handle_hold(void *user, iv_http_request *q) {
    served *s = user;
    assert_true(s->held_count < HELD_MAX);
    holding *h = &s->holdings[s->held_count];
    *h = (holding){s, s->held_count};
    s->held[s->held_count++] = q;
    if (!iv_http_request_query(q, "deaf")) iv_http_request_on_gone(q, on_gone, h);
    atomic_fetch_add(&s->handled, 1);
}

static inline void handle_stream(void *user, iv_http_request *q) {
    (void)user;
    iv_http_request_stream(q, "text/event-stream");
    for (int i = 0; i < 3; i++) {
        char text[32];
        iv_http_request_write(q, text, (size_t)snprintf(text, sizeof text, "data: %d\n\n", i));
    }
    iv_http_request_write(q, "", 0); /* no output and no end */
    iv_http_request_stream_end(q);
}

enum { GIANT = 3 << 20 };

/* A first piece larger than all buffers for a reader, and more pieces. */
static inline void handle_giant(void *user, iv_http_request *q) {
    (void)user;
    char *piece = malloc(GIANT);
    assert_non_null(piece);
    memset(piece, 'g', GIANT);
    iv_http_request_stream(q, "text/plain");
    assert_true(iv_http_request_write(q, piece, GIANT));
    for (int i = 0; i < 3; i++) assert_true(iv_http_request_write(q, piece, 1000));
    iv_http_request_stream_end(q);
    free(piece);
}

/* Starts a stream that fits into the server's buffer, but not into the socket's. */
static inline void handle_stall(void *user, iv_http_request *q) {
    static const char piece[250000];
    handle_hold(user, q);
    iv_http_request_stream(q, "text/plain");
    iv_http_request_write(q, piece, sizeof piece);
}

static inline void handle_ticking(void *user, iv_http_request *q) {
    served *s = user;
    assert_true(s->ticking_count < TICKING_MAX);
    s->ticking[s->ticking_count].name = atoi(iv_http_request_query(q, "name"));
    s->ticking[s->ticking_count++].http_request = q;
    iv_http_request_stream(q, "text/plain");
    atomic_fetch_add(&s->handled, 1);
}

static inline void handle_large(void *user, iv_http_request *q) {
    (void)user;
    size_t n = 4 << 20;
    char *body = malloc(n);
    assert_non_null(body);
    for (size_t i = 0; i < n; i++) body[i] = (char)('a' + i % 23);
    iv_http_request_reply(q, 200, "text/plain", body, n);
    free(body);
}

static const iv_http_route routes[] = {
    {"GET", "/", IV_HTTP_OPEN, handle_echo},           {"GET", "/always", IV_HTTP_KEY | IV_HTTP_ALWAYS, handle_echo},
    {"*", "/echo", IV_HTTP_OPEN, handle_echo},         {"GET", "/models/*", IV_HTTP_OPEN, handle_echo},
    {"POST", "/size", IV_HTTP_OPEN, handle_size},      {"*", "/hold", IV_HTTP_OPEN, handle_hold},
    {"GET", "/stream", IV_HTTP_OPEN, handle_stream},   {"GET", "/giant", IV_HTTP_OPEN, handle_giant},
    {"GET", "/stall", IV_HTTP_OPEN, handle_stall},     {"GET", "/large", IV_HTTP_OPEN, handle_large},
    {"GET", "/ticking", IV_HTTP_OPEN, handle_ticking}, {"GET", "/keyed", IV_HTTP_KEY, handle_echo},
    {"POST", "/admin", IV_HTTP_ADMIN, handle_echo},    {"*", "/cache", IV_HTTP_CACHE, handle_echo},
    {"POST", "/v1/order", IV_HTTP_OPEN, handle_echo},  {"POST", "/v1/messages", IV_HTTP_KEY, handle_hold},
};

static inline void answer_held(served *s) {
    for (size_t i = 0; i < s->held_count; i++) {
        if (s->held[i]) iv_http_request_reply(s->held[i], 200, "text/plain", "late", 4);
        s->held[i] = NULL;
    }
}

static inline void answer_late(void *user) { answer_held(user); }

static inline void on_woken(void *user) {
    served *s = user;
    uint64_t count;
    assert_int_equal(read(s->fd, &count, sizeof count), sizeof count);
    switch (atomic_exchange(&s->posted, NOTHING)) {
    case ANSWER_HELD: answer_held(s); break;
    case DRAIN: iv_http_drain(s->http, 2000, NULL, NULL); break;
    case DRAIN_NOTIFIED: iv_http_drain(s->http, 300, answer_late, s); break;
    case END_HELD:
        for (size_t i = 0; i < s->held_count; i++)
            if (s->held[i]) iv_http_request_stream_end(s->held[i]);
        break;
    case STREAM_HELD:
        for (size_t i = 0; i < s->held_count; i++)
            if (s->held[i]) iv_http_request_stream(s->held[i], "text/event-stream");
        break;
    case WRITE_HELD:
        for (size_t i = 0; i < s->held_count; i++)
            if (s->held[i]) iv_http_request_write(s->held[i], "data: 1\n\n", 9);
        break;
    default: break;
    }
    atomic_fetch_add(&s->woken, 1);
}

static inline void tick_streams(served *s) {
    for (size_t i = 0; i < s->ticking_count; i++) {
        char text[32];
        iv_http_request *q = s->ticking[i].http_request;
        if (!q) continue;
        int n = snprintf(text, sizeof text, "%d:%d ", s->ticking[i].name, s->ticking[i].next++);
        assert_true(iv_http_request_write(q, text, (size_t)n));
        if (s->ticking[i].next < TICKED) continue;
        s->ticking[i].http_request = NULL;
        iv_http_request_stream_end(q);
    }
}

static inline void on_tick(void *user) {
    served *s = user;
    tick_streams(s);
    atomic_fetch_add(&s->ticks, 1);
    atomic_store(&s->connections, (int)iv_http_connections(s->http));
}
static inline void on_signal(void *user) { atomic_fetch_add(&((served *)user)->caught, 1); }

static inline void on_log(void *user, const iv_http_request *q, int status, double seconds, size_t bytes) {
    served *s = user;
    assert_non_null(iv_http_request_method(q));
    assert_true(iv_http_request_id(q)[0] && seconds >= 0 && bytes < (size_t)1 << 30);
    atomic_store(&s->last_status, status);
    atomic_fetch_add(&s->logged, 1);
}

static inline void *run_loop(void *user) {
    served *s = user;
    iv_error err;
    ASSERT_OK(iv_http_run(s->http, &err), &err);
    return NULL;
}

static inline void start(served *s, const iv_http_options *options) {
    *s = (served){.fd = eventfd(0, EFD_NONBLOCK)};
    iv_error err;
    iv_http_options o = *options;
    if (!o.allowed_hosts) o.allowed_hosts = "*"; /* tests of host names set it */
    o.port = 0;
    o.log = on_log;
    ASSERT_OK(iv_http_open(&o, routes, sizeof routes / sizeof *routes, s, &s->http, &err), &err);
    ASSERT_OK(iv_http_watch(s->http, s->fd, on_woken, s, &err), &err);
    ASSERT_OK(iv_http_every(s->http, 10, on_tick, s, &err), &err);
    ASSERT_OK(iv_http_signal(s->http, SIGUSR1, on_signal, s, &err), &err);
    s->port = iv_http_port(s->http);
    assert_int_equal(pthread_create(&s->thread, NULL, run_loop, s), 0);
}

static inline void finish(served *s) {
    iv_http_stop(s->http);
    pthread_join(s->thread, NULL);
    iv_http_close(s->http);
    close(s->fd);
}

static inline void start_plain(served *s) {
    iv_http_options o;
    iv_http_options_init(&o);
    start(s, &o);
}

static inline void post(served *s, int what) {
    atomic_store(&s->posted, what);
    assert_int_equal(eventfd_write(s->fd, 1), 0);
}

static inline void wait_for(atomic_int *count, int wanted) {
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; atomic_load(count) < wanted;) {
        if (seconds_now() > end) fail_msg("waited for %d, found %d", wanted, atomic_load(count));
        usleep(500);
    }
}

static inline void wait_for_no_connection(served *s) {
    wait_for(&s->ticks, atomic_load(&s->ticks) + 2);
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; atomic_load(&s->connections) > 0;) {
        if (seconds_now() > end) fail_msg("%d connections are still there", atomic_load(&s->connections));
        usleep(500);
    }
}

#endif
