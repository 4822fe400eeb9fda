/* blocks.c: the blocks of a layer on the CPU: rows and panels over threads, each row's arithmetic by the kernel table.
 */
#include "base/size.h"
#include "kernels/linear.h"
#include "model/cpu/experts.h"
#include "model/cpu/latent.h"
#include "model/cpu/mlp.h"
#include "model/cpu/norms.h"
#include "model/cpu/part_scales.h"
#include "model/cpu/product.h"
#include "model/cpu/tp_logits.h"
#include "model/cpu/whole_norm.h"
#include "numerics/attention.h"
#include "numerics/floats.h"
#include "numerics/router.h"

#include <string.h>

typedef struct job { /* what a parallel task sees */
    iv_cpu_model *s;
    const iv_layer *layer;
    const iv_kv_layout *layout; /* this layer's pages: */
    const iv_attention_span *spans;
    unsigned char *kv;
    const float *x, *weight; /* of the norm at work; weight NULL: x is only rounded */
    float scale;             /* of a block's output */
} job;

static iv_cpu_model *self(iv_backend *b) { return (iv_cpu_model *)(void *)b; }

static const iv_tp_shard *shard_of(const iv_model *m, const iv_layer *l) {
    return iv_tp_shard_of(&m->tp, m->rank, l->config->wide);
}

static size_t dim_of(const iv_model *m, const iv_layer *l) {
    return (size_t)(l->config->wide ? m->config.wide_head_dim : m->config.head_dim);
}

/* ---- embedding and norms --------------------------------------------------------------------------------- */

static void embed_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_model *s = context;
    size_t hidden = (size_t)s->model->config.hidden_size;
    iv_matrix_row(&s->model->embedding, (size_t)s->batch->ids[row], s->x + row * hidden);
}

static void scale_embedded_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_model *s = context;
    size_t hidden = (size_t)s->model->config.hidden_size;
    s->compute.kernels->scale(s->x + row * hidden, hidden, s->model->scales.embedding);
}

static void norm_embedded_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_model *s = context;
    const iv_model *m = s->model;
    size_t hidden = (size_t)m->config.hidden_size;
    float *x = s->x + row * hidden;
    s->compute.kernels->rmsnorm(x, m->embedding_norm, (float)m->config.rms_norm_eps, hidden, IV_F32, x);
}

void iv_cpu_embed(iv_cpu_model *s) {
    iv_pool_run(s->compute.pool, s->batch->tokens, embed_row, s);
    if (iv_cpu_adapts_embedding(s)) iv_cpu_adapt_embedding(s);
    if (s->model->scales.embedding != 1.0f) iv_pool_run(s->compute.pool, s->batch->tokens, scale_embedded_row, s);
}

static iv_status embed(iv_backend *b, iv_error *err) {
    (void)err;
    iv_cpu_model *s = self(b);
    iv_cpu_embed(s);
    if (s->model->embedding_norm) iv_pool_run(s->compute.pool, s->batch->tokens, norm_embedded_row, s);
    return IV_OK;
}

static iv_status norm(iv_backend *b, iv_norm n, iv_error *err) {
    (void)err;
    iv_cpu_model *s = self(b);
    if (n.kind == IV_NORM_FINAL || n.kind == IV_NORM_KEPT) return IV_OK; /* head norms the rows that it needs */
    const iv_layer *l = &s->model->layers[n.layer];
    iv_cpu_norm(s, s->x, n.kind == IV_NORM_ATTENTION ? l->attention_norm : l->mlp_norm);
    return IV_OK;
}

/* ---- the ends of the two blocks ---------------------------------------------------------------------------- */

/* Is a block's output added to x as it is? */
static bool adds_plainly(const float *post_norm, float scale) { return !post_norm && scale == 1.0f; }

/* Where a block's output is added: to x, or to zeros if it is normed or scaled first. kept: of the tape, or NULL. */
static float *block_output(iv_cpu_model *s, const float *post_norm, float scale, float *kept) {
    if (adds_plainly(post_norm, scale)) return s->x;
    float *y = kept ? kept : s->block;
    memset(y, 0, s->batch->tokens * (size_t)s->model->config.hidden_size * sizeof *y);
    return y;
}

