/* serve.c: serves one connection: reads bytes, parses requests, sends answers, each with a deadline. */
#include "base/size.h"
#include "serve/http/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_readable(evutil_socket_t fd, short what, void *arg);
static void on_writable(evutil_socket_t fd, short what, void *arg);
static void on_timer(evutil_socket_t fd, short what, void *arg);

static void refuse(iv_connection *c, int status, const char *message) {
    c->begun = c->refused = true;
    c->http->refused_count++, c->http->refused_total++;
    iv_http_request *q = iv_http_request_new(c);
    if (q)
        iv_http_request_refuse(q, status, true, message);
    else
        iv_connection_lose(c, true);
}

bool iv_connection_open(iv_http *h, int fd, const struct sockaddr *from) {
    iv_connection *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return false;
    }
    *c = (iv_connection){.http = h, .fd = fd, .since = iv_http_now_ms(), .next = h->connections};
    iv_http_client_address(from, c->address);
    h->accepted_total++;
    if (c->next) c->next->previous = c;
    h->connections = c;
    h->connection_count++;
    int bad = event_assign(&c->reading, h->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    bad |= event_assign(&c->writing, h->base, fd, EV_WRITE, on_writable, c);
    bad |= event_assign(&c->timer, h->base, -1, 0, on_timer, c);
    IV_ASSERT(!bad);
    if (event_add(&c->reading, NULL)) {
        iv_connection_lose(c, true);
        return false;
    }
    if (h->connection_count - h->refused_count > h->o.connections_max)
        refuse(c, 503, "too many connections");
    else if (!iv_http_client_enter(h, from, &c->client))
        refuse(c, 429, "too many connections from this address (--max-connections-per-client)");
    iv_connection_queue(c);
    return true;
}

static void enter(iv_connection *c, iv_connection_state state) {
    c->state = state;
    c->since = iv_http_now_ms();
}

/* ---- output ------------------------------------------------------------------------------------------- */

/* Drops the buffered output after the current event, which ends with an empty line; nothing if no event ends here. */
static size_t drop_output(iv_connection *c) {
    const char *end = c->request && c->request->in_chunks ? "\n\n\r\n" : "\n\n";
    size_t waiting = iv_connection_waiting(c), n = strlen(end);
    const char *at = memmem(c->out.data + c->out_at, waiting, end, n);
    size_t keep = at ? (size_t)(at - c->out.data) + n : c->out.len, dropped = c->out.len - keep;
    c->out.len = keep;
    iv_connection_count_output(c);
    return dropped;
}

/* The client reads nothing. A stream gets an error event as its last one. */
static void cut(iv_connection *c) {
    iv_http *h = c->http;
    iv_http_request *q = c->request;
    bool first = !c->cut, last_words = first && q && q->streaming && q->stall;
    size_t dropped = last_words ? drop_output(c) : iv_connection_waiting(c);
    h->cut_total += first;
    if (first && h->o.cut) h->o.cut(h->user, q, dropped);
    c->cut = true;
    c->progress = iv_http_now_ms();
    if (last_words)
        iv_http_request_call_stalled(q);
    else
        iv_connection_lose(c, true);
}

static void on_writable(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    iv_connection_serve(arg);
}

/* ---- input -------------------------------------------------------------------------------------------- */

static size_t in_left(const iv_connection *c) { return c->in.len - c->in_at; }

static void consume(iv_connection *c, size_t n) {
    c->in_at += n;
    c->scanned = 0;
}

static void count_input(iv_connection *c) {
    c->http->input_bytes += c->in.cap - c->in_counted; /* unsigned wraparound: it may fall, too */
    c->in_counted = c->in.cap;
}

/* Moves unread input to the front, or frees the buffer: an idle connection holds no memory. */
static void compact_input(iv_connection *c) {
    size_t left = in_left(c);
    if (left == 0) {
        iv_buf_free(&c->in);
    } else if (c->in_at > 0) {
        memmove(c->in.data, c->in.data + c->in_at, left);
        c->in.len = left;
    }
    c->in_at = 0;
    count_input(c);
}

/* Reading continues while an answer is pending, to notice that the client leaves: up to one more request of the
 * largest size. */
static bool wants_pause(const iv_connection *c) {
    if (c->closing || (c->state != IV_CONNECTION_HANDLE && c->state != IV_CONNECTION_FLUSH)) return false;
    const iv_http *h = c->http;
    size_t left = in_left(c);
    return left >= h->o.head_bytes_max + h->o.body_bytes_max ||
           (left >= IV_HTTP_READ_BYTES && h->input_bytes > IV_HTTP_INPUT_BYTES_MAX);
}

static void pause_input(iv_connection *c, bool pause) {
    if (c->ended || c->paused == pause) return;
    c->paused = pause;
    if (pause)
        event_del(&c->reading);
    else
        event_add(&c->reading, NULL);
}

