/* blocks_backward.c: the backward ops of a layer on the CPU, in the decoder's reverse order. Weight gradients that
 * every rank could compute alike (norms, biases of row-parallel layers) are rank 0's. */
#include "base/size.h"
#include "kernels/heads_backward.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/norms.h"
#include "model/cpu/part_scales.h"
#include "model/cpu/whole_norm.h"
#include "model/decoder.h"
#include "numerics/floats.h"
#include "numerics/router.h"

#include <string.h>

static const iv_layer_tensors *tensors_of(const iv_cpu_learner *l, size_t layer) {
    return &l->tensor_owner->layer_tensors[layer];
}

static const iv_adapted *adapted_at(const iv_cpu_learner *l, size_t layer, iv_site_kind kind) {
    return iv_learner_adapted(l, iv_site(l->model, &l->model->layers[layer], kind, 0));
}

static size_t hidden_of(const iv_cpu_learner *l) { return (size_t)l->model->config.hidden_size; }

/* ---- norms --------------------------------------------------------------------------------------------------- */

static void add_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_learner *l = context;
    l->kernels->add(l->dx + row * hidden_of(l), l->dnormed + row * hidden_of(l), hidden_of(l));
}

static void add_kept_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_learner *l = context;
    l->kernels->add(l->dnormed + row * hidden_of(l), l->kept_dnormed + row * hidden_of(l), hidden_of(l));
}

/* Does another block read what the layer's mixer reads? */
static bool shares_norm(const iv_cpu_learner *l, size_t layer) {
    const iv_model_config *c = &l->model->config;
    if (c->layer[layer].norms == IV_NORMS_SHARED) return true;
    return layer + 1 < (size_t)c->layers && c->layer[layer + 1].norm_kept;
}

static iv_status norm_backward(iv_backend *b, iv_norm n, iv_error *err) {
    (void)err;
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    bool attention = n.kind == IV_NORM_ATTENTION;
    const iv_layer *layer = &l->model->layers[n.layer];
    const iv_layer_tensors *tensors = tensors_of(l, n.layer);
    if (n.kind == IV_NORM_KEPT) {
        memcpy(l->kept_dnormed, l->dnormed, l->batch.tokens * hidden_of(l) * sizeof *l->dnormed);
        return IV_OK;
    }
    if (attention && shares_norm(l, n.layer)) iv_pool_run(l->compute.pool, l->batch.tokens, add_kept_row, l);
    const float *weight = attention ? layer->attention_norm : layer->mlp_norm;
    if (weight)
        iv_learner_norm(l, attention ? l->tape.now->x : l->tape.now->x_mlp, weight,
                        attention ? tensors->attention_norm : tensors->mlp_norm, l->dnormed, l->dx);
    else
        iv_pool_run(l->compute.pool, l->batch.tokens, add_row, l);
    return IV_OK;
}

typedef struct scaling {
    iv_cpu_learner *l;
    float scale;
} scaling;

static void scale_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const scaling *j = context;
    iv_cpu_learner *l = j->l;
    size_t h = hidden_of(l);
    float *to = memcpy(l->post_dx + row * h, l->dx + row * h, h * sizeof *to);
    l->kernels->scale(to, h, j->scale);
}

/* Sets dblock, the gradient of a block's output y; `weight` NULL: no norm stands behind it. A family has a norm there
 * or a scale of the residual addition (iv_scales), not both. */
static void begin_block(iv_cpu_learner *l, float scale, const float *weight, const float *y, const iv_tensor *name) {
    bool scaled = scale != 1.0f;
    l->dblock = weight || scaled ? l->post_dx : l->dx;
    IV_ASSERT(!weight || !scaled);
    if (scaled) iv_pool_run(l->compute.pool, l->batch.tokens, scale_row, &(scaling){l, scale});
    if (!weight) return;
    memset(l->post_dx, 0, l->batch.tokens * hidden_of(l) * sizeof *l->post_dx);
    iv_learner_post_norm(l, y, weight, name, l->dx, l->post_dx);
}

typedef struct stream_scaling {
    iv_cpu_learner *l;
    float scalar;
} stream_scaling;

