/* updates.h: updates of weights, one after another, on a thread of their own: they read large memory, and wait for a
 * trainer. The engine loads a complete set (weights/series.h). */
#ifndef IV_SERVE_API_UPDATES_H
#define IV_SERVE_API_UPDATES_H

#include "serve/state/state.h"

typedef struct iv_updates iv_updates;

iv_status iv_updates_open(iv_server *s, iv_updates **out, iv_error *err);
/* After the HTTP server and before the bridge is closed. NULL is fine. */
void iv_updates_close(iv_updates *u);
int iv_updates_fd(const iv_updates *u); /* readable while the thread has finished an update */
void iv_updates_collect(iv_updates *u);

/* IV_BUSY: an update is in work; IV_INVALID, which names the first missing tensor: one is incomplete, and is dropped.
 */
iv_status iv_updates_check_whole(iv_updates *u, iv_error *err);
/* The engine did not open with the weights of the last update. */
void iv_updates_revert(iv_updates *u);

#endif
