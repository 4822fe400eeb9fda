/* bridge_state.h: what the two threads of a bridge share, and the rules for it. Inside the bridge only.
 *
 * One mutex guards everything below it in iv_bridge; nothing is computed, copied or freed in bulk while it is held. A
 * inflight stands for one request from its submission until its last report was taken or dropped. It counts who points
 * at it: the queue or the engine (one), the lists of cancellations and of holds (one each), and each report that
 * waits. */
#ifndef IV_SERVE_BRIDGE_STATE_H
#define IV_SERVE_BRIDGE_STATE_H

#include "serve/bridge.h"

#include <pthread.h>

enum {
    IV_BRIDGE_TAKE_MAX = 64,                /* submissions handed to the engine between two steps ... */
    IV_BRIDGE_TAKE_BYTES = 64 << 10,        /* ... and no more once they had so much text */
    IV_BRIDGE_COMMANDS_MAX = 64,            /* orders that wait */
    IV_BRIDGE_QUEUED_BYTES_MAX = 256 << 20, /* prompts that wait, but one may be larger: each choice has its copy */
    IV_BRIDGE_COMMAND_BYTES_MAX = 4096,
    IV_BRIDGE_EVENTS = 16384,             /* no step is begun while more wait ... */
    IV_BRIDGE_EVENT_BYTES_MAX = 64 << 20, /* ... or hold more than this */
    IV_BRIDGE_BUCKETS = 4096              /* of the table of tickets, a power of two */
};

typedef enum iv_inflight_state {
    IV_INFLIGHT_QUEUED, /* the engine has not seen it */
    IV_INFLIGHT_ENGINE, /* waits or runs there */
    IV_INFLIGHT_ENDED   /* its last report waits, or was dropped */
} iv_inflight_state;

/* A request, or an order (no id, not in the table, freed by the engine's thread). */
typedef struct iv_inflight {
    struct iv_inflight *previous, *next; /* in the queue */
    struct iv_inflight *bucket_next, *cancel_next, *hold_next;
    uint64_t id;
    void *owner;
    size_t references;
    iv_inflight_state state;
    bool cancelled;                   /* by its owner, who wants to hear no more */
    bool held, hold_listed;           /* as its owner wants it; the engine's thread is to see that */
    bool engine_cancelled;            /* the engine's thread alone: the engine was told */
    struct iv_queued_event *reserved; /* set aside to say the end, so that a lack of memory cannot hide it */
    iv_request *request;              /* a deep copy, until the engine has it; NULL: an order */
    size_t bytes;                     /* of its prompt */
    iv_command command;
    char text[]; /* of an order */
} iv_inflight;

/* One report and, behind it, what its pointers point to. */
typedef struct iv_queued_event {
    struct iv_queued_event *next;
    iv_inflight *inflight; /* NULL: of an order */
    iv_bridge_event head;
    iv_event event;
    char fingerprint[128];
    size_t bytes;
    char data[];
} iv_queued_event;

typedef struct iv_event_queue {
    iv_queued_event *first, *last;
    size_t count, bytes;
} iv_event_queue;

struct iv_bridge {
    /* Constant once open. */
    size_t queued_max, events_max;
    int fd;
    const iv_textual *textual;
    iv_engine_info info; /* strings in `names` */
    char *names;

    /* The engine's thread alone. */
    iv_engine *engine;
    pthread_t thread;
    bool started;
    size_t active;              /* requests that wait or run in the engine */
    size_t held;                /* of them: by their owners */
    size_t cancels;             /* of them: cancelled, and gone with the next step */
    iv_event_queue unpublished; /* not yet where the server can see them */
    bool lost;
    iv_error why; /* once lost */
    uint64_t steps_seen, tokens_seen;

    /* The server's thread alone. */
    iv_queued_event *taken;

    pthread_mutex_t mutex;
    pthread_cond_t wake; /* of the engine's thread */
    bool stop, awaits_room;
    iv_inflight *first, *last; /* the queue */
    size_t queued_requests, queued_commands, queued_bytes;
    iv_inflight *cancel_first, *hold_first;
    iv_inflight *buckets[IV_BRIDGE_BUCKETS];
    uint64_t next_id;
    iv_event_queue events;
    iv_request defaults;
    iv_bridge_stats stats;
};

/* ---- bridge_inflight.c
 * Deep copies, each one block for free(); NULL: no memory. */
iv_request *iv_bridge_copy_request(const iv_request *r);
/* An event's report; the inflight is filled in by the caller. */
iv_queued_event *iv_queued_event_copy(const iv_event *e);
/* A report without an event, with room for any message. */
iv_queued_event *iv_queued_event_blank(void);
void iv_queued_event_fill(iv_queued_event *v, iv_bridge_event_kind kind, iv_status status, const char *message);

/* Entries and lists, with the mutex held. */
iv_inflight *iv_inflight_find(const iv_bridge *b, uint64_t id);
void iv_inflight_enter(iv_bridge *b, iv_inflight *f); /* into the table */
void iv_inflight_queue(iv_bridge *b, iv_inflight *f);
void iv_inflight_unqueue(iv_bridge *b, iv_inflight *f);
void iv_inflight_release(iv_bridge *b, iv_inflight *f);   /* the last one frees it */
void iv_inflight_list_hold(iv_bridge *b, iv_inflight *f); /* the engine's thread is to see whether it is held */
/* These two without the mutex, too. */
void iv_inflight_free(iv_inflight *f);
void iv_inflight_free_request(iv_inflight *f);
void iv_event_queue_append(iv_event_queue *list, iv_queued_event *r);
iv_queued_event *iv_event_queue_take(iv_event_queue *list);

/* ---- bridge_engine.c */
void *iv_bridge_run_engine(void *bridge); /* the engine's thread */
/* What may change with the weights: fingerprint, defaults. With the mutex held, or before the thread runs. */
void iv_bridge_note_identity(iv_bridge *b);

#endif
