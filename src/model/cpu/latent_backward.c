/* latent_backward.c: latent attention, backwards, on one rank: attention's law takes values that are whole keys, of
 * which the last rope_dim elements have outputs and gradients of zero. Law: NUMERICS.md 18.1. */
#include "base/size.h"
#include "kernels/attention_backward.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/norms.h"
#include "numerics/floats.h"

#include <string.h>

/* The sizes of a layer. */
typedef struct sizes {
    size_t rows, heads, rank, turns, key, head, keeps, value, low, width;
} sizes;

static sizes sizes_of(const iv_cpu_learner *l) {
    const iv_model_config *c = &l->model->config;
    sizes z = {.rows = l->batch.tokens,
               .heads = iv_learner_shard(l)->heads,
               .rank = (size_t)c->kv_rank,
               .turns = (size_t)c->rope_dim,
               .head = (size_t)c->head_dim,
               .value = (size_t)c->value_dim,
               .low = (size_t)c->q_rank,
               .width = iv_dtype_bytes(l->model->gemm_type)};
    z.key = z.rank + z.turns, z.keeps = z.head - z.turns;
    return z;
}

typedef struct job {
    iv_cpu_learner *l;
    const iv_layer *layer;
    sizes z;
    /* Of a norm: */
    const char *raw; /* [rows][n], typed */
    const float *weight, *dy;
    float *out;
    size_t n, dy_stride, out_stride;
} job;

/* One head's matrix: `x` and `dx` are the head's columns of rows x_stride and dx_stride elements apart. */
static iv_status head_backward(iv_cpu_learner *l, const iv_tensor *t, const void *dy, size_t dy_stride, const void *x,
                               size_t x_stride, float *dx, size_t dx_stride, iv_error *err) {
    iv_linear_backward_args a = {.axis = &l->axis,
                                 .rows = l->batch.tokens,
                                 .dy = dy,
                                 .dy_stride = dy_stride,
                                 .slices = 1,
                                 .slice = {{t->offset, t->rows, t->rows}},
                                 .stride = t->columns,
                                 .k = t->columns,
                                 .leaves = 1,
                                 .x = x,
                                 .dx = dx,
                                 .x_stride = x_stride,
                                 .dx_stride = dx_stride};
    return iv_linear_backward(l, &a, err);
}

/* ---- attention and what is behind it --------------------------------------------------------------------------- */

static void widen_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const sizes *z = &j->z;
    const char *rows = j->l->tape.now->latent.rows;
    for (size_t h = 0; h < z->heads; h++) {
        size_t from = (row * z->heads + h) * z->rank, to = (row * z->heads + h) * z->key * z->width;
        char *out = (char *)j->l->latent_out + to, *dout = (char *)j->l->latent_dout + to;
        memcpy(out, rows + from * z->width, z->rank * z->width);
        j->l->kernels->round(j->l->latent_rows + from, z->rank, j->l->model->gemm_type, dout);
        memset(out + z->rank * z->width, 0, z->turns * z->width);
        memset(dout + z->rank * z->width, 0, z->turns * z->width);
    }
}

iv_status iv_latent_attention_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    const iv_layer_tensors *t = &l->tensor_owner->layer_tensors[layer];
    const iv_tape_layer *tape = l->tape.now;
    job j = {.l = l, .z = sizes_of(l)};
    const sizes *z = &j.z;
    iv_learner_round(l, l->dattended, z->rows, z->heads * z->value, l->dy);
    for (size_t h = 0; h < z->heads; h++)
        IV_TRY(head_backward(l, t->values[h], (char *)l->dy + h * z->value * z->width, z->heads * z->value,
                             (char *)tape->latent.rows + h * z->rank * z->width, z->heads * z->rank,
                             l->latent_rows + h * z->rank, z->heads * z->rank, err));
    iv_pool_run(l->compute.pool, z->rows, widen_row, &j);
    iv_attention_backward(&l->compute, &(iv_attention_backward_args){.type = l->model->gemm_type,
                                                                     .kv_heads = 1,
                                                                     .group = z->heads,
                                                                     .head_dim = z->key,
                                                                     .window = l->model->layers[layer].config->window,
                                                                     .scale_log2e = l->model->scales.score_log2e,
                                                                     .scale = l->model->scales.score,
                                                                     .q = tape->q,
                                                                     .out = l->latent_out,
                                                                     .dout = l->latent_dout,
                                                                     .k = tape->k,
                                                                     .v = tape->k,
                                                                     .lse2 = tape->lse2,
                                                                     .dqkv = l->dqkv,
                                                                     .dqkv_stride = (z->heads + 2) * z->key,
                                                                     .sequences = l->ranges,
                                                                     .sequence_count = l->to - l->from});
    return IV_OK;
}

