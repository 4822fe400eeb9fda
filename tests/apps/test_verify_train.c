/* invar verify --train as a user runs it: one hash of the weights after every step in all configurations; the
 * baselines, and a run with another seed, are found to differ. */
#include "program.h"
#include "xml.h"

#define MODEL source_path("tests/data/hf/qwen3")

static json_t *read_json(const char *name) {
    static char text[OUTPUT_MAX];
    json_error_t why;
    size_t n = read_back(name, text);
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!value) fail_msg("%s: not JSON: %s", name, why.text);
    return value;
}

static json_int_t count_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no whole number \"%s\"", key);
    return json_integer_value(value);
}

/* Temporary folders of the runs go to the test's own, and must be gone afterwards. */
static void expect_no_leftovers(void) {
    char command[400];
    snprintf(command, sizeof command, "ls %s | grep -q invar-verify", folder);
    assert_int_not_equal(system(command), 0);
}

static int open_folder(void **state) {
    int status = make_folder(state);
    setenv("TMPDIR", folder, 1);
    return status;
}

/* ---- equal --------------------------------------------------------------------------------------------- */

static void every_configuration_is_equal(void **state) {
    (void)state;
    RUN("verify", MODEL, "--train", "--steps", "4", "--scalar-steps", "1", "--batch-size", SANITIZED ? "4" : "10",
        "--combinations",
        SANITIZED                   ? "1"
        : getenv("INVAR_TEST_LONG") ? "6"
                                    : "3",
        "--json", in_folder("equal.json"), "--plot", in_folder("equal.svg"));
    if (came.code != 0) fail_msg("exit code %d: %s%s", came.code, came.out, came.err);
    assert_string_equal(came.err, "");
    expect_out("unique weights 1 at most after a step");
    expect_no_leftovers();
    json_t *found = read_json("equal.json"), *config;
    assert_true(json_is_true(json_object_get(found, "equal")));
    assert_int_equal(count_of(found, "unique_weights"), 1);
    assert_int_equal(json_array_size(json_object_get(found, "weights")), 4);
    size_t i, ran = 0, interrupted = 0;
    json_array_foreach(json_object_get(found, "configurations"), i, config) {
        if (strcmp(text_of(config, "status"), "not run") == 0) continue;
        assert_string_equal(text_of(config, "status"), "equal");
        assert_true(count_of(config, "steps") == 4 || strcmp(text_of(config, "name"), "isa scalar") == 0);
        interrupted += json_array_size(json_object_get(config, "parts")) > 1;
        ran++;
    }
    assert_int_equal(count_of(found, "configurations_compared"), ran - 1);
    assert_true(ran >= 16 && interrupted >= 2);
    json_decref(found);
    static char picture[OUTPUT_MAX];
    read_back("equal.svg", picture);
    const char *at = xml_broken_at(picture);
    if (at) fail_msg("equal.svg: not well-formed at: %.60s", at);
    assert_non_null(strstr(picture, "1 unique set of weights<"));
    assert_null(strstr(picture, ": weights differ"));
}

static void other_arithmetics_and_families(void **state) {
    (void)state;
    static const struct {
        const char *model, *arithmetic, *dtype;
    } cases[] = {{"qwen3_moe", "fma32", "bfloat16"}, {"llama31", "tc16", "bfloat16"}, {"qwen2", "fma32", "float32"}};
    char weights[3][65];
    for (size_t i = 0; i < (SANITIZED ? 1 : 3); i++) {
        char model[96];
        snprintf(model, sizeof model, "tests/data/hf/%s", cases[i].model);
        RUN("verify", source_path(model), "--train", "--steps", "3", "--batch-size", "9", "--arithmetic",
            cases[i].arithmetic, "--dtype", cases[i].dtype, "--axes", "world,micro-batch,tp,recompute,resume",
            "--worlds", "2,8", "--micro-batches", "2", "--tp-sizes", "2", "--combinations", "2", "--json", "-");
        if (came.code != 0) fail_msg("%s: exit code %d: %s", cases[i].model, came.code, came.err);
        json_t *found = expect_json();
        assert_string_equal(text_of(found, "arithmetic"), cases[i].arithmetic);
        assert_string_equal(text_of(found, "dtype"), cases[i].dtype);
        snprintf(weights[i], 65, "%s", json_string_value(json_array_get(json_object_get(found, "weights"), 2)));
        for (size_t k = 0; k < i; k++) assert_string_not_equal(weights[i], weights[k]);
        json_decref(found);
    }
}

