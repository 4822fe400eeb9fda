/* whole_norm.c: sums of a head, sums over heads, and what is made of them, row by row. Law: NUMERICS.md 8.2, 15.7. */
#include "model/cpu/whole_norm.h"
#include "numerics/floats.h"
#include "numerics/rows.h"

#include <math.h>
#include <string.h>

/* What a parallel task sees: rows of q and k, [rows][(heads + 2 kv_heads) * dim]. */
typedef struct job {
    iv_cpu_model *s;
    const iv_layer *layer;
    float *rows;
    const void *q_raw, *k_raw; /* of the backward pass, with `factors`; NULL: the forward pass */
    float *factors;            /* [rows][2]: r of q, of k */
    float *sums;               /* [rows][heads + kv_heads] of this rank */
    const float *parts[IV_RANKS_MAX];
    float *means; /* [rows][2]: sums over all heads, of q and of k, divided by their elements */
} job;

static const iv_tp_shard *shard_of(const iv_cpu_model *s) { return &s->model->tp.shard[s->model->rank]; }

typedef struct head {
    float *x;            /* of the row: values, or gradients */
    const float *weight; /* of its norm */
    float r;
    const float *raw; /* of the backward pass: before the norm */
} head;

/* Head h of q, then of k, of the rank. raw: room for its values. */
static head head_at(const job *j, size_t row, size_t h, float *raw) {
    const iv_tp_shard *shard = shard_of(j->s);
    const iv_model *m = j->s->model;
    size_t dim = (size_t)m->config.head_dim, k = h < shard->heads ? h : h - shard->heads;
    bool q = h < shard->heads;
    head out = {.x = j->rows + (row * (shard->heads + 2 * shard->kv_heads) + h) * dim,
                .weight = (q ? j->layer->q_norm : j->layer->k_norm) + k * dim,
                .r = j->factors[2 * row + !q],
                .raw = raw};
    size_t at = (row * (q ? shard->heads : shard->kv_heads) + k) * dim;
    for (size_t i = 0; j->q_raw && i < dim; i++) raw[i] = iv_element(m->gemm_type, q ? j->q_raw : j->k_raw, at + i);
    return out;
}

static void sum_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_tp_shard *shard = shard_of(j->s);
    const iv_kernels *k = j->s->compute.kernels;
    size_t heads = shard->heads + shard->kv_heads, dim = (size_t)j->s->model->config.head_dim;
    float raw[IV_HEAD_DIM_MAX];
    for (size_t h = 0; h < heads; h++) {
        head at = head_at(j, row, h, raw);
        j->sums[row * heads + h] = j->q_raw ? k->norm_dot(at.raw, at.weight, at.r, dim, at.x) : k->squares(at.x, dim);
    }
}

/* A head that two ranks have is added once. */
static void mean_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_model *m = j->s->model;
    const iv_model_config *c = &m->config;
    for (int k = 0; k < 2; k++) {
        float sum = 0.0f;
        for (size_t r = 0, next = 0; r < m->tp.ranks; r++) {
            const iv_tp_shard *s = &m->tp.shard[r];
            size_t first = k ? s->kv_head_first : s->head_first, end = first + (k ? s->kv_heads : s->heads);
            const float *of = j->parts[r] + row * (s->heads + s->kv_heads) + (k ? s->heads : 0);
            for (size_t h = iv_size_max(first, next); h < end; h++) sum = sum + of[h - first];
            next = iv_size_max(next, end);
        }
        j->means[2 * row + (size_t)k] = sum / (float)((k ? c->kv_heads : c->heads) * c->head_dim);
    }
}

/* Sums of the rank's heads, then of all ranks'. */
static iv_status add_up(job *j, iv_error *err) {
    iv_cpu_model *s = j->s;
    const iv_tp_plan *tp = &s->model->tp;
    size_t rows = s->batch->tokens, floats[IV_RANKS_MAX];
    j->sums = tp->ranks > 1 ? iv_tp_gather_buffer(s) : s->head_sums, j->parts[0] = j->sums;
    iv_pool_run(s->compute.pool, rows, sum_row, j);
    for (size_t r = 0; r < tp->ranks; r++) floats[r] = rows * (tp->shard[r].heads + tp->shard[r].kv_heads);
    if (tp->ranks > 1) IV_TRY(iv_tp_gather_all(s, floats, NULL, j->parts, err));
    iv_pool_run(s->compute.pool, rows, mean_row, j);
    return IV_OK;
}

