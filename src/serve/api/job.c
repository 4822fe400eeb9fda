/* aside.c: a job that knows whether somebody still waits for it. */
#include "serve/api/job.h"

static bool run(iv_job *job) {
    iv_api_job *a = (iv_api_job *)job;
    a->again = false;
    a->work(a);
    return !a->again;
}

static void done(iv_job *job, bool ran) {
    iv_api_job *a = (iv_api_job *)job;
    a->away = false;
    if (a->left) {
        a->drop(a);
        return;
    }
    IV_ASSERT(ran); /* the threads end after the last exchange */
    a->finished(a);
}

void iv_api_job_start(iv_api_job *a, bool at_once) {
    if (at_once || !a->server->jobs) {
        while (!run(&a->job)) continue;
        a->finished(a);
        return;
    }
    a->job = (iv_job){.run = run, .done = done};
    a->away = true;
    if (a->background)
        iv_jobs_submit_background(a->server->jobs, &a->job);
    else
        iv_jobs_submit(a->server->jobs, &a->job);
}

bool iv_api_job_abandon(iv_api_job *a) {
    if (!a->away) return true;
    a->left = true;
    if (!iv_jobs_withdraw(a->server->jobs, &a->job)) return false;
    a->away = false;
    return true;
}
