/* learner_backward.c: the backward ops of a layer on a GPU, in the decoder's reverse order. */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"
#include "model/decoder.h"

/* dx += the gradient through the norm of x. */
static iv_status norm_gradient(gpu_learner *l, const iv_tensor *weight, const float *x, const float *dy, float *dx,
                               iv_error *err) {
    iv_gpu_norm_backward_args norm = {.x = x,
                                      .weight = iv_gpu_learner_norm(l, weight),
                                      .eps = (float)l->m->config.rms_norm_eps,
                                      .n = l->h,
                                      .rows = l->n.rows,
                                      .dy = dy,
                                      .dx = dx,
                                      .factors = l->factors,
                                      .type = l->m->gemm_type,
                                      .rounded = l->dx_rounded,
                                      .rounded_stride = l->h_stride};
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_norm_backward(&norm, l->f.stream), "gradient of a norm", err));
    if (l->f.rank > 0) return IV_OK;
    iv_gpu_column_sums_args sums = {.kind = IV_GPU_SUM_NORM,
                                    .axis = &l->axis,
                                    .row = l->on.axis_rows,
                                    .dy = dy,
                                    .dy_stride = l->h,
                                    .n = l->h,
                                    .x = x,
                                    .x_stride = l->h,
                                    .r = l->factors,
                                    .offset = weight->offset,
                                    .sums = l->sums,
                                    .scratch = l->column_scratch};
    return iv_gpu_learner_column_sums(l, &sums, err);
}

static iv_status norm_backward(iv_backend *b, iv_norm n, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, n.layer);
    const iv_tensor *weight = n.kind == IV_NORM_ATTENTION ? t->attention_norm : t->mlp_norm;
    iv_gpu_add_args add = {.x = l->dx, .y = l->dnormed, .scale = 1, .n = l->h, .rows = l->n.rows, .to = l->dx};
    if (weight)
        IV_TRY(norm_gradient(l, weight, n.kind == IV_NORM_ATTENTION ? l->f.now->x : l->f.now->x_mlp, l->dnormed, l->dx,
                             err));
    else
        IV_TRY(iv_gpu_launched(&l->f, iv_gpu_add_rows(&add, l->f.stream), "gradient of the residual stream", err));
    /* attention's norm is the layer's last */
    return n.kind == IV_NORM_ATTENTION ? iv_gpu_learner_end_bucket(l, l->layer_buckets[n.layer], err) : IV_OK;
}

/* to = dx * scale. */
static iv_status scale_dx(gpu_learner *l, float scale, float *to, iv_error *err) {
    iv_gpu_add_args a = {.y = l->dx, .scale = scale, .n = l->h, .rows = l->n.rows, .to = to};
    return iv_gpu_launched(&l->f, iv_gpu_add_rows(&a, l->f.stream), "scaled gradient", err);
}

/* Sets dblock, and its rounded form: the gradient of a block's output, behind which a norm or a scale may stand. */
static iv_status begin_block(gpu_learner *l, const iv_tensor *post_norm, iv_norm_kind block, iv_error *err) {
    float scale = l->m->scales.residual;
    l->dblock = l->dx;
    if (!post_norm && scale == 1.0f) return IV_OK;
    l->dblock = l->post_dx;
    IV_ASSERT(!post_norm || scale == 1.0f); /* see the CPU's */
    if (!post_norm) {
        IV_TRY(scale_dx(l, scale, l->post_dx, err));
        int code = iv_gpu_round_rows(l->post_dx, l->h, 0, l->h, l->n.rows, l->m->gemm_type, l->dx_rounded, l->h_stride,
                                     l->f.stream);
        return iv_gpu_launched(&l->f, code, "rounding", err);
    }
    int code = cudaMemsetAsync(l->post_dx, 0, l->n.rows * l->h * sizeof *l->post_dx, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "clearing", err));
    return norm_gradient(l, post_norm, l->f.now->block_y[block], l->dx, l->post_dx, err);
}

/* ---- MLP ------------------------------------------------------------------------------------------------------------
 */

