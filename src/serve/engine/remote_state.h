/* remote_state.h: the state of remote.c, and its parts that need nothing else of it. */
#ifndef IV_SERVE_ENGINE_REMOTE_STATE_H
#define IV_SERVE_ENGINE_REMOTE_STATE_H

#include "base/process.h"
#include "serve/engine/frames.h"
#include "serve/engine/journal.h"
#include "serve/engine/calls.h"

enum { RESTARTS_KEPT = 64 }; /* times of the latest restarts */

typedef enum life { LIFE_STARTING, LIFE_READY, LIFE_ENDING, LIFE_BACKOFF, LIFE_RELEASED, LIFE_FAILED } life;

/* An event of this file's own. */
typedef struct synthesized_event {
    struct synthesized_event *next;
    iv_bridge_event head;
    char message[];
} synthesized_event;

/* Memory that is given up (IV_COMMAND_RELEASE). */
typedef struct iv_release {
    unsigned tags;             /* that are released: IV_RELEASE_... */
    iv_journal_entry *waiting; /* the command that waits for the process's end, or for the next one; NULL: none */
    bool updated;              /* other weights since */
    char *weights;             /* with it: the text before */
    uint64_t weight_version;   /* with it: the version before */
} iv_release;

enum { IV_RELEASE_WEIGHTS = 1, IV_RELEASE_KV = 2 };

typedef struct iv_remote {
    iv_bridge bridge; /* first */
    iv_bridge_options o;
    int epoll, timer, wake;
    bool awake; /* the eventfd is readable */
    iv_text_model *text_model;
    iv_engine_info info; /* strings in `names` */
    char *names;
    iv_request defaults;

    iv_journal journal;
    synthesized_event *synthesized_first, *synthesized_last, *taken;
    char *weights; /* text of the last update; NULL: the weights of the options */
    iv_release release;
    uint64_t weight_version;
    char fingerprint[128];                 /* of the events that come now, like weight_version */
    char adapter[IV_ADAPTER_DIGEST_BYTES]; /* of the event that was taken last */
    bool paused;
    uint64_t cancelled, restarts, continued;
    double restarted_at[RESTARTS_KEPT]; /* a ring; entry restarts % RESTARTS_KEPT is the next */
    char why[sizeof((iv_error *)0)->message];

    life life;
    iv_process process;
    iv_frame_reader reader;
    iv_frame_writer writer;
    iv_frame frame;
    bool polls_output;
    bool drained;            /* a round of iv_remote_next has received */
    double tick_due;         /* it is not looked at before */
    bool heartbeat;          /* a record since the last tick */
    bool first_heartbeat;    /* a record of this life */
    bool killed;             /* by this file: its socket will end */
    uint64_t silent;         /* ticks without a record */
    uint64_t sent, received; /* submissions of this life */
    uint64_t version_more;   /* added to this life's weight versions: its weights are others than asked for */
    bool eventful;           /* this life had an event */
    unsigned barren;         /* lives without one, in a row */
    unsigned refusals;       /* lives whose engine refused to open, in a row */
    double ready_at;
    double due;             /* end of the backoff */
    iv_bridge_stats stats;  /* of this life, as last received */
    iv_engine_stats before; /* counters of earlier lives */
    uint64_t steps_before[IV_STEP_BUCKETS];
} iv_remote;

/* ---- life.c: processes ---- */
enum { IV_REMOTE_SOON_MS = 5 }; /* interval of inspections of a process that ends, or whose backoff runs */

void iv_remote_note(const iv_remote *r, const char *level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool iv_remote_watch(iv_remote *r, int how, int fd, uint32_t events); /* epoll_ctl */
iv_status iv_remote_start(iv_remote *r, iv_error *err);
/* What it has sent is still read; then its socket ends. */
void iv_remote_kill(iv_remote *r, const char *why);
void iv_remote_remember_why(iv_remote *r, const char *why);
void iv_remote_disconnect(iv_remote *r);                  /* the socket has ended, or its records are damaged */
void iv_remote_end_process(iv_remote *r);                 /* for good */
void iv_remote_after_life(iv_remote *r, const char *how); /* it is reaped, or could not be started */
void iv_remote_end_release(iv_remote *r);                 /* the memory is free */
void iv_remote_tick(iv_remote *r);
/* Once a tick. Ticks are counted, not time: this process may have been stopped too. */
void iv_remote_inspect_silence(iv_remote *r);
void iv_remote_inspect_progress(iv_remote *r, uint64_t stuck_ms); /* it responds; its engine may hang */

/* ---- life.c: records to the process, and entries of the journal ---- */
void iv_remote_put(iv_remote *r, const iv_frame *f); /* dropped without a process: the next learns all of the journal */
void iv_remote_flush(iv_remote *r);                  /* what the socket takes; the rest when it is writable */
bool iv_remote_send_entry(iv_remote *r, iv_journal_entry *e); /* false: the entry is gone */
/* The entry ends with this instead of an event of the engine. */
void iv_remote_end_entry(iv_remote *r, iv_journal_entry *e, iv_status status, const char *message);

/* ---- remote_adapters.c ---- */
void iv_remote_bind_adapter(iv_remote *r, iv_journal_entry *e); /* a new request's */
void iv_remote_remove_entry(iv_remote *r, iv_journal_entry *e); /* from the journal */
/* A command about adapters was carried out. */
void iv_remote_take_adapter(iv_remote *r, const iv_journal_entry *command, const char *result);
/* The result of a command that has no entry: if it was to load an adapter again and failed, its requests end. */
void iv_remote_take_reloaded(iv_remote *r, uint64_t id, iv_status status, const char *message);
void iv_remote_send_all(iv_remote *r); /* adapters, then the journal in order, to a new process */

/* ---- records.c ---- */
iv_status iv_remote_take_info(iv_remote *r, const iv_frame *f, iv_error *err); /* of the first process */
void iv_remote_take_stats(iv_remote *r, const iv_frame *f);
/* Takes r->frame, encoded in raw. True: *out is an event for the server. */
bool iv_remote_take_record(iv_remote *r, const char *raw, size_t raw_bytes, iv_bridge_event *out);

/* synthesized.c. The descriptor is readable although the socket is not. */
void iv_remote_set_awake(iv_remote *r, bool awake);
/* Queues an event of e. */
void iv_remote_synthesize(iv_remote *r, iv_bridge_event_kind kind, const iv_journal_entry *e, iv_status status,
                          const char *message);
/* The first, which is valid until the next call of iv_remote_next; false: none. */
bool iv_remote_take_synthesized(iv_remote *r, iv_bridge_event *out);
/* Drops those of this id, as cancelled. */
void iv_remote_drop_synthesized(iv_remote *r, uint64_t id);

/* release.c: a command's tags: words separated by spaces; none: all. IV_INVALID names another word. */
iv_status iv_release_tags(const char *text, unsigned *tags, iv_error *err);
/* The weights that the next process will have, and what to do if it cannot open them. */
void iv_release_update(iv_release *release, char **weights, uint64_t *weight_version, const char *text);
void iv_release_settle(iv_release *release, char **weights, uint64_t *weight_version, bool opened);

/* Adds the counters, which never decrease, of an engine's life. */
void iv_release_add_counters(iv_engine_stats *sum, const iv_engine_stats *life);

#endif