static void scale_stream_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const stream_scaling *j = context;
    j->l->kernels->scale(j->l->dx + row * hidden_of(j->l), hidden_of(j->l), j->scalar);
}

/* Back through the end of a layer. */
static void scale_stream(iv_cpu_learner *l, size_t layer) {
    const float *scalar = l->model->layers[layer].scalar;
    if (scalar) iv_pool_run(l->compute.pool, l->batch.tokens, scale_stream_row, &(stream_scaling){l, *scalar});
}

/* The norm before an MLP, and its input. */
static const float *mlp_norm_of(const iv_layer *layer, const iv_tape_layer *t, const float **x) {
    bool shared = layer->config->norms == IV_NORMS_SHARED;
    *x = shared ? t->x : t->x_mlp;
    return shared ? layer->attention_norm : layer->mlp_norm;
}

/* ---- MLP ------------------------------------------------------------------------------------------------------ */

static iv_status mlp_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    const iv_layer_tensors *tensors = tensors_of(l, layer);
    const float *x, *norm = mlp_norm_of(&l->model->layers[layer], l->tape.now, &x);
    scale_stream(l, layer);
    begin_block(l, l->model->scales.mlp_out, l->model->layers[layer].mlp_post_norm, l->tape.now->mlp_y,
                tensors->mlp_post_norm);
    iv_mlp_backward_args a = {.part = iv_cpu_dense_part(l->forward, &l->model->layers[layer]),
                              .t = tensors->experts,
                              .norm = norm,
                              .x = x,
                              .whole = (size_t)l->model->config.intermediate_size,
                              .leaves = l->up_leaves,
                              .up_cuts = l->up_cuts,
                              .dx = l->dnormed};
    a.part.act = l->tape.now->act;
    return iv_mlp_backward(l, &a, err);
}

static iv_status experts_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    scale_stream(l, layer);
    begin_block(l, l->model->scales.mlp_out, l->model->layers[layer].mlp_post_norm, l->tape.now->mlp_y,
                tensors_of(l, layer)->mlp_post_norm);
    const float *x, *norm = mlp_norm_of(&l->model->layers[layer], l->tape.now, &x);
    if (l->model->config.expert_norms) return iv_normed_experts_backward(l, layer, err);
    iv_cpu_norm(l->forward, x, norm);
    return iv_experts_backward(l, layer, err);
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

static iv_status attention_out_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    const iv_layer_tensors *t = tensors_of(l, layer);
    size_t rows = l->batch.tokens, h = hidden_of(l), first, n;
    iv_tp_mixer_columns(&l->model->tp, &l->model->config, l->model->rank, layer, &first, &n);
    const iv_layer *w = &l->model->layers[layer];
    begin_block(l, iv_mixer_scale(l->model, w), w->attention_post_norm, l->tape.now->attention_y,
                t->attention_post_norm);
    iv_learner_round(l, l->dblock, rows, h, l->dy);
    iv_linear_backward_args out = {.axis = &l->axis,
                                   .rows = rows,
                                   .dy = l->dy,
                                   .dy_stride = h,
                                   .slices = 1,
                                   .stride = t->out->columns,
                                   .k = n,
                                   .x = l->tape.now->attended,
                                   .dx = l->dattended,
                                   .adapted = adapted_at(l, layer, IV_SITE_OUT)};
    bool attends = l->model->config.layer[layer].mixer == IV_MIXER_ATTENTION;
    out.inputs = attends ? iv_tp_out(&l->model->tp, l->model->config.layer[layer].wide) : &l->model->tp.mixer_out;
    out.slice[0] = iv_whole_slice(t->out->offset + first, h, &out.leaves);
    IV_TRY(iv_linear_backward(l, &out, err));
    if (t->out_bias && l->model->rank == 0) iv_bias_backward(l, &l->axis, l->dblock, h, 0, h, t->out_bias->offset);
    return IV_OK;
}

/* Floats of a row of dqkv: with a gate's behind those of v. */
static size_t qkv_row(const iv_cpu_learner *l, size_t layer) {
    size_t dim;
    const iv_tp_shard *shard = iv_learner_heads(l, layer, &dim);
    bool gated = l->model->config.layer[layer].attention_gate;
    return ((gated ? 2 : 1) * shard->heads + 2 * shard->kv_heads) * dim;
}

