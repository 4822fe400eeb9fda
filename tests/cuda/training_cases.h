/* training_cases.h: training runs on a GPU: the weights, log-probabilities and gradients of the CPU, in passes of every
 * kind; a run that moves between CPU and GPU; reinforcement learning with one set of weights for rollouts and learner.
 * Shared by test_training.c and test_emulated_training.c, which sets `few` unless --long. */
#ifndef IV_TESTS_CUDA_TRAINING_CASES_H
#define IV_TESTS_CUDA_TRAINING_CASES_H

#include "cuda/training_runs.h"
#include "train/state_models.h"


static const problem problems[] = {{"tests/data/hf/qwen3", "tc16", "bfloat16", false},
                                   {"tests/data/hf/qwen3_moe", "tc16", "bfloat16", false},
                                   {"tests/data/hf/qwen2", "fma32", "float32", false},
                                   {"tests/data/hf/llama31", "fma32", "float16", false},
                                   {"tests/data/families/qwen3_5_text_a", "tc16", "bfloat16", true},
                                   {"tests/data/families/qwen3_next_a", "tc16", "bfloat16", true},
                                   {"tests/data/families/lfm2_moe_a", "fma32", "bfloat16", true}};

static void expect_same(const problem *p, const char *what, const iv_run_summary *want, const iv_run_summary *got) {
    assert_string_equal(want->identity, got->identity);
    if (strcmp(want->weights_hash, got->weights_hash) != 0)
        fail_msg("%s, %s, %s, %s: other weights than the CPU's", p->model, p->arithmetic, p->dtype, what);
}

static bool runs_here(const problem *p) { return has_tensor_cores || strcmp(p->arithmetic, "tc16") != 0; }

static void supervised(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const problem *p = &problems[i];
        iv_run_options o;
        iv_run_summary want, got;
        if (!runs_here(p)) continue;
        options_of(&o, p, IV_RUN_SFT, "cpu");
        o.seed++; /* control */
        run(&o, &got);
        o.seed--;
        run(&o, &want);
        assert_string_not_equal(want.weights_hash, got.weights_hash);
        o.trainer.device = "cuda";
        run(&o, &got);
        expect_same(p, "whole steps", &want, &got);
        if (want.loss != got.loss) fail_msg("%s: wanted loss %.17g, found %.17g", p->model, want.loss, got.loss);
        if (few && i) continue;
        o.trainer.offload_optimizer = true;
        o.trainer.micro_batch = 1, o.trainer.recompute = "layer", o.separate = true;
        run(&o, &got);
        expect_same(p, "moments on the host, a sequence a pass, recomputed layers, row ops apart from linear layers",
                    &want, &got);
        if (few) continue;
        o.trainer.micro_batch = 0, o.trainer.pass_tokens = 64, o.trainer.recompute = "attention";
        run(&o, &got);
        expect_same(p, "passes of 64 tokens, recomputed attention", &want, &got);
    }
}

/* ---- several GPUs ----------------------------------------------------------------------------------------------- */

/* The CPU's weights whatever GPUs divide the work. Control: other virtual ranks are another tree. */
static void several_gpus(void **state) {
    (void)state;
    size_t tried = 0;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const problem *p = &problems[i];
        iv_run_options o;
        iv_run_summary want, got;
        if (gpus < 2 || !runs_here(p)) continue;
        options_of(&o, p, IV_RUN_SFT, "cpu");
        o.batch_size = few ? 3 : 7, o.steps = few ? 1 : 2;
        o.trainer.virtual_ranks = 2;
        run(&o, &got);
        o.trainer.virtual_ranks = 8;
        run(&o, &want);
        assert_string_not_equal(want.weights_hash, got.weights_hash);
        o.trainer.device = "cuda";
        for (size_t n = 0; n < 2 * sizeof layouts / sizeof *layouts; n++) {
            size_t k = n / 2;
            layout y = layouts[k];
            char what[120];
            y.shard = n % 2;
            if (y.dp * y.tp > gpus || (p->narrow && y.tp > 1) ||
                (few && (i ? k != i % 2 || y.shard != (i != 2) : k > 2)))
                continue;
            snprintf(what, sizeof what, "%zu x %zu GPUs, %zu sequences a pass%s", y.dp, y.tp, y.micro_batch,
                     y.shard ? ", sharded parameters" : "");
            lay_out(&o, &y);
            if (before_layout) before_layout(k + i);
            run(&o, &got);
            expect_same(p, what, &want, &got);
            if (want.loss != got.loss) fail_msg("%s: wanted loss %.17g, found %.17g", what, want.loss, got.loss);
            tried++;
        }
    }
    printf("%zu layouts on %zu GPUs\n", tried, gpus);
    if (tried == 0) {
        printf("SKIPPED: 2 GPUs wanted, %zu found\n", gpus);
        skip();
    }
}

