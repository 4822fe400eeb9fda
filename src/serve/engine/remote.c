/* remote.c: the server's half of an engine process. All of it runs on the server's thread, without blocking
 * after the start: the socket, a timer and a wake-up are members of one epoll descriptor, and iv_remote_next serves
 * them.
 *
 * A life of the process: STARTING until its engine is open, READY, then (killed, crashed, hung: the socket ends)
 * ENDING until it is reaped, RESTING for the back-off, and STARTING again. Requests wait in the journal meanwhile. */
#include "serve/engine/remote.h"
#include "base/clock.h"
#include "base/size.h"
#include "serve/engine/child.h"
#include "serve/engine/local_state.h"
#include "serve/engine/remote_state.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    TIMEOUT_MS = 10000,  /* default */
    BEATS = 4,           /* signs of life in a timeout */
    START_TIMEOUTS = 10, /* times the timeout for the first of them */
    SOON_MS = 5,         /* interval of looks at a process that ends, or rests */
    QUEUED_DEFAULT = 1024,
    RESTARTS_S = 600,    /* window of engine_restarts */
    USEFUL_S = 5,        /* a life so long, or with a step, was of use */
    REST_FIRST_MS = 100, /* back-off after a life of no use; doubles ... */
    REST_MAX_MS = 10000, /* ... up to this */
    DEATHS_MAX = 3,      /* of processes that ended while they computed one request, without an event of it */
    REFUSALS_MAX = 5     /* lives in a row whose engine refused to open, for a reason that stays */
};

static const double TICK_LOOK_S = 0.001; /* the timer is not read more often: each read is a system call */

/* ---- small parts -------------------------------------------------------------------------------------- */

static uint64_t timeout_ms(const iv_remote *r) {
    return r->o.engine_timeout_ms ? r->o.engine_timeout_ms : (uint64_t)TIMEOUT_MS;
}
static uint64_t beat_ms(const iv_remote *r) { return timeout_ms(r) / BEATS ? timeout_ms(r) / BEATS : 1; }

