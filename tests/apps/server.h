/* server.h: invar serve as a process, and requests to it. */
#ifndef IV_TESTS_SERVER_H
#define IV_TESTS_SERVER_H

#include "program.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { START_MS = 20000, STEP_MS = 10 };

static char reply[OUTPUT_MAX];

static inline void rest(void) { nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL); }

/* Waits until standard error has the words; returns the text after them. */
static inline const char *await_words(pid_t pid, const char *words) {
    for (int waited = 0; waited < START_MS; waited += STEP_MS) {
        int status;
        read_back("err", came.err);
        const char *at = strstr(came.err, words);
        if (at && strchr(at, '\n')) return at + strlen(words);
        if (waitpid(pid, &status, WNOHANG) == pid) fail_msg("it ended: %s", came.err);
        rest();
    }
    kill(pid, SIGKILL);
    fail_msg("no \"%s\" in: %s", words, came.err);
    return NULL;
}

/* Starts a server by these words and waits until it listens on *port. */
static inline pid_t serve_by(uint16_t *port, const char *const *words) {
    write_file("err", "", 0); /* drop the log of an earlier server */
    pid_t pid = start(NULL, -1, words);
    unsigned found;
    assert_int_equal(sscanf(await_words(pid, "listening on http://127.0.0.1:"), "%u", &found), 1);
    assert_in_range(found, 1, 65535);
    *port = (uint16_t)found;
    return pid;
}

/* The same for tiny-math on one thread, with more flags (NULL: none). */
static inline pid_t serve(uint16_t *port, const char *const *more) {
    const char *words[ARGS_MAX] = {"serve", "tiny-math", "--port", "0", "--threads", "1", "--max-model-len", "256"};
    for (size_t n = 8; more && *more; more++) words[n++] = *more;
    return serve_by(port, words);
}

/* Stops a server, which must exit with 0; its log is in came.err. */
static inline void end(pid_t pid, int signal_number) {
    assert_int_equal(kill(pid, signal_number), 0);
    finish(pid);
    if (came.code != 0) fail_msg("exit code %d: %s", came.code, came.err);
    assert_int_equal(came.out_bytes, 0);
}

static inline int dial(uint16_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static inline void say_to(int fd, const char *text) { assert_int_equal(send(fd, text, strlen(text), 0), strlen(text)); }

/* One request on a connection that the server closes; the whole answer is in `reply`. Returns its status. */
static inline int ask_text(uint16_t port, const char *text) {
    int fd = dial(port), status = 0;
    assert_true(fd >= 0);
    say_to(fd, text);
    size_t n = 0;
    for (ssize_t got; (got = recv(fd, reply + n, sizeof reply - 1 - n, 0)) > 0;) n += (size_t)got;
    reply[n] = 0;
    close(fd);
    sscanf(reply, "HTTP/1.1 %d", &status);
    return status;
}

static inline int ask_host(uint16_t port, const char *host, const char *head, const char *headers) {
    char text[1024];
    snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n", head, host, headers);
    return ask_text(port, text);
}
static inline int ask(uint16_t port, const char *head, const char *headers) {
    return ask_host(port, "localhost", head, headers);
}

#endif
