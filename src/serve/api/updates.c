/* updates.c: the routes by which SGLang's clients change weights, with their fields. An update is read on the updates'
 * thread (`run`), then, back on the server's, either answered or given to the engine, and answered with its result. The
 * next one begins after that. */
#include "serve/api/updates.h"
#include "base/jobs.h"
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/weights/series.h"
#include "serve/weights/sidecar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 4096, QUEUE_MAX = 64 };

typedef struct update update;
typedef iv_status update_read(update *u, json_t *body, iv_error *err);

struct update {
    iv_job job; /* first */
    update *next;
    iv_updates *owner;
    iv_http_request *http_request; /* NULL: the client has left */
    iv_buf body;
    const char *const *fields; /* that the body may have */
    update_read *read;         /* on the updates' thread */
    iv_status status;
    iv_error err;
    char message[200];
    size_t missing; /* tensors; 0: of no interest */
    bool commit;    /* `text` is an update for the engine ... */
    bool from_disk; /* ... of a directory that is not the server's own */
    bool abort_all; /* before it */
    char text[TEXT_BYTES];
    char *version; /* of the weights, for clients; NULL: their number */
};

struct iv_updates {
    iv_server *server;
    iv_jobs *jobs; /* of one thread, and one in the background that is not used */
    iv_series *series;
    iv_sidecar *sidecar;
    atomic_bool stop;     /* ends the sidecar's calls */
    update *first, *last; /* the first is in work */
    size_t count;
    bool closing;
    bool session;  /* between /begin_weight_update and /end_weight_update */
    char *version; /* of the open series, as its last request named it; NULL: it named none */
};

/* ---- the queue ---------------------------------------------------------------------------------------- */

static void free_update(update *u) {
    iv_buf_free(&u->body);
    free(u->version), free(u);
}

static void begin_first(iv_updates *w);

/* Answers and ends the first update. */
static void finish(iv_updates *w, iv_status status, const char *message) {
    update *u = w->first;
    w->first = u->next;
    if (!w->first) w->last = NULL;
    w->count--;
    if (u->http_request) iv_admin_reply(w->server, u->http_request, status, message, u->missing);
    free_update(u);
    if (w->first) begin_first(w);
}

/* The engine has loaded the weights, or refused them. */
static void committed(iv_server *s, void *user, const iv_bridge_event *r) {
    iv_updates *w = user;
    update *u = w->first;
    iv_bridge_stats stats;
    iv_error unused;
    bool good = r->status == IV_OK;
    iv_bridge_get_stats(s->bridge, &stats);
    if (!u->from_disk)
        iv_series_settle(w->series, good, stats.released);
    else if (good)
        (void)iv_series_use(w->series, u->text, &unused);
    if (good && u->version) {
        iv_weight_names_add(&s->weight_names, r->weight_version, u->version);
        u->version = NULL;
    }
    finish(w, r->status, good ? "the weights are in use" : r->message);
}

static void commit(iv_updates *w) {
    update *u = w->first;
    iv_error err = {0};
    if (u->abort_all) iv_task_abort_named(w->server, NULL);
    if (iv_admin_send(w->server, IV_COMMAND_UPDATE_WEIGHTS, u->text, committed, w, &err) == IV_OK) return;
    if (!u->from_disk) iv_series_settle(w->series, false, false);
    finish(w, err.status, err.message);
}

static void done(iv_job *job, bool ran) {
    update *u = (update *)job;
    iv_updates *w = u->owner;
    (void)ran; /* always, but at the end */
    if (w->closing) return;
    if (u->status == IV_NOT_FOUND) u->status = IV_UNSUPPORTED; /* a library of this machine */
    if (u->status == IV_OK && u->commit)
        commit(w);
    else
        finish(w, u->status, u->status == IV_OK ? u->message : u->err.message);
}

