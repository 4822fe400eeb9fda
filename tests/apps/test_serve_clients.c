/* The tests/clients that need no package, against one `invar serve`. Other projects' clients are run by
 * tests/clients/run.py. $INVAR_PYTHON is the Python. */
#include "server.h"

enum { SKIPPED_CODE = 77 };

static pid_t server;
static char url[64];

static int start_server(void **state) {
    const char *const words[] = {"serve", "tiny-math",       "--port", "0", "--threads",
                                 "2",     "--admin-api-key", "admin",  NULL};
    if (make_folder(state) != 0) return -1;
    uint16_t port;
    server = serve_by(&port, words);
    snprintf(url, sizeof url, "INVAR_URL=http://127.0.0.1:%u", (unsigned)port);
    return 0;
}

static int stop_server(void **state) {
    if (server <= 0) return remove_folder(state); /* 0 would be this process group */
    kill(server, SIGTERM);
    finish(server);
    if (came.code != 0) printf("the server ended with %d: %s\n", came.code, came.err);
    return remove_folder(state) || came.code;
}

static const char *python(void) {
    const char *named = getenv("INVAR_PYTHON");
    return named && *named ? named : "python3";
}

static void run_client(const char *name) {
    char relative[64];
    snprintf(relative, sizeof relative, "tests/clients/%.40s", name);
    const char *path = source_path(relative);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        putenv(url);
        putenv((char[]){"INVAR_ADMIN_KEY=admin"});
        putenv((char[]){"PYTHONDONTWRITEBYTECODE=1"});
        dup2(1, 2);
        execlp(python(), python(), path, (char *)NULL);
        _exit(SKIPPED_CODE);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED_CODE) {
        printf("SKIPPED: %s (no python3)\n", name);
        skip();
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("%s: exit code %d", name, WEXITSTATUS(status));
}

static void sglang_modes(void **state) {
    (void)state;
    run_client("sglang_deterministic.py");
}

static void lm_eval(void **state) {
    (void)state;
    run_client("lm_eval_style.py");
}

static void split_special(void **state) {
    (void)state;
    run_client("split_special.py");
}

/* invar's client against other servers. */
static void load_others(void **state) {
    (void)state;
    run_client("load_others.py");
}

/* Starts its own server and measures its memory, of which sanitizers keep what was freed. */
static void memory(void **state) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("SKIPPED: the memory of a sanitized server\n");
    skip();
#endif
    (void)state;
    run_client("memory.py");
}

static void disconnects(void **state) {
    (void)state;
    run_client("disconnects.py");
}

/* Negative control: a failing client is detected. */
static void failure_is_seen(void **state) {
    (void)state;
    char saved[sizeof url];
    snprintf(saved, sizeof saved, "%s", url);
    snprintf(url, sizeof url, "INVAR_URL=http://127.0.0.1:1");
    pid_t pid = fork();
    if (pid == 0) {
        putenv(url);
        close(1), close(2);
        execlp(python(), python(), source_path("tests/clients/lm_eval_style.py"), (char *)NULL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != SKIPPED_CODE);
    snprintf(url, sizeof url, "%s", saved);
}

int main(void) {
    setenv("INVAR_BINARY", INVAR_BINARY, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lm_eval),         cmocka_unit_test(sglang_modes), cmocka_unit_test(disconnects),
        cmocka_unit_test(memory),          cmocka_unit_test(load_others),  cmocka_unit_test(split_special),
        cmocka_unit_test(failure_is_seen),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
