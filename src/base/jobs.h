/* jobs.h: a worker pool for work that may take long; results return to the submitting thread.
 *
 * The first turn of a job runs on a thread of normal priority. A job that needs more turns moves to one background
 * thread of low priority, where such jobs alternate: long jobs delay neither short jobs nor the rest of the process.
 *
 * Every job that is submitted and not withdrawn ends with exactly one call of `done` on the submitting thread: from
 * iv_jobs_collect, or from iv_jobs_close for unfinished jobs (ran is then false). */
#ifndef IV_BASE_JOBS_H
#define IV_BASE_JOBS_H

#include "base/status.h"

typedef struct iv_jobs iv_jobs;

typedef struct iv_job iv_job;
struct iv_job {
    bool (*run)(iv_job *job);            /* one turn, on any thread; false: the job needs another turn */
    void (*done)(iv_job *job, bool ran); /* ownership returns to the submitter */
    iv_job *next;                        /* of jobs.c */
};

/* threads: of normal priority, 1 to 64; one background thread is added. */
iv_status iv_jobs_open(size_t threads, iv_jobs **out, iv_error *err);
/* Waits for running turns. NULL is allowed. */
void iv_jobs_close(iv_jobs *j);
int iv_jobs_fd(const iv_jobs *j); /* an eventfd: readable while finished jobs are pending */

/* In order of submission. Without threads (j NULL) the job runs to its end and is done at once. */
void iv_jobs_submit(iv_jobs *j, iv_job *job);
/* For a job known to be long: its first turn too runs in the background. */
void iv_jobs_submit_background(iv_jobs *j, iv_job *job);
void iv_jobs_collect(iv_jobs *j);
/* Waits until a finished job is pending, at most ms. */
void iv_jobs_wait(iv_jobs *j, uint32_t ms);
/* Withdraws a job that is in no thread. False if its turn runs or it has finished; `done` will then be called. */
bool iv_jobs_withdraw(iv_jobs *j, iv_job *job);

#endif
