/* request.c: accessors of a request, and its answer: a reply, a stream, or an error as JSON. */
#include "base/size.h"
#include "serve/http/error_body.h"
#include "serve/http/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- a request without a connection ------------------------------------------------------------------- */

iv_http_request *iv_http_request_local(const char *path, const char *id, const void *body, size_t bytes,
                                       iv_http_request_replied *replied, void *user) {
    iv_http_request *q = calloc(1, sizeof *q);
    IV_ASSERT(replied);
    if (!q) return NULL;
    *q = (iv_http_request){.replied = replied, .replied_user = user};
    q->head.method = "POST", q->head.path = path;
    snprintf(q->id, sizeof q->id, "%s", id);
    if (iv_buf_append(&q->body, body, bytes)) return q;
    free(q);
    return NULL;
}

static void free_local(iv_http_request *q) {
    iv_buf_free(&q->body);
    iv_buf_free(&q->fields);
    free(q);
}

void iv_http_request_local_drop(iv_http_request *q) {
    IV_ASSERT(q->replied);
    if (q->gone) q->gone(q->gone_user);
    free_local(q);
}

/* ---- the request -------------------------------------------------------------------------------------- */

const char *iv_http_request_method(const iv_http_request *q) { return q->head.method; }
const char *iv_http_request_path(const iv_http_request *q) { return q->head.path; }

const char *iv_http_request_query(const iv_http_request *q, const char *name) {
    for (size_t i = 0; i < q->head.query_count; i++)
        if (strcmp(q->head.query[i].name, name) == 0) return q->head.query[i].value;
    return NULL;
}

const char *iv_http_request_body(const iv_http_request *q, size_t *bytes) {
    *bytes = q->body.len;
    return q->body.data ? q->body.data : "";
}

void iv_http_request_take_body(iv_http_request *q, iv_buf *out) {
    IV_ASSERT(!out->data);
    *out = q->body, q->body = (iv_buf){0};
    out->limit = 0;
    q->body_taken += out->cap;
}

const char *iv_http_request_id(const iv_http_request *q) { return q->id; }

const char *iv_http_request_route(const iv_http_request *q) { return q->route ? q->route->path : NULL; }
const char *iv_http_request_client(const iv_http_request *q) { return q->client; }
const char *iv_http_request_forwarded(const iv_http_request *q) {
    return iv_http_head_field(&q->head, "X-Forwarded-For");
}
void iv_http_request_note_answer(iv_http_request *q, const iv_http_answer *a) { q->answer = *a; }
const iv_http_answer *iv_http_request_answer(const iv_http_request *q) { return &q->answer; }

static bool good_id(const char *id) {
    size_t n = strlen(id);
    if (n == 0 || n > IV_HTTP_ID_BYTES_MAX) return false;
    for (; *id; id++)
        if (*id <= 0x20 || *id == 0x7f) return false;
    return true;
}

void iv_http_request_take_id(iv_http_request *q) {
    const char *given = iv_http_head_field(&q->head, "x-request-id");
    if (given && good_id(given)) memcpy(q->id, given, strlen(given) + 1);
}

/* ---- the head of a response --------------------------------------------------------------------------- */

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
                   {505, "HTTP Version Not Supported"},
                   {529, "Overloaded"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Status";
}