static void note(const iv_remote *r, const char *level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void note(const iv_remote *r, const char *level, const char *fmt, ...) {
    char line[sizeof r->why + 200];
    va_list args;
    if (!r->o.note) return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    r->o.note(r->o.note_user, level, line);
}

static void set_timer(iv_remote *r, uint64_t ms) {
    r->tick_due = 0;
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    struct itimerspec every = {.it_interval = t, .it_value = t};
    timerfd_settime(r->timer, 0, &every, NULL);
}

static bool watch(iv_remote *r, int how, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    return epoll_ctl(r->epoll, how, fd, &e) == 0;
}

/* The entry ends with this instead of an event of the engine. */
static void end_entry(iv_remote *r, iv_journal_entry *e, iv_status status, const char *message) {
    iv_remote_make(r, e->request ? IV_BRIDGE_EVENT_REFUSED : IV_BRIDGE_EVENT_COMMAND, e, status, message);
    iv_journal_remove(&r->journal, e);
}

/* ---- records to the process --------------------------------------------------------------------------- */

/* A process that has ended needs none: the next one learns everything from the journal. */
static void put(iv_remote *r, const iv_frame *f) {
    if (r->process.fd >= 0) IV_ASSERT(iv_frame_encode(f, &r->writer.buf));
}

/* Sends what the socket takes; the rest when it is writable. If the peer is gone, reading finds it. */
static void flush(iv_remote *r) {
    if (r->process.fd < 0 || (!iv_frame_unsent(&r->writer) && !r->polls_output)) return;
    bool open = iv_frame_send(&r->writer, r->process.fd), more = open && iv_frame_unsent(&r->writer) > 0;
    if (more == r->polls_output) return;
    r->polls_output = more;
    watch(r, EPOLL_CTL_MOD, r->process.fd, more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* False: the entry is gone. */
static bool send_entry(iv_remote *r, iv_journal_entry *e) {
    iv_frame f = {.kind = IV_FRAME_SUBMIT, .id = e->id, .flag = e->held};
    if (e->request)
        f.request = iv_journal_request(e);
    else
        f.kind = IV_FRAME_COMMAND, f.command = e->command, f.text = e->text;
    if (!iv_frame_encode(&f, &r->writer.buf)) {
        end_entry(r, e, IV_NO_MEMORY, "request: no memory to send it to the engine");
        return false;
    }
    e->sent = true;
    r->sent += e->request != NULL;
    return true;
}

/* Every entry of the journal, in order, to a new process. */
static void send_all(iv_remote *r) {
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (e->continued && e->request) r->continued++;
        if (e != r->release.waiting) send_entry(r, e);
    }
    flush(r);
}

/* ---- the life of a process ---------------------------------------------------------------------------- */

/* A later life has the sizes and the device of the first, whatever else uses this machine now. */
static iv_engine_options options_of(const iv_remote *r) {
    iv_engine_options o = r->o.engine;
    if (!r->names) return o;
    o.device = r->info.device, o.arithmetic = r->info.arithmetic;
    o.max_model_len = r->info.max_model_len, o.max_num_seqs = r->info.max_num_seqs;
    o.max_num_batched_tokens = r->info.max_num_batched_tokens;
    o.kv_bytes = r->info.kv_tokens * r->info.kv_bytes_per_token, o.kv_fraction = 0;
    return o;
}

/* This program, executed again. The model's name is for lists of processes. */
static iv_status start_program(iv_remote *r, iv_error *err) {
    char word[] = IV_SERVER_ENGINE_WORD, name[] = "invar";
    char *argv[] = {name, word, (char *)r->o.engine.model, NULL};
    iv_process_program self = {.path = "/proc/self/exe", .argv = argv, .errors = -1};
    iv_status status = iv_process_start(&self, &r->process, err);
    return status == IV_OK ? IV_OK : iv_error_prefix(err, "engine process");
}

static void end_process(iv_remote *r) {
    char how[64];
    iv_process_end(&r->process, how, sizeof how);
}

static iv_status start(iv_remote *r, iv_error *err) {
    IV_TRY(start_program(r, err));
    r->life = LIFE_STARTING;
    r->heard = r->spoke = r->killed = r->polls_output = r->eventful = false;
    r->silent = r->sent = r->received = r->version_more = 0;
    r->why[0] = 0, r->ready_at = 0;
    put(r, &(iv_frame){.kind = IV_FRAME_OPEN,
                       .options = options_of(r),
                       .text = r->weights,
                       .weight_version = r->weight_version,
                       .beat_ms = beat_ms(r)});
    if (!watch(r, EPOLL_CTL_ADD, r->process.fd, EPOLLIN)) {
        end_process(r);
        return iv_fail(err, IV_IO, "engine process: epoll: %s", strerror(errno));
    }
    set_timer(r, beat_ms(r));
    flush(r);
    return IV_OK;
}

static void remember_why(iv_remote *r, const char *why) {
    if (!r->why[0]) snprintf(r->why, sizeof r->why, "%s", why);
}

/* The socket has ended, or its records are damaged. */
static void disconnect(iv_remote *r) {
    iv_process_kill(&r->process);
    iv_process_disconnect(&r->process);
    iv_frame_reader_free(&r->reader);
    iv_frame_writer_free(&r->writer);
    r->life = LIFE_ENDING;
    set_timer(r, SOON_MS);
}

/* What it has sent is still read; then its socket ends. */
static void kill_process(iv_remote *r, const char *why) {
    remember_why(r, why);
    if (!r->killed) iv_process_kill(&r->process);
    r->killed = true;
}

static void fail_all(iv_remote *r) {
    note(r, "error", "%s", r->why);
    r->life = LIFE_FAILED;
    set_timer(r, 0);
    r->release.waiting = NULL;
    while (r->journal.first) end_entry(r, r->journal.first, IV_IO, r->why);
}

/* Counters never decrease. */
static void keep_counters(iv_remote *r) {
    const iv_engine_stats *s = &r->stats.engine;
    iv_release_add_counters(&r->before, s);
    for (size_t i = 0; i < IV_STEP_BUCKETS; i++) r->steps_before[i] += r->stats.step_tokens[i];
    r->stats.engine = (iv_engine_stats){.kv_pages = s->kv_pages, .kv_pages_free = s->kv_pages};
    memset(r->stats.step_tokens, 0, sizeof r->stats.step_tokens);
    r->stats.queued = r->stats.waiting_events = 0, r->stats.loading = false;
}

/* Whether the engine may have computed a request: few go before it, by priority, then age. */
static bool ran(const iv_remote *r, const iv_journal_entry *e) {
    size_t before = 0;
    bool earlier = true;
    for (const iv_journal_entry *o = r->journal.first; o && before < r->info.max_num_seqs; o = o->next) {
        if (o == e) earlier = false;
        if (o == e || !o->request || !o->sent) continue;
        int32_t a = o->request->priority, b = e->request->priority;
        before += a < b || (a == b && earlier);
    }
    return before < r->info.max_num_seqs;
}

/* An update of weights that had begun is not repeated: it may be what ended the process. */
static void interrupt_entries(iv_remote *r) {
    size_t running = 0;
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (!e->request && e->sent && e->command == IV_COMMAND_UPDATE_WEIGHTS && running == 0) {
            end_entry(r, e, IV_IO, "the engine ended while it loaded these weights; the earlier ones are in use");
            continue;
        }
        if (e->advanced)
            e->deaths = 0;
        else
            e->deaths += e->request && e->sent && ran(r, e);
        running += e->request && e->sent;
    }
    for (iv_journal_entry *e = r->journal.first; e; e = e->next) iv_journal_interrupt(e);
}

/* Restarts allowed now. */
static size_t restarts_left(const iv_remote *r) {
    size_t n = r->o.engine_restarts, recent = 0;
    if (n > RESTARTS_KEPT) return n; /* so many are no limit */
    for (; recent < n && recent < r->restarts; recent++)
        if (iv_now() - r->restarted_at[(r->restarts - 1 - recent) % RESTARTS_KEPT] > RESTARTS_S) break;
    return n - recent;
}

/* The last restart is made without the requests that may be what ends the engine: those that each of its lives computed
 * without an event. */
static void drop_suspects(iv_remote *r) {
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (e->deaths >= DEATHS_MAX) end_entry(r, e, IV_IO, "the engine ended each time that it computed this request");
    }
}

