/* What generation_config.json asks for and is not done is said where a model is opened, and nothing where all is. */
#include "program.h"

enum { STEP_MS = 10, START_MS = 20000 };

static char dir[300];

static int make_model(void **state) {
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    static const char config[] =
        "{\"temperature\":0.6,\"no_repeat_ngram_size\":3,\"num_beams\":1,\"bad_words_ids\":[[7]]}";
    char from[400], to[400];
    if (make_folder(state) != 0) return -1;
    snprintf(dir, sizeof dir, "%s", in_folder("made"));
    if (mkdir(dir, 0700) != 0) return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, "%s/models/tiny-math/%s", INVAR_SOURCE_DIR, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        if (symlink(from, to) != 0) return -1;
    }
    write_file("made/generation_config.json", config, sizeof config - 1);
    return 0;
}

static void expect_lines(void) {
    assert_non_null(strstr(came.err, "generation_config.json: no_repeat_ngram_size 3 is not applied\n"));
    assert_non_null(strstr(came.err, "generation_config.json: bad_words_ids [[7]] is not applied\n"));
    assert_null(strstr(came.err, "num_beams"));
}

static void said(void **state) {
    (void)state;
    RUN("inspect", dir);
    expect_ok();
    expect_lines();
    RUN("generate", dir, "-p", "2 + 2 =", "--max-tokens", "2", "--quiet");
    expect_ok();
    expect_lines();
    RUN("generate", "tiny-math", "-p", "2 + 2 =", "--max-tokens", "2", "--quiet");
    expect_ok();
    assert_string_equal(came.err, "");
}

static void said_by_the_server(void **state) {
    (void)state;
    write_file("err", "", 0);
    pid_t pid = start(NULL, -1, (const char *const[]){"serve", dir, "--port", "0", "--threads", "1", NULL});
    for (int waited = 0; waited < START_MS && !strstr(came.err, "listening on"); waited += STEP_MS) {
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
        read_back("err", came.err);
    }
    kill(pid, SIGTERM);
    finish(pid);
    assert_int_equal(came.code, 0);
    expect_lines();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(said), cmocka_unit_test(said_by_the_server)};
    return cmocka_run_group_tests(tests, make_model, remove_folder);
}
