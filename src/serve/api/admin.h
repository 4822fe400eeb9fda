/* admin.h: orders to the engine, and the exchanges that wait for what came of them. */
#ifndef IV_SERVE_API_ADMIN_H
#define IV_SERVE_API_ADMIN_H

#include "serve/server.h"

/* A report of kind IV_BRIDGE_EVENT_COMMAND. */
void iv_admin_take_event(iv_server *s, const iv_bridge_event *report);

/* When no report can come any more: forgets the orders that still waited for one. Their exchanges are gone. */
void iv_admin_close(iv_server *s);

#endif
