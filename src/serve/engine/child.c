/* child.c: the engine process: a bridge with its engine, and a loop between it and the server's socket. It ends
 * when the server's end of the socket is closed, or with the server. Signals of a terminal's or a service's group are
 * the server's to handle. */
#include "serve/engine/child.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/jobs.h"
#include "base/process.h"
#include "base/size.h"
#include "serve/engine/frames.h"
#include "serve/engine/local_state.h"
#include "serve/engine/pulse.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    UNSENT_MAX = 1 << 20, /* no further events are taken while more bytes wait for the server */
    FRESH_MS = 20,        /* interval of stats after something happened */
    COMPILE_THREADS = 2,  /* for constraints that take more than a few milliseconds */
    BUCKETS = 4096,       /* a power of two */
    EXIT_LOST = 70,       /* exit codes, for the server's log: the engine was lost, */
    EXIT_PROTOCOL = 71,   /* a damaged record */
    EXIT_MEMORY = 72
};

typedef enum entry_state {
    ENTRY_WAITS,     /* in the queue of this file: the bridge is full, or an earlier entry waits */
    ENTRY_COMPILES,  /* a job compiles its constraint */
    ENTRY_SUBMITTED, /* the bridge has it */
} entry_state;

/* A request of the server, or a command. */
typedef struct entry {
    iv_job job; /* first: compiles the constraint */
    struct entry *bucket_next, *previous, *next;
    struct child *child;
    uint64_t id, bridge_id; /* the server's; the bridge's */
    entry_state state;
    bool is_command, held, cancelled, queued;
    iv_command command;
    char *text;
    iv_request *request; /* a copy, until it is submitted */
    iv_constraint *compiled;
    iv_status status;
    iv_error why;
} entry;

typedef struct child {
    iv_frame_reader reader;
    iv_frame_writer writer;
    iv_frame in;
    iv_buf events; /* records that follow the stats of their step */
    iv_bridge *bridge;
    iv_jobs *jobs; /* NULL before the first slow constraint */
    entry *buckets[BUCKETS];
    entry *first, *last; /* entries that the bridge does not have, in order of arrival */
    size_t waiting;      /* requests of these */
    size_t commands;     /* that the bridge has */
    uint64_t received, version_before, told_version;
    char told_fingerprint[128];
    bool dirty;            /* the stats may have changed */
    iv_bridge_stats stats; /* last sent */
    uint64_t beat_ms, steps;
    double beat_at, stats_at, moved_at;
    iv_pulse *pulse; /* while the engine opens: a thread that has the writer */
    iv_pulse_signs signs;
} child;

/* ---- the socket --------------------------------------------------------------------------------------- */

/* The server is gone, or this process cannot go on. Its memory goes with it. */
static _Noreturn void leave(int code) { _exit(code); }

static void put(iv_buf *out, const iv_frame *f) {
    if (!iv_frame_encode(f, out)) leave(EXIT_MEMORY);
}

static void put_status(iv_buf *out, iv_frame_kind kind, uint64_t id, iv_status status, const char *message) {
    put(out, &(iv_frame){.kind = kind, .id = id, .status = status, .text = message ? message : ""});
}

static void flush(child *c) {
    if (!iv_frame_send(&c->writer, IV_PROCESS_FD)) leave(0);
}

/* Sends all, waiting for the server. */
static void flush_all(child *c) {
    for (flush(c); iv_frame_unsent(&c->writer); flush(c)) {
        struct pollfd p = {.fd = IV_PROCESS_FD, .events = POLLOUT};
        poll(&p, 1, -1);
        if (p.revents & (POLLERR | POLLNVAL)) leave(0);
    }
}

/* The next record in c->in; false: none is complete. */
static bool next_record(child *c) {
    iv_error err;
    bool got;
    if (iv_frame_next(&c->reader, &c->in, &got, NULL, NULL, &err) != IV_OK) leave(EXIT_PROTOCOL);
    return got;
}

static bool receive(child *c) {
    iv_frame_io io = iv_frame_receive(&c->reader, IV_PROCESS_FD);
    if (io == IV_FRAME_IO_END) leave(0);
    return io == IV_FRAME_IO_MORE;
}