/* Layers with a state, whose heads several GPUs divide: the CPU's hash. */
static void states_on_several(void **state) {
    (void)state;
    static const size_t ways[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 4}}; /* dp, tp */
    static state_documents d;
    rng r = rng_start("states over GPUs");
    size_t tried = 0;
    state_documents_random(&r, &d);
    if (few) d.batch.count = 2, d.sequences[0].count = 90;
    for (size_t m = 0; m < STATE_MODELS; m++) {
        char dir[32], want[65], got[65];
        bool tc16 = strcmp(state_models[m].arithmetic, "tc16") == 0;
        if (!has_gpu || !state_models[m].on_gpus || (tc16 && !has_tensor_cores)) continue;
        state_folder(m, dir);
        iv_trainer_options o = state_options(dir, m);
        state_hash(&o, &d, want);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            o = state_options(dir, m);
            o.device = "cuda", o.data_parallel = ways[i][0], o.tensor_parallel = ways[i][1];
            o.recompute = i % 2 ? state_models[m].recompute : "none", o.micro_batch = i % 2;
            if (o.tensor_parallel >= state_models[m].refused || ways[i][0] * ways[i][1] > gpus) continue;
            if (few && i != 3 && (m || i)) continue; /* one GPU, two by two */
            if (before_layout) before_layout(i);
            state_hash(&o, &d, got);
            if (strcmp(want, got) != 0)
                fail_msg("%s, %zu x %zu GPUs: other weights than the CPU's", state_models[m].name, ways[i][0],
                         ways[i][1]);
            tried++;
        }
        state_folder_remove(dir);
    }
    printf("%zu layouts of states on %zu GPUs\n", tried, gpus);
    if (tried == 0) skip();
}

/* Rollouts on other GPUs than the learner's, and on fewer. */
static void reinforcement_on_several(void **state) {
    (void)state;
    const problem *p = &problems[runs_here(&problems[0]) ? 0 : 2];
    /* dp, tp, tp of rollouts, whether parameters are sharded */
    static const size_t ways[][4] = {{2, 1, 1, 1}, {1, 2, 2, 0}, {2, 1, 2, 1}, {2, 2, 1, 0}};
    iv_run_options o;
    iv_run_summary want, got;
    if (gpus < 2) {
        printf("SKIPPED: 2 GPUs wanted, %zu found\n", gpus);
        skip();
    }
    options_of(&o, p, IV_RUN_RL, "cpu");
    o.reward = reward, o.batch_size = 2, o.group_size = few ? 2 : 4, o.max_new_tokens = 5, o.kl_beta = 0.05;
    run(&o, &want);
    o.trainer.device = "cuda";
    for (size_t i = 0; i < (few ? 2 : 4); i++) {
        char what[80];
        if (ways[i][0] * ways[i][1] > gpus) continue;
        o.trainer.data_parallel = ways[i][0], o.trainer.tensor_parallel = ways[i][1], o.rollout_tp = ways[i][2];
        o.shard = ways[i][3] ? "parameters" : "optimizer";
        snprintf(what, sizeof what, "%zu x %zu GPUs, rollouts on %zu", ways[i][0], ways[i][1], ways[i][2]);
        run(&o, &got);
        expect_same(p, what, &want, &got);
        assert_true(got.compared > 0 && got.different == 0 && got.largest_difference == 0);
        assert_int_equal(want.compared, got.compared);
    }
}

static void too_few_gpus(void **state) {
    (void)state;
    iv_run_options o;
    iv_run_summary s;
    iv_error err;
    SKIP_WITHOUT_A_GPU();
    if (gpus >= 16) skip();
    options_of(&o, &problems[runs_here(&problems[0]) ? 0 : 2], IV_RUN_SFT, "cuda");
    o.trainer.data_parallel = 8, o.trainer.tensor_parallel = 2;
    assert_int_equal(iv_run_train(&o, &s, &err), IV_INVALID);
    if (!strstr(err.message, "data-parallel and 2 tensor-parallel ranks, the driver shows"))
        fail_msg("%s", err.message);
}

