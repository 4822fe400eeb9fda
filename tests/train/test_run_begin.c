/* What is known before step 1 is checked there; a run that did not begin leaves nothing in the way; runs whose schedule
 * allows it can be made longer. */
#include "run_case.h"
#include "base/digest.h"

#include <unistd.h>

static void train(const iv_run_options *o, iv_run_summary *s) {
    iv_error err;
    ASSERT_OK(iv_run_train(o, s, &err), &err);
}

/* Two examples, the second of n tokens. */
static const char *write_long(const char *name, size_t n) {
    FILE *file = fopen(case_path(name), "w");
    assert_non_null(file);
    fputs("{\"ids\": [1, 2, 3]}\n{\"ids\": [7", file);
    for (size_t t = 1; t < n; t++) fputs(", 5", file);
    fputs("]}\n", file);
    assert_int_equal(fclose(file), 0);
    return case_path(name);
}

static const char *write_program(const char *name, const char *text) {
    FILE *file = fopen(case_path(name), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(case_path(name), 0755), 0);
    return case_path(name);
}

static iv_run_options rl_options(const char *output, const char *data) {
    iv_run_options o;
    iv_run_defaults(&o, IV_RUN_RL);
    const iv_run_options base = case_options(output, 2);
    o.trainer.model = base.trainer.model, o.output = base.output, o.data = data, o.steps = 2, o.trainer.threads = 1,
    o.quiet = true;
    o.batch_size = 2, o.group_size = 2, o.max_new_tokens = 4, o.reward = "length";
    return o;
}

enum { POSITIONS = 4096 }; /* of the model */

static void longer_than_the_model_is_found_first(void **state) {
    (void)state;
    rng r = rng_start("longer_than_the_model");
    case_write_data("data.jsonl", &r);
    const char *longer = write_long("long.jsonl", POSITIONS + 1), *fits = write_long("fits.jsonl", POSITIONS - 4);
    iv_run_options o = case_options("long", 2);
    o.data = longer;
    expect_failure(&o, IV_FORMAT, "long.jsonl:2: wanted at most the model's 4096 positions, found 4097 tokens");
    o = case_options("long", 2), o.eval_data = longer;
    expect_failure(&o, IV_FORMAT, "long.jsonl:2: wanted at most the model's 4096 positions, found 4097 tokens");
    o = rl_options("long", fits), o.max_new_tokens = 5;
    expect_failure(&o, IV_FORMAT,
                   "fits.jsonl:2: wanted a prompt and 5 new tokens in the model's 4096 positions, found 4092 tokens");
    o = rl_options("long", case_path("data.jsonl")), o.eval_data = fits, o.max_new_tokens = 5;
    expect_failure(&o, IV_FORMAT, "fits.jsonl:2: wanted a prompt and 5 new tokens");
    assert_int_not_equal(access(case_path("long"), F_OK), 0);
    iv_run_summary s; /* cut, it can be learned */
    o = case_options("cut", 1), o.data = longer, o.batch_size = 1, o.longer = "truncate", o.max_length = 8;
    train(&o, &s);
}

static void a_run_that_failed_leaves_nothing(void **state) {
    (void)state;
    rng r = rng_start("a_run_that_failed");
    iv_run_summary s;
    case_write_data("data.jsonl", &r);
    iv_run_options o = rl_options("late", case_path("data.jsonl"));
    o.reward = "exact"; /* no line has an answer */
    expect_failure(&o, IV_INVALID, "data.jsonl:1: answer: wanted one");
    assert_false(exists(o.output, "metrics.jsonl"));
    o.reward = write_program("dies.sh", "#!/bin/sh\nexit 3\n"); /* at step 1 */
    expect_failure(&o, IV_IO, "reward");
    assert_false(exists(o.output, "metrics.jsonl"));
    o.resume = true;
    expect_failure(&o, IV_IO, "reward");
    assert_false(exists(o.output, "metrics.jsonl"));
    o.resume = false;
    o.reward = "length";
    train(&o, &s);
    assert_true(exists(o.output, "metrics.jsonl"));
    expect_failure(&o, IV_INVALID, "has a run already");
    /* An empty log of an earlier version's run. */
    o = case_options("empty", 1);
    assert_int_equal(mkdir(o.output, 0777), 0);
    fclose(fopen(case_path("empty/metrics.jsonl"), "w"));
    train(&o, &s);
}

