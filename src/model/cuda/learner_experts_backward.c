/* learner_experts_backward.c: the backward pass of a mixture of experts in a learner on a GPU. A chunk of experts is
 * computed at once: its rows are gathered, by expert, and each gradient of its matrices is one launch. Then the router,
 * through the weights that it gave. */
#include "model/cuda/learner_adapter.h"

typedef struct expert_job {
    const gpu_expert_chunk *chunk;
    const layer_concats *concats;
    const iv_activation *activation;
    const layer_vectors *vectors;
    const iv_mlp_tensors *tensors;                          /* of the chunk's first expert */
    const int32_t *slots, *tokens, *entries, *places, *ids; /* ids: by slot, of the layer */
    iv_token_axis axis;
    iv_gpu_gradient_groups groups; /* without bases */
    size_t layer;
} expert_job;

/* ---- gradients of all matrices of one kind ----------------------------------------------------------------------- */

static iv_status weight_gradients(gpu_learner *l, const expert_job *j, const output_concat *concat, size_t bases,
                                  const void *x, size_t x_stride, iv_error *err) {
    iv_gpu_gradient_groups groups = j->groups;
    groups.bases = l->offsets + bases + j->chunk->expert;
    iv_gpu_weight_gradient_args a = {.arithmetic = l->f.arithmetic,
                                     .type = l->m->gemm_type,
                                     .axis = &j->axis,
                                     .groups = &groups,
                                     .dy = l->dy,
                                     .dy_stride = concat->n,
                                     .n = concat->n,
                                     .offsets = l->offsets + concat->offsets,
                                     .x = x,
                                     .x_stride = x_stride,
                                     .k = concat->k,
                                     .sums = l->sums,
                                     .scratch = l->gradient_scratch,
                                     .sms = l->f.sms};
    if (l->learned) return IV_OK;
    return iv_gpu_launched(&l->f, iv_gpu_weight_gradient(&a, l->f.stream), "gradient of experts' weights", err);
}

static iv_gpu_groups groups_of(const gpu_learner *l, const expert_job *j) {
    const gpu_expert_chunk *c = j->chunk;
    return (iv_gpu_groups){.experts = c->count,
                           .count = c->count,
                           .offsets = l->lists + c->offsets,
                           .slots = j->slots,
                           .experts_per_token = 1,
                           .packed = true};
}

/* Of the adapter's modules. x NULL: no gradients of A and B; dx NULL: none of the input. */
static iv_status adapter_gradients(gpu_learner *l, const expert_job *j, bool down, const void *x, size_t x_stride,
                                   float *dx, iv_error *err) {
    const gpu_expert_chunk *c = j->chunk;
    iv_gpu_groups groups = groups_of(l, j);
    const learned_backward b = {.site = iv_gpu_learned_site(l, j->layer, down ? IV_SITE_DOWN : IV_SITE_UP, c->expert),
                                .concat = down ? &j->concats->down[c->expert] : &j->concats->up[c->expert],
                                .axis = &j->axis,
                                .row = j->slots,
                                .rows = c->rows,
                                .dy = l->dy,
                                .x = x,
                                .x_stride = x_stride,
                                .dx = dx,
                                .groups = &groups,
                                .sums = &j->groups,
                                .layer = j->layer,
                                .expert = c->expert,
                                .down = down};
    return iv_gpu_learned_backward(l, &b, err);
}

/* dx [rows][concat->k], in the order of the chunk's rows. */
static iv_status input_gradients(gpu_learner *l, const expert_job *j, const output_concat *concat, size_t bases,
                                 float *dx, iv_error *err) {
    const gpu_expert_chunk *c = j->chunk;
    iv_gpu_groups groups = groups_of(l, j);
    iv_matrix transposed;
    IV_TRY(iv_gpu_learner_transpose(l, concat, l->offsets + bases + 2 * l->experts + c->expert, c->count, &transposed,
                                    err));
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &transposed, l->dy, concat->n, c->rows);
    a.x_rows = 0, a.groups = &groups, a.w.expert_bytes = concat->k * concat->stride * l->width;
    a.bias = l->zeros, a.out = dx, a.out_stride = concat->k;
    return iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of experts' inputs", err);
}

/* Of a bias of each expert: n columns of dy [chunk's rows][stride]. tensor: its offset in iv_mlp_tensors;
 * skipped: columns before these. */
