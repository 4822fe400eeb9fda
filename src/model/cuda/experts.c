/* experts.c: a mixture of experts on one GPU: routing, grouped layers, the rank's terms; and gate and up of any layer.
 */
#include "kernels/cuda/expert_bias.h"
#include "kernels/cuda/learn.h"
#include "model/cuda/adapters.h"

/* Average rows of an expert from which its rows are packed before they are multiplied. */
enum { PACKED_ROWS = 16 };

/* Activations that become int8 codes have zeros behind them: layers of other sizes use their buffer, too. Products of
 * floats do not need that, as their weights end in zeros. */
static iv_status clear_behind(const gpu_pass *p, void *act, size_t rows, size_t n, size_t stride, iv_error *err) {
    size_t width = iv_dtype_bytes(p->m->gemm_type);
    if (!p->m->terms || stride == n) return IV_OK;
    int code = cudaMemset2DAsync((char *)act + n * width, stride * width, 0, (stride - n) * width, rows, p->f->stream);
    return iv_gpu_launched(p->f, code, "clearing", err);
}

/* SwiGLU is the epilogue if the matrix interleaves gate and up, and writes what a tape keeps; otherwise, and for other
 * activations, a launch of its own. */
iv_status iv_gpu_gate_up(const gpu_pass *p, size_t site, const iv_activation *activation, iv_gpu_linear_args *a,
                         const iv_matrix *w, size_t rows_out, void *act, size_t stride, iv_gpu_row_scales scales,
                         const iv_gpu_expert_bias_args *bias, iv_error *err) {
    gpu_forward *f = p->f;
    const gpu_site *adapted = iv_gpu_site(p, site);
    if (adapted) return iv_gpu_adapted_gate_up(p, adapted, activation, a, w, rows_out, act, stride, scales, bias, err);
    size_t n = w->n / iv_activation_inputs(activation);
    const gpu_values *kept = iv_gpu_keeps_mlp(f) ? f->now : NULL;
    iv_gpu_linear_args fused = *a;
    fused.epilogue = IV_GPU_SWIGLU, fused.out = act, fused.out_stride = stride;
    if (kept) fused.fused = (iv_gpu_fused){.gate = kept->gate, .up = kept->up};
    /* A tape's act has zeros as padding, which this epilogue does not write. */
    if (w->paired && !scales.logits && !bias && (!kept || (stride == n && iv_gpu_fuses(f, &fused)))) {
        IV_TRY(iv_gpu_launched(f, f->linear(f, &fused), "gate and up", err));
        return clear_behind(p, act, rows_out, n, stride, err);
    }
    a->out = f->wide, a->out_stride = w->n;
    IV_TRY(iv_gpu_launched(f, f->linear(f, a), "gate and up", err));
    if (bias) IV_TRY(iv_gpu_launched(f, iv_gpu_expert_bias(bias, f->stream), "biases of experts", err));
    int code = kept
                   ? iv_gpu_activate_tape(activation, f->wide, w->paired, rows_out, n, p->m->gemm_type, kept->gate,
                                          kept->up, act, stride, scales, f->stream)
                   : iv_gpu_activate(activation, f->wide, rows_out, n, p->m->gemm_type, act, stride, scales, f->stream);
    return iv_gpu_launched(f, code, "activation", err);
}

/* Packs the rows of each expert, where that pays, into `terms`, which down's outputs overwrite afterwards. No peer
 * still reads the terms of another layer: attention's all-reduce, or one of its gradients, came after. */
static iv_status pack_rows(const gpu_pass *p, iv_gpu_groups *groups, iv_gpu_linear_args *a, iv_error *err) {
    gpu_forward *f = p->f;
    size_t entries = p->rows * groups->experts_per_token, bytes = p->stride * iv_dtype_bytes(p->m->gemm_type);
    if (p->m->config.router_scales_inputs) {
        int code = iv_gpu_pack_scaled(groups, p->rows, p->m->gemm_type, f->normed, p->hidden, p->stride, f->scaled,
                                      f->ones, f->stream);
        a->x = f->scaled, groups->packed = true;
        return iv_gpu_launched(f, code, "experts' inputs", err);
    }
    if (a->arithmetic != IV_TC16 || a->w.terms || entries < PACKED_ROWS * groups->experts ||
        bytes > p->hidden * sizeof(float))
        return IV_OK;
    int code = iv_gpu_pack_rows(groups, p->rows, f->normed, bytes, f->terms, f->stream);
    IV_TRY(iv_gpu_launched(f, code, "experts' rows", err));
    a->x = f->terms, groups->packed = true;
    return IV_OK;
}