/* The engine has given up: all its requests are refused, which is not their end. */
static void leave_if_lost(child *c) {
    iv_bridge_stats s;
    iv_bridge_get_stats(c->bridge, &s);
    if (!s.failed) return;
    if (!iv_buf_append(&c->writer.buf, c->events.data, c->events.len)) leave(EXIT_MEMORY);
    put_status(&c->writer.buf, IV_FRAME_LOST, 0, IV_IO, s.why);
    flush_all(c);
    leave(EXIT_LOST);
}

/* ---- entries ------------------------------------------------------------------------------------------ */

static entry **bucket_of(child *c, uint64_t id) { return &c->buckets[id % BUCKETS]; }

static entry *find(child *c, uint64_t id) {
    entry *e = *bucket_of(c, id);
    while (e && e->id != id) e = e->bucket_next;
    return e;
}

static void queue(child *c, entry *e) {
    e->previous = c->last, e->next = NULL, e->queued = true;
    c->waiting += !e->is_command;
    if (c->last)
        c->last->next = e;
    else
        c->first = e;
    c->last = e;
}

static void unqueue(child *c, entry *e) {
    if (!e->queued) return;
    if (e->previous)
        e->previous->next = e->next;
    else
        c->first = e->next;
    if (e->next)
        e->next->previous = e->previous;
    else
        c->last = e->previous;
    e->queued = false;
    c->waiting -= !e->is_command;
}

static entry *new_entry(child *c) {
    entry *e = calloc(1, sizeof *e);
    if (!e) leave(EXIT_MEMORY);
    e->child = c, e->id = c->in.id;
    entry **bucket = bucket_of(c, e->id);
    e->bucket_next = *bucket;
    *bucket = e;
    return e;
}

static void free_entry(child *c, entry *e) {
    entry **at = bucket_of(c, e->id);
    while (*at != e) at = &(*at)->bucket_next;
    *at = e->bucket_next;
    unqueue(c, e);
    iv_constraint_release(e->compiled);
    free(e->request), free(e->text);
    free(e);
}

static void refuse(child *c, entry *e, iv_status status, const char *message) {
    put_status(&c->writer.buf, IV_FRAME_REFUSED, e->id, status, message);
    free_entry(c, e);
}

/* ---- constraints -------------------------------------------------------------------------------------- */

static bool compile_slowly(iv_job *job) {
    entry *e = (entry *)job;
    e->status = iv_bridge_compile(e->child->bridge, e->request, false, &e->compiled, &e->why);
    return true;
}

static void compiled(iv_job *job, bool ran) {
    entry *e = (entry *)job;
    child *c = e->child;
    (void)ran; /* jobs are never closed */
    e->state = ENTRY_WAITS;
    if (e->cancelled)
        free_entry(c, e);
    else if (e->status != IV_OK)
        refuse(c, e, e->status, e->why.message);
}

/* False: the entry is gone, or its constraint takes longer. */
static bool compile(child *c, entry *e) {
    iv_error err;
    if (e->request->constraint == IV_CONSTRAINT_NONE || e->compiled) return true;
    iv_status status = iv_bridge_compile(c->bridge, e->request, true, &e->compiled, &err);
    if (status == IV_OK) return true;
    if (status != IV_BUSY) {
        refuse(c, e, status, err.message);
        return false;
    }
    if (!c->jobs && iv_jobs_open(COMPILE_THREADS, &c->jobs, &err) != IV_OK) {
        refuse(c, e, err.status, err.message);
        return false;
    }
    e->state = ENTRY_COMPILES;
    e->job.run = compile_slowly, e->job.done = compiled;
    iv_jobs_submit(c->jobs, &e->job);
    return false;
}

/* ---- requests and commands of the server -------------------------------------------------------------- */