/* The first restart is immediate, and so is each after a life that was of use. */
static double rest_of(const iv_remote *r) {
    if (r->barren == 0) return 0;
    unsigned doublings = r->barren - 1 < 7 ? r->barren - 1 : 7;
    uint64_t ms = (uint64_t)REST_FIRST_MS << doublings;
    return (double)(ms < REST_MAX_MS ? ms : (uint64_t)REST_MAX_MS) / 1000;
}

/* The memory is free. */
static void end_release(iv_remote *r) {
    r->life = LIFE_RELEASED, r->barren = 0;
    set_timer(r, 0);
    note(r, "info", "the engine's memory is released");
    if (r->release.waiting) end_entry(r, r->release.waiting, IV_OK, "");
    r->release.waiting = NULL;
}

/* The process of a resume has ended before its engine was open: the weights before are used. */
static void fail_resume(iv_remote *r, const char *how) {
    char why[sizeof r->why];
    bool other = r->release.updated;
    snprintf(why, sizeof why, "resume: the engine did not open%s: %.800s",
             other ? " with the new weights; the earlier are kept" : "", how);
    iv_release_settle(&r->release, &r->weights, &r->weight_version, false);
    end_entry(r, r->release.waiting, IV_INVALID, why);
    r->release.waiting = NULL;
}

/* The process is reaped, or could not be started. */
static void after_life(iv_remote *r, const char *how) {
    bool useful = r->eventful || r->stats.engine.steps > 0 || (r->ready_at > 0 && iv_now() - r->ready_at > USEFUL_S);
    r->barren = useful || r->restarts == 0 ? 0 : r->barren + 1;
    interrupt_entries(r);
    keep_counters(r);
    if (r->release.tags) {
        end_release(r);
        return;
    }
    if (r->release.waiting) fail_resume(r, how);
    size_t left = restarts_left(r);
    if (left == 1) drop_suspects(r);
    if (left == 0 || r->refusals >= REFUSALS_MAX) {
        char why[sizeof r->why];
        if (left == 0)
            snprintf(why, sizeof why, "the engine process ended again (%.900s) after %llu restarts", how,
                     (unsigned long long)r->restarts);
        else
            snprintf(why, sizeof why, "the model no longer opens: %.900s", how);
        snprintf(r->why, sizeof r->why, "%s", why);
        fail_all(r);
        return;
    }
    double rest = rest_of(r);
    r->due = iv_now() + rest;
    r->life = LIFE_RESTING;
    note(r, "warning", "the engine process ended (%s); restart %llu in %.3g s, %zu requests wait", how,
         (unsigned long long)r->restarts + 1, rest, r->journal.requests);
}