static void add_block_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_kernels *k = j->s->compute.kernels;
    size_t hidden = (size_t)j->s->model->config.hidden_size;
    const float *y = j->x + row * hidden;
    float *normed = j->s->block + row * hidden;
    if (j->weight) {
        k->rmsnorm(y, j->weight, (float)iv_config_post_eps(&j->s->model->config), hidden, IV_F32, normed);
        y = normed;
    }
    k->add_scaled(j->s->x + row * hidden, y, j->scale, hidden);
}

/* x += the scaled norm of y, unless the block was added to x. */
static void add_block(iv_cpu_model *s, const float *post_norm, float scale, const float *y) {
    if (adds_plainly(post_norm, scale)) return;
    job j = {.s = s, .x = y, .weight = post_norm, .scale = scale};
    iv_pool_run(s->compute.pool, s->batch->tokens, add_block_row, &j);
}

static void scale_stream_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t hidden = (size_t)j->s->model->config.hidden_size;
    j->s->compute.kernels->scale(j->s->x + row * hidden, hidden, *j->layer->scalar);
}

/* The end of a layer: after its last addition. */
static void scale_stream(iv_cpu_model *s, const iv_layer *l) {
    if (l->scalar) iv_pool_run(s->compute.pool, s->batch->tokens, scale_stream_row, &(job){.s = s, .layer = l});
}

/* ---- attention --------------------------------------------------------------------------------------------- */

/* Opens a layer's slot of the tape: from here on its values are computed in place there. */
static void open_slot(iv_cpu_model *s, size_t layer) {
    iv_tape_layer *t = s->tape->now = &s->tape->layers[layer];
    s->q = t->q, s->attended = t->attended;
    s->latent = (iv_cpu_latent){t->latent.low, t->latent.still, t->latent.rows};
    s->act = s->model->layers[layer].config->mlp == IV_MLP_DENSE ? t->act : s->act_memory;
    size_t bytes = s->batch->tokens * (size_t)s->model->config.hidden_size * sizeof *t->x;
    memcpy(t->x, s->x, bytes);
    if (s->model->layers[layer].config->mixer == IV_MIXER_NONE) memcpy(t->x_mlp, s->x, bytes);
}

static iv_status qkv(iv_backend *b, size_t layer, iv_error *err) {
    (void)err;
    iv_cpu_model *s = self(b);
    const iv_layer *l = &s->model->layers[layer];
    if (s->tape) open_slot(s, layer);
    if (l->qkv.n)
        iv_cpu_product(s, iv_site(s->model, l, IV_SITE_QKV, 0),
                       &(iv_linear_args){.weight = &l->qkv,
                                         .type = s->model->gemm_type,
                                         .x = s->normed,
                                         .x_stride = l->qkv.k,
                                         .rows = s->batch->tokens,
                                         .bias = l->qkv_bias,
                                         .out = s->wide,
                                         .out_stride = iv_cpu_mixer_row(s->model, l)},
                       (iv_product_rows){0});
    iv_cpu_scale_parts(&s->compute, s->model, l, s->wide, iv_cpu_mixer_row(s->model, l), s->batch->tokens);
    return IV_OK;
}

