/* life.c: the life of an engine process: start, silence, end, backoff, the next one; records to it.
 *
 * STARTING until its engine is open, READY, then (killed, crashed, hung: the socket ends) ENDING until it is reaped,
 * BACKOFF until the backoff is over, and STARTING again. Requests wait in the journal meanwhile. */
#include "base/clock.h"
#include "base/size.h"
#include "serve/engine/child.h"
#include "serve/engine/remote_state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    TIMEOUT_MS = 10000,     /* default */
    BEATS = 4,              /* signs of life in a timeout */
    START_TIMEOUTS = 10,    /* times the timeout for the first of them */
    RESTARTS_S = 600,       /* window of engine_restarts */
    USEFUL_S = 5,           /* a life so long, or with a step, was of use */
    BACKOFF_FIRST_MS = 100, /* backoff after a life of no use; doubles ... */
    BACKOFF_MAX_MS = 10000, /* ... up to this */
    DEATHS_MAX = 3,         /* of processes that ended while they computed one request, without an event of it */
    REFUSALS_MAX = 5        /* lives in a row whose engine refused to open, for a reason that stays */
};

static const double TICK_LOOK_S = 0.001; /* the timer is not read more often: each read is a system call */

/* ---- small parts -------------------------------------------------------------------------------------- */

static uint64_t timeout_ms(const iv_remote *r) {
    return r->o.engine_timeout_ms ? r->o.engine_timeout_ms : (uint64_t)TIMEOUT_MS;
}
static uint64_t beat_ms(const iv_remote *r) { return timeout_ms(r) / BEATS ? timeout_ms(r) / BEATS : 1; }

