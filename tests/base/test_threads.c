/* The pool: every index once, by any number of threads, job after job; the floating-point mode as promised. Jobs: each
 * comes back once, on the thread that submitted it. */
#include "support.h"
#include "base/cpu.h"
#include "base/jobs.h"
#include "base/threads.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* ---- the pool ---- */

typedef struct pool_job {
    atomic_uint *hits;
    atomic_uint wrong;
    size_t threads;
} pool_job;

static void task(void *context, size_t index, size_t worker) {
    pool_job *j = context;
    atomic_fetch_add(&j->hits[index], 1);
    if (iv_fp_env() != iv_fp_word(IV_FP_DEFAULT) || worker >= j->threads) atomic_fetch_add(&j->wrong, 1);
}

static void every_index_once(void **state) {
    (void)state;
    enum { COUNT = 37, JOBS = 3000 };
    iv_error err;
    for (size_t threads = 1; threads <= 7; threads += 2) {
        iv_pool *pool;
        atomic_uint hits[COUNT] = {0};
        pool_job j = {.hits = hits, .threads = threads};
        ASSERT_OK(iv_pool_open(threads, &pool, &err), &err);
        assert_int_equal(iv_pool_threads(pool), threads);
        unsigned saved = iv_fp_env_enter(IV_FP_FLUSH); /* a caller that flushes subnormals */
        for (size_t i = 0; i < JOBS; i++) {
            iv_pool_run(pool, 1 + i % COUNT, task, &j);
            if (i % 500 == 0) usleep(1000); /* long enough for the workers to sleep */
        }
        assert_int_equal(iv_fp_env(), iv_fp_word(IV_FP_FLUSH));
        iv_fp_env_leave(saved);
        for (size_t i = 0; i < COUNT; i++) {
            unsigned want = 0;
            for (size_t n = 0; n < JOBS; n++) want += 1 + n % COUNT > i;
            assert_int_equal(atomic_load(&hits[i]), want);
        }
        assert_int_equal(atomic_load(&j.wrong), 0);
        iv_pool_close(pool);
    }
}

static void absurd_counts_are_refused(void **state) {
    (void)state;
    iv_error err;
    iv_pool *pool = NULL;
    assert_int_equal(iv_pool_open(IV_THREADS_MAX + 1, &pool, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "threads"));
    ASSERT_OK(iv_pool_open(0, &pool, &err), &err);
    assert_true(iv_pool_threads(pool) >= 1);
    iv_pool_close(pool);
}

/* ---- background jobs ---- */

enum { JOBS = 200 };

typedef struct counted {
    iv_job job; /* first */
    atomic_int ran;
    int turns; /* needed; 0: one */
    int done, done_unrun;
    unsigned wait_us;
    pthread_t by, back;
} counted;

static bool run(iv_job *job) {
    counted *c = (counted *)job;
    if (c->wait_us) usleep(c->wait_us);
    c->by = pthread_self();
    return atomic_fetch_add(&c->ran, 1) + 1 >= c->turns;
}

static void done(iv_job *job, bool ran) {
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
    iv_jobs *w;
    iv_error err;
    prepare(0);
    ASSERT_OK(iv_jobs_open(3, &w, &err), &err);
    for (size_t i = 0; i < JOBS; i++) iv_jobs_submit(w, &jobs[i].job);
    struct pollfd fd = {.fd = iv_jobs_fd(w), .events = POLLIN};
    while (count_done() < JOBS) {
        assert_int_equal(poll(&fd, 1, 10000), 1);
        iv_jobs_collect(w);
    }
    assert_int_equal(poll(&fd, 1, 0), 0);
    iv_jobs_close(w);
    for (size_t i = 0; i < JOBS; i++) {
        assert_true(jobs[i].ran == 1 && jobs[i].done_unrun == 0);
        assert_true(!pthread_equal(jobs[i].by, pthread_self()) && pthread_equal(jobs[i].back, pthread_self()));
    }
}

static void closing_waits_for_what_runs(void **state) {
    (void)state;
    iv_jobs *w;
    iv_error err;
    size_t ran = 0, unrun = 0;
    prepare(20000);
    ASSERT_OK(iv_jobs_open(2, &w, &err), &err);
    for (size_t i = 0; i < JOBS; i++) iv_jobs_submit(w, &jobs[i].job);
    usleep(5000);
    iv_jobs_close(w);
    assert_int_equal(count_done(), JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].ran + jobs[i].done_unrun, 1);
        ran += (size_t)jobs[i].ran, unrun += (size_t)jobs[i].done_unrun;
    }
    assert_true(ran >= 1 && unrun >= 1);
    iv_jobs_close(NULL);
}

/* Jobs with more turns run on one thread; first turns of other jobs do not wait for it. */
static void long_jobs_go_to_the_background(void **state) {
    (void)state;
    enum { LONG = 3, TURNS = 40 };
    iv_jobs *w;
    iv_error err;
    prepare(0);
    ASSERT_OK(iv_jobs_open(1, &w, &err), &err);
    for (size_t i = 0; i < LONG; i++) jobs[i].turns = TURNS, jobs[i].wait_us = 2000;
    for (size_t i = 0; i < JOBS; i++) iv_jobs_submit(w, &jobs[i].job);
    bool short_first = false;
    while (count_done() < JOBS) {
        iv_jobs_wait(w, 10000);
        iv_jobs_collect(w);
        size_t done_long = 0;
        for (size_t i = 0; i < LONG; i++) done_long += (size_t)jobs[i].done;
        if (done_long == 0 && count_done() == JOBS - LONG) short_first = true;
    }
    iv_jobs_close(w);
    assert_true(short_first);
    for (size_t i = 0; i < LONG; i++) {
        assert_int_equal(jobs[i].ran, TURNS);
        assert_true(pthread_equal(jobs[i].by, jobs[0].by) && !pthread_equal(jobs[i].by, jobs[JOBS - 1].by));
    }
}

/* A job that is in no thread can be withdrawn, also between its turns. */
static void withdrawn_jobs_do_not_come_back(void **state) {
    (void)state;
    iv_jobs *w;
    iv_error err;
    prepare(3000);
    ASSERT_OK(iv_jobs_open(1, &w, &err), &err);
    jobs[0].turns = jobs[1].turns = 1000000;
    iv_jobs_submit(w, &jobs[0].job);
    iv_jobs_submit_background(w, &jobs[1].job);
    usleep(20000);
    bool gone = false; /* of two alternating jobs, one waits */
    for (int i = 0; i < 10000 && !(gone = iv_jobs_withdraw(w, &jobs[0].job)); i++) usleep(700);
    assert_true(gone);
    int ran = jobs[0].ran;
    usleep(20000);
    assert_int_equal(jobs[0].ran, ran);
    iv_jobs_close(w);
    assert_true(jobs[0].done == 0 && jobs[1].done_unrun == 1);
}

static void without_threads(void **state) {
    (void)state;
    prepare(0);
    jobs[0].turns = 3;
    iv_jobs_submit(NULL, &jobs[0].job);
    assert_true(jobs[0].ran == 3 && jobs[0].done == 1 && pthread_equal(jobs[0].by, pthread_self()));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_once),
        cmocka_unit_test(absurd_counts_are_refused),
        cmocka_unit_test(all_come_back),
        cmocka_unit_test(closing_waits_for_what_runs),
        cmocka_unit_test(long_jobs_go_to_the_background),
        cmocka_unit_test(withdrawn_jobs_do_not_come_back),
        cmocka_unit_test(without_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