void iv_http_request_add_header(iv_http_request *q, const char *name, const char *value) {
    IV_ASSERT(q->status == 0 && iv_http_is_token(name));
    size_t before = q->fields.len;
    if (!iv_buf_printf(&q->fields, "%s: %s\r\n", name, value)) return;
    /* a value may contain client text: it must not begin a new line */
    for (size_t i = before; i + 2 < q->fields.len; i++) {
        char *c = &q->fields.data[i];
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
}

static bool has_field(const iv_http_request *q, const char *name) {
    size_t n = strlen(name);
    for (const char *line = q->fields.data; line && *line;) {
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

static bool no_body(const iv_http_request *q) { return strcmp(q->head.method, "HEAD") == 0; }
static bool no_length(int status) { return status == 204 || status == 304; }

bool iv_http_origin_allowed(const char *allowed, const char *origin) {
    size_t n = strlen(origin);
    for (const char *item = allowed; *item;) {
        item += strspn(item, " ,");
        size_t length = strcspn(item, " ,");
        if ((length == 1 && *item == '*') || (length > 0 && length == n && strncmp(item, origin, n) == 0)) return true;
        item += length;
    }
    return false;
}

/* Appends the CORS fields. */
static bool put_origin(const iv_http_request *q, iv_buf *out) {
    const char *allowed = q->http->allowed_origins;
    if (!allowed || !*allowed) return true;
    bool all = iv_http_origin_allowed(allowed, "*");
    if (!all && !iv_buf_puts(out, "Vary: Origin\r\n")) return false;
    const char *origin = iv_http_head_field(&q->head, "Origin");
    if (!origin || !iv_http_origin_allowed(allowed, origin)) return true;
    return iv_buf_printf(out, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: x-request-id\r\n",
                         all ? "*" : origin);
}

/* Appends the response head to the output. length: of the body; NULL: chunked. */
static bool put_head(iv_http_request *q, int status, const char *type, const size_t *length) {
    iv_connection *c = q->connection;
    iv_buf *out = &c->out;
    if (iv_connection_waiting(c) == 0) c->progress = iv_http_now_ms();
    q->status = status;
    bool until_close = !length && q->head.minor == 0;
    c->closing = c->closing || !q->head.keep_alive || q->http->draining || until_close;
    bool ok = iv_buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nx-request-id: %s\r\n", status, reason(status),
                            date_now(q->http), iv_http_request_id(q));
    if (ok && type) ok = iv_buf_printf(out, "Content-Type: %s\r\n", type);
    if (ok && length && !no_length(status)) ok = iv_buf_printf(out, "Content-Length: %zu\r\n", *length);
    if (ok && !length && !until_close) ok = iv_buf_puts(out, "Transfer-Encoding: chunked\r\n");
    if (ok && c->closing)
        ok = iv_buf_puts(out, "Connection: close\r\n");
    else if (ok && q->head.minor == 0)
        ok = iv_buf_puts(out, "Connection: keep-alive\r\n");
    ok = ok && put_origin(q, out) && iv_buf_append(out, q->fields.data, q->fields.len);
    return ok && iv_buf_puts(out, "\r\n");
}

/* ---- a reply ------------------------------------------------------------------------------------------ */

void iv_http_request_reply(iv_http_request *q, int status, const char *type, const void *body, size_t bytes) {
    IV_ASSERT(q->status == 0 && status >= 200 && status <= 599);
    if (q->replied) {
        q->replied(q->replied_user, status, body, bytes);
        free_local(q);
        return;
    }
    q->handled = true; /* q is freed below, even if the connection is lost here */
    if (q->connection) {
        bool ok = put_head(q, status, type, &bytes);
        if (ok && bytes > 0 && !no_body(q) && !no_length(status)) {
            ok = iv_buf_append(&q->connection->out, body, bytes);
            q->sent = bytes;
        }
        if (!ok) iv_connection_lose(q->connection, true);
    }
    iv_http_request_end(q);
}

void iv_http_request_refuse(iv_http_request *q, int status, bool unread, const char *message) {
    iv_connection *c = q->connection;
    IV_ASSERT(c);
    if (unread) c->closing = c->unread = true;
    q->head.keep_alive = q->head.keep_alive && !unread;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    if (status == 503 || status == 429) iv_http_request_add_header(q, "Retry-After", "1");
    if (q->head.path && iv_error_is_anthropic(q->head.path)) {
        status = iv_error_anthropic_status(status);
        iv_error_write_anthropic(&o, status, message, iv_http_request_id(q));
    } else {
        iv_error_write_openai(&o, status, message);
    }
    if (o.failed)
        iv_http_request_reply(q, status, "application/json", "{}", 2);
    else
        iv_http_request_reply(q, status, "application/json", out.data, out.len);
    iv_buf_free(&out);
}

/* ---- a stream ----------------------------------------------------------------------------------------- */

void iv_http_request_stream(iv_http_request *q, const char *type) {
    IV_ASSERT(q->status == 0 && !q->replied);
    q->streaming = true;
    q->in_chunks = q->head.minor == 1;
    if (!q->connection) {
        q->status = 200;
        return;
    }
    if (strncmp(type, "text/event-stream", 17) == 0) { /* events must not be cached or buffered by a proxy */
        if (!has_field(q, "Cache-Control")) iv_http_request_add_header(q, "Cache-Control", "no-cache");
        if (!has_field(q, "X-Accel-Buffering")) iv_http_request_add_header(q, "X-Accel-Buffering", "no");
    }
    if (put_head(q, 200, type, NULL))
        iv_connection_queue(q->connection);
    else
        iv_connection_lose(q->connection, true);
}

static bool put_piece(const iv_http_request *q, const void *bytes, size_t n) {
    iv_buf *out = &q->connection->out;
    if (!q->in_chunks) return iv_buf_append(out, bytes, n);
    return iv_buf_printf(out, "%zx\r\n", n) && iv_buf_append(out, bytes, n) && iv_buf_append(out, "\r\n", 2);
}

bool iv_http_request_write(iv_http_request *q, const void *bytes, size_t n) {
    IV_ASSERT(q->streaming);
    iv_connection *c = q->connection;
    if (!c) return false;
    if (n == 0 || no_body(q)) return true;
    if (iv_connection_waiting(c) == 0) c->progress = iv_http_now_ms();
    if (!put_piece(q, bytes, n)) {
        iv_connection_lose(c, true);
        return false;
    }
    q->sent += n;
    iv_connection_count_output(c);
    iv_connection_queue(c);
    return true;
}

bool iv_http_request_is_full(iv_http_request *q) {
    iv_connection *c = q->connection;
    const iv_http *h = q->http;
    if (!c || q->full) return q->full;
    /* Output is usually sent from the loop; only a seemingly slow reader is flushed here. */
    if (iv_connection_waiting(c) <= h->o.stream_bytes_max || !iv_connection_flush(c)) return false;
    q->full = iv_connection_waiting(c) > h->o.stream_bytes_max && h->unread_bytes > h->o.unread_bytes_max;
    return q->full;
}

void iv_http_request_on_space(iv_http_request *q, void (*space)(void *user), void (*stalled)(void *user)) {
    q->space = space;
    q->stall = stalled;
}

void iv_http_request_call_space(iv_http_request *q) {
    if (!q->full || iv_connection_waiting(q->connection) > q->http->o.stream_bytes_max / 4) return;
    q->full = false;
    if (q->space) q->space(q->gone_user);
}

void iv_http_request_call_stalled(iv_http_request *q) {
    q->connection->closing = true;
    q->stall(q->gone_user);
}

void iv_http_request_stream_end(iv_http_request *q) {
    IV_ASSERT(q->streaming);
    if (q->connection && q->in_chunks && !no_body(q) && !iv_buf_puts(&q->connection->out, "0\r\n\r\n"))
        iv_connection_lose(q->connection, true);
    iv_http_request_end(q);
}

void iv_http_request_on_gone(iv_http_request *q, void (*gone)(void *user), void *user) {
    q->gone = gone;
    q->gone_user = user;
    iv_http_request_queue_gone(q);
}
