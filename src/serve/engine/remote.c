/* remote.c: a bridge whose engine is in another process. All of it runs on the server's thread, without blocking after
 * the start: the socket, a timer and a wake-up are members of one epoll descriptor, and `next` serves them. */
#include "base/clock.h"
#include "base/size.h"
#include "serve/engine/local_state.h"
#include "serve/engine/remote_state.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { QUEUED_DEFAULT = 1024 };

/* ---- events for the server ---------------------------------------------------------------------------- */

/* True: *out is an event. False: no record is complete. */
static bool next_event(iv_remote *r, iv_bridge_event *out) {
    iv_error err;
    const char *raw;
    size_t raw_bytes;
    for (bool got; r->process.fd >= 0;) {
        if (iv_frame_next(&r->reader, &r->frame, &got, &raw, &raw_bytes, &err) != IV_OK) {
            iv_remote_remember_why(r, err.message);
            iv_remote_disconnect(r);
            return false;
        }
        if (!got) return false;
        if (iv_remote_take_record(r, raw, raw_bytes, out)) return true;
    }
    return false;
}

static bool more(iv_remote *r) {
    iv_remote_set_awake(r, true); /* until a call finds nothing */
    return true;
}

static bool remote_next(iv_bridge *b, iv_bridge_event *out) {
    iv_remote *r = (iv_remote *)b;
    free(r->taken);
    r->taken = NULL;
    for (bool received = r->drained;; received = true) {
        if (iv_remote_take_synthesized(r, out) || next_event(r, out)) return more(r);
        if (r->synthesized_first) continue;
        if (r->process.fd < 0 || received) break;
        r->drained = true; /* until the next round: what comes meanwhile keeps the descriptor readable */
        if (iv_frame_receive(&r->reader, r->process.fd) == IV_FRAME_IO_END) iv_remote_disconnect(r);
    }
    r->drained = false;
    if (iv_now() >= r->tick_due) iv_remote_tick(r);
    iv_remote_flush(r);
    if (iv_remote_take_synthesized(r, out)) return more(r);
    iv_remote_set_awake(r, false);
    return false;
}

/* ---- opening and closing ------------------------------------------------------------------------------ */

/* The first process has ended, without its own reason. */
static iv_status ended_early(iv_remote *r, iv_error *err) {
    char how[64] = "";
    for (int i = 0; i < 1000 && !iv_process_reap(&r->process, how, sizeof how); i++) poll(NULL, 0, IV_REMOTE_SOON_MS);
    if (r->why[0]) return iv_fail(err, IV_IO, "engine process: %s", r->why);
    return iv_fail(err, IV_IO, "engine process: ended while it opened the model: %s", how);
}

/* Signs of life repeat the progress: who waits may show that it goes on. */
static void show_progress(iv_remote *r, uint64_t *done, uint64_t *total) {
    const iv_frame *f = &r->frame;
    if (f->kind == IV_FRAME_PROGRESS) *done = f->done, *total = f->total;
    if (r->o.engine.progress && *total) r->o.engine.progress(r->o.engine.user, (size_t)*done, (size_t)*total);
}

/* Waits for the first process. */
static iv_status await_ready(iv_remote *r, iv_error *err) {
    const iv_frame *f = &r->frame;
    uint64_t done = 0, total = 0, ticks;
    for (bool got;;) {
        IV_TRY(iv_frame_next(&r->reader, &r->frame, &got, NULL, NULL, err));
        if (got && f->kind == IV_FRAME_FAILED) return iv_fail(err, f->status, "%s", f->text);
        if (got && f->kind == IV_FRAME_READY) break;
        if (got) {
            r->heartbeat = r->first_heartbeat = true;
            show_progress(r, &done, &total);
            if (f->kind == IV_FRAME_ALIVE) iv_remote_inspect_progress(r, f->done);
            continue;
        }
        iv_frame_io io = iv_frame_receive(&r->reader, r->process.fd);
        if (io == IV_FRAME_IO_END) return ended_early(r, err);
        iv_remote_flush(r);
        struct pollfd p = {.fd = r->epoll, .events = POLLIN};
        if (io != IV_FRAME_IO_NONE) continue;
        poll(&p, 1, -1);
        if (read(r->timer, &ticks, sizeof ticks) == sizeof ticks) iv_remote_inspect_silence(r);
    }
    IV_TRY(iv_remote_take_info(r, f, err));
    iv_remote_take_stats(r, f);
    r->life = LIFE_READY, r->ready_at = iv_now();
    return IV_OK;
}

