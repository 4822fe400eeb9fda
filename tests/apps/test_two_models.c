/* A directory with model.safetensors and an index beside it: the single file is read, as by transformers, and whoever
 * opens the directory is told so. */
#include "program.h"

enum { STEP_MS = 10, START_MS = 20000 };

static char dir[300], index_file[400];

/* tiny-math's files under other names, so that tiny-math itself stays as it is. */
static int make_model(void **state) {
    static const char *const files[] = {"config.json",    "generation_config.json", "model.safetensors",
                                        "tokenizer.json", "tokenizer_config.json",  "chat_template.jinja"};
    char from[400], to[400];
    if (make_folder(state) != 0) return -1;
    snprintf(dir, sizeof dir, "%s", in_folder("two"));
    snprintf(index_file, sizeof index_file, "%s/model.safetensors.index.json", dir);
    if (mkdir(dir, 0700) != 0) return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, "%s/models/tiny-math/%s", INVAR_SOURCE_DIR, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        if (symlink(from, to) != 0) return -1;
    }
    return 0;
}

static void put_index(void) {
    FILE *file = fopen(index_file, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

static void inspected(void **state) {
    (void)state;
    unlink(index_file);
    RUN("inspect", dir);
    expect_ok();
    assert_null(strstr(came.out, "not looked at"));
    put_index();
    RUN("inspect", dir);
    expect_ok();
    assert_non_null(strstr(came.out, "model.safetensors; model.safetensors.index.json beside it is not looked at\n"));
    RUN("inspect", dir, "--json");
    json_t *v = expect_json();
    assert_true(json_is_true(json_object_get(v, "index_unread")));
    json_decref(v);
    RUN("inspect", "tiny-math", "--json");
    v = expect_json();
    assert_true(json_is_false(json_object_get(v, "index_unread")));
    json_decref(v);
}

static void opened(void **state) {
    (void)state;
    static const char words[] = "model.safetensors was read, model.safetensors.index.json beside it was not\n";
    put_index();
    RUN("generate", dir, "-p", "2 + 2 =", "--max-tokens", "2", "--quiet");
    expect_ok();
    assert_non_null(strstr(came.err, "invar: warning: "));
    assert_non_null(strstr(came.err, words));
    RUN("generate", dir, "-p", "2 + 2 =", "--max-tokens", "2", "--quiet", "--load-format", "dummy"); /* reads neither */
    expect_ok();
    assert_string_equal(came.err, "");
    static const char line[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
        "\"1\",\"max_tokens\":2}}\n";
    write_file("in.jsonl", line, sizeof line - 1);
    RUN("batch", dir, "-i", in_folder("in.jsonl"), "-o", in_folder("out.jsonl"), "--max-model-len", "64");
    expect_ok();
    assert_non_null(strstr(came.err, words));
    RUN("verify", dir, "--max-tokens", "1", "--axes", "logprobs", "--combinations", "0");
    expect_ok();
    assert_non_null(strstr(came.err, words));
#define LOAD "--num-prompts", "2", "--random-input-len", "4", "--random-output-len", "2", "--threads", "1"
    RUN("bench", "serve", dir, LOAD);
    expect_ok();
    assert_non_null(strstr(came.err, words));
    RUN("bench", "serve", dir, LOAD, "--load-format", "dummy");
    expect_ok();
    assert_null(strstr(came.err, words));
    unlink(index_file);
    RUN("bench", "serve", dir, LOAD);
    expect_ok();
    assert_null(strstr(came.err, words));
    RUN("generate", dir, "-p", "2 + 2 =", "--max-tokens", "2", "--quiet");
    expect_ok();
    assert_string_equal(came.err, "");
    put_index();
    write_file("err", "", 0);
    pid_t pid = start(NULL, -1, (const char *const[]){"serve", dir, "--port", "0", "--threads", "1", NULL});
    for (int waited = 0; waited < START_MS && !strstr(came.err, "listening on"); waited += STEP_MS) {
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
        read_back("err", came.err);
    }
    kill(pid, SIGTERM);
    finish(pid);
    assert_int_equal(came.code, 0);
    assert_non_null(strstr(came.err, " warning: "));
    assert_non_null(strstr(came.err, words));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(inspected), cmocka_unit_test(opened)};
    return cmocka_run_group_tests(tests, make_model, remove_folder);
}
