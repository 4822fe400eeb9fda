/* tcp_store.c: the queries in use: VALIDATE, ADD, CHECK, GET. A key of a user begins with "/", which torch's own client
 * adds. */
#include "serve/weights/tcp_store.h"
#include "base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VALIDATE = 0, GET = 3, ADD = 4, CHECK = 5, READY = 0, LOOK_MS = 50, RETRY_MS = 200 };
static const uint32_t MAGIC = 0x3C85F7CE;

static iv_status lost(const char *what, iv_error *err) {
    return iv_fail(err, IV_IO, "the trainer's store: %s: %s", what,
                   errno ? strerror(errno) : "it closed the connection");
}

/* Waits for the socket in small steps. */
static iv_status await(const iv_tcp_store *s, short events, iv_error *err) {
    for (;;) {
        struct pollfd p = {.fd = s->fd, .events = events};
        if (poll(&p, 1, LOOK_MS) > 0) return IV_OK;
        if (atomic_load(s->stop)) return iv_fail(err, IV_IO, "the trainer's store: the server is shutting down");
        if (iv_now() > s->deadline) return iv_fail(err, IV_IO, "the trainer's store: it did not answer in time");
    }
}

static iv_status send_all(const iv_tcp_store *s, const void *bytes, size_t n, iv_error *err) {
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(s->fd, (const char *)bytes + at, n - at, MSG_NOSIGNAL);
        if (sent > 0) at += (size_t)sent;
        if (sent > 0) continue;
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return lost("cannot send", err);
        IV_TRY(await(s, POLLOUT, err));
    }
    return IV_OK;
}

static iv_status receive_all(const iv_tcp_store *s, void *bytes, size_t n, iv_error *err) {
    for (size_t at = 0; at < n;) {
        errno = 0;
        ssize_t got = recv(s->fd, (char *)bytes + at, n - at, 0);
        if (got > 0) at += (size_t)got;
        if (got > 0) continue;
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) return lost("cannot receive", err);
        IV_TRY(await(s, POLLIN, err));
    }
    return IV_OK;
}

/* ---- connecting --------------------------------------------------------------------------------------- */

/* 0, or errno. */
static int connect_one(iv_tcp_store *s, const struct addrinfo *a) {
    const int on = 1;
    iv_error unused;
    socklen_t n = sizeof(int);
    int why = 0;
    s->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (s->fd < 0) return errno;
    if (connect(s->fd, a->ai_addr, a->ai_addrlen) != 0) why = errno;
    if (why == EINPROGRESS) {
        why = ETIMEDOUT;
        if (await(s, POLLOUT, &unused) == IV_OK && getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0) why = errno;
    }
    if (why == 0) setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (why) iv_tcp_store_close(s);
    return why;
}

static iv_status connect_any(iv_tcp_store *s, const char *host, uint16_t port, iv_error *err) {
    char service[8];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int code = getaddrinfo(host, service, &want, &found), why = EADDRNOTAVAIL;
    if (code) return iv_fail(err, IV_INVALID, "master_address: %.200s: %s", host, gai_strerror(code));
    for (const struct addrinfo *a = found; a && why; a = a->ai_next) why = connect_one(s, a);
    freeaddrinfo(found);
    return why ? iv_fail(err, IV_IO, "the trainer's store at %.200s port %u: %s", host, (unsigned)port, strerror(why))
               : IV_OK;
}

iv_status iv_tcp_store_open(const char *host, uint16_t port, double seconds, const atomic_bool *stop, iv_tcp_store *out,
                            iv_error *err) {
    struct {
        uint8_t query;
        uint8_t magic[sizeof MAGIC];
    } hello = {.query = VALIDATE};
    iv_status status;
    *out = (iv_tcp_store){.fd = -1, .deadline = iv_now() + seconds, .stop = stop};
    while ((status = connect_any(out, host, port, err)) == IV_IO && iv_now() < out->deadline && !atomic_load(stop))
        poll(NULL, 0, RETRY_MS);
    if (status != IV_OK) return status;
    memcpy(hello.magic, &MAGIC, sizeof MAGIC);
    status =
        send_all(out, &hello, sizeof hello, err); /* another kind of server closes the connection, or is found by ADD */
    if (status != IV_OK) iv_tcp_store_close(out);
    return status;
}

void iv_tcp_store_close(iv_tcp_store *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

/* ---- queries ------------------------------------------------------------------------------------------ */

static bool put_key(iv_buf *b, const char *key) {
    uint64_t n = strlen(key);
    return iv_buf_append(b, &n, sizeof n) && iv_buf_append(b, key, (size_t)n);
}

/* A query of one key and perhaps a number. CHECK takes a list of keys: one. */
static iv_status ask(const iv_tcp_store *s, uint8_t query, const char *key, const int64_t *number, iv_error *err) {
    iv_buf b = {0};
    uint64_t one = 1;
    bool ok = iv_buf_append(&b, &query, 1) && (query != CHECK || iv_buf_append(&b, &one, sizeof one)) &&
              put_key(&b, key) && (!number || iv_buf_append(&b, number, sizeof *number));
    iv_status status =
        ok ? send_all(s, b.data, b.len, err) : iv_fail(err, IV_NO_MEMORY, "the trainer's store: no memory");
    iv_buf_free(&b);
    return status;
}

iv_status iv_tcp_store_add(iv_tcp_store *s, const char *key, int64_t n, int64_t *result, iv_error *err) {
    IV_TRY(ask(s, ADD, key, &n, err));
    return receive_all(s, result, sizeof *result, err);
}

iv_status iv_tcp_store_has(iv_tcp_store *s, const char *key, bool *has, iv_error *err) {
    uint8_t answer;
    IV_TRY(ask(s, CHECK, key, NULL, err));
    IV_TRY(receive_all(s, &answer, sizeof answer, err));
    *has = answer == READY;
    return IV_OK;
}

iv_status iv_tcp_store_get(iv_tcp_store *s, const char *key, iv_buf *value, iv_error *err) {
    uint64_t n;
    IV_TRY(ask(s, GET, key, NULL, err));
    IV_TRY(receive_all(s, &n, sizeof n, err));
    if (n > IV_TCP_STORE_VALUE_MAX)
        return iv_fail(err, IV_IO, "the trainer's store: wanted a value of at most %d bytes, found %llu",
                       IV_TCP_STORE_VALUE_MAX, (unsigned long long)n);
    iv_buf_clear(value);
    if (!iv_buf_reserve(value, (size_t)n + 1)) return iv_fail(err, IV_NO_MEMORY, "the trainer's store: no memory");
    IV_TRY(receive_all(s, value->data, (size_t)n, err));
    value->len = (size_t)n;
    return IV_OK;
}
