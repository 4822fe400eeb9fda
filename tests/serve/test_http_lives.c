/* test_http_lives.c: how requests and the server end: streams, clients that leave or do not read, drains, many at
 * once. */
#include "http_server.h"

#include <fcntl.h>
#include <sys/resource.h>

/* ---- streams, and clients that leave */

static void test_stream(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    for (int i = 0; i < 3; i++) {
        send_text(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        hear(fd, &a);
        assert_string_equal(a.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
        assert_string_equal(answer_field(&a, "Transfer-Encoding"), "chunked");
        assert_string_equal(answer_field(&a, "Cache-Control"), "no-cache");
    }
    /* the head of a stream comes before its first piece */
    send_text(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    post(&s, STREAM_HELD);
    hear_as(fd, &a, true);
    assert_int_equal(a.status, 200);
    /* the loss of its client is found with the next piece */
    close(fd);
    usleep(50000);
    assert_int_equal(atomic_load(&s.gone), 0);
    post(&s, WRITE_HELD);
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
    send_text(paused, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    fcntl(paused, F_SETFL, O_NONBLOCK);
    send_bytes(paused, junk, sizeof junk);
    wait_for(&s.handled, 1);
    usleep(50000);
    hang_up_hard(paused);
    wait_for(&s.gone, 1);
    finish(&s);

    start_plain(&s);
    for (int i = 0; i < 6; i++) {
        double t = seconds_now();
        int fd = dial(s.port);
        send_text(fd, "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
        if (i == 2) send_bytes(fd, junk, sizeof junk); /* only a read finds out that the client is gone */
        wait_for(&s.handled, i + 1);
        if (i == 1) usleep(100000);
        if (i == 3 || i == 5) { /* first a shutdown, then a close, at once or later */
            shutdown(fd, SHUT_WR);
            if (i == 5) usleep(300000);
            close(fd);
        } else if (i == 4) {
            hang_up_hard(fd);
        } else {
            close(fd);
        }
        wait_for(&s.gone, i + 1);
        assert_true(seconds_now() - t < 5);
    }
    assert_int_equal(atomic_load(&s.last_status), 499);
    finish(&s);
}

/* A client that shuts down its side and reads on is answered, at any time. */
static void test_half_closed(void **state) {
    (void)state;
    static const char ask_1[] = "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
                      ask_0[] = "POST /hold HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
                      next[] = "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n";
    served s;
    answer a;
    start_plain(&s);
    for (int i = 0; i < 4; i++) { /* 0, 1: HTTP/1.0 and 1.1; 2: with more requests behind; 3: a later shutdown */
        int fd = dial(s.port);
        send_text(fd, i == 0 ? ask_0 : ask_1);
        if (i == 2) send_text(fd, next), send_text(fd, next);
        if (i == 3) usleep(50000);
        shutdown(fd, SHUT_WR);
        wait_for(&s.handled, i == 3 ? 6 : i + 1);
        if (i > 0) {
            hear(fd, &a);
            assert_int_equal(a.status, 100);
        }
        usleep(300000); /* and nothing more before the answer */
        char more;
        assert_int_equal(recv(fd, &more, 1, MSG_DONTWAIT), -1);
        post(&s, ANSWER_HELD);
        hear(fd, &a);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body, "late");
        for (int k = 0; i == 2 && k < 2; k++) {
            hear(fd, &a);
            assert_int_equal(a.status, 200);
            assert_non_null(strstr(a.body, "GET /echo"));
        }
        assert_true(is_closed(fd));
        close(fd);
    }
    assert_int_equal(atomic_load(&s.gone), 0);
    finish(&s);
}

/* A stream continues after the client's shutdown. */
static void test_half_closed_stream(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int fd = dial(s.port);
    send_text(fd, "GET /ticking?name=7 HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    shutdown(fd, SHUT_WR);
    hear(fd, &a);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "7:0 "));
    assert_non_null(strstr(a.body, "7:19 "));
    close(fd);
    finish(&s);
}

/* The loss of HTTP/1.0 clients is found when they are answered; nothing waits or spins meanwhile. */
static void test_half_closed_is_idle(void **state) {
    (void)state;
    served s;
    struct timespec before, after;
    clockid_t clock;
    start_plain(&s);
    for (int i = 0; i < 20; i++) {
        int fd = dial(s.port);
        send_text(fd, i % 2 ? "POST /hold HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi"
                            : "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
        if (i % 2)
            close(fd);
        else
            shutdown(fd, SHUT_WR);
    }
    wait_for(&s.handled, 20);
    assert_int_equal(pthread_getcpuclockid(s.thread, &clock), 0);
    clock_gettime(clock, &before);
    usleep(500000);
    clock_gettime(clock, &after);
    double spent = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    assert_true(spent < 0.1);
    assert_int_equal(atomic_load(&s.gone), 0);
    post(&s, ANSWER_HELD);
    wait_for(&s.logged, 20);
    finish(&s);
}

/* Without on_gone the answer is dropped; the rest is freed at the end. */
static void test_without_on_gone(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    for (int i = 0; i < 4; i++) {
        int fd = dial(s.port);
        send_text(fd, "GET /hold?deaf HTTP/1.1\r\nHost: x\r\n\r\n");
        wait_for(&s.handled, i + 1);
        close(fd);
        wait_for_no_connection(&s);
        if (i < 2) post(&s, ANSWER_HELD), wait_for(&s.woken, i + 1);
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
    send_text(fd, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"); /* unread replies are dropped as well */
    double t = seconds_now();
    usleep(20000);
    wait_for_no_connection(&s);
    assert_true(seconds_now() - t >= 0.29);
    close(fd);

    fd = dial_small(s.port, 4096);
    send_text(fd, "GET /stall HTTP/1.1\r\nHost: x\r\n\r\n"); /* so are streams without further output */
    t = seconds_now();
    wait_for(&s.gone, 1);
    assert_true(seconds_now() - t >= 0.29);
    close(fd);

    /* one large piece does not make a reader slow */
    static char giant[GIANT + 10000];
    bool closed;
    fd = dial_small(s.port, 4096);
    send_text(fd, "GET /giant HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    size_t all = hear_until(fd, giant, sizeof giant, NULL, &closed);
    assert_true(closed && all > GIANT + 3000 && memcmp(giant + all - 5, "0\r\n\r\n", 5) == 0);
    close(fd);

    /* slow, but not stalled: everything arrives */
    fd = dial_small(s.port, 4096);
    send_text(fd, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
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
    send_text(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(idle, &a);
    send_text(held, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 2);
    post(&s, DRAIN);
    wait_for(&s.woken, 1);
    send_text(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(idle, &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_field(&a, "Connection"), "close");
    assert_true(is_closed(idle));
    int fresh = dial(s.port), always = dial(s.port);
    send_text(fresh, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(fresh, &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_field(&a, "Retry-After"), "1");
    send_text(always, "GET /always HTTP/1.1\r\nHost: x\r\n\r\n");
    hear(always, &a);
    assert_int_equal(a.status, 200);
    assert_true(is_closed(fresh) && is_closed(always));
    close(fresh), close(always);
    post(&s, ANSWER_HELD);
    hear(held, &a);
    assert_string_equal(a.body, "late");
    assert_true(is_closed(held));
    pthread_join(s.thread, NULL); /* it ended by itself */
    iv_http_close(s.http);
    close(s.fd);
    close(held), close(idle), close(streaming);
}

/* Output is sent first, then the loop ends at once. */
static void test_drain_slow_reader(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    int fd = dial_small(s.port, 4096);
    send_text(fd, "GET /stall HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    double t = seconds_now();
    post(&s, DRAIN);
    wait_for(&s.woken, 1);
    post(&s, END_HELD);
    wait_for(&s.woken, 2);
    static answer a;
    hear_as(fd, &a, true);
    size_t got = 0;
    static char piece[100000];
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) > 0;) got += (size_t)n;
    assert_int_equal(got, strlen("3d090\r\n") + 250000 + strlen("\r\n0\r\n\r\n"));
    pthread_join(s.thread, NULL);
    assert_true(seconds_now() - t < 1.9);
    iv_http_close(s.http);
    close(s.fd);
    close(fd);
}

static void test_drain_deadline(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    int held = dial(s.port);
    send_text(held, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    double t = seconds_now();
    post(&s, DRAIN);
    pthread_join(s.thread, NULL);
    assert_true(seconds_now() - t >= 1.9);
    assert_int_equal(atomic_load(&s.gone), 0);
    iv_http_close(s.http);
    assert_int_equal(atomic_load(&s.gone), 1); /* notified at the end */
    close(s.fd);
    close(held);
}

/* Pending clients get a last event, and time for it to be sent. */
static void test_drain_tells_the_late(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    int held = dial(s.port);
    send_text(held, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(&s.handled, 1);
    double t = seconds_now();
    post(&s, DRAIN_NOTIFIED);
    hear(held, &a);
    assert_string_equal(a.body, "late");
    assert_true(is_closed(held));
    pthread_join(s.thread, NULL);
    assert_true(seconds_now() - t >= 0.29 && seconds_now() - t < 1.2);
    iv_http_close(s.http);
    assert_int_equal(atomic_load(&s.gone), 0);
    close(s.fd);
    close(held);
}

static void test_watchers(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    for (int i = 0; i < 5; i++) {
        post(&s, NOTHING);
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
    o.api_key = NULL;
    static const char *const never[] = {"localhost:3000", "http://a, http://b/", "http://", "://a", "nul", "**"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        o.allowed_origins = never[i];
        assert_int_equal(iv_http_open(&o, routes, 1, NULL, &h, &err), IV_INVALID);
        assert_non_null(strstr(err.message, "allowed-origins: wanted *, null or SCHEME://HOST[:PORT]"));
    }
    o.port = 0, o.allowed_origins = "null, chrome-extension://abc,http://[::1]:8000,*";
    ASSERT_OK(iv_http_open(&o, routes, 1, NULL, &h, &err), &err);
    iv_http_close(h);
    iv_http_close(NULL);
    finish(&s);
}

/* ---- many at once */

static size_t resident_bytes(void) {
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &total, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

enum { MANY = 1000 };

/* Idle connections after a request hold little memory. */
static void test_idle_connections(void **state) {
    (void)state;
    served s;
    answer a;
    start_plain(&s);
    static int fd[MANY];
    static char body[20000];
    ask(s.port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", &a);
    size_t before = resident_bytes();
    for (int i = 0; i < MANY; i++) {
        fd[i] = dial(s.port);
        send_text(fd[i], "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n");
        send_bytes(fd[i], body, sizeof body);
        hear(fd[i], &a);
        assert_string_equal(a.body, "20000");
    }
    wait_for(&s.ticks, atomic_load(&s.ticks) + 2);
    assert_int_equal(atomic_load(&s.connections), MANY);
    if (!SANITIZED) assert_true(resident_bytes() - before < (size_t)10 << 20);
    for (int i = 0; i < MANY; i++) close(fd[i]);
    finish(&s);
}

/* Many open streams, written alternately: each client receives its own data. */
static void test_many_streams(void **state) {
    (void)state;
    served s;
    start_plain(&s);
    static int fd[MANY];
    for (int i = 0; i < MANY; i++) {
        char text[128];
        fd[i] = dial(s.port);
        snprintf(text, sizeof text, "GET /ticking?name=%d HTTP/1.1\r\nHost: x\r\n\r\n", i);
        send_text(fd[i], text);
    }
    wait_for(&s.handled, MANY);
    static answer a;
    for (int i = 0; i < MANY; i++) {
        char want[256] = "";
        for (int k = 0; k < TICKED; k++) sprintf(want + strlen(want), "%d:%d ", i, k);
        hear(fd[i], &a);
        assert_string_equal(a.body, want);
        close(fd[i]);
    }
    finish(&s);
}

/* Clients that never finish a head delay no other client, and all receive 408 at the deadline. */
static void test_slowloris(void **state) {
    (void)state;
    enum { SLOW = 500 };
    served s;
    answer a;
    iv_http_options o;
    iv_http_options_init(&o);
    o.head_ms = 1000;
    start(&s, &o);
    static int slow[SLOW];
    double t = seconds_now();
    for (int i = 0; i < SLOW; i++) {
        slow[i] = dial(s.port);
        send_text(slow[i], "POST /echo HTTP/1.1\r\nHost: x\r\nX: ");
    }
    int good = dial(s.port), asked = 0;
    while (seconds_now() - t < 0.8) {
        for (int i = 0; i < SLOW; i += 10) send_text(slow[(asked + i) % SLOW], "x");
        send_text(good, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        hear(good, &a);
        assert_int_equal(a.status, 200);
        asked++;
    }
    assert_true(asked > 20);
    for (int i = 0; i < SLOW; i++) {
        hear(slow[i], &a);
        assert_int_equal(a.status, 408);
        close(slow[i]);
    }
    assert_true(seconds_now() - t >= 0.95);
    close(good);
    wait_for_no_connection(&s);
    finish(&s);
}

/* After running out of files, accepting continues once files are free. */
static void test_no_more_files(void **state) {
    (void)state;
    enum { WAITING = 5 };
    served s;
    start_plain(&s);
    int fd[WAITING], most = 0;
    for (int i = 0; i < WAITING; i++) {
        fd[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(fd[i] >= 0);
        if (fd[i] > most) most = fd[i];
    }
    struct rlimit old, tight;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    tight = (struct rlimit){.rlim_cur = (rlim_t)most + 1, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(s.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < WAITING; i++) {
        assert_int_equal(connect(fd[i], (struct sockaddr *)&to, sizeof to), 0); /* into the backlog */
        send_text(fd[i], "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    wait_for(&s.ticks, atomic_load(&s.ticks) + 20);
    int handled = atomic_load(&s.handled);
    setrlimit(RLIMIT_NOFILE, &old);
    assert_int_equal(handled, 0);
    for (int i = 0; i < WAITING; i++) {
        answer a;
        hear(fd[i], &a);
        assert_int_equal(a.status, 200);
        close(fd[i]);
    }
    finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_half_closed),
        cmocka_unit_test(test_half_closed_stream),
        cmocka_unit_test(test_half_closed_is_idle),
        cmocka_unit_test(test_without_on_gone),
        cmocka_unit_test(test_slow_readers),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_slow_reader),
        cmocka_unit_test(test_drain_deadline),
        cmocka_unit_test(test_drain_tells_the_late),
        cmocka_unit_test(test_watchers),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_idle_connections),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_slowloris),
        cmocka_unit_test(test_no_more_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
