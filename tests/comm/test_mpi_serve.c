/* invar serve under mpirun: if a rank is lost or the job is ended, every open request ends with an error in time. */
#include "mpi_job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { START_S = 30, STREAMS = 3, WHOLE = 3, OPEN = STREAMS + WHOLE, REPLY_MAX = 1 << 20 };

typedef struct server {
    job job;
    uint16_t port;
} server;

static server serve(const char *flags) {
    char line[1000], text[8192];
    server s;
    unsigned port = 0;
    snprintf(line, sizeof line,
             MPIRUN "-n 3 " INVAR "serve models/tiny-math --port 0 --isa scalar --max-model-len 2040 %s", flags);
    s.job = start(line);
    for (double begin = seconds(); port == 0 && seconds() - begin < START_S; usleep(20000)) {
        int fd = open(s.job.errors, O_RDONLY);
        ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        text[n > 0 ? n : 0] = 0;
        const char *at = strstr(text, "listening on http://127.0.0.1:");
        if (at && strchr(at, '\n')) sscanf(at, "listening on http://127.0.0.1:%u", &port);
    }
    if (port == 0) fail_msg("the server does not listen: %s", text);
    s.port = (uint16_t)port;
    return s;
}

/* A long answer: streamed or whole. */
static int ask(uint16_t port, bool stream) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char body[200], text[600];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    snprintf(body, sizeof body, "{\"prompt\":[1,2,3],\"max_tokens\":2000,\"ignore_eos\":true,\"seed\":1%s}",
             stream ? ",\"stream\":true" : "");
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    return fd;
}

/* Reads the reply up to its end, which the server must have sent. */
static const char *read_reply(int fd) {
    static char reply[REPLY_MAX];
    size_t n = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, START_S * 1000) <= 0) fail_msg("no end of an answer");
        ssize_t got = recv(fd, reply + n, sizeof reply - 1 - n, 0);
        if (got < 0) fail_msg("after %zu bytes: %s", n, strerror(errno));
        if (got == 0) break;
        n += (size_t)got;
    }
    reply[n] = 0;
    close(fd);
    return reply;
}

/* Signals the rank's process, or mpirun (-1), while all requests are open. Each must end with an error that contains
 * `words`, and the job must fail. Returns the seconds until the last error. */
static double errors_after(const char *flags, int rank, int sig, const char *words) {
    server s = serve(flags);
    int fds[OPEN];
    char first[1], *out, *errors;
    for (int i = 0; i < OPEN; i++) fds[i] = ask(s.port, i < STREAMS);
    for (int i = 0; i < STREAMS; i++) assert_int_equal(recv(fds[i], first, 1, MSG_PEEK), 1);
    pid_t pid = rank < 0 ? s.job.pid : rank_pid(&s.job, rank);
    double begin = seconds();
    assert_int_equal(kill(pid, sig), 0);
    for (int i = 0; i < OPEN; i++) {
        const char *reply = read_reply(fds[i]);
        const char *error =
            strstr(reply, i < STREAMS ? "data: {\"error\":{\"message\":\"" : "{\"error\":{\"message\":\"");
        if (!error || !strstr(error, words)) fail_msg("request %d: wanted \"%s\", found: %s", i, words, reply);
        if (i >= STREAMS) assert_int_equal(strncmp(reply, "HTTP/1.1 50", 11), 0);
        if (i < STREAMS) assert_non_null(strstr(error, "\r\n0\r\n\r\n")); /* the stream is terminated */
        assert_null(strstr(reply, "[DONE]"));
    }
    double took = seconds() - begin;
    int code = finish(&s.job, &out, &errors);
    printf("rank %d, signal %d: errors after %.2f s, exit %d\n", rank, sig, took, code);
    assert_int_not_equal(code, 0);
    while (is_alive(pid) && seconds() - begin < START_S) usleep(50000);
    assert_false(is_alive(pid));
    free(out), free(errors);
    return took;
}

/* Within max_s in one of three attempts: other programs delay processes. */
static void expect_errors(const char *flags, int rank, int sig, const char *words, double max_s) {
    double took = errors_after(flags, rank, sig, words);
    for (int i = 0; i < 2 && took > max_s; i++) took = errors_after(flags, rank, sig, words);
    if (took > max_s) fail_msg("wanted all errors within %.1f s, found %.2f", max_s, took);
}

static void a_rank_is_killed(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    expect_errors("", 1, SIGKILL, "rank 1: its process has ended: the job cannot continue", 1.8);
    expect_errors("", 2, SIGKILL, "rank 2: its process has ended: the job cannot continue", 1.8);
}

static void a_rank_hangs(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    expect_errors("--rank-timeout 1500", 1, SIGSTOP, "no answer to rank 0 for 1.5 s", 6);
}

/* mpirun sends SIGKILL one second after its SIGTERM. */
static void the_job_is_ended(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    expect_errors("", -1, SIGTERM, "the server is shutting down", 2.5);
}

/* Without requests no step detects the loss, but mpirun does; the end of the server may detect it first. It must not
 * report success. */
static void a_rank_of_an_idle_server_is_killed(void **state) {
    (void)state;
    SKIP_WITHOUT_MPI();
    char *out, *errors;
    server s = serve("");
    assert_int_equal(kill(rank_pid(&s.job, 1), SIGKILL), 0);
    assert_int_not_equal(finish(&s.job, &out, &errors), 0);
    bool reported = strstr(errors, "invar: mpirun ended the job: another rank was lost") ||
                    strstr(errors, "invar: rank 1: its process has ended: the job cannot continue");
    if (!reported || strstr(errors, "Z drained")) fail_msg("wanted the end of the job, found: %s", errors);
    free(out), free(errors);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_is_killed), cmocka_unit_test(a_rank_hangs),
                                       cmocka_unit_test(the_job_is_ended),
                                       cmocka_unit_test(a_rank_of_an_idle_server_is_killed)};
    return cmocka_run_group_tests(tests, begin_jobs, end_jobs);
}
