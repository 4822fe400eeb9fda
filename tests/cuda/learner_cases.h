/* learner_cases.h: steps of a learner on the CPU and on a GPU, shared by test_learner.c and test_emulated_learner.c. */
#ifndef IV_TESTS_CUDA_LEARNER_CASES_H
#define IV_TESTS_CUDA_LEARNER_CASES_H

#include "random.h"
#include "model/cpu/learner.h"
#include "kernels/cuda/ops.h"
#include "model/gpu_learner.h"
#include "model/parameters.h"
#include "model/tensor_data.h"

enum { SEQUENCES_MAX = 12, LEVELS = 3 };

typedef struct learner_case {
    const char *name, *dir;
    bool dummy;     /* weights */
    size_t longest; /* sequence, if its layers have blocks of rows; 0: any */
} learner_case;

static const learner_case cases[] = {
    {"qwen3", "tests/data/hf/qwen3", false, 0},
    {"qwen2", "tests/data/hf/qwen2", false, 0},
    {"llama31", "tests/data/hf/llama31", false, 0},
    {"mistral", "tests/data/hf/mistral_v03", false, 0},
    {"qwen3_moe", "tests/data/hf/qwen3_moe", false, 0},
    {"smollm3", "tests/data/families/smollm3_a", false, 0},
    {"exaone4", "tests/data/families/exaone4_a", false, 0},
    {"glm4", "tests/data/families/glm4_a", false, 0},
    {"granite", "tests/data/families/granite_a", false, 0},
    {"gemma2", "tests/data/families/gemma2_a", false, 0},
    {"gemma3", "tests/data/families/gemma3_text_a", false, 0},
    {"ministral3", "tests/data/families/ministral3_a", false, 0},
    {"hunyuan", "tests/data/families/hunyuan_v1_dense_alpha_a", false, 0},
    {"arcee", "tests/data/families/arcee_a", false, 0},
    {"gpt_oss", "tests/data/families/gpt_oss_a", false, 0},
    {"qwen2_moe", "tests/data/families/qwen2_moe_a", false, 0},
    {"glm4_moe", "tests/data/families/glm4_moe_a", false, 0},
    {"mixtral", "tests/data/families/mixtral_a", false, 0},
    {"qwen3_next", "tests/data/families/qwen3_next_a", false, 150},
    {"qwen3_5_text", "tests/data/families/qwen3_5_text_a", false, 150},
    {"qwen3_5_moe", "tests/data/families/qwen3_5_moe_a", false, 150},
    {"lfm2", "tests/data/families/lfm2_a", false, 0},
    {"lfm2_moe", "tests/data/families/lfm2_moe_a", false, 0},
    {"delta", "tests/data/shapes/delta", true, 200},
    {"odd", "tests/data/shapes/odd", true, 0},
    {"window", "tests/data/shapes/window", true, 0},
    {"narrow", "tests/data/shapes/narrow", true, 0},
    {"moe", "tests/data/shapes/moe", true, 0},
    {"wide", "tests/data/shapes/wide", true, 0},
};
enum { CASES = sizeof cases / sizeof *cases, FAMILIES_COUNT = 24 };

/* What decides the bits. */
typedef struct law_way {
    iv_arithmetic arithmetic;
    iv_dtype dtype;
    size_t virtual_ranks;
    float temperature;
    bool policy; /* some ids are not drawn */
} law_way;

static bool is_drawn(const law_way *w, size_t vocab, size_t id) {
    return !w->policy || id < 5 || (id % 7 != 3 && id < vocab - vocab / 8);
}

static uint64_t *drawn_ids(const law_way *w, size_t vocab) {
    if (!w->policy) return NULL;
    uint64_t *bits = calloc((vocab + 63) / 64, sizeof *bits);
    for (size_t id = 0; id < vocab; id++) bits[id / 64] |= (uint64_t)is_drawn(w, vocab, id) << (id % 64);
    return bits;
}

/* What does not. */
typedef struct free_way {
    size_t pass; /* sequences, at most */
    iv_recompute recompute;
    size_t rows_max, logits_max;
    bool separate;
    size_t chunk_max;
    bool deferred_loss; /* coefficients are not known before the forward pass */
} free_way;

typedef struct sequences {
    iv_learner_sequence of[SEQUENCES_MAX];
    size_t count;
} sequences;

