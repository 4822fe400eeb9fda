/* threads.c: workers wait for a new job number: a short spin, then a futex. A spin alone collapses when
 * another process wants the core; a futex alone costs more than a small layer. */
#include "base/threads.h"
#include "base/size.h"

#include <errno.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 4000, MXCSR_DEFAULT = 0x1f80 };

typedef struct worker {
    iv_pool *pool;
    pthread_t thread;
    size_t index;
} worker;

struct iv_pool {
    size_t threads;
    worker *workers; /* threads - 1 of them */
    void (*task)(void *, size_t, size_t);
    void *context;
    size_t count;
    atomic_bool stop;
    _Alignas(64) atomic_uint job;     /* futex word: changes when there is work */
    _Alignas(64) atomic_size_t next;  /* the next index to hand out */
    _Alignas(64) atomic_uint running; /* futex word: workers that have not finished this job */
    atomic_uint sleepers;             /* workers that wait in the kernel for a job */
};

static void futex_wait(atomic_uint *word, unsigned seen) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); }
static void futex_wake(atomic_uint *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

static void take_tasks(iv_pool *p, size_t me) {
    unsigned saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->count) break;
        p->task(p->context, i, me);
    }
    _mm_setcsr(saved);
}

static unsigned await_job(iv_pool *p, unsigned seen) {
    for (int i = 0; i < SPINS; i++) {
        unsigned job = atomic_load_explicit(&p->job, memory_order_acquire);
        if (job != seen) return job;
        _mm_pause();
    }
    atomic_fetch_add(&p->sleepers, 1);
    unsigned job;
    while ((job = atomic_load(&p->job)) == seen) futex_wait(&p->job, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return job;
}

static void *work(void *argument) {
    worker *w = argument;
    iv_pool *p = w->pool;
    for (unsigned seen = 0;;) {
        seen = await_job(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        take_tasks(p, w->index);
        if (atomic_fetch_sub(&p->running, 1) == 1) futex_wake(&p->running, 1);
    }
}

void iv_pool_run(iv_pool *p, size_t count, void (*task)(void *, size_t, size_t), void *context) {
    if (count == 0) return;
    p->task = task, p->context = context, p->count = count;
    atomic_store(&p->next, 0);
    bool alone = p->threads == 1 || count == 1;
    if (!alone) {
        atomic_store(&p->running, (unsigned)(p->threads - 1));
        atomic_fetch_add(&p->job, 1);
        if (atomic_load(&p->sleepers)) futex_wake(&p->job, (int)p->threads);
    }
    take_tasks(p, 0);
    if (alone) return;
    unsigned left;
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->running, memory_order_acquire) == 0) return;
        _mm_pause();
    }
    while ((left = atomic_load(&p->running)) != 0) futex_wait(&p->running, left);
}

static size_t cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (size_t)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (size_t)n : 1;
}

iv_status iv_pool_open(size_t threads, iv_pool **out, iv_error *err) {
    if (threads == 0) threads = iv_size_min(cpus(), IV_THREADS_MAX);
    if (threads > IV_THREADS_MAX)
        return iv_fail(err, IV_INVALID, "threads: wanted 1 to %d (0: one for each CPU), found %zu", IV_THREADS_MAX, threads);
    iv_pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return iv_fail(err, IV_NO_MEMORY, "threads: no memory for a pool");
    memset(p, 0, sizeof *p);
    p->workers = calloc(threads, sizeof *p->workers);
    p->threads = 1;
    iv_status status = p->workers ? IV_OK : iv_fail(err, IV_NO_MEMORY, "threads: no memory for %zu workers", threads);
    for (size_t i = 0; status == IV_OK && i + 1 < threads; i++) {
        p->workers[i] = (worker){.pool = p, .index = i + 1};
        int e = pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i]);
        if (e) status = iv_fail(err, IV_LIMIT, "threads: cannot start worker %zu of %zu: %s", i + 1, threads - 1, strerror(e));
        else p->threads++;
    }
    if (status == IV_OK) *out = p;
    else iv_pool_close(p);
    return status;
}

void iv_pool_close(iv_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->job, 1);
    futex_wake(&p->job, IV_THREADS_MAX);
    for (size_t i = 0; i + 1 < p->threads; i++) pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}

size_t iv_pool_threads(const iv_pool *pool) { return pool->threads; }
