/* Few open files: a server reports what it lacks, or limits its connections; if files run out while it runs, it
 * neither ends nor spins, and continues later. Each test is a separate process, because limits cannot be raised
 * again. */
#include "http_server.h"
#include "serve/server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { ALL_WELL = 42 };

/* Leaves this many free files. */
static void limit_files(int more) {
    int end = 0;
    for (int left = more; left > 0; end++) left -= fcntl(end, F_GETFD) < 0;
    struct rlimit r = {.rlim_cur = (rlim_t)end, .rlim_max = (rlim_t)end};
    if (setrlimit(RLIMIT_NOFILE, &r)) _exit(1);
}

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

static void in_a_process(void (*test)(void)) {
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        test();
        _exit(ALL_WELL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ALL_WELL);
}

/* Checked before the model is opened, whose error would come first otherwise. */
static void server_without_files(void) {
    iv_server_options o;
    iv_error err = {0};
    iv_server_options_init(&o);
    o.bridge.engine.model = "no/such/model", o.http.port = 0;
    CHECK(iv_server_run(&o, &err) == IV_NOT_FOUND || err.status == IV_IO);
    limit_files(12);
    CHECK(iv_server_run(&o, &err) == IV_LIMIT);
    CHECK(strstr(err.message, "open files: wanted a limit of at least ") &&
          strstr(err.message, " (ulimit -n), found "));
}

static void http_without_files(void) {
    iv_http_options o;
    iv_error err = {0};
    iv_http *h;
    iv_http_options_init(&o);
    o.port = 0;
    limit_files(5);
    CHECK(iv_http_open(&o, routes, sizeof routes / sizeof *routes, NULL, &h, &err) == IV_LIMIT && !h);
    CHECK(strncmp(err.message, "open files: ", 12) == 0);
}

/* Exactly as many as needed: a few connections. */
static void just_enough(void) {
    iv_http_options o;
    iv_error err = {0};
    iv_http *h = NULL;
    int more = 40;
    iv_http_options_init(&o);
    o.port = 0;
    for (; more > 0; more--) {
        limit_files(more);
        if (iv_http_open(&o, routes, sizeof routes / sizeof *routes, NULL, &h, &err) != IV_OK) break;
        CHECK(iv_http_connections_max(h) >= 4 && iv_http_connections_max(h) < (size_t)more);
        iv_http_close(h);
    }
    size_t wanted = 0, found = 0;
    CHECK(sscanf(err.message, "open files: wanted a limit of at least %zu (ulimit -n), found %zu", &wanted, &found) ==
          2);
    CHECK(wanted == found + 1 && more > 5);
}

static served s;

/* A byte of an answer's status line; 0: no answer. */
static int status_of(int fd) {
    char text[4096];
    bool closed;
    int status = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 300) <= 0) return 0;
    hear_until(fd, text, sizeof text, "\r\n", &closed);
    sscanf(text, "HTTP/1.1 %d", &status);
    return status;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* More clients than connections: some are refused, all others are answered. */
static void many_clients(void) {
    enum { CLIENTS = 40 };
    int fds[CLIENTS], port[2], answered = 0, refused = 0;
    char go;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, port) == 0);
    pid_t server = fork();
    if (server == 0) {
        limit_files(30);
        start_plain(&s);
        CHECK(write(port[1], &s.port, sizeof s.port) == sizeof s.port);
        CHECK(iv_http_connections_max(s.http) < CLIENTS);
        usleep(100000);
        double before = cpu_seconds();
        while (read(port[1], &go, 1) != 1) continue;
        CHECK(cpu_seconds() - before < 1); /* it waits, and does not spin */
        CHECK(iv_http_files_short(s.http) == 0);
        finish(&s);
        _exit(ALL_WELL);
    }
    uint16_t at;
    CHECK(read(port[0], &at, sizeof at) == sizeof at);
    for (int i = 0; i < CLIENTS; i++) fds[i] = dial(at), send_text(fds[i], "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    for (int i = 0; i < CLIENTS; i++) {
        int status = status_of(fds[i]);
        answered += status == 200, refused += status == 503;
    }
    CHECK(answered >= 4 && refused >= 1);
    for (int i = 0; i < CLIENTS; i++) close(fds[i]);
    usleep(50000);
    int again = dial(at);
    send_text(again, "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(status_of(again) == 200);
    CHECK(write(port[0], "!", 1) == 1);
    int status = 0;
    waitpid(server, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == ALL_WELL);
}

/* All free files are taken: clients wait, and are answered later. */
static void files_that_run_out(void) {
    int taken[64], count = 0, port[2];
    char go;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, port) == 0);
    pid_t server = fork();
    if (server == 0) {
        limit_files(40);
        start_plain(&s);
        while (count < 64 && (taken[count] = open("/dev/null", O_RDONLY)) >= 0) count++;
        CHECK(write(port[1], &s.port, sizeof s.port) == sizeof s.port);
        while (iv_http_files_short(s.http) < 3) usleep(1000); /* retried at intervals */
        double before = cpu_seconds();
        usleep(500000);
        CHECK(cpu_seconds() - before < 0.25);
        uint64_t tries = iv_http_files_short(s.http);
        CHECK(tries < 100);
        while (count > 0) close(taken[--count]);
        while (read(port[1], &go, 1) != 1) continue;
        finish(&s);
        _exit(ALL_WELL);
    }
    uint16_t at;
    CHECK(read(port[0], &at, sizeof at) == sizeof at);
    int fd = dial(at);
    send_text(fd, "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
    int status = 0;
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; status == 0 && seconds_now() < end;) status = status_of(fd);
    CHECK(status == 200);
    CHECK(write(port[0], "!", 1) == 1);
    waitpid(server, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == ALL_WELL);
}

#define IN_A_PROCESS(name)                  \
    static void test_##name(void **state) { \
        (void)state;                        \
        in_a_process(name);                 \
    }
IN_A_PROCESS(server_without_files)
IN_A_PROCESS(http_without_files)
IN_A_PROCESS(just_enough)
IN_A_PROCESS(many_clients)
IN_A_PROCESS(files_that_run_out)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_server_without_files),
                                       cmocka_unit_test(test_http_without_files), cmocka_unit_test(test_just_enough),
                                       cmocka_unit_test(test_many_clients), cmocka_unit_test(test_files_that_run_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
