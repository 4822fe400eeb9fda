/* learned_cases.h: adapters that learn on GPUs: the weights of the CPU, in every layout, with modules of every layer
 * and of the head; a run that moves between CPU and GPU; reinforcement learning. Shared by test_learned.c and
 * test_emulated_learned.c, which sets `few` unless --long. */
#ifndef IV_TESTS_CUDA_LEARNED_CASES_H
#define IV_TESTS_CUDA_LEARNED_CASES_H

#include "cuda/training_runs.h"
#include "train/adapter_runs.h"

/* What learns. */
typedef struct learned {
    const char *model, *arithmetic, *dtype, *targets;
    size_t rank;
    double alpha;
} learned;

static const learned learneds[] = {
    {"tests/data/hf/qwen3", "tc16", "bfloat16", "all-linear", 4, 8},
    {"tests/data/hf/qwen3_moe", "tc16", "bfloat16", "all-linear", 5, -3},
    {"tests/data/hf/qwen2", "tc16", "float16", "lm_head,q_proj,down_proj,up_proj", 20, 0},
    {"tests/data/hf/qwen2", "fma32", "float32", "lm_head,k_proj,o_proj,gate_proj", 3, 7},
    {"tests/data/hf/llama31", "fma32", "float16", "all-linear", 17, 0},
    {"tests/data/hf/qwen3_moe", "fma32", "bfloat16", ".*(q_proj|experts\\.[0-2]\\.(up|down)_proj|mlp\\.gate)", 6, 9},
    {"tests/data/families/qwen2_moe_a", "tc16", "bfloat16", "all-linear", 2, 2},
    {"tests/data/families/gemma2_a", "tc16", "bfloat16", "all-linear", 8, 0},
    {"tests/data/families/phi3_a", "tc16", "bfloat16", "all-linear", 4, 0},
    {"tests/data/families/gpt_oss_a", "tc16", "bfloat16", "all-linear", 4, 4},
};

static void learn(iv_run_options *o, const learned *p, iv_run_kind kind, const char *device) {
    options_of(o, &(problem){p->model, p->arithmetic, p->dtype}, kind, device);
    o->trainer.lora_rank = p->rank, o->trainer.lora_alpha = p->alpha, o->trainer.lora_targets = p->targets;
    o->batch_size = 3, o->steps = 3, o->learning_rate = 1e-2;
}

static bool learns_here(const learned *p) { return has_tensor_cores || strcmp(p->arithmetic, "tc16") != 0; }

static void expect_learned(const learned *p, const char *what, const iv_run_summary *want, const iv_run_summary *got) {
    assert_string_equal(want->identity, got->identity);
    if (strcmp(want->weights_hash, got->weights_hash) != 0)
        fail_msg("%s, %s, %s, %s: other weights of the adapter than the CPU's", p->model, p->arithmetic, p->targets,
                 what);
    if (want->loss != got->loss)
        fail_msg("%s, %s: wanted loss %.17g, found %.17g", p->model, what, want->loss, got->loss);
}

/* All that the CPU learns. Control: another first A. */
static void adapters_of_one(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    for (size_t i = 0; i < sizeof learneds / sizeof *learneds; i++) {
        const learned *p = &learneds[i];
        iv_run_options o;
        iv_run_summary want, got;
        if (!learns_here(p)) continue;
        printf("%s, %s, %s\n", p->model, p->arithmetic, p->targets);
        learn(&o, p, IV_RUN_SFT, "cpu");
        o.trainer.lora_seed = 5;
        run(&o, &got);
        o.trainer.lora_seed = 0;
        run(&o, &want);
        assert_string_not_equal(want.weights_hash, got.weights_hash);
        o.trainer.device = "cuda";
        run(&o, &got);
        expect_learned(p, "whole steps", &want, &got);
        if (few && i > 1) continue;
        o.trainer.micro_batch = 1, o.trainer.recompute = "layer", o.separate = true;
        run(&o, &got);
        expect_learned(p, "a sequence a pass, recomputed layers, row ops apart from linear layers", &want, &got);
        o.trainer.micro_batch = 0, o.trainer.pass_tokens = 64, o.trainer.recompute = "attention", o.separate = false;
        o.trainer.offload_optimizer = true;
        run(&o, &got);
        expect_learned(p, "passes of 64 tokens, recomputed attention, moments on the host", &want, &got);
    }
}

