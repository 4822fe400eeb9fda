/* test_http_memory.c: running out of memory costs a client its connection and affects no others: each allocation of
 * the server's thread fails once. The linker wraps the C library's functions (tests/CMakeLists.txt). */
#include "http_server.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);

static atomic_long until_failure = -1; /* allocations of the server's thread before the failure; -1: none fails */
static atomic_int failures;
static served server;

static bool fails(void) {
    if (atomic_load(&until_failure) < 0 || !pthread_equal(pthread_self(), server.thread)) return false;
    if (atomic_fetch_sub(&until_failure, 1) > 0) return false;
    atomic_fetch_add(&failures, 1);
    return true;
}

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t count, size_t n) { return fails() ? NULL : __real_calloc(count, n); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }

static const char *const scripts[] = {
    "GET /echo HTTP/1.1\r\nHost: x\r\n\r\nGET /stream HTTP/1.0\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 70\r\nExpect: 100-continue\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /keyed HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\n",
    ("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS /echo HTTP/1.1\r\nHost: x\r\nOrigin: http://o\r\nConnection: "
     "close\r\n\r\n"),
};

/* Sends the script and reads to the end. True if no allocation failed. */
static bool survives(const char *script, long k) {
    static char text[1 << 16];
    bool closed;
    atomic_store(&failures, 0);
    atomic_store(&until_failure, k);
    int fd = dial(server.port);
    send_text(fd, script);
    shutdown(fd, SHUT_WR);
    hear_until(fd, text, sizeof text, NULL, &closed);
    close(fd);
    assert_true(closed);
    atomic_store(&until_failure, -1);
    return atomic_load(&failures) == 0;
}

static void test_each_allocation_fails(void **state) {
    (void)state;
    iv_http_options o;
    iv_http_options_init(&o);
    o.allowed_origins = "http://o", o.api_key = "k";
    start(&server, &o);
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        long k = 0;
        while (!survives(scripts[i], k)) {
            answer a;
            ask(server.port, "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", &a);
            assert_int_equal(a.status, 200);
            assert_true(++k < 1000);
        }
        assert_true(k > 3); /* some allocation failed */
    }
    finish(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
