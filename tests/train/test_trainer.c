/* A training run's weights: one hash for every number of ranks, passes, threads, instruction set and recomputation. In
 * usual runs two steps, and for the second model and later ones half of the ways and of the processes' layouts;
 * INVAR_TEST_LONG: all. */
#include "../model/learning.h"
#include "base/digest.h"
#include "train/trainer/trainer.h"

#include <pthread.h>

enum { STEPS = 3, SEQUENCES = 12 };

static size_t steps; /* of a run: 2, or STEPS */

typedef struct way {
    size_t world, tp, micro_batch, threads;
    iv_isa isa;
    iv_recompute recompute;
} way;

typedef struct problem {
    const char *model;
    iv_arithmetic arithmetic;
    iv_dtype dtype;
    examples steps[STEPS];
} problem;

static iv_train_options options_of(const problem *p, const way *w, char dir[4200]) {
    snprintf(dir, 4200, "%s/%s", INVAR_SOURCE_DIR, p->model);
    return (iv_train_options){.model_dir = dir,
                              .has_dtype = true,
                              .dtype = p->dtype,
                              .arithmetic = p->arithmetic,
                              .kernels = iv_kernels_select(w->isa),
                              .threads = w->threads,
                              .world = w->world,
                              .tp = w->tp,
                              .virtual_ranks = 8,
                              .pass_tokens = 512,
                              .micro_batch = w->micro_batch,
                              .recompute = w->recompute,
                              .adamw = {0.9, 0.95, 1e-8, 0.1}};
}

static double train_step(iv_trainer *t, const examples *x, iv_train_result *result) {
    iv_error err;
    iv_train_sequence s[SEQUENCES];
    double weight = 0, loss = 0;
    for (size_t i = 0; i < x->count; i++) {
        s[i] = (iv_train_sequence){x->of[i].ids, x->of[i].mask, x->of[i].count, calloc(x->of[i].count, sizeof(float)),
                                   NULL,         NULL};
        for (size_t k = 0; k < x->of[i].count; k++) weight += (double)x->of[i].mask[k];
    }
    iv_train_batch b = {.sequences = s, .count = x->count, .temperature = 1.0f};
    iv_train_result more;
    ASSERT_OK(iv_train_gradients(t, &b, weight, result, &err), &err);
    ASSERT_OK(iv_train_apply(t, &(iv_train_update){weight, 1e-3, 1.0}, &more, &err), &err);
    memcpy(result->weights_hash, more.weights_hash, 32);
    for (size_t i = 0; i < x->count; i++) {
        for (size_t k = 0; k < s[i].count; k++) loss -= (double)s[i].mask[k] * (double)s[i].logprobs[k];
        free(s[i].logprobs);
    }
    return loss / weight;
}

static void hash_of(const problem *p, const way *w, char hex[65], double *loss) {
    char dir[4200];
    iv_error err;
    iv_train_options o = options_of(p, w, dir);
    iv_trainer *t;
    iv_train_result result;
    ASSERT_OK(iv_train_open(&o, &t, &err), &err);
    for (size_t i = 0; i < steps; i++) *loss = train_step(t, &p->steps[i], &result);
    iv_digest_hex(result.weights_hash, hex);
    iv_train_close(t);
}

static void fill(rng *r, problem *p) {
    for (size_t s = 0; s < STEPS; s++) {
        examples *x = &p->steps[s];
        *x = (examples){.count = SEQUENCES};
        for (size_t i = 0; i < x->count; i++) {
            example *e = &x->of[i];
            e->count = 2 + rng_below(r, i == 4 ? 150 : 30);
            e->ids = malloc(e->count * sizeof *e->ids), e->mask = calloc(e->count, sizeof *e->mask);
            for (size_t t = 0; t < e->count; t++)
                e->ids[t] = (int32_t)rng_below(r, 400), e->mask[t] = t && rng_below(r, 3);
            e->mask[1] = 1;
        }
    }
}