/* One token: qkv row -> q in dtype, k and v in the page. */
static void rope_kv_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_model *m = j->s->model;
    const iv_model_config *c = &m->config;
    const iv_kernels *k = j->s->compute.kernels;
    const iv_batch *b = j->s->batch;
    const iv_tp_shard *shard = shard_of(m, j->layer);
    size_t dim = dim_of(m, j->layer), heads = shard->heads, kv_heads = shard->kv_heads,
           width = iv_dtype_bytes(m->gemm_type);
    float *qkv_row = j->s->wide + row * iv_cpu_mixer_row(m, j->layer);
    size_t span = 0;
    while (row >= b->spans[span].first_row + b->spans[span].rows) span++;
    const iv_attention_span *sp = &j->spans[span];
    size_t position = (size_t)sp->position + (row - sp->first_row);
    const float *cosine = j->layer->rope->cosine + position * dim / 2,
                *sine = j->layer->rope->sine + position * dim / 2;
    iv_tape_layer *tape = j->s->tape ? j->s->tape->now : NULL;
    float *values = qkv_row + (heads + kv_heads) * dim;
    if (j->layer->config->values_are_keys) memcpy(values, values - kv_heads * dim, kv_heads * dim * sizeof *values);
    for (size_t h = 0; h < heads + kv_heads && c->qk_norm_behind; h++)
        k->rope(qkv_row + h * dim, cosine, sine, dim / 2);
    if (tape && tape->q_raw && !c->qk_norm_whole) {
        k->round(qkv_row, heads * dim, m->gemm_type, (char *)tape->q_raw + row * heads * dim * width);
        k->round(qkv_row + heads * dim, kv_heads * dim, m->gemm_type,
                 (char *)tape->k_raw + row * kv_heads * dim * width);
    }
    if (tape && tape->v_raw)
        k->round(values, kv_heads * dim, m->gemm_type, (char *)tape->v_raw + row * kv_heads * dim * width);
    for (size_t h = 0; h < kv_heads && j->layer->v_norm; h++)
        k->rmsnorm(values + h * dim, j->layer->v_norm, (float)c->rms_norm_eps, dim, IV_F32, values + h * dim);
    for (size_t h = 0; h < heads + kv_heads; h++) {
        float *x = qkv_row + h * dim;
        const float *head_norm = h < heads ? j->layer->q_norm : j->layer->k_norm;
        if (head_norm && !c->qk_norm_whole) k->rmsnorm(x, head_norm, (float)c->rms_norm_eps, dim, IV_F32, x);
        if (!c->qk_norm_behind) k->rope(x, cosine, sine, dim / 2);
    }
    if (j->layer->rope->query) k->scale(qkv_row, heads * dim, j->layer->rope->query[position]);
    k->round(qkv_row, heads * dim, m->gemm_type, (char *)j->s->q + row * heads * dim * width);
    unsigned char *page = j->kv + sp->pages[position / IV_ATTENTION_BLOCK] * j->layout->page_bytes;
    for (size_t h = 0; h < kv_heads; h++) {
        float key[IV_HEAD_DIM_MAX], value[IV_HEAD_DIM_MAX]; /* storage for any dtype */
        k->round(qkv_row + (heads + h) * dim, dim, j->layout->type, key);
        k->round(qkv_row + (heads + kv_heads + h) * dim, dim, j->layout->type, value);
        if (!iv_kv_write(j->layout, page, h, position % IV_ATTENTION_BLOCK, key, value))
            iv_cpu_note_bad_span(j->s, span);
        if (!tape) continue;
        size_t at = (row * kv_heads + h) * dim * width;
        memcpy((char *)tape->k + at, key, dim * width), memcpy((char *)tape->v + at, value, dim * width);
    }
}

static unsigned char *pages_of(const iv_cpu_model *s, size_t layer) {
    size_t plane = s->batch->group_spans ? s->model->kv_place[layer].plane : layer;
    return s->batch->kv + plane * s->batch->kv_layer_bytes;
}

static const iv_attention_span *spans_of(const iv_cpu_model *s, size_t layer) {
    return s->batch->spans + s->model->kv_place[layer].group * s->batch->group_spans;
}

static const iv_kv_layout *layout_of(const iv_cpu_model *s, size_t layer) {
    return &s->model->kv_layout[s->model->kv_place[layer].group];
}

static iv_status rope_kv(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_model *s = self(b);
    if (s->model->config.qk_norm_whole) IV_TRY(iv_cpu_whole_norm(s, &s->model->layers[layer], err));
    if (!shard_of(s->model, &s->model->layers[layer])->heads) return IV_OK;
    if (s->model->config.kv_rank) {
        iv_cpu_latent_inputs(s, layer, layout_of(s, layer), spans_of(s, layer), pages_of(s, layer));
        return IV_OK;
    }
    job j = {.s = s,
             .layer = &s->model->layers[layer],
             .layout = layout_of(s, layer),
             .spans = spans_of(s, layer),
             .kv = pages_of(s, layer)};
    iv_pool_run(s->compute.pool, s->batch->tokens, rope_kv_row, &j);
    return IV_OK;
}

