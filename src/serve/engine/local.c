/* local.c: opening and closing, and the server's side: submit, cancel, hold, command, next, stats. These calls wait
 * for the mutex only, which is never held for long. */
#include "base/size.h"
#include "serve/engine/local_state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { QUEUED_DEFAULT = 1024 };

/* ---- opening and closing ------------------------------------------------------------------------------ */

/* Copies the engine's strings, which may change with its weights. */
static iv_status keep_info(iv_local *b, iv_error *err) {
    iv_engine_get_info(b->engine, &b->info);
    return iv_bridge_keep_strings(&b->info, &b->names, err);
}

/* The thread blocks all signals: the server's thread handles them. */
static iv_status start_thread(iv_local *b, iv_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&b->thread, NULL, iv_local_run_engine, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return iv_fail(err, IV_LIMIT, "bridge: cannot start the engine's thread: %s", strerror(failed));
    b->started = true;
    pthread_setname_np(b->thread, "invar-engine");
    return IV_OK;
}

static iv_status open_parts(iv_local *b, const iv_bridge_options *o, iv_error *err) {
    b->events_max = o->events_max ? o->events_max : IV_BRIDGE_EVENTS;
    b->queued_max = o->queued_requests_max ? o->queued_requests_max : QUEUED_DEFAULT;
    if (b->queued_max > IV_QUEUED_REQUESTS_MAX)
        return iv_fail(err, IV_INVALID, "queued_requests_max: wanted 1 to %d, found %zu", IV_QUEUED_REQUESTS_MAX,
                       b->queued_max);
    b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->fd < 0) return iv_fail(err, IV_IO, "bridge: eventfd: %s", strerror(errno));
    IV_TRY(iv_engine_open(&o->engine, &b->engine, err));
    IV_TRY(keep_info(b, err));
    if (b->info.rank != 0) return iv_engine_serve_rank(b->engine, err);
    b->text_model = iv_engine_text_model(b->engine);
    iv_engine_get_stats(b->engine, &b->stats.engine);
    iv_local_note_identity(b);
    return start_thread(b, err);
}

static void free_events(iv_event_queue *list) {
    for (iv_queued_event *r; (r = iv_event_queue_take(list));) free(r);
}

static void free_inflight(iv_local *b) {
    for (iv_inflight *f; (f = b->first);) {
        iv_inflight_unqueue(b, f);
        if (f->request) continue; /* in the table */
        iv_inflight_free(f);
    }
    for (size_t i = 0; i < IV_BRIDGE_BUCKETS; i++)
        for (iv_inflight *f; (f = b->buckets[i]);) {
            b->buckets[i] = f->bucket_next;
            iv_inflight_free(f);
        }
}

static void local_close(iv_bridge *bridge) {
    iv_local *b = (iv_local *)bridge;
    if (b->started) {
        pthread_mutex_lock(&b->mutex);
        b->stop = true;
        pthread_cond_signal(&b->wake);
        pthread_mutex_unlock(&b->mutex);
        pthread_join(b->thread, NULL);
    }
    free_events(&b->events);
    free_events(&b->unpublished);
    free(b->taken);
    free_inflight(b); /* they hold constraints of the engine */
    iv_engine_close(b->engine);
    iv_bridge_profile_free(&b->profile);
    free(b->names);
    if (b->fd >= 0) close(b->fd);
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->mutex);
    iv_adapter_list_close(&b->bridge.adapters);
    free(b);
}

/* ---- info and stats ----------------------------------------------------------------------------------- */

static int local_fd(const iv_bridge *b) { return ((const iv_local *)b)->fd; }
static const iv_engine_info *local_info(const iv_bridge *b) { return &((const iv_local *)b)->info; }
static const iv_text_model *local_text_model(const iv_bridge *b) { return ((const iv_local *)b)->text_model; }

static void local_request_init(iv_bridge *bridge, iv_request *request) {
    iv_local *b = (iv_local *)bridge;
    pthread_mutex_lock(&b->mutex);
    *request = b->defaults;
    pthread_mutex_unlock(&b->mutex);
}