static iv_status bias_gradients(gpu_learner *l, const expert_job *j, size_t tensor, const float *dy, size_t stride,
                                size_t n, size_t skipped, iv_error *err) {
    iv_rank_range ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis = j->axis;
    const uint32_t *bounds = j->groups.host_bounds;
    for (size_t e = 0, first = 0; e < j->chunk->count; e++, first += axis.padded, bounds += 2 * axis.range_count) {
        const iv_tensor *t = *(iv_tensor *const *)(const void *)((const char *)&j->tensors[e] + tensor);
        for (size_t p = 0; p < axis.range_count; p++) {
            ranges[p] = j->axis.ranges[p];
            ranges[p].begin = bounds[2 * p] - first, ranges[p].end = bounds[2 * p + 1] - first;
        }
        axis.ranges = ranges, axis.padded = axis.range_count ? ranges[axis.range_count - 1].end : 0;
        IV_TRY(iv_gpu_learner_axis_bias_gradient(l, &axis, j->places + first, dy + first * stride + skipped, stride, n,
                                                 t->offset, err));
    }
    return IV_OK;
}

/* ---- row ops ----------------------------------------------------------------------------------------------------- */

/* out = rows of x, `stride` elements each; zeros in padding. */
static iv_status gather(gpu_learner *l, const expert_job *j, const void *x, const int32_t *pick, size_t stride,
                        void *out, iv_error *err) {
    int code = iv_gpu_gather_rows(x, pick, j->chunk->rows, stride * l->width, out, l->f.stream);
    return iv_gpu_launched(&l->f, code, "experts' rows", err);
}

/* act in the chunk's order, *packed without the padding of its rows. */
static iv_status gather_act(gpu_learner *l, const expert_job *j, const void **packed, iv_error *err) {
    IV_TRY(gather(l, j, l->f.now->act, j->entries, l->expert_stride, l->expert_act, err));
    *packed = l->expert_act;
    if (l->expert_n == l->expert_stride) return IV_OK;
    *packed = l->expert_gate; /* free until the weights' gradient of down is done */
    int code = iv_gpu_copy_columns(l->m->gemm_type, l->expert_act, l->expert_stride, 0, l->expert_n, j->chunk->rows,
                                   l->expert_gate, l->expert_n, l->f.stream);
    return iv_gpu_launched(&l->f, code, "experts' rows", err);
}

static iv_status down_backward(gpu_learner *l, const expert_job *j, iv_error *err) {
    const output_concat *concat = &j->concats->down[j->chunk->expert];
    size_t bases = j->concats->down_bases;
    iv_gpu_expert_rows_args a = {.slot = j->slots,
                                 .entries = j->chunk->rows,
                                 .k = l->k,
                                 .hidden = l->h,
                                 .n = l->expert_n,
                                 .dx = l->dblock,
                                 .weights = l->f.now->expert_weights,
                                 .bias = j->vectors->expert_down_bias,
                                 .bias_stride = j->vectors->expert_down_apart,
                                 .ids = j->ids,
                                 .first = (int32_t)l->shard->expert_first,
                                 .weighed = l->expert_dx,
                                 .type = l->m->gemm_type,
                                 .da = l->dact,
                                 .dw = l->dw,
                                 .dy = l->dy,
                                 .dy_stride = concat->n};
    if (a.entries) {
        IV_TRY(gather_act(l, j, &a.act, err));
        IV_TRY(iv_gpu_launched(&l->f, iv_gpu_expert_gradient_in(&a, l->f.stream), "gradient of experts", err));
        IV_TRY(input_gradients(l, j, concat, bases, l->dact, err));
        IV_TRY(adapter_gradients(l, j, true, NULL, 0, l->dact, err));
        IV_TRY(iv_gpu_launched(&l->f, iv_gpu_expert_weigh(&a, l->f.stream), "gradient of experts' weights", err));
    }
    if (a.bias) IV_TRY(bias_gradients(l, j, offsetof(iv_mlp_tensors, down_bias), l->expert_dx, l->h, l->h, 0, err));
    IV_TRY(adapter_gradients(l, j, true, l->expert_act, l->expert_stride, NULL, err));
    return weight_gradients(l, j, concat, bases, l->expert_act, l->expert_stride, err);
}

