/* local_state.h: state shared by the server's thread and the engine's in one process. Internal to the bridge.
 *
 * One mutex guards all members below it in iv_local; nothing is computed, copied or freed in bulk while it is held.
 * An in-flight entry lives from the submission of a request until its last event is taken or dropped. It counts its
 * references: the queue or the engine (one), the cancel and hold lists (one each), and each queued event. */
#ifndef IV_SERVE_ENGINE_LOCAL_STATE_H
#define IV_SERVE_ENGINE_LOCAL_STATE_H

#include "serve/engine/calls.h"
#include "serve/engine/profile.h"

#include <pthread.h>

enum {
    IV_BRIDGE_TAKE_MAX = 64,         /* submissions passed to the engine between two steps ... */
    IV_BRIDGE_TAKE_BYTES = 64 << 10, /* ... at most, or until they hold this much text */
    IV_BRIDGE_COMMANDS_MAX = 64,     /* queued commands */
    IV_BRIDGE_QUEUED_BYTES_MAX =
        256 << 20, /* total size of queued prompts; a single one may be larger: each choice has a copy */
    IV_BRIDGE_COMMAND_BYTES_MAX = 4096,
    IV_BRIDGE_EVENTS = 16384,             /* no step begins while more events are queued ... */
    IV_BRIDGE_EVENT_BYTES_MAX = 64 << 20, /* ... or while they hold more than this */
    IV_BRIDGE_BUCKETS = 4096              /* of the table of entries, a power of two */
};

typedef enum iv_inflight_state {
    IV_INFLIGHT_QUEUED, /* not yet passed to the engine */
    IV_INFLIGHT_ENGINE, /* waiting or running in the engine */
    IV_INFLIGHT_ENDED   /* its last event is queued or was dropped */
} iv_inflight_state;

/* A request, or a command (no id, not in the table, freed by the engine's thread). */
typedef struct iv_inflight {
    struct iv_inflight *previous, *next; /* in the queue */
    struct iv_inflight *bucket_next, *cancel_next, *hold_next;
    uint64_t id;
    void *owner;
    size_t references;
    iv_inflight_state state;
    bool cancelled;                   /* by its owner: no more events */
    bool held, hold_listed;           /* held: requested state; hold_listed: in the list for the engine's thread */
    bool engine_cancelled;            /* engine's thread only: passed to iv_engine_cancel */
    struct iv_queued_event *reserved; /* preallocated last event, so that it needs no memory */
    iv_request *request;              /* deep copy, until the engine has it; NULL: a command */
    size_t bytes;                     /* of its prompt */
    iv_command command;
    char adapter[IV_ADAPTER_DIGEST_BYTES]; /* digest of the one that the engine has for it; "": none */
    char text[];                           /* of a command */
} iv_inflight;

/* One event, and after it the data of its pointers. */
typedef struct iv_queued_event {
    struct iv_queued_event *next;
    iv_inflight *inflight; /* NULL: of a command */
    iv_bridge_event head;
    iv_event event;
    iv_event_details details;
    char fingerprint[128];
    size_t bytes;
    char data[];
} iv_queued_event;

typedef struct iv_event_queue {
    iv_queued_event *first, *last;
    size_t count, bytes;
} iv_event_queue;

typedef struct iv_local {
    iv_bridge bridge; /* first */

    /* Constant once open. */
    size_t queued_max, events_max;
    int fd;
    const iv_text_model *text_model;
    iv_engine_info info; /* strings in `names` */
    char *names;

    /* The engine's thread alone. */
    iv_engine *engine;
    pthread_t thread;
    bool started;
    size_t active;              /* requests that wait or run in the engine */
    size_t held;                /* of them: held by their owners */
    size_t cancels;             /* of them: cancelled, released by the next step */
    iv_event_queue unpublished; /* events not yet visible to the server */
    bool lost;
    iv_error why; /* once lost */
    uint64_t steps_seen, tokens_seen;
    iv_bridge_profile profile;

    /* The server's thread alone. */
    iv_queued_event *taken;

    pthread_mutex_t mutex;
    pthread_cond_t wake; /* wakes the engine's thread */
    bool stop, awaits_space;
    iv_inflight *first, *last; /* the queue */
    size_t queued_requests, queued_commands, queued_bytes;
    iv_inflight *cancel_first, *hold_first;
    iv_inflight *buckets[IV_BRIDGE_BUCKETS];
    uint64_t next_id;
    iv_event_queue events;
    iv_request defaults;
    iv_bridge_stats stats;
} iv_local;

/* ---- inflight.c
 * Deep copies, each one block for free(); NULL: no memory. */
iv_request *iv_bridge_copy_request(const iv_request *r);
/* Copies an event of the engine; the caller sets `inflight`. */
iv_queued_event *iv_queued_event_copy(const iv_event *e, const iv_event_details *details);
/* An event without an engine event, with room for any message. */
iv_queued_event *iv_queued_event_blank(void);
iv_queued_event *iv_queued_event_long(size_t message_bytes); /* with room for this message */
void iv_queued_event_fill(iv_queued_event *v, iv_bridge_event_kind kind, iv_status status, const char *message);

/* Copies the strings of *info, which may change with the weights, into one block for free(). */
iv_status iv_bridge_keep_strings(iv_engine_info *info, char **block, iv_error *err);

/* Entries and lists, with the mutex held. */
iv_inflight *iv_inflight_find(const iv_local *b, uint64_t id);
void iv_inflight_enter(iv_local *b, iv_inflight *f); /* into the table */
void iv_inflight_queue(iv_local *b, iv_inflight *f);
void iv_inflight_unqueue(iv_local *b, iv_inflight *f);
void iv_inflight_release(iv_local *b, iv_inflight *f);   /* the last reference frees it */
void iv_inflight_list_hold(iv_local *b, iv_inflight *f); /* the engine's thread applies `held` */
/* These two also without the mutex. */
void iv_inflight_free(iv_inflight *f);
void iv_inflight_free_request(iv_inflight *f);
void iv_event_queue_append(iv_event_queue *list, iv_queued_event *r);
iv_queued_event *iv_event_queue_take(iv_event_queue *list);

/* ---- local_engine.c */
void *iv_local_run_engine(void *local); /* the engine's thread */
/* Updates what may change with the weights: fingerprint, defaults. With the mutex held, or before the thread runs. */
void iv_local_note_identity(iv_local *b);

#endif