/* A run that is stopped after each step, and continues on the other device with the checkpoint's bits. */
static void moved(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    const problem *p = &problems[runs_here(&problems[0]) ? 0 : 2];
    static const char *const devices[] = {"cuda", "cpu", "cuda", "cuda", "cuda"};
    static const layout ways[] = {{2, 1, 0, 0, "none", true},
                                  {4, 1, 0, 0, "none", false},
                                  {2, 1, 0, 0, "none", true},
                                  {1, 2, 0, 0, "none", false},
                                  {2, 2, 0, 0, "none", true}};
    static const layout alone = {1, 1, 0, 0, "none", true}; /* too few GPUs for the way */
    size_t steps = few ? 4 : 5;
    volatile sig_atomic_t stop = 1;
    iv_run_options o;
    iv_run_summary want, got;
    options_of(&o, p, IV_RUN_SFT, "cpu");
    o.steps = steps;
    run(&o, &want);
    o.output = path_of("moved"), o.stop = &stop;
    for (size_t i = 0; i < steps; i++) {
        o.trainer.device = devices[i], o.resume = i > 0;
        bool fits = gpus >= ways[i].dp * ways[i].tp || strcmp(devices[i], "cpu") == 0;
        lay_out(&o, fits ? &ways[i] : &alone);
        run(&o, &got);
        assert_int_equal(got.steps, i + 1);
    }
    expect_same(p, "moved", &want, &got);
}

static void reinforcement(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    static const size_t tc16[] = {0, 4, 1}, fma32[] = {2, 6, 3}; /* the second of each has layers with a state */
    for (size_t i = 0; i < (few ? 2 : 3); i++) {
        const problem *p = &problems[runs_here(&problems[0]) ? tc16[i] : fma32[i]];
        iv_run_options o;
        iv_run_summary want, got;
        options_of(&o, p, IV_RUN_RL, "cpu");
        o.reward = reward, o.batch_size = 2, o.group_size = few ? 2 : 4, o.max_new_tokens = 5, o.kl_beta = 0.05;
        run(&o, &want);
        o.trainer.device = "cuda";
        run(&o, &got);
        expect_same(p, "reinforcement", &want, &got);
        assert_true(got.compared > 0 && got.different == 0 && got.largest_difference == 0);
        assert_int_equal(want.compared, got.compared);
        assert_int_equal(got.lent_bytes, 0);
        o.rollout_seqs = 1024; /* their keys and values have room for the learner's passes */
        run(&o, &got);
        expect_same(p, "reinforcement in lent memory", &want, &got);
        assert_true((got.lent_bytes > 0 || !lends) && got.different == 0);
        o.rollout_seqs = 0;
        if (i > 1 || (few && i == 0)) continue;
        /* Control, with two sets of weights. Tiny states have one order in both numerics: a sampler of rounded weights.
         */
        o.rollout_numerics = i ? o.rollout_numerics : "vanilla",
        o.rollout_mantissa_bits = i ? 5 : o.rollout_mantissa_bits;
        o.on_mismatch = "report";
        run(&o, &got);
        assert_true(got.different > 0);
    }
}

static char *bytes_of(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *bytes = malloc(1 << 24);
    *n = fread(bytes, 1, 1 << 24, f);
    fclose(f);
    assert_in_range(*n, 1, (1 << 24) - 1);
    return bytes;
}

static void gradients(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    const problem *p = &problems[runs_here(&problems[0]) ? 0 : 2];
    static const char *const devices[] = {"cpu", "cuda"}, *const names[] = {"cpu.safetensors", "cuda.safetensors"};
    char *bytes[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        iv_run_options o;
        iv_gradients_summary s;
        iv_error err;
        options_of(&o, p, IV_RUN_SFT, devices[i]);
        ASSERT_OK(iv_run_gradients(&o, path_of(names[i]), &s, &err), &err);
        bytes[i] = bytes_of(path_of(names[i]), &n[i]);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]), free(bytes[1]);
}

#endif