static void look_at_end(iv_remote *r) {
    char how[64], all[sizeof r->why];
    if (!iv_process_reap(&r->process, how, sizeof how)) return;
    snprintf(all, sizeof all, "%s", r->why[0] ? r->why : how);
    after_life(r, all);
}

static void look_at_rest(iv_remote *r) {
    iv_error err;
    if (iv_now() < r->due) return;
    r->restarted_at[r->restarts++ % RESTARTS_KEPT] = iv_now();
    if (start(r, &err) == IV_OK) return;
    iv_frame_writer_free(&r->writer);
    r->eventful = false;
    after_life(r, err.message);
}

/* Once a tick. Ticks are counted, not time: this process may have been stopped too. */
static void look_at_silence(iv_remote *r) {
    char why[100];
    uint64_t patience = (BEATS + 1) * (r->spoke ? 1 : (uint64_t)START_TIMEOUTS);
    r->silent = r->heard ? 0 : r->silent + 1;
    r->heard = false;
    if (r->silent <= patience) return;
    snprintf(why, sizeof why, "it did not respond for %.3g s%s", (double)(r->silent * beat_ms(r)) / 1000,
             r->life == LIFE_STARTING ? " while it opened the model" : "");
    kill_process(r, why);
}

/* The process responds; its engine may hang. */
static void look_at_progress(iv_remote *r, uint64_t stuck_ms) {
    char why[100];
    if (stuck_ms <= timeout_ms(r) * IV_ENGINE_STEP_TIMEOUTS) return;
    snprintf(why, sizeof why,
             r->life == LIFE_STARTING ? "it made no progress for %.3g s while it opened the model"
                                      : "its engine made no step for %.3g s",
             (double)stuck_ms / 1000);
    kill_process(r, why);
}

static void on_tick(iv_remote *r) {
    uint64_t count;
    if (read(r->timer, &count, sizeof count) != sizeof count) return;
    r->tick_due = iv_now() + TICK_LOOK_S;
    switch (r->life) {
    case LIFE_STARTING:
    case LIFE_READY: look_at_silence(r); return;
    case LIFE_ENDING: look_at_end(r); return;
    case LIFE_RESTING: look_at_rest(r); return;
    case LIFE_RELEASED:
    case LIFE_FAILED: return;
    }
}

/* ---- records from the process ------------------------------------------------------------------------- */

static void take_stats(iv_remote *r, const iv_frame *f) {
    r->stats = f->stats;
    r->stats.weight_version += r->version_more;
}

/* Other weights than before, although the directory is the same: what began cannot continue. */
static void check_weights(iv_remote *r, const iv_frame *f) {
    bool same = strcmp(r->fingerprint, f->stats.fingerprint) == 0, updated = r->release.updated;
    iv_release_settle(&r->release, &r->weights, &r->weight_version, true);
    if (updated) snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->stats.fingerprint);
    if (same || updated) return;
    note(r, "error", "the restarted engine has other weights: fingerprint %s, before it was %s", f->stats.fingerprint,
         r->fingerprint);
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (e->request && !e->silent)
            end_entry(r, e, IV_IO, "the weights that began this answer are no longer there; the engine was restarted");
    }
    r->version_more = 1, r->weight_version++;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->stats.fingerprint);
}

static iv_status take_info(iv_remote *r, const iv_frame *f, iv_error *err) {
    r->info = f->info;
    IV_TRY(iv_bridge_keep_strings(&r->info, &r->names, err));
    r->defaults = f->request;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->stats.fingerprint);
    return IV_OK;
}

