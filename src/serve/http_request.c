/* http_exchange.c: one request and its answer: a reply, a stream, or an error's JSON. */
#include "serve/http_internal.h"
#include "base/size.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- life */

static void make_id(iv_http *h, char *out, size_t n) {
    uint64_t z = h->id_state += 0x9e3779b97f4a7c15u; /* distinct, and no secret */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    snprintf(out, n, "req-%016llx", (unsigned long long)(z ^ (z >> 31)));
}

iv_http_request *iv_http_request_new(iv_connection *c) {
    IV_ASSERT(!c->exchange);
    iv_http *h = c->http;
    iv_http_request *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    *x = (iv_http_request){.http = h, .connection = c, .next = h->exchanges, .began = iv_http_now_us()};
    x->head.method = x->head.path = "";
    x->head.minor = 1;
    make_id(h, x->id, sizeof x->id);
    if (x->next) x->next->previous = x;
    h->exchanges = x;
    c->exchange = x;
    return x;
}

static void free_exchange(iv_http_request *x) {
    iv_http *h = x->http;
    if (x->previous)
        x->previous->next = x->next;
    else
        h->exchanges = x->next;
    if (x->next) x->next->previous = x->previous;
    h->input_bytes -= x->body.cap + x->body_taken;
    iv_buf_free(&x->body);
    iv_buf_free(&x->fields);
    free(x->text);
    free(x);
}

static void log_exchange(const iv_http_request *x, int status) {
    const iv_http *h = x->http;
    if (h->o.log) h->o.log(h->user, x, status, (double)(iv_http_now_us() - x->began) * 1e-6, x->sent);
}

enum { STATUS_CLIENT_LEFT = 499 }; /* for the log: no such answer is sent */

static void unqueue_gone(iv_http_request *x) {
    iv_http_request **at = &x->http->gone;
    while (*at != x) at = &(*at)->next_gone;
    *at = x->next_gone;
}

/* The answer is complete: the connection goes on without x. */
static void end_exchange(iv_http_request *x) {
    iv_connection *c = x->connection;
    if (x->gone_queued) unqueue_gone(x);
    log_exchange(x, c ? x->status : STATUS_CLIENT_LEFT);
    if (c) {
        c->exchange = NULL;
        c->state = IV_CONNECTION_FLUSH;
        iv_connection_queue(c);
    }
    free_exchange(x);
}

static void queue_gone(iv_http_request *x) {
    if (x->gone_queued || x->connection || x->replied || !x->gone) return;
    x->gone_queued = true;
    x->next_gone = x->http->gone;
    x->http->gone = x;
    iv_http_wake_work(x->http);
}

void iv_http_request_leave(iv_http_request *x) {
    x->connection = NULL;
    if (!x->handled) {
        log_exchange(x, STATUS_CLIENT_LEFT);
        free_exchange(x);
        return;
    }
    queue_gone(x);
}

void iv_http_request_call_gone(iv_http_request *x) {
    log_exchange(x, STATUS_CLIENT_LEFT);
    if (x->gone) x->gone(x->gone_user);
    free_exchange(x);
}

/* ---- life without a connection */

iv_http_request *iv_http_request_local(const char *id, const void *body, size_t bytes, iv_http_request_replied *replied,
                               void *user) {
    iv_http_request *x = calloc(1, sizeof *x);
    IV_ASSERT(replied);
    if (!x) return NULL;
    *x = (iv_http_request){.replied = replied, .replied_user = user};
    x->head.method = "POST", x->head.path = "";
    snprintf(x->id, sizeof x->id, "%s", id);
    if (iv_buf_append(&x->body, body, bytes)) return x;
    free(x);
    return NULL;
}

static void free_local(iv_http_request *x) {
    iv_buf_free(&x->body);
    iv_buf_free(&x->fields);
    free(x);
}

void iv_http_request_local_drop(iv_http_request *x) {
    IV_ASSERT(x->replied);
    if (x->gone) x->gone(x->gone_user);
    free_local(x);
}

/* ---- the request */

const char *iv_http_request_method(const iv_http_request *x) { return x->head.method; }
const char *iv_http_request_path(const iv_http_request *x) { return x->head.path; }
const char *iv_http_request_header(const iv_http_request *x, const char *name) { return iv_http_head_field(&x->head, name); }

