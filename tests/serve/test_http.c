/* test_http.c: every rule of http.h as a client with a raw socket sees it. */
#include "http_client.h"

#include <fcntl.h>
#include <signal.h>

enum { HELD_MAX = 64 };

/* ---- a server on a thread, whose handlers the test steers */

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
    iv_exchange *held[HELD_MAX]; /* asked for /hold, not answered; NULL once gone */
    holding holdings[HELD_MAX];
    size_t held_count;
    atomic_int handled, gone, woken, ticks, caught, logged, last_status, connections;
    atomic_int order; /* what the loop's thread shall do when it is woken */
    atomic_size_t flooded;
    atomic_bool flood_cut;
};

enum { NOTHING, ANSWER_HELD, DRAIN, STREAM_HELD };

static void on_gone(void *user) {
    const holding *h = user;
    h->s->held[h->index] = NULL;
    atomic_fetch_add(&h->s->gone, 1);
}

static void handle_echo(void *user, iv_exchange *x) {
    served *s = user;
    size_t n;
    const char *body = iv_exchange_body(x, &n);
    const char *q = iv_exchange_query(x, "q"), *agent = iv_exchange_header(x, "user-AGENT");
    char text[60000];
    int length = snprintf(text, sizeof text, "%s %s q=%s agent=%s %zu:%.*s", iv_exchange_method(x), iv_exchange_path(x),
                          q ? q : "-", agent ? agent : "-", n, (int)n, body);
    iv_exchange_add_header(x, "x-extra", "a\r\nb: c");
    atomic_fetch_add(&s->handled, 1);
    iv_exchange_reply(x, 200, "text/plain", text, (size_t)length);
}

static void handle_size(void *user, iv_exchange *x) {
    (void)user;
    size_t n;
    char text[32];
    iv_exchange_body(x, &n);
    iv_exchange_reply(x, 200, "text/plain", text, (size_t)snprintf(text, sizeof text, "%zu", n));
}

static void handle_hold(void *user, iv_exchange *x) {
    served *s = user;
    assert_true(s->held_count < HELD_MAX);
    holding *h = &s->holdings[s->held_count];
    *h = (holding){s, s->held_count};
    s->held[s->held_count++] = x;
    if (!iv_exchange_query(x, "deaf")) iv_exchange_on_gone(x, on_gone, h);
    atomic_fetch_add(&s->handled, 1);
}

static void handle_stream(void *user, iv_exchange *x) {
    (void)user;
    iv_exchange_stream(x, "text/event-stream");
    for (int i = 0; i < 3; i++) {
        char text[32];
        iv_exchange_write(x, text, (size_t)snprintf(text, sizeof text, "data: %d\n\n", i));
    }
    iv_exchange_write(x, "", 0); /* nothing, and not the end */
    iv_exchange_stream_end(x);
}

/* Writes until it is told to stop. */
static void handle_flood(void *user, iv_exchange *x) {
    served *s = user;
    char piece[1000];
    memset(piece, 'x', sizeof piece);
    iv_exchange_stream(x, "text/plain");
    while (iv_exchange_write(x, piece, sizeof piece)) atomic_fetch_add(&s->flooded, sizeof piece);
    atomic_store(&s->flood_cut, true);
    iv_exchange_stream_end(x);
}

/* Starts a stream that fits into the server's buffer but not into the socket's. */
static void handle_stall(void *user, iv_exchange *x) {
    static const char piece[100000];
    handle_hold(user, x);
    iv_exchange_stream(x, "text/plain");
    iv_exchange_write(x, piece, sizeof piece);
}

static void handle_large(void *user, iv_exchange *x) {
    (void)user;
    size_t n = 4 << 20;
    char *body = malloc(n);
    assert_non_null(body);
    for (size_t i = 0; i < n; i++) body[i] = (char)('a' + i % 23);
    iv_exchange_reply(x, 200, "text/plain", body, n);
    free(body);
}