/* False: the bridge is full. */
static bool submit(child *c, entry *e) {
    iv_error err;
    e->request->compiled = e->compiled;
    iv_status status = iv_bridge_submit(c->bridge, e->request, e, &e->bridge_id, &err);
    if (status == IV_BUSY) return false;
    if (status != IV_OK) {
        leave_if_lost(c);
        refuse(c, e, status, err.message);
        return true;
    }
    if (e->held) iv_bridge_hold(c->bridge, e->bridge_id, true);
    unqueue(c, e);
    e->state = ENTRY_SUBMITTED;
    iv_constraint_release(e->compiled);
    free(e->request);
    e->compiled = NULL, e->request = NULL;
    return true;
}

/* False: it waits on. */
static bool run_command(child *c, entry *e) {
    iv_error err;
    iv_status status = iv_bridge_command(c->bridge, e->command, e->text, e, &err);
    if (status == IV_BUSY && e->queued) return false; /* the bridge has many */
    unqueue(c, e);
    if (status == IV_OK) {
        e->state = ENTRY_SUBMITTED;
        c->commands++;
        return true;
    }
    leave_if_lost(c);
    put(&c->writer.buf, &(iv_frame){.kind = IV_FRAME_RESULT,
                                    .id = e->id,
                                    .status = status,
                                    .text = err.message,
                                    .weight_version = c->told_version});
    free_entry(c, e);
    return true;
}

/* Passes entries on, in order. Those whose constraints compile are overtaken, but not by commands in this queue. */
static void advance(child *c) {
    for (entry *e = c->first, *next; e; e = next) {
        next = e->next;
        if (e->is_command) {
            if (e->previous || !run_command(c, e)) return;
        } else if (e->state == ENTRY_WAITS && compile(c, e) && !submit(c, e)) {
            return;
        }
    }
}

static void take_request(child *c) {
    entry *e = new_entry(c);
    e->held = c->in.flag;
    c->received++;
    e->request = iv_bridge_copy_request(&c->in.request);
    if (!e->request) leave(EXIT_MEMORY);
    queue(c, e);
}

static void take_command(child *c) {
    entry *e = new_entry(c);
    e->is_command = true, e->command = c->in.command;
    if (c->in.text && !(e->text = strdup(c->in.text))) leave(EXIT_MEMORY);
    bool in_order = e->command == IV_COMMAND_UPDATE_WEIGHTS || e->command == IV_COMMAND_LOAD_ADAPTER ||
                    e->command == IV_COMMAND_UNLOAD_ADAPTER;
    if (in_order)
        queue(c, e);
    else
        run_command(c, e);
}

static void cancel(child *c) {
    entry *e = find(c, c->in.id);
    if (!e || e->is_command) return; /* it has ended meanwhile */
    e->cancelled = true;
    if (e->state == ENTRY_COMPILES) return; /* `compiled` frees it */
    if (e->state == ENTRY_SUBMITTED) iv_bridge_cancel(c->bridge, e->bridge_id);
    free_entry(c, e);
}

static void hold(child *c) {
    entry *e = find(c, c->in.id);
    if (!e || e->is_command) return;
    e->held = c->in.flag;
    if (e->state == ENTRY_SUBMITTED) iv_bridge_hold(c->bridge, e->bridge_id, e->held);
}

static void take_record(child *c) {
    switch (c->in.kind) {
    case IV_FRAME_SUBMIT: take_request(c); break;
    case IV_FRAME_CANCEL: cancel(c); break;
    case IV_FRAME_HOLD: hold(c); break;
    case IV_FRAME_COMMAND: take_command(c); break;
    default: leave(EXIT_PROTOCOL);
    }
    c->dirty = true;
}

/* ---- events ------------------------------------------------------------------------------------------- */

/* Events of a request name no weights: this record does, before the first of them. */
static void tell_identity(child *c, const iv_bridge_event *r) {
    uint64_t version = r->weight_version + c->version_before;
    if (version == c->told_version && strcmp(r->fingerprint, c->told_fingerprint) == 0) return;
    c->told_version = version;
    snprintf(c->told_fingerprint, sizeof c->told_fingerprint, "%s", r->fingerprint);
    put(&c->events, &(iv_frame){.kind = IV_FRAME_IDENTITY, .weight_version = version, .text = c->told_fingerprint});
}