/* An adapter that learns; the control; and what does not go together. */
static void adapters(void **state) {
    (void)state;
    for (int vanilla = 0; vanilla < 2; vanilla++) {
        RUN("verify", MODEL, "--train", "--lora-rank", "3", "--lora-targets", "q_proj,down_proj,lm_head", "--steps",
            "2", "--batch-size", "6", "--numerics", vanilla ? "vanilla" : "invar", "--axes",
            "world,micro-batch,tp,resume", "--worlds", "2", "--micro-batches", "1", "--tp-sizes", "4", "--combinations",
            "1", "--json", "-");
        assert_int_equal(came.code, vanilla);
        json_t *found = expect_json();
        assert_int_equal(count_of(found, "lora_rank"), 3);
        assert_true((count_of(found, "unique_weights") > 1) == vanilla);
        json_decref(found);
    }
    RUN("verify", MODEL, "--train", "--lora-modules", "a=b");
    expect_error(2, "--lora-modules does not go with --train");
    RUN("verify", MODEL, "--lora-rank", "3");
    expect_error(2, "--lora-rank needs --train");
    RUN("verify", MODEL, "--train", "--lora-targets", "q_proj");
    expect_error(2, "--lora-targets: wanted --lora-rank too");
}

/* Documents of several blocks of 64 positions, most of them no multiple of it. */
static void write_long_documents(const char *name) {
    static const size_t lengths[] = {230, 3, 64, 65, 17};
    static char text[OUTPUT_MAX];
    size_t n = 0;
    for (size_t d = 0; d < sizeof lengths / sizeof *lengths; d++) {
        n += (size_t)sprintf(text + n, "{\"ids\": [");
        for (size_t t = 0; t < lengths[d]; t++)
            n += (size_t)sprintf(text + n, "%s%zu", t ? ", " : "", (d * 131 + t * t * 7 + t * 13) % 310);
        n += (size_t)sprintf(text + n, "]}\n");
    }
    write_file(name, text, n);
}

/* Linear attention and short convolutions, with experts too; and the control. tests/train/test_states.c has ranks. */
static void layers_with_a_state(void **state) {
    (void)state;
    static const struct {
        const char *model, *arithmetic, *dtype;
    } cases[] = {{"qwen3_5_text_a", "fma32", "bfloat16"},
                 {"qwen3_5_moe_a", "tc16", "bfloat16"},
                 {"qwen3_next_a", "fma32", "float32"},
                 {"lfm2_moe_a", "fma32", "bfloat16"}};
    write_long_documents("long.jsonl");
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof cases / sizeof *cases); i++) {
        char model[96];
        snprintf(model, sizeof model, "tests/data/families/%s", cases[i].model);
        RUN("verify", source_path(model), "--train", "--data", in_folder("long.jsonl"), "--steps", "2", "--batch-size",
            "5", "--arithmetic", cases[i].arithmetic, "--dtype", cases[i].dtype, "--scalar-steps", "1", "--worlds",
            "2,8", "--micro-batches", "1,3", "--axes", "threads,isa,world,micro-batch,recompute,resume",
            "--combinations", "2", "--json", "-");
        if (came.code != 0) fail_msg("%s: exit code %d: %s", cases[i].model, came.code, came.err);
        json_t *found = expect_json();
        assert_int_equal(count_of(found, "unique_weights"), 1);
        assert_true(count_of(found, "configurations_compared") >= 12);
        json_decref(found);
    }
    RUN("verify", source_path("tests/data/families/qwen3_5_text_a"), "--train", "--data", in_folder("long.jsonl"),
        "--numerics", "vanilla", "--steps", "2", "--batch-size", "5", "--axes", "micro-batch", "--micro-batches", "1",
        "--combinations", "0", "--json", "-");
    assert_int_equal(came.code, 1);
    json_t *found = expect_json();
    assert_true(count_of(found, "unique_weights") > 1);
    json_decref(found);
}

/* The same words give the same weights; another seed gives others from the first step on. */
static void seeds_decide(void **state) {
    (void)state;
    char weights[3][3][65];
    for (size_t i = 0; i < 3; i++) {
        RUN("verify", MODEL, "--train", "--steps", "3", "--axes", "threads", "--thread-counts", "2", "--seed",
            i == 2 ? "8" : "7", "--json", "-");
        expect_ok();
        json_t *found = expect_json(), *list = json_object_get(found, "weights");
        for (size_t s = 0; s < 3; s++) snprintf(weights[i][s], 65, "%s", json_string_value(json_array_get(list, s)));
        json_decref(found);
    }
    for (size_t s = 0; s < 3; s++) {
        assert_string_equal(weights[0][s], weights[1][s]);
        assert_string_not_equal(weights[0][s], weights[2][s]);
    }
}

