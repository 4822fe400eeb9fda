/* connection.c: the records of clients, connections and requests: created, counted, flushed and freed. Calls
 * none of the other files; they decide what happens to the records. */
#include "serve/http/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t iv_http_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- clients ------------------------------------------------------------------------------------------ */

struct iv_http_client {
    iv_http_client *next;
    size_t connections;
    uint8_t address[16];
};

static bool take_address(const struct sockaddr *from, uint8_t out[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
    memset(out, 0, 16);
    if (from->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof mapped);
        memcpy(out + 12, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
        return true;
    }
    if (from->sa_family != AF_INET6) return false;
    const uint8_t *a = ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr.s6_addr;
    memcpy(out, a, memcmp(a, mapped, sizeof mapped) == 0 ? 16 : 8);
    return true;
}

void iv_http_client_address(const struct sockaddr *from, char out[IV_HTTP_CLIENT_BYTES]) {
    out[0] = 0;
    if (from && from->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)from)->sin_addr, out, IV_HTTP_CLIENT_BYTES);
    if (!from || from->sa_family != AF_INET6) return;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(a))
        inet_ntop(AF_INET, a->s6_addr + 12, out, IV_HTTP_CLIENT_BYTES);
    else
        inet_ntop(AF_INET6, a, out, IV_HTTP_CLIENT_BYTES);
}

/* A secret seed, so that clients cannot choose addresses of one bucket. */
static iv_http_client **bucket_of(iv_http *h, const uint8_t address[16]) {
    uint64_t z[2];
    memcpy(z, address, sizeof z);
    uint64_t mixed = (z[0] ^ h->client_seed) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 29) ^ z[1]) * 0x94d049bb133111ebu;
    return &h->clients[(mixed >> 32) % IV_HTTP_CLIENT_BUCKETS];
}

bool iv_http_client_enter(iv_http *h, const struct sockaddr *from, iv_http_client **out) {
    uint8_t address[16];
    *out = NULL;
    if (h->o.client_connections_max == 0 || !from || !take_address(from, address)) return true;
    iv_http_client **bucket = bucket_of(h, address), *client = *bucket;
    while (client && memcmp(client->address, address, sizeof address) != 0) client = client->next;
    if (client && client->connections >= h->o.client_connections_max) return false;
    if (!client) {
        if (!(client = calloc(1, sizeof *client))) return true; /* uncounted if there is no memory */
        memcpy(client->address, address, sizeof address);
        client->next = *bucket;
        *bucket = client;
    }
    client->connections++;
    *out = client;
    return true;
}

