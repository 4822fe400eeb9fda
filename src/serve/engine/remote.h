/* remote.h: the calls of bridge.h for an engine in another process. Internal to the bridge. */
#ifndef IV_SERVE_ENGINE_REMOTE_H
#define IV_SERVE_ENGINE_REMOTE_H

#include "serve/engine/bridge.h"

typedef struct iv_remote iv_remote;

/* Starts the process and blocks until its engine is open. */
iv_status iv_remote_open(const iv_bridge_options *o, iv_remote **out, iv_error *err);
void iv_remote_close(iv_remote *r); /* NULL is fine */

int iv_remote_fd(const iv_remote *r);
const iv_engine_info *iv_remote_info(const iv_remote *r);
const iv_text_model *iv_remote_text_model(const iv_remote *r);
void iv_remote_request_init(const iv_remote *r, iv_request *request);
iv_status iv_remote_compile(iv_remote *r, const iv_request *request, bool quick, iv_constraint **out, iv_error *err);
iv_status iv_remote_submit(iv_remote *r, const iv_request *request, void *owner, uint64_t *id, iv_error *err);
void iv_remote_cancel(iv_remote *r, uint64_t id);
void iv_remote_hold(iv_remote *r, uint64_t id, bool hold);
iv_status iv_remote_command(iv_remote *r, iv_command command, const char *text, void *owner, iv_error *err);
bool iv_remote_next(iv_remote *r, iv_bridge_event *out);
void iv_remote_limit_queue(iv_remote *r, size_t queued_requests_max);
void iv_remote_get_stats(const iv_remote *r, iv_bridge_stats *stats);

#endif