typedef struct gating {
    iv_cpu_learner *l;
    size_t n, stride; /* of a row: the rank's outputs, and floats of dqkv */
} gating;

/* Back through the output gate: dattended becomes the gradient before it, its logits' goes behind dv. */
static void gate_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const gating *j = context;
    iv_cpu_learner *l = j->l;
    const iv_tape_layer *t = l->tape.now;
    float *d = l->dattended + row * j->n, *dgate = l->dqkv + (row + 1) * j->stride - j->n;
    for (size_t i = 0; i < j->n; i++) {
        float s = iv_ref_sigmoid(iv_element(l->model->gemm_type, t->attended_gate, row * j->n + i));
        float a = iv_element(l->model->gemm_type, t->attended_raw, row * j->n + i);
        dgate[i] = iv_canonical((d[i] * a) * (s * (1.0f - s))), d[i] = d[i] * s;
    }
}

static iv_status attention_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    if (l->model->config.kv_rank) return iv_latent_attention_backward(l, layer, err);
    const iv_model_config *c = &l->model->config;
    size_t dim;
    const iv_tp_shard *shard = iv_learner_heads(l, layer, &dim);
    const iv_tape_layer *t = l->tape.now;
    bool gated = c->layer[layer].attention_gate;
    gating j = {l, shard->heads * dim, qkv_row(l, layer)};
    if (gated) iv_pool_run(l->compute.pool, l->batch.tokens, gate_row, &j);
    iv_learner_round(l, l->dattended, l->batch.tokens, j.n, l->dy);
    iv_attention_backward(
        &l->compute, &(iv_attention_backward_args){.type = l->model->gemm_type,
                                                   .kv_heads = shard->kv_heads,
                                                   .group = (size_t)(c->heads / iv_config_kv_heads(c, (int64_t)layer)),
                                                   .head_dim = dim,
                                                   .window = l->model->layers[layer].config->window,
                                                   .scale_log2e = l->model->scales.score_log2e,
                                                   .scale = l->model->scales.score,
                                                   .score_inner = l->model->scales.score_inner,
                                                   .sinks = l->model->layers[layer].sinks,
                                                   .sink_terms = l->sink_terms,
                                                   .q = t->q,
                                                   .out = gated ? t->attended_raw : t->attended,
                                                   .dout = l->dy,
                                                   .k = t->k,
                                                   .v = t->v,
                                                   .lse2 = t->lse2,
                                                   .dqkv = l->dqkv,
                                                   .dqkv_stride = j.stride,
                                                   .sequences = l->ranges,
                                                   .sequence_count = l->to - l->from});
    const iv_tensor *sinks = tensors_of(l, layer)->sinks;
    if (sinks && shard->heads)
        iv_bias_backward(l, &l->axis, l->sink_terms, shard->heads, 0, shard->heads, sinks->offset + shard->head_first);
    return IV_OK;
}

typedef struct head_columns {
    const iv_cpu_learner *l;
    size_t dim;
} head_columns;

static void add_terms(void *context, size_t row, size_t first, size_t count, float *acc) {
    const head_columns *j = context;
    j->l->kernels->add(acc, j->l->head_terms + row * 2 * j->dim + first, count);
}

/* q_norm's terms are the first head_dim columns, k_norm's the others. */
static void add_k_terms(void *context, size_t row, size_t first, size_t count, float *acc) {
    const head_columns *j = context;
    add_terms(context, row, first + j->dim, count, acc);
}

typedef struct query_scaling {
    iv_cpu_learner *l;
    const float *scale; /* [positions] */
    const iv_tp_shard *shard;
    size_t dim, stride;
} query_scaling;

/* The gradient of a row's rotated queries, from that of the scaled ones. */
static void scale_queries(void *context, size_t row, size_t worker) {
    (void)worker;
    const query_scaling *j = context;
    iv_cpu_learner *l = j->l;
    const iv_tp_shard *shard = j->shard;
    size_t dim = j->dim, q = 0;
    while (row >= l->ranges[q].first + l->ranges[q].rows) q++;
    l->kernels->scale(l->dqkv + row * j->stride, shard->heads * dim, j->scale[row - l->ranges[q].first]);
}