static iv_status open_parts(iv_remote *r, iv_error *err) {
    if (r->o.queued_requests_max > IV_QUEUED_REQUESTS_MAX)
        return iv_fail(err, IV_INVALID, "queued_requests_max: wanted 1 to %d, found %zu", IV_QUEUED_REQUESTS_MAX,
                       r->o.queued_requests_max);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->epoll < 0 || r->timer < 0 || r->wake < 0 || !iv_remote_watch(r, EPOLL_CTL_ADD, r->timer, EPOLLIN) ||
        !iv_remote_watch(r, EPOLL_CTL_ADD, r->wake, EPOLLIN))
        return iv_fail(err, IV_IO, "bridge: epoll: %s", strerror(errno));
    IV_TRY(iv_remote_start(r, err));
    iv_error text_error;
    iv_status status = iv_text_model_open(r->o.engine.model, &r->text_model, &text_error); /* while weights load */
    IV_TRY(await_ready(r, err));
    if (status != IV_OK) *err = text_error;
    return status;
}

static void remote_close(iv_bridge *b) {
    iv_remote *r = (iv_remote *)b;
    iv_remote_end_process(r);
    while (r->journal.first) iv_remote_remove_entry(r, r->journal.first);
    for (synthesized_event *m; (m = r->synthesized_first);) {
        r->synthesized_first = m->next;
        free(m);
    }
    free(r->taken);
    iv_frame_reader_free(&r->reader);
    iv_frame_writer_free(&r->writer);
    iv_text_model_close(r->text_model);
    free(r->names), free(r->weights), free(r->release.weights);
    const int fds[] = {r->epoll, r->timer, r->wake};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    iv_adapter_list_close(&r->bridge.adapters);
    free(r);
}

/* ---- the calls of bridge.h ---------------------------------------------------------------------------- */

static int remote_fd(const iv_bridge *b) { return ((const iv_remote *)b)->epoll; }
static const iv_engine_info *remote_info(const iv_bridge *b) { return &((const iv_remote *)b)->info; }
static const iv_text_model *remote_text_model(const iv_bridge *b) { return ((const iv_remote *)b)->text_model; }
static void remote_request_init(iv_bridge *b, iv_request *request) { *request = ((iv_remote *)b)->defaults; }

static iv_status remote_compile(iv_bridge *b, const iv_request *request, bool quick, iv_constraint **out,
                                iv_error *err) {
    iv_remote *r = (iv_remote *)b;
    return iv_text_model_compile(r->text_model, r->info.vocab_size, request, quick, out, err);
}

/* The same limits as of a queue in this process. The process itself refuses nothing for its number. */
static iv_status admit(const iv_remote *r, size_t bytes, iv_error *err) {
    const iv_journal *j = &r->journal;
    if (r->life == LIFE_FAILED) return iv_fail(err, IV_IO, "the engine is lost: %.900s", r->why);
    if (r->release.tags)
        return iv_fail(err, IV_NO_MEMORY, "the engine's memory is released: POST /resume_memory_occupation");
    size_t most = iv_size_min(r->o.queued_requests_max + r->info.max_num_seqs, IV_QUEUED_REQUESTS_MAX);
    if (j->requests >= most)
        return iv_fail(err, IV_BUSY, "queue: %zu requests wait already, at most %zu may",
                       j->requests - iv_size_min(j->requests, r->stats.engine.running), r->o.queued_requests_max);
    if (bytes && j->silent_bytes && j->silent_bytes + bytes > IV_BRIDGE_QUEUED_BYTES_MAX)
        return iv_fail(err, IV_BUSY, "queue: prompts of %zu bytes wait already, at most %d may", j->silent_bytes,
                       IV_BRIDGE_QUEUED_BYTES_MAX);
    return IV_OK;
}

