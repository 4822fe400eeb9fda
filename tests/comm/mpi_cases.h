/* mpi_cases.h: jobs of several ranks, for test_mpi.c and tests/cuda/test_processes.c: their digests, refusals, and lost
 * ranks. */
#ifndef IV_TESTS_COMM_MPI_CASES_H
#define IV_TESTS_COMM_MPI_CASES_H

#include "comm/mpi_job.h"

#include <sys/mman.h>

enum { END_MAX_S = 15 }; /* alone 3 to 7 s */

static const char *digest_in(const char *json) {
    const char *at = strstr(json, "\"digest\": \"sha256:");
    if (!at) fail_msg("no digest in: %s", json);
    return at;
}

/* The job must fail with this message. */
static void refused(const char *line, const char *message) {
    char *out, *errors;
    int code = run(line, &out, &errors);
    if (code == 0 || !strstr(errors, message))
        fail_msg("%s: exit %d, wanted '%s', found: %s", line, code, message, errors);
    free(out), free(errors);
}

/* "rank 2: no answer to ...", or "ranks 1, 2: no answer to ..." if several wait for the same one. */
static bool names_the_missing(const char *errors, int rank) {
    const char *at = strstr(errors, "rank"), *end = strstr(errors, ": no answer to rank ");
    while (at && end && at < end)
        if (*at++ == '0' + rank) return true;
    return false;
}

/* Between two steps the other ranks wait for rank 0 without a limit, as for an idle engine: it is stopped until a stop
 * comes inside a step. *last: when it was stopped. */
static pid_t stop_again(pid_t pid, double *last) {
    pid_t parent = getpid(), child = fork();
    if (child != 0) return child;
    for (unsigned n = 1;; n++) {
        sleep(4);
        if (getppid() != parent) _exit(1);
        kill(pid, SIGCONT);
        usleep(1000 + 7919 * n % 20000);
        kill(pid, SIGSTOP);
        *last = seconds();
    }
}

/* Sends a signal to a rank during an answer. */
static void lost(int rank, int sig) {
    job j = start(MPIRUN "-n 3 " INVAR "generate models/tiny-math -p '2 + 2 =' --temperature 1 --seed 3 --ignore-eos "
                         "--max-tokens 2000 --max-model-len 2040 --rank-timeout 2000");
    char some[16], *out, *errors;
    assert_true(read(j.out, some, sizeof some) > 0); /* the answer has begun */
    pid_t pid = rank_pid(&j, rank);
    double *begin = mmap(NULL, sizeof *begin, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(begin != MAP_FAILED);
    *begin = seconds();
    assert_int_equal(kill(pid, sig), 0);
    pid_t again = sig == SIGSTOP && rank == 0 ? stop_again(pid, begin) : 0;
    int code = finish(&j, &out, &errors);
    if (again > 0) kill(again, SIGKILL), waitpid(again, NULL, 0);
    while (is_alive(pid) && seconds() - *begin < END_MAX_S) usleep(50000); /* a stopped rank ends after the job */
    double took = seconds() - *begin;
    printf("rank %d, signal %d: exit %d after %.1f s\n", rank, sig, code, took);
    assert_int_not_equal(code, 0);
    bool named = sig == SIGKILL ? strstr(errors, "signal 9") != NULL : names_the_missing(errors, rank);
    if (!named) fail_msg("wanted rank %d to be named, found: %s", rank, errors);
    assert_false(is_alive(pid)); /* no process remains */
    assert_true(took < END_MAX_S);
    munmap(begin, sizeof *begin), free(out), free(errors);
}

#endif
