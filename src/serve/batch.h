/* batch.h: a file of requests, answered by the server's own handlers without a server: `invar batch`.
 *
 * Invariant: the output is always the answers to the first lines of the input, in order, each a whole line but perhaps
 * the last. So it says itself where an interrupted run goes on. What is wrong with a line is that line's answer. */
#ifndef IV_SERVE_BATCH_H
#define IV_SERVE_BATCH_H

#include "serve/bridge.h"

typedef struct iv_batch_options {
    iv_bridge_options bridge;
    const char *served_model_name; /* NULL: the model's directory name */
    const char *tool_call_parser;  /* as in server.h */
    const char *input,
        *output; /* paths of regular files; the output is made if it is not there. "-": the standard ones */
    /* Both may be NULL. Called often, on the calling thread. */
    void (*progress)(void *user, size_t done, size_t total); /* lines with an answer */
    bool (*stop)(void *user);                                /* true: end now; what is written stays */
    void *user;
} iv_batch_options;

typedef struct iv_batch_counts {
    size_t lines;             /* of the input, blank ones left out */
    size_t kept;              /* were answered before */
    size_t answered, refused; /* now: with status 200, and with another */
    bool stopped;
    bool index_unread; /* as iv_engine_info */
    bool other_rank;   /* this process served rank 0 to the end; nothing else is meant */
} iv_batch_counts;

/* IV_OK: every line has its answer, unless counts say otherwise. Else what was answered before is in the output. */
iv_status iv_batch_run(const iv_batch_options *o, iv_batch_counts *counts, iv_error *err);

#endif