/* The biases of gate and up, which a product of groups does not add. */
static iv_gpu_expert_bias_args up_biases(const gpu_pass *p, size_t layer, const iv_gpu_groups *groups,
                                         const int32_t *ids) {
    const layer_vectors *v = &p->f->layers[layer];
    size_t n = p->m->layers[layer].experts[groups->first].gate_up.n;
    return (iv_gpu_expert_bias_args){.first = (int32_t)groups->first,
                                     .count = (int32_t)groups->count,
                                     .offsets = groups->offsets,
                                     .slots = groups->slots,
                                     .ids = ids,
                                     .entries = p->rows * groups->experts_per_token,
                                     .bias = v->expert_up_bias,
                                     .n = n,
                                     .bias_stride = v->expert_up_apart,
                                     .x = p->f->wide,
                                     .x_stride = n,
                                     .ones = p->f->ones};
}

/* Down is not weighted until its bias is added. */
static iv_status add_down_biases(const gpu_pass *p, size_t layer, iv_gpu_expert_bias_args a, iv_error *err) {
    gpu_forward *f = p->f;
    a.bias = f->layers[layer].expert_down_bias, a.bias_stride = f->layers[layer].expert_down_apart;
    a.n = a.x_stride = p->hidden, a.x = f->terms, a.weights = f->now->expert_weights, a.ones = NULL;
    return iv_gpu_launched(f, iv_gpu_expert_bias(&a, f->stream), "biases of experts", err);
}

/* The rank's experts over the rows that chose them. */
static iv_status run_experts(const gpu_pass *p, size_t layer, iv_gpu_groups *groups, const int32_t *ids,
                             iv_error *err) {
    gpu_forward *f = p->f;
    const iv_layer *l = &p->m->layers[layer];
    bool biased = f->layers[layer].expert_up_bias != NULL;
    size_t entries = p->rows * groups->experts_per_token, stride = iv_gpu_expert_act_stride(p->m);
    const iv_mlp *first = &l->experts[groups->first];
    size_t apart = groups->count > 1 ? (size_t)(first[1].gate_up.data - first[0].gate_up.data) : 0;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &first->gate_up, f->normed, p->stride);
    a.w.expert_bytes = apart, a.groups = groups;
    IV_TRY(pack_rows(p, groups, &a, err));
    iv_gpu_expert_bias_args bias = up_biases(p, layer, groups, ids);
    IV_TRY(iv_gpu_gate_up(p, iv_site(p->m, l, IV_SITE_UP, 0), &l->config->activation, &a, &first->gate_up, entries,
                          f->now->act, stride, (iv_gpu_row_scales){0}, biased ? &bias : NULL, err));
    if (f->tape && f->tape->recomputing) return IV_OK;
    a = iv_gpu_layer_args(p, first->down, f->now->act, stride);
    iv_gpu_groups plain = *groups;
    const size_t site = iv_site(p->m, l, IV_SITE_DOWN, 0);
    bool scaled = p->m->config.router_scales_inputs, adapted = iv_gpu_site(p, site) != NULL;
    if (adapted) IV_TRY(iv_gpu_launched(f, iv_gpu_fill(f->ones, entries, 1.0f, f->stream), "weights of one", err));
    if (biased || scaled || adapted) plain.weights = f->ones;
    a.w.expert_bytes = apart, a.groups = &plain, a.weighted = true;
    a.out = f->terms, a.out_stride = p->hidden;
    IV_TRY(iv_gpu_product(p, site, false, &a, "experts' down", err));
    if (biased) return add_down_biases(p, layer, bias, err);
    if (!adapted || scaled) return IV_OK;
    return iv_gpu_launched(f, iv_gpu_weigh_terms(groups, entries, groups->weights, f->terms, p->hidden, f->stream),
                           "weights", err);
}

