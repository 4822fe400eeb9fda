/* job.h: work of one HTTP request on the worker pool: everything whose cost the client controls.
 *
 * Invariant: while a job is pending, the loop touches only this struct of its owner, and the job touches neither the
 * HTTP request nor mutable state of the server. */
#ifndef IV_SERVE_API_JOB_H
#define IV_SERVE_API_JOB_H

#include "base/jobs.h"
#include "serve/state/state.h"

enum {
    IV_API_JOB_BYTES = 16 << 10,          /* smaller bodies are handled on the loop: one or two milliseconds */
    IV_API_JOB_BACKGROUND_BYTES = 1 << 20 /* larger ones run in the background: 10 milliseconds and more */
};

typedef struct iv_api_job iv_api_job;
struct iv_api_job {
    iv_job job; /* first */
    iv_server *server;
    bool pending, abandoned;
    bool background;                 /* also run its first turn in the background */
    bool again;                      /* set by `run`: needs another turn, in the background (jobs.h) */
    void (*run)(iv_api_job *j);      /* on any thread */
    void (*finished)(iv_api_job *j); /* on the loop's thread, unless abandoned */
    void (*drop)(iv_api_job *j);     /* frees an abandoned job once it has run */
};

/* Runs the job here, or gives it to the pool (after iv_http_request_on_gone, unless the client does not matter).
 * `finished` completes it, perhaps inside this call, which may free the owner. */
void iv_api_job_start(iv_api_job *j, bool at_once);
/* The HTTP request has ended. True: the owner may free the job now; false: `drop` will be called. */
bool iv_api_job_abandon(iv_api_job *j);

#endif