static void fewer_examples_than_a_batch_are_named(void **state) {
    (void)state;
    char text[2000] = "";
    rng r = rng_start("fewer_examples");
    iv_run_summary s;
    case_write_data("data.jsonl", &r);
    iv_run_options o = case_options("few", 2);
    o.batch_size = CASE_EXAMPLES + 1, o.quiet = false, o.progress = tmpfile();
    train(&o, &s);
    rewind(o.progress);
    assert_true(fread(text, 1, sizeof text - 1, o.progress) > 0);
    fclose(o.progress);
    const char *at = strstr(text, "fewer than a batch of 21: a step repeats them");
    if (!at || strstr(at + 1, "fewer than a batch")) fail_msg("found: %s", text);
    o = case_options("few-dropped", 2), o.batch_size = CASE_EXAMPLES + 1, o.drop_last = true;
    expect_failure(&o, IV_INVALID, "wanted at most the 20 examples");
}

/* ---- longer runs ------------------------------------------------------------------------------------------------- */

static void runs_can_be_made_longer(void **state) {
    (void)state;
    static const struct { const char *schedule, *warmup; } cases[] = {{"constant", "0"}, {"constant_with_warmup", "2"}};
    rng r = rng_start("runs_can_be_made_longer");
    case_write_data("data.jsonl", &r);
    for (size_t i = 0; i < 2; i++) {
        iv_run_summary want, s;
        case_log log;
        char name[16];
        snprintf(name, sizeof name, "whole%zu", i);
        iv_run_options o = case_options(name, 6);
        o.schedule = cases[i].schedule, o.warmup = cases[i].warmup;
        train(&o, &want);
        case_read_log(o.output, &log);
        snprintf(name, sizeof name, "grown%zu", i);
        o.output = case_path(name), o.steps = 3;
        train(&o, &s);
        o.steps = 6, o.resume = true;
        train(&o, &s);
        assert_int_equal(s.first_step, 3);
        assert_string_equal(s.weights_hash, want.weights_hash);
        assert_string_equal(s.identity, want.identity);
        case_same_log(o.output, &log);
        o.steps = 4; /* fewer: all done before */
        train(&o, &s);
        assert_int_equal(s.steps, 6);
        o.steps = 9, o.seed++;
        expect_failure(&o, IV_INVALID, "belongs to another run: seed: wanted");
    }
}

static void other_schedules_say_how(void **state) {
    (void)state;
    static const char *const schedules[] = {"linear", "cosine", "cosine_with_min_lr", "warmup_stable_decay"};
    rng r = rng_start("other_schedules");
    iv_run_summary s;
    case_write_data("data.jsonl", &r);
    for (size_t i = 0; i < 4; i++) {
        iv_run_options o = case_options(schedules[i], 2);
        char words[200];
        o.schedule = schedules[i];
        train(&o, &s);
        o.steps = 4, o.resume = true;
        snprintf(words, sizeof words,
                 "The rates of schedule %s depend on the number of steps: wanted --steps 2 as before", schedules[i]);
        expect_failure(&o, IV_INVALID, words);
    }
    iv_run_options o = case_options("ratio", 4);
    o.schedule = "constant_with_warmup", o.warmup = "0.5";
    train(&o, &s);
    o.steps = 8, o.resume = true;
    expect_failure(&o, IV_INVALID, "A ratio of other steps is another warm-up: wanted --warmup 2");
    o.warmup = "2";
    train(&o, &s);
    assert_int_equal(s.first_step, 4);
}

