/* Weights that a GPU trained, recorded step by step (tests/data/train/gpu_hashes.txt), trained again on this CPU in
 * tc16. The run of 100 steps of models/tiny-math takes minutes: with INVAR_TEST_LONG. */
#include "run_case.h"

enum { STEPS_MAX = 100 };

typedef struct record {
    const char *run;
    uint64_t steps, same; /* to train; same as on the GPU so far */
    char hash[STEPS_MAX][65];
} record;

/* The recorded hashes of a run, all of its steps. */
static void read_record(const char *run, record *out) {
    char path[4300], name[16], hash[65];
    iv_error err;
    iv_buf file = {0};
    unsigned step;
    *out = (record){.run = run};
    snprintf(path, sizeof path, "%s/tests/data/train/gpu_hashes.txt", INVAR_SOURCE_DIR);
    ASSERT_OK(iv_file_read(path, 1 << 20, &file, &err), &err);
    for (char *line = strtok(file.data, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line == '#') continue;
        assert_int_equal(sscanf(line, "%15s %u %64s", name, &step, hash), 3);
        if (strcmp(name, run) != 0) continue;
        assert_true(step == out->steps + 1 && step <= STEPS_MAX && strlen(hash) == 64);
        strcpy(out->hash[out->steps++], hash);
    }
    assert_true(out->steps > 0);
    iv_buf_free(&file);
}

static void compare_step(void *user, uint64_t step, const char *hash) {
    record *r = user;
    r->same += strcmp(r->hash[step - 1], hash) == 0;
}

static iv_run_options options_of(const char *model, const char *data, record *r) {
    static char paths[2][4300];
    iv_run_options o;
    iv_run_defaults(&o, IV_RUN_SFT);
    snprintf(paths[0], sizeof paths[0], "%s/%s", INVAR_SOURCE_DIR, model);
    snprintf(paths[1], sizeof paths[1], "%s%s%s", *data == '/' ? "" : INVAR_SOURCE_DIR, *data == '/' ? "" : "/", data);
    o.trainer.model = paths[0], o.data = paths[1], o.trainer.arithmetic = "tc16", o.learning_rate = 1e-3,
    o.batch_size = 8;
    o.steps = r->steps, o.quiet = true, o.step = compare_step, o.step_user = r;
    return o;
}

static void expect_same(const iv_run_options *o, const record *r) {
    iv_run_summary s;
    iv_error err;
    ASSERT_OK(iv_run_train(o, &s, &err), &err);
    printf("%s: %llu of %llu steps as on the GPU\n", r->run, (unsigned long long)r->same, (unsigned long long)r->steps);
    if (r->same != r->steps)
        fail_msg("%s: wanted %s after step %llu, found %s", r->run, r->hash[r->steps - 1], (unsigned long long)r->steps,
                 s.weights_hash);
}

/* Each run in another layout; a third of the batches ends an epoch. */
static void small_runs(void **state) {
    (void)state;
    static const struct {
        const char *run, *model;
        uint64_t batch, world, tp, micro_batch;
    } runs[] = {{"dense", "tests/data/hf/qwen3", 8, 2, 1, 0},
                {"experts", "tests/data/hf/qwen3_moe", 8, 1, 2, 0},
                {"tiny", "models/tiny-math", 3, 1, 1, 2}};
    for (size_t i = 0; i < (SANITIZED ? 1 : sizeof runs / sizeof *runs); i++) {
        record r;
        read_record(runs[i].run, &r);
        iv_run_options o = options_of(runs[i].model, "tests/data/train/hashes.jsonl", &r);
        o.batch_size = runs[i].batch, o.seed = 3, o.trainer.weight_decay = 0.1;
        o.trainer.data_parallel = runs[i].world, o.trainer.tensor_parallel = runs[i].tp,
        o.trainer.micro_batch = runs[i].micro_batch;
        expect_same(&o, &r);
    }
}

/* Control: without decay, as with another seed, no step's weights are the recorded ones. */
static void another_run_is_found_out(void **state) {
    (void)state;
    for (int other = 0; other < 2; other++) {
        record r;
        iv_run_summary s;
        iv_error err;
        read_record("dense", &r);
        iv_run_options o = options_of("tests/data/hf/qwen3", "tests/data/train/hashes.jsonl", &r);
        o.steps = 2, o.seed = other ? 4 : 3, o.trainer.weight_decay = other ? 0.1 : 0;
        ASSERT_OK(iv_run_train(&o, &s, &err), &err);
        assert_int_equal(r.same, 0);
    }
}

static void a_hundred_steps(void **state) {
    (void)state;
    if (!getenv("INVAR_TEST_LONG")) {
        printf("SKIPPED: minutes long: INVAR_TEST_LONG=1 runs it\n");
        skip();
    }
    char line[4600];
    record r;
    read_record("long", &r);
    snprintf(line, sizeof line, "python3 %s/models/tiny-math/make.py --count 800 --seed 7 --out %s", INVAR_SOURCE_DIR,
             case_path("problems.jsonl"));
    if (system(line) != 0) {
        printf("SKIPPED: needs python3 to write the data\n");
        skip();
    }
    iv_run_options o = options_of("models/tiny-math", case_path("problems.jsonl"), &r);
    o.trainer.load_format = "dummy", o.trainer.dummy_seed = 3;
    expect_same(&o, &r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_runs), cmocka_unit_test(another_run_is_found_out),
                                       cmocka_unit_test(a_hundred_steps)};
    return cmocka_run_group_tests(tests, case_open, case_close);
}