/* ---- queries --------------------------------------------------------------------------------------------------- */

static size_t position_of(const iv_cpu_learner *l, size_t row) {
    size_t q = 0;
    while (row >= l->ranges[q].first + l->ranges[q].rows) q++;
    return row - l->ranges[q].first;
}

/* Of each head the gradient of its product with its keys. */
static void round_products(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const sizes *z = &j->z;
    for (size_t h = 0; h < z->heads; h++)
        j->l->kernels->round(j->l->dqkv + row * (z->heads + 2) * z->key + h * z->key, z->rank, j->l->model->gemm_type,
                             (char *)j->l->dy + (row * z->heads + h) * z->rank * z->width);
}

static void turn_back(const job *j, size_t position, float *x) {
    const iv_rope_table *rope = j->layer->rope;
    size_t pairs = j->z.turns / 2;
    float sine[IV_HEAD_DIM_MAX];
    for (size_t i = 0; i < pairs; i++) sine[i] = -rope->sine[position * pairs + i];
    j->l->kernels->rope(x, rope->cosine + position * pairs, sine, pairs);
}

/* Whole queries, [heads][head], in dattended, whose first parts are there: the others turned back; and the shared key.
 */
static void turn_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const sizes *z = &j->z;
    iv_cpu_learner *l = j->l;
    size_t position = position_of(l, row), inputs = (z->low ? z->low : z->heads * z->head) + z->key;
    float *from = l->dqkv + row * (z->heads + 2) * z->key, *dk = from + z->heads * z->key, *dv = dk + z->key;
    float *to = l->latent_inputs + (row + 1) * inputs - z->turns;
    for (size_t h = 0; h < z->heads; h++) {
        float *q = l->dattended + (row * z->heads + h) * z->head;
        memcpy(q + z->keeps, from + h * z->key + z->rank, z->turns * sizeof *q);
        if (j->layer->rope->query) l->kernels->scale(q, z->head, j->layer->rope->query[position]);
        turn_back(j, position, q + z->keeps);
    }
    l->kernels->add(dk, dv, z->rank);
    memcpy(to, dk + z->rank, z->turns * sizeof *to);
    turn_back(j, position, to);
}

static iv_status products_backward(const job *j, const iv_layer_tensors *t, iv_error *err) {
    const sizes *z = &j->z;
    iv_cpu_learner *l = j->l;
    iv_pool_run(l->compute.pool, z->rows, round_products, (void *)(uintptr_t)j);
    for (size_t h = 0; h < z->heads; h++)
        IV_TRY(head_backward(l, t->keys[h], (char *)l->dy + h * z->rank * z->width, z->heads * z->rank,
                             (char *)l->tape.now->latent.still + h * z->keeps * z->width, z->heads * z->keeps,
                             l->dattended + h * z->head, z->heads * z->head, err));
    return IV_OK;
}

/* ---- norms ------------------------------------------------------------------------------------------------------ */

static void raw_row(const job *j, size_t row, size_t first, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) out[i] = iv_element(j->l->model->gemm_type, j->raw, row * j->n + first + i);
}

/* In place of the raw row: what follows it is the gradient. */
static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    float *out = j->out + row * j->out_stride;
    raw_row(j, row, 0, j->n, out);
    j->l->factors[row] = j->l->kernels->rmsnorm_backward(out, j->weight, (float)j->l->model->config.latent_eps, j->n,
                                                         j->dy + row * j->dy_stride, NULL, out);
}