/* ---- a checkpoint of an earlier version, which had the steps in its identity ------------------------------------- */

static json_t *read_json(const char *path) {
    json_t *j = json_load_file(path, 0, NULL);
    if (!j) fail_msg("%s: not JSON", path);
    return j;
}

static void hex_of_file(const char *path, char hex[65], size_t *bytes) {
    iv_buf text = {0};
    iv_error err;
    uint8_t digest[32];
    ASSERT_OK(iv_file_read(path, 1 << 20, &text, &err), &err);
    iv_digest *d = iv_digest_new();
    iv_digest_add(d, text.data, text.len);
    iv_digest_finish(d, digest);
    iv_digest_hex(digest, hex);
    *bytes = text.len;
    iv_buf_free(&text);
}

/* Rewrites checkpoint-000003 of the folder with `identity`, and steps 3 among its hyperparameters. */
static void make_it_old(const char *output, const char *identity) {
    char record[400], manifest[400], hex[65];
    size_t bytes, i;
    json_t *entry;
    snprintf(record, sizeof record, "%s/checkpoint-000003/training.json", output);
    snprintf(manifest, sizeof manifest, "%s/checkpoint-000003/manifest.json", output);
    json_t *j = read_json(record), *m = read_json(manifest);
    assert_null(json_object_get(json_object_get(j, "hyperparameters"), "steps"));
    json_object_set_new(json_object_get(j, "hyperparameters"), "steps", json_integer(3));
    json_object_set_new(j, "identity", json_string(identity));
    json_object_set_new(m, "identity", json_string(identity));
    assert_int_equal(json_dump_file(j, record, 0), 0);
    hex_of_file(record, hex, &bytes);
    json_array_foreach(json_object_get(m, "files"), i, entry) {
        if (strcmp(json_string_value(json_object_get(entry, "name")), "training.json") != 0) continue;
        json_object_set_new(entry, "bytes", json_integer((json_int_t)bytes));
        json_object_set_new(entry, "sha256", json_string(hex));
    }
    assert_int_equal(json_dump_file(m, manifest, 0), 0);
    json_decref(j), json_decref(m);
}

/* The identity is SHA-256 over versions, initial weights, the data's digest and the hyperparameters: it was recorded
 * from the version before, with this data and these options. */
static void checkpoints_with_steps_go_on(void **state) {
    (void)state;
    static const char old[] = "ivt3-fma32-bfloat16-4b5d851d93f7f824";
    iv_run_summary want, s;
    FILE *file = fopen(case_path("fixed.jsonl"), "w");
    assert_non_null(file);
    for (int i = 0; i < 7; i++) fprintf(file, "{\"ids\": [%d, 4, 5, 6, %d]}\n", i + 1, 7 * i);
    fclose(file);
    iv_run_options o = case_options("new", 6);
    o.data = case_path("fixed.jsonl"), o.schedule = "constant", o.batch_size = 3;
    train(&o, &want);
    o.output = case_path("old"), o.steps = 3;
    train(&o, &s);
    make_it_old(o.output, old);
    o.steps = 6, o.resume = true;
    train(&o, &s);
    assert_int_equal(s.first_step, 3);
    assert_string_equal(s.weights_hash, want.weights_hash);
    assert_string_equal(s.identity, old);
    train(&o, &s);
    assert_int_equal(s.first_step, 6);
    o.trainer.weight_decay = 0;
    expect_failure(&o, IV_INVALID, "belongs to another run: weight_decay: wanted");
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, case_open, case_close)
        CASE(longer_than_the_model_is_found_first),
        CASE(a_run_that_failed_leaves_nothing),
        CASE(fewer_examples_than_a_batch_are_named),
        CASE(runs_can_be_made_longer),
        CASE(other_schedules_say_how),
        CASE(checkpoints_with_steps_go_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