static void tell(child *c, const iv_bridge_event *r) {
    entry *e = r->owner;
    switch (r->kind) {
    case IV_BRIDGE_EVENT_TOKEN:
    case IV_BRIDGE_EVENT_DONE:
        tell_identity(c, r);
        put(&c->events, &(iv_frame){.kind = IV_FRAME_EVENT, .id = e->id, .event = *r->event, .details = *r->details});
        break;
    case IV_BRIDGE_EVENT_REFUSED:
        leave_if_lost(c);
        put_status(&c->events, IV_FRAME_REFUSED, e->id, r->status, r->message);
        break;
    case IV_BRIDGE_EVENT_COMMAND:
        c->commands--;
        put(&c->events, &(iv_frame){.kind = IV_FRAME_RESULT,
                                    .id = e->id,
                                    .status = r->status,
                                    .text = r->message,
                                    .weight_version = r->weight_version + c->version_before});
        break;
    }
    if (r->kind != IV_BRIDGE_EVENT_TOKEN) free_entry(c, e);
}

static void put_stats(child *c, const iv_bridge_stats *s) {
    c->stats = *s;
    c->stats_at = iv_now();
    iv_frame f = {.kind = IV_FRAME_STATS, .stats = *s, .done = c->received};
    f.stats.weight_version += c->version_before, f.stats.queued += c->waiting;
    put(&c->writer.buf, &f);
}

/* Takes the bridge's events. Stats precede the events of their step: who has an answer finds it counted. */
static void take_events(child *c) {
    iv_bridge_event r;
    bool any = false;
    if (iv_frame_unsent(&c->writer) >= UNSENT_MAX) return;
    iv_buf_clear(&c->events);
    while (c->events.len < UNSENT_MAX && iv_bridge_next(c->bridge, &r)) {
        tell(c, &r);
        any = true;
    }
    if (!any) return;
    iv_bridge_stats s;
    iv_bridge_get_stats(c->bridge, &s);
    put_stats(c, &s);
    if (!iv_buf_append(&c->writer.buf, c->events.data, c->events.len)) leave(EXIT_MEMORY);
    c->dirty = true;
}

/* ---- signs of life ------------------------------------------------------------------------------------ */

static bool has_work(const iv_bridge_stats *s) {
    bool blocked = s->paused || s->waiting_events > 0; /* or the server reads slowly */
    return s->loading || (!blocked && s->queued + s->engine.running + s->engine.waiting > s->engine.held);
}

/* Milliseconds since the engine's last step or rest; while it loads other weights, since it last read some. */
static uint64_t stuck_ms(child *c, const iv_bridge_stats *s, double now) {
    bool reads = s->loading && iv_pulse_moved(&c->signs);
    if (!has_work(s) || reads || s->engine.steps != c->steps) c->moved_at = now;
    c->steps = s->engine.steps;
    return (uint64_t)((now - c->moved_at) * 1000);
}

