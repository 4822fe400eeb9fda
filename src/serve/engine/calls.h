/* calls.h: the calls of bridge.h as a table. A bridge is one of two structs that begin with iv_bridge: the engine's
 * thread in this process (local.c), or an engine in another process (remote.c). Internal to the bridge. */
#ifndef IV_SERVE_ENGINE_CALLS_H
#define IV_SERVE_ENGINE_CALLS_H

#include "serve/engine/bridge.h"

typedef struct iv_bridge_calls {
    void (*close)(iv_bridge *b);
    int (*fd)(const iv_bridge *b);
    const iv_engine_info *(*info)(const iv_bridge *b);
    const iv_text_model *(*text_model)(const iv_bridge *b);
    void (*request_init)(iv_bridge *b, iv_request *request);
    iv_status (*compile)(iv_bridge *b, const iv_request *request, bool quick, iv_constraint **out, iv_error *err);
    iv_status (*submit)(iv_bridge *b, const iv_request *request, void *owner, uint64_t *id, iv_error *err);
    void (*cancel)(iv_bridge *b, uint64_t id);
    void (*hold)(iv_bridge *b, uint64_t id, bool hold);
    iv_status (*command)(iv_bridge *b, iv_command command, const char *text, void *owner, iv_error *err);
    void (*limit_queue)(iv_bridge *b, size_t queued_requests_max);
    bool (*next)(iv_bridge *b, iv_bridge_event *out);
    void (*get_stats)(iv_bridge *b, iv_bridge_stats *stats);
} iv_bridge_calls;

struct iv_bridge {
    const iv_bridge_calls *calls;
    iv_adapter_list adapters; /* changed by the thread of the engine's, or of the process's, results */
};

/* iv_bridge_open's. */
iv_status iv_local_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err);
/* Starts the process and blocks until its engine is open. */
iv_status iv_remote_open(const iv_bridge_options *o, iv_bridge **out, iv_error *err);

#endif
