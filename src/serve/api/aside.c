/* aside.c: a job that knows whether somebody still waits for it. */
#include "serve/api/aside.h"

static void run(iv_work_job *job) {
    iv_aside *a = (iv_aside *)job;
    a->work(a);
}

static void done(iv_work_job *job, bool ran) {
    iv_aside *a = (iv_aside *)job;
    a->away = false;
    if (a->left) {
        a->drop(a);
        return;
    }
    IV_ASSERT(ran); /* the threads end after the last exchange */
    a->finished(a);
}

void iv_aside_do(iv_aside *a, bool at_once) {
    if (at_once || !a->server->work) {
        a->work(a);
        a->finished(a);
        return;
    }
    a->job = (iv_work_job){.run = run, .done = done};
    a->away = true;
    iv_work_give(a->server->work, &a->job);
}

bool iv_aside_leave(iv_aside *a) {
    if (!a->away) return true;
    a->left = true;
    if (!iv_work_withdraw(a->server->work, &a->job)) return false;
    a->away = false;
    return true;
}
