/* http_client.h: raw sockets to a server of http.h that runs on a thread of the test. */
#ifndef IV_TESTS_HTTP_CLIENT_H
#define IV_TESTS_HTTP_CLIENT_H

#include "support.h"

#include "serve/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

enum { PATIENCE_MS = 15000 };

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* receive_bytes: size of the socket's buffer; 0: default. */
static inline int dial_small(uint16_t port, int receive_bytes) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}
static inline int dial(uint16_t port) { return dial_small(port, 0); }

static inline void send_bytes(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t wrote = send(fd, bytes, n, MSG_NOSIGNAL);
        if (wrote <= 0) return; /* the server has closed: its output can still be read */
        bytes += wrote, n -= (size_t)wrote;
    }
}
static inline void send_text(int fd, const char *text) { send_bytes(fd, text, strlen(text)); }

/* Reads until `end` was read, the peer closed or *text is full. Returns the bytes read. */
static inline size_t hear_until(int fd, char *text, size_t size, const char *end, bool *closed) {
    size_t n = 0;
    *closed = false;
    text[0] = 0;
    while (n + 1 < size && !(end && n >= strlen(end) && memcmp(text + n - strlen(end), end, strlen(end)) == 0)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, PATIENCE_MS) <= 0) fail_msg("nothing came for %d ms after: %s", PATIENCE_MS, text);
        ssize_t got = recv(fd, text + n, end ? 1 : size - 1 - n, 0);
        if (got <= 0) {
            *closed = true;
            break;
        }
        n += (size_t)got;
        text[n] = 0;
    }
    return n;
}

typedef struct answer {
    int status;
    bool closed; /* before a complete answer */
    char head[8192];
    char body[1 << 16];
    size_t body_bytes;
} answer;

static inline const char *answer_field(const answer *a, const char *name) {
    static char value[1024];
    char find[64];
    snprintf(find, sizeof find, "\r\n%s: ", name);
    const char *at = strcasestr(a->head, find);
    if (!at) return NULL;
    at += strlen(find);
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
    return value;
}

static inline void hear_exactly(int fd, char *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, to + at, n - at, MSG_WAITALL);
        if (got <= 0) fail_msg("the body ended after %zu of %zu bytes", at, n);
        at += (size_t)got;
    }
}

static inline void hear_chunks(int fd, answer *a) {
    for (;;) {
        char line[64];
        bool closed;
        hear_until(fd, line, sizeof line, "\r\n", &closed);
        if (closed) {
            a->closed = true;
            return;
        }
        size_t n = strtoul(line, NULL, 16);
        assert_true(a->body_bytes + n + 2 < sizeof a->body);
        hear_exactly(fd, a->body + a->body_bytes, n + 2);
        assert_memory_equal(a->body + a->body_bytes + n, "\r\n", 2);
        a->body_bytes += n;
        if (n == 0) return;
    }
}

/* Reads one answer, with its body unless `head_only`. */
static inline void hear_as(int fd, answer *a, bool head_only) {
    *a = (answer){0};
    hear_until(fd, a->head, sizeof a->head, "\r\n\r\n", &a->closed);
    if (a->closed) return;
    assert_int_equal(sscanf(a->head, "HTTP/1.1 %d ", &a->status), 1);
    if (head_only || a->status == 100 || a->status == 204) return;
    const char *length = answer_field(a, "Content-Length");
    if (length) {
        a->body_bytes = strtoul(length, NULL, 10);
        assert_true(a->body_bytes < sizeof a->body);
        hear_exactly(fd, a->body, a->body_bytes);
    } else if (answer_field(a, "Transfer-Encoding")) {
        hear_chunks(fd, a);
    } else {
        a->body_bytes = hear_until(fd, a->body, sizeof a->body, NULL, &a->closed);
    }
    a->body[a->body_bytes] = 0;
}
static inline void hear(int fd, answer *a) { hear_as(fd, a, false); }

/* Connects, sends, reads the answer and closes. */
static inline void ask(uint16_t port, const char *text, answer *a) {
    int fd = dial(port);
    send_text(fd, text);
    hear(fd, a);
    close(fd);
}

static inline bool is_closed(int fd) {
    char text[4096];
    bool closed;
    hear_until(fd, text, sizeof text, NULL, &closed);
    return closed;
}

#endif