static void local_get_stats(iv_bridge *bridge, iv_bridge_stats *stats) {
    iv_local *b = (iv_local *)bridge;
    pthread_mutex_lock(&b->mutex);
    *stats = b->stats;
    stats->queued = b->queued_requests + b->queued_commands;
    stats->waiting_events = b->events.count;
    pthread_mutex_unlock(&b->mutex);
}

static void local_limit_queue(iv_bridge *bridge, size_t queued_requests_max) {
    iv_local *b = (iv_local *)bridge;
    pthread_mutex_lock(&b->mutex);
    b->queued_max = queued_requests_max;
    pthread_mutex_unlock(&b->mutex);
}

/* ---- commands to the engine --------------------------------------------------------------------------- */

static iv_inflight *new_inflight(void *owner, size_t text_capacity) {
    iv_inflight *f = malloc(sizeof *f + text_capacity);
    if (!f) return NULL;
    *f = (iv_inflight){.owner = owner, .references = 1, .reserved = iv_queued_event_blank()};
    if (f->reserved) return f;
    free(f);
    return NULL;
}

/* With the mutex held: whether the entry may be queued. */
static iv_status admit(const iv_local *b, const iv_inflight *f, iv_error *err) {
    bool command = !f->request;
    if (b->stats.failed) return iv_fail(err, IV_IO, "the engine is lost: %.900s", b->stats.why);
    size_t waiting = b->queued_requests + b->stats.engine.waiting, running = b->stats.engine.running;
    size_t free_slots =
        b->info.max_num_seqs - iv_size_min(running, b->info.max_num_seqs); /* the next step fills them */
    if (!command && waiting >= iv_size_min(b->queued_max + free_slots, IV_QUEUED_REQUESTS_MAX))
        return iv_fail(err, IV_BUSY, "queue: %zu requests wait already, at most %zu may", waiting, b->queued_max);
    if (f->bytes && b->queued_bytes && b->queued_bytes + f->bytes > IV_BRIDGE_QUEUED_BYTES_MAX)
        return iv_fail(err, IV_BUSY, "queue: prompts of %zu bytes wait already, at most %d may", b->queued_bytes,
                       IV_BRIDGE_QUEUED_BYTES_MAX);
    if (command && b->queued_commands >= IV_BRIDGE_COMMANDS_MAX)
        return iv_fail(err, IV_BUSY, "commands: %zu wait already", b->queued_commands);
    return IV_OK;
}

static iv_status enter(iv_local *b, iv_inflight *f, uint64_t *id, iv_error *err) {
    pthread_mutex_lock(&b->mutex);
    iv_status status = admit(b, f, err);
    if (status == IV_OK && f->request) {
        *id = f->id = f->request->id = b->next_id++;
        iv_inflight_enter(b, f);
    }
    if (status == IV_OK) {
        iv_inflight_queue(b, f);
        pthread_cond_signal(&b->wake);
    }
    pthread_mutex_unlock(&b->mutex);
    if (status != IV_OK) iv_inflight_free(f);
    return status;
}

static iv_status local_submit(iv_bridge *bridge, const iv_request *request, void *owner, uint64_t *id, iv_error *err) {
    iv_local *b = (iv_local *)bridge;
    iv_inflight *f = new_inflight(owner, 0);
    if (f) f->request = iv_bridge_copy_request(request);
    if (f && f->request) {
        iv_constraint_retain(request->compiled);
        f->bytes = request->text_bytes + request->id_count * sizeof *request->ids; /* as copied: no overflow */
        if (request->constraint_text) f->bytes += strlen(request->constraint_text);
        return enter(b, f, id, err);
    }
    if (f) iv_inflight_free(f);
    return iv_fail(err, IV_NO_MEMORY, "request: no memory");
}

static iv_status local_compile(iv_bridge *bridge, const iv_request *request, bool quick, iv_constraint **out,
                               iv_error *err) {
    iv_local *b = (iv_local *)bridge;
    return iv_engine_compile(b->engine, request, quick, out, err);
}

