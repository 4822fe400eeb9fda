/* runner.h: runs token ids through a model: one sequence, given chunking, all logits. */
#ifndef IV_TESTS_RUNNER_H
#define IV_TESTS_RUNNER_H

#include "random.h"
#include "kv/pages.h"
#include "model/cpu/cpu_model.h"

typedef struct runner {
    iv_pool *pool;
    iv_model *model;
    iv_cpu_model *state;
    iv_kv_pool kv;
    iv_kv_table table;
    size_t tokens; /* in the KV cache */
} runner;

static inline void runner_open(runner *r, const char *dir, const iv_model_options *o, iv_arithmetic arithmetic,
                               iv_isa isa, size_t threads) {
    iv_error err;
    *r = (runner){0};
    ASSERT_OK(iv_pool_open(threads, &r->pool, &err), &err);
    ASSERT_OK(iv_model_open(dir, o, r->pool, &r->model, &err), &err);
    ASSERT_OK(iv_cpu_model_open(r->model, iv_kernels_select(isa), arithmetic, r->pool, 256, &r->state, &err), &err);
    ASSERT_OK(iv_kv_pool_open(&r->kv, r->model->kv_layout, (size_t)r->model->config.layers, 8, &err), &err);
    ASSERT_OK(iv_kv_table_open(&r->table, &r->kv, 512, &err), &err);
}

static inline void runner_reset(runner *r) {
    iv_error err;
    iv_kv_table_close(&r->table, &r->kv);
    ASSERT_OK(iv_kv_table_open(&r->table, &r->kv, 512, &err), &err);
    r->tokens = 0;
}

/* Appends n tokens; logits [n][vocab]. */
static inline void runner_step(runner *r, const int32_t *ids, size_t n, float *logits) {
    iv_error err;
    uint32_t rows[256];
    for (size_t i = 0; i < n; i++) rows[i] = (uint32_t)i;
    ASSERT_OK(iv_kv_table_grow(&r->table, &r->kv, r->tokens + n, &err), &err);
    iv_attention_span span = {0, n, (int64_t)r->tokens, r->table.pages};
    iv_batch b = {.ids = ids,
                  .tokens = n,
                  .spans = &span,
                  .span_count = 1,
                  .kv = r->kv.data,
                  .kv_layer_bytes = iv_kv_plane_bytes(&r->kv),
                  .logit_rows = rows,
                  .logit_count = n,
                  .logits = logits};
    ASSERT_OK(iv_cpu_model_forward(r->state, &b, &err), &err);
    r->tokens += n;
}

static inline void runner_close(runner *r) {
    iv_kv_table_close(&r->table, &r->kv);
    iv_kv_pool_close(&r->kv);
    iv_cpu_model_close(r->state);
    iv_model_close(r->model);
    iv_pool_close(r->pool);
}

#endif