static const iv_http_route routes[] = {
    {"GET", "/", IV_HTTP_OPEN, handle_echo},         {"*", "/echo", IV_HTTP_OPEN, handle_echo},
    {"GET", "/models/*", IV_HTTP_OPEN, handle_echo}, {"POST", "/size", IV_HTTP_OPEN, handle_size},
    {"*", "/hold", IV_HTTP_OPEN, handle_hold},       {"GET", "/stream", IV_HTTP_OPEN, handle_stream},
    {"GET", "/flood", IV_HTTP_OPEN, handle_flood},   {"GET", "/stall", IV_HTTP_OPEN, handle_stall},
    {"GET", "/large", IV_HTTP_OPEN, handle_large},   {"GET", "/keyed", IV_HTTP_KEY, handle_echo},
    {"POST", "/admin", IV_HTTP_ADMIN, handle_echo},
};

static void answer_held(served *s) {
    for (size_t i = 0; i < s->held_count; i++) {
        if (s->held[i]) iv_exchange_reply(s->held[i], 200, "text/plain", "late", 4);
        s->held[i] = NULL;
    }
}

static void on_woken(void *user) {
    served *s = user;
    uint64_t count;
    assert_int_equal(read(s->fd, &count, sizeof count), sizeof count);
    switch (atomic_exchange(&s->order, NOTHING)) {
    case ANSWER_HELD: answer_held(s); break;
    case DRAIN: iv_http_drain(s->http, 2000); break;
    case STREAM_HELD:
        for (size_t i = 0; i < s->held_count; i++)
            if (s->held[i]) iv_exchange_stream(s->held[i], "text/event-stream");
        break;
    default: break;
    }
    atomic_fetch_add(&s->woken, 1);
}

static void on_tick(void *user) {
    served *s = user;
    atomic_fetch_add(&s->ticks, 1);
    atomic_store(&s->connections, (int)iv_http_connections(s->http));
}
static void on_signal(void *user) { atomic_fetch_add(&((served *)user)->caught, 1); }

static void on_log(void *user, const iv_exchange *x, int status, double seconds, size_t bytes) {
    served *s = user;
    assert_non_null(iv_exchange_method(x));
    assert_true(iv_exchange_id(x)[0] && seconds >= 0 && bytes < (size_t)1 << 30);
    atomic_store(&s->last_status, status);
    atomic_fetch_add(&s->logged, 1);
}

static void *run_loop(void *user) {
    served *s = user;
    iv_error err;
    ASSERT_OK(iv_http_run(s->http, &err), &err);
    return NULL;
}

static void start(served *s, const iv_http_options *options) {
    *s = (served){.fd = eventfd(0, EFD_NONBLOCK)};
    iv_error err;
    iv_http_options o = *options;
    o.port = 0;
    o.log = on_log;
    ASSERT_OK(iv_http_open(&o, routes, sizeof routes / sizeof *routes, s, &s->http, &err), &err);
    ASSERT_OK(iv_http_watch(s->http, s->fd, on_woken, s, &err), &err);
    ASSERT_OK(iv_http_every(s->http, 10, on_tick, s, &err), &err);
    ASSERT_OK(iv_http_signal(s->http, SIGUSR1, on_signal, s, &err), &err);
    s->port = iv_http_port(s->http);
    assert_int_equal(pthread_create(&s->thread, NULL, run_loop, s), 0);
}

static void finish(served *s) {
    iv_http_stop(s->http);
    pthread_join(s->thread, NULL);
    iv_http_close(s->http);
    close(s->fd);
}

static void start_plain(served *s) {
    iv_http_options o;
    iv_http_options_init(&o);
    start(s, &o);
}

static void order(served *s, int what) {
    atomic_store(&s->order, what);
    assert_int_equal(eventfd_write(s->fd, 1), 0);
}

static void wait_for(atomic_int *count, int wanted) {
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; atomic_load(count) < wanted;) {
        if (seconds_now() > end) fail_msg("waited for %d, found %d", wanted, atomic_load(count));
        usleep(500);
    }
}

static void wait_for_nobody(served *s) {
    wait_for(&s->ticks, atomic_load(&s->ticks) + 2);
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; atomic_load(&s->connections) > 0;) {
        if (seconds_now() > end) fail_msg("%d connections are still there", atomic_load(&s->connections));
        usleep(500);
    }
}

/* ---- requests */

