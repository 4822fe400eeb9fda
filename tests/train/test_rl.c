/* Reinforcement learning: every sampled token has the learner's log-probability in every bit, and the weights are one
 * set of bits, however rollouts and learner are divided. INVAR_RL_STEPS: of each run; 300 for the long form. */
#include "support.h"
#include "train/run.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct rl_way {
    const char *name;
    size_t rollout_tp, seqs, chunk, world, tp, micro_batch;
    const char *speculative, *recompute;
} rl_way;

static int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *w) {
    (void)s, (void)kind, (void)w;
    return remove(path);
}

static void problems_of(const char *dir, char path[300]) {
    snprintf(path, 300, "%s/problems.jsonl", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 40; i++)
        fprintf(f, "{\"ids\": [%d, %d, %d, %d], \"answer\": \"\"}\n", 5 + i, 7 * i % 400, 3, i * i % 300);
    fclose(f);
}

/* These models have no tokenizer, so no text to judge: a program that gives each completion another number. */
static const char *reward_program(const char *base) {
    static char path[300];
    snprintf(path, sizeof path, "%s/reward.sh", base);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("#!/bin/sh\n"
          "while IFS= read -r line; do\n"
          "    id=${line#*'\"id\":'}\n"
          "    id=${id%%,*}\n"
          "    echo '{\"id\":'$id',\"reward\":'$((id % 16 * 7 % 5))'}'\n"
          "done\n",
          f);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
    return path;
}

static uint64_t steps_of(void) {
    const char *text = getenv("INVAR_RL_STEPS");
    return text ? strtoull(text, NULL, 10) : 4;
}

static void options_of(iv_run_options *o, const char *base, const char *model, const char *data, const char *out) {
    iv_run_defaults(o, IV_RUN_RL);
    o->trainer.model = model, o->data = data, o->output = out;
    o->algorithm = "grpo", o->reward = reward_program(base), o->batch_size = 4, o->group_size = 4,
    o->max_new_tokens = 24;
    o->steps = steps_of(), o->learning_rate = 1e-3, o->seed = 11, o->trainer.threads = 2;
}

/* Steps of a run's log after which the weights are others than before. */
static size_t moves_of(const char *dir) {
    char path[500], line[4096], last[80] = "";
    size_t moves = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"weights\":\"");
        assert_non_null(at);
        moves += strncmp(last, at, 75) != 0;
        snprintf(last, sizeof last, "%.75s", at);
    }
    fclose(f);
    return moves;
}

static void run_way(const rl_way *w, const char *model, const char *data, const char *base, iv_run_summary *out) {
    char dir[400];
    iv_run_options o;
    iv_error err;
    snprintf(dir, sizeof dir, "%s/%s", base, w->name);
    options_of(&o, base, model, data, dir);
    o.rollout_tp = w->rollout_tp, o.rollout_seqs = w->seqs, o.rollout_batched_tokens = w->chunk;
    o.trainer.data_parallel = w->world, o.trainer.tensor_parallel = w->tp, o.trainer.micro_batch = w->micro_batch;
    o.speculative = w->speculative, o.trainer.recompute = w->recompute;
    ASSERT_OK(iv_run_train(&o, out, &err), &err);
    assert_int_equal(out->different, 0);
    assert_true(out->compared > 0 && out->largest_difference == 0);
    assert_int_equal(moves_of(dir), o.steps);
}

