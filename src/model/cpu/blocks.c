/* forward.c: the decoder that all five families share, written once against the op table. */
#include "model/cpu/cpu_model.h"
#include "base/size.h"
#include "device/memory.h"
#include "kernels/linear.h"
#include "model/cpu/tp_gather.h"
#include "model/cpu/experts.h"
#include "numerics/attention.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------------------------------------- */

typedef struct carving {
    unsigned char *base; /* NULL: only measure */
    size_t at;
    bool overflow;
} carving;

static void *carve(carving *c, size_t count, size_t width) {
    size_t bytes, at = c->at;
    if (!iv_size_mul(count, width, &bytes) || !iv_size_round_up(bytes, 64, &bytes) || !iv_size_add(at, bytes, &c->at)) {
        c->overflow = true;
        return NULL;
    }
    return c->base ? c->base + at : NULL;
}

/* The widths of what this rank computes. */
typedef struct widths {
    size_t q, kv, intermediate;
} widths;

static widths widths_of(const iv_model *m) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    size_t dim = (size_t)m->config.head_dim;
    return (widths){.q = s->heads * dim,
                    .kv = s->kv_heads * dim,
                    .intermediate = iv_size_max(m->tp.down.of[m->rank].k, (size_t)m->config.moe_intermediate_size)};
}

static void carve_all(iv_cpu_model *s, carving *v) {
    const iv_model_config *c = &s->model->config;
    widths w = widths_of(s->model);
    size_t t = s->tokens_max, hidden = (size_t)c->hidden_size, width = iv_dtype_bytes(s->model->dtype);
    size_t k = (size_t)c->experts_per_token, ranks = s->model->tp.ranks;
    size_t linear = 0, attention = 0, total = 0, inputs = iv_size_max(hidden, iv_size_max(w.q, w.intermediate));
    if (!iv_linear_scratch(t, inputs, &linear) || !iv_attention_scratch(&s->model->kv_layout, &attention) ||
        !iv_size_mul(attention, iv_pool_threads(s->compute.pool), &total))
        v->overflow = true;
    s->compute.scratch_bytes = iv_size_max(linear, total);
    s->compute.scratch = carve(v, s->compute.scratch_bytes, 1);
    s->x = carve(v, t * hidden, sizeof(float));
    s->normed = carve(v, t * hidden, width);
    s->wide = carve(v, t * iv_size_max(w.q + 2 * w.kv, iv_size_max(2 * w.intermediate, hidden)), sizeof(float));
    s->q = carve(v, t * w.q, width);
    s->attended = carve(v, t * w.q, width);
    s->act = carve(v, t * w.intermediate, width);
    if (ranks > 1) {
        if (!iv_tp_gather_bytes(s, &s->part_bytes)) v->overflow = true;
        for (int i = 0; i < 2; i++) s->parts[i] = carve(v, s->part_bytes, 1);
    }
    if (k == 0) return;
    s->router_logits = carve(v, t * (size_t)c->experts, sizeof(float));
    s->expert_ids = carve(v, t * k, sizeof(int32_t));
    s->expert_weights = carve(v, t * k, sizeof(float));
    s->terms = carve(v, t * k * hidden, sizeof(float));
    s->gathered = carve(v, t * hidden, width);
    s->expert_rows = carve(v, t * 2, sizeof(uint32_t));
    s->node_counts = carve(v, ranks * (t + 1), sizeof(uint32_t));
}

iv_status iv_cpu_model_open(const iv_model *m, const iv_kernels *kernels, iv_arithmetic arithmetic, iv_pool *pool,
                          size_t tokens_max, iv_cpu_model **out, iv_error *err) {
    if (arithmetic == IV_TC16 && m->dtype == IV_F32)
        return iv_fail(err, IV_UNSUPPORTED, "arithmetic tc16: wanted dtype bfloat16 or float16, found float32");
    if (tokens_max == 0 || tokens_max > SIZE_MAX >> 32)
        return iv_fail(err, IV_INVALID, "tokens in a step: wanted 1 to 2^32, found %zu", tokens_max);
    iv_cpu_model *s = calloc(1, sizeof *s);
    if (!s) return iv_fail(err, IV_NO_MEMORY, "forward: no memory");
    s->model = m, s->tokens_max = tokens_max;
    s->compute = (iv_compute){.kernels = kernels, .arithmetic = arithmetic, .pool = pool};
    carving v = {0};
    carve_all(s, &v);
    s->data_bytes = v.at;
    if (!v.overflow) s->data = iv_memory_alloc(s->data_bytes);
    if (!s->data) {
        free(s);
        return iv_fail(err, IV_NO_MEMORY, "forward: no memory for steps of %zu tokens", tokens_max);
    }
    v = (carving){.base = s->data};
    carve_all(s, &v);
    *out = s;
    return IV_OK;
}