static void test_basic_requests(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    ask(s.port, "GET /echo?q=a%20b+c&r HTTP/1.1\r\nHost: x\r\nUser-Agent: me \r\n\r\n", &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "GET /echo q=a b c agent=me 0:");
    assert_string_equal(answer_field(&a, "x-extra"), "a??b: c");
    assert_string_equal(answer_field(&a, "Content-Type"), "text/plain");
    assert_non_null(answer_field(&a, "Date"));
    assert_null(answer_field(&a, "Connection"));
    ask(s.port, "POST /echo/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", &a);
    assert_string_equal(a.body, "POST /echo q=- agent=- 5:hello");
    ask(s.port, "GET http://x.y:80/models/a%2Fb%C3%A9 HTTP/1.1\r\nHost: x.y\r\n\r\n", &a);
    assert_string_equal(a.body, "GET /models/a/b\xc3\xa9 q=- agent=- 0:");
    ask(s.port, "GET http://x.y?q=1 HTTP/1.1\r\nHost: x.y\r\n\r\n", &a);
    assert_string_equal(a.body, "GET / q=1 agent=- 0:");
    ask(s.port, "\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", &a);
    assert_int_equal(a.status, 200);
    finish(&s);
    assert_true(atomic_load(&s.logged) == 5 && atomic_load(&s.ticks) >= 0);
}

static const char *const broken[] = {
    "GET / HTTP/1.1\r\n\r\n", /* no Host */
    "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "GET / HTTP/1.1\nHost: a\r\n\r\n", /* bare line feeds */
    "GET / HTTP/1.1\r\nHost: a\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\n",
    "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n", /* control bytes */
    "GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n",
    "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n", /* a folded line */
    "GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", /* lengths */
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\nx",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nx",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /echo HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n", /* chunks */
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n 1\r\nx\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n;x\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: \x01\r\n\r\n",
    "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", /* request lines */
    "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "GET /\r\nHost: a\r\n\r\n",
    "GET / http/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1\r\nHost: a\r\n\r\n",
    "G@T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "ABCDEFGHIJKLMNOPQ / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET x HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http:// HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /%0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /%0a HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /?a=%zz HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "\x16\x03\x01\x02 TLS to a plain port",
};

/* Each is 400 as JSON, and the connection is closed behind it. */
static void test_broken_requests(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        answer a;
        int fd = dial(s.port);
        say(fd, broken[i]);
        hear(fd, &a);
        if (a.status != 400) fail_msg("wanted 400, found %d for: %s", a.status, broken[i]);
        assert_non_null(strstr(a.body, "{\"error\":{\"message\":\""));
        assert_non_null(strstr(a.body, "\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":400}}"));
        assert_string_equal(answer_field(&a, "Connection"), "close");
        assert_true(is_closed(fd));
        close(fd);
    }
    assert_int_equal(atomic_load(&s.handled), 0);
    finish(&s);
}

