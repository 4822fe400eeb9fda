/* listen.c: the listening sockets of a server, one for each address of its host, all on one port; and the limit
 * of open files. */
#include "base/size.h"
#include "serve/http/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_AT_ONCE = 64, PORT_TRIES = 16 };

/* ---- accepting ---------------------------------------------------------------------------------------- */

static void stop_accepting(iv_http *h) {
    for (size_t i = 0; i < h->listener_count; i++) event_del(h->listeners[i].accepting);
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    iv_http_begin_accepting(arg);
}

static void on_accept(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    iv_http *h = arg;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct sockaddr_storage from = {0};
        socklen_t n = sizeof from;
        if (!iv_http_has_capacity(h)) { /* clients wait in the backlog */
            h->accept_paused = true;
            stop_accepting(h);
            return;
        }
        int client = accept4(fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            h->files_short++;
            struct timeval soon = {.tv_usec = IV_HTTP_ACCEPT_RETRY_MS * 1000};
            /* their events would fire again at once */
            stop_accepting(h);
            event_add(h->accept_again, &soon);
            return;
        }
        if (client < 0) return;
        iv_connection_open(h, client, (const struct sockaddr *)&from);
    }
}

bool iv_http_accept(iv_http *h) {
    h->accept_again = event_new(h->base, -1, 0, on_accept_again, h);
    for (size_t i = 0; i < h->listener_count; i++) {
        struct event *e = event_new(h->base, h->listeners[i].fd, EV_READ | EV_PERSIST, on_accept, h);
        h->listeners[i].accepting = e;
        if (!e || event_add(e, NULL)) return false;
    }
    return h->accept_again != NULL;
}

void iv_http_stop_listening(iv_http *h) {
    for (size_t i = 0; i < h->listener_count; i++) {
        if (h->listeners[i].accepting) event_free(h->listeners[i].accepting);
        close(h->listeners[i].fd);
    }
    h->listener_count = 0;
    if (h->accept_again) event_free(h->accept_again);
    h->accept_again = NULL;
}

/* ---- listening ---------------------------------------------------------------------------------------- */

/* Options inherited by accepted sockets: no delay, keep-alive that finds a dead peer within two minutes, and few
 * unsent bytes in the kernel, so that the server sees slow readers. */
static void set_options(int fd) {
    const int on = 1, idle_s = 60, between_s = 15, probes = 4, unsent = IV_HTTP_UNSENT_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

static uint16_t *port_of(struct sockaddr *a) {
    return a->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)(void *)a)->sin6_port
                                    : &((struct sockaddr_in *)(void *)a)->sin_port;
}

/* Adds a listener; 0, or errno. */
static int listen_at(iv_http *h, const struct addrinfo *a, uint16_t port, bool alone) {
    struct sockaddr_storage to = {0};
    const int on = 1;
    if (h->listener_count == IV_HTTP_LISTENERS_MAX) return ENOBUFS;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol), why = 0;
    if (fd < 0) return errno;
    set_options(fd);
    /* "::" alone takes IPv4 too; together with 0.0.0.0 it must not. */
    if (a->ai_family == AF_INET6 && !alone) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    memcpy(&to, a->ai_addr, a->ai_addrlen);
    *port_of((struct sockaddr *)&to) = htons(port);
    if (bind(fd, (struct sockaddr *)&to, a->ai_addrlen) || listen(fd, IV_HTTP_BACKLOG)) why = errno;
    if (why)
        close(fd);
    else
        h->listeners[h->listener_count++].fd = fd;
    return why;
}

/* getaddrinfo may list an address twice. */
static bool is_repeated(const struct addrinfo *list, const struct addrinfo *a) {
    for (; list != a; list = list->ai_next)
        if (list->ai_addrlen == a->ai_addrlen && memcmp(list->ai_addr, a->ai_addr, a->ai_addrlen) == 0) return true;
    return false;
}

static bool is_absent(int why) { return why == EADDRNOTAVAIL || why == EAFNOSUPPORT || why == EPROTONOSUPPORT; }

/* Listens on all addresses with one port; 0, or errno and *where. Port 0: the first address chooses. */
static int listen_at_all(iv_http *h, const struct addrinfo *list, uint16_t port, const struct addrinfo **where) {
    int why = 0;
    *where = list;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        if (is_repeated(list, a)) continue;
        int failed = listen_at(h, a, h->listener_count ? iv_http_port(h) : port, list->ai_next == NULL);
        if (failed) why = failed, *where = a;
        if (failed && !is_absent(failed)) break;
    }
    return h->listener_count && (why == 0 || is_absent(why)) ? 0 : why;
}

