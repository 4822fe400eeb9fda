/* test_http.c: requests over raw sockets: accepted and refused ones, limits, deadlines, keys. */
#include "http_server.h"

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

/* Each is 400 as JSON, and the connection is closed. */
static void test_broken_requests(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        answer a;
        int fd = dial(s.port);
        send_text(fd, broken[i]);
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

/* The answer does not depend on packets: two, divided at every position, or single bytes. */
static void test_fragments(void **state) {
    (void)state;
    static const char *const requests[] = {
        "GET /echo?q=%41 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        ("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=\"b\"\r\nhe\r\n003\r\nllo\r\n0\r\n"
         "Trailer: x\r\n\r\n"),
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
                send_bytes(fd, requests[r] + at, take);
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
    send_bytes(fd, text, (size_t)(at - text));
    wait_for(&s.handled, 1);
    usleep(20000);
    assert_int_equal(atomic_load(&s.handled), 1); /* the others wait for the first */
    post(&s, ANSWER_HELD);
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
    send_text(fd, "HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    hear_as(fd, &a, true);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_field(&a, "Content-Length"), "25");
    send_text(fd, "HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n");
    hear_as(fd, &a, true);
    assert_int_equal(a.status, 200);
    hear(fd, &a); /* the connection is still in sync */
    assert_int_equal(a.status, 404);
    assert_non_null(strstr(a.body, "\"code\":404"));
    assert_non_null(strstr(a.body, "\"GET /nowhere: no such path on this server\""));
    send_text(fd, "POST /order HTTP/1.1\r\nHost: x\r\n\r\nPOST /v1/v1/order HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a); /* a client's base with /v1 and without */
    assert_non_null(strstr(a.body, "\"POST /order: no such path on this server: did you mean /v1/order?\""));
    hear(fd, &a);
    assert_non_null(strstr(a.body, "did you mean /v1/order?\""));
    send_text(fd, "GET /v1/echo HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/nowhere HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    assert_non_null(strstr(a.body, "did you mean /echo?\""));
    hear(fd, &a);
    assert_non_null(strstr(a.body, "\"GET /v1/nowhere: no such path on this server\""));
    char far[200]; /* a path is cut between characters */
    snprintf(far, sizeof far, "GET /%098d%s HTTP/1.1\r\nHost: x\r\n\r\n", 0, "%C3%A9");
    send_text(fd, far);
    hear(fd, &a);
    assert_non_null(strstr(a.body, "000: no such path"));
    send_text(fd, "GET /size HTTP/1.1\r\nHost: x\r\n\r\nDELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 405);
    assert_string_equal(answer_field(&a, "Allow"), "POST, OPTIONS");
    hear(fd, &a);
    assert_int_equal(a.status, 405);
    assert_string_equal(answer_field(&a, "Allow"), "GET, HEAD, POST, OPTIONS");
    send_text(fd, "OPTIONS /echo HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 204);
    assert_string_equal(answer_field(&a, "Allow"), "GET, HEAD, POST, OPTIONS");
    assert_null(answer_field(&a, "Content-Length"));
    hear(fd, &a);
    assert_int_equal(a.status, 204);
    close(fd);
    ask(s.port, "GET / HTTP/2.0\r\nHost: x\r\n\r\n", &a);
    assert_int_equal(a.status, 505);
    ask(s.port, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", &a);
    assert_int_equal(a.status, 415);
    assert_non_null(strstr(a.body, "Content-Encoding: wanted none, found gzip"));
    ask(s.port, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi", &a);
    assert_int_equal(a.status, 200);
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
    send_text(fd, "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    hear(fd, &a);
    assert_string_equal(answer_field(&a, "Connection"), "keep-alive");
    send_text(fd, "GET /stream HTTP/1.0\r\n\r\n");
    hear(fd, &a);
    assert_null(answer_field(&a, "Transfer-Encoding"));
    assert_string_equal(a.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_true(a.closed);
    close(fd);
    fd = dial(s.port);
    send_text(fd, "GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n");
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
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n");
    hear(fd, &a);
    assert_int_equal(a.status, 100);
    send_text(fd, "hi");
    hear(fd, &a);
    assert_string_equal(a.body, "POST /echo q=- agent=- 2:hi");
    /* refused before the body is requested */
    send_text(fd, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
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
    send_bytes(fd, text, (size_t)at + max);
    hear(fd, &a);
    assert_string_equal(a.body, "8388608");
    send_text(fd, "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n");
    send_bytes(fd, text + at, max);
    send_text(fd, "\r\n0\r\n\r\n");
    hear(fd, &a);
    assert_string_equal(a.body, "8388608");
    send_text(fd, "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n");
    send_bytes(fd, text + at, max);
    send_text(fd, "\r\n1\r\nb");
    hear(fd, &a);
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "body: wanted at most 8388608 bytes (--max-request-body), found 8388609 or more"));
    close(fd);
    static const char *const lengths[] = {"8388609", "18446744073709551615", "18446744073709551616",
                                          "99999999999999999999999999999999"};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        sprintf(text, "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n", lengths[i]);
        ask(s.port, text, &a);
        assert_int_equal(a.status, 413);
        char words[80];
        sprintf(words, "found %.20s%s\"", i < 2 ? lengths[i] : "18446744073709551615", i ? " or more" : "");
        assert_non_null(strstr(a.body, words));
    }
    ask(s.port, "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", &a);
    assert_int_equal(a.status, 413);
    finish(&s);
}

/* A refused client that sends megabytes more still gets the reason. */
static void test_refused_upload(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    static char junk[1 << 20];
    int fd = dial(s.port);
    send_text(fd, "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
    for (int i = 0; i < 8; i++) send_bytes(fd, junk, sizeof junk);
    hear(fd, &a);
    assert_int_equal(a.status, 413);
    for (int i = 0; i < 3; i++, usleep(5000)) /* it is read to the end, not reset */
        assert_int_equal(send(fd, junk, 1000, MSG_NOSIGNAL), 1000);
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
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
    send_text(fd, "GET / HT");
    for (int i = 0; i < 15; i++) usleep(10000), send_text(fd, "T"); /* progress does not extend the deadline */
    hear(fd, &a);
    assert_int_equal(a.status, 408);
    assert_true(is_closed(fd) && seconds_now() - t >= 0.19);
    close(fd);
    t = seconds_now();
    fd = dial(s.port);
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe");
    hear(fd, &a);
    assert_int_equal(a.status, 408);
    assert_true(seconds_now() - t >= 0.29);
    close(fd);
    t = seconds_now();
    fd = dial(s.port); /* silent: closed without an answer */
    hear(fd, &a);
    assert_true(a.closed && !a.head[0] && seconds_now() - t >= 0.39);
    close(fd);
    fd = dial(s.port);
    send_text(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fd, &a);
    t = seconds_now();
    assert_true(is_closed(fd) && seconds_now() - t >= 0.3);
    close(fd);
    /* handlers have no deadline */
    fd = dial(s.port);
    send_text(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    usleep(600000);
    post(&s, ANSWER_HELD);
    hear(fd, &a);
    assert_string_equal(a.body, "late");
    close(fd);
    finish(&s);
}

/* Each 8 MiB of a body extend its deadline. */
static void test_deadline_of_long_bodies(void **state) {
    (void)state;
    enum { ALL = 18 << 20, LATE = 1 << 20 };
    served s;
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    o.body_ms = 600, o.body_bytes_max = ALL;
    start(&s, &o);
    char *bytes = malloc(LATE);
    assert_non_null(bytes);
    memset(bytes, 'x', LATE);
    for (int whole = 1; whole >= 0; whole--) {
        double t = seconds_now();
        int fd = dial(s.port);
        char head[100];
        sprintf(head, "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", ALL);
        send_text(fd, head);
        for (int i = 0; i < (ALL - LATE) / LATE; i++) send_bytes(fd, bytes, LATE);
        if (whole) usleep(800000), send_bytes(fd, bytes, LATE);
        hear(fd, &a);
        assert_int_equal(a.status, whole ? 200 : 408);
        assert_true(whole || seconds_now() - t >= 1.79);
        close(fd);
    }
    free(bytes);
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
        send_text(fd[i], "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        hear(fd[i], &a);
        assert_int_equal(a.status, 200);
    }
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", &a);
    assert_int_equal(a.status, 503);
    assert_non_null(answer_field(&a, "Retry-After"));
    for (int i = 0; i < 3; i++) close(fd[i]);
    do { /* room is free soon */
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
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    start(&s, &o);
    assert_int_equal(status_with(s.port, "POST /admin", NULL), 200); /* no keys, at 127.0.0.1 */
    assert_int_equal(status_with(s.port, "POST /cache", NULL), 200);
    finish(&s);
    o.host = "::1";
    start(&s, &o);
    assert_true(iv_http_control_is_open(s.http));
    finish(&s);
    o.host = "127.0.0.1", o.api_key = "sesame";
    start(&s, &o);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer sesame"), 403);
    finish(&s);
    o.host = "0.0.0.0", o.api_key = NULL;
    start(&s, &o);
    assert_int_equal(status_with(s.port, "GET /keyed", NULL), 200);
    assert_int_equal(status_with(s.port, "POST /admin", NULL), 403);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer "), 403);
    assert_int_equal(status_with(s.port, "POST /cache", NULL), 403);
    ask(s.port, "POST /admin HTTP/1.1\r\nHost: x\r\n\r\n", &a); /* the error names the flag */
    assert_non_null(strstr(a.body, "without --admin-api-key\""));
    ask(s.port, "POST /cache HTTP/1.1\r\nHost: x\r\n\r\n", &a);
    assert_non_null(strstr(a.body, "with neither --admin-api-key nor --allow-flush\""));
    finish(&s);
    o.host = "127.0.0.1", o.api_key = "sesame", o.admin_key = "root";
    start(&s, &o);
    assert_int_equal(status_with(s.port, "GET /", NULL), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", NULL), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesam"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesamee"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Basic sesame"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "bearer  sesame"), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer root"), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", "Other\r\nX-Api-Key: sesame"), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", "Other\r\nX-Api-Key: sesam"), 401);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesam\r\nX-Api-Key: sesame"), 401);
    assert_int_equal(status_with(s.port, "POST /admin", "Other\r\nX-Api-Key: sesame"), 403);
    assert_int_equal(status_with(s.port, "POST /admin", "Other\r\nX-Api-Key: root"), 200);
    assert_int_equal(status_with(s.port, "POST /admin", NULL), 401);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer sesame"), 403);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer root"), 200);
    assert_int_equal(status_with(s.port, "POST /cache", "Bearer sesame"), 403);
    assert_int_equal(status_with(s.port, "POST /cache", "Bearer root"), 200);
    assert_int_equal(status_with(s.port, "GET /keyed", "Bearer sesame\r\nAuthorization: Bearer sesame"), 400);
    finish(&s);
    o.open_cache = true;
    start(&s, &o);
    assert_int_equal(status_with(s.port, "POST /cache", NULL), 401);
    assert_int_equal(status_with(s.port, "POST /cache", "Bearer sesame"), 200);
    assert_int_equal(status_with(s.port, "POST /admin", "Bearer sesame"), 403);
    finish(&s);
    o.api_key = NULL;
    start(&s, &o);
    assert_int_equal(status_with(s.port, "GET /cache", NULL), 200);
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
    snprintf(text, sizeof text, preflight, "http://a");
    ask(s.port, text, &a);
    assert_null(answer_field(&a, "Access-Control-Allow-Origin"));
    ask(s.port, "GET /keyed HTTP/1.1\r\nHost: x\r\nOrigin: http://a.b\r\n\r\n", &a);
    assert_int_equal(a.status, 401); /* the page can read the error, too */
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Origin"), "http://a.b");
    finish(&s);
    o.allowed_origins = "*";
    start(&s, &o);
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\nOrigin: null\r\n\r\n", &a);
    assert_string_equal(answer_field(&a, "Access-Control-Allow-Origin"), "*");
    finish(&s);
}

/* Whether a request from this origin reaches a handler, for every content type. */
static int status_for(served *s, const char *host, const char *origin, const char *type) {
    char text[512];
    answer a;
    snprintf(text, sizeof text,
             "POST /echo HTTP/1.1\r\nHost: %s\r\n%s%s%sContent-Type: %s\r\nContent-Length: 2\r\n\r\n{}", host,
             origin ? "Origin: " : "", origin ? origin : "", origin ? "\r\n" : "", type);
    ask(s->port, text, &a);
    if (a.status == 403) {
        assert_non_null(strstr(a.body, "\"message\":\"Origin: wanted this server's own"));
        assert_non_null(strstr(a.body, "\"code\":403"));
        assert_null(answer_field(&a, "Access-Control-Allow-Origin"));
    }
    return a.status;
}

static void test_foreign_pages(void **state) {
    (void)state;
    static const struct {
        const char *host, *origin;
        int status;
    } cases[] = {
        {"localhost:8000", NULL, 200},
        {"localhost:8000", "http://localhost:8000", 200},
        {"LocalHost:8000", "https://localhost:8000", 200},
        {"localhost:8000", "http://localhost:8001", 403},
        {"localhost:8000", "http://localhost", 403},
        {"localhost", "http://localhost", 200},
        {"localhost:80", "http://localhost", 200},
        {"localhost:443", "https://localhost", 200},
        {"localhost:443", "http://localhost", 403},
        {"[::1]:8000", "http://[::1]:8000", 200},
        {"a.b", "http://a.b.evil", 403},
        {"a.b.evil", "http://a.b", 403},
        {"a.b", "http://c.d:1", 200},
        {"a.b", "null", 403},
        {"a.b", "file://a.b", 403},
        {"a.b", "", 403},
    };
    static const char *const types[] = {"application/json", "text/plain", "application/x-www-form-urlencoded"};
    served s;
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    o.allowed_origins = "http://c.d:1";
    start(&s, &o);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < 3; t++) {
            int status = status_for(&s, cases[i].host, cases[i].origin, types[t]);
            if (status != cases[i].status)
                fail_msg("%s, %s: %d", cases[i].host, cases[i].origin ? cases[i].origin : "none", status);
        }
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\n\r\n", &a);
    assert_int_equal(a.status, 403);
    finish(&s);
    o.allowed_origins = NULL;
    start(&s, &o);
    assert_int_equal(status_for(&s, "a.b", "http://c.d:1", "text/plain"), 403);
    assert_int_equal(status_for(&s, "a.b", "http://a.b", "text/plain"), 200);
    finish(&s);
    o.allowed_origins = "*";
    start(&s, &o);
    assert_int_equal(status_for(&s, "a.b", "null", "text/plain"), 200);
    finish(&s);
}

/* ---- names of the server */

static int status_by(uint16_t port, const char *target, const char *version, const char *fields) {
    char text[512];
    answer a;
    snprintf(text, sizeof text, "GET %s HTTP/%s\r\n%s\r\n", target, version, fields);
    ask(port, text, &a);
    if (a.status == 403) assert_non_null(strstr(a.body, "--allowed-"));
    return a.status;
}

/* A name that an attacker's DNS points to this machine is same-origin for a browser: the server refuses it. */
static void test_hosts(void **state) {
    (void)state;
    static const struct {
        const char *host;
        int status; /* with the list below; without it, names other than localhost and addresses are 403 */
        int bare;
    } cases[] = {
        {"localhost", 200, 200},
        {"LocalHost:8000", 200, 200},
        {"localhost.:8000", 200, 200},
        {"a.b.localhost", 200, 200},
        {"localhost.evil.example", 403, 403},
        {"evillocalhost", 403, 403},
        {"127.0.0.1:8000", 200, 200},
        {"127.9.8.7", 200, 200},
        {"192.0.2.7:80", 200, 200},
        {"[::1]", 200, 200},
        {"[::1]:8000", 200, 200},
        {"[2001:db8::7]:8000", 200, 200},
        {"[fe80::1%25eth0]", 200, 200},
        {"[localhost]", 403, 403},
        {"::1", 403, 403},
        {"[::1", 403, 403},
        {"[::1]x", 403, 403},
        {"127.0.0.1.evil.example", 403, 403},
        {"127.1", 403, 403},
        {"evil.example", 403, 403},
        {"evil.example:8000", 403, 403},
        {"evil.example.", 403, 403},
        {"localhost:x", 403, 403},
        {"llm.example.org", 200, 403},
        {"LLM.Example.ORG.:8000", 200, 403},
        {"x.llm.example.org", 403, 403},
        {"a.inside.example", 200, 403},
        {"a.b.inside.example", 200, 403},
        {"inside.example", 403, 403},
        {"notinside.example", 403, 403},
    };
    for (int listed = 0; listed < 2; listed++) {
        served s;
        iv_http_options o;
        iv_http_options_init(&o);
        o.allowed_hosts = listed ? "llm.example.org, *.inside.example" : "";
        start(&s, &o);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            char fields[200], target[200];
            int wanted = listed ? cases[i].status : cases[i].bare;
            snprintf(fields, sizeof fields, "Host: %s\r\n", cases[i].host);
            int found = status_by(s.port, "/", "1.1", fields);
            if (found != wanted) fail_msg("%s: wanted %d, found %d", cases[i].host, wanted, found);
            assert_int_equal(status_by(s.port, "/nowhere", "1.1", fields), wanted == 200 ? 404 : 403);
            assert_int_equal(status_by(s.port, "/", "1.0", fields), wanted);
            snprintf(fields, sizeof fields, "Host: %s\r\nOrigin: http://%s\r\n", cases[i].host, cases[i].host);
            assert_int_equal(status_by(s.port, "/", "1.1", fields), wanted); /* as a page of that name sends it */
            snprintf(target, sizeof target, "http://%s/", cases[i].host);
            assert_int_equal(status_by(s.port, target, "1.1", "Host: localhost\r\n"), wanted);
        }
        assert_int_equal(status_by(s.port, "/", "1.0", ""), 200); /* browsers always send it */
        assert_int_equal(status_by(s.port, "http://localhost/", "1.1", "Host: evil.example\r\n"), 200);
        /* origins are compared with the effective host */
        assert_int_equal(status_by(s.port, "http://localhost/", "1.1", "Host: a\r\nOrigin: http://localhost\r\n"), 200);
        assert_int_equal(status_by(s.port, "http://localhost/", "1.1", "Host: a\r\nOrigin: http://a\r\n"), 403);
        finish(&s);
    }
}

/* With an API key any name is accepted, because other pages do not know it; so is the name listened on. */
static void test_hosts_beyond(void **state) {
    (void)state;
    served s;
    iv_http_options o;
    iv_error err;
    iv_http *h;
    iv_http_options_init(&o);
    o.allowed_hosts = "", o.api_key = "k";
    start(&s, &o);
    assert_int_equal(status_by(s.port, "/", "1.1", "Host: evil.example\r\n"), 200);
    assert_int_equal(status_by(s.port, "/keyed", "1.1", "Host: evil.example\r\n"), 401);
    finish(&s);
    static const char *const bad[] = {"a:80", "http://a", "[::1]", "a,b/c", "*.", "**", "a..b."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.allowed_hosts = bad[i], o.port = 0;
        assert_int_equal(iv_http_open(&o, routes, 1, NULL, &h, &err), IV_INVALID);
        assert_non_null(strstr(err.message, "allowed-hosts: wanted names"));
    }
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
        cmocka_unit_test(test_deadline_of_long_bodies),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_foreign_pages),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_hosts_beyond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