static void on_readable(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    iv_connection *c = arg;
    iv_http *h = c->http;
    ssize_t n = recv(fd, h->scratch, IV_HTTP_READ_BYTES, 0);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
        iv_connection_lose(c, false);
        return;
    }
    if (n == 0) {
        c->ended = true;
        c->ended_at = iv_http_now_ms();
        event_del(&c->reading);
    } else if (c->state != IV_CONNECTION_LINGER && !c->closing) {
        if (!iv_buf_append(&c->in, h->scratch, (size_t)n)) {
            iv_connection_lose(c, true);
            return;
        }
    }
    iv_connection_serve(c);
}

/* ---- deadlines ---------------------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Refused clients that stay connected must not delay the refusal of others. */
static uint64_t linger_ms(const iv_connection *c) {
    bool crowded = c->refused && c->http->refused_count > c->http->refusals_max / 2;
    return crowded ? IV_HTTP_CROWDED_LINGER_MS : IV_HTTP_LINGER_MS;
}

static uint64_t state_deadline(const iv_connection *c) {
    const iv_http_options *o = &c->http->o;
    switch (c->state) {
    case IV_CONNECTION_HEAD: return c->since + (c->begun ? o->head_ms : o->idle_ms);
    case IV_CONNECTION_BODY: return c->since + o->body_ms * (1 + c->request->body.len / IV_HTTP_PACE_BYTES);
    case IV_CONNECTION_LINGER: return c->since + linger_ms(c);
    default: return UINT64_MAX;
    }
}

static uint64_t stall_deadline(const iv_connection *c) {
    return iv_connection_waiting(c) > 0 ? c->progress + c->http->o.stall_ms : UINT64_MAX;
}

/* While reading is paused, only polling finds out whether the client is gone: soon after it ended its side, then
 * rarely. */
static uint64_t look_deadline(const iv_connection *c, uint64_t now) {
    if (c->paused) return now + IV_HTTP_LOOK_MS;
    if (!c->ended || c->state != IV_CONNECTION_HANDLE) return UINT64_MAX;
    uint64_t past = now - c->ended_at;
    return now + (past < IV_HTTP_FIRST_LOOK_MS ? IV_HTTP_FIRST_LOOK_MS : earlier(past, IV_HTTP_LOOK_MS));
}

/* A timer that fires early is set again, so moving a deadline back costs nothing. */
static void arm(iv_connection *c) {
    if (c->state == IV_CONNECTION_DEAD) return;
    uint64_t now = iv_http_now_ms(), at = earlier(state_deadline(c), stall_deadline(c));
    at = earlier(at, look_deadline(c, now));
    if (at == UINT64_MAX || (c->armed && c->armed <= at)) return;
    uint64_t in = at > now ? at - now : 0;
    struct timeval t = {.tv_sec = (time_t)(in / 1000), .tv_usec = (suseconds_t)(in % 1000 * 1000)};
    if (event_add(&c->timer, &t)) iv_connection_lose(c, true);
    c->armed = at;
}

/* 100 Continue is allowed at any time before the answer. */
static void put_continue(iv_connection *c) {
    static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (iv_connection_waiting(c) == 0) c->progress = iv_http_now_ms();
    if (!iv_buf_append(&c->out, line, sizeof line - 1)) iv_connection_lose(c, true);
}

/* The client ended its side: by shutdown (it still reads) or by close. Data sent to a closed client is answered with
 * a reset. In a stream the next event has that effect. True: there is output to send. */
static bool probe(iv_connection *c) {
    iv_http_request *q = c->request;
    if (q->probed || q->status || q->head.minor == 0) return false;
    q->probed = true;
    put_continue(c);
    return true;
}

static void look(iv_connection *c) {
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return;
    if (p.revents & (POLLHUP | POLLERR))
        iv_connection_lose(c, false);
    else if (c->state == IV_CONNECTION_HANDLE)
        probe(c); /* its FIN is queued after unread input */
}