static void data_from_a_file(void **state) {
    (void)state;
    static const char lines[] = "{\"ids\": [5, 6, 7, 8]}\n{\"ids\": [300, 2, 9], \"mask\": [0, 1, 0.5]}\n";
    write_file("two.jsonl", lines, sizeof lines - 1);
    RUN("verify", MODEL, "--train", "--data", in_folder("two.jsonl"), "--steps", "2", "--axes", "world", "--worlds",
        "8,1,8");
    expect_ok();
    expect_out("from /tmp/"); /* the file */
    expect_out("over 2 configurations");
    write_file("bad.jsonl", "{\"ids\": [5, 512]}\n", 18);
    RUN("verify", MODEL, "--train", "--data", in_folder("bad.jsonl"));
    expect_error(1, "bad.jsonl:1: ids[1]: wanted a token id from 0 to 511, found 512");
    RUN("verify", MODEL, "--train", "--data", in_folder("absent.jsonl"));
    expect_error(1, "absent.jsonl");
    expect_no_leftovers();
}

/* ---- different ----------------------------------------------------------------------------------------- */

static size_t differing(json_t *found, const char *name) {
    size_t i;
    json_t *config;
    json_array_foreach(json_object_get(found, "configurations"), i,
                       config) if (strcmp(text_of(config, "name"), name) == 0) {
        const json_t *first = json_object_get(config, "first_difference");
        if (!first) return 0;
        assert_string_equal(text_of(config, "status"), "differs");
        assert_string_not_equal(text_of(first, "wanted"), text_of(first, "found"));
        return (size_t)count_of(first, "step");
    }
    fail_msg("no configuration '%s'", name);
    return 0;
}

static void vanilla_is_found_out(void **state) {
    (void)state;
    RUN("verify", MODEL, "--train", "--numerics", "vanilla", "--steps", "3", "--axes", "micro-batch,tp",
        "--micro-batches", "1,2", "--tp-sizes", "2", "--combinations", "1", "--json", in_folder("vanilla.json"),
        "--plot", in_folder("vanilla.svg"));
    assert_int_equal(came.code, 1);
    if (strncmp(came.err, "invar: ", 7) != 0 ||
        !strstr(came.err, "configurations differ, first tp 2: step 1, wanted weights ") || strchr(came.err, '\n')[1])
        fail_msg("not one clear line: %s", came.err);
    json_t *found = read_json("vanilla.json");
    assert_true(json_is_false(json_object_get(found, "equal")));
    assert_true(count_of(found, "unique_weights") > 1);
    assert_int_equal(differing(found, "micro-batch 1"), 1);
    assert_int_equal(differing(found, "tp 2"), 1);
    json_decref(found);
    static char picture[OUTPUT_MAX];
    read_back("vanilla.svg", picture);
    assert_null(xml_broken_at(picture));
    assert_non_null(strstr(picture, "micro-batch 1, step 1: weights differ"));
}

/* bio holds across passes, and not across ranks. */
static void bio_differs_across_ranks(void **state) {
    (void)state;
    RUN("verify", MODEL, "--train", "--numerics", "bio", "--steps", "2", "--axes", "micro-batch,tp", "--micro-batches",
        "1", "--tp-sizes", "2", "--combinations", "0", "--json", "-");
    assert_int_equal(came.code, 1);
    json_t *found = expect_json();
    assert_int_equal(differing(found, "micro-batch 1"), 0);
    assert_int_equal(differing(found, "tp 2"), 1);
    json_decref(found);
}

/* ---- parts --------------------------------------------------------------------------------------------- */

#define FEW "verify", MODEL, "--train", "--steps", "2", "--axes", "world,threads", "--worlds", "2,4"

/* Every configuration of the whole is in one part, with its seed; each part has the quiet run. */
static void parts_make_the_whole(void **state) {
    (void)state;
    json_t *whole, *config, *same;
    RUN(FEW, "--combinations", "3", "--json", "-");
    expect_ok();
    whole = json_object_get(expect_json(), "configurations");
    size_t i, k, found[16] = {0}, count = json_array_size(whole);
    assert_int_equal(count, 8);
    static const char *const parts[] = {"1/3", "2/3", "3/3"};
    for (size_t part = 0; part < 3; part++) {
        RUN(FEW, "--combinations", "3", "--part", parts[part], "--json", "-");
        expect_ok();
        json_t *report = expect_json();
        json_array_foreach(json_object_get(report, "configurations"), i, config) {
            json_array_foreach(whole, k, same) if (count_of(same, "seed") == count_of(config, "seed")) {
                found[k]++;
                assert_string_equal(text_of(same, "name"), text_of(config, "name"));
                assert_string_equal(text_of(same, "weights"), text_of(config, "weights"));
            }
        }
        json_decref(report);
    }
    assert_int_equal(found[0], 3);
    for (k = 1; k < count; k++) assert_int_equal(found[k], 1);
}

