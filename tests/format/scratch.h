/* scratch.h: a temporary directory for tests that need files: made below $TMPDIR, removed with its files. */
#ifndef IV_TESTS_FORMAT_SCRATCH_H
#define IV_TESTS_FORMAT_SCRATCH_H

#include "support.h"
#include <dirent.h>
#include <sys/stat.h>

typedef struct scratch {
    char dir[512];
} scratch;

static inline void scratch_open(scratch *s) {
    const char *tmp = getenv("TMPDIR");
    snprintf(s->dir, sizeof s->dir, "%s/invar-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(s->dir));
}

/* Static buffer, overwritten by the next call. */
static inline const char *scratch_path(const scratch *s, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return path;
}

static inline void scratch_write(const scratch *s, const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(scratch_path(s, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* How many entries the directory holds. */
static inline int scratch_count(const scratch *s) {
    int n = 0;
    DIR *d = opendir(s->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static inline void scratch_close(scratch *s) {
    DIR *d = opendir(s->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            const char *path = scratch_path(s, e->d_name);
            if (unlink(path) != 0) assert_int_equal(rmdir(path), 0);
        }
    closedir(d);
    assert_int_equal(rmdir(s->dir), 0);
}

/* Fails unless the call gave `want` and a message that holds `text`. */
static inline void expect_error(const char *label, iv_status got, const iv_error *err, iv_status want,
                                const char *text) {
    if (got != want)
        fail_msg("%s: wanted %s, got %s (%s)", label, iv_status_name(want), iv_status_name(got),
                 got == IV_OK ? "" : err->message);
    if (!strstr(err->message, text)) fail_msg("%s: wanted '%s' in '%s'", label, text, err->message);
    if (err->status != want) fail_msg("%s: err->status is %s", label, iv_status_name(err->status));
}

/* xorshift64*: small, and its seed can be printed. */
static inline uint64_t scratch_random(uint64_t *state) {
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

#endif
