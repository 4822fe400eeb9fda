/* server.c: opens engine, metrics and listener, runs the loop, and ends it: on a signal once accepted requests are
 * answered, or when the engine is lost. Everything but the engine runs on one thread. */
#include "serve/server.h"
#include "base/clock.h"
#include "base/size.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"
#include "serve/api/task.h"
#include "serve/api/token_text.h"
#include "serve/api/updates.h"
#include "serve/lora_modules.h"
#include "serve/notify.h"
#include "serve/page/page.h"
#include "serve/state/log.h"
#include "serve/state/metrics.h"
#include "serve/state/response_store.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PUMP_MAX = 4096, /* events taken before the loop serves its connections again */
    TICK_MS = 1000,
    FILES_EVERY_S = 60,
    FILES_BEFORE = 9, /* opened before the listener: the bridge's, with a spare for a restart, and the jobs' waker */
    JOB_THREADS = 4,  /* for chat templates: mostly idle */
    GIVE_BACK_BYTES = 1 << 20,
    LOST_DRAIN_MS = 2000, /* to send the error answers */
    LAUNCHER_MS = 100,    /* mpirun kills one second after its SIGTERM */
    LOG_END_MS = 1000,    /* to write the last lines */
    LOADING_S = 60,       /* what a service manager allows the start from each sign of its progress on */
    STOPPING_S = 10,      /* and the end, after the drain */
    QUEUED_REQUESTS = 1024,
    STORED_RESPONSES = 10000,
    ENGINE_RESTARTS = 3
};

typedef struct loop {
    iv_server server; /* first: the `user` of handlers */
    iv_server_options options;
    iv_notify notify;
    char model_name[IV_MODEL_NAME_BYTES];
    bool lost;
    bool job_ended;   /* by mpirun */
    double status_at; /* of the last status line */
    double files_logged_at;
    uint64_t files_short;
    uint64_t responses_lost;
    iv_engine_stats status_stats;
} loop;

void iv_server_options_init(iv_server_options *o) {
    *o = (iv_server_options){
        .log_requests = true, .drain_ms = 30000, .status_every_ms = 10000, .update_timeout_ms = 600000};
    o->stored_responses_max = STORED_RESPONSES, o->stored_bytes_max = (uint64_t)1 << 30;
    iv_http_options_init(&o->http);
    iv_engine_options_init(&o->bridge.engine);
    o->bridge.engine.step_target_ms = IV_STEP_TARGET_STREAMS;
    o->bridge.queued_requests_max = QUEUED_REQUESTS, o->bridge.engine_restarts = ENGINE_RESTARTS;
}

/* ---- events of the loop ------------------------------------------------------------------------------- */

/* Pending requests end with an error instead of a reset. */
static void on_late(void *user) {
    loop *l = user;
    iv_error err;
    iv_fail(&err, IV_NO_MEMORY, "the server is shutting down and has no time left for this request"); /* 503 */
    size_t failed = iv_task_fail_all(&l->server, &err);
    if (failed) iv_log(&l->server.log, "warning", "late", "%zu unfinished requests end with an error", failed);
}

/* When the engine is lost, the program ends once every request has its error. */
static void end_if_lost(loop *l, const iv_bridge_stats *stats) {
    if (!stats->failed || l->lost) return;
    l->lost = l->server.draining = true;
    iv_log(&l->server.log, "error", "lost", "the engine is lost: %s", stats->why);
    iv_http_drain(l->server.http, LOST_DRAIN_MS, on_late, l);
}

static void on_events(void *user) {
    loop *l = user;
    iv_bridge_event event;
    bool refused = false;
    for (size_t i = 0; i < PUMP_MAX && iv_bridge_next(l->server.bridge, &event); i++) {
        refused |= event.kind == IV_BRIDGE_EVENT_REFUSED;
        iv_server_take_event(&l->server, &event);
    }
    if (!refused) return;
    iv_bridge_stats stats;
    iv_bridge_get_stats(l->server.bridge, &stats);
    end_if_lost(l, &stats);
}

