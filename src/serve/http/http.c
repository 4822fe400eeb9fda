/* http.c: opening, running, draining and closing a server; its loop. */
#include "serve/http/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void iv_http_options_init(iv_http_options *o) {
    *o = (iv_http_options){.host = "127.0.0.1",
                           .port = 8000,
                           .connections_max = 4096,
                           .head_bytes_max = 16 << 10,
                           .body_bytes_max = 8 << 20,
                           .head_ms = 10000,
                           .body_ms = 30000,
                           .idle_ms = 65000,
                           .stream_bytes_max = 256 << 10,
                           .unread_bytes_max = 64 << 20,
                           .stall_ms = 30000};
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static void end_drain_if_done(iv_http *h) {
    if (!h->draining) return;
    bool busy = h->gone || h->work;
    for (const iv_connection *c = h->connections; c && !busy; c = c->next) busy = iv_connection_busy(c);
    if (!busy || h->drain_passed) event_base_loopbreak(h->base);
}

static void serve_work(iv_http *h) {
    iv_connection *list = h->work;
    h->work = NULL;
    while (list) {
        iv_connection *c = list;
        list = c->next_work;
        c->queued = false;
        if (c->state == IV_CONNECTION_DEAD)
            iv_connection_free(c);
        else
            iv_connection_serve(c);
    }
    while (h->gone) {
        iv_http_request *q = h->gone;
        h->gone = q->next_gone;
        q->gone_queued = false;
        iv_http_request_call_gone(q);
    }
}

static void on_work(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    serve_work(arg);
    end_drain_if_done(arg);
}

static void on_wake(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    iv_http *h = arg;
    uint64_t count;
    if (read(fd, &count, sizeof count) == sizeof count) event_base_loopbreak(h->base);
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static iv_status check_options(const iv_http_options *o, iv_error *err) {
    if (!o->host || !*o->host) return iv_fail(err, IV_INVALID, "host: wanted an address");
    if (o->connections_max == 0 || o->connections_max > 1000000)
        return iv_fail(err, IV_INVALID, "connections_max: wanted 1 to 1000000, found %zu", o->connections_max);
    if (o->head_bytes_max < 256 || o->head_bytes_max > 1 << 20)
        return iv_fail(err, IV_INVALID, "head_bytes_max: wanted 256 to 1048576, found %zu", o->head_bytes_max);
    if (o->body_bytes_max > IV_HTTP_BODY_BYTES_MAX)
        return iv_fail(err, IV_INVALID, "body_bytes_max: wanted at most %zu, found %zu", IV_HTTP_BODY_BYTES_MAX,
                       o->body_bytes_max);
    if (!o->head_ms || !o->body_ms || !o->idle_ms || !o->stall_ms)
        return iv_fail(err, IV_INVALID, "head_ms, body_ms, idle_ms, stall_ms: wanted more than 0");
    if ((o->api_key && o->api_key_file) || (o->admin_key && o->admin_key_file))
        return iv_fail(err, IV_INVALID, "api_key, admin_key: wanted a key or a file of keys, found both");
    IV_TRY(iv_http_check_hosts(o->allowed_hosts, err));
    return iv_http_check_origins(o->allowed_origins, err);
}

static bool copy_text(const char *text, char **out) {
    *out = text ? strdup(text) : NULL;
    return *out || !text;
}

static iv_status make_events(iv_http *h, iv_error *err) {
    struct event_config *config = event_config_new();
    if (config) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        h->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    h->waker = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!h->base || h->waker < 0) return iv_fail(err, IV_IO, "cannot make an event loop: %s", strerror(errno));
    h->working = event_new(h->base, -1, 0, on_work, h);
    h->waking = event_new(h->base, h->waker, EV_READ | EV_PERSIST, on_wake, h);
    if (!h->working || !h->waking || event_add(h->waking, NULL) || !iv_http_accept(h))
        return iv_fail(err, IV_NO_MEMORY, "no memory for the events of a server");
    return IV_OK;
}

