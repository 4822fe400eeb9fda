/* load.c: libevent's HTTP client and a pool of connections to one server.
 *
 * Invariant: a flight is idle or has one request; every request ends with exactly one call of `request_done`. */
#include "serve/load.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "base/size.h"
#include "format/json.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <math.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(iv_load_result *r, const char *what, const char *more) {
    if (!r->error[0]) snprintf(r->error, sizeof r->error, "%s%s%.150s", what, more ? ": " : "", more ? more : "");
}

/* ---- the event stream --------------------------------------------------------------------------------- */

static bool note_tokens(iv_load_events *e, iv_load_result *r, double now) {
    double before = e->last;
    e->last = now;
    if (r->first == 0) {
        r->first = now;
        return true;
    }
    if (r->gap_count == e->gap_capacity) {
        size_t bytes, capacity = e->gap_capacity ? 2 * e->gap_capacity : 64;
        double *more = iv_size_mul(capacity, sizeof *more, &bytes) ? realloc(r->gaps, bytes) : NULL;
        if (!more) return false;
        r->gaps = more, e->gap_capacity = capacity;
    }
    r->gaps[r->gap_count++] = now - before;
    return true;
}

static size_t count_of(const json_t *object, const char *key) {
    json_int_t v = json_integer_value(json_object_get(object, key));
    return v > 0 ? (size_t)v : 0;
}

/* A chat's first event has only the role. */
static bool has_tokens(const json_t *delta) {
    static const char *const texts[] = {"content", "reasoning_content", "reasoning"};
    bool found = json_array_size(json_object_get(delta, "tool_calls")) > 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        found |= json_string_length(json_object_get(delta, texts[i])) > 0;
    return found;
}

static void take_object(iv_load_events *e, iv_load_result *r, json_t *event, double now) {
    json_t *error = json_object_get(event, "error"), *usage = json_object_get(event, "usage");
    json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    if (json_is_object(error)) {
        const char *found_message = json_string_value(json_object_get(error, "message"));
        fail(r, "the stream ended with an error", found_message ? found_message : "");
        return;
    }
    if (choice) {
        bool last = json_is_string(json_object_get(choice, "finish_reason"));
        json_t *delta = json_object_get(choice, "delta");
        bool tokens = delta ? has_tokens(delta) : json_string_length(json_object_get(choice, "text")) > 0 || !last;
        if (tokens && !note_tokens(e, r, now)) fail(r, "no memory", NULL);
    }
    const char *digest = json_string_value(json_object_get(json_object_get(event, "invar"), "digest"));
    if (digest) snprintf(r->digest, sizeof r->digest, "%s", digest);
    if (json_is_object(usage)) {
        r->prompt_tokens = count_of(usage, "prompt_tokens"), r->generated = count_of(usage, "completion_tokens");
        r->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
}

static void take_event(iv_load_events *e, iv_load_result *r, const char *text, size_t n, double now) {
    static const char field[] = "data:";
    json_t *event = NULL;
    iv_error why;
    if (n < strlen(field) || strncmp(text, field, strlen(field)) != 0) return; /* a comment */
    text += strlen(field), n -= strlen(field);
    while (n && *text == ' ') text++, n--;
    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) {
        e->finished = true;
        r->end = now;
    } else if (iv_json_parse("event", text, n, &event, &why) != IV_OK) {
        fail(r, "an event that is not JSON", why.message);
    } else {
        take_object(e, r, event, now);
    }
    json_decref(event);
}

void iv_load_events_begin(iv_load_events *e) {
    iv_buf_clear(&e->bytes);
    e->last = 0, e->gap_capacity = 0, e->finished = false;
}

/* Finds the end of an event: an empty line, with line ends of LF or CR LF. */
static const char *event_end(const char *from, size_t n, size_t *end_bytes) {
    const char *lf = memmem(from, n, "\n\n", 2);
    const char *crlf = memmem(from, lf ? (size_t)(lf - from) : n, "\r\n\r\n", 4);
    *end_bytes = crlf ? 4 : 2;
    return crlf ? crlf : lf;
}