static void on_jobs(void *user) { iv_jobs_collect(((loop *)user)->server.jobs); }
static void on_updates(void *user) { iv_updates_collect(((loop *)user)->server.updates); }

/* Records the sender of SIGTERM, which the loop's handler does not report. */
static atomic_int term_sender;
static void (*term_handler)(int number);

static void note_sender(int number, siginfo_t *info, void *context) {
    (void)context;
    atomic_store(&term_sender, info->si_pid);
    term_handler(number);
}

/* Installed in front of the loop's handler; the loop restores the original one. */
static void note_senders(void) {
    struct sigaction here, before;
    if (sigaction(SIGTERM, NULL, &before)) return;
    term_handler = before.sa_handler;
    here = before;
    here.sa_sigaction = note_sender;
    here.sa_flags |= SA_SIGINFO;
    sigaction(SIGTERM, &here, NULL);
}

static void on_signal(void *user) {
    loop *l = user;
    const iv_server_options *o = l->server.o;
    if (l->server.draining) {
        iv_log(&l->server.log, "warning", "stop", "a second signal: ending now");
        on_late(l);
        iv_http_stop(l->server.http);
        return;
    }
    l->server.draining = true;
    iv_notify_send(&l->notify, "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%llu",
                   o->drain_ms * 1000ULL + STOPPING_S * 1000000ULL);
    if (o->launcher && atomic_load(&term_sender) == o->launcher) {
        l->job_ended = true;
        iv_log(&l->server.log, "warning", "drain", "mpirun ends this job: requests have %.3g s", LAUNCHER_MS / 1000.0);
        iv_http_drain(l->server.http, LAUNCHER_MS, on_late, l);
        return;
    }
    iv_log(&l->server.log, "info", "drain", "draining: accepted requests may take %.3g s more", o->drain_ms / 1000.0);
    iv_http_drain(l->server.http, o->drain_ms, on_late, l);
}

static void read_config_again(loop *l) {
    iv_server_reload fresh = {.applied = "", .ignored = ""};
    iv_server *s = &l->server;
    iv_error err = {0};
    iv_status status = l->options.reload(l->options.user, &fresh, &err);
    if (status == IV_OK) status = iv_http_reload(s->http, &fresh.options.http, &err);
    if (status != IV_OK) {
        iv_log(&s->log, "error", "reload", "SIGHUP: the configuration stays as it was: %s", err.message);
        return;
    }
    l->options.reloaded(l->options.user);
    iv_bridge_limit_queue(s->bridge, fresh.options.bridge.queued_requests_max);
    l->options.drain_ms = fresh.options.drain_ms, l->options.log_requests = fresh.options.log_requests;
    s->log.level = iv_log_level(fresh.options.log_level);
    if (*fresh.ignored)
        iv_log(&s->log, "warning", "reload", "SIGHUP: changed, but read only at the start, so ignored: %s",
               fresh.ignored);
    iv_log(&s->log, "info", "reload", "SIGHUP: configuration and files of keys read again, %s%s",
           *fresh.applied ? "changed: " : "no change", fresh.applied);
}

/* SIGHUP: reopens files that may have been replaced. On an error the old ones stay in use. */
static void on_hangup(void *user) {
    loop *l = user;
    const iv_http_options *o = &l->server.o->http;
    size_t api, admin;
    iv_error err;
    iv_notify_reloading(&l->notify);
    if (l->server.log_writer) iv_log_writer_reopen(l->server.log_writer);
    if (l->options.reload)
        read_config_again(l);
    else if (iv_http_read_keys(l->server.http, &api, &admin, &err) != IV_OK)
        iv_log(&l->server.log, "error", "reload", "SIGHUP: the keys stay as they were: %s", err.message);
    else if (o->api_key_file || o->admin_key_file)
        iv_log(&l->server.log, "info", "reload", "SIGHUP: files of keys read again: %zu API keys, %zu admin keys", api,
               admin);
    else
        iv_log(&l->server.log, "info", "reload", "SIGHUP: there are no files of keys to read again");
    iv_notify_send(&l->notify, "READY=1");
}