static iv_status up_backward(gpu_learner *l, const expert_job *j, iv_error *err) {
    const output_concat *concat = &j->concats->up[j->chunk->expert];
    size_t rows = j->chunk->rows, inputs = iv_activation_inputs(j->activation), leaf_slice = concat->n / inputs,
           bases = j->concats->up_bases, all = inputs * l->expert_n;
    float *wide = j->vectors->expert_up_bias ? l->dwide : NULL;
    if (rows) {
        if (iv_activation_is_gated(j->activation))
            IV_TRY(gather(l, j, l->f.now->gate, j->entries, l->expert_n, l->expert_gate, err));
        IV_TRY(gather(l, j, l->f.now->up, j->entries, l->expert_n, l->expert_up, err));
        IV_TRY(gather(l, j, l->f.normed, j->tokens, l->h_stride, l->expert_x, err));
        int code = iv_gpu_activate_backward(j->activation, l->m->gemm_type, l->expert_gate, l->expert_up, l->dact, rows,
                                            l->expert_n, leaf_slice, l->dy, concat->n, wide, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "gradient of the activation", err));
    }
    if (wide && inputs == 2)
        IV_TRY(bias_gradients(l, j, offsetof(iv_mlp_tensors, gate_bias), wide, all, l->expert_n, 0, err));
    if (wide)
        IV_TRY(bias_gradients(l, j, offsetof(iv_mlp_tensors, up_bias), wide, all, l->expert_n, all - l->expert_n, err));
    IV_TRY(weight_gradients(l, j, concat, bases, l->expert_x, l->h_stride, err));
    if (rows) IV_TRY(input_gradients(l, j, concat, bases, l->expert_dx, err));
    IV_TRY(adapter_gradients(l, j, false, l->expert_x, l->h_stride, l->expert_dx, err));
    if (!rows) return IV_OK;
    int code = iv_gpu_scatter_rows(l->expert_dx, j->slots, rows, l->h * sizeof *l->expert_dx, l->f.terms, l->f.stream);
    return iv_gpu_launched(&l->f, code, "experts' terms", err);
}

static iv_status router_backward(gpu_learner *l, size_t layer, iv_error *err) {
    const output_concat *concat = &l->concats[layer].router;
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    size_t apart = concat->n / concat->leaves,
           leaf = concat->leaves == 1 ? l->experts : iv_padded_k(l->experts) / concat->leaves;
    iv_gpu_router_backward_args a = {.router = iv_config_router(&l->m->config),
                                     .logits = l->f.now->router_logits,
                                     .rows = l->n.rows,
                                     .stride = l->router_outputs,
                                     .ids = l->f.now->expert_ids,
                                     .weights = l->f.now->expert_weights,
                                     .dw = l->dw,
                                     .last = t->shared_gate ? l->dz : NULL,
                                     .dl = t->router_bias ? l->router_dl : NULL,
                                     .type = l->m->gemm_type,
                                     .dy = l->dy,
                                     .dy_stride = concat->n,
                                     .leaf = leaf,
                                     .apart = apart,
                                     .last_at = iv_padded_k(leaf)};
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_router_backward(&a, l->f.stream), "gradient of the router", err));
    IV_TRY(iv_gpu_clear_padding(&l->pass, l->dy, concat->n, l->width, err));
    if (l->f.rank == 0)
        IV_TRY(iv_gpu_learner_weight_gradient(l, concat, &l->axis, l->dy, l->f.normed, l->h_stride, err));
    if (a.dl && l->f.rank == 0)
        IV_TRY(iv_gpu_learner_bias_gradient(l, l->router_dl, l->experts, l->experts, t->router_bias->offset, err));
    IV_TRY(iv_gpu_learner_input_gradient(l, concat, l->n.rows, l->dy, l->dnormed, err));
    const learned_backward b = {.site = iv_gpu_learned_site(l, layer, IV_SITE_ROUTER, 0),
                                .concat = concat,
                                .axis = &l->axis,
                                .row = l->on.axis_rows,
                                .rows = l->n.rows,
                                .dy = l->dy,
                                .x = l->f.rank == 0 ? l->f.normed : NULL,
                                .x_stride = l->h_stride,
                                .dx = l->dnormed};
    return iv_gpu_learned_backward(l, &b, err);
}