static void one_hash(void **state) {
    (void)state;
    problem problems[] = {{.model = "tests/data/hf/qwen3", .arithmetic = IV_FMA32, .dtype = IV_BF16},
                          {.model = "tests/data/hf/qwen3_moe", .arithmetic = IV_FMA32, .dtype = IV_BF16},
                          {.model = "tests/data/hf/llama31", .arithmetic = IV_TC16, .dtype = IV_BF16},
                          {.model = "tests/data/hf/qwen2", .arithmetic = IV_FMA32, .dtype = IV_F32}};
    iv_isa best = iv_isa_detect();
    const way ways[] = {{2, 1, 0, 1, best, 0}, {4, 1, 1, 1, best, 0}, {8, 1, 0, 1, best, 1}, {1, 2, 0, 2, best, 0},
                        {1, 4, 3, 1, best, 2}, {2, 2, 2, 2, best, 0}, {1, 1, 1, 3, 0, 0},    {1, 1, 4, 2, best, 2}};
    rng r = rng_start("trainer");
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        char want[65], got[65];
        double loss;
        fill(&r, &problems[i]);
        hash_of(&problems[i], &(way){1, 1, 0, 1, best, 0}, want, &loss);
        printf("%s: loss %.6f, weights %.16s\n", problems[i].model, loss, want);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            if (steps < STEPS && i && (i + k) % 2) continue;
            hash_of(&problems[i], &ways[k], got, &loss);
            if (strcmp(want, got) != 0)
                fail_msg("%s: world %zu, TP %zu, micro-batch %zu, %zu threads, isa %d, recompute %d: another hash",
                         problems[i].model, ways[k].world, ways[k].tp, ways[k].micro_batch, ways[k].threads,
                         (int)ways[k].isa, (int)ways[k].recompute);
        }
        for (size_t s = 0; s < STEPS; s++) examples_free(&problems[i].steps[s]);
    }
}

/* ---- several processes, which threads stand for --------------------------------------------------------- */

typedef struct process {
    const problem *p;
    way w;
    bool shard;
    iv_comm *comm;
    char hash[65];
    double loss;
    pthread_t thread;
} process;

static void *run_process(void *context) {
    process *x = context;
    char dir[4200];
    iv_error err;
    iv_train_options o = options_of(x->p, &x->w, dir);
    iv_trainer *t;
    iv_train_result result;
    o.processes = x->comm, o.shard_parameters = x->shard;
    ASSERT_OK(iv_train_open(&o, &t, &err), &err);
    for (size_t i = 0; i < steps; i++) x->loss = train_step(t, &x->p->steps[i], &result);
    iv_digest_hex(result.weights_hash, x->hash);
    iv_train_close(t);
    return NULL;
}

/* Each process has the whole loss, and the weights are those of one. */
static void processes(void **state) {
    (void)state;
    problem problems[] = {{.model = "tests/data/hf/qwen3", .arithmetic = IV_FMA32, .dtype = IV_BF16}, /* tied head */
                          {.model = "tests/data/hf/qwen3_moe", .arithmetic = IV_TC16, .dtype = IV_F16},
                          {.model = "tests/data/hf/qwen2", .arithmetic = IV_FMA32, .dtype = IV_F32}};
    static const struct job {
        size_t count, world, tp;
        bool shard;
    } jobs[] = {{2, 2, 1, false}, {2, 8, 1, true},  {4, 4, 1, true},  {8, 8, 1, false}, {1, 2, 1, true},
                {2, 4, 2, false}, {2, 1, 2, false}, {4, 1, 4, false}, {4, 2, 2, false}, {8, 2, 4, false}};
    iv_isa best = iv_isa_detect();
    rng r = rng_start("processes");
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        char want[65];
        double loss;
        fill(&r, &problems[i]);
        hash_of(&problems[i], &(way){1, 1, 0, 1, best, 0}, want, &loss);
        for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
            if (steps < STEPS && i && (i + k) % 2) continue;
            iv_comm *comm[IV_RANKS_MAX];
            process x[IV_RANKS_MAX];
            iv_error err;
            ASSERT_OK(iv_comm_threads_open(jobs[k].count, comm, &err), &err);
            for (size_t p = 0; p < jobs[k].count; p++) {
                x[p] = (process){.p = &problems[i],
                                 .w = {jobs[k].world, jobs[k].tp, 2, 1, best, 0},
                                 .shard = jobs[k].shard,
                                 .comm = comm[p]};
                assert_int_equal(pthread_create(&x[p].thread, NULL, run_process, &x[p]), 0);
            }
            for (size_t p = 0; p < jobs[k].count; p++) pthread_join(x[p].thread, NULL);
            for (size_t p = 0; p < jobs[k].count; p++) {
                if (strcmp(want, x[p].hash) != 0 || x[p].loss != loss)
                    fail_msg(
                        "%s: process %zu of %zu, world %zu, TP %zu: wanted loss %.17g, weights %s, found %.17g, %s",
                        problems[i].model, p, jobs[k].count, jobs[k].world, jobs[k].tp, loss, want, x[p].loss,
                        x[p].hash);
                iv_comm_close(comm[p]);
            }
        }
        for (size_t s = 0; s < STEPS; s++) examples_free(&problems[i].steps[s]);
    }
}