/* A process that is not the first is ready. */
static void resume(iv_remote *r, const iv_frame *f) {
    r->life = LIFE_READY, r->ready_at = iv_now(), r->refusals = 0;
    if (f->info.vocab_size != r->info.vocab_size || f->info.max_model_len != r->info.max_model_len) {
        kill_process(r, "the restarted engine has another model");
        return;
    }
    check_weights(r, f);
    take_stats(r, f);
    note(r, "info", "the engine process is back: loaded in %.2f s, %zu requests continue", f->info.load_seconds,
         r->journal.requests);
    if (r->paused) {
        iv_frame pause = {.kind = IV_FRAME_COMMAND, .id = ++r->journal.next_id, .command = IV_COMMAND_PAUSE};
        put(r, &pause); /* its result finds no entry */
    }
    send_all(r);
    if (r->release.waiting) end_entry(r, r->release.waiting, IV_OK, "");
    r->release.waiting = NULL;
}

static bool fill(iv_remote *r, const iv_journal_entry *e, iv_bridge_event_kind kind, iv_bridge_event *out) {
    *out = (iv_bridge_event){.kind = kind,
                             .owner = e->owner,
                             .id = e->request ? e->id : 0,
                             .event = &r->frame.event,
                             .details = &r->frame.details,
                             .weight_version = r->weight_version,
                             .fingerprint = r->fingerprint};
    return true;
}

/* Its clients learn why; the process forgets it. */
static bool break_off(iv_remote *r, iv_journal_entry *e, const iv_error *why) {
    note(r, "error", "request %llu: %s", (unsigned long long)e->id, why->message);
    put(r, &(iv_frame){.kind = IV_FRAME_CANCEL, .id = e->id});
    end_entry(r, e, why->status, why->message);
    return false;
}

/* True: *out is an event for the server. */
static bool take_event(iv_remote *r, const char *raw, size_t raw_bytes, iv_bridge_event *out) {
    iv_event *v = &r->frame.event;
    iv_journal_entry *e = iv_journal_find(&r->journal, r->frame.id);
    iv_error err;
    bool repeated = false;
    if (!e || !e->request) return false; /* cancelled meanwhile */
    r->eventful = true;
    v->request = e->id;
    if (v->kind != IV_EVENT_DONE) {
        if (iv_journal_note(&r->journal, e, v, raw, raw_bytes, &repeated, &err) != IV_OK) return break_off(r, e, &err);
        return !repeated && fill(r, e, IV_BRIDGE_EVENT_TOKEN, out);
    }
    if (iv_journal_check_end(e, v, &err) != IV_OK) return break_off(r, e, &err);
    fill(r, e, IV_BRIDGE_EVENT_DONE, out);
    iv_journal_remove(&r->journal, e);
    return true;
}

static bool take_refusal(iv_remote *r, iv_bridge_event *out) {
    iv_journal_entry *e = iv_journal_find(&r->journal, r->frame.id);
    if (!e || !e->request) return false;
    r->eventful = true;
    fill(r, e, IV_BRIDGE_EVENT_REFUSED, out);
    out->event = NULL, out->status = r->frame.status, out->message = r->frame.text;
    iv_journal_remove(&r->journal, e);
    return true;
}

static bool take_result(iv_remote *r, iv_bridge_event *out) {
    const iv_frame *f = &r->frame;
    iv_journal_entry *e = iv_journal_find(&r->journal, f->id);
    if (!e || e->request) return false;
    bool good = f->status == IV_OK;
    if (good && e->command == IV_COMMAND_PAUSE) r->paused = true;
    if (good && e->command == IV_COMMAND_CONTINUE) r->paused = false;
    if (good && e->command == IV_COMMAND_UPDATE_WEIGHTS) {
        free(r->weights);
        IV_ASSERT((r->weights = strdup(e->text))); /* a restart must find them */
        r->weight_version = f->weight_version + r->version_more;
        snprintf(r->fingerprint, sizeof r->fingerprint, "%s", r->stats.fingerprint);
    }
    fill(r, e, IV_BRIDGE_EVENT_COMMAND, out);
    out->event = NULL, out->fingerprint = NULL, out->status = f->status, out->message = f->text;
    iv_journal_remove(&r->journal, e);
    return true;
}