void iv_load_events_feed(iv_load_events *e, iv_load_result *r, const void *bytes, size_t n, double now) {
    size_t at = 0;
    if (!iv_buf_append(&e->bytes, bytes, n)) {
        fail(r, "no memory, or an event that is too long", NULL);
        return;
    }
    while (at < e->bytes.len) {
        size_t end_bytes = 2;
        const char *from = e->bytes.data + at, *stop = event_end(from, e->bytes.len - at, &end_bytes);
        if (!stop) break;
        take_event(e, r, from, (size_t)(stop - from), now);
        at += (size_t)(stop - from) + end_bytes;
    }
    if (at == 0) return;
    memmove(e->bytes.data, e->bytes.data + at, e->bytes.len - at + 1);
    e->bytes.len -= at;
}

enum { TICK_MS = 100, EVENT_BYTES_MAX = 64 << 20, PROBE_S = 10 };

#define ALPHANUMERIC "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

typedef struct load load;
typedef struct flight { /* a connection and the request on it */
    load *l;
    struct flight *next; /* list of all */
    struct evhttp_connection *connection;
    iv_load_result *result; /* NULL: idle */
    iv_load_events events;  /* a body that is not a stream: all its bytes */
    int status;
} flight;

struct load {
    const iv_load_options *o;
    const iv_load_request *requests;
    iv_load_result *results;
    size_t count, next, in_flight, ended;
    struct event_base *base;
    struct event *tick, *due;
    flight *flights;
    double begin, end;
    bool stopped, no_memory, sending;
    char address[INET6_ADDRSTRLEN + 32]; /* of host: the first that accepts connections, in numeric form */
};

/* ---- addresses ---------------------------------------------------------------------------------------- */

static bool url_port(const char *text, size_t n, uint16_t *out) {
    unsigned value = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || value > 65535) return false;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    *out = (uint16_t)value;
    return n > 0 && value > 0 && value <= 65535;
}

bool iv_load_is_url(const char *text) {
    size_t n = strspn(text, ALPHANUMERIC "+-.");
    return n > 0 && strncmp(text + n, "://", 3) == 0;
}

/* Length without trailing slashes and without a trailing /v1. */
static size_t base_bytes(const char *path) {
    size_t n = strlen(path);
    while (n && path[n - 1] == '/') n--;
    bool api = n >= 3 && memcmp(path + n - 3, "/v1", 3) == 0;
    if (api) n -= 3;
    while (api && n && path[n - 1] == '/') n--;
    return n;
}

iv_status iv_load_url_parse(const char *url, iv_load_url *out, iv_error *err) {
    static const char scheme[] = "http://", tls[] = "https://";
    iv_status bad = iv_fail(err, IV_INVALID, "%.200s: wanted http://HOST[:PORT][/BASE]", url);
    if (strncasecmp(url, tls, strlen(tls)) == 0)
        return iv_fail(err, IV_INVALID,
                       "%.200s: wanted http://HOST[:PORT][/BASE], found https: TLS is not supported; use the server's "
                       "address behind the TLS proxy",
                       url);
    if (strncasecmp(url, scheme, strlen(scheme)) != 0) return bad;
    const char *host = url + strlen(scheme);
    bool bracket = *host == '[';
    host += bracket;
    size_t n = strcspn(host, bracket ? "]" : ":/?#");
    const char *rest = host + n;
    if (bracket && *rest++ != ']') return bad;
    if (n == 0 || n >= sizeof out->host) return bad;
    if (strspn(host, bracket ? ALPHANUMERIC ":.%" : ALPHANUMERIC "-._") < n) return bad;
    snprintf(out->host, sizeof out->host, "%.*s", (int)n, host);
    out->port = 80;
    if (*rest == ':') {
        n = strcspn(++rest, "/?#");
        if (!url_port(rest, n, &out->port)) return bad;
        rest += n;
    }
    n = base_bytes(rest);
    if (n >= sizeof out->path || rest[strcspn(rest, "?# \r\n")] || (*rest && *rest != '/')) return bad;
    snprintf(out->path, sizeof out->path, "%.*s", (int)n, rest);
    *err = (iv_error){0};
    return IV_OK;
}

/* ---- responses ---------------------------------------------------------------------------------------- */