void iv_cpu_model_close(iv_cpu_model *s) {
    if (!s) return;
    iv_memory_free(s->data, s->data_bytes);
    free(s);
}

/* ---- pieces of a layer --------------------------------------------------------------------------------- */

typedef struct step { /* what a parallel task sees */
    iv_cpu_model *s;
    const iv_batch *b;
    const iv_layer *layer;
    unsigned char *kv;   /* this layer's pages */
    const float *weight; /* of the norm at work */
    atomic_size_t bad_span;
} step;

static void embed_row(void *context, size_t row, size_t worker) {
    (void)worker;
    step *t = context;
    const iv_model *m = t->s->model;
    iv_matrix_row(&m->embedding, (size_t)t->b->ids[row], t->s->x + row * (size_t)m->config.hidden_size);
}

static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    step *t = context;
    const iv_model *m = t->s->model;
    size_t hidden = (size_t)m->config.hidden_size;
    t->s->compute.kernels->rmsnorm(t->s->x + row * hidden, t->weight, (float)m->config.rms_norm_eps, hidden, m->dtype,
                                   (char *)t->s->normed + row * hidden * iv_dtype_bytes(m->dtype));
}

static void norm_rows(step *t, const float *weight) {
    t->weight = weight;
    iv_pool_run(t->s->compute.pool, t->b->tokens, norm_row, t);
}

/* The first of the bad spans is the one that is named, whichever thread meets it. */
static void note_bad_span(step *t, size_t span) {
    size_t seen = atomic_load(&t->bad_span);
    while (span < seen && !atomic_compare_exchange_weak(&t->bad_span, &seen, span)) continue;
}

/* Head norms, rotation and the KV write of one token: qkv row -> q in dtype, K and V in the page. */
static void rotate_row(void *context, size_t row, size_t worker) {
    (void)worker;
    step *t = context;
    const iv_model *m = t->s->model;
    const iv_model_config *c = &m->config;
    const iv_kernels *k = t->s->compute.kernels;
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    size_t dim = (size_t)c->head_dim, heads = shard->heads, kv_heads = shard->kv_heads,
           width = iv_dtype_bytes(m->dtype);
    float *qkv = t->s->wide + row * (heads + 2 * kv_heads) * dim;
    size_t span = 0;
    while (row >= t->b->spans[span].first_row + t->b->spans[span].rows) span++;
    const iv_attention_span *sp = &t->b->spans[span];
    size_t position = (size_t)sp->position + (row - sp->first_row);
    const float *cosine = m->rope_cosine + position * dim / 2, *sine = m->rope_sine + position * dim / 2;
    for (size_t h = 0; h < heads + kv_heads; h++) {
        float *x = qkv + h * dim;
        const float *norm = h < heads ? t->layer->q_norm : t->layer->k_norm;
        if (norm) k->rmsnorm(x, norm, (float)c->rms_norm_eps, dim, IV_F32, x);
        k->rope(x, cosine, sine, dim / 2);
    }
    k->round(qkv, heads * dim, m->dtype, (char *)t->s->q + row * heads * dim * width);
    unsigned char *page = t->kv + sp->pages[position / IV_ATTENTION_BLOCK] * m->kv_layout.page_bytes;
    for (size_t h = 0; h < kv_heads; h++) {
        float key[IV_HEAD_DIM_MAX], value[IV_HEAD_DIM_MAX]; /* storage for any dtype */
        k->round(qkv + (heads + h) * dim, dim, m->dtype, key);
        k->round(qkv + (heads + kv_heads + h) * dim, dim, m->dtype, value);
        if (!iv_kv_write(&m->kv_layout, page, h, position % IV_ATTENTION_BLOCK, key, value)) note_bad_span(t, span);
    }
}

static void swiglu_row(void *context, size_t row, size_t worker) {
    (void)worker;
    step *t = context;
    const iv_model *m = t->s->model;
    size_t n = m->tp.down.of[m->rank].k;
    const float *gate = t->s->wide + row * 2 * n;
    t->s->compute.kernels->swiglu(gate, gate + n, n, m->dtype, (char *)t->s->act + row * n * iv_dtype_bytes(m->dtype));
}

static void linear(const iv_cpu_model *s, const iv_matrix *w, const void *x, size_t rows, const float *bias,
                   float *out) {
    iv_linear(&s->compute, &(iv_linear_args){.weight = w,
                                             .type = s->model->dtype,
                                             .x = x,
                                             .x_stride = w->k,
                                             .rows = rows,
                                             .bias = bias,
                                             .out = out,
                                             .out_stride = w->n});
}