void iv_remote_note(const iv_remote *r, const char *level, const char *fmt, ...) {
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

bool iv_remote_watch(iv_remote *r, int how, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    return epoll_ctl(r->epoll, how, fd, &e) == 0;
}

/* The entry ends with this instead of an event of the engine. */
void iv_remote_end_entry(iv_remote *r, iv_journal_entry *e, iv_status status, const char *message) {
    iv_remote_synthesize(r, e->request ? IV_BRIDGE_EVENT_REFUSED : IV_BRIDGE_EVENT_COMMAND, e, status, message);
    iv_adapter_list_leave(&r->bridge.adapters, e->adapter);
    iv_journal_remove(&r->journal, e);
}

/* ---- records to the process --------------------------------------------------------------------------- */

/* A process that has ended needs none: the next one learns everything from the journal. */
void iv_remote_put(iv_remote *r, const iv_frame *f) {
    if (r->process.fd >= 0) IV_ASSERT(iv_frame_encode(f, &r->writer.buf));
}

/* Sends what the socket takes; the rest when it is writable. If the peer is gone, reading finds it. */
void iv_remote_flush(iv_remote *r) {
    if (r->process.fd < 0 || (!iv_frame_unsent(&r->writer) && !r->polls_output)) return;
    bool open = iv_frame_send(&r->writer, r->process.fd), more = open && iv_frame_unsent(&r->writer) > 0;
    if (more == r->polls_output) return;
    r->polls_output = more;
    iv_remote_watch(r, EPOLL_CTL_MOD, r->process.fd, more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* False: the entry is gone. */
bool iv_remote_send_entry(iv_remote *r, iv_journal_entry *e) {
    iv_frame f = {.kind = IV_FRAME_SUBMIT, .id = e->id, .flag = e->held};
    if (e->request)
        f.request = iv_journal_request(e);
    else
        f.kind = IV_FRAME_COMMAND, f.command = e->command, f.text = e->text;
    if (!iv_frame_encode(&f, &r->writer.buf)) {
        iv_remote_end_entry(r, e, IV_NO_MEMORY, "request: no memory to send it to the engine");
        return false;
    }
    e->sent = true;
    r->sent += e->request != NULL;
    return true;
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

void iv_remote_end_process(iv_remote *r) {
    char how[64];
    iv_process_end(&r->process, how, sizeof how);
}

iv_status iv_remote_start(iv_remote *r, iv_error *err) {
    IV_TRY(start_program(r, err));
    r->life = LIFE_STARTING;
    r->heartbeat = r->first_heartbeat = r->killed = r->polls_output = r->eventful = false;
    r->silent = r->sent = r->received = r->version_more = 0;
    r->why[0] = 0, r->ready_at = 0;
    iv_remote_put(r, &(iv_frame){.kind = IV_FRAME_OPEN,
                                 .options = options_of(r),
                                 .text = r->weights,
                                 .weight_version = r->weight_version,
                                 .beat_ms = beat_ms(r)});
    if (!iv_remote_watch(r, EPOLL_CTL_ADD, r->process.fd, EPOLLIN)) {
        iv_remote_end_process(r);
        return iv_fail(err, IV_IO, "engine process: epoll: %s", strerror(errno));
    }
    set_timer(r, beat_ms(r));
    iv_remote_flush(r);
    return IV_OK;
}

void iv_remote_remember_why(iv_remote *r, const char *why) {
    if (!r->why[0]) snprintf(r->why, sizeof r->why, "%s", why);
}

/* The socket has ended, or its records are damaged. */
void iv_remote_disconnect(iv_remote *r) {
    iv_process_kill(&r->process);
    iv_process_disconnect(&r->process);
    iv_frame_reader_free(&r->reader);
    iv_frame_writer_free(&r->writer);
    r->life = LIFE_ENDING;
    set_timer(r, IV_REMOTE_SOON_MS);
}

/* What it has sent is still read; then its socket ends. */
void iv_remote_kill(iv_remote *r, const char *why) {
    iv_remote_remember_why(r, why);
    if (!r->killed) iv_process_kill(&r->process);
    r->killed = true;
}

static void fail_all(iv_remote *r) {
    iv_remote_note(r, "error", "%s", r->why);
    r->life = LIFE_FAILED;
    set_timer(r, 0);
    r->release.waiting = NULL;
    while (r->journal.first) iv_remote_end_entry(r, r->journal.first, IV_IO, r->why);
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

/* An update of weights that had begun is not repeated, nor is a load of an adapter: it may be what ended the process.
 */
static void interrupt_entries(iv_remote *r) {
    size_t running = 0;
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (!e->request && e->sent && e->command == IV_COMMAND_UPDATE_WEIGHTS && running == 0) {
            iv_remote_end_entry(r, e, IV_IO,
                                "the engine ended while it loaded these weights; the earlier ones are in use");
            continue;
        }
        if (!e->request && e->sent && e->command == IV_COMMAND_LOAD_ADAPTER) {
            iv_remote_end_entry(r, e, IV_IO, "the engine ended before it had loaded this adapter");
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
        if (e->deaths >= DEATHS_MAX)
            iv_remote_end_entry(r, e, IV_IO, "the engine ended each time that it computed this request");
    }
}

/* The first restart is immediate, and so is each after a life that was of use. */
static double backoff_of(const iv_remote *r) {
    if (r->barren == 0) return 0;
    unsigned doublings = r->barren - 1 < 7 ? r->barren - 1 : 7;
    uint64_t ms = (uint64_t)BACKOFF_FIRST_MS << doublings;
    return (double)(ms < BACKOFF_MAX_MS ? ms : (uint64_t)BACKOFF_MAX_MS) / 1000;
}

/* The memory is free. */
void iv_remote_end_release(iv_remote *r) {
    r->life = LIFE_RELEASED, r->barren = 0;
    set_timer(r, 0);
    iv_remote_note(r, "info", "the engine's memory is released");
    if (r->release.waiting) iv_remote_end_entry(r, r->release.waiting, IV_OK, "");
    r->release.waiting = NULL;
}

/* The process of a resume has ended before its engine was open: the weights before are used. */
static void fail_resume(iv_remote *r, const char *how) {
    char why[sizeof r->why];
    bool other = r->release.updated;
    snprintf(why, sizeof why, "resume: the engine did not open%s: %.800s",
             other ? " with the new weights; the earlier are kept" : "", how);
    iv_release_settle(&r->release, &r->weights, &r->weight_version, false);
    iv_remote_end_entry(r, r->release.waiting, IV_INVALID, why);
    r->release.waiting = NULL;
}

/* The process is reaped, or could not be started. */
void iv_remote_after_life(iv_remote *r, const char *how) {
    bool useful = r->eventful || r->stats.engine.steps > 0 || (r->ready_at > 0 && iv_now() - r->ready_at > USEFUL_S);
    r->barren = useful || r->restarts == 0 ? 0 : r->barren + 1;
    interrupt_entries(r);
    keep_counters(r);
    if (r->release.tags) {
        iv_remote_end_release(r);
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
    double backoff = backoff_of(r);
    r->due = iv_now() + backoff;
    r->life = LIFE_BACKOFF;
    iv_remote_note(r, "warning", "the engine process ended (%s); restart %llu in %.3g s, %zu requests wait", how,
                   (unsigned long long)r->restarts + 1, backoff, r->journal.requests);
}

static void inspect_end(iv_remote *r) {
    char how[64], all[sizeof r->why];
    if (!iv_process_reap(&r->process, how, sizeof how)) return;
    snprintf(all, sizeof all, "%s", r->why[0] ? r->why : how);
    iv_remote_after_life(r, all);
}

static void inspect_backoff(iv_remote *r) {
    iv_error err;
    if (iv_now() < r->due) return;
    r->restarted_at[r->restarts++ % RESTARTS_KEPT] = iv_now();
    if (iv_remote_start(r, &err) == IV_OK) return;
    iv_frame_writer_free(&r->writer);
    r->eventful = false;
    iv_remote_after_life(r, err.message);
}

/* Once a tick. Ticks are counted, not time: this process may have been stopped too. */
void iv_remote_inspect_silence(iv_remote *r) {
    char why[100];
    uint64_t patience = (BEATS + 1) * (r->first_heartbeat ? 1 : (uint64_t)START_TIMEOUTS);
    r->silent = r->heartbeat ? 0 : r->silent + 1;
    r->heartbeat = false;
    if (r->silent <= patience) return;
    snprintf(why, sizeof why, "it did not respond for %.3g s%s", (double)(r->silent * beat_ms(r)) / 1000,
             r->life == LIFE_STARTING ? " while it opened the model" : "");
    iv_remote_kill(r, why);
}

/* The process responds; its engine may hang. */
void iv_remote_inspect_progress(iv_remote *r, uint64_t stuck_ms) {
    char why[100];
    if (stuck_ms <= timeout_ms(r) * IV_ENGINE_STEP_TIMEOUTS) return;
    snprintf(why, sizeof why,
             r->life == LIFE_STARTING ? "it made no progress for %.3g s while it opened the model"
                                      : "its engine made no step for %.3g s",
             (double)stuck_ms / 1000);
    iv_remote_kill(r, why);
}

void iv_remote_tick(iv_remote *r) {
    uint64_t count;
    if (read(r->timer, &count, sizeof count) != sizeof count) return;
    r->tick_due = iv_now() + TICK_LOOK_S;
    switch (r->life) {
    case LIFE_STARTING:
    case LIFE_READY: iv_remote_inspect_silence(r); return;
    case LIFE_ENDING: inspect_end(r); return;
    case LIFE_BACKOFF: inspect_backoff(r); return;
    case LIFE_RELEASED:
    case LIFE_FAILED: return;
    }
}