/* Takes the message of the error body, else the body. */
static void fail_with_body(flight *f) {
    json_t *body = NULL;
    iv_error ignored;
    char what[40];
    snprintf(what, sizeof what, "HTTP status %d", f->status);
    const iv_buf *bytes = &f->events.bytes;
    const char *message = bytes->data ? bytes->data : "";
    if (bytes->len && iv_json_parse("body", bytes->data, bytes->len, &body, &ignored) == IV_OK) {
        const char *found_message = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
        if (found_message) message = found_message;
    }
    fail(f->result, what, message);
    json_decref(body);
}

static void take_bytes(flight *f, struct evhttp_request *q) {
    struct evbuffer *in = evhttp_request_get_input_buffer(q);
    size_t n = evbuffer_get_length(in);
    f->status = evhttp_request_get_response_code(q);
    if (n == 0) return;
    const unsigned char *data = evbuffer_pullup(in, -1);
    if (data && f->status == 200)
        iv_load_events_feed(&f->events, f->result, data, n, iv_now() - f->l->begin - f->result->sent);
    else if (!data || !iv_buf_append(&f->events.bytes, data, n))
        fail(f->result, "no memory, or an answer that is too long", NULL);
    evbuffer_drain(in, n);
}

static void on_bytes(struct evhttp_request *q, void *user) {
    flight *f = user;
    if (f->result) take_bytes(f, q);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

static void send_due(load *l);

/* Also called inside evhttp_make_request, if a connection is refused at once. */
static void request_done(struct evhttp_request *q, void *user) {
    flight *f = user;
    load *l = f->l;
    iv_load_result *r = f->result;
    if (!r) return;
    if (!q || evhttp_request_get_response_code(q) == 0) {
        fail(r, "the connection failed", NULL);
    } else {
        take_bytes(f, q);
        if (f->status != 200)
            fail_with_body(f);
        else if (!f->events.finished)
            fail(r, "the stream was cut", NULL);
        else if (!r->digest[0] && !l->o->other)
            fail(r, "the answer has no digest: this is not an invar server", NULL);
    }
    r->done = !r->error[0];
    if (r->generated == 0 && r->first > 0) r->generated = r->gap_count + 1; /* the server reports no usage */
    f->result = NULL;
    l->in_flight--, l->ended++;
    l->end = iv_now();
    send_due(l);
}

/* An idle flight, or a new one; NULL: no memory. */
static flight *take_flight(load *l) {
    for (flight *f = l->flights; f; f = f->next)
        if (!f->result) return f;
    flight *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->l = l, f->events.bytes.limit = EVENT_BYTES_MAX;
    f->connection = evhttp_connection_base_new(l->base, NULL, l->address, l->o->port);
    if (!f->connection) {
        free(f);
        return NULL;
    }
    evhttp_connection_set_timeout(f->connection, (int)l->o->timeout_s);
    f->next = l->flights, l->flights = f;
    return f;
}

static void out_prompt(const iv_load_request *r, bool chat, iv_json_out *o) {
    if (!chat) {
        iv_out_key(o, "prompt");
        if (r->id_count)
            iv_out_ids(o, r->ids, r->id_count);
        else
            iv_out_text(o, r->text);
        return;
    }
    iv_out_key(o, "messages"), iv_out_open(o, '['), iv_out_open(o, '{');
    iv_out_kv_text(o, "role", "user"), iv_out_kv_text(o, "content", r->text);
    iv_out_close(o, '}'), iv_out_close(o, ']');
}

static bool write_body(const iv_load_options *options, const iv_load_request *r, struct evbuffer *out) {
    iv_buf body = {0};
    iv_json_out o = {.buf = &body};
    iv_out_open(&o, '{');
    if (options->model) iv_out_kv_text(&o, "model", options->model);
    out_prompt(r, options->chat, &o);
    iv_out_kv_uint(&o, "max_tokens", r->max_tokens);
    iv_out_kv_uint(&o, "seed", r->seed);
    iv_out_key(&o, "temperature"), iv_out_shortest(&o, r->temperature);
    iv_out_kv_bool(&o, "ignore_eos", true);
    iv_out_kv_bool(&o, "stream", true);
    iv_out_key(&o, "stream_options"), iv_out_open(&o, '{');
    iv_out_kv_bool(&o, "include_usage", true);
    iv_out_close(&o, '}'), iv_out_close(&o, '}');
    bool ok = !o.failed && evbuffer_add(out, body.data, body.len) == 0;
    iv_buf_free(&body);
    return ok;
}

/* Sends a request: a POST of `r`, or a GET if NULL. False: `done` was not and will not be called. */
static bool ask(const load *l, struct evhttp_connection *connection, const char *route, const iv_load_request *r,
                void (*done)(struct evhttp_request *q, void *user), void *user) {
    const iv_load_options *o = l->o;
    iv_buf text = {0};
    struct evhttp_request *q = evhttp_request_new(done, user);
    if (!q) return false;
    struct evkeyvalq *head = evhttp_request_get_output_headers(q);
    bool ok = iv_buf_printf(&text, strchr(o->host, ':') ? "[%s]:%u" : "%s:%u", o->host, (unsigned)o->port) &&
              evhttp_add_header(head, "Host", text.data) == 0;
    iv_buf_clear(&text);
    if (o->api_key)
        ok = ok && iv_buf_printf(&text, "Bearer %s", o->api_key) &&
             evhttp_add_header(head, "Authorization", text.data) == 0;
    iv_buf_clear(&text);
    ok = ok && iv_buf_printf(&text, "%s%s", o->path ? o->path : "", route);
    if (r) {
        evhttp_request_set_chunked_cb(q, on_bytes);
        ok = ok && evhttp_add_header(head, "Content-Type", "application/json") == 0 &&
             write_body(o, r, evhttp_request_get_output_buffer(q));
    }
    if (!ok)
        evhttp_request_free(q);
    else /* from here on the connection owns it */
        ok = evhttp_make_request(connection, q, r ? EVHTTP_REQ_POST : EVHTTP_REQ_GET, text.data) == 0;
    iv_buf_free(&text);
    return ok;
}

static void send_next(load *l) {
    iv_load_result *r = &l->results[l->next];
    flight *f = take_flight(l);
    if (!f) {
        l->no_memory = true;
        event_base_loopbreak(l->base);
        return;
    }
    iv_load_events_begin(&f->events);
    f->result = r, f->status = 0;
    r->sent = iv_now() - l->begin;
    l->in_flight++;
    const char *route = l->o->chat ? "/v1/chat/completions" : "/v1/completions";
    if (!ask(l, f->connection, route, &l->requests[l->next++], request_done, f)) request_done(NULL, f);
}

/* Sends every request that is due and has room, then sets the timer for the next. */
static void send_due(load *l) {
    if (l->sending) return; /* the running call of send_due continues */
    l->sending = true;
    while (l->next < l->count && !l->no_memory && !(l->o->concurrency && l->in_flight >= l->o->concurrency)) {
        double wait = l->requests[l->next].at - (iv_now() - l->begin);
        if (wait > 0) {
            struct timeval t = {(time_t)wait, (suseconds_t)((wait - floor(wait)) * 1e6)};
            event_add(l->due, &t);
            break;
        }
        send_next(l);
    }
    l->sending = false;
    if (l->ended == l->count) event_base_loopbreak(l->base);
}

static void on_due(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    send_due(user);
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    load *l = user;
    if (l->o->progress) l->o->progress(l->o->user, l->ended, l->count);
    if (!l->o->stop || !l->o->stop(l->o->user)) return;
    l->stopped = true;
    event_base_loopbreak(l->base);
}

/* ---- running ------------------------------------------------------------------------------------------ */

static int try_address(const struct addrinfo *a) {
    static const struct timeval patience = {PROBE_S, 0};
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    int why = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    close(fd);
    return why;
}

/* A name may have several addresses, and the server may listen on only one. */
static iv_status find_address(load *l, iv_error *err) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[8];
    int why = 0;
    snprintf(port, sizeof port, "%u", (unsigned)l->o->port);
    int unknown = getaddrinfo(l->o->host, port, &hints, &list);
    if (unknown) return iv_fail(err, IV_IO, "%s: %s", l->o->host, gai_strerror(unknown));
    for (struct addrinfo *a = list; a && !l->address[0]; a = a->ai_next) {
        why = try_address(a);
        if (why == 0 &&
            getnameinfo(a->ai_addr, a->ai_addrlen, l->address, sizeof l->address, NULL, 0, NI_NUMERICHOST) != 0)
            why = EAFNOSUPPORT, l->address[0] = 0;
    }
    freeaddrinfo(list);
    if (l->address[0]) return IV_OK;
    return iv_fail(err, IV_IO, "%s, port %u: %s", l->o->host, (unsigned)l->o->port, strerror(why));
}