static iv_status remote_submit(iv_bridge *b, const iv_request *request, void *owner, uint64_t *id, iv_error *err) {
    iv_remote *r = (iv_remote *)b;
    size_t bytes = request->text_bytes + request->id_count * sizeof *request->ids;
    if (request->constraint_text) bytes += strlen(request->constraint_text);
    IV_TRY(admit(r, bytes, err));
    iv_journal_entry *e = iv_journal_add_request(&r->journal, request, owner);
    if (!e) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    *id = e->id;
    iv_remote_bind_adapter(r, e);
    if (r->life != LIFE_READY) return IV_OK;
    if (iv_remote_send_entry(r, e)) iv_remote_flush(r);
    return IV_OK;
}

/* The process ends. Only its whole end frees the memory of its GPUs. */
static void release(iv_remote *r, iv_journal_entry *e, unsigned tags) {
    bool first = r->release.tags == 0;
    r->release.tags |= tags;
    if (!first) {
        iv_remote_end_entry(r, e, IV_OK, "");
        return;
    }
    r->release.waiting = e;
    if (r->life == LIFE_STARTING || r->life == LIFE_READY) iv_remote_kill(r, "its memory is released");
    if (r->life == LIFE_BACKOFF) iv_remote_end_release(r);
}

static void resume_memory(iv_remote *r, iv_journal_entry *e, unsigned tags) {
    iv_error err;
    bool released = r->release.tags != 0;
    r->release.tags &= ~tags;
    if (r->release.tags || !released) {
        iv_remote_end_entry(r, e, IV_OK, "");
        return;
    }
    r->release.waiting = e;
    if (iv_remote_start(r, &err) == IV_OK) return;
    iv_frame_writer_free(&r->writer);
    r->eventful = false;
    iv_remote_after_life(r, err.message);
}

/* A command while there is no engine: what it would do is done when there is one again. */
static void command_released(iv_remote *r, iv_journal_entry *e) {
    iv_status status = IV_OK;
    switch (e->command) {
    case IV_COMMAND_PAUSE: r->paused = true; break;
    case IV_COMMAND_CONTINUE: r->paused = false; break;
    case IV_COMMAND_UPDATE_WEIGHTS: iv_release_update(&r->release, &r->weights, &r->weight_version, e->text); break;
    case IV_COMMAND_FLUSH:
    case IV_COMMAND_ABORT_ALL: break; /* nothing is cached and nothing runs */
    default: status = IV_BUSY;
    }
    iv_remote_end_entry(r, e, status,
                        status == IV_OK ? "" : "the engine's memory is released: POST /resume_memory_occupation first");
}

static iv_status remote_command(iv_bridge *b, iv_command command, const char *text, void *owner, iv_error *err) {
    iv_remote *r = (iv_remote *)b;
    size_t n = text ? strlen(text) : 0;
    if (n >= IV_BRIDGE_COMMAND_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "command: wanted less than %d bytes, found %zu", IV_BRIDGE_COMMAND_BYTES_MAX, n);
    if (r->life == LIFE_FAILED) return iv_fail(err, IV_IO, "the engine is lost: %.900s", r->why);
    if (r->journal.commands >= IV_BRIDGE_COMMANDS_MAX)
        return iv_fail(err, IV_BUSY, "commands: %zu wait already", r->journal.commands);
    unsigned tags = 0;
    if (command == IV_COMMAND_RELEASE || command == IV_COMMAND_RESUME) IV_TRY(iv_release_tags(text, &tags, err));
    if (command == IV_COMMAND_RELEASE && r->journal.requests > 0)
        return iv_fail(err, IV_BUSY, "memory: %zu requests wait or run", r->journal.requests);
    if (tags && r->release.waiting) return iv_fail(err, IV_BUSY, "memory: it is being released or resumed");
    iv_journal_entry *e = iv_journal_add_command(&r->journal, command, text, owner);
    if (!e) return iv_fail(err, IV_NO_MEMORY, "command: no memory");
    if (command == IV_COMMAND_RELEASE)
        release(r, e, tags);
    else if (command == IV_COMMAND_RESUME)
        resume_memory(r, e, tags);
    else if (r->release.tags)
        command_released(r, e);
    else if (r->life == LIFE_READY && iv_remote_send_entry(r, e))
        iv_remote_flush(r);
    return IV_OK;
}

