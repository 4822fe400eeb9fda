/* bridge.h: an engine on a thread of its own, and two bounded queues between it and the thread of the server: orders
 * one way, reports the other. Nothing else is shared; nobody waits.
 *
 * An order that finds the queue full is IV_BUSY at once. Reports are copies, taken on the server's thread after the
 * eventfd becomes readable; the engine's thread stops stepping while too many wait. */
#ifndef IV_SERVE_BRIDGE_H
#define IV_SERVE_BRIDGE_H

#include "base/status.h"

enum {
    IV_QUEUED_REQUESTS_MAX = 4096, /* what queued_requests_max may be; 0: 1024 */
    IV_STEP_BUCKETS = 17           /* of iv_bridge_stats.step_tokens */
};

typedef struct iv_bridge iv_bridge;

typedef struct iv_bridge_options {
    iv_engine_options engine;   /* strings must outlive the bridge */
    size_t queued_requests_max; /* submitted, not yet running, and more than the engine has free places for; more are
                                 * IV_BUSY. --max-queued-requests, 1024 */
    size_t events_max;          /* no step is begun while more wait to be taken; 0: 16384 */
} iv_bridge_options;

typedef enum iv_bridge_event_kind {
    IV_BRIDGE_EVENT_TOKEN, /* of the answer, or of the prompt: event->kind says */
    IV_BRIDGE_EVENT_DONE,
    IV_BRIDGE_EVENT_REFUSED, /* the engine did not take the request, or was lost: status and message; nothing follows */
    IV_BRIDGE_EVENT_COMMAND  /* what an order of iv_bridge_command came to: status and message */
} iv_bridge_event_kind;

/* One report. Pointers live until the next iv_bridge_next. */
typedef struct iv_bridge_event {
    iv_bridge_event_kind kind;
    void *owner; /* as given with the request or order */
    uint64_t id;
    const iv_event *event; /* TOKEN, DONE: a deep copy, without logits */
    uint64_t
        weight_version; /* of the weights that made it, or that an order left; those of iv_bridge_stats may be newer */
    const char *fingerprint;
    iv_status status;
    const char *message;
} iv_bridge_event;

typedef enum iv_command {
    IV_COMMAND_FLUSH, /* forget cached prefixes; IV_BUSY while requests run */
    IV_COMMAND_PAUSE, /* no further step until CONTINUE; running requests keep their state. A request that is cancelled
                       * meanwhile is silent at once, but holds its pages until all have been cancelled, or CONTINUE */
    IV_COMMAND_CONTINUE,
    IV_COMMAND_ABORT_ALL,
    IV_COMMAND_UPDATE_WEIGHTS /* `text`: a model directory: loaded and checked, then swapped between steps, when all
                               * requests before it have ended; those behind it wait. IV_BUSY while paused with requests
                               */
} iv_command;

/* A consistent look at the engine, as of its last step. */
typedef struct iv_bridge_stats {
    iv_engine_stats engine;
    size_t queued; /* orders not yet taken */
    size_t waiting_events;
    uint64_t cancelled;           /* requests whose end nobody heard, because of iv_bridge_cancel */
    bool paused, loading, failed; /* failed: the engine is lost; `why` says why */
    char why[1000];
    uint64_t weight_version; /* 0, and one more with each update */
    char fingerprint[128], weights_digest[65];
    uint64_t step_tokens[IV_STEP_BUCKETS]; /* steps that computed at most 1, 2, 4, ... tokens, and more than the last */
} iv_bridge_stats;

/* Opens the engine on the calling thread (it takes as long as loading takes), then starts its thread. *out is NULL
 * where this process was another rank of mpirun: it has then served rank 0 to the end. */
iv_status iv_bridge_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err);
/* Ends all requests and the thread. NULL is fine. */
void iv_bridge_close(iv_bridge *b);

int iv_bridge_fd(const iv_bridge *b);                       /* readable while reports wait */
const iv_engine_info *iv_bridge_info(const iv_bridge *b);   /* as opened; constant but for the fingerprint: see stats */
const iv_textual *iv_bridge_text_model(const iv_bridge *b); /* any thread */
/* iv_request_init of the engine: the model's own defaults. */
void iv_bridge_request_init(iv_bridge *b, iv_request *request);

/* As iv_engine_compile: any thread. The caller releases *out before the bridge is closed. */
iv_status iv_bridge_compile(iv_bridge *b, const iv_request *request, bool quick, iv_constraint **out, iv_error *err);

/* Copies the request deeply; *id names it from now on (request->id is not looked at). IV_BUSY when full, of
 * requests or of bytes. */
iv_status iv_bridge_submit(iv_bridge *b, const iv_request *request, void *owner, uint64_t *id, iv_error *err);
/* Its reports stop at once: what waits for this id is dropped, and nothing with its owner comes any more. Its memory is
 * free before the next step. An id that has ended is fine. On the server's thread. */
void iv_bridge_cancel(iv_bridge *b, uint64_t id);
/* Holds its request back, or lets it go on: as iv_engine_hold, before the next step. Reports may still come for what
 * was computed before. An id that has ended is fine. */
void iv_bridge_hold(iv_bridge *b, uint64_t id, bool hold);
iv_status iv_bridge_command(iv_bridge *b, iv_command command, const char *text, void *owner, iv_error *err);

/* Takes the oldest report; false when there is none. On the server's thread. */
bool iv_bridge_next(iv_bridge *b, iv_bridge_event *out);
void iv_bridge_get_stats(iv_bridge *b, iv_bridge_stats *stats);

#endif