/* Lengths around a block of keys, one sequence without a prediction, masks that are weights. */
static void sequences_make(rng *r, size_t vocab, size_t count, size_t longest, const law_way *w, sequences *x) {
    *x = (sequences){.count = count};
    for (size_t i = 0; i < count; i++) {
        size_t n = 2 + rng_below(r, i == 1 ? longest - 1 : longest / 3 + 1);
        int32_t *ids = malloc(n * sizeof *ids);
        float *mask = malloc(n * sizeof *mask);
        for (size_t t = 0; t < n; t++) {
            ids[t] = (int32_t)(rng_below(r, 2) ? rng_below(r, vocab) : rng_below(r, 5));
            if (!is_drawn(w, vocab, (size_t)ids[t])) ids[t] %= 5;
            mask[t] = t && i != 2 && rng_below(r, 3) ? 1.0f : 0.0f;
        }
        if (i != 2) mask[1] = 0.5f;
        x->of[i] =
            (iv_learner_sequence){ids, mask, n, i * w->virtual_ranks / count, malloc(n * sizeof(float)), mask, NULL};
    }
}

static void sequences_free(sequences *x) {
    for (size_t i = 0; i < x->count; i++)
        free((void *)(uintptr_t)x->of[i].ids), free((void *)(uintptr_t)x->of[i].mask), free(x->of[i].logprobs);
}

/* A model with its parameters' row, and the step's sums in the device's memory. */
typedef struct learned {
    iv_model *model;
    iv_pool *pool;
    size_t elements, all, levels;
    float *row;                     /* here */
    float *sum;                     /* here: of the step, with a tied embedding's look-ups */
    float *logprobs[SEQUENCES_MAX]; /* of the step */
    iv_memspace *memspace;
    void *device_row, *device_sums;
    iv_learner *learner;
} learned;

static void learned_open(const learner_case *c, const law_way *w, iv_memspace *memspace, learned *g) {
    iv_error err;
    iv_model_options mo = {.has_dtype = true, .dtype = w->dtype, .widen = true, .dummy = c->dummy, .dummy_seed = 5};
    mo.memspace[0] = memspace;
    *g = (learned){.memspace = memspace};
    ASSERT_OK(iv_pool_open(2, &g->pool, &err), &err);
    ASSERT_OK(iv_model_open(source_path(c->dir), &mo, g->pool, &g->model, &err), &err);
    g->elements = iv_parameters_layout(g->model), g->all = g->elements + iv_parameters_tied_elements(g->model);
    g->row = calloc(g->elements, sizeof *g->row), g->sum = malloc(g->all * sizeof *g->sum);
    ASSERT_OK(iv_parameters_read(g->model, g->pool, g->row, 0, g->elements, &err), &err);
    while ((size_t)1 << g->levels < w->virtual_ranks) g->levels++;
}

static void learned_close(learned *g) {
    iv_learner_close(g->learner);
    if (g->memspace)
        g->memspace->free(g->memspace, g->device_row), g->memspace->free(g->memspace, g->device_sums);
    else
        free(g->device_sums);
    iv_model_close(g->model);
    iv_pool_close(g->pool);
    for (size_t i = 0; i < SEQUENCES_MAX; i++) free(g->logprobs[i]);
    free(g->row), free(g->sum);
}

static void copy_to(iv_memspace *m, void *to, const void *from, size_t bytes) {
    iv_error err;
    ASSERT_OK(m->write(m, to, bytes, from, bytes, bytes, 1, &err), &err);
}

/* Sums that hold what no step may read. */
static void sums_make(learned *g) {
    size_t n = g->all * (1 + g->levels);
    float *poison = malloc(n * sizeof *poison);
    for (size_t i = 0; i < n; i++) poison[i] = NAN;
    if (!g->memspace) {
        g->device_sums = poison;
        return;
    }
    if (!g->device_sums) g->device_sums = g->memspace->alloc(g->memspace, n * sizeof *poison);
    assert_non_null(g->device_sums);
    copy_to(g->memspace, g->device_sums, poison, n * sizeof *poison);
    free(poison);
}

/* Coefficients that the step's callback fills in. */
typedef struct late_coefficients {
    const sequences *x;
    float *of[SEQUENCES_MAX];
} late_coefficients;

static iv_status fill_late(void *context, size_t from, size_t to, iv_error *err) {
    const late_coefficients *late = context;
    (void)err;
    for (size_t i = from; i < to; i++) memcpy(late->of[i], late->x->of[i].mask, late->x->of[i].count * sizeof(float));
    return IV_OK;
}

