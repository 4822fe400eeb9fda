/* main.c: the test program of a folder. Each test_NOUN.c is a group; its main is compiled as test_NOUN_main.
 *
 * Usage: test_FOLDER [--list] [GROUP | GROUP/CASE]...
 * The names may be shell patterns. Without names all groups run, each in a separate process. */
#define IV_TESTS_MAIN
#include "support.h"

#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SKIPPED_ALL = 77 };

#define GROUP(noun) int test_##noun##_main(void);
#include TEST_GROUPS
#undef GROUP
#define GROUP(noun) {#noun, test_##noun##_main},
static const struct group {
    const char *name;
    int (*run)(void);
} groups[] = {
#include TEST_GROUPS
};
enum { GROUPS = sizeof groups / sizeof *groups };

static const struct group *running;
static const char *const *patterns;
static bool listing;
static size_t *selected; /* cases; shared with the groups' processes */

/* The part of a pattern before the slash is the group's. */
static bool selects_group(const char *pattern, const struct group *g) {
    char head[256];
    snprintf(head, sizeof head, "%.*s", (int)strcspn(pattern, "/"), pattern);
    return fnmatch(head, g->name, 0) == 0;
}

static bool selects_case(const char *pattern, const struct CMUnitTest *t) {
    const char *slash = strchr(pattern, '/');
    return selects_group(pattern, running) && (!slash || fnmatch(slash + 1, t->name, 0) == 0);
}

static bool is_selected(const struct CMUnitTest *t) {
    if (!patterns[0]) return true;
    for (const char *const *p = patterns; *p; p++)
        if (selects_case(*p, t)) return true;
    return false;
}

int run_test_cases(const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup, CMFixtureFunction teardown) {
    struct CMUnitTest *chosen = calloc(n, sizeof *chosen);
    size_t count = 0;
    if (!chosen) return 1;
    for (size_t i = 0; i < n; i++)
        if (is_selected(&tests[i])) chosen[count++] = tests[i];
    *selected += count;
    int failed = 0;
    if (listing)
        for (size_t i = 0; i < count; i++) printf("%s/%s\n", running->name, chosen[i].name);
    else if (count > 0)
        failed = _cmocka_run_group_tests(running->name, chosen, count, setup, teardown);
    free(chosen);
    return failed;
}

static int run_in_process(const struct group *g) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        running = g;
        exit(g->run());
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    fprintf(stderr, "%s: signal %d\n", g->name, WTERMSIG(status));
    return 1;
}

int main(int argc, char **argv) {
    const struct group *chosen[GROUPS];
    size_t count = 0;
    listing = argc > 1 && strcmp(argv[1], "--list") == 0;
    patterns = (const char *const *)argv + 1 + listing;
    selected = mmap(NULL, sizeof *selected, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (selected == MAP_FAILED) return 1;
    for (size_t i = 0; i < GROUPS; i++) {
        bool wanted = !patterns[0];
        for (const char *const *p = patterns; *p && !wanted; p++) wanted = selects_group(*p, &groups[i]);
        if (wanted) chosen[count++] = &groups[i];
    }
    int code = 0;
    if (count == 1 && !listing) { /* a debugger stays in this process */
        running = chosen[0];
        code = running->run();
    } else {
        for (size_t i = 0; i < count; i++) {
            int one = run_in_process(chosen[i]);
            if (one != 0 && one != SKIPPED_ALL && !listing) code = 1;
        }
    }
    if (*selected == 0 && code == 0) {
        fprintf(stderr, "%s: no such case; --list shows them\n", argv[0]);
        return 2;
    }
    return code;
}
