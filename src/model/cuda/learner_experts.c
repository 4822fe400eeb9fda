/* learner_experts.c: the forward pass of a mixture of experts in a learner on a GPU: grouped layers, as in the engine.
 */
#include "model/cuda/learner_state.h"

static iv_gpu_groups groups_of(const gpu_learner *l) {
    return (iv_gpu_groups){.experts = l->experts,
                           .first = l->shard->expert_first,
                           .count = l->shard->experts,
                           .offsets = l->expert_offsets,
                           .slots = l->expert_slots,
                           .weights = l->now->expert_weights,
                           .experts_per_token = l->k};
}

static iv_status route(gpu_learner *l, size_t layer, iv_error *err) {
    iv_matrix w;
    IV_TRY(iv_gpu_learner_router(l, layer, &w, err));
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &w, l->normed, l->h_stride, l->n.rows);
    a.out = l->now->router_logits, a.out_stride = l->experts;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "router", err));
    int code = iv_gpu_route(l->now->router_logits, l->n.rows, NULL, l->experts, l->k, l->m->config.norm_topk_prob,
                            l->now->expert_ids, l->now->expert_weights, l->expert_offsets, l->expert_slots, l->stream);
    if (!code && l->taped && !l->again)
        code = cudaMemcpyAsync(l->host_ids + layer * l->room * l->k, l->now->expert_ids,
                               l->n.rows * l->k * sizeof *l->host_ids, cudaMemcpyDeviceToHost, l->stream);
    return iv_gpu_learner_launched(l, code, "routing", err);
}

/* A layer of all experts; of consecutive ones, the packed matrices are equally far apart. */
static iv_gpu_linear_args grouped(const gpu_learner *l, const iv_gpu_groups *groups, const iv_matrix *w,
                                  const iv_matrix *next, const void *x, size_t x_stride) {
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, w, x, x_stride, l->n.rows);
    a.x_rows = 0, a.groups = groups, a.w.expert_bytes = next ? (size_t)(next->data - w->data) : 0;
    return a;
}

static iv_status gate_up(gpu_learner *l, const iv_mlp *e, const iv_gpu_groups *groups, iv_error *err) {
    const iv_matrix *w = &e->gate_up, *next = l->shard->experts > 1 ? &e[1].gate_up : NULL;
    iv_gpu_linear_args a = grouped(l, groups, w, next, l->normed, l->h_stride);
    if (!iv_gpu_learner_keeps_mlp(l) && w->paired) {
        a.epilogue = IV_GPU_SWIGLU, a.out = l->now->act, a.out_stride = l->expert_stride;
        return iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "gate and up", err);
    }
    a.out = l->wide, a.out_stride = w->n;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "gate and up", err));
    int code = iv_gpu_swiglu_tape(l->wide, w->paired, l->n.rows * l->k, l->expert_n, l->m->dtype, l->now->gate,
                                  l->now->up, l->now->act, l->expert_stride, l->stream);
    return iv_gpu_learner_launched(l, code, "swiglu", err);
}

iv_status iv_gpu_learner_combine(gpu_learner *l, float *x, iv_error *err) {
    const float *terms[IV_RANKS_MAX];
    int32_t first[IV_RANKS_MAX + 1];
    if (l->ranks > 1) IV_TRY(iv_gpu_learner_barrier(l, err));
    for (size_t r = 0; r < l->ranks; r++)
        terms[r] = l->peer[r]->terms, first[r] = (int32_t)l->m->tp.shard[r].expert_first;
    first[l->ranks] = (int32_t)l->experts;
    int code = iv_gpu_combine(terms, first, l->ranks, l->now->expert_ids, l->n.rows, l->k, l->h, x, l->stream);
    return iv_gpu_learner_launched(l, code, "combination", err);
}

iv_status iv_gpu_learner_experts(gpu_learner *l, size_t layer, iv_error *err) {
    const iv_mlp *e = l->m->layers[layer].experts + l->shard->expert_first;
    IV_TRY(route(l, layer, err));
    iv_gpu_groups groups = groups_of(l);
    IV_TRY(gate_up(l, e, &groups, err));
    if (l->again) return IV_OK;
    iv_gpu_linear_args a =
        grouped(l, &groups, e->down, l->shard->experts > 1 ? e[1].down : NULL, l->now->act, l->expert_stride);
    a.weighted = true, a.out = l->terms, a.out_stride = l->h;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "experts' down", err));
    return iv_gpu_learner_combine(l, l->x, err);
}