const char *iv_http_request_query(const iv_http_request *x, const char *name) {
    for (size_t i = 0; i < x->head.query_count; i++)
        if (strcmp(x->head.query[i].name, name) == 0) return x->head.query[i].value;
    return NULL;
}

const char *iv_http_request_body(const iv_http_request *x, size_t *bytes) {
    *bytes = x->body.len;
    return x->body.data ? x->body.data : "";
}

void iv_http_request_take_body(iv_http_request *x, iv_buf *out) {
    IV_ASSERT(!out->data);
    *out = x->body, x->body = (iv_buf){0};
    out->limit = 0;
    x->body_taken += out->cap;
}

const char *iv_http_request_id(const iv_http_request *x) { return x->id; }

static bool good_id(const char *id) {
    size_t n = strlen(id);
    if (n == 0 || n > IV_HTTP_ID_BYTES_MAX) return false;
    for (; *id; id++)
        if (*id <= 0x20 || *id == 0x7f) return false;
    return true;
}

void iv_http_request_take_id(iv_http_request *x) {
    const char *given = iv_http_head_field(&x->head, "x-request-id");
    if (given && good_id(given)) memcpy(x->id, given, strlen(given) + 1);
}

/* ---- the head of a response */

static const char *reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {201, "Created"},
                   {202, "Accepted"},
                   {204, "No Content"},
                   {304, "Not Modified"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {422, "Unprocessable Content"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Status";
}

void iv_http_request_add_header(iv_http_request *x, const char *name, const char *value) {
    IV_ASSERT(x->status == 0 && iv_http_is_token(name));
    size_t before = x->fields.len;
    if (!iv_buf_printf(&x->fields, "%s: %s\r\n", name, value)) return;
    /* a value may hold what a client wrote: it must not begin a line of its own */
    for (size_t i = before; i + 2 < x->fields.len; i++) {
        char *c = &x->fields.data[i];
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
}

static bool has_field(const iv_http_request *x, const char *name) {
    size_t n = strlen(name);
    for (const char *line = x->fields.data; line && *line;) {
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') return true;
        line = strstr(line, "\r\n") + 2;
    }
    return false;
}

static const char *date_now(iv_http *h) {
    time_t now = time(NULL);
    if (h->date_at != (int64_t)now) {
        struct tm t;
        gmtime_r(&now, &t);
        strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &t);
        h->date_at = (int64_t)now;
    }
    return h->date;
}

static bool no_body(const iv_http_request *x) { return strcmp(x->head.method, "HEAD") == 0; }
static bool no_length(int status) { return status == 204 || status == 304; }

/* Puts the head into the output. length: of the body, or NULL for one in pieces. */
static bool put_head(iv_http_request *x, int status, const char *type, const size_t *length) {
    iv_connection *c = x->connection;
    iv_buf *out = &c->out;
    if (iv_connection_waiting(c) == 0) c->progress = iv_http_now_ms();
    x->status = status;
    bool until_close = !length && x->head.minor == 0;
    c->closing = c->closing || !x->head.keep_alive || x->http->draining || until_close;
    bool ok = iv_buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nx-request-id: %s\r\n", status, reason(status),
                            date_now(x->http), iv_http_request_id(x));
    if (ok && type) ok = iv_buf_printf(out, "Content-Type: %s\r\n", type);
    if (ok && length && !no_length(status)) ok = iv_buf_printf(out, "Content-Length: %zu\r\n", *length);
    if (ok && !length && !until_close) ok = iv_buf_puts(out, "Transfer-Encoding: chunked\r\n");
    if (ok && c->closing)
        ok = iv_buf_puts(out, "Connection: close\r\n");
    else if (ok && x->head.minor == 0)
        ok = iv_buf_puts(out, "Connection: keep-alive\r\n");
    ok = ok && iv_http_put_origin(x, out) && iv_buf_append(out, x->fields.data, x->fields.len);
    return ok && iv_buf_puts(out, "\r\n");
}

/* ---- a reply */

void iv_http_request_reply(iv_http_request *x, int status, const char *type, const void *body, size_t bytes) {
    IV_ASSERT(x->status == 0 && status >= 200 && status <= 599);
    if (x->replied) {
        x->replied(x->replied_user, status, body, bytes);
        free_local(x);
        return;
    }
    x->handled = true; /* x is ours to end, also if the connection is lost in here */
    if (x->connection) {
        bool ok = put_head(x, status, type, &bytes);
        if (ok && bytes > 0 && !no_body(x) && !no_length(status)) {
            ok = iv_buf_append(&x->connection->out, body, bytes);
            x->sent = bytes;
        }
        if (!ok) iv_connection_lose(x->connection, true);
    }
    end_exchange(x);
}

