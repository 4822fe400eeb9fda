/* bridge.h: an engine on its own thread, and two bounded queues between it and the server's thread: commands one
 * way, events the other. Nothing else is shared, and neither thread blocks on the other.
 *
 * With `process` the engine and its thread are in another process (child.c), which this one starts. When that
 * process ends or hangs, another is started, and every request continues in it with the bits of a run that was not
 * interrupted (remote.c).
 *
 * A command that finds the queue full fails with IV_BUSY. Events are copies, taken on the server's thread when the
 * eventfd is readable. The engine's thread stops stepping while too many events are queued. */
#ifndef IV_SERVE_ENGINE_BRIDGE_H
#define IV_SERVE_ENGINE_BRIDGE_H

#include "invar.h"
#include "serve/engine/adapter_list.h"

#include <sys/types.h>

enum {
    IV_QUEUED_REQUESTS_MAX = 4096, /* upper bound of queued_requests_max; 0: 1024 */
    IV_STEP_BUCKETS = 17,          /* of iv_bridge_stats.step_tokens */
    IV_ENGINE_STEP_TIMEOUTS = 60
};

typedef struct iv_bridge iv_bridge;

typedef struct iv_bridge_options {
    iv_engine_options engine;   /* strings must outlive the bridge */
    size_t queued_requests_max; /* requests submitted but not running, beyond the engine's free sequences; more are
                                   IV_BUSY. --max-queued-requests, 1024 */
    size_t events_max;          /* no step begins while more events are queued; 0: 16384 */
    bool process;               /* the engine is in another process: this program, executed again */
    size_t engine_restarts;     /* with it: within ten minutes; then the engine is lost */
    uint32_t engine_timeout_ms; /* with it: silence after which it is killed. A step, or a load that reads nothing, may
                                   take IV_ENGINE_STEP_TIMEOUTS times as long. 0: 10 s */
    void (*note)(void *user, const char *level, const char *message); /* with it: lines for the log; may be NULL */
    void *note_user;
} iv_bridge_options;

typedef enum iv_bridge_event_kind {
    IV_BRIDGE_EVENT_TOKEN, /* of the answer or of the prompt: see event->kind */
    IV_BRIDGE_EVENT_DONE,
    IV_BRIDGE_EVENT_REFUSED, /* the engine refused the request or was lost: status and message; no event follows */
    IV_BRIDGE_EVENT_COMMAND  /* result of iv_bridge_command: status and message, which may be long */
} iv_bridge_event_kind;

/* One event. Pointers are valid until the next iv_bridge_next. */
typedef struct iv_bridge_event {
    iv_bridge_event_kind kind;
    void *owner; /* as given with the request or command */
    uint64_t id;
    const iv_event *event;           /* TOKEN, DONE: a deep copy, without logits */
    const iv_event_details *details; /* of it */
    uint64_t weight_version; /* of the weights that made it, or that a command loaded; those of iv_bridge_stats may be
                                newer */
    const char *fingerprint; /* of the engine */
    const char *adapter;     /* TOKEN, DONE: digest of the adapter that made it; NULL: the base alone */
    iv_status status;
    const char *message;
} iv_bridge_event;

typedef enum iv_command {
    IV_COMMAND_FLUSH, /* drop cached prefixes; IV_BUSY while requests run */
    IV_COMMAND_PAUSE, /* no further step until CONTINUE; running requests keep their state. A request cancelled
                         meanwhile sends no more events, but holds its pages until all are cancelled, or CONTINUE */
    IV_COMMAND_CONTINUE,
    IV_COMMAND_ABORT_ALL,
    IV_COMMAND_UPDATE_WEIGHTS, /* `text`: a model directory, loaded and checked, then swapped between steps once all
                                  earlier requests have ended; later ones wait. IV_BUSY while paused with requests.
                                  "sha256:HEX DIRECTORY": refused with another digest of the weights */
    IV_COMMAND_CHECK_WEIGHTS,  /* result: iv_engine_check_weights' digest, a space, and its JSON. IV_BUSY with requests
                                */
    IV_COMMAND_PROFILE_START,  /* `text`: JSON, as in profile.h. A later process records nothing of it */
    IV_COMMAND_PROFILE_STOP,   /* result: the file */
    IV_COMMAND_RELEASE, /* `text`: of "weights", "kv_cache", separated by spaces. The engine process ends, which frees
                           both; IV_BUSY with requests, IV_UNSUPPORTED without a process. Requests are IV_NO_MEMORY
                           until ... */
    IV_COMMAND_RESUME,  /* ... each released tag is resumed; then another process starts with the latest weights. An
                           update  of weights meanwhile is carried out then; if it fails, so does this, and the earlier
                           are kept */
    IV_COMMAND_LOAD_ADAPTER, /* `text`: iv_adapter_command. In order with requests: later ones may name it. Result: see
                                iv_adapter_result_read */
    IV_COMMAND_UNLOAD_ADAPTER, /* `text`: its name. Earlier requests end with it. Updates of weights leave adapters as
                                  they are, and so do restarts and releases of the engine process */
    IV_COMMAND_KINDS
} iv_command;