static void adapters_of_several(void **state) {
    (void)state;
    size_t tried = 0;
    for (size_t i = 0; i < sizeof learneds / sizeof *learneds; i++) {
        const learned *p = &learneds[i];
        iv_run_options o;
        iv_run_summary want, got;
        if (gpus < 2 || !learns_here(p) || i > (few ? 3 : 5)) continue;
        learn(&o, p, IV_RUN_SFT, "cpu");
        o.batch_size = few ? 3 : 7, o.steps = 2;
        run(&o, &want);
        o.trainer.device = "cuda";
        for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
            const layout *y = &layouts[k];
            char what[120];
            if (y->dp * y->tp > gpus || (few && k != 1 && k != 2 - i % 2)) continue;
            snprintf(what, sizeof what, "%zu x %zu GPUs, %zu sequences a pass", y->dp, y->tp, y->micro_batch);
            lay_out(&o, y);
            if (before_layout) before_layout(k + i);
            run(&o, &got);
            expect_learned(p, what, &want, &got);
            tried++;
        }
    }
    printf("%zu layouts on %zu GPUs\n", tried, gpus);
    if (tried == 0) {
        printf("SKIPPED: 2 GPUs wanted, %zu found\n", gpus);
        skip();
    }
}

/* Stopped after each step, and continued on the other device. */
static void adapters_that_move(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    const learned *p = &learneds[learns_here(&learneds[0]) ? 0 : 3];
    static const char *const devices[] = {"cuda", "cpu", "cuda"};
    volatile sig_atomic_t stop = 1;
    iv_run_options o;
    iv_run_summary want, got;
    learn(&o, p, IV_RUN_SFT, "cpu");
    run(&o, &want);
    o.output = path_of("moved-adapter"), o.stop = &stop;
    for (size_t i = 0; i < 3; i++) {
        o.trainer.device = devices[i], o.resume = i > 0;
        run(&o, &got);
        assert_int_equal(got.steps, i + 1);
    }
    assert_string_equal(want.weights_hash, got.weights_hash);
}

/* The sampler and the learner read one base; the sampler's log-probabilities are the learner's. */
static void adapters_reinforced(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    for (size_t i = 0; i < (few ? 1 : 2); i++) {
        const learned *p = &learneds[learns_here(&learneds[0]) ? i : i + 3];
        iv_run_options o;
        iv_run_summary want, got;
        learn(&o, p, IV_RUN_RL, "cpu");
        o.reward = reward, o.batch_size = 2, o.group_size = few ? 2 : 4, o.max_new_tokens = 5, o.kl_beta = 0.05;
        run(&o, &want);
        o.trainer.device = "cuda";
        run(&o, &got);
        expect_learned(p, "reinforcement", &want, &got);
        assert_true(got.compared > 0 && got.different == 0 && got.largest_difference == 0);
        assert_int_equal(want.compared, got.compared);
        o.rollout_seqs = 1024; /* their keys and values have room for the learner's passes */
        run(&o, &got);
        expect_learned(p, "reinforcement in lent memory", &want, &got);
        assert_true((got.lent_bytes > 0 || !lends) && got.different == 0);
        o.rollout_seqs = 0;
        if (i) continue;
        o.rollout_numerics = "vanilla", o.on_mismatch = "report"; /* control, with two bases */
        o.rollout_sync_every = 2;
        iv_error err;
        assert_int_not_equal(iv_run_train(&o, &got, &err), IV_OK); /* vanilla takes no adapters */
        o.rollout_numerics = "invar";                              /* the adapter of the step before */
        run(&o, &got);
        assert_true(got.different > 0);
    }
}

/* Two trainers of one base, each with its adapter in the base's engine. */
static void adapters_of_one_base(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    adapters_of_one_base_on("cuda", has_tensor_cores ? "tc16" : "fma32");
}

/* Layers whose products a GPU's learner has no adapters of are refused by name. */
static void layers_that_do_not_serve(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    static const char *const models[] = {"families/qwen3_next_a", "families/lfm2_a"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        iv_trainer_options o = adapter_options(case_path(models[i]));
        iv_trainer *t = NULL;
        iv_error err;
        o.device = "cuda", o.arithmetic = "fma32", o.dtype = "bfloat16";
        assert_int_equal(iv_trainer_open(&o, &t, &err), IV_UNSUPPORTED);
        if (!strstr(err.message, "takes no layers with a state nor gates")) fail_msg("%s", err.message);
    }
}

/* A base that the learner cannot read is refused by name. */
static void bases_that_do_not_serve(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    static const struct {
        const char *model, *weights, *dtype, *text;
    } bases[] = {{"packed_models/qwen3_fp8_a", "packed", "bfloat16", "wanted an engine with weights expanded"},
                 {"hf/qwen3", "auto", "float32", "wanted an engine that holds weights in float32"}};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        iv_engine_options e = engine_options(case_path(bases[i].model));
        iv_trainer_options o = adapter_options(case_path(bases[i].model));
        iv_trainer *t = NULL;
        iv_error err;
        e.trainable = false, e.max_loras = 1, e.device = "cuda", e.arithmetic = "fma32", e.dtype = bases[i].dtype;
        e.weights = bases[i].weights;
        o.arithmetic = "fma32", o.dtype = bases[i].dtype, o.base = open_with(&e);
        assert_int_equal(iv_trainer_open(&o, &t, &err), IV_UNSUPPORTED);
        if (!strstr(err.message, bases[i].text)) fail_msg("%s", err.message);
        iv_engine_close(o.base);
    }
}

#endif