static iv_status mlp_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_layer_tensors *tensors = iv_gpu_learner_tensors(l, layer);
    gpu_mlp_part part = {.t = tensors->experts,
                         .up_concat = l->concats[layer].up,
                         .down_concat = l->concats[layer].down,
                         .gate = l->f.now->gate,
                         .up = l->f.now->up,
                         .act = l->f.now->act,
                         .n = l->up,
                         .first = l->up_first,
                         .act_stride = l->act_stride};
    IV_TRY(begin_block(l, tensors->mlp_post_norm, IV_NORM_MLP, err));
    return iv_gpu_learner_mlp_backward(l, layer, &part, l->dnormed, err);
}

static iv_status experts_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    IV_TRY(begin_block(l, iv_gpu_learner_tensors(l, layer)->mlp_post_norm, IV_NORM_MLP, err));
    return iv_gpu_learner_experts_backward(l, layer, err);
}

/* ---- attention ------------------------------------------------------------------------------------------------------
 */

/* dy = R(the gradient of the layer's input x). */
static iv_status out_gradient(gpu_learner *l, size_t layer, const void *x, size_t x_stride, iv_error *err) {
    const output_concat *concat = &l->concats[layer].out;
    const learned_site *site = iv_gpu_learned_site(l, layer, IV_SITE_OUT, 0);
    gpu_row_parallel cut = {
        .cuts = &l->m->tp.out, .x = l->f.now->attended, .x_stride = l->q, .x_first = l->m->tp.out.of[l->f.rank].first};
    const learned_backward b = {.site = site,
                                .concat = concat,
                                .axis = &l->axis,
                                .row = l->on.axis_rows,
                                .rows = l->n.rows,
                                .dy = l->dx_rounded,
                                .x = x,
                                .x_stride = x_stride,
                                .cut_inputs = &cut,
                                .dx = l->dattended,
                                .rounded = l->dy};
    const iv_layer_config *c = l->m->layers[layer].config;
    bool plain = c->mixer == IV_MIXER_ATTENTION && !c->attention_gate;
    IV_ASSERT(!site || plain);
    if (!site && plain)
        return iv_gpu_learner_rounded_input_gradient(l, concat, l->dx_rounded, l->dattended, l->dy, err);
    IV_TRY(iv_gpu_learner_input_gradient(l, concat, l->n.rows, l->dx_rounded, l->dattended, err));
    return site ? iv_gpu_learned_backward(l, &b, err) : IV_OK;
}

static iv_status attention_out_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    const output_concat *concat = &l->concats[layer].out;
    const void *x = l->f.now->attended;
    size_t stride = concat->k;
    IV_TRY(begin_block(l, t->attention_post_norm, IV_NORM_ATTENTION, err));
    IV_TRY(iv_gpu_inputs_at(&l->pass, 0, concat->k, &x, &stride, err));
    IV_TRY(iv_gpu_learner_weight_gradient(l, concat, &l->axis, l->dx_rounded, x, stride, err));
    IV_TRY(out_gradient(l, layer, x, stride, err));
    return t->out_bias && l->f.rank == 0
               ? iv_gpu_learner_bias_gradient(l, l->dblock, l->h, l->h, t->out_bias->offset, err)
               : IV_OK;
}