/* The same answer wherever the bytes are cut: in two at every place, and one by one. */
static void test_fragments(void **state) {
    (void)state;
    static const char *const requests[] = {
        "GET /echo?q=%41 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=\"b\"\r\nhe\r\n003\r\nllo\r\n0\r\n"
        "Trailer: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    };
    static const char *const wanted[] = {"GET /echo q=A agent=- 0:", "POST /echo q=- agent=- 5:hello",
                                         "POST /echo q=- agent=- 5:hello", NULL, NULL};
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    for (size_t r = 0; r < sizeof requests / sizeof *requests; r++) {
        size_t n = strlen(requests[r]);
        for (size_t cut = 0; cut <= n; cut++) { /* 0: every byte alone */
            size_t first = cut ? cut : 1, width = cut ? n : 1;
            if (!wanted[r]) close(fd), fd = dial(s.port);
            for (size_t at = 0; at < n;) {
                size_t take = at == 0 ? first : n - at < width ? n - at : width;
                say_bytes(fd, requests[r] + at, take);
                at += take;
                usleep(cut ? 300 : 100);
            }
            hear(fd, &a);
            assert_int_equal(a.status, wanted[r] ? 200 : 400);
            if (wanted[r]) assert_string_equal(a.body, wanted[r]);
        }
    }
    close(fd);
    finish(&s);
}

static void test_pipelining(void **state) {
    (void)state;
    enum { COUNT = 200 };
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    char text[COUNT * 128], *at = text;
    at += sprintf(at, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    for (int i = 0; i < COUNT; i++)
        at += sprintf(at, "POST /echo?q=%d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n%03d", i, i);
    say_bytes(fd, text, (size_t)(at - text));
    wait_for(&s.handled, 1);
    usleep(20000);
    assert_int_equal(atomic_load(&s.handled), 1); /* the others wait for the first */
    order(&s, ANSWER_HELD);
    hear(fd, &a);
    assert_string_equal(a.body, "late");
    for (int i = 0; i < COUNT; i++) {
        char want[64];
        snprintf(want, sizeof want, "POST /echo q=%d agent=- 3:%03d", i, i);
        hear(fd, &a);
        assert_string_equal(a.body, want);
    }
    close(fd);
    finish(&s);
}

static void test_methods(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    say(fd, "HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    hear_as(fd, &a, true);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_field(&a, "Content-Length"), "25");
    say(fd, "HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n");
    hear_as(fd, &a, true);
    assert_int_equal(a.status, 200);
    hear(fd, &a); /* the connection is still in step */
    assert_int_equal(a.status, 404);
    assert_non_null(strstr(a.body, "\"code\":404"));
    say(fd, "GET /size HTTP/1.1\r\nHost: x\r\n\r\nDELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 405);
    assert_string_equal(answer_field(&a, "Allow"), "POST, OPTIONS");
    hear(fd, &a);
    assert_int_equal(a.status, 405);
    assert_string_equal(answer_field(&a, "Allow"), "GET, HEAD, POST, OPTIONS");
    say(fd, "OPTIONS /echo HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 204);
    assert_string_equal(answer_field(&a, "Allow"), "GET, HEAD, POST, OPTIONS");
    assert_null(answer_field(&a, "Content-Length"));
    hear(fd, &a);
    assert_int_equal(a.status, 204);
    close(fd);
    ask(s.port, "GET / HTTP/2.0\r\nHost: x\r\n\r\n", &a);
    assert_int_equal(a.status, 505);
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", &a);
    assert_int_equal(a.status, 417);
    finish(&s);
}

static void test_old_clients(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    say(fd, "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    hear(fd, &a);
    assert_string_equal(answer_field(&a, "Connection"), "keep-alive");
    say(fd, "GET /stream HTTP/1.0\r\n\r\n");
    hear(fd, &a);
    assert_null(answer_field(&a, "Transfer-Encoding"));
    assert_string_equal(a.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_true(a.closed);
    close(fd);
    fd = dial(s.port);
    say(fd, "GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n");
    hear(fd, &a);
    assert_string_equal(answer_field(&a, "Connection"), "close");
    assert_true(is_closed(fd));
    close(fd);
    finish(&s);
}

static void test_expect_continue(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    say(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 100);
    say(fd, "hi");
    hear(fd, &a);
    assert_string_equal(a.body, "POST /echo q=- agent=- 2:hi");
    /* refused before the body is asked for */
    say(fd, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 404);
    assert_string_equal(answer_field(&a, "Connection"), "close");
    close(fd);
    finish(&s);
}

static void test_ids(void **state) {
    (void)state;
    served s;
    answer a, b;
    start_plain(&s);
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-1\r\n\r\n", &a);
    assert_string_equal(answer_field(&a, "x-request-id"), "mine-1");
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: not mine\r\n\r\n", &a);
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", &b);
    char first[1024];
    snprintf(first, sizeof first, "%s", answer_field(&a, "x-request-id"));
    assert_int_equal(strncmp(first, "req-", 4), 0);
    assert_string_not_equal(first, answer_field(&b, "x-request-id"));
    finish(&s);
}

/* ---- limits and deadlines */

static void test_limits(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    static char text[9 << 20];
    int at = sprintf(text, "GET / HTTP/1.1\r\nHost: x\r\nX: ");
    memset(text + at, 'x', 16384 - (size_t)at);
    memcpy(text + 16380, "\r\n\r\n", 5);
    ask(s.port, text, &a); /* exactly the limit */
    assert_int_equal(a.status, 200);
    memcpy(text + 16380, "x\r\n\r\n", 6);
    ask(s.port, text, &a);
    assert_int_equal(a.status, 431);
    at = sprintf(text, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 100; i++) at += sprintf(text + at, "X: y\r\n");
    sprintf(text + at, "\r\n");
    ask(s.port, text, &a);
    assert_int_equal(a.status, 431);

    size_t max = 8 << 20;
    at = sprintf(text, "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", max);
    memset(text + at, 'b', max);
    int fd = dial(s.port);
    say_bytes(fd, text, (size_t)at + max);
    hear(fd, &a);
    assert_string_equal(a.body, "8388608");
    say(fd, "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n");
    say_bytes(fd, text + at, max);
    say(fd, "\r\n0\r\n\r\n");
    hear(fd, &a);
    assert_string_equal(a.body, "8388608");
    say(fd, "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n");
    say_bytes(fd, text + at, max);
    say(fd, "\r\n1\r\nb");
    hear(fd, &a);
    assert_int_equal(a.status, 413);
    close(fd);
    static const char *const lengths[] = {"8388609", "18446744073709551615", "18446744073709551616",
                                          "99999999999999999999999999999999"};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        sprintf(text, "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n", lengths[i]);
        ask(s.port, text, &a);
        assert_int_equal(a.status, 413);
    }
    ask(s.port, "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", &a);
    assert_int_equal(a.status, 413);
    finish(&s);
}

/* A refused client that sends megabytes more still hears why. */
static void test_refused_upload(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    static char junk[1 << 20];
    int fd = dial(s.port);
    say(fd, "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
    for (int i = 0; i < 8; i++) say_bytes(fd, junk, sizeof junk);
    hear(fd, &a);
    assert_int_equal(a.status, 413);
    close(fd);
    finish(&s);
}

static void test_deadlines(void **state) {
    (void)state;
    served s;
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    o.head_ms = 200, o.body_ms = 300, o.idle_ms = 400;
    start(&s, &o);
    double t = seconds_now();
    int fd = dial(s.port);
    say(fd, "GET / HT");
    for (int i = 0; i < 15; i++) usleep(10000), say(fd, "T"); /* progress does not help */
    hear(fd, &a);
    assert_int_equal(a.status, 408);
    assert_true(is_closed(fd) && seconds_now() - t >= 0.19);
    close(fd);
    t = seconds_now();
    fd = dial(s.port);
    say(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe");
    hear(fd, &a);
    assert_int_equal(a.status, 408);
    assert_true(seconds_now() - t >= 0.29);
    close(fd);
    t = seconds_now();
    fd = dial(s.port); /* says nothing: closed without a word */
    hear(fd, &a);
    assert_true(a.closed && !a.head[0] && seconds_now() - t >= 0.39);
    close(fd);
    fd = dial(s.port);
    say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    t = seconds_now();
    assert_true(is_closed(fd) && seconds_now() - t >= 0.3);
    close(fd);
    /* a handler takes the time it takes */
    fd = dial(s.port);
    say(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    usleep(600000);
    order(&s, ANSWER_HELD);
    hear(fd, &a);
    assert_string_equal(a.body, "late");
    close(fd);
    finish(&s);
}

static void test_connection_limit(void **state) {
    (void)state;
    served s;
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    o.connections_max = 3;
    start(&s, &o);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(s.port);
        say(fd[i], "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        hear(fd[i], &a);
        assert_int_equal(a.status, 200);
    }
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", &a);
    assert_int_equal(a.status, 503);
    assert_non_null(answer_field(&a, "Retry-After"));
    for (int i = 0; i < 3; i++) close(fd[i]);
    do { /* soon there is room again */
        usleep(1000);
        ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", &a);
    } while (a.status != 200);
    finish(&s);
}

/* ---- keys and origins */

static int status_with(uint16_t port, const char *what, const char *authorization) {
    char text[512];
    answer a;
    snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: x\r\n%s%s%s\r\n", what, authorization ? "Authorization: " : "",
             authorization ? authorization : "", authorization ? "\r\n" : "");
    ask(port, text, &a);
    if (a.status == 401) assert_string_equal(answer_field(&a, "WWW-Authenticate"), "Bearer");
    return a.status;
}

static void test_keys(void **state) {
    (void)state;
    served s;
    iv_http_options o;
    iv_http_options_init(&o);
    start(&s, &o);
    assert_int_equal(status_with(s.port, "GET /keyed", NULL), 200);
    assert_int_equal(status_with(s.port, "POST /admin", NULL), 403);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer "), 403);
    finish(&s);
    o.api_key = "sesame", o.admin_key = "root";
    start(&s, &o);
    assert_int_equal(status_with(s.port, "GET /", NULL), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", NULL), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesam"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesamee"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Basic sesame"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "bearer  sesame"), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer root"), 200);
    assert_int_equal(status_with(s.port, "POST /admin", NULL), 401);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer sesame"), 403);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer root"), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesame\r\nAuthorization: Bearer sesame"), 400);
    finish(&s);
}

static void test_origins(void **state) {
    (void)state;
    static const char preflight[] = "OPTIONS /keyed HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\n"
                                    "Access-Control-Request-Method: GET\r\n"
                                    "Access-Control-Request-Headers: authorization,content-type\r\n\r\n";
    served s;
    answer a;
    char text[512];
    iv_http_options o;
    iv_http_options_init(&o);
    o.api_key = "k";
    o.allowed_origins = "http://a.b, https://c.d:1";
    start(&s, &o);
    snprintf(text, sizeof text, preflight, "https://c.d:1");
    ask(s.port, text, &a);
    assert_int_equal(a.status, 204);
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Origin"), "https://c.d:1");
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Headers"), "authorization,content-type");
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Methods"), "GET, HEAD, OPTIONS");
    assert_string_equal(answer_field(&a, "Vary"), "Origin");
    snprintf(text, sizeof text, preflight, "http://a.b.evil");
    ask(s.port, text, &a);
    assert_null(answer_field(&a, "Access-Control-Allow-Origin"));
    assert_null(answer_field(&a, "Access-Control-Allow-Methods"));
    ask(s.port, "GET /keyed HTTP/1.1\r\nHost: x\r\nOrigin: http://a.b\r\n\r\n", &a);
    assert_int_equal(a.status, 401); /* an error can be read by the page too */
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Origin"), "http://a.b");
    finish(&s);
    o.allowed_origins = "*";
    start(&s, &o);
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\nOrigin: null\r\n\r\n", &a);
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Origin"), "*");
    finish(&s);
}

/* ---- streams, and clients that leave */

static void test_stream(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    for (int i = 0; i < 3; i++) {
        say(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        hear(fd, &a);
        assert_string_equal(a.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
        assert_string_equal(answer_field(&a, "Transfer-Encoding"), "chunked");
        assert_string_equal(answer_field(&a, "Cache-Control"), "no-cache");
    }
    /* the head of a stream comes before its first piece */
    say(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    order(&s, STREAM_HELD);
    hear_as(fd, &a, true);
    assert_int_equal(a.status, 200);
    close(fd);
    wait_for(&s.gone, 1);
    finish(&s);
}

static void hang_up_hard(int fd) {
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static void test_client_leaves(void **state) {
    (void)state;
    served s;
    static char junk[3000000];
    memset(junk, 'j', sizeof junk);
    iv_http_options o;
    iv_http_options_init(&o);
    o.body_bytes_max = 1000; /* so that the server stops reading early */
    start(&s, &o);
    int paused = dial(s.port);
    say(paused, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    fcntl(paused, F_SETFL, O_NONBLOCK);
    say_bytes(paused, junk, sizeof junk);
    wait_for(&s.handled, 1);
    usleep(50000);
    hang_up_hard(paused);
    wait_for(&s.gone, 1);
    finish(&s);

    start_plain(&s);
    for (int i = 0; i < 5; i++) {
        double t = seconds_now();
        int fd = dial(s.port);
        say(fd, "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
        if (i == 2) say_bytes(fd, junk, sizeof junk); /* it must be read to see that nobody is there */
        wait_for(&s.handled, i + 1);
        if (i == 1) usleep(100000);
        if (i == 3) { /* not closed, only no more to say: nobody can tell the two apart */
            shutdown(fd, SHUT_WR);
        } else if (i == 4) {
            hang_up_hard(fd);
        } else {
            close(fd);
        }
        wait_for(&s.gone, i + 1);
        assert_true(seconds_now() - t < 5);
        if (i == 3) close(fd);
    }
    assert_int_equal(atomic_load(&s.last_status), 499);
    finish(&s);
}

/* Somebody who did not ask to be told may answer into the void; what is left is freed at the end. */
static void test_nobody_listens(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    for (int i = 0; i < 4; i++) {
        int fd = dial(s.port);
        say(fd, "GET /hold?deaf HTTP/1.1\r\nHost: x\r\n\r\n");
        wait_for(&s.handled, i + 1);
        close(fd);
        wait_for_nobody(&s);
        if (i < 2) order(&s, ANSWER_HELD), wait_for(&s.woken, i + 1);
    }
    assert_int_equal(atomic_load(&s.gone), 0);
    finish(&s);
}

static void test_slow_readers(void **state) {
    (void)state;
    served s;
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    o.stall_ms = 300;
    start(&s, &o);
    int fd = dial_small(s.port, 4096);
    say(fd, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
    while (!atomic_load(&s.flood_cut)) usleep(1000);
    size_t most = (256 << 10) + (8 << 20); /* the system's buffers are not ours to bound */
    assert_true(atomic_load(&s.flooded) >= 256 << 10 && atomic_load(&s.flooded) < most);
    close(fd);

    fd = dial_small(s.port, 4096);
    say(fd, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"); /* a reply that is not read is dropped as well */
    double t = seconds_now();
    usleep(20000);
    wait_for_nobody(&s);
    assert_true(seconds_now() - t >= 0.29);
    close(fd);

    /* slow, but not stalled: everything arrives */
    fd = dial_small(s.port, 4096);
    say(fd, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    hear_as(fd, &a, true);
    size_t got = 0;
    static char piece[200000];
    while (got < 4 << 20) {
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        assert_true(n > 0);
        for (ssize_t i = 0; i < n; i++) assert_int_equal(piece[i], 'a' + (got + (size_t)i) % 23);
        got += (size_t)n;
        if (got % 7 == 0) usleep(1000);
    }
    close(fd);
    finish(&s);
}

/* ---- the loop */

static void test_drain(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int held = dial(s.port), idle = dial(s.port), streaming = dial(s.port);
    say(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(idle, &a);
    say(held, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 2);
    order(&s, DRAIN);
    wait_for(&s.woken, 1);
    say(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(idle, &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_field(&a, "Connection"), "close");
    assert_true(is_closed(idle));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(s.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fresh, (struct sockaddr *)&to, sizeof to), -1);
    close(fresh);
    order(&s, ANSWER_HELD);
    hear(held, &a);
    assert_string_equal(a.body, "late");
    assert_true(is_closed(held));
    pthread_join(s.thread, NULL); /* it ended by itself */
    iv_http_close(s.http);
    close(s.fd);
    close(held), close(idle), close(streaming);
}

static void test_drain_deadline(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    int held = dial(s.port);
    say(held, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    double t = seconds_now();
    order(&s, DRAIN);
    pthread_join(s.thread, NULL);
    assert_true(seconds_now() - t >= 1.9);
    assert_int_equal(atomic_load(&s.gone), 0);
    iv_http_close(s.http);
    assert_int_equal(atomic_load(&s.gone), 1); /* told at the end */
    close(s.fd);
    close(held);
}

static void test_watchers(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    for (int i = 0; i < 5; i++) {
        order(&s, NOTHING);
        wait_for(&s.woken, i + 1);
    }
    wait_for(&s.ticks, 3);
    kill(getpid(), SIGUSR1);
    wait_for(&s.caught, 1);
    finish(&s);
    assert_int_equal(atomic_load(&s.woken), 5);
}

static void test_open_errors(void **state) {
    (void)state;
    served s;
    iv_http *h;
    iv_error err;
    iv_http_options o;
    iv_http_options_init(&o);
    start_plain(&s);
    o.port = s.port;
    assert_int_equal(iv_http_open(&o, routes, 1, NULL, &h, &err), IV_IO);
    char port[16];
    snprintf(port, sizeof port, "%u", (unsigned)s.port);
    assert_true(strstr(err.message, "127.0.0.1") && strstr(err.message, port) && strstr(err.message, "in use"));
    o.host = "no.such.host.invalid";
    assert_int_equal(iv_http_open(&o, routes, 1, NULL, &h, &err), IV_IO);
    o.host = "127.0.0.1", o.api_key = "";
    assert_int_equal(iv_http_open(&o, routes, 1, NULL, &h, &err), IV_INVALID);
    iv_http_close(NULL);
    finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basic_requests),
        cmocka_unit_test(test_broken_requests),
        cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_old_clients),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_refused_upload),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_slow_readers),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_deadline),
        cmocka_unit_test(test_watchers),
        cmocka_unit_test(test_open_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