static iv_status open_load(load *l, iv_error *err) {
    IV_TRY(find_address(l, err));
    l->base = event_base_new();
    if (!l->base) return iv_fail(err, IV_NO_MEMORY, "load: no memory");
    l->tick = event_new(l->base, -1, EV_PERSIST, on_tick, l);
    l->due = event_new(l->base, -1, 0, on_due, l);
    if (!l->tick || !l->due || event_add(l->tick, &(struct timeval){0, TICK_MS * 1000}) != 0)
        return iv_fail(err, IV_NO_MEMORY, "load: no memory");
    return IV_OK;
}

static void close_load(load *l) {
    for (flight *f = l->flights, *next; f; f = next) {
        next = f->next;
        f->result = NULL; /* its result is no longer updated */
        evhttp_connection_free(f->connection);
        iv_buf_free(&f->events.bytes);
        free(f);
    }
    if (l->tick) event_free(l->tick);
    if (l->due) event_free(l->due);
    if (l->base) event_base_free(l->base);
}

iv_status iv_load_run(const iv_load_options *o, const iv_load_request *requests, size_t count, iv_load_result *results,
                      double *seconds, iv_error *err) {
    load l = {.o = o, .requests = requests, .results = results, .count = count};
    for (size_t i = 0; i < count; i++) results[i] = (iv_load_result){0};
    iv_status status = open_load(&l, err);
    l.begin = l.end = iv_now();
    if (status == IV_OK && count) {
        send_due(&l);
        /* All may have failed at once, before the loop ran. */
        if (l.ended < count && !l.no_memory) event_base_dispatch(l.base);
        if (l.no_memory) status = iv_fail(err, IV_NO_MEMORY, "load: no memory");
    }
    *seconds = l.end - l.begin;
    close_load(&l);
    return status;
}