static void begin_late(late_coefficients *late, sequences *x, iv_learner_step *step) {
    for (size_t i = 0; i < x->count; i++) {
        late->of[i] = malloc(x->of[i].count * sizeof(float));
        for (size_t t = 0; t < x->of[i].count; t++) late->of[i][t] = NAN;
        x->of[i].coefficients = late->of[i];
    }
    late->x = x, step->weigh = fill_late, step->context = late;
}

static void end_late(const late_coefficients *late, sequences *x) {
    for (size_t i = 0; i < x->count; i++) free(late->of[i]), x->of[i].coefficients = x->of[i].mask;
}

/* Runs the step in passes; `scores`: the log-probabilities alone first, which must be the same. */
static void run_step(learned *g, sequences *x, const law_way *w, const free_way *f, bool scores) {
    iv_error err;
    iv_learner *l = g->learner;
    iv_learner_step step = {
        .sequences = x->of, .count = x->count, .ranks = w->virtual_ranks, .temperature = w->temperature};
    late_coefficients late;
    uint64_t *drawn = drawn_ids(w, (size_t)g->model->config.vocab_size);
    step.allowed = drawn;
    if (f->deferred_loss) begin_late(&late, x, &step);
    sums_make(g);
    step.sums.sum = g->device_sums;
    bool whole = f->pass >= x->count && iv_learner_fit(l, &step, 0, x->count) == x->count;
    for (size_t i = 0; i < g->levels && !whole; i++) step.sums.level[i] = step.sums.sum + g->all * (1 + i);
    for (size_t at = 0, n; at < x->count; at += n) {
        float *scored[SEQUENCES_MAX];
        n = iv_learner_fit(l, &step, at, f->pass);
        assert_true(n > 0);
        if (scores) ASSERT_OK(l->ops->score(l, &step, at, at + n, &err), &err);
        for (size_t i = at; i < at + n && scores; i++) {
            scored[i] = malloc(x->of[i].count * sizeof(float));
            memcpy(scored[i], x->of[i].logprobs, x->of[i].count * sizeof(float));
        }
        ASSERT_OK(l->ops->pass(l, &step, at, at + n, &err), &err);
        for (size_t i = at; i < at + n && scores; i++) {
            assert_memory_equal(scored[i], x->of[i].logprobs, x->of[i].count * sizeof(float));
            free(scored[i]);
        }
    }
    if (f->deferred_loss) end_late(&late, x);
    free(drawn);
    for (size_t i = 0; i < x->count; i++) {
        g->logprobs[i] = realloc(g->logprobs[i], x->of[i].count * sizeof(float));
        memcpy(g->logprobs[i], x->of[i].logprobs, x->of[i].count * sizeof(float));
    }
    size_t bytes = g->all * sizeof *g->sum;
    if (!g->memspace) {
        memcpy(g->sum, g->device_sums, bytes);
        free(g->device_sums), g->device_sums = NULL;
    } else {
        ASSERT_OK(g->memspace->read(g->memspace, g->sum, bytes, g->device_sums, bytes, bytes, 1, &err), &err);
    }
}

static void open_on_cpu(const learner_case *c, const law_way *w, learned *g) {
    iv_error err;
    learned_open(c, w, NULL, g);
    iv_cpu_learner_options o = {.kernels = iv_kernels_select(iv_isa_detect()),
                                .arithmetic = w->arithmetic,
                                .pool = g->pool,
                                .rows_max = 2048,
                                .tensor_owner = g->model,
                                .weights = g->row,
                                .elements = g->elements};
    ASSERT_OK(iv_cpu_learner_open(g->model, &o, &g->learner, &err), &err);
}

static iv_gpu_learner_options options_on(iv_gpu *gpu, const learned *g, const law_way *w, const free_way *f) {
    return (iv_gpu_learner_options){.gpu = gpu,
                                    .arithmetic = w->arithmetic,
                                    .rows_max = f->rows_max,
                                    .recompute = f->recompute,
                                    .separate = f->separate,
                                    .deferred_loss = f->deferred_loss && f->pass % 2,
                                    .logits_max = f->logits_max,
                                    .chunk_max = f->chunk_max,
                                    .tensor_owner = g->model,
                                    .weights = g->device_row,
                                    .elements = g->elements};
}

/* The row to the GPU, and a learner over it. */
static void open_on_gpu(iv_gpu *gpu, learned *g, const law_way *w, const free_way *f) {
    iv_error err;
    iv_learner_close(g->learner);
    g->learner = NULL;
    if (!g->device_row) g->device_row = g->memspace->alloc(g->memspace, g->elements * sizeof *g->row);
    assert_non_null(g->device_row);
    copy_to(g->memspace, g->device_row, g->row, g->elements * sizeof *g->row);
    iv_gpu_learner_options o = options_on(gpu, g, w, f);
    ASSERT_OK(iv_gpu_learner_open(g->model, &o, &g->learner, &err), &err);
    assert_true(g->learner->ops->bytes(g->learner) > 0);
}