static iv_status route(const gpu_pass *p, size_t layer, int32_t *ids, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_model_config *c = &p->m->config;
    size_t k = (size_t)c->experts_per_token;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &f->routers[layer], f->normed, p->stride);
    a.bias = f->layers[layer].router_bias, a.out = f->now->router_logits, a.out_stride = f->routers[layer].n;
    IV_TRY(iv_gpu_product(p, iv_site(p->m, &p->m->layers[layer], IV_SITE_ROUTER, 0), false, &a, "router", err));
    iv_gpu_route_args routes = {.router = iv_config_router(c),
                                .logits = f->now->router_logits,
                                .stride = f->routers[layer].n,
                                .correction = f->layers[layer].router_correction,
                                .rows = p->rows,
                                .true_rows = p->in.true_rows,
                                .ids = ids,
                                .weights = f->now->expert_weights,
                                .offsets = f->expert_offsets,
                                .slots = f->expert_slots};
    int code = iv_gpu_route(&routes, f->stream);
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
    if (shard->experts) IV_TRY(run_experts(p, layer, &groups, ids, err));
    return iv_gpu_ends_at_act(f, layer) ? IV_OK : f->transport.combine(p, ids, f->x, err);
}

size_t iv_gpu_shared_act_stride(const iv_model *m) { return iv_padded_k(m->tp.shared.of[m->rank].k); }

/* Up to act, with its gate. */
static iv_status shared_gate_up(const gpu_pass *whole, size_t layer, size_t stride, iv_error *err) {
    gpu_forward *f = whole->f;
    const iv_model_config *c = &whole->m->config;
    const iv_layer *l = &whole->m->layers[layer];
    gpu_values *all = f->now, shared = *all;
    iv_gpu_row_scales scales = {c->shared_gate ? all->router_logits + c->experts : NULL, f->routers[layer].n};
    iv_gpu_linear_args a = iv_gpu_layer_args(whole, &l->shared.gate_up, f->normed, whole->stride);
    shared.gate = all->shared_gate, shared.up = all->shared_up, shared.act = all->shared_act;
    f->now = &shared;
    iv_status status = iv_gpu_gate_up(whole, iv_site(whole->m, l, IV_SITE_SHARED_UP, 0), &l->config->activation, &a,
                                      &l->shared.gate_up, whole->rows, shared.act, stride, scales, NULL, err);
    f->now = all;
    if (status != IV_OK || !iv_gpu_keeps_mlp(f)) return status;
    return iv_gpu_clear_padding(whole, all->shared_act, stride, iv_dtype_bytes(whole->m->gemm_type), err);
}

/* Without a tape its act takes the place of the experts', which are done. */
iv_status iv_gpu_shared_expert(const gpu_pass *p, size_t layer, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_layer *l = &p->m->layers[layer];
    const iv_row_cut *cut = &p->m->tp.shared.of[p->m->rank];
    gpu_pass whole = *p; /* of all rows at once, as the experts */
    whole.microsteps = 1;
    size_t stride = iv_gpu_shared_act_stride(p->m);
    if (cut->k) IV_TRY(shared_gate_up(&whole, layer, stride, err));
    if (iv_gpu_ends_at_act(f, layer)) return IV_OK;
    gpu_row_parallel down = {.cuts = &p->m->tp.shared,
                             .nodes = l->shared.down,
                             .x = f->now->shared_act,
                             .x_stride = stride,
                             .x_first = cut->first,
                             .site = iv_site(p->m, l, IV_SITE_SHARED_DOWN, 0),
                             .to = f->x,
                             .whole = true,
                             .second = true};
    const gpu_site *adapted = iv_gpu_site(&whole, down.site);
    return adapted ? iv_gpu_adapted_row_parallel(&whole, adapted, &down, err)
                   : f->transport.row_parallel(&whole, &down, err);
}