iv_status iv_http_open(const iv_http_options *o, const iv_http_route *routes, size_t count, void *user, iv_http **out,
                       iv_error *err) {
    *out = NULL;
    IV_TRY(check_options(o, err));
    iv_http *h = calloc(1, sizeof *h);
    if (!h) return iv_fail(err, IV_NO_MEMORY, "no memory for a server");
    *h = (iv_http){.o = *o, .routes = routes, .route_count = count, .user = user, .waker = -1};
    h->o.host = h->o.api_key = h->o.admin_key = h->o.allowed_hosts = h->o.allowed_origins = NULL;
    h->o.api_key_file = h->o.admin_key_file = NULL;
    if (getrandom(&h->client_seed, sizeof h->client_seed, GRND_NONBLOCK) < 0) h->client_seed = iv_http_now_us();
    h->scratch = malloc(IV_HTTP_READ_BYTES);
    bool copied = copy_text(o->host, &h->host) && copy_text(o->allowed_hosts, &h->allowed_hosts) &&
                  copy_text(o->allowed_origins, &h->allowed_origins) && copy_text(o->api_key_file, &h->api_key_file) &&
                  copy_text(o->admin_key_file, &h->admin_key_file);
    if (getrandom(&h->id_state, sizeof h->id_state, GRND_NONBLOCK) < 0) h->id_state = iv_http_now_us();
    iv_status status = iv_http_check_files(o->connections_max, 0, err);
    if (status == IV_OK && (!h->scratch || !copied)) status = iv_fail(err, IV_NO_MEMORY, "no memory for a server");
    if (status == IV_OK && o->api_key) status = iv_keys_add(&h->api_keys, o->api_key, "api_key", err);
    if (status == IV_OK && o->admin_key) status = iv_keys_add(&h->admin_keys, o->admin_key, "admin_key", err);
    if (status == IV_OK) status = iv_http_read_keys(h, NULL, NULL, err);
    if (status == IV_OK) status = iv_http_listen(h, o->host, o->port, err);
    if (status == IV_OK) h->loopback = iv_http_is_loopback(h);
    if (status == IV_OK) status = make_events(h, err);
    if (status == IV_OK) status = iv_http_limit_connections(h, err);
    if (status != IV_OK) {
        iv_http_close(h);
        return status;
    }
    *out = h;
    return IV_OK;
}

iv_status iv_http_read_keys(iv_http *h, size_t *api, size_t *admin, iv_error *err) {
    iv_keys api_keys = h->api_keys, admin_keys = h->admin_keys;
    if (h->api_key_file) IV_TRY(iv_keys_read(&api_keys, h->api_key_file, err));
    if (h->admin_key_file) IV_TRY(iv_keys_read(&admin_keys, h->admin_key_file, err));
    h->api_keys = api_keys, h->admin_keys = admin_keys;
    if (api) *api = api_keys.count;
    if (admin) *admin = admin_keys.count;
    return IV_OK;
}

static void swap_text(char **a, char **b) {
    char *kept = *a;
    *a = *b, *b = kept;
}

iv_status iv_http_reload(iv_http *h, const iv_http_options *o, iv_error *err) {
    IV_TRY(check_options(o, err));
    iv_http n = {.waker = -1}; /* its keys and texts only */
    bool copied = copy_text(o->allowed_hosts, &n.allowed_hosts) && copy_text(o->allowed_origins, &n.allowed_origins) &&
                  copy_text(o->api_key_file, &n.api_key_file) && copy_text(o->admin_key_file, &n.admin_key_file);
    iv_status status = copied ? IV_OK : iv_fail(err, IV_NO_MEMORY, "no memory for the options of a server");
    if (status == IV_OK && o->api_key) status = iv_keys_add(&n.api_keys, o->api_key, "api_key", err);
    if (status == IV_OK && o->admin_key) status = iv_keys_add(&n.admin_keys, o->admin_key, "admin_key", err);
    if (status == IV_OK) status = iv_http_read_keys(&n, NULL, NULL, err);
    if (status == IV_OK) {
        h->api_keys = n.api_keys, h->admin_keys = n.admin_keys;
        swap_text(&h->allowed_hosts, &n.allowed_hosts), swap_text(&h->allowed_origins, &n.allowed_origins);
        swap_text(&h->api_key_file, &n.api_key_file), swap_text(&h->admin_key_file, &n.admin_key_file);
        h->o.open_cache = o->open_cache, h->o.client_connections_max = o->client_connections_max;
        h->o.body_bytes_max = o->body_bytes_max, h->o.unread_bytes_max = o->unread_bytes_max;
    }
    free(n.allowed_hosts), free(n.allowed_origins), free(n.api_key_file), free(n.admin_key_file);
    return status;
}