static void on_watchdog(void *user) { iv_notify_send(&((loop *)user)->notify, "WATCHDOG=1"); }

/* For `systemctl status`. */
static void notify_state(loop *l, const iv_bridge_stats *stats) {
    if (l->server.draining) return;
    iv_notify_status(&l->notify, "%s, %zu requests run, %zu wait, %llu engine restarts",
                     stats->away ? "the engine is being restarted" : "listening", stats->engine.running,
                     stats->queued + stats->engine.waiting, (unsigned long long)stats->restarts);
}

/* While the model loads; passed on. */
static void on_progress(void *user, size_t done_bytes, size_t total_bytes) {
    loop *l = user;
    const iv_engine_options *o = &l->options.bridge.engine;
    iv_notify_loading(&l->notify, done_bytes, total_bytes, LOADING_S);
    if (o->progress) o->progress(o->user, done_bytes, total_bytes);
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* Logs the last interval, unless nothing happened. */
static void log_status(loop *l, const iv_bridge_stats *stats, double now) {
    const iv_engine_stats *s = &stats->engine, *before = &l->status_stats;
    double seconds = now - l->status_at;
    bool quiet = s->steps == before->steps && s->running + s->waiting + stats->queued == 0;
    if (!quiet)
        iv_log(&l->server.log, "info", "status",
               "running %zu, waiting %zu, KV %.0f %%, prefix hits %.0f %%, %.1f tokens/s generated, %.1f tokens/s of "
               "prompts, %zu connections%s",
               s->running, s->waiting + stats->queued,
               percent((double)(s->kv_pages - s->kv_pages_free - s->kv_pages_cached), (double)s->kv_pages),
               percent((double)(s->cached_tokens - before->cached_tokens),
                       (double)(s->prompt_tokens - before->prompt_tokens)),
               (double)(s->tokens_generated - before->tokens_generated) / seconds,
               (double)(s->prompt_tokens - before->prompt_tokens) / seconds, iv_http_connections(l->server.http),
               stats->paused ? ", paused" : "");
    l->status_at = now, l->status_stats = *s;
}

/* At intervals: the shortage may last. */
static void log_files(loop *l, double now) {
    uint64_t count = iv_http_files_short(l->server.http);
    if (count == l->files_short || (l->files_logged_at > 0 && now < l->files_logged_at + FILES_EVERY_S)) return;
    l->files_short = count, l->files_logged_at = now;
    iv_log(&l->server.log, "warning", "files", "no more files can be opened, at %zu connections: further clients wait",
           iv_http_connections(l->server.http));
}

/* Responses that could not be stored: with the last reason, once a second at most. */
static void log_responses(loop *l) {
    iv_response_store_stats stored;
    if (!l->server.responses) return;
    iv_response_store_get_stats(l->server.responses, &stored);
    if (stored.lost != l->responses_lost)
        iv_log(&l->server.log, "error", "responses", "%llu responses were not stored: %s",
               (unsigned long long)(stored.lost - l->responses_lost), stored.why);
    l->responses_lost = stored.lost;
}

/* Returns the freed memory of large bodies, which the C library keeps. */
static void give_back(iv_server *s) {
    if (s->freed_bytes < GIVE_BACK_BYTES) return;
    s->freed_bytes = 0;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void on_tick(void *user) {
    loop *l = user;
    const iv_server_options *o = l->server.o;
    iv_bridge_stats stats;
    iv_bridge_get_stats(l->server.bridge, &stats);
    double now = iv_now();
    iv_metrics_note_time(l->server.metrics, &stats, now);
    log_files(l, now);
    give_back(&l->server);
    log_responses(l);
    notify_state(l, &stats);
    if (o->status_every_ms && now - l->status_at >= o->status_every_ms / 1000.0) log_status(l, &stats, now);
    end_if_lost(l, &stats);
}

static void on_http_request(void *user, const iv_http_request *q, int status, double seconds, size_t bytes) {
    const iv_server *s = user;
    iv_metrics_note_http(s->metrics, iv_http_request_method(q), iv_http_request_route(q), status);
    if (s->o->log_requests) iv_log_http_request(&s->log, q, status, seconds, bytes);
}

/* The open requests of an adapter. */
static void count_requests(const iv_server *s, iv_metrics_adapter *a) {
    for (const iv_task *t = s->tasks; t; t = t->next)
        for (size_t i = 0; i < t->child_count; i++) {
            const iv_child *c = &t->children[i];
            const char *name = t->prompts[c->prompt].request.adapter;
            if (!c->open || !name || strcmp(name, a->name) != 0) continue;
            a->running += c->first > 0, a->waiting += c->first <= 0;
        }
}

/* Without memory there are none on this page. */
static void count_adapters(const iv_server *s, iv_metrics_server *out) {
    iv_served_adapter found;
    out->max_loras = s->o->bridge.engine.max_loras;
    out->adapters = calloc(out->max_loras + 1, sizeof *out->adapters);
    iv_adapter_list *list = iv_bridge_adapters(s->bridge);
    while (out->adapters && out->adapter_count < out->max_loras &&
           iv_adapter_list_at(list, out->adapter_count, &found)) {
        iv_metrics_adapter *a = &out->adapters[out->adapter_count++];
        memcpy(a->name, found.name, sizeof a->name), memcpy(a->digest, found.digest, sizeof a->digest);
        a->rank = found.rank;
        count_requests(s, a);
    }
}

static void count_server(void *user, iv_metrics_server *out) {
    const iv_server *s = user;
    *out = (iv_metrics_server){.log_lines_dropped = s->log_writer ? iv_log_writer_dropped(s->log_writer) : 0,
                               .connections = iv_http_connections(s->http),
                               .connections_accepted = iv_http_accepted(s->http),
                               .connections_refused = iv_http_refused(s->http),
                               .answers_cut = iv_http_cut(s->http)};
    count_adapters(s, out);
    if (!s->responses) return;
    iv_response_store_stats stored;
    iv_response_store_get_stats(s->responses, &stored);
    out->stores_responses = true;
    out->stored_responses = stored.count, out->stored_bytes = stored.bytes, out->responses_lost = stored.lost;
}

static void on_note(void *user, const char *level, const char *message) {
    const iv_server *s = user;
    iv_log(&s->log, level, "engine", "%s", message);
}

static void on_cut(void *user, const iv_http_request *q, size_t dropped) {
    const iv_server *s = user;
    iv_log(&s->log, "warning", "cut", "%s: the client read nothing for %g s, %zu bytes of its answer were dropped",
           q ? iv_http_request_id(q) : "an answer", s->o->http.stall_ms / 1000.0, dropped);
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static void name_model(loop *l) {
    const iv_server_options *o = l->server.o;
    iv_server_take_names(&l->server, o->served_model_name, o->bridge.engine.model, l->model_name);
}

/* Logs the defaults of generation_config.json, which apply where a request sets nothing. */
static void log_defaults(const loop *l) {
    iv_request r;
    iv_bridge_request_init(l->server.bridge, &r);
    const struct {
        const char *name;
        double value, neutral;
    } fields[] = {{"temperature", (double)r.temperature, 1},
                  {"top_p", (double)r.top_p, 1},
                  {"top_k", r.top_k, 0},
                  {"min_p", (double)r.min_p, 0},
                  {"repetition_penalty", (double)r.repetition_penalty, 1}};
    char line[400] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value != fields[i].neutral)
            n += (size_t)snprintf(line + n, sizeof line - n, "%s%s %g", n ? ", " : "", fields[i].name, fields[i].value);
    for (const char *next = iv_bridge_info(l->server.bridge)->generation_unapplied; *next;) {
        size_t length = strcspn(next, "\n");
        iv_log(&l->server.log, "warning", "defaults", "generation_config.json: %.*s is not applied", (int)length, next);
        next += length + (next[length] == '\n');
    }
    if (n)
        iv_log(&l->server.log, "info", "defaults",
               "generation_config.json sets %s, where a request does not; /generate begins from neutral values", line);
}

/* The addresses of the host's name: " (127.0.0.1, ::1)". */
static void list_addresses(const loop *l, char *out, size_t capacity) {
    char address[IV_HTTP_ADDRESS_BYTES];
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; n < capacity && iv_http_address(l->server.http, i, address); i++)
        if (i || strcmp(address, l->server.o->http.host) != 0)
            n += (size_t)snprintf(out + n, capacity - n, "%s%s", n ? ", " : " (", address);
    if (n && n + 1 < capacity) snprintf(out + n, capacity - n, ")");
}

static void log_start(const loop *l) {
    const iv_server_options *o = l->server.o;
    const iv_engine_info *i = iv_bridge_info(l->server.bridge);
    bool bare = strchr(o->http.host, ':') == NULL;
    iv_log(&l->server.log, "info", "model",
           "%s: %s on %s%s%s, %zu sequences of up to %zu tokens, KV cache of %zu tokens, loaded in %.2f s",
           l->server.model_name, i->dtype, i->device, *i->gpu ? " " : "", i->gpu, i->max_num_seqs, i->max_model_len,
           i->kv_tokens, i->load_seconds);
    if (i->index_unread)
        iv_log(&l->server.log, "warning", "weights",
               "model.safetensors was read, model.safetensors.index.json next to it was not");
    iv_log(&l->server.log, "info", "fingerprint", "fingerprint %s", i->fingerprint);
    log_defaults(l);
    if (!o->http.api_key && !o->http.api_key_file && strcmp(o->http.host, "127.0.0.1") != 0 &&
        strcmp(o->http.host, "::1") != 0 && strcmp(o->http.host, "localhost") != 0)
        iv_log(&l->server.log, "warning", "open", "no API key: anyone who reaches this address may use it");
    size_t connections = iv_http_connections_max(l->server.http);
    if (connections < o->http.connections_max)
        iv_log(&l->server.log, "warning", "files",
               "the limit of open files (ulimit -n) leaves room for %zu connections, not %zu", connections,
               o->http.connections_max);
    char list[400];
    list_addresses(l, list, sizeof list);
    iv_log(&l->server.log, "info", "listening", "listening on http://%s%s%s:%u%s", bare ? "" : "[", o->http.host,
           bare ? "" : "]", (unsigned)iv_http_port(l->server.http), list);
}

static iv_status open_log(iv_server *s, iv_error *err) {
    const iv_server_options *o = s->o;
    s->log =
        (iv_log_sink){.json = o->log_json, .level = iv_log_level(o->log_level), .write = o->log_line, .user = o->user};
    if (o->log_line) return IV_OK;
    IV_TRY(iv_log_writer_open(o->log_file, o->log_json, &s->log_writer, err));
    s->log.write = iv_log_writer_put, s->log.user = s->log_writer;
    return IV_OK;
}

static iv_status open_loop(loop *l, iv_error *err) {
    const iv_server_options *o = l->server.o;
    iv_http_options http = o->http;
    IV_TRY(open_log(&l->server, err));
    http.log = on_http_request, http.cut = on_cut;
    IV_TRY(iv_page_check_peers(o->proof_urls, err));
    IV_TRY(iv_http_check_files(o->http.connections_max, FILES_BEFORE,
                               err)); /* before the model is loaded, to fail early */
    if (o->response_directory) {
        const iv_response_store_options store = {
            .directory = o->response_directory, .count_max = o->stored_responses_max, .bytes_max = o->stored_bytes_max};
        IV_TRY(iv_response_store_open(&store, &l->server.responses, err));
    }
    iv_bridge_options bridge = o->bridge;
    bridge.note = on_note, bridge.note_user = l;
    bridge.engine.progress = on_progress, bridge.engine.user = l;
    iv_notify_loading(&l->notify, 0, 0, LOADING_S);
    IV_TRY(iv_bridge_open(&bridge, &l->server.bridge, err));
    if (!l->server.bridge) return IV_OK;
    IV_TRY(iv_adapters_load_modules(&l->server, o->adapters, o->adapter_count, err));
    IV_TRY(iv_api_tools_open(&l->server, o->tool_call_parser, o->reasoning_parser, err));
    IV_TRY(iv_token_texts_open(iv_bridge_info(l->server.bridge)->vocab_size, &l->server.token_texts, err));
    IV_TRY(iv_jobs_open(JOB_THREADS, &l->server.jobs, err));
    IV_TRY(iv_metrics_open(o->metrics, l->server.model_name, &l->server.metrics, err));
    iv_metrics_count_server(l->server.metrics, count_server, &l->server);
    IV_TRY(iv_http_open(&http, iv_server_routes, iv_server_route_count, &l->server, &l->server.http, err));
    IV_TRY(iv_http_watch(l->server.http, iv_bridge_fd(l->server.bridge), on_events, l, err));
    IV_TRY(iv_http_watch(l->server.http, iv_jobs_fd(l->server.jobs), on_jobs, l, err));
    IV_TRY(iv_updates_open(&l->server, &l->server.updates, err));
    IV_TRY(iv_http_watch(l->server.http, iv_updates_fd(l->server.updates), on_updates, l, err));
    IV_TRY(iv_http_every(l->server.http, TICK_MS, on_tick, l, err));
    if (l->notify.watchdog_ms)
        IV_TRY(
            iv_http_every(l->server.http, (uint32_t)iv_size_min(l->notify.watchdog_ms, TICK_MS), on_watchdog, l, err));
    IV_TRY(iv_http_signal(l->server.http, SIGTERM, on_signal, l, err));
    if (o->launcher) note_senders();
    IV_TRY(iv_http_signal(l->server.http, SIGINT, on_signal, l, err));
    IV_TRY(iv_http_signal(l->server.http, SIGHUP, on_hangup, l, err));
    l->status_at = iv_now();
    return IV_OK;
}

/* Large buffers return to the system when freed; otherwise the C library would keep them. */
static void limit_malloc_cache(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, GIVE_BACK_BYTES);
    mallopt(M_TRIM_THRESHOLD, GIVE_BACK_BYTES);
#endif
}