/* The output gate, whose values lie behind v. */
static void gate_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_model *m = j->s->model;
    size_t n = shard_of(m, j->layer)->heads * dim_of(m, j->layer);
    const float *gate = j->s->wide + (row + 1) * iv_cpu_mixer_row(m, j->layer) - n;
    unsigned char *attended = (unsigned char *)j->s->attended + row * n * iv_dtype_bytes(m->gemm_type);
    if (j->s->tape) {
        const iv_tape_layer *t = j->s->tape->now;
        size_t bytes = n * iv_dtype_bytes(m->gemm_type);
        memcpy((char *)t->attended_raw + row * bytes, attended, bytes);
        j->s->compute.kernels->round(gate, n, m->gemm_type, (char *)t->attended_gate + row * bytes);
    }
    for (size_t at = 0, k; at < n; at += k, attended += k * iv_dtype_bytes(m->gemm_type)) {
        float x[IV_HEAD_DIM_MAX];
        k = iv_size_min(n - at, IV_HEAD_DIM_MAX);
        for (size_t i = 0; i < k; i++) x[i] = iv_element(m->gemm_type, attended, i) * iv_ref_sigmoid(gate[at + i]);
        j->s->compute.kernels->round(x, k, m->gemm_type, attended);
    }
}

static iv_status attention(iv_backend *b, size_t layer, iv_error *err) {
    (void)err;
    iv_cpu_model *s = self(b);
    const iv_model *m = s->model;
    const iv_tp_shard *shard = shard_of(m, &m->layers[layer]);
    size_t group = (size_t)(m->config.heads / iv_config_kv_heads(&m->config, (int64_t)layer));
    if (!shard->heads) return IV_OK;
    s->compute.kernels->attention(&s->compute,
                                  &(iv_attention_args){.layout = layout_of(s, layer),
                                                       .kv = pages_of(s, layer),
                                                       .heads = shard->heads,
                                                       .group = group,
                                                       .group_first = shard->head_first - shard->kv_head_first * group,
                                                       .window = m->layers[layer].config->window,
                                                       .scale_log2e = m->scales.score_log2e,
                                                       .score_inner = m->scales.score_inner,
                                                       .sinks = m->layers[layer].sinks,
                                                       .q = s->q,
                                                       .out = m->config.kv_rank ? s->latent.rows : s->attended,
                                                       .spans = spans_of(s, layer),
                                                       .span_count = s->batch->span_count,
                                                       .lse2 = s->tape ? s->tape->now->lse2 : NULL});
    if (m->config.kv_rank) iv_cpu_latent_values(s, layer);
    job j = {.s = s, .layer = &m->layers[layer]};
    if (j.layer->config->attention_gate) iv_pool_run(s->compute.pool, s->batch->tokens, gate_row, &j);
    return IV_OK;
}

static iv_status attention_out(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    iv_cpu_model *s = self(b);
    const iv_model *m = s->model;
    const iv_layer *l = &m->layers[layer];
    bool attends = l->config->mixer == IV_MIXER_ATTENTION;
    size_t first = 0, n = 0, bad = atomic_load(&s->bad_span);
    iv_tp_mixer_columns(&m->tp, &m->config, m->rank, layer, &first, &n);
    float scale = iv_mixer_scale(m, l);
    float *y = block_output(s, l->attention_post_norm, scale, s->tape ? s->tape->now->attention_y : NULL);
    IV_TRY(iv_cpu_row_product(
        s, iv_site(m, l, IV_SITE_OUT, 0),
        &(iv_row_parallel_args){.cuts = attends ? iv_tp_out(&m->tp, l->config->wide) : &m->tp.mixer_out,
                                .nodes = l->out,
                                .bias = l->out_bias,
                                .x = s->attended,
                                .x_stride = n,
                                .x_first = first,
                                .rows = s->batch->tokens,
                                .least = &bad,
                                .out = y},
        err));
    if (bad != SIZE_MAX) /* of any rank: all ranks end the step here */
        return iv_fail(err, IV_NOT_FINITE, "layer %zu: a key or value of sequence %zu of the step is not finite", layer,
                       bad);
    add_block(s, l->attention_post_norm, scale, y);
    if (s->tape) memcpy(s->tape->now->x_mlp, s->x, s->batch->tokens * (size_t)m->config.hidden_size * sizeof *s->x);
    return norm(b, next, err);
}

/* ---- MLP --------------------------------------------------------------------------------------------------- */