iv_status iv_http_listen(iv_http *h, const char *host, uint16_t port, iv_error *err) {
    char service[8], address[IV_HTTP_ADDRESS_BYTES] = "";
    snprintf(service, sizeof service, "%u", (unsigned)port);
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    const struct addrinfo *where = NULL;
    int code = getaddrinfo(host, service, &want, &found), why = EADDRINUSE;
    if (code) return iv_fail(err, IV_IO, "%s: %s", host, gai_strerror(code));
    /* A port that is free on one address may be in use on another. */
    for (int i = 0; why == EADDRINUSE && i < (port ? 1 : PORT_TRIES); i++) {
        iv_http_stop_listening(h);
        why = listen_at_all(h, found, port, &where);
    }
    if (why) getnameinfo(where->ai_addr, where->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
    if (why == 0) return IV_OK;
    iv_http_stop_listening(h);
    bool named = address[0] && strcmp(address, host) != 0;
    return iv_fail(err, IV_IO, "cannot listen on %s%s%s%s port %u: %s", host, named ? " (" : "", named ? address : "",
                   named ? ")" : "", (unsigned)port, strerror(why));
}

/* ---- addresses ---------------------------------------------------------------------------------------- */

static bool own_address(const iv_http *h, size_t i, struct sockaddr_storage *out, socklen_t *n) {
    *n = sizeof *out;
    return i < h->listener_count && getsockname(h->listeners[i].fd, (struct sockaddr *)out, n) == 0;
}

uint16_t iv_http_port(const iv_http *h) {
    struct sockaddr_storage a;
    socklen_t n;
    return own_address(h, 0, &a, &n) ? ntohs(*port_of((struct sockaddr *)&a)) : 0;
}

bool iv_http_address(const iv_http *h, size_t i, char out[IV_HTTP_ADDRESS_BYTES]) {
    struct sockaddr_storage a;
    socklen_t n;
    return own_address(h, i, &a, &n) &&
           getnameinfo((struct sockaddr *)&a, n, out, IV_HTTP_ADDRESS_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
}

bool iv_http_is_loopback(const iv_http *h) {
    struct sockaddr_storage a;
    socklen_t n;
    for (size_t i = 0; i < h->listener_count; i++) {
        if (!own_address(h, i, &a, &n)) return false;
        const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)&a;
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)&a;
        if (a.ss_family == AF_INET && ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) continue;
        if (a.ss_family != AF_INET6 || !IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)) return false;
    }
    return h->listener_count > 0;
}

/* ---- open files --------------------------------------------------------------------------------------- */

enum {
    FILES_BESIDES = 128, /* requested in addition to connections */
    LOOP_FILES = 6,      /* a listener, the loop's poll, pipe and waker, a name lookup */
    SPARE_FILES = 4,     /* for files read while the server runs */
    CONNECTIONS_MIN = 4,
    REFUSALS_SHARE = 16, /* this fraction of the free files is for refusals, ... */
    REFUSALS_FEW = 64,   /* ... but at least this many, if that is at most ... */
    FEW_SHARE = 4        /* ... one in four */
};

/* The usual limit of 1,024 is too low for a server. */
static size_t raise_limit(size_t connections) {
    struct rlimit r, more;
    rlim_t want = (rlim_t)connections + IV_HTTP_REFUSALS_MAX + FILES_BESIDES;
    if (getrlimit(RLIMIT_NOFILE, &r)) return SIZE_MAX;
    more = r, more.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    if (r.rlim_cur < more.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0) r = more;
    return r.rlim_cur < INT32_MAX ? (size_t)r.rlim_cur : INT32_MAX;
}

/* Counts free file numbers, up to `most`. */
static size_t count_free(size_t limit, size_t most) {
    size_t n = 0;
    for (size_t fd = 0; fd < limit && n < most; fd++) n += fcntl((int)fd, F_GETFD) < 0;
    return n;
}

static iv_status need(size_t limit, size_t wanted, iv_error *err) {
    size_t enough = limit;
    if (count_free(limit, wanted) >= wanted) return IV_OK;
    while (count_free(enough, wanted) < wanted) enough++; /* open files may lie above the limit, too */
    return iv_fail(err, IV_LIMIT, "open files: wanted a limit of at least %zu (ulimit -n), found %zu", enough, limit);
}

iv_status iv_http_check_files(size_t connections, size_t callers, iv_error *err) {
    size_t limit = raise_limit(connections), wanted = callers + LOOP_FILES + SPARE_FILES + CONNECTIONS_MIN + 1;
    return need(limit, wanted, err);
}

iv_status iv_http_limit_connections(iv_http *h, iv_error *err) {
    size_t limit = raise_limit(h->o.connections_max), wanted = SPARE_FILES + CONNECTIONS_MIN + 1;
    size_t most = h->o.connections_max + IV_HTTP_REFUSALS_MAX + SPARE_FILES, found = count_free(limit, most);
    h->refusals_max = IV_HTTP_REFUSALS_MAX;
    if (found == most) return IV_OK;
    IV_TRY(need(limit, wanted, err));
    size_t files = found - SPARE_FILES;
    size_t few = iv_size_min(REFUSALS_FEW, files / FEW_SHARE);
    h->refusals_max = iv_size_min(IV_HTTP_REFUSALS_MAX, iv_size_max(few, files / REFUSALS_SHARE));
    h->o.connections_max = iv_size_min(h->o.connections_max, files - h->refusals_max);
    return IV_OK;
}