iv_status iv_server_run(const iv_server_options *o, iv_error *err) {
    limit_malloc_cache();
    loop l = {.options = *o};
    l.server.o = &l.options;
    name_model(&l);
    iv_notify_open(&l.notify);
    iv_status status = open_loop(&l, err);
    if (status == IV_OK && l.server.http) {
        log_start(&l);
        iv_notify_send(&l.notify, "READY=1\nSTATUS=listening");
        if (o->ready) o->ready(o->user, iv_http_port(l.server.http));
        status = iv_http_run(l.server.http, err);
    }
    if (status == IV_OK && l.lost) {
        iv_bridge_stats stats;
        iv_bridge_get_stats(l.server.bridge, &stats);
        status = iv_fail(err, IV_IO, "the engine is lost: %.900s", stats.why);
    }
    if (status == IV_OK && !l.lost && l.job_ended)
        status = iv_fail(err, IV_IO, "mpirun ended the job: another rank was lost, or mpirun got a signal");
    iv_http_close(l.server.http); /* its requests may still cancel entries of the bridge */
    iv_jobs_close(l.server.jobs); /* running jobs use the bridge's text model */
    iv_updates_close(l.server.updates);
    iv_token_texts_close(l.server.token_texts);
    iv_bridge_close(l.server.bridge);
    iv_admin_close(&l.server); /* no more events come */
    iv_control_close(&l.server);
    iv_metrics_close(l.server.metrics);
    iv_response_store_close(l.server.responses);
    if (status == IV_OK && l.server.draining) iv_log(&l.server.log, "info", "end", "drained");
    iv_log_writer_close(l.server.log_writer, LOG_END_MS);
    iv_notify_close(&l.notify);
    return status;
}