/* Unknown fields are refused by name, like everywhere. */
static iv_status check_fields(const update *u, const json_t *body, iv_error *err) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        bool known = false;
        for (const char *const *f = u->fields; *f && !known; f++) known = strcmp(*f, key) == 0;
        if (!known && !json_is_null(v)) return iv_fail(err, IV_INVALID, "%.100s: no such field of this route", key);
    }
    return IV_OK;
}

static bool run(iv_job *job) {
    update *u = (update *)job;
    iv_api_params none = {0};
    json_t *body = NULL;
    if (u->body.len == 0 && !iv_buf_puts(&u->body, "{}")) u->status = iv_fail(&u->err, IV_NO_MEMORY, "body: no memory");
    if (u->status == IV_OK) u->status = iv_api_parse_body(&none, 0, u->body.data, u->body.len, &body, &u->err);
    if (u->status == IV_OK) u->status = check_fields(u, body, &u->err);
    if (u->status == IV_OK) u->status = u->read(u, body, &u->err);
    json_decref(body);
    iv_api_params_free(&none);
    iv_buf_free(&u->body);
    return true;
}

static void begin_first(iv_updates *w) {
    w->first->job = (iv_job){.run = run, .done = done};
    if (w->first->from_disk)
        commit(w);
    else
        iv_jobs_submit(w->jobs, &w->first->job);
}

static void left(void *user) { ((update *)user)->http_request = NULL; }

static void enqueue(iv_updates *w, update *u) {
    if (w->last)
        w->last->next = u;
    else
        w->first = u;
    w->last = u;
    w->count++;
    iv_http_request_on_gone(u->http_request, left, u);
    if (w->first == u) begin_first(w);
}

/* NULL: it was answered. */
static update *new_update(iv_server *s, iv_http_request *q) {
    iv_error err = {0};
    update *u = NULL;
    if (!s->updates)
        iv_fail(&err, IV_UNSUPPORTED, "this server takes no updates");
    else if (s->updates->count >= QUEUE_MAX)
        iv_fail(&err, IV_BUSY, "updates: %d wait already", QUEUE_MAX);
    else if (!(u = calloc(1, sizeof *u)))
        iv_fail(&err, IV_NO_MEMORY, "updates: no memory");
    if (u)
        u->owner = s->updates, u->http_request = q;
    else
        iv_admin_reply(s, q, err.status, err.message, 0);
    return u;
}

static void handle(iv_server *s, iv_http_request *q, const char *const *fields, update_read *read) {
    update *u = new_update(s, q);
    if (!u) return;
    u->fields = fields, u->read = read;
    iv_http_request_take_body(q, &u->body);
    s->freed_bytes += u->body.len;
    enqueue(s->updates, u);
}

/* ---- fields ------------------------------------------------------------------------------------------- */

static iv_status text_field(const json_t *body, const char *name, bool wanted, const char **out, iv_error *err) {
    const json_t *v = json_object_get(body, name);
    *out = json_string_value(v);
    if (*out || (!wanted && (!v || json_is_null(v)))) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted a string, found %s", name, v ? iv_json_type_name(v) : "nothing");
}

/* What every update may say. */
static iv_status read_common(update *u, const json_t *body, iv_error *err) {
    const char *version, *selector;
    IV_TRY(text_field(body, "weight_version", false, &version, err));
    IV_TRY(text_field(body, "selector", false, &selector, err));
    if (selector && strcmp(selector, "all") != 0 && strcmp(selector, "target") != 0)
        return iv_fail(err, IV_UNSUPPORTED,
                       "selector: wanted \"all\" or \"target\", found \"%.40s\": there is no draft model", selector);
    u->abort_all = json_is_true(json_object_get(body, "abort_all_requests"));
    if (version && !(u->version = strdup(version))) return iv_fail(err, IV_NO_MEMORY, "weight_version: no memory");
    return IV_OK;
}

/* ---- a series ----------------------------------------------------------------------------------------- */

static void forget_version(iv_updates *w) {
    free(w->version);
    w->version = NULL;
}

static void drop(iv_updates *w) {
    iv_series_drop(w->series);
    forget_version(w);
    w->session = false;
}