static iv_status attention_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    bool gated = l->m->layers[layer].config->attention_gate;
    if (gated) {
        int code = iv_gpu_attention_gate_backward(l->dattended, l->f.now->raw, l->f.now->raw_gate, l->n.rows, l->q,
                                                  l->m->gemm_type, l->dy, l->dattended, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "gradient of the gate of attention", err));
    }
    iv_gpu_attention_backward_args a = {.shape =
                                            iv_gpu_shape_of(l->m, l->f.arithmetic, l->m->layers[layer].config->window),
                                        .kv = iv_gpu_kv_of(&l->pass, layer),
                                        .spans = l->on.spans,
                                        .host_spans = l->at.spans,
                                        .span_count = l->n.sequences,
                                        .tables = l->on.tables,
                                        .scale_log2e = l->m->scales.score_log2e,
                                        .scale = l->m->scales.score,
                                        .score_inner = l->m->scales.score_inner,
                                        .sinks = l->f.layers[layer].sinks,
                                        .sink_terms = l->sink_terms,
                                        .q = l->f.now->q,
                                        .out = gated ? l->f.now->raw : l->f.now->attended,
                                        .dout = l->dy,
                                        .lse2 = l->f.now->lse2,
                                        .dqkv = l->dqkv,
                                        .rows = l->n.rows,
                                        .scratch = l->backward_scratch,
                                        .tiles = l->tiles,
                                        .tiles_bytes = l->tiles_bytes,
                                        .sms = l->f.sms};
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_attention_backward(&a, l->f.stream), "gradient of attention", err));
    const iv_tensor *sinks = iv_gpu_learner_tensors(l, layer)->sinks;
    if (!sinks) return IV_OK;
    return iv_gpu_learner_bias_gradient(l, l->sink_terms, l->heads, l->heads, sinks->offset + l->shard->head_first,
                                        err);
}

/* Afterwards dy is the concatenation of q, k and v. */
static iv_status rope_kv_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    const output_concat *concat = &l->concats[layer].qkv;
    size_t dim = (size_t)l->m->config.head_dim, gate = t->gate ? iv_padded_k(l->q / concat->leaves) : 0;
    iv_gpu_rotate_backward_args a = {.dqkv = l->dqkv,
                                     .keeps = t->q_bias != NULL,
                                     .rows = l->n.rows,
                                     .heads = l->heads,
                                     .kv_heads = l->kv_heads,
                                     .head_dim = dim,
                                     .leaves = concat->leaves,
                                     .behind = gate,
                                     .cosine = l->f.layers[layer].cosine,
                                     .sine = l->f.layers[layer].sine,
                                     .positions = l->on.axis_positions,
                                     .q_norm = iv_gpu_learner_norm(l, t->q_norm),
                                     .k_norm = iv_gpu_learner_norm(l, t->k_norm),
                                     .norms_behind = l->m->config.qk_norm_behind,
                                     .eps = (float)l->m->config.rms_norm_eps,
                                     .q_raw = l->f.now->q_raw,
                                     .k_raw = l->f.now->k_raw,
                                     .terms = l->head_terms,
                                     .type = l->m->gemm_type,
                                     .dy = l->dy,
                                     .dy_stride = concat->n};
    const float *query = l->f.layers[layer].query;
    int code = query ? iv_gpu_scale_queries(l->dqkv, l->n.rows, l->q, l->q + 2 * l->kv, l->on.axis_positions, query,
                                            l->f.stream)
                     : 0;
    IV_TRY(iv_gpu_launched(&l->f, code, "gradient of scaled queries", err));
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_rotate_backward(&a, l->f.stream), "gradient of the rotation", err));
    if (gate) {
        size_t apart = concat->n / concat->leaves;
        code = iv_gpu_concat_rows(l->dattended, l->on.axis_positions, l->n.rows, l->q, concat->leaves, apart,
                                  apart - gate, l->m->gemm_type, l->dy, concat->n, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "gradient of the gate of attention", err));
    }
    if (!t->q_norm) return IV_OK;
    IV_TRY(iv_gpu_learner_add_terms(l, 2 * dim, err));
    if (l->f.rank > 0) return IV_OK;
    iv_gpu_column_sums_args sums = {.kind = IV_GPU_SUM_VALUES,
                                    .axis = &l->axis,
                                    .row = l->on.axis_rows,
                                    .dy = l->head_terms,
                                    .dy_stride = 2 * dim,
                                    .n = 2 * dim,
                                    .offset = t->q_norm->offset,
                                    .later = dim,
                                    .later_offset = t->k_norm->offset,
                                    .sums = l->sums,
                                    .scratch = l->column_scratch};
    return iv_gpu_learner_column_sums(l, &sums, err);
}

