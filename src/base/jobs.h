/* jobs.h: a worker pool for work that may take long; results come back to the thread that gave it.
 *
 * Each job's first turn runs on a thread of normal priority. A job that needs more goes to one background thread of
 * low priority, where such jobs take turns: long work delays neither short work nor the rest of the process.
 *
 * Every job that is given and not withdrawn comes back by exactly one call of `done`, on the thread that gives: from
 * iv_jobs_take, or from iv_jobs_close for those that were not finished (ran is then false). */
#ifndef IV_BASE_JOBS_H
#define IV_BASE_JOBS_H

#include "base/status.h"

typedef struct iv_jobs iv_jobs;

typedef struct iv_job iv_job;
struct iv_job {
    bool (*run)(iv_job *job);            /* one turn, on any thread; false: it needs another one */
    void (*done)(iv_job *job, bool ran); /* the job is then its owner's again */
    iv_job *next;                        /* of jobs.c */
};

/* threads: of normal priority, 1 to 64; the background thread is one more. */
iv_status iv_jobs_open(size_t threads, iv_jobs **out, iv_error *err);
/* Waits for the turns that run. NULL is fine. */
void iv_jobs_close(iv_jobs *j);
int iv_jobs_fd(const iv_jobs *j); /* an eventfd: readable while finished jobs wait to be taken */

/* In the order given. Without threads (j NULL) the job runs to its end and is done at once. */
void iv_jobs_give(iv_jobs *j, iv_job *job);
/* Of a job whose earlier ones were long: its first turn too is in the background. */
void iv_jobs_give_background(iv_jobs *j, iv_job *job);
void iv_jobs_take(iv_jobs *j);
/* Waits until a finished job can be taken, or so long. */
void iv_jobs_wait(iv_jobs *j, uint32_t ms);
/* Takes back a job that no thread has: false if its turn runs, or it has finished, and so will be done. */
bool iv_jobs_withdraw(iv_jobs *j, iv_job *job);

#endif
