/* sharded_cases.h: a trainer whose GPUs have a part of the float32 weights each, and sums of gradients in parts: the
 * CPU's weights; what is divided, and what is whole; a failure in one rank ends the step in all. Shared by
 * test_sharded.c and test_emulated_sharded.c. */
#ifndef IV_TESTS_CUDA_SHARDED_CASES_H
#define IV_TESTS_CUDA_SHARDED_CASES_H

#include "random.h"

#include "train/trainer/state.h"

#include <stdlib.h>

enum { SEQUENCES = 11, LONGEST = 24, VIRTUAL = 8, STEPS = 2 };

static size_t gpus;
static bool has_tensor_cores;

static int begin(void **state) {
    iv_gpu *gpu;
    iv_error err;
    (void)state;
    if (iv_gpu_count(&gpus, &err) != IV_OK) gpus = 0;
    if (gpus && iv_gpu_open(0, true, &gpu, &err) == IV_OK) has_tensor_cores = true, iv_gpu_close(gpu);
    return 0;
}

typedef struct examples {
    int32_t ids[SEQUENCES][LONGEST];
    float mask[SEQUENCES][LONGEST], logprobs[SEQUENCES][LONGEST];
    iv_train_sequence of[SEQUENCES];
    size_t fails; /* the sequence that cannot be weighed, or SIZE_MAX */
} examples;

static void examples_make(rng *r, size_t vocab, examples *x) {
    x->fails = SIZE_MAX;
    for (size_t i = 0; i < SEQUENCES; i++) {
        x->of[i] =
            (iv_train_sequence){x->ids[i], x->mask[i], 2 + rng_below(r, LONGEST - 1), x->logprobs[i], NULL, NULL};
        for (size_t t = 0; t < x->of[i].count; t++)
            x->ids[i][t] = (int32_t)rng_below(r, vocab), x->mask[i][t] = t ? 1.0f : 0.0f;
    }
}

static iv_status weigh_one(void *context, size_t sequence, iv_error *err) {
    const examples *x = context;
    return sequence == x->fails ? iv_fail(err, IV_FORMAT, "sequence %zu fails", sequence) : IV_OK;
}

typedef struct form {
    size_t dp, tp, micro_batch;
    bool shard;
} form;

static iv_trainer *open_trainer(const char *dir, bool cuda, const form *f) {
    iv_arithmetic arithmetic = has_tensor_cores ? IV_TC16 : IV_FMA32;
    iv_train_options o = {.model_dir = source_path(dir),
                          .has_dtype = true,
                          .dtype = IV_BF16,
                          .arithmetic = arithmetic,
                          .cuda = cuda,
                          .threads = 2,
                          .world = f->dp,
                          .tp = f->tp,
                          .virtual_ranks = VIRTUAL,
                          .pass_tokens = SEQUENCES * 32,
                          .micro_batch = f->micro_batch,
                          .adamw = {0.9, 0.95, 1e-8, 0.1},
                          .shard_parameters = f->shard};
    iv_trainer *t;
    iv_error err;
    ASSERT_OK(iv_train_open(&o, &t, &err), &err);
    return t;
}

static void step(iv_trainer *t, examples *x, char hash[65]) {
    iv_train_batch b = {.sequences = x->of, .count = SEQUENCES, .temperature = 1, .weigh = weigh_one, .context = x};
    iv_train_result result;
    iv_error err;
    ASSERT_OK(iv_train_gradients(t, &b, 100, &result, &err), &err);
    ASSERT_OK(iv_train_apply(t, &(iv_train_update){100, 1e-3, 1.0}, &result, &err), &err);
    for (size_t i = 0; i < 32; i++) sprintf(hash + 2 * i, "%02x", result.weights_hash[i]);
}

/* Every GPU has its part of the master weights; the sums are in parts unless a step takes several passes. whole: NULL,
 * or the same without sharded parameters. */