/* True: *out is an event for the server. */
static bool take_record(iv_remote *r, const char *raw, size_t raw_bytes, iv_bridge_event *out) {
    const iv_frame *f = &r->frame;
    r->heard = r->spoke = true;
    switch (f->kind) {
    case IV_FRAME_EVENT: return take_event(r, raw, raw_bytes, out);
    case IV_FRAME_REFUSED: return take_refusal(r, out);
    case IV_FRAME_RESULT: return take_result(r, out);
    case IV_FRAME_STATS:
        take_stats(r, f);
        r->received = f->done;
        return false;
    case IV_FRAME_IDENTITY:
        r->weight_version = f->weight_version + r->version_more;
        snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->text);
        return false;
    case IV_FRAME_ALIVE: look_at_progress(r, f->done); return false;
    case IV_FRAME_READY: resume(r, f); return false;
    case IV_FRAME_FAILED:
        /* Memory may still belong to the process before. */
        r->refusals += f->status != IV_NO_MEMORY && f->status != IV_BUSY;
        remember_why(r, f->text);
        return false;
    case IV_FRAME_LOST: remember_why(r, f->text); return false;
    case IV_FRAME_PROGRESS: return false;
    default: kill_process(r, "it sent a record of the wrong direction"); return false;
    }
}

/* True: *out is an event. False: no record is complete. */
static bool next_event(iv_remote *r, iv_bridge_event *out) {
    iv_error err;
    const char *raw;
    size_t raw_bytes;
    for (bool got; r->process.fd >= 0;) {
        if (iv_frame_next(&r->reader, &r->frame, &got, &raw, &raw_bytes, &err) != IV_OK) {
            remember_why(r, err.message);
            disconnect(r);
            return false;
        }
        if (!got) return false;
        if (take_record(r, raw, raw_bytes, out)) return true;
    }
    return false;
}

static bool more(iv_remote *r) {
    iv_remote_set_awake(r, true); /* until a call finds nothing */
    return true;
}

bool iv_remote_next(iv_remote *r, iv_bridge_event *out) {
    free(r->taken);
    r->taken = NULL;
    for (bool received = r->drained;; received = true) {
        if (iv_remote_take_made(r, out) || next_event(r, out)) return more(r);
        if (r->made_first) continue;
        if (r->process.fd < 0 || received) break;
        r->drained = true; /* until the next round: what comes meanwhile keeps the descriptor readable */
        if (iv_frame_receive(&r->reader, r->process.fd) == IV_FRAME_IO_END) disconnect(r);
    }
    r->drained = false;
    if (iv_now() >= r->tick_due) on_tick(r);
    flush(r);
    if (iv_remote_take_made(r, out)) return more(r);
    iv_remote_set_awake(r, false);
    return false;
}

/* ---- opening and closing ------------------------------------------------------------------------------ */

/* The first process has ended, without its own reason. */
static iv_status ended_early(iv_remote *r, iv_error *err) {
    char how[64] = "";
    for (int i = 0; i < 1000 && !iv_process_reap(&r->process, how, sizeof how); i++) poll(NULL, 0, SOON_MS);
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
            r->heard = r->spoke = true;
            show_progress(r, &done, &total);
            if (f->kind == IV_FRAME_ALIVE) look_at_progress(r, f->done);
            continue;
        }
        iv_frame_io io = iv_frame_receive(&r->reader, r->process.fd);
        if (io == IV_FRAME_IO_END) return ended_early(r, err);
        flush(r);
        struct pollfd p = {.fd = r->epoll, .events = POLLIN};
        if (io != IV_FRAME_IO_NONE) continue;
        poll(&p, 1, -1);
        if (read(r->timer, &ticks, sizeof ticks) == sizeof ticks) look_at_silence(r);
    }
    IV_TRY(take_info(r, f, err));
    take_stats(r, f);
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
    if (r->epoll < 0 || r->timer < 0 || r->wake < 0 || !watch(r, EPOLL_CTL_ADD, r->timer, EPOLLIN) ||
        !watch(r, EPOLL_CTL_ADD, r->wake, EPOLLIN))
        return iv_fail(err, IV_IO, "bridge: epoll: %s", strerror(errno));
    IV_TRY(start(r, err));
    iv_error text_error;
    iv_status status = iv_text_model_open(r->o.engine.model, &r->text_model, &text_error); /* while weights load */
    IV_TRY(await_ready(r, err));
    if (status != IV_OK) *err = text_error;
    return status;
}