static void refuse_late(iv_connection *c, const char *message) {
    iv_http_request *q = c->request ? c->request : iv_http_request_new(c);
    if (q)
        iv_http_request_refuse(q, 408, true, message);
    else
        iv_connection_lose(c, true);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    iv_connection *c = arg;
    uint64_t now = iv_http_now_ms();
    c->armed = 0;
    if (now >= stall_deadline(c)) {
        cut(c);
        if (c->state != IV_CONNECTION_DEAD) iv_connection_serve(c);
        return;
    }
    if (look_deadline(c, now) != UINT64_MAX) look(c);
    if (c->state == IV_CONNECTION_DEAD) return;
    if (now >= state_deadline(c)) {
        if (c->state == IV_CONNECTION_HEAD && c->begun) {
            refuse_late(c, "timeout: the request's head is incomplete");
        } else if (c->state == IV_CONNECTION_BODY) {
            refuse_late(c, "timeout: the request's body is incomplete");
        } else {
            iv_connection_lose(c, false);
            return;
        }
    }
    iv_connection_serve(c);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

/* Each step returns true if the connection made progress. */
static bool fail_connection(iv_connection *c) {
    iv_connection_lose(c, true);
    return false;
}

static void ask_for_body(iv_connection *c, const iv_http_request *q) {
    if (q->head.expects_continue && in_left(c) == 0) put_continue(c);
}

/* Takes a complete head of n bytes. */
static bool take_head(iv_connection *c, size_t n) {
    iv_http_request *q = iv_http_request_new(c);
    if (!q || !(q->text = malloc(n + 1))) return fail_connection(c);
    memcpy(q->text, c->in.data + c->in_at, n);
    q->text[n] = 0;
    consume(c, n);
    iv_error err;
    int status = iv_http_head_parse(q->text, n, &q->head, &err);
    iv_http_request_take_id(q);
    if (status) {
        iv_http_request_refuse(q, status, true, err.message);
        return true;
    }
    if (!iv_http_admit(q)) return true;
    q->body_left = q->head.length;
    q->body.limit =
        q->head.chunked ? c->http->o.body_bytes_max : q->head.length; /* so the buffer does not grow beyond it */
    enter(c, IV_CONNECTION_BODY);
    if (q->head.chunked || q->body_left > 0) ask_for_body(c, q);
    return true;
}

static bool step_head(iv_connection *c) {
    size_t left = in_left(c), limit = c->http->o.head_bytes_max;
    if (left > 0 && !c->begun) {
        c->begun = true;
        c->since = iv_http_now_ms();
    }
    iv_error err;
    iv_http_scanned found = IV_HTTP_SCAN_MORE;
    if (left > 0) found = iv_http_head_scan(c->in.data + c->in_at, iv_size_min(left, limit), &c->scanned, &err);
    if (found == IV_HTTP_SCAN_END && c->scanned > 2) return take_head(c, c->scanned);
    if (found == IV_HTTP_SCAN_END) { /* an empty line before a request is skipped */
        consume(c, c->scanned);
        return true;
    }
    if (found == IV_HTTP_SCAN_MORE && left <= limit) {
        if (c->ended) iv_connection_lose(c, false);
        return false;
    }
    iv_http_request *q = iv_http_request_new(c);
    if (!q) return fail_connection(c);
    iv_http_request_refuse(q, found == IV_HTTP_SCAN_BAD ? 400 : 431, true,
                           found == IV_HTTP_SCAN_BAD ? err.message : "the request's head is too long");
    return true;
}

/* Moves available bytes of the body to the request; 0, or the HTTP status of the refusal. */
static int take_body(iv_connection *c, iv_http_request *q, bool *done, iv_error *err) {
    iv_http *h = c->http;
    const char *bytes = in_left(c) ? c->in.data + c->in_at : "";
    size_t before = q->body.cap, used = 0;
    int status = 0;
    if (q->head.chunked) {
        status = iv_http_chunks_feed(&q->chunks, bytes, in_left(c), &q->body, h->o.body_bytes_max, &used, done, err);
    } else {
        used = iv_size_min(in_left(c), q->body_left);
        if (iv_buf_append(&q->body, bytes, used))
            q->body_left -= used;
        else
            status = 503;
        *done = q->body_left == 0;
    }
    if (status == 503) iv_fail(err, IV_NO_MEMORY, "body: out of memory");
    consume(c, used);
    h->input_bytes += q->body.cap - before;
    if (!status && h->input_bytes > IV_HTTP_INPUT_BYTES_MAX) {
        iv_fail(err, IV_BUSY, "too many request bodies at once");
        status = 503;
    }
    return status;
}

static bool step_body(iv_connection *c) {
    iv_http_request *q = c->request;
    iv_error err;
    bool done = false;
    int status = take_body(c, q, &done, &err);
    if (status) {
        iv_http_request_refuse(q, status, true, err.message);
        return true;
    }
    if (done) {
        enter(c, IV_CONNECTION_HANDLE);
        q->handled = true;
        q->route->handle(c->http->user, q); /* q may be freed now */
        return true;
    }
    if (c->ended) iv_connection_lose(c, false);
    return false;
}

static bool step_flush(iv_connection *c) {
    if (iv_connection_waiting(c) > 0) return false;
    if (!c->closing && !c->http->draining) {
        compact_input(c);
        enter(c, IV_CONNECTION_HEAD);
        c->begun = false;
        return true;
    }
    if (c->ended || (!c->unread && in_left(c) == 0)) {
        iv_connection_lose(c, false);
        return false;
    }
    shutdown(c->fd, SHUT_WR);
    c->in_at = c->in.len;
    compact_input(c);
    enter(c, IV_CONNECTION_LINGER);
    return true;
}

static bool step(iv_connection *c) {
    switch (c->state) {
    case IV_CONNECTION_HEAD: return step_head(c);
    case IV_CONNECTION_BODY: return step_body(c);
    case IV_CONNECTION_FLUSH: return step_flush(c);
    case IV_CONNECTION_HANDLE: return c->ended && probe(c);
    case IV_CONNECTION_LINGER:
        if (c->ended) iv_connection_lose(c, false);
        return false;
    default: return false;
    }
}

void iv_connection_serve(iv_connection *c) {
    if (c->serving) return;
    c->serving = true;
    while (iv_connection_flush(c) && step(c)) {}
    c->serving = false;
    if (c->state == IV_CONNECTION_DEAD) return;
    if (c->request) iv_http_request_call_space(c->request);
    compact_input(c);
    pause_input(c, wants_pause(c));
    arm(c);
}
