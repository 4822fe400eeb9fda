/* emulated.h: helpers for tests of emulated kernels: their duration, and another machine and schedule for each
 * launch. INVAR_TEST_SEED repeats a run. */
#ifndef IV_TESTS_CUDA_EMULATED_H
#define IV_TESTS_CUDA_EMULATED_H

#include "random.h"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Processor seconds for one test: 0.3 of them, or with INVAR_TEST_LONG 20 times as many. */
typedef struct budget {
    clock_t end;
} budget;

static inline budget budget_of(double seconds) {
    return (budget){clock() + (clock_t)((getenv("INVAR_TEST_LONG") ? 20 : 0.3) * seconds * CLOCKS_PER_SEC)};
}
static inline bool has_time(const budget *b) { return clock() < b->end; }

/* A device of 2 to 2 + `more` multiprocessors, and a new seed for schedules. */
static inline void another_machine(rng *r, size_t more) {
    GPU_OK(cudaSetDevice((int)rng_below(r, more + 1)));
    emu_seed(rng_next(r));
}

/* The value of f, from 0 to 255, in a process of its own; -1 if a signal ended it: a planted mistake may lead outside
 * of all memory. */
static inline int in_a_process(int (*f)(void *), void *context) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL); /* cmocka's would go on with the next test */
        _exit(f(context));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *const fault_names[] = {"none",
                                          "forgotten waits",
                                          "a lost arrival",
                                          "forgotten barriers",
                                          "early bytes",
                                          "launches that do not wait",
                                          "a flipped bit",
                                          "forgotten stores",
                                          "forgotten peers",
                                          "forgotten fences"};

#endif