static void norm_columns(void *context, size_t row, size_t first, size_t count, float *acc) {
    enum { AT_ONCE = 256 };
    const job *j = context;
    float raw[AT_ONCE];
    for (size_t at = 0; at < count; at += AT_ONCE) {
        size_t n = iv_size_min(AT_ONCE, count - at);
        raw_row(j, row, first + at, n, raw);
        j->l->kernels->norm_weight_backward(j->dy + row * j->dy_stride + first + at, raw, j->l->factors[row], n,
                                            acc + at);
    }
}

/* Rows of n elements from `dy` through a norm into `out`, and the gradient of its weights. */
static void norm_backward(job *j, const void *raw, const float *weight, const iv_tensor *t, size_t n, const float *dy,
                          size_t dy_stride, float *out) {
    size_t inputs = (j->z.low ? j->z.low : j->z.heads * j->z.head) + j->z.key;
    j->raw = raw, j->weight = weight, j->dy = dy, j->n = n, j->dy_stride = dy_stride;
    j->out = out, j->out_stride = inputs;
    iv_pool_run(j->l->compute.pool, j->z.rows, norm_row, j);
    iv_learner_sum_columns(j->l, &(iv_axis_columns){&j->l->axis, &j->l->step->sums, t->offset, n, norm_columns, j});
}

iv_status iv_latent_heads_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    const iv_layer_tensors *t = &l->tensor_owner->layer_tensors[layer];
    const iv_layer *w = &l->model->layers[layer];
    const iv_tape_latent *tape = &l->tape.now->latent;
    job j = {.l = l, .layer = w, .z = sizes_of(l)};
    const sizes *z = &j.z;
    size_t queries = z->heads * z->head, before = z->low ? z->low : queries;
    IV_TRY(products_backward(&j, t, err));
    iv_pool_run(l->compute.pool, z->rows, turn_row, &j);
    norm_backward(&j, tape->latent_raw, w->latent.kv_norm, t->kv_a_norm, z->rank, l->dqkv + z->heads * z->key,
                  (z->heads + 2) * z->key, l->latent_inputs + before);
    if (!z->low) {
        for (size_t r = 0; r < z->rows; r++)
            memcpy(l->latent_inputs + r * (before + z->key), l->dattended + r * queries, queries * sizeof(float));
        return IV_OK;
    }
    iv_learner_round(l, l->dattended, z->rows, queries, l->dy);
    iv_linear_backward_args a = {.axis = &l->axis,
                                 .rows = z->rows,
                                 .dy = l->dy,
                                 .dy_stride = queries,
                                 .slices = 1,
                                 .stride = z->low,
                                 .k = z->low,
                                 .x = tape->low,
                                 .dx = l->latent_rows};
    a.slice[0] = iv_whole_slice(t->q_b->offset, queries, &a.leaves);
    IV_TRY(iv_linear_backward(l, &a, err));
    norm_backward(&j, tape->low_raw, w->latent.q_norm, t->q_a_norm, z->low, l->latent_rows, z->low, l->latent_inputs);
    return IV_OK;
}

iv_status iv_latent_inputs_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    const iv_layer_tensors *t = &l->tensor_owner->layer_tensors[layer];
    sizes z = sizes_of(l);
    size_t hidden = (size_t)l->model->config.hidden_size, before = z.low ? z.low : z.heads * z.head;
    iv_learner_round(l, l->latent_inputs, z.rows, before + z.key, l->dy);
    iv_cpu_norm(l->forward, l->tape.now->x, l->model->layers[layer].attention_norm);
    iv_linear_backward_args a = {.axis = &l->axis,
                                 .rows = z.rows,
                                 .dy = l->dy,
                                 .dy_stride = before + z.key,
                                 .slices = 2,
                                 .slice = {{t->q->offset, before, before}, {t->kv_a->offset, z.key, z.key}},
                                 .stride = hidden,
                                 .k = hidden,
                                 .leaves = 1,
                                 .x = l->forward->normed,
                                 .dx = l->dnormed};
    a.adapted = iv_learner_adapted(l, iv_site(l->model, &l->model->layers[layer], IV_SITE_QKV, 0));
    return iv_linear_backward(l, &a, err);
}
