/* threads.h: a persistent pool for independent tasks. Results never depend on which thread runs a task: a task writes
 * outputs that no other task writes, and nothing is added across tasks. */
#ifndef IV_BASE_THREADS_H
#define IV_BASE_THREADS_H

#include "base/status.h"

enum { IV_THREADS_MAX = 256 };

typedef struct iv_pool iv_pool;

/* threads includes the caller: 1 starts none. 0 means one for each CPU this process may use. */
iv_status iv_pool_open(size_t threads, iv_pool **out, iv_error *err);
void iv_pool_close(iv_pool *pool); /* NULL is allowed */
size_t iv_pool_threads(const iv_pool *pool);

/* Calls task(context, index, worker) for every index below count, in any order, on the caller and the workers (worker <
 * iv_pool_threads); returns when all are done. One call at a time. Tasks run in IV_FP_DEFAULT (cpu.h), independent of
 * the caller's mode. */
void iv_pool_run(iv_pool *pool, size_t count, void (*task)(void *context, size_t index, size_t worker), void *context);

#endif
