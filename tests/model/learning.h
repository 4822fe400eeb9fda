/* learning.h: a learner over a model directory and the recorded batches of tests/data/gradients. */
#ifndef IV_TESTS_LEARNING_H
#define IV_TESTS_LEARNING_H

#include "random.h"
#include "base/file.h"
#include "format/json.h"
#include "model/cpu/learner.h"
#include "model/parameters.h"

enum { EXAMPLES_MAX = 64 };

typedef struct example {
    int32_t *ids;
    float *mask;
    size_t count;
} example;

typedef struct examples {
    example of[EXAMPLES_MAX];
    size_t count;
} examples;

static inline void examples_read(const char *path, examples *out) {
    iv_error err;
    iv_buf file = {0};
    *out = (examples){0};
    ASSERT_OK(iv_file_read(path, 1 << 24, &file, &err), &err);
    for (char *line = strtok(file.data, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *j;
        ASSERT_OK(iv_json_parse(path, line, strlen(line), &j, &err), &err);
        json_t *ids = json_object_get(j, "ids"), *mask = json_object_get(j, "mask");
        example *e = &out->of[out->count++];
        e->count = json_array_size(ids);
        e->ids = malloc(e->count * sizeof *e->ids), e->mask = malloc(e->count * sizeof *e->mask);
        for (size_t i = 0; i < e->count; i++) {
            e->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
            e->mask[i] = (float)json_number_value(json_array_get(mask, i));
        }
        json_decref(j);
    }
    iv_buf_free(&file);
}

static inline void examples_free(examples *x) {
    for (size_t i = 0; i < x->count; i++) free(x->of[i].ids), free(x->of[i].mask);
}

typedef struct gradient_options {
    iv_arithmetic arithmetic;
    iv_dtype dtype;
    iv_isa isa;
    size_t threads, pass, virtual_ranks; /* pass: most sequences */
    iv_recompute recompute;
} gradient_options;

typedef struct gradients {
    iv_pool *pool;
    iv_model *model;
    float *row, *sum; /* master weights, and their gradient with the tied part behind it */
    size_t elements, all;
    double loss;
} gradients;

/* The sums of -mask * logprob over the examples, and the gradient of that. */
static inline void gradients_of(const char *dir, const examples *x, const gradient_options *o, gradients *g) {
    iv_error err;
    iv_model_options mo = {.has_dtype = true, .dtype = o->dtype, .widen = true};
    *g = (gradients){0};
    ASSERT_OK(iv_pool_open(o->threads, &g->pool, &err), &err);
    ASSERT_OK(iv_model_open(dir, &mo, g->pool, &g->model, &err), &err);
    g->elements = iv_parameters_layout(g->model), g->all = g->elements + iv_parameters_tied_elements(g->model);
    g->row = calloc(g->elements, sizeof *g->row);
    size_t levels = 0;
    while ((size_t)1 << levels < o->virtual_ranks) levels++;
    g->sum = malloc(g->all * (1 + levels) * sizeof *g->sum);
    for (size_t i = 0; i < g->all * (1 + levels); i++) g->sum[i] = NAN; /* sums of a step before must not matter */
    ASSERT_OK(iv_parameters_read(g->model, g->pool, g->row, 0, g->elements, &err), &err);
    iv_cpu_learner_options lo = {.kernels = iv_kernels_select(o->isa),
                                 .arithmetic = o->arithmetic,
                                 .pool = g->pool,
                                 .rows_max = 1024,
                                 .recompute = o->recompute,
                                 .tensor_owner = g->model,
                                 .weights = g->row,
                                 .elements = g->elements};
    iv_learner *l;
    ASSERT_OK(iv_cpu_learner_open(g->model, &lo, &l, &err), &err);
    iv_learner_sequence s[EXAMPLES_MAX];
    iv_learner_step step = {
        .sequences = s, .count = x->count, .ranks = o->virtual_ranks, .temperature = 1.0f, .sums = {.sum = g->sum}};
    for (size_t i = 0; i < levels; i++) step.sums.level[i] = g->sum + g->all * (1 + i);
    for (size_t i = 0; i < x->count; i++)
        s[i] = (iv_learner_sequence){x->of[i].ids,
                                     x->of[i].mask,
                                     x->of[i].count,
                                     i * o->virtual_ranks / x->count,
                                     calloc(x->of[i].count, sizeof(float)),
                                     x->of[i].mask,
                                     NULL};
    for (size_t at = 0, n; at < x->count; at += n) {
        n = iv_learner_fit(l, &step, at, o->pass);
        assert_true(n > 0);
        ASSERT_OK(l->ops->pass(l, &step, at, at + n, &err), &err);
    }
    for (size_t i = 0; i < x->count; i++) {
        for (size_t t = 0; t < s[i].count; t++) g->loss -= (double)s[i].mask[t] * (double)s[i].logprobs[t];
        free(s[i].logprobs);
    }
    iv_learner_close(l);
}

static inline void gradients_close(gradients *g) {
    iv_model_close(g->model);
    iv_pool_close(g->pool);
    free(g->row), free(g->sum);
}

#endif