static iv_status rope_kv_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    const iv_layer *w = &l->model->layers[layer];
    const iv_layer_tensors *t = tensors_of(l, layer);
    size_t dim;
    const iv_tp_shard *shard = iv_learner_heads(l, layer, &dim);
    if (l->model->config.kv_rank) return iv_latent_heads_backward(l, layer, err);
    if (w->rope->query)
        iv_pool_run(l->compute.pool, l->batch.tokens, scale_queries,
                    &(query_scaling){l, w->rope->query, shard, dim, qkv_row(l, layer)});
    bool whole = l->model->config.qk_norm_whole;
    iv_heads_backward(&l->compute,
                      &(iv_heads_backward_args){.type = l->model->gemm_type,
                                                .heads = shard->heads,
                                                .kv_heads = shard->kv_heads,
                                                .dim = dim,
                                                .leaves = l->qkv_leaves[w->config->wide],
                                                .v_norm = w->v_norm,
                                                .v_raw = l->tape.now->v_raw,
                                                .values_are_keys = w->config->values_are_keys,
                                                .q_norm = whole ? NULL : w->q_norm,
                                                .k_norm = whole ? NULL : w->k_norm,
                                                .norms_behind = l->model->config.qk_norm_behind,
                                                .eps = (float)l->model->config.rms_norm_eps,
                                                .cosine = w->rope->cosine,
                                                .sine = w->rope->sine,
                                                .sequences = l->ranges,
                                                .sequence_count = l->to - l->from,
                                                .q_raw = l->tape.now->q_raw,
                                                .k_raw = l->tape.now->k_raw,
                                                .dqkv = l->dqkv,
                                                .stride = qkv_row(l, layer),
                                                .terms = l->head_terms},
                      l->batch.tokens);
    if (whole) return iv_whole_norm_backward(l, w, t, err);
    if (!t->q_norm) return IV_OK;
    head_columns columns = {l, dim};
    IV_TRY(iv_ranks_add_rows(l, l->head_terms, l->batch.tokens * 2 * dim, false, err));
    if (l->model->rank > 0) return IV_OK;
    iv_learner_sum_columns(l,
                           &(iv_axis_columns){&l->axis, &l->step->sums, t->q_norm->offset, dim, add_terms, &columns});
    iv_learner_sum_columns(l,
                           &(iv_axis_columns){&l->axis, &l->step->sums, t->k_norm->offset, dim, add_k_terms, &columns});
    return IV_OK;
}

/* What the layer's mixer read, again. */
static void norm_of_mixer(iv_cpu_learner *l, size_t layer) {
    size_t of = l->model->config.layer[layer].norm_kept ? layer - 1 : layer;
    iv_cpu_norm(l->forward, l->tape.layers[of].x, l->model->layers[of].attention_norm);
}

/* The same of a layer with a state. */
static iv_status mixer_in_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    size_t h = hidden_of(l);
    norm_of_mixer(l, layer);
    iv_linear_backward_args a = {.axis = &l->axis,
                                 .rows = l->batch.tokens,
                                 .dy = l->dy,
                                 .dy_stride = l->model->delta_layout.width,
                                 .stride = h,
                                 .k = h,
                                 .cuts = l->mixer_cuts,
                                 .x = l->forward->normed,
                                 .dx = l->dnormed,
                                 .adapted = adapted_at(l, layer, IV_SITE_QKV)};
    iv_recurrent_slices(l, layer, &a);
    return iv_linear_backward(l, &a, err);
}

