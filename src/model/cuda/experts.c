/* experts.c: a mixture of experts on one GPU: routing, grouped layers, the rank's terms. */
#include "model/cuda/pass.h"

/* Average rows of an expert from which its rows are packed before they are multiplied. */
enum { PACKED_ROWS = 16 };

/* SwiGLU is the epilogue if the matrix interleaves gate and up, otherwise a separate launch. */
iv_status iv_gpu_gate_up(const gpu_pass *p, iv_gpu_linear_args *a, const iv_matrix *w, size_t rows_out, void *act,
                         size_t stride, iv_error *err) {
    gpu_rank *r = p->r;
    if (w->paired) {
        a->epilogue = IV_GPU_SWIGLU, a->out = act, a->out_stride = stride;
        return iv_gpu_launched(r, r->linear(r, a), "gate and up", err);
    }
    a->out = r->wide, a->out_stride = w->n;
    IV_TRY(iv_gpu_launched(r, r->linear(r, a), "gate and up", err));
    return iv_gpu_launched(r, iv_gpu_swiglu(r->wide, rows_out, w->n / 2, p->m->dtype, act, stride, r->stream), "swiglu",
                           err);
}

/* Packs the rows of each expert, where that pays, into `terms`, which down's outputs overwrite afterwards. No peer
 * still reads the terms of the previous layer: attention's all-reduce came after. */
static iv_status pack_rows(const gpu_pass *p, iv_gpu_groups *groups, iv_gpu_linear_args *a, iv_error *err) {
    gpu_rank *r = p->r;
    size_t entries = p->rows * groups->experts_per_token, bytes = p->stride * iv_dtype_bytes(p->m->dtype);
    if (a->arithmetic != IV_TC16 || entries < PACKED_ROWS * groups->experts || bytes > p->hidden * sizeof(float))
        return IV_OK;
    int code = iv_gpu_pack_rows(groups, p->rows, r->normed, bytes, r->terms, r->stream);
    IV_TRY(iv_gpu_launched(r, code, "experts' rows", err));
    a->x = r->terms, groups->packed = true;
    return IV_OK;
}

/* The rank's experts over the rows that chose them. */
static iv_status run_experts(const gpu_pass *p, const iv_layer *l, iv_gpu_groups *groups, iv_error *err) {
    gpu_rank *r = p->r;
    size_t entries = p->rows * groups->experts_per_token, stride = iv_gpu_expert_act_stride(p->m);
    const iv_mlp *first = &l->experts[groups->first];
    size_t apart = groups->count > 1 ? (size_t)(first[1].gate_up.data - first[0].gate_up.data) : 0;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &first->gate_up, r->normed, p->stride);
    a.w.expert_bytes = apart, a.groups = groups;
    IV_TRY(pack_rows(p, groups, &a, err));
    IV_TRY(iv_gpu_gate_up(p, &a, &first->gate_up, entries, r->expert_act, stride, err));
    a = iv_gpu_layer_args(p, first->down, r->expert_act, stride);
    a.w.expert_bytes = apart, a.groups = groups, a.weighted = true;
    a.out = r->terms, a.out_stride = p->hidden;
    return iv_gpu_launched(r, r->linear(r, &a), "experts' down", err);
}

static iv_status route(const gpu_pass *p, size_t layer, iv_error *err) {
    gpu_rank *r = p->r;
    const iv_model_config *c = &p->m->config;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &r->routers[layer], r->normed, p->stride);
    a.out = r->router_logits, a.out_stride = (size_t)c->experts;
    IV_TRY(iv_gpu_launched(r, r->linear(r, &a), "router", err));
    int code = iv_gpu_route(r->router_logits, p->rows, (const int32_t *)(void *)(r->inputs + p->s->at.true_rows),
                            (size_t)c->experts, (size_t)c->experts_per_token, c->norm_topk_prob,
                            iv_gpu_expert_ids(r, layer), r->expert_weights, r->offsets, r->expert_slots, r->stream);
    return iv_gpu_launched(r, code, "routing", err);
}

iv_status iv_gpu_expert_block(const gpu_pass *p, size_t layer, const float *norm, iv_error *err) {
    gpu_rank *r = p->r;
    const iv_tp_shard *shard = &p->m->tp.shard[p->m->rank];
    IV_TRY(route(p, layer, err));
    iv_gpu_groups groups = {.experts = (size_t)p->m->config.experts,
                            .first = shard->expert_first,
                            .count = shard->experts,
                            .offsets = r->offsets,
                            .slots = r->expert_slots,
                            .weights = r->expert_weights,
                            .experts_per_token = (size_t)p->m->config.experts_per_token};
    if (shard->experts) IV_TRY(run_experts(p, &p->m->layers[layer], &groups, err));
    IV_TRY(r->transport.combine(p, iv_gpu_expert_ids(r, layer), err));
    return norm ? iv_gpu_norm_rows(p, norm, err) : IV_OK;
}