static void beat(child *c) {
    double now = iv_now();
    bool stats_due = c->dirty && now - c->stats_at >= FRESH_MS / 1000.0, beat_due = now >= c->beat_at;
    if (!stats_due && !beat_due) return;
    iv_bridge_stats s;
    iv_bridge_get_stats(c->bridge, &s);
    if (s.failed) leave_if_lost(c);
    uint64_t stuck = stuck_ms(c, &s, now);
    bool changed = memcmp(&s, &c->stats, sizeof s) != 0;
    if (changed) put_stats(c, &s);
    c->dirty = changed || c->commands > 0; /* until a look finds nothing new */
    if (!beat_due) return;
    put(&c->writer.buf, &(iv_frame){.kind = IV_FRAME_ALIVE, .done = stuck});
    c->beat_at = now + (double)c->beat_ms / 1000;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

/* On any thread. */
static void show_progress(void *user, size_t done, size_t total) {
    const child *c = user;
    if (c->pulse) iv_pulse_progress(c->pulse, done, total);
}

static void stop_pulse(child *c) {
    iv_pulse *p = c->pulse;
    c->pulse = NULL; /* no progress from here on */
    iv_pulse_stop(p);
}

static _Noreturn void fail(child *c, const iv_error *why) {
    stop_pulse(c);
    put_status(&c->writer.buf, IV_FRAME_FAILED, 0, why->status, why->message);
    flush_all(c);
    leave(1);
}

/* Loads the weights of the server's last update over those of the options. */
static iv_status update(child *c, const char *directory, iv_error *err) {
    iv_bridge_event r;
    IV_TRY(iv_bridge_command(c->bridge, IV_COMMAND_UPDATE_WEIGHTS, directory, NULL, err));
    while (!iv_bridge_next(c->bridge, &r)) {
        struct pollfd p = {.fd = iv_bridge_fd(c->bridge), .events = POLLIN};
        poll(&p, 1, -1);
    }
    return r.status == IV_OK ? IV_OK : iv_fail(err, r.status, "%s", r.message);
}

/* The strings of the options point into the record, which is copied: they must outlive the bridge. */
static void open_engine(child *c) {
    iv_error err;
    while (!next_record(c))
        if (!receive(c)) {
            struct pollfd p = {.fd = IV_PROCESS_FD, .events = POLLIN};
            poll(&p, 1, -1);
        }
    if (c->in.kind != IV_FRAME_OPEN) leave(EXIT_PROTOCOL);
    const char *weights = c->in.text;
    c->beat_ms = c->in.beat_ms ? c->in.beat_ms : 1;
    iv_bridge_options o = {.engine = c->in.options, .queued_requests_max = IV_QUEUED_REQUESTS_MAX};
    o.engine.progress = show_progress, o.engine.user = c;
    if (iv_pulse_start(&c->writer, IV_PROCESS_FD, c->beat_ms, &c->pulse, &err) != IV_OK) fail(c, &err);
    if (iv_bridge_open(&o, &c->bridge, &err) != IV_OK) fail(c, &err);
    if (!c->bridge) leave(0); /* another rank, which has served rank 0 to the end */
    if (weights && update(c, weights, &err) != IV_OK) fail(c, &err);
    stop_pulse(c);
    c->version_before = c->in.weight_version - (weights != NULL);
    iv_frame f = {.kind = IV_FRAME_READY, .info = *iv_bridge_info(c->bridge)};
    iv_bridge_request_init(c->bridge, &f.request);
    iv_bridge_get_stats(c->bridge, &f.stats);
    c->stats = f.stats;
    c->told_version = f.stats.weight_version += c->version_before;
    snprintf(c->told_fingerprint, sizeof c->told_fingerprint, "%s", f.stats.fingerprint);
    put(&c->writer.buf, &f);
    c->moved_at = c->beat_at = iv_now();
}

static void separate(void) {
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGTSTP, SIGQUIT};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#ifdef SYS_close_range
    syscall(SYS_close_range, IV_PROCESS_FD + 1u, ~0u, 0u); /* descriptors of libraries in the server */
#endif
}

void iv_server_run_engine(void) {
    static child c;
    separate();
    iv_frame_reader opening;
    open_engine(&c);
    opening = c.reader; /* holds the options' strings */
    c.reader = (iv_frame_reader){0};
    if (opening.begin < opening.end) leave(EXIT_PROTOCOL); /* the server sends nothing before READY */
    for (;;) {
        bool writable = iv_frame_unsent(&c.writer) < UNSENT_MAX;
        struct pollfd p[] = {
            {.fd = IV_PROCESS_FD, .events = (short)(POLLIN | (iv_frame_unsent(&c.writer) ? POLLOUT : 0))},
            {.fd = writable ? iv_bridge_fd(c.bridge) : -1, .events = POLLIN},
            {.fd = c.jobs ? iv_jobs_fd(c.jobs) : -1, .events = POLLIN}};
        uint64_t wait = c.dirty ? FRESH_MS : c.beat_ms;
        poll(p, 3, (int)iv_size_min(wait < c.beat_ms ? wait : c.beat_ms, 60000));
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR)) {
            receive(&c);
            while (next_record(&c)) take_record(&c);
        }
        if (c.jobs) iv_jobs_collect(c.jobs);
        advance(&c);
        take_events(&c);
        beat(&c);
        flush(&c);
    }
}