/* Another version than the last request's begins another series. */
static iv_status begin(iv_updates *w, const update *u, iv_error *err) {
    if (!w->session && w->version && u->version && strcmp(w->version, u->version) != 0) drop(w);
    if (u->version) {
        forget_version(w);
        w->version = strdup(u->version);
    }
    return iv_series_begin(w->series, err);
}

/* expected: digest that the client says the weights have; NULL: it says none. */
static iv_status complete(update *u, bool fill, const char *expected, iv_error *err) {
    iv_updates *w = u->owner;
    char digest[65];
    const char *dir;
    IV_TRY(iv_series_finish(w->series, fill, &dir, digest, err));
    if (!u->version && w->version && !(u->version = strdup(w->version)))
        return iv_fail(err, IV_NO_MEMORY, "weight_version: no memory");
    forget_version(w);
    w->session = false;
    if (expected && strcmp(expected, digest) != 0)
        return iv_fail(err, IV_INVALID, "weights_digest: wanted %.64s as the request says, found %s", expected, digest);
    if ((size_t)snprintf(u->text, sizeof u->text, "sha256:%s %s", digest, dir) >= sizeof u->text)
        return iv_fail(err, IV_LIMIT, "update-dir: too long a path");
    u->commit = true;
    return IV_OK;
}

/* After a request's tensors: the series is complete with the last one, or at the end of its session. */
static iv_status go_on(update *u, const json_t *body, size_t count, iv_error *err) {
    const char *first, *expected;
    IV_TRY(text_field(body, "weights_digest", false, &expected, err));
    u->missing = iv_series_missing(u->owner->series, &first);
    if (u->missing == 0 && !u->owner->session) return complete(u, false, expected, err);
    if (u->missing)
        snprintf(u->message, sizeof u->message, "%zu tensors were taken; %zu are missing, the first is %.100s", count,
                 u->missing, first);
    else
        snprintf(u->message, sizeof u->message, "%zu tensors were taken", count);
    return IV_OK;
}

/* A request that fails ends its series: the tensors before it belong to weights that will not arrive. */
static iv_status end_on_error(update *u, iv_status status) {
    if (status != IV_OK) drop(u->owner);
    return status;
}

/* ---- from a trainer ----------------------------------------------------------------------------------- */

/* The sidecar reads the body, and leaves the tensors in a file. A broadcast is received whole before a tensor of it is
 * refused: the trainer goes on in any case. */
static iv_status take_tensors(update *u, const json_t *body, const char *route, iv_error *err) {
    iv_updates *w = u->owner;
    char path[TEXT_BYTES], *dir;
    size_t sent, count = 0;
    IV_TRY(begin(w, u, err));
    IV_TRY(iv_series_incoming(w->series, &dir, err));
    iv_status status = IV_OK;
    if ((size_t)snprintf(path, sizeof path, "%s/model.safetensors", dir) >= sizeof path)
        status = iv_fail(err, IV_LIMIT, "update-dir: too long a path");
    if (status == IV_OK) status = iv_sidecar_call(w->sidecar, route, path, &u->body, &sent, err);
    if (status == IV_OK && sent) status = iv_series_add(w->series, path, &count, err);
    iv_series_discard(dir);
    return status == IV_OK ? go_on(u, body, count, err) : status;
}

/* load_format: NULL, or the one that the route knows. */
static iv_status check_format(const json_t *body, const char *known, iv_error *err) {
    const char *format;
    IV_TRY(text_field(body, "load_format", false, &format, err));
    if (!format || (known && strcmp(format, known) == 0)) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "load_format: wanted null%s%s%s, found \"%.40s\"", known ? " or \"" : "",
                   known ? known : "", known ? "\"" : "", format);
}

static iv_status read_tensors(update *u, json_t *body, iv_error *err) {
    IV_TRY(read_common(u, body, err));
    iv_status status = check_format(body, "flattened_bucket", err);
    if (status == IV_OK) status = take_tensors(u, body, "update_weights_from_tensor", err);
    return end_on_error(u, status);
}

