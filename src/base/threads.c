/* threads.c: workers wait for a job, first in a short spin, then on a futex. The caller works too. Once all indices are
 * handed out it closes the job and waits only for workers that have entered it: a worker that is not even scheduled,
 * because another process has its core, is not waited for. */
#include "base/threads.h"
#include "base/cpu.h"
#include "base/size.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct worker {
    iv_pool *pool;
    pthread_t thread;
    size_t index;
} worker;

/* The gate of the current job. High half: the job number. Low half, also the futex word of the caller's wait: CLOSED
 * and the number of workers inside. */
#define CLOSED UINT64_C(0x80000000)
#define INSIDE UINT64_C(0x7fffffff)

struct iv_pool {
    size_t threads;
    worker *workers; /* threads - 1 of them */
    void (*task)(void *, size_t, size_t);
    void *context;
    size_t count;
    atomic_bool stop;
    _Alignas(64) _Atomic uint64_t gate;
    _Alignas(64) atomic_uint job;    /* futex word of the workers' wait: the job's number */
    _Alignas(64) atomic_size_t next; /* the next index to hand out */
    atomic_uint sleepers;            /* workers that wait in the kernel */
};

static void take_tasks(iv_pool *p, size_t me) {
    unsigned saved = iv_fp_env_enter(IV_FP_DEFAULT);
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->count) break;
        p->task(p->context, i, me);
    }
    iv_fp_env_leave(saved);
}

static unsigned await_job(iv_pool *p, unsigned seen) {
    for (int i = 0; i < IV_SPINS; i++) {
        unsigned job = atomic_load_explicit(&p->job, memory_order_acquire);
        if (job != seen) return job;
        iv_cpu_pause();
    }
    atomic_fetch_add(&p->sleepers, 1);
    unsigned job;
    while ((job = atomic_load(&p->job)) == seen) iv_cpu_wait(&p->job, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return job;
}

/* Enters the job unless it is closed. */
static bool join(iv_pool *p) {
    uint64_t gate = atomic_load(&p->gate);
    while (!(gate & CLOSED))
        if (atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) return true;
    return false;
}

static void *work(void *argument) {
    worker *w = argument;
    iv_pool *p = w->pool;
    for (unsigned seen = 0;;) {
        seen = await_job(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        if (!join(p)) continue;
        take_tasks(p, w->index);
        uint64_t before = atomic_fetch_sub(&p->gate, 1);
        if ((before & CLOSED) && (before & INSIDE) == 1) iv_cpu_wake(&p->gate, 1);
    }
}

static void wait_for_joined(iv_pool *p) {
    uint64_t gate = atomic_fetch_or(&p->gate, CLOSED) | CLOSED;
    for (int i = 0; i < IV_SPINS && (gate & INSIDE); i++) {
        iv_cpu_pause();
        gate = atomic_load(&p->gate);
    }
    while (gate & INSIDE) {
        iv_cpu_wait(&p->gate, (unsigned)gate); /* little-endian: the low half comes first */
        gate = atomic_load(&p->gate);
    }
}

void iv_pool_run(iv_pool *p, size_t count, void (*task)(void *context, size_t index, size_t worker), void *context) {
    if (count == 0) return;
    p->task = task, p->context = context, p->count = count;
    atomic_store(&p->next, 0);
    bool alone = p->threads == 1 || count == 1;
    if (!alone) {
        unsigned job = atomic_load(&p->job) + 1;
        atomic_store(&p->gate, (uint64_t)job << 32);
        atomic_store(&p->job, job);
        if (atomic_load(&p->sleepers)) iv_cpu_wake(&p->job, (int)p->threads);
    }
    take_tasks(p, 0);
    if (!alone) wait_for_joined(p);
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
        return iv_fail(err, IV_INVALID, "threads: wanted 1 to %d (0: one for each CPU), found %zu", IV_THREADS_MAX,
                       threads);
    iv_pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return iv_fail(err, IV_NO_MEMORY, "threads: no memory for a pool");
    memset(p, 0, sizeof *p);
    atomic_store(&p->gate, CLOSED);
    p->workers = calloc(threads, sizeof *p->workers);
    p->threads = 1;
    iv_status status = p->workers ? IV_OK : iv_fail(err, IV_NO_MEMORY, "threads: no memory for %zu workers", threads);
    for (size_t i = 0; status == IV_OK && i + 1 < threads; i++) {
        p->workers[i] = (worker){.pool = p, .index = i + 1};
        int e = pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i]);
        if (e)
            status =
                iv_fail(err, IV_LIMIT, "threads: cannot start worker %zu of %zu: %s", i + 1, threads - 1, strerror(e));
        else
            p->threads++;
    }
    if (status == IV_OK)
        *out = p;
    else
        iv_pool_close(p);
    return status;
}

void iv_pool_close(iv_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->job, 1);
    iv_cpu_wake(&p->job, IV_THREADS_MAX);
    for (size_t i = 0; i + 1 < p->threads; i++) pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}

size_t iv_pool_threads(const iv_pool *pool) { return pool->threads; }