static void check_memory(const iv_trainer *t, const iv_trainer *whole, const form *f) {
    bool parts = f->shard && !f->micro_batch;
    size_t masters = 0, gradients = 0, n = t->device_count;
    assert_int_equal(t->bucketed, parts);
    for (size_t i = 0; i < n; i++) {
        masters += t->devices[i].master_count, gradients += t->devices[i].reduced_count;
        assert_true(!f->shard || t->devices[i].master_count <= t->elements / n + IV_WEIGHT_GROUP);
    }
    assert_int_equal(masters, f->shard ? t->elements : n * t->elements);
    assert_int_equal(gradients, t->elements);
    for (size_t i = 0; i < t->local; i++) assert_true((t->ranks[i].sums.sum == NULL) == parts);
    if (!parts || !whole) return;
    size_t more = n * (t->chunks_capacity + iv_parameters_vectors(t->model, NULL)) + t->local * t->bucket_capacity,
           less = (n - 1) * t->elements + t->local * t->all;
    assert_int_equal(iv_train_bytes(t) + less * sizeof(float), iv_train_bytes(whole) + more * sizeof(float));
}

static const char *const dirs[] = {"tests/data/hf/qwen3", "tests/data/hf/qwen3_moe", "tests/data/hf/qwen2",
                                   "tests/data/hf/llama31"};

/* Control: other examples have other weights. */
static void one_hash(void **state) {
    static const form forms[] = {{2, 1, 0, true}, {2, 2, 0, true}, {4, 1, 0, true}, {1, 2, 0, true}, {2, 1, 2, true}};
    rng r = rng_start("sharded");
    size_t tried = 0;
    bool few = trials(0, 1) == 0;
    (void)state;
    for (size_t i = 0; gpus > 1 && i < trials(2, 4); i++) {
        examples x[STEPS];
        char want[STEPS][65], got[65];
        iv_trainer *t = open_trainer(dirs[i], false, &(form){1, 1, 0, false});
        for (size_t s = 0; s < STEPS; s++) {
            examples_make(&r, (size_t)iv_train_model(t)->config.vocab_size, &x[s]);
            step(t, &x[s], want[s]);
        }
        assert_string_not_equal(want[0], want[1]);
        iv_train_close(t);
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            form f = forms[k], other = {f.dp, f.tp, f.micro_batch, false};
            if (f.dp * f.tp > gpus || (few && (k % 2 ? i == 0 : i > 0))) continue;
            iv_trainer *whole = k == (few && i ? 3 : i) ? open_trainer(dirs[i], true, &other) : NULL;
            t = open_trainer(dirs[i], true, &f);
            for (size_t s = 0; s < STEPS; s++) {
                step(t, &x[s], got);
                if (strcmp(want[s], got) != 0)
                    fail_msg("%s, %zu x %zu GPUs, step %zu: wanted %s, found %s", dirs[i], f.dp, f.tp, s, want[s], got);
            }
            for (size_t s = 0; whole && s < STEPS; s++) step(whole, &x[s], got);
            assert_string_equal(want[STEPS - 1], got);
            check_memory(t, whole, &f);
            iv_train_close(whole), iv_train_close(t);
            tried++;
        }
    }
    printf("%zu forms on %zu GPUs\n", tried, gpus);
    if (!tried) {
        printf("SKIPPED: 2 GPUs wanted, %zu found\n", gpus);
        skip();
    }
}

/* The others do not wait for its parts, and the next step is as if nothing had been. */
static void a_rank_fails(void **state) {
    (void)state;
    if (gpus < 2) {
        printf("SKIPPED: 2 GPUs wanted, %zu found\n", gpus);
        skip();
    }
    form f = {2, gpus < 4 ? 1 : 2, 0, true};
    rng r = rng_start("a rank fails");
    iv_trainer *cpu = open_trainer(dirs[0], false, &(form){1, 1, 0, false}), *t = open_trainer(dirs[0], true, &f);
    examples x;
    char want[65], got[65];
    iv_train_result result;
    iv_error err;
    examples_make(&r, (size_t)iv_train_model(t)->config.vocab_size, &x);
    iv_train_batch b = {.sequences = x.of, .count = SEQUENCES, .temperature = 1, .weigh = weigh_one, .context = &x};
    for (x.fails = 0; x.fails < SEQUENCES; x.fails += 5) {
        char said[40];
        snprintf(said, sizeof said, "sequence %zu fails", x.fails);
        assert_int_equal(iv_train_gradients(t, &b, 100, &result, &err), IV_FORMAT);
        if (!strstr(err.message, said)) fail_msg("wanted '%s', found '%s'", said, err.message);
    }
    x.fails = SIZE_MAX;
    step(cpu, &x, want), step(t, &x, got);
    assert_string_equal(want, got);
    iv_train_close(cpu), iv_train_close(t);
}

#endif
