/* load_events.h: the event stream of /v1/completions as a client reads it: bytes -> a result. A pure function of bytes
 * and times.
 *
 * Invariant: what a result says does not depend on how the stream was cut into pieces, but for its times. */
#ifndef IV_SERVE_LOAD_EVENTS_H
#define IV_SERVE_LOAD_EVENTS_H

#include "base/buf.h"
#include "serve/load.h"

typedef struct iv_load_events {
    iv_buf bytes;    /* not yet an event; a limit holds */
    double last;     /* when the last tokens came */
    size_t gap_room; /* of result->gaps */
    bool finished;   /* [DONE] came */
} iv_load_events;

/* Everything anew but the buffer's memory and limit. */
void iv_load_events_begin(iv_load_events *e);
/* Takes n bytes at `now`, seconds after the request was sent. What is wrong becomes the result's error. */
void iv_load_events_feed(iv_load_events *e, iv_load_result *r, const void *bytes, size_t n, double now);

#endif
