/* job.c: the state of a job and of its owner. */
#include "serve/api/job.h"

static bool run(iv_job *job) {
    iv_api_job *j = (iv_api_job *)job;
    j->again = false;
    j->run(j);
    return !j->again;
}

static void done(iv_job *job, bool ran) {
    iv_api_job *j = (iv_api_job *)job;
    j->pending = false;
    if (j->abandoned) {
        j->drop(j);
        return;
    }
    IV_ASSERT(ran); /* the pool is closed after the last request */
    j->finished(j);
}

void iv_api_job_start(iv_api_job *j, bool at_once) {
    if (at_once || !j->server->jobs) {
        while (!run(&j->job)) continue;
        j->finished(j);
        return;
    }
    j->job = (iv_job){.run = run, .done = done};
    j->pending = true;
    if (j->background)
        iv_jobs_submit_background(j->server->jobs, &j->job);
    else
        iv_jobs_submit(j->server->jobs, &j->job);
}

bool iv_api_job_abandon(iv_api_job *j) {
    if (!j->pending) return true;
    j->abandoned = true;
    if (!iv_jobs_withdraw(j->server->jobs, &j->job)) return false;
    j->pending = false;
    return true;
}
