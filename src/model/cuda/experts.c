/* experts.c: a mixture of experts on one GPU: routing, grouped layers, the rank's terms; and gate and up of any layer.
 */
#include "kernels/cuda/learn.h"
#include "model/cuda/pass.h"

/* Average rows of an expert from which its rows are packed before they are multiplied. */
enum { PACKED_ROWS = 16 };

/* SwiGLU is the epilogue if the matrix interleaves gate and up, and writes what a tape keeps; otherwise, and for other
 * activations, a launch of its own. */
iv_status iv_gpu_gate_up(const gpu_pass *p, const iv_activation *activation, iv_gpu_linear_args *a, const iv_matrix *w,
                         size_t rows_out, void *act, size_t stride, iv_error *err) {
    gpu_forward *f = p->f;
    size_t n = w->n / iv_activation_inputs(activation);
    const gpu_values *kept = iv_gpu_keeps_mlp(f) ? f->now : NULL;
    iv_gpu_linear_args fused = *a;
    fused.epilogue = IV_GPU_SWIGLU, fused.out = act, fused.out_stride = stride;
    if (kept) fused.fused = (iv_gpu_fused){.gate = kept->gate, .up = kept->up};
    /* A tape's act has zeros as padding, which this epilogue does not write. */
    if (w->paired && (!kept || (stride == n && iv_gpu_fuses(f, &fused))))
        return iv_gpu_launched(f, f->linear(f, &fused), "gate and up", err);
    a->out = f->wide, a->out_stride = w->n;
    IV_TRY(iv_gpu_launched(f, f->linear(f, a), "gate and up", err));
    int code = kept ? iv_gpu_activate_tape(activation, f->wide, w->paired, rows_out, n, p->m->gemm_type, kept->gate,
                                           kept->up, act, stride, f->stream)
                    : iv_gpu_activate(activation, f->wide, rows_out, n, p->m->gemm_type, act, stride, f->stream);
    return iv_gpu_launched(f, code, "activation", err);
}

/* Packs the rows of each expert, where that pays, into `terms`, which down's outputs overwrite afterwards. No peer
 * still reads the terms of another layer: attention's all-reduce, or one of its gradients, came after. */
static iv_status pack_rows(const gpu_pass *p, iv_gpu_groups *groups, iv_gpu_linear_args *a, iv_error *err) {
    gpu_forward *f = p->f;
    size_t entries = p->rows * groups->experts_per_token, bytes = p->stride * iv_dtype_bytes(p->m->gemm_type);
    if (a->arithmetic != IV_TC16 || entries < PACKED_ROWS * groups->experts || bytes > p->hidden * sizeof(float))
        return IV_OK;
    int code = iv_gpu_pack_rows(groups, p->rows, f->normed, bytes, f->terms, f->stream);
    IV_TRY(iv_gpu_launched(f, code, "experts' rows", err));
    a->x = f->terms, groups->packed = true;
    return IV_OK;
}

/* The rank's experts over the rows that chose them. */
static iv_status run_experts(const gpu_pass *p, const iv_layer *l, iv_gpu_groups *groups, iv_error *err) {
    gpu_forward *f = p->f;
    size_t entries = p->rows * groups->experts_per_token, stride = iv_gpu_expert_act_stride(p->m);
    const iv_mlp *first = &l->experts[groups->first];
    size_t apart = groups->count > 1 ? (size_t)(first[1].gate_up.data - first[0].gate_up.data) : 0;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &first->gate_up, f->normed, p->stride);
    a.w.expert_bytes = apart, a.groups = groups;
    IV_TRY(pack_rows(p, groups, &a, err));
    IV_TRY(iv_gpu_gate_up(p, &l->config->activation, &a, &first->gate_up, entries, f->now->act, stride, err));
    if (f->tape && f->tape->recomputing) return IV_OK;
    a = iv_gpu_layer_args(p, first->down, f->now->act, stride);
    a.w.expert_bytes = apart, a.groups = groups, a.weighted = true;
    a.out = f->terms, a.out_stride = p->hidden;
    return iv_gpu_launched(f, f->linear(f, &a), "experts' down", err);
}

static iv_status route(const gpu_pass *p, size_t layer, int32_t *ids, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_model_config *c = &p->m->config;
    size_t experts = (size_t)c->experts, k = (size_t)c->experts_per_token;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &f->routers[layer], f->normed, p->stride);
    a.out = f->now->router_logits, a.out_stride = experts;
    IV_TRY(iv_gpu_launched(f, f->linear(f, &a), "router", err));
    int code = iv_gpu_route(f->now->router_logits, p->rows, p->in.true_rows, experts, k, c->norm_topk_prob, ids,
                            f->now->expert_weights, f->expert_offsets, f->expert_slots, f->stream);
    if (!code && f->tape && !f->tape->recomputing)
        code = cudaMemcpyAsync(f->tape->host_ids + layer * f->rows_max * k, ids, p->rows * k * sizeof *ids,
                               cudaMemcpyDeviceToHost, f->stream);
    return iv_gpu_launched(f, code, "routing", err);
}

iv_status iv_gpu_expert_block(const gpu_pass *p, size_t layer, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_tp_shard *shard = &p->m->tp.shard[p->m->rank];
    int32_t *ids = f->now->expert_ids + layer * f->ids_apart;
    IV_TRY(route(p, layer, ids, err));
    iv_gpu_groups groups = {.experts = (size_t)p->m->config.experts,
                            .first = shard->expert_first,
                            .count = shard->experts,
                            .offsets = f->expert_offsets,
                            .slots = f->expert_slots,
                            .weights = f->now->expert_weights,
                            .experts_per_token = (size_t)p->m->config.experts_per_token};
    if (shard->experts) IV_TRY(run_experts(p, &p->m->layers[layer], &groups, err));
    return iv_gpu_ends_at_act(f, layer) ? IV_OK : f->transport.combine(p, ids, f->x, err);
}