static void leave_client(iv_http *h, iv_http_client *client) {
    if (!client || --client->connections > 0) return;
    iv_http_client **at = bucket_of(h, client->address);
    while (*at != client) at = &(*at)->next;
    *at = client->next;
    free(client);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

static void make_id(iv_http *h, char *out, size_t n) {
    uint64_t z = h->id_state += 0x9e3779b97f4a7c15u; /* unique, not secret */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    snprintf(out, n, "req-%016llx", (unsigned long long)(z ^ (z >> 31)));
}

iv_http_request *iv_http_request_new(iv_connection *c) {
    IV_ASSERT(!c->request);
    iv_http *h = c->http;
    iv_http_request *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    *q = (iv_http_request){.http = h, .connection = c, .next = h->requests, .began = iv_http_now_us()};
    q->head.method = q->head.path = "";
    q->head.minor = 1;
    make_id(h, q->id, sizeof q->id);
    memcpy(q->client, c->address, sizeof q->client);
    if (q->next) q->next->previous = q;
    h->requests = q;
    c->request = q;
    return q;
}

static void free_request(iv_http_request *q) {
    iv_http *h = q->http;
    if (q->previous)
        q->previous->next = q->next;
    else
        h->requests = q->next;
    if (q->next) q->next->previous = q->previous;
    h->input_bytes -= q->body.cap + q->body_taken;
    iv_buf_free(&q->body);
    iv_buf_free(&q->fields);
    free(q->text);
    free(q);
}

enum { STATUS_CLIENT_LEFT = 499 }; /* for the log; never sent */

static void log_request(const iv_http_request *q, int status) {
    const iv_http *h = q->http;
    if (h->o.log) h->o.log(h->user, q, status, (double)(iv_http_now_us() - q->began) * 1e-6, q->sent);
}

static void unqueue_gone(iv_http_request *q) {
    iv_http_request **at = &q->http->gone;
    while (*at != q) at = &(*at)->next_gone;
    *at = q->next_gone;
}

/* The answer is complete: the connection continues without q. */
void iv_http_request_end(iv_http_request *q) {
    iv_connection *c = q->connection;
    if (q->gone_queued) unqueue_gone(q);
    log_request(q, c ? q->status : STATUS_CLIENT_LEFT);
    if (c) {
        c->request = NULL;
        c->state = IV_CONNECTION_FLUSH;
        iv_connection_queue(c);
    }
    free_request(q);
}

void iv_http_request_queue_gone(iv_http_request *q) {
    if (q->gone_queued || q->connection || q->replied || !q->gone) return;
    q->gone_queued = true;
    q->next_gone = q->http->gone;
    q->http->gone = q;
    iv_http_wake_work(q->http);
}

static void leave_request(iv_http_request *q) {
    q->connection = NULL;
    if (!q->handled) {
        log_request(q, STATUS_CLIENT_LEFT);
        free_request(q);
        return;
    }
    iv_http_request_queue_gone(q);
}

void iv_http_request_call_gone(iv_http_request *q) {
    if (q->gone) q->gone(q->gone_user);
    log_request(q, STATUS_CLIENT_LEFT);
    free_request(q);
}

/* ---- accepting ---------------------------------------------------------------------------------------- */

void iv_http_begin_accepting(iv_http *h) {
    for (size_t i = 0; i < h->listener_count; i++) event_add(h->listeners[i].accepting, NULL);
}

bool iv_http_has_capacity(const iv_http *h) { return h->connection_count < h->o.connections_max + h->refusals_max; }

static void resume_accept(iv_http *h) {
    if (!h->accept_paused || !iv_http_has_capacity(h)) return;
    h->accept_paused = false;
    iv_http_begin_accepting(h);
}

/* ---- connections -------------------------------------------------------------------------------------- */

void iv_connection_free(iv_connection *c) {
    IV_ASSERT(c->state == IV_CONNECTION_DEAD && !c->request);
    c->http->input_bytes -= c->in_counted, c->http->unread_bytes -= c->out_counted;
    iv_buf_free(&c->in);
    iv_buf_free(&c->out);
    free(c);
}

void iv_connection_queue(iv_connection *c) {
    if (c->queued) return;
    c->queued = true;
    c->next_work = c->http->work;
    c->http->work = c;
    iv_http_wake_work(c->http);
}

/* Closes the socket. A reset drops the kernel's send buffer. */
void iv_connection_lose(iv_connection *c, bool reset) {
    if (c->state == IV_CONNECTION_DEAD) return;
    iv_http *h = c->http;
    event_del(&c->reading);
    event_del(&c->writing);
    event_del(&c->timer);
    if (reset) {
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    close(c->fd);
    c->fd = -1;
    c->state = IV_CONNECTION_DEAD;
    if (c->previous)
        c->previous->next = c->next;
    else
        h->connections = c->next;
    if (c->next) c->next->previous = c->previous;
    h->connection_count--;
    h->refused_count -= c->refused;
    leave_client(h, c->client);
    resume_accept(h);
    iv_http_request *q = c->request;
    c->request = NULL;
    if (q) leave_request(q);
    iv_connection_queue(c);
}

bool iv_connection_busy(const iv_connection *c) {
    if (c->late) return false;
    return c->state == IV_CONNECTION_BODY || c->state == IV_CONNECTION_HANDLE || c->state == IV_CONNECTION_FLUSH ||
           c->state == IV_CONNECTION_LINGER || iv_connection_waiting(c) > 0;
}

void iv_connection_count_output(iv_connection *c) {
    c->http->unread_bytes += iv_connection_waiting(c) - c->out_counted; /* unsigned wraparound: it may fall, too */
    c->out_counted = iv_connection_waiting(c);
}

bool iv_connection_flush(iv_connection *c) {
    while (c->state != IV_CONNECTION_DEAD && iv_connection_waiting(c) > 0) {
        ssize_t n = send(c->fd, c->out.data + c->out_at, iv_connection_waiting(c), MSG_NOSIGNAL);
        if (n > 0) {
            c->out_at += (size_t)n;
            c->progress = iv_http_now_ms();
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!event_pending(&c->writing, EV_WRITE, NULL)) event_add(&c->writing, NULL);
            break;
        }
        iv_connection_lose(c, true);
    }
    if (c->state == IV_CONNECTION_DEAD) return false;
    size_t waiting = iv_connection_waiting(c);
    if (waiting == 0) {
        c->out_at = 0;
        iv_buf_clear(&c->out);
        if (c->out.cap > IV_HTTP_KEEP_BYTES) iv_buf_free(&c->out);
    } else if (c->out_at >= waiting) { /* so the buffer holds at most twice the unsent bytes */
        memmove(c->out.data, c->out.data + c->out_at, waiting);
        c->out.len = waiting;
        c->out_at = 0;
    }
    iv_connection_count_output(c);
    return true;
}
