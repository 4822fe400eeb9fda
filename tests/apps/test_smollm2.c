/* Real weights (SmolLM2-135M-Instruct, GGUF Q4_1; Gemma 3 270M, GGUF Q4_K_M), where `./run get` has fetched them: the
 * tokenizer's ids as transformers reads them from the same file, known answers, the same bits from one thread and
 * several ranks. */
#include "program.h"

static const char *weights(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", INVAR_SOURCE_DIR);
    const char *given = getenv("INVAR_SMOLLM2");
    if (given) snprintf(path, sizeof path, "%s", given);
    if (access(path, R_OK) == 0) return path;
    printf("SKIPPED: real weights: %s is missing (./run get smollm2 fetches it)\n", path);
    skip();
    return NULL;
}

static const char *gemma(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/build/models/gemma3/gemma-3-270m-q4_k_m.gguf", INVAR_SOURCE_DIR);
    const char *given = getenv("INVAR_GEMMA3");
    if (given) snprintf(path, sizeof path, "%s", given);
    if (access(path, R_OK) == 0) return path;
    printf("SKIPPED: real weights: %s is missing (./run get gemma3 fetches it)\n", path);
    skip();
    return NULL;
}

/* Its greedy continuations in float32 are those of transformers 5.24 from the same file. */
static void gemma_continues_as_transformers_does(void **state) {
    (void)state;
    static const struct {
        const char *prompt, *text;
    } cases[] = {
        {"The capital of France is", " the capital of the country of France. It is the largest city in France and the "
                                     "second largest city in Europe. It"},
        {"1, 2, 3, 5, 8, 13,", " 17, 21, 26, 30, 33, 37,"},
        {"Die Hauptstadt von Deutschland",
         " ist ein Ort, der sich mit seinen vielen Sehensw\xc3\xbcrdigkeiten und kulturellen "
         "Sehensw\xc3\xbcrdigkeiten verbindet. In diesem Artikel"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char digest[80];
        for (int ranks = 1; ranks <= 2; ranks++) {
            RUN("generate", gemma(), "-p", cases[i].prompt, "--temperature", "0", "--max-tokens", "24", "--dtype",
                "float32", "--tp", ranks == 1 ? "1" : "2");
            expect_ok();
            expect_out(cases[i].text);
            if (ranks == 1) snprintf(digest, sizeof digest, "%.79s", strstr(came.err, "\ndigest sha256:"));
            assert_non_null(strstr(came.err, digest));
        }
    }
}

static void text_has_the_ids_of_transformers(void **state) {
    (void)state;
    static const struct {
        const char *text, *ids;
    } cases[] = {
        {"The capital of France is", "[504, 3575, 282, 4649, 314]"},
        {"Hello  world 12345 d\xc3\xa9j\xc3\xa0 vu\n\n  x=1",
         "[19556, 216, 905, 216, 33, 34, 35, 36, 37, 32564, 90, 16739, 386, 101, 8866, 1792, 45, 33]"},
        {"<|im_start|>user\nHi<|im_end|>", "[1, 4093, 198, 26843, 2]"},
        {"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xe3\x83\x86\xe3\x82\xb9\xe3\x83\x88 \xf0\x9f\x99\x82",
         "[23274, 115, 40993, 179, 120, 248, 216, 11100, 224, 10391, 134, 11100, 226, 47526]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RUN("tokenize", weights(), "--json", "--text", cases[i].text);
        expect_ok();
        json_t *want = json_loads(cases[i].ids, 0, NULL), *root = expect_json();
        if (!json_equal(json_object_get(root, "ids"), want)) fail_msg("%s: %s", cases[i].text, came.out);
        json_decref(root), json_decref(want);
    }
}

static void it_knows_a_capital(void **state) {
    (void)state;
    RUN("generate", weights(), "-p", "The capital of France is", "--temperature", "0", "--max-tokens", "2");
    expect_ok();
    expect_out("Paris.");
    RUN("generate", weights(), "--chat", "-p", "What is the capital of France?", "--temperature", "0", "--max-tokens",
        "12");
    expect_ok();
    expect_out("The capital of France is Paris.");
    char digest[80];
    snprintf(digest, sizeof digest, "%.79s", strstr(came.err, "\ndigest sha256:"));
    RUN("generate", weights(), "--chat", "-p", "What is the capital of France?", "--temperature", "0", "--max-tokens",
        "12", "--threads", "1", "--tp", "3");
    expect_ok();
    assert_non_null(strstr(came.err, digest));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_has_the_ids_of_transformers),
                                       cmocka_unit_test(it_knows_a_capital),
                                       cmocka_unit_test(gemma_continues_as_transformers_does)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
