/* The pool: every index once, by however many threads, job after job; MXCSR as promised. */
#include "support.h"
#include "base/threads.h"

#include <immintrin.h>
#include <stdatomic.h>

typedef struct job {
    atomic_uint *hits;
    atomic_uint wrong_mxcsr;
    size_t threads;
} job;

static void task(void *context, size_t index, size_t worker) {
    job *j = context;
    atomic_fetch_add(&j->hits[index], 1);
    if ((_mm_getcsr() & 0xffc0u) != 0x1f80u || worker >= j->threads) atomic_fetch_add(&j->wrong_mxcsr, 1);
}

static void every_index_once(void **state) {
    (void)state;
    enum { COUNT = 37, JOBS = 3000 };
    iv_error err;
    for (size_t threads = 1; threads <= 7; threads += 2) {
        iv_pool *pool;
        atomic_uint hits[COUNT] = {0};
        job j = {.hits = hits, .threads = threads};
        ASSERT_OK(iv_pool_open(threads, &pool, &err), &err);
        assert_int_equal(iv_pool_threads(pool), threads);
        unsigned saved = _mm_getcsr();
        _mm_setcsr(0x9fc0); /* a caller that flushes subnormals */
        for (size_t i = 0; i < JOBS; i++) {
            iv_pool_run(pool, 1 + i % COUNT, task, &j);
            if (i % 500 == 0) usleep(1000); /* long enough for the workers to sleep */
        }
        assert_int_equal(_mm_getcsr() & 0xffc0u, 0x9fc0);
        _mm_setcsr(saved);
        for (size_t i = 0; i < COUNT; i++) {
            unsigned want = 0;
            for (size_t n = 0; n < JOBS; n++) want += 1 + n % COUNT > i;
            assert_int_equal(atomic_load(&hits[i]), want);
        }
        assert_int_equal(atomic_load(&j.wrong_mxcsr), 0);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_index_once), cmocka_unit_test(absurd_counts_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
