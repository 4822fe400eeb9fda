/* mpi_job.h: runs the program under mpirun: output, exit code, processes of the ranks. */
#ifndef IV_TESTS_MPI_JOB_H
#define IV_TESTS_MPI_JOB_H

#include "support.h"

#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static char folder[] = "/tmp/invar-mpi-XXXXXX";

/* The reason to skip these tests; NULL: none. */
static inline const char *obstacle(void) {
    if (SANITIZED) return "MPI under a sanitizer reports its own findings";
    if (access(INVAR_MPI_MODULE, R_OK) != 0) return "libinvar_mpi.so was not built (no MPI for C here)";
    if (system("command -v mpirun >/dev/null 2>&1") != 0) return "mpirun is not installed";
    return NULL;
}

#define SKIP_WITHOUT_MPI()                \
    do {                                  \
        const char *why = obstacle();     \
        if (why) {                        \
            printf("SKIPPED: %s\n", why); \
            skip();                       \
        }                                 \
    } while (0)

typedef struct job {
    pid_t pid;
    int out; /* standard output */
    char errors[200];
} job;

/* A shell command line; INVAR is the program's path, MPIRUN mpirun with a test's flags. */
static inline job start(const char *line) {
    static int number;
    int pipe_of[2];
    job j;
    snprintf(j.errors, sizeof j.errors, "%s/errors%d", folder, number++);
    assert_int_equal(pipe(pipe_of), 0);
    j.pid = fork();
    assert_true(j.pid >= 0);
    if (j.pid == 0) {
        int errors = open(j.errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(pipe_of[1], 1), dup2(errors, 2);
        close(pipe_of[0]), close(pipe_of[1]), close(errors);
        char shell[5000];
        snprintf(shell, sizeof shell, "cd %s && exec %s", INVAR_SOURCE_DIR, line);
        execl("/bin/sh", "sh", "-c", shell, (char *)NULL);
        _exit(127);
    }
    close(pipe_of[1]);
    j.out = pipe_of[0];
    return j;
}

static inline char *read_all(int fd) {
    iv_buf b = {0};
    char part[4096];
    ssize_t n;
    while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0) assert_true(iv_buf_append(&b, part, (size_t)n));
    close(fd);
    return b.data ? b.data : strdup("");
}

/* Waits for the end: exit code, standard output, standard error. */
static inline int finish(job *j, char **out, char **errors) {
    int status;
    *out = read_all(j->out);
    assert_int_equal(waitpid(j->pid, &status, 0), j->pid);
    int fd = open(j->errors, O_RDONLY);
    assert_true(fd >= 0);
    *errors = read_all(fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int run(const char *line, char **out, char **errors) {
    job j = start(line);
    return finish(&j, out, errors);
}

#define MPIRUN "mpirun --oversubscribe "
#define QUIETLY "mpirun --quiet --oversubscribe " /* mpirun's messages would be mixed into the output */
#define INVAR INVAR_BINARY " "

/* Whether a process was started as this rank, by its environment. */
static inline bool is_rank(int pid, int rank) {
    char path[100], name[100], text[1 << 16];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    snprintf(name, sizeof name, "OMPI_COMM_WORLD_RANK=%d", rank);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    for (const char *at = text; at < text + n; at += strlen(at) + 1)
        if (strcmp(at, name) == 0) return true;
    return false;
}

/* The process id of a rank. The kernel's list of children may lack some for a moment, and mpirun may have others. */
static inline pid_t rank_pid(const job *j, int rank) {
    char path[100];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)j->pid, (int)j->pid);
    for (int turn = 0; turn < 100; turn++) {
        FILE *f = fopen(path, "r");
        int pid, found = 0;
        assert_non_null(f);
        while (!found && fscanf(f, "%d", &pid) == 1)
            if (is_rank(pid, rank)) found = pid;
        fclose(f);
        if (found) return found;
        usleep(10000);
    }
    fail_msg("mpirun (%d): no child that is rank %d", (int)j->pid, rank);
    return 0;
}

static inline double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A zombie counts as ended. */
static inline bool is_alive(pid_t pid) {
    char path[100], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool read = fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
    fclose(f);
    return read && state != 'Z' && state != 'X';
}

static inline int begin_jobs(void **state) {
    (void)state;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    return mkdtemp(folder) ? 0 : -1;
}

static inline int end_jobs(void **state) {
    (void)state;
    char line[200];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

#endif