/* The number of sums and log-probabilities that differ; `shows`: a line for each tensor. */
static size_t differences(const learned *want, const learned *got, const sequences *x, bool shows) {
    size_t all = 0, here = 0, first = 0;
    for (size_t i = 0; i < x->count; i++)
        for (size_t t = 0; t < x->of[i].count; t++) {
            bool differs = iv_bits(want->logprobs[i][t]) != iv_bits(got->logprobs[i][t]);
            if (differs && shows && !all)
                printf("log-probability %zu of sequence %zu: wanted %a, found %a\n", t, i, (double)want->logprobs[i][t],
                       (double)got->logprobs[i][t]);
            all += differs;
        }
    for (size_t i = 0; i < want->all; i++) {
        const iv_tensor *t = iv_parameter_at(want->model, i);
        bool differs = iv_bits(want->sum[i]) != iv_bits(got->sum[i]);
        if (differs && here++ == 0) first = i;
        bool ends = i + 1 == want->all || i + 1 == want->elements ||
                    (i % 4096 == 4095 && iv_parameter_at(want->model, i + 1) != t);
        if (!ends) {
            i += !here && i % 4096 == 0 && i + 4096 <= want->all && iv_parameter_at(want->model, i + 4096) == t &&
                         memcmp(want->sum + i, got->sum + i, 4096 * sizeof(float)) == 0
                     ? 4095
                     : 0;
            continue;
        }
        if (here && shows)
            printf("%s%s: %zu differ; element %zu: wanted %a, found %a\n", t->info.name,
                   i >= want->elements ? " (look-ups)" : "", here, first - t->offset, (double)want->sum[first],
                   (double)got->sum[first]);
        all += here, here = 0;
    }
    return all;
}

static void check_way(const learner_case *c, const law_way *w, const free_way *f, const learned *want, learned *got,
                      sequences *x, iv_gpu *gpu, bool scores, bool second) {
    static const char *const recomputes[] = {"nothing", "attention", "layers"};
    open_on_gpu(gpu, got, w, f);
    if (second) { /* after a smaller step */
        sequences first = *x;
        first.count = 2;
        run_step(got, &first, w, f, false);
    }
    run_step(got, x, w, f, scores);
    size_t n = differences(want, got, x, true);
    printf("%s %s %s, %zu virtual ranks, T %g%s, passes of %zu, recomputes %s%s%s: %zu differ\n", c->name,
           w->arithmetic == IV_TC16 ? "tc16" : "fma32", iv_dtype_name(w->dtype), w->virtual_ranks,
           (double)w->temperature, w->policy ? ", a policy" : "", f->pass, recomputes[f->recompute],
           f->separate ? ", row ops apart" : "", f->deferred_loss ? ", late coefficients" : "", n);
    assert_int_equal(n, 0);
}

static law_way random_law(rng *r) {
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype dtype;
    } kinds[] = {{IV_TC16, IV_BF16},  {IV_TC16, IV_F16},  {IV_TC16, IV_BF16},
                 {IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}, {IV_FMA32, IV_F32}};
    size_t kind = rng_below(r, 6);
    return (law_way){kinds[kind].arithmetic, kinds[kind].dtype, (size_t)1 << rng_below(r, LEVELS + 1),
                     rng_below(r, 2) ? 1.0f : 0.7f, rng_below(r, 2)};
}