/* ---- refused ------------------------------------------------------------------------------------------- */

static void usage_is_checked(void **state) {
    (void)state;
    static const struct {
        const char *words[7], *said;
    } cases[] = {
        {{"verify", "tiny-math", "--steps", "3"}, "--steps needs --train"},
        {{"verify", "tiny-math", "--worlds", "2"}, "--worlds needs --train"},
        {{"verify", "tiny-math", "--train", "--prompts", "-"}, "--prompts does not go with --train"},
        {{"verify", "tiny-math", "--train", "--device", "gpu"}, "--device: wanted one of: auto cpu cuda, found 'gpu'"},
        {{"verify", "tiny-math", "--train", "--axes", "batch"},
         "--axes: wanted some of threads,isa,tp,device,world,micro-batch,recompute,resume, found 'batch'"},
        {{"verify", "tiny-math", "--axes", "world"}, "speculative,device,weights, found 'world'"},
        {{"verify", "tiny-math", "--train", "--worlds", "0"}, "--worlds: wanted numbers from 1 to 64, found 0"},
        {{"verify", "tiny-math", "--train", "--axes=tp", "--worlds=2"}, "--worlds needs world among --axes"},
        {{"verify", "tiny-math", "--train", "--steps", "0"}, "--steps: wanted"},
        {{"verify", "tiny-math", "--part", "1/2"}, "--part needs --train"},
        {{"verify", "tiny-math", "--train", "--part", "0/2"}, "--part: wanted I/N with I from 1 to N"},
        {{"verify", "tiny-math", "--train", "--part", "3/2"}, "--part: wanted I/N with I from 1 to N"},
        {{"verify", "tiny-math", "--train", "--part", "1/2x"}, "--part: wanted I/N with I from 1 to N"},
        {{"verify", "tiny-math", "--train", "--part", "1/-2"}, "N at most 4096, found '1/-2'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[8] = {0};
        memcpy(words, cases[i].words, sizeof cases[i].words);
        finish(start(NULL, -1, words));
        expect_error(2, cases[i].said);
    }
    RUN("verify", MODEL, "--train", "--numerics", "vanilla-blas");
    expect_error(1, "found vanilla-blas");
    RUN("verify", MODEL, "--train", "--plot", in_folder("no/such/folder.svg"));
    expect_error(1, "no/such/folder.svg: cannot write");
    /* Values that the model or the virtual ranks do not divide into are named, and nothing is left to compare. */
    RUN("verify", MODEL, "--train", "--steps", "1", "--axes", "world,tp", "--worlds", "3", "--tp-sizes", "3", "--json",
        "-");
    assert_int_equal(came.code, 1);
    assert_non_null(strstr(came.err, "no configuration could be compared"));
    json_t *found = expect_json(), *config = json_array_get(json_object_get(found, "configurations"), 2);
    assert_string_equal(text_of(config, "status"), "not run");
    assert_non_null(strstr(text_of(config, "reason"), "3"));
    json_decref(found);
    setenv("TMPDIR", in_folder("absent"), 1);
    RUN("verify", MODEL, "--train");
    setenv("TMPDIR", folder, 1);
    expect_error(1, "cannot make a temporary folder: No such file or directory");
}

static void an_interrupt_ends_it(void **state) {
    (void)state;
    const struct timespec moment = {.tv_nsec = 20000000};
    pid_t pid = start(
        NULL, -1, (const char *const[]){"verify", MODEL, "--train", "--steps", "10", "--combinations", "1000", NULL});
    struct stat st = {0};
    for (size_t i = 0; i < 1500 && st.st_size == 0; i++) { /* until the first row is out */
        nanosleep(&moment, NULL);
        assert_int_equal(stat(in_folder("out"), &st), 0);
    }
    kill(pid, SIGINT);
    finish(pid);
    assert_int_equal(came.code, 128 + SIGINT);
    assert_string_equal(came.err, "");
    expect_out("quiet run");
    expect_no_leftovers();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_configuration_is_equal),
        cmocka_unit_test(other_arithmetics_and_families),
        cmocka_unit_test(adapters),
        cmocka_unit_test(layers_with_a_state),
        cmocka_unit_test(seeds_decide),
        cmocka_unit_test(data_from_a_file),
        cmocka_unit_test(vanilla_is_found_out),
        cmocka_unit_test(bio_differs_across_ranks),
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(usage_is_checked),
        cmocka_unit_test(an_interrupt_ends_it),
    };
    return cmocka_run_group_tests(tests, open_folder, remove_folder);
}