static iv_status attention_block(step *t, iv_error *err) {
    iv_cpu_model *s = t->s;
    const iv_model *m = s->model;
    const iv_layer *l = t->layer;
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    size_t dim = (size_t)m->config.head_dim, group = (size_t)(m->config.heads / m->config.kv_heads);
    norm_rows(t, l->attention_norm);
    if (shard->heads) {
        linear(s, &l->qkv, s->normed, t->b->tokens, l->qkv_bias, s->wide);
        iv_pool_run(s->compute.pool, t->b->tokens, rotate_row, t);
        iv_attention(&s->compute, &(iv_attention_args){.layout = &m->kv_layout,
                                                       .kv = t->kv,
                                                       .heads = shard->heads,
                                                       .group = group,
                                                       .group_first = shard->head_first - shard->kv_head_first * group,
                                                       .window = l->window,
                                                       .scale_log2e = m->scale_log2e,
                                                       .q = s->q,
                                                       .out = s->attended,
                                                       .spans = t->b->spans,
                                                       .span_count = t->b->span_count});
    }
    size_t bad = atomic_load(&t->bad_span);
    iv_status status = iv_row_parallel(s,
                                       &(iv_row_parallel_args){.cuts = &m->tp.out,
                                                               .nodes = l->out,
                                                               .bias = l->out_bias,
                                                               .x = s->attended,
                                                               .x_stride = shard->heads * dim,
                                                               .x_first = shard->head_first * dim,
                                                               .rows = t->b->tokens,
                                                               .least = &bad},
                                       err);
    if (status == IV_OK && bad != SIZE_MAX)
        return iv_fail(err, IV_FORMAT, "layer %zu: a key or value of sequence %zu of the step is not finite",
                       (size_t)(l - m->layers), bad);
    return status;
}

static iv_status mlp_block(step *t, iv_error *err) {
    iv_cpu_model *s = t->s;
    const iv_model *m = s->model;
    const iv_mlp *mlp = t->layer->experts;
    norm_rows(t, t->layer->mlp_norm);
    if (t->layer->moe) return iv_cpu_experts(s, t->layer, t->b->tokens, err);
    linear(s, &mlp->gate_up, s->normed, t->b->tokens, mlp->gate_up_bias, s->wide);
    iv_pool_run(s->compute.pool, t->b->tokens, swiglu_row, t);
    const iv_row_cut *cut = &m->tp.down.of[m->rank];
    return iv_row_parallel(s,
                           &(iv_row_parallel_args){.cuts = &m->tp.down,
                                                   .nodes = mlp->down,
                                                   .bias = mlp->down_bias,
                                                   .x = s->act,
                                                   .x_stride = cut->k,
                                                   .x_first = cut->first,
                                                   .rows = t->b->tokens},
                           err);
}

static iv_status logits_block(step *t, iv_error *err) {
    iv_cpu_model *s = t->s;
    const iv_model *m = s->model;
    size_t hidden = (size_t)m->config.hidden_size, width = iv_dtype_bytes(m->dtype);
    size_t count = t->b->logit_count, slice = t->b->logits_max ? t->b->logits_max : count;
    IV_ASSERT(count <= slice || t->b->take || m->rank > 0);
    for (size_t i = 0; i < count; i++)
        s->compute.kernels->rmsnorm(s->x + t->b->logit_rows[i] * hidden, m->final_norm, (float)m->config.rms_norm_eps,
                                    hidden, m->dtype, (char *)s->normed + i * hidden * width);
    for (size_t first = (count - 1) / slice * slice;; first -= slice) {
        size_t n = iv_size_min(slice, count - first);
        if (m->tp.ranks > 1)
            IV_TRY(iv_tp_gather_logits(s, first, n, t->b->logits, err));
        else
            linear(s, &m->head, (char *)s->normed + first * hidden * width, n, NULL, t->b->logits);
        if (t->b->take && m->rank == 0) t->b->take(t->b->context, first, n);
        if (first == 0) return IV_OK;
    }
}

iv_status iv_cpu_model_forward(iv_cpu_model *s, const iv_batch *b, iv_error *err) {
    const iv_model *m = s->model;
    step t = {.s = s, .b = b, .bad_span = SIZE_MAX};
    IV_ASSERT(b->tokens > 0 && b->tokens <= s->tokens_max && b->logit_count <= b->tokens);
    IV_ASSERT((s->comm ? s->comm->size : 1) == m->tp.ranks);
    for (size_t i = 0; i < b->tokens; i++) IV_ASSERT(b->ids[i] >= 0 && b->ids[i] < m->config.vocab_size);
    for (size_t i = 0; i < b->span_count; i++)
        IV_ASSERT((size_t)b->spans[i].position + b->spans[i].rows <= m->rope_positions);
    iv_pool_run(s->compute.pool, b->tokens, embed_row, &t);
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        t.layer = &m->layers[i];
        t.kv = b->kv + i * b->kv_layer_bytes;
        IV_TRY(attention_block(&t, err));
        IV_TRY(mlp_block(&t, err));
    }
    return b->logit_count ? logits_block(&t, err) : IV_OK;
}