static void remote_cancel(iv_bridge *b, uint64_t id) {
    iv_remote *r = (iv_remote *)b;
    iv_journal_entry *e = id ? iv_journal_find(&r->journal, id) : NULL;
    if (id && r->synthesized_first) iv_remote_drop_synthesized(r, id);
    if (!e || !e->request) return;
    if (e->sent) iv_remote_put(r, &(iv_frame){.kind = IV_FRAME_CANCEL, .id = id});
    iv_remote_remove_entry(r, e);
    r->cancelled++;
    iv_remote_flush(r);
}

static void remote_hold(iv_bridge *b, uint64_t id, bool hold) {
    iv_remote *r = (iv_remote *)b;
    iv_journal_entry *e = iv_journal_find(&r->journal, id);
    if (!e || !e->request || e->held == hold) return;
    e->held = hold;
    if (!e->sent) return;
    iv_remote_put(r, &(iv_frame){.kind = IV_FRAME_HOLD, .id = id, .flag = hold});
    iv_remote_flush(r);
}

static void remote_limit_queue(iv_bridge *b, size_t queued_requests_max) {
    ((iv_remote *)b)->o.queued_requests_max = queued_requests_max;
}

static void remote_get_stats(iv_bridge *b, iv_bridge_stats *stats) {
    const iv_remote *r = (const iv_remote *)b;
    *stats = r->stats;
    iv_release_add_counters(&stats->engine, &r->before);
    for (size_t i = 0; i < IV_STEP_BUCKETS; i++) stats->step_tokens[i] += r->steps_before[i];
    stats->failed = r->life == LIFE_FAILED;
    stats->engine_pid = r->life == LIFE_READY ? r->process.pid : 0;
    stats->away = r->life != LIFE_READY && !stats->failed;
    stats->released = r->release.tags != 0;
    if (stats->released) stats->weight_version = r->weight_version;
    stats->queued = r->life == LIFE_READY ? r->stats.queued + (size_t)(r->sent - r->received)
                                          : r->journal.requests + r->journal.commands;
    stats->paused = r->paused, stats->cancelled = r->cancelled;
    stats->restarts = r->restarts, stats->continued = r->continued;
    snprintf(stats->why, sizeof stats->why, "%s", stats->failed ? r->why : "");
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static const iv_bridge_calls calls = {.close = remote_close,
                                      .fd = remote_fd,
                                      .info = remote_info,
                                      .text_model = remote_text_model,
                                      .request_init = remote_request_init,
                                      .compile = remote_compile,
                                      .submit = remote_submit,
                                      .cancel = remote_cancel,
                                      .hold = remote_hold,
                                      .command = remote_command,
                                      .limit_queue = remote_limit_queue,
                                      .next = remote_next,
                                      .get_stats = remote_get_stats};

iv_status iv_remote_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err) {
    iv_remote *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return iv_fail(err, IV_NO_MEMORY, "bridge: no memory");
    r->bridge.calls = &calls, r->o = *o;
    iv_adapter_list_open(&r->bridge.adapters);
    if (!r->o.queued_requests_max) r->o.queued_requests_max = QUEUED_DEFAULT;
    r->epoll = r->timer = r->wake = r->process.fd = -1;
    iv_status status = open_parts(r, err);
    if (status == IV_OK)
        *out = &r->bridge;
    else
        remote_close(&r->bridge);
    return status;
}