static iv_status local_command(iv_bridge *bridge, iv_command command, const char *text, void *owner, iv_error *err) {
    iv_local *b = (iv_local *)bridge;
    if (command == IV_COMMAND_RELEASE || command == IV_COMMAND_RESUME)
        return iv_fail(err, IV_UNSUPPORTED, "memory: wanted a server with an engine process (--engine-process on)");
    size_t n = text ? strlen(text) : 0;
    if (n >= IV_BRIDGE_COMMAND_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "command: wanted less than %d bytes, found %zu", IV_BRIDGE_COMMAND_BYTES_MAX, n);
    iv_inflight *f = new_inflight(owner, n + 1);
    if (!f) return iv_fail(err, IV_NO_MEMORY, "command: no memory");
    f->command = command;
    if (n) memcpy(f->text, text, n);
    f->text[n] = 0;
    return enter(b, f, NULL, err);
}

static void local_cancel(iv_bridge *bridge, uint64_t id) {
    iv_local *b = (iv_local *)bridge;
    pthread_mutex_lock(&b->mutex);
    iv_inflight *f = iv_inflight_find(b, id);
    if (f && !f->cancelled) {
        f->cancelled = true;
        b->stats.cancelled += f->state != IV_INFLIGHT_ENDED;
        if (f->state == IV_INFLIGHT_QUEUED) {
            iv_inflight_unqueue(b, f);
            iv_inflight_release(b, f);
        } else if (f->state == IV_INFLIGHT_ENGINE) {
            f->references++;
            f->cancel_next = b->cancel_first;
            b->cancel_first = f;
            pthread_cond_signal(&b->wake);
        }
    }
    pthread_mutex_unlock(&b->mutex);
}

static void local_hold(iv_bridge *bridge, uint64_t id, bool hold) {
    iv_local *b = (iv_local *)bridge;
    pthread_mutex_lock(&b->mutex);
    iv_inflight *f = iv_inflight_find(b, id);
    if (f && f->held != hold) {
        f->held = hold;
        if (f->state == IV_INFLIGHT_ENGINE) iv_inflight_list_hold(b, f);
        pthread_cond_signal(&b->wake);
    }
    pthread_mutex_unlock(&b->mutex);
}

/* ---- events from the engine --------------------------------------------------------------------------- */

/* With the mutex held: the oldest event whose request is not cancelled. */
static iv_queued_event *take_event(iv_local *b) {
    for (iv_queued_event *r; (r = iv_event_queue_take(&b->events));) {
        if (!r->inflight || !r->inflight->cancelled) return r;
        b->stats.cancelled += r->head.kind != IV_BRIDGE_EVENT_TOKEN; /* it had ended before it was cancelled */
        iv_inflight_release(b, r->inflight);
        free(r);
    }
    return NULL;
}

static bool local_next(iv_bridge *bridge, iv_bridge_event *out) {
    iv_local *b = (iv_local *)bridge;
    uint64_t count;
    iv_queued_event *old = b->taken;
    pthread_mutex_lock(&b->mutex);
    if (old && old->inflight) iv_inflight_release(b, old->inflight);
    b->taken = take_event(b);
    if (b->events.count == 0 && read(b->fd, &count, sizeof count) < 0)
        IV_ASSERT(errno == EAGAIN || errno == EINTR); /* it was not readable */
    if (b->awaits_space && b->events.count <= b->events_max / 2 && b->events.bytes <= IV_BRIDGE_EVENT_BYTES_MAX / 2) {
        b->awaits_space = false;
        pthread_cond_signal(&b->wake);
    }
    pthread_mutex_unlock(&b->mutex);
    free(old);
    if (b->taken) *out = b->taken->head;
    return b->taken != NULL;
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static const iv_bridge_calls calls = {.close = local_close,
                                      .fd = local_fd,
                                      .info = local_info,
                                      .text_model = local_text_model,
                                      .request_init = local_request_init,
                                      .compile = local_compile,
                                      .submit = local_submit,
                                      .cancel = local_cancel,
                                      .hold = local_hold,
                                      .command = local_command,
                                      .limit_queue = local_limit_queue,
                                      .next = local_next,
                                      .get_stats = local_get_stats};

iv_status iv_local_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err) {
    iv_local *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return iv_fail(err, IV_NO_MEMORY, "bridge: no memory");
    b->bridge.calls = &calls;
    iv_adapter_list_open(&b->bridge.adapters);
    b->fd = -1, b->next_id = 1;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->wake, NULL);
    iv_status status = open_parts(b, o, err);
    if (status == IV_OK && b->started)
        *out = &b->bridge;
    else
        local_close(&b->bridge);
    return status;
}