void iv_load_results_free(iv_load_result *results, size_t count) {
    for (size_t i = 0; results && i < count; i++) free(results[i].gaps), results[i].gaps = NULL;
}

/* ---- a single GET ------------------------------------------------------------------------------------- */

typedef struct getting {
    load l;
    const char *route;
    json_t *answer;
    iv_status status;
    iv_error *err;
} getting;

static void got(struct evhttp_request *q, void *user) {
    getting *g = user;
    struct evbuffer *in = q ? evhttp_request_get_input_buffer(q) : NULL;
    int status = q ? evhttp_request_get_response_code(q) : 0;
    size_t n = in ? evbuffer_get_length(in) : 0;
    const char *body = n ? (const char *)evbuffer_pullup(in, -1) : NULL;
    const char *host = g->l.o->host;
    unsigned port = g->l.o->port;
    if (status == 0)
        g->status = iv_fail(g->err, IV_IO, "%s, port %u: no answer", host, port);
    else if (status != 200)
        g->status = iv_fail(g->err, IV_IO, "%s, port %u: %s%s: wanted HTTP status 200, found %d%s", host, port,
                            g->l.o->path ? g->l.o->path : "", g->route, status,
                            status == 401   ? ": it needs an API key"
                            : status == 404 ? ": is it an OpenAI-compatible server?"
                                            : "");
    else
        g->status = iv_json_parse(host, body ? body : "", n, &g->answer, g->err);
    event_base_loopbreak(g->l.base);
}

iv_status iv_load_get(const iv_load_options *o, const char *route, json_t **out, iv_error *err) {
    getting g = {.l = {.o = o}, .route = route, .err = err};
    struct evhttp_connection *connection = NULL;
    *out = NULL;
    g.status = open_load(&g.l, err);
    if (g.status == IV_OK) {
        g.status = iv_fail(err, IV_IO, "%s, port %u: no answer", o->host, (unsigned)o->port);
        connection = evhttp_connection_base_new(g.l.base, NULL, g.l.address, o->port);
        if (connection) evhttp_connection_set_timeout(connection, (int)o->timeout_s);
        if (connection && ask(&g.l, connection, route, NULL, got, &g)) event_base_dispatch(g.l.base);
        if (connection) evhttp_connection_free(connection);
    }
    close_load(&g.l);
    *out = g.answer;
    return g.status;
}