static iv_status mlp(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    iv_cpu_model *s = self(b);
    const iv_model *m = s->model;
    const iv_layer *l = &m->layers[layer];
    iv_mlp_part part = iv_cpu_dense_part(s, l);
    iv_cpu_mlp_act(s, &part);
    if (iv_cpu_ends_at_act(s, l)) return IV_OK;
    float *y = block_output(s, l->mlp_post_norm, m->scales.mlp_out, s->tape ? s->tape->now->mlp_y : NULL);
    IV_TRY(iv_cpu_mlp_down(s, &part, y, err));
    add_block(s, l->mlp_post_norm, m->scales.mlp_out, y);
    scale_stream(s, l);
    return norm(b, next, err);
}

static iv_status experts(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    iv_cpu_model *s = self(b);
    const iv_layer *l = &s->model->layers[layer];
    float scale = s->model->scales.mlp_out;
    float *y = block_output(s, l->mlp_post_norm, scale, s->tape ? s->tape->now->mlp_y : NULL);
    IV_TRY(l->experts_norm ? iv_cpu_normed_experts(s, l, s->tape ? s->tape->now->x_mlp : s->x, y, err)
                           : iv_cpu_experts(s, l, s->batch->tokens, y, err));
    if (iv_cpu_ends_at_act(s, l)) return IV_OK;
    add_block(s, l->mlp_post_norm, scale, y);
    scale_stream(s, l);
    return norm(b, next, err);
}

/* ---- head -------------------------------------------------------------------------------------------------- */

typedef struct logit_rows {
    const iv_cpu_model *s;
    float *logits;
} logit_rows;

static void shape_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const logit_rows *j = context;
    size_t vocab = (size_t)j->s->model->config.vocab_size;
    iv_cpu_shape_logits(j->s, j->logits + row * vocab, vocab);
}

void iv_cpu_shape_logits(const iv_cpu_model *s, float *x, size_t n) {
    iv_logit_shape shape = s->model->scales.logits;
    if (shape.divisor != 1.0f) s->compute.kernels->divide(x, shape.divisor, n, IV_F32, x);
    if (shape.cap != 0.0f) s->compute.kernels->cap(x, 1.0f / shape.cap, shape.cap, n);
}

static iv_status head(iv_backend *b, iv_error *err) {
    iv_cpu_model *s = self(b);
    const iv_model *m = s->model;
    const iv_batch *batch = s->batch;
    size_t hidden = (size_t)m->config.hidden_size, width = iv_dtype_bytes(m->gemm_type);
    size_t count = batch->logit_count, slice = batch->logits_max ? batch->logits_max : count;
    if (count == 0) return IV_OK;
    IV_ASSERT(count <= slice || batch->take || m->rank > 0);
    for (size_t i = 0; i < count; i++) {
        const float *x = s->x + batch->logit_rows[i] * hidden;
        if (m->config.layer_norm) s->compute.kernels->center(x, hidden, s->centered), x = s->centered;
        s->compute.kernels->rmsnorm(x, m->final_norm, (float)m->config.rms_norm_eps, hidden, m->gemm_type,
                                    (char *)s->normed + i * hidden * width);
    }
    for (size_t first = (count - 1) / slice * slice;; first -= slice) {
        size_t n = iv_size_min(slice, count - first);
        if (m->tp.ranks > 1)
            IV_TRY(iv_tp_gather_logits(s, first, n, batch->logits, err));
        else
            iv_cpu_product(s, iv_site_head(m),
                           &(iv_linear_args){.weight = &m->head,
                                             .type = m->gemm_type,
                                             .x = (char *)s->normed + first * hidden * width,
                                             .x_stride = hidden,
                                             .rows = n,
                                             .out = batch->logits,
                                             .out_stride = m->head.n},
                           (iv_product_rows){batch->logit_rows + first, 1});
        if (m->rank == 0 && iv_shapes_logits(&m->scales))
            iv_pool_run(s->compute.pool, n, shape_row, &(logit_rows){s, batch->logits});
        if (batch->take && m->rank == 0) batch->take(batch->context, first, n);
        if (first == 0) return IV_OK;
    }
}

const iv_backend_ops iv_cpu_ops = {.embed = embed,
                                   .norm = norm,
                                   .qkv = qkv,
                                   .rope_kv = rope_kv,
                                   .attention = attention,
                                   .recurrent = iv_cpu_recurrent,
                                   .attention_out = attention_out,
                                   .mlp = mlp,
                                   .experts = experts,
                                   .head = head};