static void no_mismatch_and_one_hash(void **state) {
    (void)state;
    static const rl_way ways[] = {{"plain", 1, 16, 512, 1, 1, 0, "off", "none"},
                                  {"rollouts-of-four", 4, 7, 512, 2, 1, 0, "ngram", "none"},
                                  {"small-steps", 2, 3, 40, 4, 1, 1, "off", "layer"},
                                  {"learner-of-two", 1, 16, 64, 1, 2, 3, "off", "attention"}};
    static const char *const models[] = {"tests/data/hf/qwen3", "tests/data/hf/qwen3_moe"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char base[] = "/tmp/invar-rl-XXXXXX", data[300], model[4200];
        iv_run_summary want, got;
        assert_non_null(mkdtemp(base));
        problems_of(base, data);
        snprintf(model, sizeof model, "%s/%s", INVAR_SOURCE_DIR, models[m]);
        run_way(&ways[0], model, data, base, &want);
        for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
            run_way(&ways[i], model, data, base, &got);
            if (strcmp(want.weights_hash, got.weights_hash) != 0)
                fail_msg("%s, %s: another hash", models[m], ways[i].name);
            assert_string_equal(want.identity, got.identity);
        }
        printf("%s: tokens compared %llu, different %llu; weights %.16s\n", models[m],
               (unsigned long long)want.compared, (unsigned long long)want.different, want.weights_hash);
        nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* An adapter that learns goes into the sampler without a file; a sampler with an older one is found. */
static void adapters_have_no_mismatch(void **state) {
    (void)state;
    static const rl_way ways[] = {{"plain", 1, 16, 512, 1, 1, 0, "off", "none"},
                                  {"others", 4, 7, 40, 2, 1, 1, "ngram", "layer"},
                                  {"learner-of-four", 1, 3, 64, 1, 4, 0, "off", "attention"}};
    char base[] = "/tmp/invar-rl-XXXXXX", data[300], dir[400], from[4200];
    iv_run_summary want, got;
    iv_run_options o;
    iv_error err;
    assert_non_null(mkdtemp(base));
    problems_of(base, data);
    snprintf(from, sizeof from, "%s/tests/data/adapters/qwen3_head", INVAR_SOURCE_DIR);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const rl_way *w = &ways[i];
        snprintf(dir, sizeof dir, "%s/%s", base, w->name);
        options_of(&o, base, INVAR_SOURCE_DIR "/tests/data/hf/qwen3", data, dir);
        o.trainer.lora = from, o.learning_rate = 1e-2, o.kl_beta = 0.05, o.inner_steps = 2;
        o.rollout_tp = w->rollout_tp, o.rollout_seqs = w->seqs, o.rollout_batched_tokens = w->chunk;
        o.trainer.data_parallel = w->world, o.trainer.tensor_parallel = w->tp, o.trainer.micro_batch = w->micro_batch;
        o.speculative = w->speculative, o.trainer.recompute = w->recompute;
        ASSERT_OK(iv_run_train(&o, i ? &got : &want, &err), &err);
        if (i) assert_string_equal(want.weights_hash, got.weights_hash);
        assert_int_equal(i ? got.different : want.different, 0);
        assert_int_equal(moves_of(dir), o.steps);
    }
    printf("adapters: tokens compared %llu, different %llu\n", (unsigned long long)want.compared,
           (unsigned long long)want.different);
    assert_true(want.compared > 0);
    snprintf(dir, sizeof dir, "%s/older", base);
    o.rollout_sync_every = 2, o.on_mismatch = "report", o.trainer.tensor_parallel = 1;
    ASSERT_OK(iv_run_train(&o, &got, &err), &err);
    assert_true(got.different > 0);
    o.rollout_sync_every = 1, o.rollout_numerics = "vanilla";
    assert_int_equal(iv_run_train(&o, &got, &err), IV_INVALID); /* its directory has a run */
    snprintf(dir, sizeof dir, "%s/vanilla", base);
    assert_int_equal(iv_run_train(&o, &got, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "--rollout-numerics: wanted invar for an adapter"));
    nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Control: rollouts that add as other engines do are caught at the first step, or counted. */
static void other_sums_are_caught(void **state) {
    (void)state;
    char base[] = "/tmp/invar-rl-XXXXXX", data[300], model[4200], dir[400];
    iv_run_summary s;
    iv_run_options o;
    iv_error err;
    assert_non_null(mkdtemp(base));
    problems_of(base, data);
    snprintf(model, sizeof model, "%s/tests/data/hf/qwen3", INVAR_SOURCE_DIR);
    snprintf(dir, sizeof dir, "%s/stop", base);
    options_of(&o, base, model, data, dir);
    o.rollout_numerics = "vanilla", o.steps = 2;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "the sampler's log-probability"));
    snprintf(dir, sizeof dir, "%s/stop-ranks", base); /* no rank waits for the one that found it */
    o.trainer.tensor_parallel = 2, o.trainer.data_parallel = 2;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "the sampler's log-probability"));
    o.trainer.tensor_parallel = 1, o.trainer.data_parallel = 1;
    snprintf(dir, sizeof dir, "%s/report", base);
    o.on_mismatch = "report";
    ASSERT_OK(iv_run_train(&o, &s, &err), &err);
    assert_true(s.different > 0 && s.largest_difference > 0);
    printf("vanilla rollouts: tokens compared %llu, different %llu, largest difference %.3g\n",
           (unsigned long long)s.compared, (unsigned long long)s.different, s.largest_difference);
    nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void run_control(iv_run_options *o, const char *base, const char *name, iv_run_summary *s) {
    char dir[400];
    iv_error err;
    snprintf(dir, sizeof dir, "%s/%s", base, name);
    o->output = dir;
    ASSERT_OK(iv_run_train(o, s, &err), &err);
    printf("%s: tokens compared %llu, different %llu, largest difference %.3g\n", name, (unsigned long long)s->compared,
           (unsigned long long)s->different, s->largest_difference);
}

