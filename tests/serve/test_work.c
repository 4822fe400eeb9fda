/* Jobs on other threads: each comes back once, on the thread that gave it. */
#include "serve/work.h"
#include "support.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { JOBS = 200 };

typedef struct counted {
    iv_work_job job; /* first */
    atomic_int ran;
    int done, done_unrun;
    unsigned wait_us;
    pthread_t by, back;
} counted;

static void run(iv_work_job *job) {
    counted *c = (counted *)job;
    if (c->wait_us) usleep(c->wait_us);
    c->by = pthread_self();
    atomic_fetch_add(&c->ran, 1);
}

static void done(iv_work_job *job, bool ran) {
    counted *c = (counted *)job;
    c->done++, c->done_unrun += !ran;
    c->back = pthread_self();
}

static counted jobs[JOBS];

static void prepare(unsigned wait_us) {
    for (size_t i = 0; i < JOBS; i++) jobs[i] = (counted){.job = {.run = run, .done = done}, .wait_us = wait_us};
}

static size_t count_done(void) {
    size_t n = 0;
    for (size_t i = 0; i < JOBS; i++) {
        assert_true(jobs[i].done <= 1);
        n += (size_t)jobs[i].done;
    }
    return n;
}

static void all_come_back(void **state) {
    (void)state;
    iv_work *w;
    iv_error err;
    prepare(0);
    ASSERT_OK(iv_work_open(3, &w, &err), &err);
    for (size_t i = 0; i < JOBS; i++) iv_work_give(w, &jobs[i].job);
    struct pollfd fd = {.fd = iv_work_fd(w), .events = POLLIN};
    while (count_done() < JOBS) {
        assert_int_equal(poll(&fd, 1, 10000), 1);
        iv_work_take(w);
    }
    assert_int_equal(poll(&fd, 1, 0), 0);
    iv_work_close(w);
    for (size_t i = 0; i < JOBS; i++) {
        assert_true(jobs[i].ran == 1 && jobs[i].done_unrun == 0);
        assert_true(!pthread_equal(jobs[i].by, pthread_self()) && pthread_equal(jobs[i].back, pthread_self()));
    }
}

static void closing_waits_for_what_runs(void **state) {
    (void)state;
    iv_work *w;
    iv_error err;
    size_t ran = 0, unrun = 0;
    prepare(20000);
    ASSERT_OK(iv_work_open(2, &w, &err), &err);
    for (size_t i = 0; i < JOBS; i++) iv_work_give(w, &jobs[i].job);
    usleep(5000);
    iv_work_close(w);
    assert_int_equal(count_done(), JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].ran + jobs[i].done_unrun, 1);
        ran += (size_t)jobs[i].ran, unrun += (size_t)jobs[i].done_unrun;
    }
    assert_true(ran >= 1 && unrun >= 1);
    iv_work_close(NULL);
}

static void without_threads(void **state) {
    (void)state;
    prepare(0);
    iv_work_give(NULL, &jobs[0].job);
    assert_true(jobs[0].ran == 1 && jobs[0].done == 1 && pthread_equal(jobs[0].by, pthread_self()));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_come_back), cmocka_unit_test(closing_waits_for_what_runs),
                                       cmocka_unit_test(without_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
