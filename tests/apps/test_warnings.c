/* Warnings about a model directory: two models in one directory, of which the single file is read, as transformers
 * does; settings of generation_config.json that are not applied. Only commands that open the directory warn. */
#include "server.h"

static char two[300], index_file[400], unapplied[300];

static int make_models(void **state) {
    static const char *const files[] = {"config.json",           "model.safetensors",   "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja", "generation_config.json"};
    enum { FILES = sizeof files / sizeof *files };
    static const char config[] =
        "{\"temperature\":0.6,\"no_repeat_ngram_size\":3,\"num_beams\":1,\"bad_words_ids\":[[7]]}";
    static const char line[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
        "\"1\",\"max_tokens\":2}}\n";
    if (make_folder(state) != 0) return -1;
    snprintf(two, sizeof two, "%s", in_folder("two"));
    snprintf(index_file, sizeof index_file, "%s/model.safetensors.index.json", two);
    snprintf(unapplied, sizeof unapplied, "%s", in_folder("unapplied"));
    if (link_model(two, files, FILES) != 0 || link_model(unapplied, files, FILES - 1) != 0) return -1;
    write_file("unapplied/generation_config.json", config, sizeof config - 1);
    write_file("in.jsonl", line, sizeof line - 1);
    return 0;
}

/* Starts a server of the model, waits until it listens, ends it: came.err is its log. */
static void serve_once(const char *model) {
    uint16_t port;
    pid_t pid = serve_by(&port, (const char *const[]){"serve", model, "--port", "0", "--threads", "1", NULL});
    end(pid, SIGTERM);
}

/* ---- two models in one directory ----------------------------------------------------------------------- */

#define UNREAD "model.safetensors was read, model.safetensors.index.json next to it was not\n"

static void with_index(bool there) {
    if (there)
        write_file("two/model.safetensors.index.json", "", 0);
    else
        unlink(index_file);
}

static void two_models_inspected(void **state) {
    (void)state;
    for (int there = 0; there < 2; there++) {
        with_index(there);
        RUN("inspect", two);
        expect_ok();
        if ((strstr(came.out, "  model.safetensors; model.safetensors.index.json is ignored\n") != NULL) != there)
            fail_msg("with%s an index: %s", there ? "" : "out", came.out);
        RUN("inspect", two, "--json");
        json_t *v = expect_json();
        assert_int_equal(json_is_true(json_object_get(v, "index_unread")), there);
        assert_true(json_is_boolean(json_object_get(v, "index_unread")));
        json_decref(v);
    }
    RUN("inspect", "tiny-math", "--json");
    json_t *v = expect_json();
    assert_true(json_is_false(json_object_get(v, "index_unread")));
    json_decref(v);
}

/* Standard error of a command: the warning first, or no warning. */
static void two_models_opened(void **state) {
    (void)state;
#define GENERATE "generate", two, "-p", "2 + 2 =", "--max-tokens", "2", "--quiet"
#define LOAD "bench", "serve", two, "--num-prompts", "2", "--random-input-len", "4", "--random-output-len", "2"
    const struct {
        bool index, warns, silent; /* silent: nothing else on standard error */
        const char *words[16];
    } cases[] = {
        {true, true, true, {GENERATE}},
        {true, false, true, {GENERATE, "--load-format", "dummy"}}, /* reads neither */
        {true, true, false, {"batch", two, "-i", in_folder("in.jsonl"), "-o", "-", "--max-model-len", "64"}},
        {true, true, true, {"verify", two, "--max-tokens", "1", "--axes", "logprobs", "--combinations", "0"}},
        {true, true, true, {LOAD, "--threads", "1"}},
        {true, false, true, {LOAD, "--threads", "1", "--load-format", "dummy"}},
        {false, false, true, {LOAD, "--threads", "1"}},
        {false, false, true, {GENERATE}},
    };
    char warning[500];
    snprintf(warning, sizeof warning, "invar: warning: %s: " UNREAD, two);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = cases[i].warns ? strlen(warning) : 0;
        with_index(cases[i].index);
        finish(start(NULL, -1, cases[i].words));
        expect_ok();
        if (strncmp(came.err, warning, n) != 0 || strstr(came.err + n, "index.json") ||
            (cases[i].silent && came.err[n]))
            fail_msg("case %zu, %s: %s", i, cases[i].words[0], came.err);
    }
    with_index(true);
    serve_once(two);
    assert_non_null(strstr(came.err, " warning: "));
    assert_non_null(strstr(came.err, UNREAD));
}

/* ---- settings that are not applied --------------------------------------------------------------------- */

static void expect_settings(void) {
    assert_non_null(strstr(came.err, "generation_config.json: no_repeat_ngram_size 3 is not applied\n"));
    assert_non_null(strstr(came.err, "generation_config.json: bad_words_ids [[7]] is not applied\n"));
    assert_null(strstr(came.err, "num_beams"));
}

static void unapplied_settings(void **state) {
    (void)state;
    RUN("inspect", unapplied);
    expect_ok();
    expect_settings();
    RUN("generate", unapplied, "-p", "2 + 2 =", "--max-tokens", "2", "--quiet");
    expect_ok();
    expect_settings();
    RUN("generate", "tiny-math", "-p", "2 + 2 =", "--max-tokens", "2", "--quiet");
    expect_ok();
    assert_string_equal(came.err, "");
    serve_once(unapplied);
    expect_settings();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_models_inspected),
        cmocka_unit_test(two_models_opened),
        cmocka_unit_test(unapplied_settings),
    };
    return cmocka_run_group_tests(tests, make_models, remove_folder);
}