static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_tp_shard *shard = shard_of(j->s);
    const iv_model *m = j->s->model;
    const iv_kernels *k = j->s->compute.kernels;
    const iv_tape_layer *tape = j->s->tape ? j->s->tape->now : NULL;
    size_t dim = (size_t)m->config.head_dim, q = shard->heads * dim, kv = shard->kv_heads * dim,
           width = iv_dtype_bytes(m->gemm_type);
    float *x = j->rows + row * (q + 2 * kv);
    for (size_t i = 0; i < 2; i++)
        j->factors[2 * row + i] = 1.0f / sqrtf(j->means[2 * row + i] + (float)m->config.rms_norm_eps);
    if (tape) {
        k->round(x, q, m->gemm_type, (char *)tape->q_raw + row * q * width);
        k->round(x + q, kv, m->gemm_type, (char *)tape->k_raw + row * kv * width);
    }
    k->norm_by(x, j->layer->q_norm, j->factors[2 * row], q, IV_F32, x);
    k->norm_by(x + q, j->layer->k_norm, j->factors[2 * row + 1], kv, IV_F32, x + q);
}

iv_status iv_cpu_whole_norm(iv_cpu_model *s, const iv_layer *layer, iv_error *err) {
    float *factors = s->tape ? s->tape->now->qk_factors : s->head_means;
    job j = {.s = s, .layer = layer, .rows = s->wide, .factors = factors, .means = s->head_means};
    IV_TRY(add_up(&j, err));
    if (shard_of(s)->heads) iv_pool_run(s->compute.pool, s->batch->tokens, norm_row, &j);
    return IV_OK;
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

typedef struct columns {
    const job *j;
    bool k; /* of k's norm, or of q's */
} columns;

/* A row's terms of some columns of the weights' gradient. */
static void weight_terms(void *context, size_t row, size_t first, size_t count, float *acc) {
    const columns *c = context;
    const job *j = c->j;
    const iv_tp_shard *shard = shard_of(j->s);
    size_t dim = (size_t)j->s->model->config.head_dim, q = shard->heads * dim, kv = shard->kv_heads * dim;
    const float *dy = j->rows + row * (q + 2 * kv) + (c->k ? q : 0) + first;
    float raw[IV_HEAD_DIM_MAX];
    for (size_t i = 0; i < count; i += IV_HEAD_DIM_MAX) {
        size_t n = iv_size_min(IV_HEAD_DIM_MAX, count - i), at = row * (c->k ? kv : q) + first + i;
        for (size_t e = 0; e < n; e++) raw[e] = iv_element(j->s->model->gemm_type, c->k ? j->k_raw : j->q_raw, at + e);
        j->s->compute.kernels->norm_weight_backward(dy + i, raw, j->factors[2 * row + c->k], n, acc + i);
    }
}

static void input_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_tp_shard *shard = shard_of(j->s);
    size_t dim = (size_t)j->s->model->config.head_dim;
    float raw[IV_HEAD_DIM_MAX];
    for (size_t h = 0; h < shard->heads + shard->kv_heads; h++) {
        head at = head_at(j, row, h, raw);
        float c = j->means[2 * row + (h >= shard->heads)];
        j->s->compute.kernels->norm_by_backward(at.raw, at.weight, at.r, c, dim, at.x, at.x);
    }
}

iv_status iv_whole_norm_backward(iv_cpu_learner *l, const iv_layer *layer, const iv_layer_tensors *t, iv_error *err) {
    const iv_tape_layer *tape = l->tape.now;
    const iv_tp_shard *shard = iv_learner_shard(l);
    size_t dim = (size_t)l->model->config.head_dim;
    job j = {.s = l->forward,
             .layer = layer,
             .rows = l->dqkv,
             .q_raw = tape->q_raw,
             .k_raw = tape->k_raw,
             .factors = tape->qk_factors,
             .means = l->forward->head_means};
    for (int k = 0; k < 2; k++) {
        const iv_tensor *weight = k ? t->k_norm : t->q_norm;
        size_t first = (k ? shard->kv_head_first : shard->head_first) * dim,
               n = (k ? shard->kv_heads : shard->heads) * dim;
        columns c = {&j, k == 1};
        iv_learner_sum_columns(
            l, &(iv_axis_columns){&l->axis, &l->step->sums, weight->offset + first, n, weight_terms, &c});
    }
    IV_TRY(add_up(&j, err));
    iv_pool_run(l->compute.pool, l->batch.tokens, input_row, &j);
    return IV_OK;
}
