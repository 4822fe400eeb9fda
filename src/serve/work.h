/* work.h: jobs that may take long, run on a few threads beside the loop's, and handed back to the loop's.
 *
 * Every job that is given and not withdrawn comes back by exactly one call of `done`, on the thread that gives: from
 * iv_work_take, or from iv_work_close for those that had no turn (ran is then false). */
#ifndef IV_SERVE_WORK_H
#define IV_SERVE_WORK_H

#include "base/status.h"

typedef struct iv_work iv_work;

typedef struct iv_work_job iv_work_job;
struct iv_work_job {
    void (*run)(iv_work_job *job);            /* on any thread */
    void (*done)(iv_work_job *job, bool ran); /* the job is then its owner's again */
    iv_work_job *next;                        /* of work.c */
};

iv_status iv_work_open(size_t threads, iv_work **out, iv_error *err);
/* Waits for what runs. NULL is fine. */
void iv_work_close(iv_work *w);
int iv_work_fd(const iv_work *w); /* an eventfd: readable while jobs wait to be taken */

/* In the order given. Without threads (w NULL) the job runs and is done at once. */
void iv_work_give(iv_work *w, iv_work_job *job);
void iv_work_take(iv_work *w);
/* Takes back a job that has not begun: false if it runs or ran, and so will be done. */
bool iv_work_withdraw(iv_work *w, iv_work_job *job);

#endif