/* Controls: coarser or older weights in the sampler are other distributions; the type's own bits are not. */
static void other_weights_are_counted(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t bits, every;
        bool differs;
    } ways[] = {
        {"own-bits", 7, 1, false}, {"six-bits", 6, 1, true}, {"two-bits", 2, 1, true}, {"every-two", 23, 2, true}};
    char base[] = "/tmp/invar-rl-XXXXXX", data[300], model[4200], dir[400];
    iv_run_summary plain, s;
    iv_run_options o;
    iv_error err;
    double last = 0;
    assert_non_null(mkdtemp(base));
    problems_of(base, data);
    snprintf(model, sizeof model, "%s/tests/data/hf/qwen3", INVAR_SOURCE_DIR);
    options_of(&o, base, model, data, NULL);
    o.on_mismatch = "report", o.steps = 3, o.trainer.dtype = "bfloat16";
    run_control(&o, base, "plain", &plain);
    assert_true(plain.different == 0);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        o.rollout_mantissa_bits = ways[i].bits, o.rollout_sync_every = ways[i].every;
        run_control(&o, base, ways[i].name, &s);
        assert_string_not_equal(s.identity, plain.identity);
        assert_int_equal(s.different > 0, ways[i].differs);
        assert_int_equal(strcmp(s.weights_hash, plain.weights_hash) != 0, ways[i].differs);
        if (ways[i].every == 1)
            assert_true(!ways[i].differs || s.largest_difference > last), last = s.largest_difference;
    }
    /* The weights of an older sampler are in no checkpoint. */
    snprintf(dir, sizeof dir, "%s/every-two", base);
    o.output = dir, o.resume = true;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "wanted a checkpoint at a multiple of 2 steps"));
    o.resume = false, o.rollout_sync_every = 0;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    o.rollout_sync_every = 1, o.rollout_mantissa_bits = 24;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* All algorithms run, with several inner steps and a reference; a resumed run ends at the same weights. */
static void algorithms_and_resumption(void **state) {
    (void)state;
    static const char *const algorithms[] = {"reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo"};
    char base[] = "/tmp/invar-rl-XXXXXX", data[300], model[4200], whole[400], cut[400];
    iv_error err;
    assert_non_null(mkdtemp(base));
    problems_of(base, data);
    snprintf(model, sizeof model, "%s/tests/data/hf/qwen3", INVAR_SOURCE_DIR);
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        iv_run_options o;
        iv_run_summary want, got;
        snprintf(whole, sizeof whole, "%s/%s", base, algorithms[i]),
            snprintf(cut, sizeof cut, "%s/%s-cut", base, algorithms[i]);
        options_of(&o, base, model, data, whole);
        o.algorithm = algorithms[i], o.steps = 3, o.inner_steps = 1 + i % 2, o.kl_beta = i % 3 ? 0.04 : 0,
        o.save_every = 1;
        ASSERT_OK(iv_run_train(&o, &want, &err), &err);
        assert_int_equal(want.different, 0);
        volatile sig_atomic_t stop = 1;
        o.output = cut, o.stop = &stop;
        ASSERT_OK(iv_run_train(&o, &got, &err), &err);
        assert_true(got.stopped && got.steps == 1);
        o.stop = NULL, o.resume = true, o.trainer.data_parallel = 2;
        ASSERT_OK(iv_run_train(&o, &got, &err), &err);
        assert_int_equal(got.first_step, 1);
        if (strcmp(want.weights_hash, got.weights_hash) != 0) fail_msg("%s: resumed to another hash", algorithms[i]);
    }
    nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_mismatch_and_one_hash), cmocka_unit_test(adapters_have_no_mismatch),
        cmocka_unit_test(other_sums_are_caught), cmocka_unit_test(other_weights_are_counted),
        cmocka_unit_test(algorithms_and_resumption)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