/* Layouts that do not divide are refused by every process, before it waits for another. */
static void refused_layouts(void **state) {
    (void)state;
    const problem p = {.model = "tests/data/hf/qwen3", .arithmetic = IV_FMA32, .dtype = IV_BF16};
    static const struct {
        size_t count, world, tp;
        bool shard;
        const char *said;
    } cases[] = {
        {4, 2, 1, false,
         "data-parallel ranks: wanted a multiple of the 4 processes, or as many as make one process of each "
         "of the 1 tensor-parallel ranks, found 2"},
        {8, 2, 2, false, "wanted a multiple of the 8 processes, or as many as make one process of each of the 2"},
        {2, 1, 8, false, "wanted a multiple of the 2 processes, or as many as make one process of each of the 8"},
        {4, 4, 3, false, "tensor-parallel ranks: wanted 1, 2, 4 or 8, found 3"},
        {2, 1, 2, true, "shard parameters: wanted 1 tensor-parallel rank on device cpu, found 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_comm *comm[IV_RANKS_MAX];
        iv_error err;
        char dir[4200];
        iv_trainer *t;
        ASSERT_OK(iv_comm_threads_open(cases[i].count, comm, &err), &err);
        for (size_t r = 0; r < cases[i].count; r++) {
            iv_train_options o = options_of(&p, &(way){cases[i].world, cases[i].tp, 0, 1, iv_isa_detect(), 0}, dir);
            o.processes = comm[r], o.shard_parameters = cases[i].shard;
            assert_int_equal(iv_train_open(&o, &t, &err), IV_UNSUPPORTED);
            if (!strstr(err.message, cases[i].said)) fail_msg("wanted '%s', found '%s'", cases[i].said, err.message);
            iv_comm_close(comm[r]);
        }
    }
}

/* The next place where no tensor's row is cut, up to a few rows on. */
static size_t next_place(rng *r, const iv_model *m, size_t at, size_t elements) {
    at += 1 + rng_below(r, 1 << 16);
    if (at >= elements) return elements;
    const iv_tensor *x = iv_parameter_at(m, at);
    size_t into = at - x->offset;
    return into < x->rows * x->columns ? at - into + (into + x->columns - 1) / x->columns * x->columns : at;
}

/* Weights that are written and read in chunks are those that are written and read at once. */
static void chunks(void **state) {
    (void)state;
    static const char *const models[] = {"tests/data/hf/qwen3", "tests/data/hf/qwen3_moe"};
    rng r = rng_start("chunks");
    for (size_t i = 0; i < 2; i++) {
        const problem p = {.model = models[i], .arithmetic = IV_FMA32, .dtype = i ? IV_F16 : IV_BF16};
        char dir[4200];
        iv_train_options o = options_of(&p, &(way){1, 1, 0, 3, iv_isa_detect(), 0}, dir);
        iv_trainer *t;
        iv_error err;
        ASSERT_OK(iv_train_open(&o, &t, &err), &err);
        iv_model *m = iv_train_model(t);
        iv_pool *pool = iv_train_pool(t);
        size_t n = iv_train_slice_of(t).elements;
        float *x = calloc(n, sizeof *x), *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
        for (size_t k = 0; k < n; k++) x[k] = random_float(&r, NORMAL);
        ASSERT_OK(iv_parameters_write(m, pool, x, 0, n, &err), &err);
        ASSERT_OK(iv_parameters_read(m, pool, want, 0, SIZE_MAX, &err), &err);
        for (size_t k = 0; k < n; k++) x[k] = -x[k];
        for (size_t at = 0, end; at < n; at = end) {
            end = next_place(&r, m, at, n);
            ASSERT_OK(iv_parameters_write(m, pool, x + at, at, end, &err), &err);
        }
        for (size_t at = 0, end; at < n; at = end) {
            end = next_place(&r, m, at, n);
            ASSERT_OK(iv_parameters_read(m, pool, got + at, at, end, &err), &err);
        }
        size_t same = 0;
        for (size_t k = 0; k < n; k++) {
            if (got[k] != -want[k]) fail_msg("%s, element %zu: wanted %a, found %a", p.model, k, -want[k], got[k]);
            same += got[k] != 0;
        }
        assert_true(same > n / 2);
        free(x), free(want), free(got), iv_train_close(t);
    }
}

int main(void) {
    steps = trials(2, STEPS);
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_hash), cmocka_unit_test(processes),
                                       cmocka_unit_test(chunks), cmocka_unit_test(refused_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