static iv_status qkv_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    if (l->model->config.layer[layer].mixer != IV_MIXER_ATTENTION) return mixer_in_backward(l, layer, err);
    const iv_layer_tensors *t = tensors_of(l, layer);
    if (l->model->config.kv_rank) return iv_latent_inputs_backward(l, layer, err);
    bool wide = l->model->config.layer[layer].wide, keys = l->model->config.layer[layer].values_are_keys;
    size_t dim;
    const iv_tp_shard *shard = iv_learner_heads(l, layer, &dim);
    size_t rows = l->batch.tokens, h = hidden_of(l), leaves = l->qkv_leaves[wide];
    size_t q = shard->heads * dim, kv = shard->kv_heads * dim, all = qkv_row(l, layer);
    size_t q_first = shard->head_first * dim, kv_first = shard->kv_head_first * dim;
    iv_cpu_scale_parts(&l->compute, l->model, &l->model->layers[layer], l->dqkv, all, rows);
    iv_learner_round(l, l->dqkv, rows, all, l->dy);
    if (t->q_bias) {
        iv_bias_backward(l, &l->axis, l->dqkv, all, 0, q, t->q_bias->offset + q_first);
        iv_bias_backward(l, &l->axis, l->dqkv, all, q, kv, t->k_bias->offset + kv_first);
        if (!keys) iv_bias_backward(l, &l->axis, l->dqkv, all, q + kv, kv, t->v_bias->offset + kv_first);
        if (t->gate) iv_bias_backward(l, &l->axis, l->dqkv, all, q + 2 * kv, q, t->gate_bias->offset + q_first);
    }
    iv_cpu_norm(l->forward, l->tape.now->x, l->model->layers[layer].attention_norm);
    iv_linear_backward_args a = {
        .axis = &l->axis,
        .rows = rows,
        .dy = l->dy,
        .dy_stride = all,
        .slices = 2,
        .slice = {{t->q->offset + q_first * h, q, q / leaves}, {t->k->offset + kv_first * h, kv, kv / leaves}},
        .stride = h,
        .k = h,
        .leaves = leaves,
        .cuts = l->qkv_cuts[wide],
        .x = l->forward->normed,
        .dx = l->dnormed,
        .adapted = adapted_at(l, layer, IV_SITE_QKV)};
    if (!keys) a.slice[a.slices++] = (iv_gradient_slice){t->v->offset + kv_first * h, kv, kv / leaves};
    if (t->gate) a.slice[a.slices++] = (iv_gradient_slice){t->gate->offset + q_first * h, q, q / leaves};
    return iv_linear_backward(l, &a, err);
}

/* ---- the ends of the pass ------------------------------------------------------------------------------------- */

static iv_status head_backward(iv_backend *b, iv_error *err) { return iv_head_backward(iv_cpu_learner_of(b), err); }

static iv_status restore(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    l->tape.now = &l->tape.layers[layer];
    if (l->tape.recompute == IV_RECOMPUTE_NONE) return IV_OK;
    memcpy(l->forward->x, l->tape.now->x, l->batch.tokens * hidden_of(l) * sizeof(float));
    if (l->model->config.layer[layer].norm_kept) norm_of_mixer(l, layer);
    l->tape.recomputing = true;
    iv_status status = iv_decoder_recompute(l->model, b, layer, l->tape.recompute, err);
    l->tape.recomputing = false;
    return status;
}

static void scale_embedding_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_learner *l = context;
    l->kernels->scale(l->dx + row * hidden_of(l), hidden_of(l), l->model->scales.embedding);
}

/* The rows before the norm are made again. */
static void norm_embedding_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_learner *l = context;
    size_t h = hidden_of(l);
    float *x = l->forward->x + row * h, *dx = l->dx + row * h;
    l->kernels->rmsnorm_backward(x, l->model->embedding_norm, (float)l->model->config.rms_norm_eps, h, dx, NULL, x);
    memcpy(dx, x, h * sizeof *dx);
}

static iv_status embed_backward(iv_backend *b, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    if (l->model->embedding_norm) {
        iv_cpu_embed(l->forward);
        iv_pool_run(l->compute.pool, l->batch.tokens, norm_embedding_row, l);
    }
    if (l->model->scales.embedding != 1.0f) iv_pool_run(l->compute.pool, l->batch.tokens, scale_embedding_row, l);
    return l->model->rank == 0 ? iv_lookups_add(l, err) : IV_OK;
}

void iv_backward_ops(iv_backend_ops *ops) {
    ops->head_backward = head_backward, ops->restore = restore;
    ops->mlp_backward = mlp_backward, ops->experts_backward = experts_backward;
    ops->norm_backward = norm_backward, ops->attention_out_backward = attention_out_backward;
    ops->attention_backward = attention_backward, ops->rope_kv_backward = rope_kv_backward;
    ops->recurrent_backward = iv_recurrent_backward;
    ops->qkv_backward = qkv_backward, ops->embed_backward = embed_backward;
}
