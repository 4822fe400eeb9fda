/* aside.h: what one exchange asks for, worked on beside the loop: whatever takes longer the more a client sends.
 *
 * Invariant: while it is away, the loop touches nothing of its owner but this struct; and the work touches neither the
 * exchange nor what of the server changes. */
#ifndef IV_SERVE_API_JOB_H
#define IV_SERVE_API_JOB_H

#include "serve/server.h"
#include "base/jobs.h"

enum {
    IV_API_JOB_BYTES = 16 << 10,          /* bodies of so many are worked on at once: a millisecond or two */
    IV_API_JOB_BACKGROUND_BYTES = 1 << 20 /* longer ones in the background: some 10 milliseconds and more */
};

typedef struct iv_api_job iv_api_job;
struct iv_api_job {
    iv_job job; /* first */
    iv_server *server;
    bool pending, abandoned;
    bool background;                 /* its first turn, too, is in the background */
    bool again;                      /* set by `work`: it needs another turn, in the background (jobs.h) */
    void (*run)(iv_api_job *j);      /* on any thread */
    void (*finished)(iv_api_job *j); /* on the loop's, if nobody has left */
    void (*drop)(iv_api_job *j);     /* frees it, once it is back and somebody had left */
};

/* Does the work at once, or gives it away (iv_http_request_on_gone must have been called then, unless it waits for
 * nobody); `finished` ends it, perhaps inside. The owner may be gone behind this call. */
void iv_api_job_start(iv_api_job *j, bool at_once);
/* Its exchange has ended. True: the owner may free it now; false: `drop` will. */
bool iv_api_job_abandon(iv_api_job *j);

#endif