size_t iv_http_connections(const iv_http *h) { return h->connection_count; }
size_t iv_http_connections_max(const iv_http *h) { return h->o.connections_max; }
uint64_t iv_http_refused(const iv_http *h) { return h->refused_total; }
uint64_t iv_http_accepted(const iv_http *h) { return h->accepted_total; }
uint64_t iv_http_cut(const iv_http *h) { return h->cut_total; }
uint64_t iv_http_files_short(const iv_http *h) { return h->files_short; }

/* ---- running ------------------------------------------------------------------------------------------ */

iv_status iv_http_run(iv_http *h, iv_error *err) {
    if (event_base_loop(h->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0)
        return iv_fail(err, IV_IO, "the event loop failed: %s", strerror(errno));
    return IV_OK;
}

void iv_http_stop(iv_http *h) {
    const uint64_t one = 1;
    ssize_t wrote = write(h->waker, &one, sizeof one);
    (void)wrote; /* a full counter: already awake */
}

static void on_drain_end(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    iv_http *h = arg;
    const struct timeval last = {.tv_sec = IV_HTTP_LATE_MS / 1000, .tv_usec = IV_HTTP_LATE_MS % 1000 * 1000};
    void (*late)(void *user) = h->drain_late;
    h->drain_late = NULL;
    h->drain_passed = !late || event_add(h->drain_end, &last);
    if (late) late(h->drain_user);
    iv_http_wake_work(h); /* sends what `late` wrote, and ends */
}

void iv_http_drain(iv_http *h, uint32_t deadline_ms, void (*late)(void *user), void *user) {
    if (h->draining) return;
    h->draining = true;
    h->drain_late = late, h->drain_user = user;
    struct timeval t = {.tv_sec = deadline_ms / 1000, .tv_usec = deadline_ms % 1000 * 1000};
    h->drain_end = event_new(h->base, -1, 0, on_drain_end, h);
    if (!h->drain_end || event_add(h->drain_end, &t)) h->drain_passed = true;
    iv_http_wake_work(h);
}

static void on_watched(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    const iv_http_watcher *w = arg;
    w->call(w->user);
}

static iv_status add_watcher(iv_http *h, int fd, short what, uint32_t ms, void (*call)(void *user), void *user,
                             iv_error *err) {
    struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    iv_http_watcher *w = calloc(1, sizeof *w);
    if (!w) return iv_fail(err, IV_NO_MEMORY, "no memory for a watcher");
    *w = (iv_http_watcher){.call = call, .user = user, .next = h->watchers};
    w->event = event_new(h->base, fd, (short)(what | EV_PERSIST), on_watched, w);
    if (!w->event || event_add(w->event, ms ? &t : NULL)) {
        if (w->event) event_free(w->event);
        free(w);
        return iv_fail(err, IV_IO, "cannot add an event to the loop: %s", strerror(errno));
    }
    h->watchers = w;
    return IV_OK;
}

iv_status iv_http_watch(iv_http *h, int fd, void (*ready)(void *user), void *user, iv_error *err) {
    return add_watcher(h, fd, EV_READ, 0, ready, user, err);
}

iv_status iv_http_every(iv_http *h, uint32_t ms, void (*tick)(void *user), void *user, iv_error *err) {
    IV_ASSERT(ms > 0);
    return add_watcher(h, -1, 0, ms, tick, user, err);
}

iv_status iv_http_signal(iv_http *h, int number, void (*caught)(void *user), void *user, iv_error *err) {
    return add_watcher(h, number, EV_SIGNAL, 0, caught, user, err);
}

/* Pending requests end; their handlers are notified. */
void iv_http_close(iv_http *h) {
    if (!h) return;
    iv_http_stop_listening(h);
    while (h->connections) iv_connection_lose(h->connections, false);
    while (h->work || h->gone) serve_work(h);
    while (h->requests) iv_http_request_call_gone(h->requests); /* those without an on_gone callback */
    while (h->watchers) {
        iv_http_watcher *w = h->watchers;
        h->watchers = w->next;
        event_free(w->event);
        free(w);
    }
    if (h->working) event_free(h->working);
    if (h->waking) event_free(h->waking);
    if (h->drain_end) event_free(h->drain_end);
    if (h->base) event_base_free(h->base);
    if (h->waker >= 0) close(h->waker);
    free(h->host);
    free(h->allowed_hosts);
    free(h->api_key_file);
    free(h->admin_key_file);
    free(h->allowed_origins);
    free(h->scratch);
    free(h);
}