/* First of all: the gradient of its gate is one of the router's outputs. */
static iv_status shared_backward(gpu_learner *l, size_t layer, iv_error *err) {
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    gpu_mlp_part part = {.t = &t->shared,
                         .up_concat = &l->concats[layer].shared_up,
                         .down_concat = &l->concats[layer].shared_down,
                         .gate = l->f.now->shared_gate,
                         .up = l->f.now->shared_up,
                         .act = l->f.now->shared_act,
                         .n = l->shared,
                         .first = l->shared_first,
                         .act_stride = l->shared_stride,
                         .shared = true,
                         .gated = t->shared_gate != NULL};
    return l->shared ? iv_gpu_learner_mlp_backward(l, layer, &part, l->shared_dx, err) : IV_OK;
}

static iv_status add_shared(gpu_learner *l, iv_error *err) {
    iv_gpu_add_args add = {
        .x = l->dnormed, .y = l->shared_dx, .scale = 1, .n = l->h, .rows = l->n.rows, .to = l->dnormed};
    if (!l->shared) return IV_OK;
    return iv_gpu_launched(&l->f, iv_gpu_add_rows(&add, l->f.stream), "gradient of the shared expert", err);
}

/* dw of other ranks' experts. The rows of a rank's experts are together in the lists. */
static iv_status share_weights(gpu_learner *l, size_t layer, iv_error *err) {
    const gpu_expert_rows *rows = &l->expert_rows[layer * l->experts];
    if (l->f.ranks == 1) return IV_OK;
    IV_TRY(l->f.transport.barrier(&l->pass, err));
    for (size_t r = 0; r < l->f.ranks; r++) {
        const iv_tp_shard *s = &l->m->tp.shard[r];
        if (r == l->f.rank || s->experts == 0) continue;
        const gpu_expert_rows *first = &rows[s->expert_first], *last = first + s->experts - 1;
        size_t n = last->first + last->padded - first->first;
        const int32_t *slots = l->lists + first->first;
        if (n == 0) continue;
        int code = iv_gpu_gather_rows(l->peer[r]->dw, slots, n, sizeof *l->dw, l->shared_dw, l->f.stream);
        if (!code) code = iv_gpu_scatter_rows(l->shared_dw, slots, n, sizeof *l->dw, l->dw, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "gradient of experts' weights", err));
    }
    return IV_OK;
}

iv_status iv_gpu_learner_experts_backward(gpu_learner *l, size_t layer, iv_error *err) {
    const layer_concats *concats = &l->concats[layer];
    IV_TRY(shared_backward(l, layer, err));
    IV_TRY(iv_gpu_learner_normed(l, (iv_norm){IV_NORM_MLP, layer}, err));
    IV_TRY(
        iv_gpu_clear_padding(&l->pass, l->f.terms, l->k * l->h, sizeof *l->f.terms, err)); /* no expert writes them */
    for (size_t i = 0; i < l->chunk_counts[layer]; i++) {
        const gpu_expert_chunk *c = &l->expert_chunks[layer * l->experts + i];
        expert_job j = {.chunk = c,
                        .concats = concats,
                        .activation = &l->m->layers[layer].config->activation,
                        .vectors = &l->f.layers[layer],
                        .tensors = &iv_gpu_learner_tensors(l, layer)->experts[c->expert],
                        .ids = l->f.now->expert_ids,
                        .slots = l->lists + c->first,
                        .axis = l->expert_axis,
                        .layer = layer};
        j.tokens = j.slots + l->list_length, j.entries = j.tokens + l->list_length;
        j.places = j.entries + l->list_length, j.axis.padded = c->rows;
        j.groups = (iv_gpu_gradient_groups){.count = c->count,
                                            .bounds = (const uint32_t *)(l->lists + c->bounds),
                                            .host_bounds = (const uint32_t *)(l->host_lists + c->bounds)};
        IV_TRY(down_backward(l, &j, err));
        IV_TRY(up_backward(l, &j, err));
    }
    IV_TRY(share_weights(l, layer, err));
    IV_TRY(router_backward(l, layer, err));
    IV_TRY(l->f.transport.combine(&l->pass, l->f.now->expert_ids, l->dnormed, err));
    return add_shared(l, err);
}
