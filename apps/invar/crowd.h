/* crowd.h: many requests through one engine, so many at once, submitted in order. */
#ifndef INVAR_CLI_CROWD_H
#define INVAR_CLI_CROWD_H

#include "flags.h"

/* Each returns CLI_OK to go on; anything else ends the run with that code and err filled. */
typedef struct cli_crowd {
    iv_engine *engine;
    size_t jobs, most; /* most: requests in the engine at the same time, 1 or more */
    void *user;
    /* Fills the request of a job; it is copied before the next call. */
    int (*request)(void *user, size_t job, iv_request *request, iv_error *err);
    /* The engine refused the request: the job has ended. NULL: that ends the run. */
    int (*refused)(void *user, size_t job, const iv_error *why);
    int (*event)(void *user, size_t job, const iv_event *event, iv_error *err);
    /* Behind every step, with the jobs that have ended. May be NULL. */
    int (*turn)(void *user, size_t ended, iv_error *err);
} cli_crowd;

/* Runs every job to its last event. SIGINT, SIGTERM and SIGHUP end it
 * between steps with 128 + n. When it did not return CLI_OK, requests may still be in the engine, which is then fit
 * for closing only. Job i has the request id i + 1. */
int cli_crowd_run(const cli_crowd *crowd, iv_error *err);

#endif
