/* support.h: shared by all test programs: cmocka's headers in the required order, the runner, paths to data, skips with
 * a reason. */
#ifndef IV_TESTS_SUPPORT_H
#define IV_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/status.h"

#ifndef IV_TESTS_MAIN
int main(void); /* the build renames it to test_NOUN_main (main.c) */
#endif

/* Runs the cases of a group that the command line names (main.c). */
int run_test_cases(const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup, CMFixtureFunction teardown);
#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, setup, teardown) \
    run_test_cases(tests, sizeof(tests) / sizeof *(tests), setup, teardown)

/* Fails the test with the library's message unless the call came to IV_OK. */
#define ASSERT_OK(call, err)                                            \
    do {                                                                \
        if ((call) != IV_OK) fail_msg("%s: %s", #call, (err)->message); \
    } while (0)

/* Data in the repository: tests/data, models. Static buffer, overwritten by the next call. */
static inline const char *source_path(const char *relative) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", INVAR_SOURCE_DIR, relative);
    return path;
}

/* Material too large or too differently licensed for the repository: $INVAR_SHARED, else ../shared. NULL when it is not
 * there: the caller then prints and skips. Static buffer. */
static inline const char *shared_path(const char *relative) {
    static char path[4096];
    const char *root = getenv("INVAR_SHARED");
    if (root)
        snprintf(path, sizeof path, "%s/%s", root, relative);
    else
        snprintf(path, sizeof path, "%s/../shared/%s", INVAR_SOURCE_DIR, relative);
    return access(path, R_OK) == 0 ? path : NULL;
}

/* Data of the repository, else the shared material of this name. */
static inline const char *data_path(const char *relative) {
    const char *path = source_path(relative);
    return access(path, R_OK) == 0 ? path : shared_path(relative);
}

#define SKIP_WITHOUT(path, what)                                         \
    do {                                                                 \
        if (!(path)) {                                                   \
            printf("SKIPPED: %s is missing (set INVAR_SHARED)\n", what); \
            skip();                                                      \
        }                                                                \
    } while (0)

/* Sanitized builds are many times slower: their runs are for the paths, not for the numbers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
#else
enum { SANITIZED = 0 };
#endif

#endif