void iv_handle_update_from_tensor(void *user, iv_http_request *q) {
    static const char *const fields[] = {
        "serialized_named_tensors", "load_format", "flush_cache",         "abort_all_requests",
        "weight_version",           "selector",    "disable_draft_model", "torch_empty_cache",
        "weights_digest",           NULL};
    handle(user, q, fields, read_tensors);
}

static iv_status read_broadcasts(update *u, json_t *body, iv_error *err) {
    IV_TRY(read_common(u, body, err));
    iv_status status = check_format(body, NULL, err);
    if (status == IV_OK) status = take_tensors(u, body, "update_weights_from_distributed", err);
    return end_on_error(u, status);
}

void iv_handle_update_from_distributed(void *user, iv_http_request *q) {
    static const char *const fields[] = {
        "names",          "dtypes",      "shapes",   "group_name",        "flush_cache",    "abort_all_requests",
        "weight_version", "load_format", "selector", "torch_empty_cache", "weights_digest", NULL};
    handle(user, q, fields, read_broadcasts);
}

/* ---- groups ------------------------------------------------------------------------------------------- */

static iv_status call_group(update *u, const json_t *body, const char *route, const char *what, iv_error *err) {
    const char *name;
    size_t none;
    IV_TRY(text_field(body, "group_name", false, &name, err));
    IV_TRY(iv_sidecar_call(u->owner->sidecar, route, NULL, &u->body, &none, err));
    snprintf(u->message, sizeof u->message, "the group %.100s is %s", name ? name : "weight_update_group", what);
    return IV_OK;
}

static iv_status read_join(update *u, json_t *body, iv_error *err) {
    return call_group(u, body, "init_weights_update_group", "joined", err);
}

void iv_handle_init_group(void *user, iv_http_request *q) {
    static const char *const fields[] = {"master_address", "master_port", "rank_offset", "world_size",
                                         "group_name",     "backend",     NULL};
    handle(user, q, fields, read_join);
}

static iv_status read_leave(update *u, json_t *body, iv_error *err) {
    return call_group(u, body, "destroy_weights_update_group", "left", err);
}

void iv_handle_destroy_group(void *user, iv_http_request *q) {
    static const char *const fields[] = {"group_name", NULL};
    handle(user, q, fields, read_leave);
}

/* ---- sessions ----------------------------------------------------------------------------------------- */

static iv_status read_begin(update *u, json_t *body, iv_error *err) {
    IV_TRY(read_common(u, body, err));
    drop(u->owner);
    IV_TRY(begin(u->owner, u, err));
    u->owner->session = true;
    snprintf(u->message, sizeof u->message, "an update has begun");
    return IV_OK;
}

void iv_handle_begin_update(void *user, iv_http_request *q) {
    static const char *const fields[] = {"selector", "weight_version", NULL};
    handle(user, q, fields, read_begin);
}

/* Tensors that were not sent stay as they are. */
static iv_status read_end(update *u, json_t *body, iv_error *err) {
    const char *expected;
    IV_TRY(read_common(u, body, err));
    IV_TRY(text_field(body, "weights_digest", false, &expected, err));
    return end_on_error(u, complete(u, true, expected, err));
}

void iv_handle_end_update(void *user, iv_http_request *q) {
    static const char *const fields[] = {"weight_version", "abort_all_requests", "weights_digest", NULL};
    handle(user, q, fields, read_end);
}

/* ---- random weights ------------------------------------------------------------------------------------ */

/* /weights_checker's "reset_tensors": an update after it must bring back every tensor. */
static iv_status read_reset(update *u, json_t *body, iv_error *err) {
    (void)body;
    drop(u->owner);
    IV_TRY(begin(u->owner, u, err));
    iv_status status = iv_series_randomize(u->owner->series, err);
    return end_on_error(u, status == IV_OK ? complete(u, false, NULL, err) : status);
}

void iv_handle_reset_weights(void *user, iv_http_request *q) {
    static const char *const fields[] = {NULL};
    handle(user, q, fields, read_reset);
}

