/* server.h: the server made of http, bridge and api: `invar serve`. */
#ifndef IV_SERVE_SERVER_H
#define IV_SERVE_SERVER_H

#include "serve/api/messages.h"
#include "serve/engine/child.h"
#include "serve/state/state.h"

void iv_server_options_init(iv_server_options *o);
/* Runs until it is drained after SIGTERM or SIGINT (IV_OK), or the engine is lost. */
iv_status iv_server_run(const iv_server_options *o, iv_error *err);

#endif