/* A consistent snapshot of the engine after its last step. */
typedef struct iv_bridge_stats {
    iv_engine_stats engine;
    size_t queued; /* requests and commands not yet taken by the engine */
    size_t waiting_events;
    uint64_t cancelled;           /* requests ended by iv_bridge_cancel, without a last event */
    bool paused, loading, failed; /* failed: the engine is lost; `why`: the reason */
    char why[1000];
    uint64_t weight_version; /* 0, incremented by each update */
    char fingerprint[128], weights_digest[65];
    uint64_t step_tokens[IV_STEP_BUCKETS]; /* steps that computed at most 1, 2, 4, ... tokens; the last bucket: more */
    bool away;                             /* the engine process is being restarted, or ... */
    bool released;                         /* ... has ended by IV_COMMAND_RELEASE */
    pid_t engine_pid;                      /* 0: the engine is in this process, or away */
    uint64_t restarts, continued;          /* of the engine process; requests that continued in a later one */
} iv_bridge_stats;

/* Opens the engine on the calling thread, which blocks while the model loads, then starts the engine's thread. *out
 * is NULL if this process is another rank of mpirun; it has then served rank 0 to the end. */
iv_status iv_bridge_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err);
/* Ends all requests and the thread. NULL is fine. */
void iv_bridge_close(iv_bridge *b);

int iv_bridge_fd(const iv_bridge *b); /* readable while events are queued, and perhaps at other times */
const iv_engine_info *iv_bridge_info(const iv_bridge *b); /* as opened; only the fingerprint may change: see stats */
const iv_text_model *iv_bridge_text_model(const iv_bridge *b); /* any thread */
/* iv_request_init of the engine: the model's own defaults. */
void iv_bridge_request_init(iv_bridge *b, iv_request *request);

/* The adapters that requests may name; read by any thread. */
iv_adapter_list *iv_bridge_adapters(iv_bridge *b);

/* As iv_engine_compile or iv_text_model_compile: any thread. The caller releases *out before the bridge is closed. */
iv_status iv_bridge_compile(iv_bridge *b, const iv_request *request, bool quick, iv_constraint **out, iv_error *err);

/* Deep-copies the request. *id identifies it from now on (request->id is ignored). IV_BUSY if the queue is full, of
 * requests or of bytes. */
iv_status iv_bridge_submit(iv_bridge *b, const iv_request *request, void *owner, uint64_t *id, iv_error *err);
/* Drops queued events of this id and sends no more. Its memory is freed before the next step. Ended ids are ignored.
 * Server's thread only. */
void iv_bridge_cancel(iv_bridge *b, uint64_t id);
/* Holds the request, or releases it, before the next step (iv_engine_hold). Events of tokens computed earlier may
 * still come. Ended ids are ignored. */
void iv_bridge_hold(iv_bridge *b, uint64_t id, bool hold);
iv_status iv_bridge_command(iv_bridge *b, iv_command command, const char *text, void *owner, iv_error *err);

/* Another queued_requests_max, of 1 to IV_QUEUED_REQUESTS_MAX, for requests from now on. */
void iv_bridge_limit_queue(iv_bridge *b, size_t queued_requests_max);

/* Takes the oldest event; false if the queue is empty. Server's thread only. */
bool iv_bridge_next(iv_bridge *b, iv_bridge_event *out);
void iv_bridge_get_stats(iv_bridge *b, iv_bridge_stats *stats);

#endif