/* ---- from disk ---------------------------------------------------------------------------------------- */

static iv_status read_disk(update *u, iv_api_params *p, iv_error *err) {
    if (!p->weights) return iv_fail(err, IV_INVALID, "model_path: wanted a model directory, found nothing");
    if ((size_t)snprintf(u->text, sizeof u->text, "%s", p->weights) >= sizeof u->text)
        return iv_fail(err, IV_LIMIT, "model_path: wanted less than %d bytes", TEXT_BYTES);
    if (p->weights_name && !(u->version = strdup(p->weights_name)))
        return iv_fail(err, IV_NO_MEMORY, "weight_version: no memory");
    u->abort_all = p->abort_all, u->from_disk = true;
    return IV_OK;
}

/* Read at once: the directory is read by the engine. */
void iv_handle_update_weights(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_api_params p;
    iv_error err = {0};
    iv_request none = {0};
    json_t *body = NULL;
    update *u = new_update(s, q);
    if (!u) return;
    iv_api_params_init(&p, &none);
    iv_status status = iv_api_body(q, IV_API_WEIGHTS, &body, &err);
    if (status == IV_OK) status = iv_api_params_read(&p, IV_API_WEIGHTS, "", body, &err);
    if (status == IV_OK) status = read_disk(u, &p, &err);
    json_decref(body);
    iv_api_params_free(&p);
    if (status == IV_OK) {
        enqueue(s->updates, u);
        return;
    }
    free_update(u);
    iv_api_reply_error(s, q, &err);
}

/* ---- opening and closing ------------------------------------------------------------------------------ */

iv_status iv_updates_open(iv_server *s, iv_updates **out, iv_error *err) {
    const iv_engine_options *e = &s->o->bridge.engine;
    const iv_engine_info *info = iv_bridge_info(s->bridge);
    iv_series_options o = {.model = e->model,
                           .load_format = e->load_format,
                           .dummy_seed = e->dummy_seed,
                           .parent = s->o->update_dir,
                           .weight_bytes = info->weight_bytes};
    iv_updates *w = *out = calloc(1, sizeof *w);
    if (!w) return iv_fail(err, IV_NO_MEMORY, "updates: no memory");
    w->server = s;
    atomic_init(&w->stop, false);
    iv_sidecar_options sidecar = {.python = s->o->weights_python,
                                  .ranks = info->tensor_parallel_size,
                                  .seconds = s->o->update_timeout_ms / 1000.0,
                                  .stop = &w->stop};
    IV_TRY(iv_series_open(&o, &w->series, err));
    IV_TRY(iv_sidecar_open(&sidecar, &w->sidecar, err));
    return iv_jobs_open(1, &w->jobs, err);
}

void iv_updates_close(iv_updates *w) {
    if (!w) return;
    w->closing = true;
    atomic_store(&w->stop, true);
    iv_jobs_close(w->jobs);                          /* waits for the update that is read */
    for (update *u = w->first, *next; u; u = next) { /* the HTTP server is closed */
        next = u->next;
        free_update(u);
    }
    iv_sidecar_close(w->sidecar);
    iv_series_close(w->series);
    free(w->version), free(w);
}

int iv_updates_fd(const iv_updates *w) { return iv_jobs_fd(w->jobs); }
void iv_updates_collect(iv_updates *w) { iv_jobs_collect(w->jobs); }

iv_status iv_updates_check_whole(iv_updates *w, iv_error *err) {
    const char *first;
    if (w->first) return iv_fail(err, IV_BUSY, "weights: an update is being carried out");
    if (!iv_series_is_open(w->series)) return IV_OK;
    size_t missing = iv_series_missing(w->series, &first);
    iv_fail(err, IV_BUSY,
            "weights: %zu tensors of the update are missing, the first is %.200s; it is dropped, and the weights "
            "before it stay in use",
            missing, first ? first : "none");
    drop(w);
    return err->status;
}

void iv_updates_revert(iv_updates *w) { iv_series_revert(w->series); }