/* Steps of one model under one law: the CPU's bits for every way that is free. */
static void check_case(const learner_case *c, const law_way *w, iv_gpu *gpu, rng *r, size_t count, size_t longest,
                       const free_way *ways, size_t way_count) {
    learned want, got;
    sequences x;
    free_way alone = {.pass = SEQUENCES_MAX};
    open_on_cpu(c, w, &want);
    learned_open(c, w, iv_gpu_memspace(gpu), &got);
    sequences_make(r, (size_t)want.model->config.vocab_size, count, c->longest ? c->longest : longest, w, &x);
    run_step(&want, &x, w, &alone, false);
    for (size_t i = 0; i < way_count; i++) check_way(c, w, &ways[i], &want, &got, &x, gpu, i == 0, i == 1);
    learned_close(&want), learned_close(&got), sequences_free(&x);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refused(const learned *g, iv_gpu_learner_options o, iv_status status, const char *text) {
    iv_error err;
    iv_learner *l = NULL;
    assert_int_equal(iv_gpu_learner_open(g->model, &o, &l, &err), status);
    if (!strstr(err.message, text)) fail_msg("wanted \"%s\", found \"%s\"", text, err.message);
    assert_null(l);
}

static void check_refusals(iv_gpu *gpu) {
    law_way w = {IV_FMA32, IV_F32, 1, 1.0f, false};
    free_way f = {.pass = 2, .rows_max = 64};
    learned g;
    learned_open(&cases[0], &w, iv_gpu_memspace(gpu), &g);
    g.device_row = g.memspace->alloc(g.memspace, g.elements * sizeof *g.row);
    iv_gpu_learner_options good = options_on(gpu, &g, &w, &f), o = good;
    o.rows_max = 1;
    refused(&g, o, IV_INVALID, "wanted 2 to 2^26, found 1");
    o = good, o.numerics = IV_VANILLA;
    refused(&g, o, IV_UNSUPPORTED, "wanted numerics invar, found vanilla");
    o = good, o.arithmetic = IV_TC16;
    refused(&g, o, IV_UNSUPPORTED, "wanted bfloat16 or float16, found float32");
    o = good, o.rows_max = (size_t)1 << 25;
    refused(&g, o, IV_NO_MEMORY, "wanted ");
    learned cut = g;
    iv_model changed = *g.model;
    cut.model = &changed, changed.tp.ranks = 8;
    refused(&cut, good, IV_UNSUPPORTED, "on 8 tensor-parallel ranks: wanted a divisor of the 4 leaves of q, k and v");
    changed.tp.ranks = 1, changed.config.experts = IV_GPU_EXPERTS_MAX + 1;
    refused(&cut, good, IV_UNSUPPORTED, "device cuda takes at most 512, found 513");
    changed.config.experts = 8, changed.config.moe_intermediate_size = 33;
    refused(&cut, good, IV_UNSUPPORTED, "wanted an even moe_intermediate_size, found 33");
    open_on_gpu(gpu, &g, &w, &f);
    int32_t ids[65] = {0};
    float mask[65] = {0}, logprobs[65];
    iv_error err;
    iv_learner_sequence long_one = {ids, mask, 65, 0, logprobs, mask, NULL};
    iv_learner_step step = {.sequences = &long_one, .count = 1, .ranks = 1, .temperature = 1.0f};
    assert_int_equal(g.learner->ops->score(g.learner, &step, 0, 1, &err), IV_LIMIT);
    assert_non_null(strstr(err.message, "wanted at most 64 tokens"));
    learned_close(&g);
}

/* The same error on both devices; afterwards the learner still works. */
static void check_not_finite(iv_gpu *gpu) {
    law_way w = {IV_FMA32, IV_BF16, 2, 1.0f, false};
    free_way f = {.pass = SEQUENCES_MAX, .rows_max = 256};
    rng r = rng_start("not finite");
    learned g[2];
    iv_error err[2];
    sequences x;
    sequences_make(&r, 500, 4, 40, &w, &x);
    open_on_cpu(&cases[0], &w, &g[0]);
    learned_open(&cases[0], &w, iv_gpu_memspace(gpu), &g[1]);
    for (int i = 0; i < 2; i++) {
        iv_tensor *t = iv_model_tensor(g[i].model, "model.layers.1.self_attn.v_proj.weight");
        float *huge = malloc(t->info.elements * sizeof *huge);
        for (size_t e = 0; e < t->info.elements; e++) huge[e] = 3e38f;
        ASSERT_OK(iv_tensor_write(g[i].model, t, IV_F32, huge, t->info.elements * sizeof *huge, &err[0]), &err[0]);
        free(huge);
    }
    open_on_gpu(gpu, &g[1], &w, &f);
    for (int i = 0; i < 2; i++) {
        sums_make(&g[i]);
        iv_learner_step step = {.sequences = x.of, .count = x.count, .ranks = 2, .temperature = 1.0f};
        step.sums.sum = g[i].device_sums;
        assert_int_equal(g[i].learner->ops->pass(g[i].learner, &step, 0, x.count, &err[i]), IV_NOT_FINITE);
    }
    printf("%s\n", err[1].message);
    assert_string_equal(err[0].message, err[1].message);
    learned_close(&g[0]), learned_close(&g[1]), sequences_free(&x);
}

#endif
