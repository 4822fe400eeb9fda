/* The training of ./run demo-rl: its first steps give recorded weights, for every instruction set and number of
 * threads. */
#include "program.h"

#define MODEL INVAR_SOURCE_DIR "/models/tiny-sum"

enum { FLAGS_MAX = 24, STEPS = 5 };

/* The words of rl_flags in ./run, so that the demo and this test cannot differ. */
static char line[1024];
static const char *flags[FLAGS_MAX + 1];

static int read_flags(void **state) {
    static const char start[] = "rl_flags='";
    FILE *file = fopen(source_path("run"), "r");
    bool found = false;
    size_t n = 0;
    if (!file || make_folder(state) != 0) return -1;
    while (!found && fgets(line, sizeof line, file)) found = strncmp(line, start, sizeof start - 1) == 0;
    fclose(file);
    if (!found) return -1;
    for (char *word = strtok(line + sizeof start - 1, " '\n"); word; word = strtok(NULL, " '\n")) {
        if (n == FLAGS_MAX) return -1;
        flags[n++] = word;
    }
    return n > 0 ? 0 : -1;
}

/* Trains STEPS steps with the demo's flags, of which `batch` replaces --batch-size if it is not NULL; more: a flag. */
static void expect_weights_with(const char *more, const char *batch, const char *isa, const char *threads,
                                const char *weights) {
    static const char *const data = MODEL "/problems.jsonl";
    const char *words[ARGS_MAX] = {"train",          "rl",      MODEL,   "--data", data, "--output",
                                   in_folder("run"), "--steps", "5",     "--isa",  isa,  "--threads",
                                   threads,          "--quiet", "--json"};
    size_t n = 15;
    char command[300];
    for (size_t i = 0; flags[i]; i++) {
        words[n++] = flags[i];
        if (batch && strcmp(flags[i], "--batch-size") == 0) words[n++] = batch, i++;
    }
    if (more) words[n++] = more;
    snprintf(command, sizeof command, "rm -rf %s", in_folder("run"));
    assert_int_equal(system(command), 0);
    finish(start(NULL, -1, words));
    expect_ok();
    json_t *o = expect_json();
    assert_int_equal(json_integer_value(json_object_get(o, "steps")), STEPS);
    assert_true(json_integer_value(json_object_get(o, "tokens_compared")) > 0);
    assert_int_equal(json_integer_value(json_object_get(o, "tokens_different")), 0);
    if (strcmp(text_of(o, "weights"), weights) != 0)
        fail_msg("%s, %s threads: weights %s, wanted %s", isa, threads, text_of(o, "weights"), weights);
    json_decref(o);
}

static void expect_weights(const char *batch, const char *isa, const char *threads, const char *weights) {
    expect_weights_with(NULL, batch, isa, threads, weights);
}

/* The weights of the time when ids without a token were drawn. */
static void all_ids(void **state) {
    static const char *const all = "--sample-all-ids";
    (void)state;
    expect_weights_with(all, NULL, "auto", "2", "8d7b91229d3a4c442247520317b5c2264a36b50eadbe485b8525a8c648b9e034");
    expect_weights_with(all, "2", "auto", "1", "aa0c31f9633c9756a236af0e44bbaf5a8646239493177167e8f311720baeda1c");
}

static void first_steps(void **state) {
    static const char weights[] = "28f80f4d06aa056ddb6eef5651965974a6d010356cfad32ef46845823fb3ee84";
    (void)state;
    expect_weights(NULL, "auto", "2", weights);
    expect_weights(NULL, "avx2", "1", weights);
}

/* Plain C is slow, so the batches are small. */
static void first_steps_small(void **state) {
    static const char weights[] = "438ac999acfa53b8d4dcfce704cc45f175cb7e33b9168e855f8e85c1abea536b";
    (void)state;
    expect_weights("2", "auto", "1", weights);
    expect_weights("2", "avx2", "3", weights);
    expect_weights("2", "scalar", "2", weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_steps),
        cmocka_unit_test(first_steps_small),
        cmocka_unit_test(all_ids),
    };
    return cmocka_run_group_tests(tests, read_flags, remove_folder);
}
