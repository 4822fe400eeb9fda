/* test_http_concurrency.c: thousands of concurrent clients, more than the limit: each gets an answer or a refusal,
 * and no reset. */
#include "http_server.h"

#include <sys/resource.h>

enum { CLIENTS = 3000, ADDRESSES = 8, ROOM = 1000, SPARE_FILES = 800 };

static bool raise_files(size_t wanted) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r)) return false;
    if (r.rlim_cur < wanted) r.rlim_cur = r.rlim_max < wanted ? r.rlim_max : wanted;
    return setrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur >= wanted;
}

/* From 127.0.0.(2 + which). */
static int dial_from(uint16_t port, size_t which) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)}, from = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK), from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + (uint32_t)which);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

typedef struct tally {
    int good, busy, too_many;
} tally;

/* All connect, then all send, then all read: a refusal is readable although the request was sent after it. */
static tally ask_all(uint16_t port, int fds[CLIENTS]) {
    static answer a;
    tally t = {0};
    for (size_t i = 0; i < CLIENTS; i++) fds[i] = dial_from(port, i % ADDRESSES);
    for (size_t i = 0; i < CLIENTS; i++)
        send_text(fds[i], "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    for (size_t i = 0; i < CLIENTS; i++) {
        hear(fds[i], &a);
        if (a.closed) fail_msg("client %zu: the connection ended without an answer", i);
        t.good += a.status == 200, t.busy += a.status == 503, t.too_many += a.status == 429;
        if (a.status == 503) assert_non_null(strstr(a.body, "too many connections\""));
        if (a.status == 429) assert_non_null(strstr(a.body, "--max-connections-per-client"));
        if (a.status != 200) assert_string_equal(answer_field(&a, "Retry-After"), "1");
    }
    return t;
}

static void hang_up_all(int fds[CLIENTS], served *s) {
    for (size_t i = 0; i < CLIENTS; i++) close(fds[i]);
    wait_for_no_connection(s);
}

static void test_concurrent_clients(void **state) {
    (void)state;
    static int fds[CLIENTS];
    served s;
    iv_http_options o;
    if (!raise_files(CLIENTS + ROOM + SPARE_FILES)) {
        printf("  SKIPPED: concurrency: needs %d open files (ulimit -n)\n", CLIENTS + ROOM + SPARE_FILES);
        skip();
    }
    iv_http_options_init(&o);
    o.connections_max = ROOM;
    start(&s, &o);
    for (int round = 0; round < 2; round++) { /* no leaked connections */
        tally t = ask_all(s.port, fds);
        assert_int_equal(t.good + t.busy, CLIENTS);
        assert_int_equal(t.good, ROOM);
        hang_up_all(fds, &s);
    }
    assert_int_equal(iv_http_refused(s.http), 2 * (CLIENTS - ROOM));
    finish(&s);
}

/* The limit is per address; closing a connection frees its slot. */
static void test_limit_per_address(void **state) {
    (void)state;
    enum { EACH = 50 };
    static int fds[CLIENTS];
    served s;
    answer a;
    iv_http_options o;
    if (!raise_files(CLIENTS + ROOM + SPARE_FILES)) {
        printf("  SKIPPED: concurrency: needs %d open files (ulimit -n)\n", CLIENTS + ROOM + SPARE_FILES);
        skip();
    }
    iv_http_options_init(&o);
    o.connections_max = ROOM, o.client_connections_max = EACH;
    start(&s, &o);
    for (int round = 0; round < 2; round++) {
        tally t = ask_all(s.port, fds);
        assert_int_equal(t.good, ADDRESSES * EACH);
        assert_int_equal(t.too_many, CLIENTS - ADDRESSES * EACH);
        if (round == 0) {
            int other = dial_from(s.port, ADDRESSES);
            send_text(other, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            hear(other, &a);
            assert_int_equal(a.status, 200);
            close(other), close(fds[0]);
            do { /* room is free soon */
                usleep(1000);
                fds[0] = dial_from(s.port, 0);
                send_text(fds[0], "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
                hear(fds[0], &a);
                if (a.status != 200) close(fds[0]);
            } while (a.status != 200);
        }
        hang_up_all(fds, &s);
    }
    finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_concurrent_clients),
                                       cmocka_unit_test(test_limit_per_address)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