static iv_status qkv_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    const output_concat *concat = &l->concats[layer].qkv;
    size_t all = l->q + 2 * l->kv, dim = (size_t)l->m->config.head_dim, q = l->shard->head_first * dim,
           kv = l->shard->kv_head_first * dim;
    if (t->q_bias && t->gate_bias)
        IV_TRY(iv_gpu_learner_bias_gradient(l, l->dattended, l->q, l->q, t->gate_bias->offset + q, err));
    if (t->q_bias) {
        IV_TRY(iv_gpu_learner_bias_gradient(l, l->dqkv, all, l->q, t->q_bias->offset + q, err));
        IV_TRY(iv_gpu_learner_bias_gradient(l, l->dqkv + l->q, all, l->kv, t->k_bias->offset + kv, err));
        IV_TRY(iv_gpu_learner_bias_gradient(l, l->dqkv + l->q + l->kv, all, l->kv, t->v_bias->offset + kv, err));
    }
    IV_TRY(iv_gpu_learner_normed(l, (iv_norm){IV_NORM_ATTENTION, layer}, err));
    IV_TRY(iv_gpu_learner_weight_gradient(l, concat, &l->axis, l->dy, l->f.normed, l->h_stride, err));
    IV_TRY(iv_gpu_learner_cut_gradient(l, concat, l->dy, l->dnormed, err));
    const learned_backward adapter = {.site = iv_gpu_learned_site(l, layer, IV_SITE_QKV, 0),
                                      .concat = concat,
                                      .axis = &l->axis,
                                      .row = l->on.axis_rows,
                                      .rows = l->n.rows,
                                      .dy = l->dy,
                                      .x = l->f.normed,
                                      .x_stride = l->h_stride,
                                      .cut_outputs = true,
                                      .dx = l->dnormed};
    return iv_gpu_learned_backward(l, &adapter, err);
}

/* ---- the ends of the pass -------------------------------------------------------------------------------------------
 */

/* The host lists the rows of experts while the GPU is at the head. */
static iv_status head_backward(iv_backend *b, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    IV_TRY(iv_gpu_learner_head_backward(l, err));
    uint64_t unused = UINT64_MAX;
    return l->tape.host_ids ? iv_gpu_learner_agree(l, iv_gpu_learner_list_experts(l, err), &unused, err) : IV_OK;
}

static iv_status restore(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    l->f.now = &l->tape.layers[layer];
    iv_gpu_learner_begin_bucket(l, l->layer_buckets[layer]);
    if (l->tape.recompute == IV_RECOMPUTE_NONE) return IV_OK;
    l->f.x = l->f.now->x, l->tape.recomputing = true;
    iv_status status = iv_decoder_recompute(l->m, b, layer, l->tape.recompute, err);
    l->tape.recomputing = false;
    return status;
}

static iv_status embed_backward(iv_backend *b, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    iv_gradient_bucket bucket = iv_parameters_tensor_bucket(l->tensor_owner->embedding_tensor);
    if (l->learned) return IV_OK;
    if (l->tied_offset) bucket = (iv_gradient_bucket){l->tied_offset, l->tied_offset + bucket.end - bucket.begin};
    iv_gpu_learner_begin_bucket(l, bucket);
    if (l->m->scales.embedding != 1.0f) IV_TRY(scale_dx(l, l->m->scales.embedding, l->dx, err));
    if (l->f.rank == 0) IV_TRY(iv_gpu_learner_lookups(l, err)); /* all ranks have the same dx */
    return iv_gpu_learner_end_bucket(l, bucket, err);
}

void iv_gpu_learner_backward_ops(iv_backend_ops *ops) {
    ops->head_backward = head_backward, ops->restore = restore;
    ops->mlp_backward = mlp_backward, ops->experts_backward = experts_backward;
    ops->norm_backward = norm_backward, ops->attention_out_backward = attention_out_backward;
    ops->attention_backward = attention_backward, ops->rope_kv_backward = rope_kv_backward;
    ops->recurrent_backward = iv_gpu_learner_recurrent_backward;
    ops->qkv_backward = qkv_backward, ops->embed_backward = embed_backward;
}
