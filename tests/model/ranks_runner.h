/* ranks_runner.h: runner.h over tensor-parallel ranks in threads: one sequence, all logits. */
#ifndef IV_TESTS_RANKS_RUNNER_H
#define IV_TESTS_RANKS_RUNNER_H

#include "random.h"
#include "baseline/ops.h"
#include "device/memory.h"
#include "kv/pages.h"
#include "model/cpu/cpu_model.h"

#include <pthread.h>

enum { RUNNER_PAGES = 8, RUNNER_STEP_MAX = 256 };

typedef struct ranks_runner {
    size_t ranks, vocab, tokens;
    iv_baseline *baseline; /* NULL: invar */
    iv_model *model;
    iv_kv_table table;
    iv_kv_pool book; /* page numbers, common to all ranks */
    struct {
        iv_pool *pool;
        iv_cpu_model *state;
        iv_comm *comm;
        unsigned char *kv;
        size_t kv_bytes;
    } rank[IV_RANKS_MAX];
} ranks_runner;

static inline void ranks_open_as(ranks_runner *r, const char *dir, iv_numerics numerics, iv_dtype dtype,
                                 iv_arithmetic arithmetic, size_t ranks, size_t threads) {
    iv_error err;
    iv_comm *comms[IV_RANKS_MAX];
    iv_model_options o = {.has_dtype = true,
                          .dtype = dtype,
                          .ranks = ranks,
                          .rank_count = ranks,
                          .baseline = numerics != IV_INVAR && ranks > 1};
    *r = (ranks_runner){.ranks = ranks};
    ASSERT_OK(iv_pool_open(threads, &r->rank[0].pool, &err), &err);
    ASSERT_OK(iv_model_open(dir, &o, r->rank[0].pool, &r->model, &err), &err);
    ASSERT_OK(iv_comm_threads_open(ranks, comms, &err), &err);
    r->vocab = (size_t)r->model->config.vocab_size;
    iv_model *m = r->model;
    const iv_kernels *kernels = iv_kernels_select(IV_ISA_AVX512);
    if (numerics != IV_INVAR) {
        ASSERT_OK(iv_baseline_open(numerics, kernels, threads, &r->baseline, &err), &err);
        kernels = iv_baseline_kernels(r->baseline);
    }
    for (size_t i = 0; i < ranks; i++, m = m->next) {
        if (i) ASSERT_OK(iv_pool_open(threads, &r->rank[i].pool, &err), &err);
        ASSERT_OK(iv_cpu_model_open(m, kernels, arithmetic, r->rank[i].pool, RUNNER_STEP_MAX, &r->rank[i].state, &err),
                  &err);
        r->rank[i].comm = comms[i];
        if (ranks > 1) r->rank[i].state->comm = comms[i];
        r->rank[i].kv_bytes = m->kv_layout[0].page_bytes * RUNNER_PAGES * (size_t)m->config.layers;
        r->rank[i].kv = iv_memory_alloc(r->rank[i].kv_bytes);
    }
    ASSERT_OK(iv_kv_pool_open(&r->book, r->model->kv_layout, 1, RUNNER_PAGES, &err), &err);
    ASSERT_OK(iv_kv_table_open(&r->table, &r->book, 512, &err), &err);
}

static inline void ranks_open(ranks_runner *r, const char *dir, iv_dtype dtype, iv_arithmetic arithmetic, size_t ranks,
                              size_t threads) {
    ranks_open_as(r, dir, IV_INVAR, dtype, arithmetic, ranks, threads);
}

static inline void ranks_reset(ranks_runner *r) {
    iv_error err;
    iv_kv_table_close(&r->table, &r->book);
    ASSERT_OK(iv_kv_table_open(&r->table, &r->book, 512, &err), &err);
    r->tokens = 0;
}

typedef struct rank_call {
    ranks_runner *r;
    size_t rank;
    iv_batch batch;
    iv_status status;
    iv_error err;
} rank_call;

static inline void *run_rank(void *argument) {
    rank_call *c = argument;
    c->status = iv_cpu_model_forward(c->r->rank[c->rank].state, &c->batch, &c->err);
    return NULL;
}

/* Runs a batch on all ranks; kv and kv_layer_bytes are filled in. All ranks must return the same status. */
static inline iv_status ranks_batch(ranks_runner *r, const iv_batch *b, iv_error *err) {
    rank_call call[IV_RANKS_MAX];
    pthread_t thread[IV_RANKS_MAX];
    for (size_t i = r->ranks; i-- > 0;) {
        call[i] = (rank_call){.r = r, .rank = i, .batch = *b};
        call[i].batch.kv = r->rank[i].kv;
        call[i].batch.kv_layer_bytes = r->rank[i].state->model->kv_layout[0].page_bytes * RUNNER_PAGES;
        if (i)
            assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &call[i]), 0);
        else
            run_rank(&call[i]);
    }
    for (size_t i = 1; i < r->ranks; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(call[i].status, call[0].status);
        if (call[0].status != IV_OK) assert_string_equal(call[i].err.message, call[0].err.message);
    }
    *err = call[0].err;
    return call[0].status;
}

/* Appends n tokens; logits [n][vocab]. */
static inline void ranks_step(ranks_runner *r, const int32_t *ids, size_t n, float *logits) {
    iv_error err;
    uint32_t rows[RUNNER_STEP_MAX];
    for (size_t i = 0; i < n; i++) rows[i] = (uint32_t)i;
    ASSERT_OK(iv_kv_table_grow(&r->table, &r->book, r->tokens + n, &err), &err);
    iv_attention_span span = {0, n, (int64_t)r->tokens, r->table.pages};
    iv_batch b = {.ids = ids,
                  .tokens = n,
                  .spans = &span,
                  .span_count = 1,
                  .logit_rows = rows,
                  .logit_count = n,
                  .logits = logits};
    ASSERT_OK(ranks_batch(r, &b, &err), &err);
    r->tokens += n;
}

static inline void ranks_close(ranks_runner *r) {
    iv_kv_table_close(&r->table, &r->book);
    iv_kv_pool_close(&r->book);
    for (size_t i = 0; i < r->ranks; i++) {
        iv_comm_close(r->rank[i].comm);
        iv_cpu_model_close(r->rank[i].state);
        iv_memory_free(r->rank[i].kv, r->rank[i].kv_bytes);
    }
    iv_model_close(r->model);
    for (size_t i = 0; i < r->ranks; i++) iv_pool_close(r->rank[i].pool);
    iv_baseline_close(r->baseline);
}

#endif