iv_status iv_remote_open(const iv_bridge_options *o, iv_remote **out, iv_error *err) {
    iv_remote *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return iv_fail(err, IV_NO_MEMORY, "bridge: no memory");
    r->o = *o;
    if (!r->o.queued_requests_max) r->o.queued_requests_max = QUEUED_DEFAULT;
    r->epoll = r->timer = r->wake = r->process.fd = -1;
    iv_status status = open_parts(r, err);
    if (status == IV_OK)
        *out = r;
    else
        iv_remote_close(r);
    return status;
}

void iv_remote_close(iv_remote *r) {
    if (!r) return;
    end_process(r);
    while (r->journal.first) iv_journal_remove(&r->journal, r->journal.first);
    for (made_event *m; (m = r->made_first);) {
        r->made_first = m->next;
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
    free(r);
}

/* ---- the calls of bridge.h ---------------------------------------------------------------------------- */

int iv_remote_fd(const iv_remote *r) { return r->epoll; }
const iv_engine_info *iv_remote_info(const iv_remote *r) { return &r->info; }
const iv_text_model *iv_remote_text_model(const iv_remote *r) { return r->text_model; }
void iv_remote_request_init(const iv_remote *r, iv_request *request) { *request = r->defaults; }

iv_status iv_remote_compile(iv_remote *r, const iv_request *request, bool quick, iv_constraint **out, iv_error *err) {
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

iv_status iv_remote_submit(iv_remote *r, const iv_request *request, void *owner, uint64_t *id, iv_error *err) {
    size_t bytes = request->text_bytes + request->id_count * sizeof *request->ids;
    if (request->constraint_text) bytes += strlen(request->constraint_text);
    IV_TRY(admit(r, bytes, err));
    iv_journal_entry *e = iv_journal_add_request(&r->journal, request, owner);
    if (!e) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    *id = e->id;
    if (r->life != LIFE_READY) return IV_OK;
    if (send_entry(r, e)) flush(r);
    return IV_OK;
}

/* The process ends. Only its whole end frees the memory of its GPUs. */
static void release(iv_remote *r, iv_journal_entry *e, unsigned tags) {
    bool first = r->release.tags == 0;
    r->release.tags |= tags;
    if (!first) {
        end_entry(r, e, IV_OK, "");
        return;
    }
    r->release.waiting = e;
    if (r->life == LIFE_STARTING || r->life == LIFE_READY) kill_process(r, "its memory is released");
    if (r->life == LIFE_RESTING) end_release(r);
}

static void resume_memory(iv_remote *r, iv_journal_entry *e, unsigned tags) {
    iv_error err;
    bool released = r->release.tags != 0;
    r->release.tags &= ~tags;
    if (r->release.tags || !released) {
        end_entry(r, e, IV_OK, "");
        return;
    }
    r->release.waiting = e;
    if (start(r, &err) == IV_OK) return;
    iv_frame_writer_free(&r->writer);
    r->eventful = false;
    after_life(r, err.message);
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
    end_entry(r, e, status,
              status == IV_OK ? "" : "the engine's memory is released: POST /resume_memory_occupation first");
}

iv_status iv_remote_command(iv_remote *r, iv_command command, const char *text, void *owner, iv_error *err) {
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
    else if (r->life == LIFE_READY && send_entry(r, e))
        flush(r);
    return IV_OK;
}

void iv_remote_cancel(iv_remote *r, uint64_t id) {
    iv_journal_entry *e = id ? iv_journal_find(&r->journal, id) : NULL;
    if (id && r->made_first) iv_remote_drop_made(r, id);
    if (!e || !e->request) return;
    if (e->sent) put(r, &(iv_frame){.kind = IV_FRAME_CANCEL, .id = id});
    iv_journal_remove(&r->journal, e);
    r->cancelled++;
    flush(r);
}

void iv_remote_hold(iv_remote *r, uint64_t id, bool hold) {
    iv_journal_entry *e = iv_journal_find(&r->journal, id);
    if (!e || !e->request || e->held == hold) return;
    e->held = hold;
    if (!e->sent) return;
    put(r, &(iv_frame){.kind = IV_FRAME_HOLD, .id = id, .flag = hold});
    flush(r);
}

void iv_remote_limit_queue(iv_remote *r, size_t queued_requests_max) { r->o.queued_requests_max = queued_requests_max; }

void iv_remote_get_stats(const iv_remote *r, iv_bridge_stats *stats) {
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
