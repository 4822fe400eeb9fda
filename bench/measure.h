/* measure.h: helpers of the machine benchmarks: a clock, medians, and a function run on several threads. */
#ifndef IV_BENCH_MEASURE_H
#define IV_BENCH_MEASURE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IV_BENCH_THREADS_MAX = 64, IV_BENCH_REPEATS = 9 };

static inline double iv_bench_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int iv_bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle of n values, which it sorts in place: values[n - 1] is the largest afterwards. */
static inline double iv_bench_median(double *values, size_t n) {
    qsort(values, n, sizeof *values, iv_bench_compare);
    return values[n / 2];
}

/* The work of one thread; `thread` counts from 0. */
typedef void iv_bench_work(void *context, int thread, int threads);

typedef struct iv_bench_team {
    iv_bench_work *work;
    void *context;
    int threads;
    pthread_barrier_t start;
} iv_bench_team;

typedef struct iv_bench_member {
    iv_bench_team *team;
    int thread;
} iv_bench_member;

static inline void *iv_bench_member_main(void *argument) {
    iv_bench_member *member = argument;
    pthread_barrier_wait(&member->team->start);
    member->team->work(member->team->context, member->thread, member->team->threads);
    return NULL;
}

/* Runs work on `threads` threads that start together; returns the seconds until the last has ended. */
static inline double iv_bench_together(iv_bench_work *work, void *context, int threads) {
    iv_bench_team team = {.work = work, .context = context, .threads = threads};
    iv_bench_member members[IV_BENCH_THREADS_MAX];
    pthread_t ids[IV_BENCH_THREADS_MAX];
    if (threads < 1 || threads > IV_BENCH_THREADS_MAX) abort();
    pthread_barrier_init(&team.start, NULL, (unsigned)threads);
    for (int i = 1; i < threads; i++) {
        members[i] = (iv_bench_member){&team, i};
        if (pthread_create(&ids[i], NULL, iv_bench_member_main, &members[i]) != 0) {
            fprintf(stderr, "bench: no thread %d of %d\n", i + 1, threads);
            exit(1);
        }
    }
    pthread_barrier_wait(&team.start);
    double begin = iv_bench_seconds();
    work(context, 0, threads);
    for (int i = 1; i < threads; i++) pthread_join(ids[i], NULL);
    double end = iv_bench_seconds();
    pthread_barrier_destroy(&team.start);
    return end - begin;
}

/* The integer after `flag` on the command line, in [low, high]; `fallback` if the flag is absent. */
static inline long iv_bench_argument(int argc, char **argv, const char *flag, long fallback, long low, long high) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], flag) != 0) continue;
        char *end = NULL;
        long value = i + 1 < argc ? strtol(argv[i + 1], &end, 10) : 0;
        if (end && end != argv[i + 1] && *end == 0 && value >= low && value <= high) return value;
        fprintf(stderr, "%s: %s: wanted a whole number from %ld to %ld\n", argv[0], flag, low, high);
        exit(2);
    }
    return fallback;
}

#endif
