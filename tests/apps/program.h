/* program.h: runs the real binary and captures its output, standard error and exit code. A test's files are in a
 * temporary directory: pass make_folder and remove_folder to the group. */
#ifndef IV_TESTS_PROGRAM_H
#define IV_TESTS_PROGRAM_H

#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { ARGS_MAX = 40, OUTPUT_MAX = 1 << 20 };

static char folder[] = "/tmp/invar_cli_XXXXXX";

/* The results of the last run. */
static struct {
    char out[OUTPUT_MAX], err[OUTPUT_MAX];
    size_t out_bytes;
    int code; /* as in a shell */
} came;

static inline const char *in_folder(const char *name) {
    static char paths[16][256]; /* enough for the paths in use at the same time */
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_file(const char *name, const char *bytes, size_t n) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline size_t read_back(const char *name, char *out) {
    FILE *file = fopen(in_folder(name), "rb");
    assert_non_null(file);
    size_t n = fread(out, 1, OUTPUT_MAX - 1, file);
    fclose(file);
    out[n] = 0;
    return n;
}

static inline void send_to(int fd, const char *path, int flags) {
    int file = open(path, flags, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(99);
}

/* Starts invar with the words, standard input from `input` (NULL: empty). out_fd -1: into a file. */
static inline pid_t start(const char *input, int out_fd, const char *const *words) {
    const char *argv[ARGS_MAX + 2] = {INVAR_BINARY};
    size_t n = 0;
    while (words[n]) {
        assert_true(n < ARGS_MAX);
        argv[n + 1] = words[n];
        n++;
    }
    write_file("in", input ? input : "", input ? strlen(input) : 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    signal(SIGINT, SIG_DFL); /* ignored in what a shell runs in the background */
    send_to(0, in_folder("in"), O_RDONLY);
    if (out_fd >= 0)
        dup2(out_fd, 1);
    else
        send_to(1, in_folder("out"), O_WRONLY | O_CREAT | O_TRUNC);
    send_to(2, in_folder("err"), O_WRONLY | O_CREAT | O_TRUNC);
    execv(INVAR_BINARY, (char *const *)argv);
    _exit(99);
}

static inline void finish(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    came.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    came.out_bytes = read_back("out", came.out);
    read_back("err", came.err);
}

#define RUN_WITH(input, ...) finish(start(input, -1, (const char *const[]){__VA_ARGS__, NULL}))
#define RUN(...) RUN_WITH(NULL, __VA_ARGS__)

static inline void expect_ok(void) {
    if (came.code != 0) fail_msg("exit code %d: %s", came.code, came.err);
}

/* The run failed with this code, printed one error line that contains `words`, and wrote nothing to standard output. */
static inline void expect_error(int code, const char *words) {
    const char *line_end = strchr(came.err, '\n');
    if (came.code != code || strncmp(came.err, "invar: ", 7) != 0 || !strstr(came.err, words) || !line_end ||
        line_end[1] || came.out_bytes)
        fail_msg("wanted exit code %d and one line with \"%s\", found %d, standard error:\n%s", code, words, came.code,
                 came.err);
}

static inline void expect_out(const char *words) {
    if (!strstr(came.out, words)) fail_msg("wanted \"%s\" in:\n%s", words, came.out);
}

static inline json_t *expect_json(void) {
    json_error_t why;
    json_t *value = json_loadb(came.out, came.out_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!value) fail_msg("not JSON: %s: %s", why.text, came.out);
    return value;
}

static inline const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text) fail_msg("no string \"%s\"", key);
    return text;
}

static inline int make_folder(void **state) {
    (void)state;
    unsetenv("INVAR_MODELS");
    return mkdtemp(folder) ? 0 : -1;
}

/* A model directory in the test's folder: links to the named files of tiny-math, which itself stays as it is. */
static inline int link_model(const char *dir, const char *const *files, size_t count) {
    char from[400], to[400];
    if (mkdir(dir, 0700) != 0) return -1;
    for (size_t i = 0; i < count; i++) {
        snprintf(from, sizeof from, "%s/models/tiny-math/%s", INVAR_SOURCE_DIR, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        if (symlink(from, to) != 0) return -1;
    }
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

#endif