void iv_http_request_refuse(iv_http_request *x, int status, bool unread, const char *message) {
    iv_connection *c = x->connection;
    IV_ASSERT(c);
    if (unread) c->closing = c->unread = true;
    x->head.keep_alive = x->head.keep_alive && !unread;
    json_t *json = json_pack("{s:{s:s,s:s,s:n,s:i}}", "error", "message", message, "type",
                             status < 500 ? "invalid_request_error" : "server_error", "param", "code", status);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (status == 503 || status == 429) iv_http_request_add_header(x, "Retry-After", "1");
    iv_http_request_reply(x, status, "application/json", text ? text : "{}", text ? strlen(text) : 2);
    free(text);
}

/* ---- a stream */

void iv_http_request_stream(iv_http_request *x, const char *type) {
    IV_ASSERT(x->status == 0 && !x->replied);
    x->streaming = true;
    x->in_chunks = x->head.minor == 1;
    if (!x->connection) {
        x->status = 200;
        return;
    }
    if (strncmp(type, "text/event-stream", 17) == 0) { /* events are for now, also behind a proxy */
        if (!has_field(x, "Cache-Control")) iv_http_request_add_header(x, "Cache-Control", "no-cache");
        if (!has_field(x, "X-Accel-Buffering")) iv_http_request_add_header(x, "X-Accel-Buffering", "no");
    }
    if (put_head(x, 200, type, NULL))
        iv_connection_queue(x->connection);
    else
        iv_connection_lose(x->connection, true);
}

static bool put_piece(const iv_http_request *x, const void *bytes, size_t n) {
    iv_buf *out = &x->connection->out;
    if (!x->in_chunks) return iv_buf_append(out, bytes, n);
    return iv_buf_printf(out, "%zx\r\n", n) && iv_buf_append(out, bytes, n) && iv_buf_append(out, "\r\n", 2);
}

bool iv_http_request_write(iv_http_request *x, const void *bytes, size_t n) {
    IV_ASSERT(x->streaming);
    iv_connection *c = x->connection;
    if (!c) return false;
    if (n == 0 || no_body(x)) return true;
    if (iv_connection_waiting(c) == 0) c->progress = iv_http_now_ms();
    if (!put_piece(x, bytes, n)) {
        iv_connection_lose(c, true);
        return false;
    }
    x->sent += n;
    iv_connection_count_output(c);
    iv_connection_queue(c);
    return true;
}

bool iv_http_request_is_full(iv_http_request *x) {
    iv_connection *c = x->connection;
    const iv_http *h = x->http;
    if (!c || x->full) return x->full;
    /* What waits is sent together from the loop; only a reader that seems slow is asked here and now. */
    if (iv_connection_waiting(c) <= h->o.stream_bytes_max || !iv_connection_flush(c)) return false;
    x->full = iv_connection_waiting(c) > h->o.stream_bytes_max && h->unread_bytes > h->o.unread_bytes_max;
    return x->full;
}

void iv_http_request_on_room(iv_http_request *x, void (*room)(void *user), void (*stalled)(void *user)) {
    x->room = room;
    x->stall = stalled;
}

void iv_http_request_call_room(iv_http_request *x) {
    if (!x->full || iv_connection_waiting(x->connection) > x->http->o.stream_bytes_max / 4) return;
    x->full = false;
    if (x->room) x->room(x->gone_user);
}

void iv_http_request_call_stalled(iv_http_request *x) {
    x->connection->closing = true;
    x->stall(x->gone_user);
}

void iv_http_request_stream_end(iv_http_request *x) {
    IV_ASSERT(x->streaming);
    if (x->connection && x->in_chunks && !no_body(x) && !iv_buf_puts(&x->connection->out, "0\r\n\r\n"))
        iv_connection_lose(x->connection, true);
    end_exchange(x);
}

void iv_http_request_on_gone(iv_http_request *x, void (*gone)(void *user), void *user) {
    x->gone = gone;
    x->gone_user = user;
    queue_gone(x);
}
