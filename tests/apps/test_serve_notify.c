/* Messages to a service manager: a start that goes on, readiness, a watchdog, reloads, the end. This test is the
 * manager: it reads the datagrams sent to $NOTIFY_SOCKET. */
#include "server.h"

#include <poll.h>
#include <sys/un.h>

enum { PATIENCE_MS = 20000, WATCHDOG_MS = 300 };

/* A socket of this name; '@' stands for the abstract namespace. */
static int listen_at(const char *name) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    size_t n = strlen(name);
    assert_true(fd >= 0 && n < sizeof a.sun_path);
    memcpy(a.sun_path, name, n);
    if (*name == '@') a.sun_path[0] = 0;
    assert_int_equal(
        bind(fd, (const struct sockaddr *)(const void *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
        0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

/* The next message; "": none came in time. */
static const char *next_message(int fd, int ms) {
    static char text[1024];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    text[0] = 0;
    if (poll(&p, 1, ms) <= 0) return text;
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    assert_true(n > 0);
    text[n] = 0;
    return text;
}

/* The next message that begins so; others are counted. */
static const char *await_message(int fd, const char *words, unsigned *others) {
    unsigned unused;
    for (*(others ? others : &unused) = 0;; ++*(others ? others : &unused)) {
        const char *m = next_message(fd, PATIENCE_MS);
        if (!*m) fail_msg("no message %s", words);
        if (strncmp(m, words, strlen(words)) == 0) return m;
    }
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void a_service(const char *name) {
    char usec[32];
    uint16_t port;
    int fd = listen_at(name);
    snprintf(usec, sizeof usec, "%d", WATCHDOG_MS * 1000);
    setenv("WATCHDOG_USEC", usec, 1);
    unsetenv("WATCHDOG_PID");
    pid_t pid = serve(&port, NULL);
    const char *m = next_message(fd, PATIENCE_MS);
    assert_int_equal(strncmp(m, "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=loading the model: ", 54), 0);
    unsigned others;
    assert_string_equal(await_message(fd, "READY=1", NULL), "READY=1\nSTATUS=listening");
    double begin = seconds_now();
    enum { BEATS = 8 };
    for (int i = 0; i < BEATS; i++) await_message(fd, "WATCHDOG=1", NULL);
    double each = (seconds_now() - begin) / BEATS * 1000;
    if (each > WATCHDOG_MS) fail_msg("a message every %.0f ms, wanted one in %d", each, WATCHDOG_MS);
    assert_int_equal(ask(port, "GET /ping", ""), 200);
    await_message(fd, "STATUS=listening, 0 requests run, 0 wait, 0 engine restarts", NULL);
    assert_int_equal(kill(pid, SIGHUP), 0);
    m = await_message(fd, "RELOADING=1\nMONOTONIC_USEC=", NULL);
    double at = strtod(strrchr(m, '=') + 1, NULL) * 1e-6;
    assert_true(at > begin && at < seconds_now() + 0.001);
    await_message(fd, "READY=1", &others);
    assert_int_equal(kill(pid, SIGSTOP), 0); /* a process that hangs sends nothing: the watchdog would find it */
    while (*next_message(fd, 0)) continue;
    assert_string_equal(next_message(fd, 3 * WATCHDOG_MS), "");
    assert_int_equal(kill(pid, SIGCONT), 0);
    await_message(fd, "WATCHDOG=1", NULL);
    end(pid, SIGTERM);
    assert_string_equal(await_message(fd, "STOPPING=1", NULL),
                        "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=40000000");
    close(fd);
}

static void a_path(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("notify"));
    a_service(path);
    unlink(path);
}

static void an_abstract_name(void **state) {
    (void)state;
    char name[64];
    snprintf(name, sizeof name, "@invar-test-%d", (int)getpid());
    a_service(name);
}

/* No watchdog of another process, and no harm by a socket that is gone or a name that is none. */
static void without_a_manager(void **state) {
    (void)state;
    static const char *const names[] = {"/no/such/socket", "relative", ""};
    uint16_t port;
    char name[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        end(serve(&port, NULL), SIGTERM);
    }
    snprintf(name, sizeof name, "@invar-test2-%d", (int)getpid());
    int fd = listen_at(name);
    setenv("WATCHDOG_PID", "1", 1);
    pid_t pid = serve(&port, NULL);
    await_message(fd, "READY=1", NULL);
    for (const char *m; *(m = next_message(fd, 2 * WATCHDOG_MS));) assert_null(strstr(m, "WATCHDOG"));
    end(pid, SIGTERM);
    close(fd);
    unsetenv("NOTIFY_SOCKET"), unsetenv("WATCHDOG_USEC"), unsetenv("WATCHDOG_PID");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_path), cmocka_unit_test(an_abstract_name),
                                       cmocka_unit_test(without_a_manager)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
