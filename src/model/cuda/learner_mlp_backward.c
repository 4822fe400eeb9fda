/* learner_mlp_backward.c: the backward pass of an MLP that all tokens pass: a layer's own, or the shared expert of a
 * mixture, whose output a gate may scale. */
#include "model/cuda/learner_adapter.h"

/* From the gradient of act to that of the gate's logit, and to that of act before its gate. */
static iv_status shared_gate_backward(gpu_learner *l, const gpu_mlp_part *p, iv_error *err) {
    size_t whole = iv_padded_k((size_t)l->m->config.shared_intermediate_size);
    iv_gpu_shared_gate_args a = {.z = l->f.now->router_logits + l->experts,
                                 .rows = l->n.rows,
                                 .z_apart = l->router_outputs,
                                 .n = p->n,
                                 .leaf = whole / l->leaves.shared / l->f.ranks,
                                 .leaves = l->leaves.shared,
                                 .type = l->m->gemm_type,
                                 .act = p->act,
                                 .act_stride = p->act_stride,
                                 .da = l->dact,
                                 .dz = l->f.ranks > 1 ? l->dz_part : l->dz,
                                 .part = l->f.ranks > 1};
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_shared_gate_backward(&a, l->f.stream), "gradient of a gate", err));
    if (l->f.ranks == 1) return IV_OK;
    IV_TRY(iv_gpu_learner_add_gates(l, err));
    int code = iv_gpu_shared_gate_finish(a.z, a.z_apart, a.rows, l->dz, l->f.stream);
    return iv_gpu_launched(&l->f, code, "gradient of a gate", err);
}

static iv_status gate_up_backward(gpu_learner *l, size_t layer, const gpu_mlp_part *p, iv_error *err) {
    const iv_activation *activation = &l->m->layers[layer].config->activation;
    const output_concat *concat = p->up_concat;
    const iv_mlp_tensors *t = p->t;
    size_t n = p->n, inputs = iv_activation_inputs(activation), leaf_slice = concat->n / concat->leaves / inputs;
    float *wide = t->up_bias ? l->dwide : NULL;
    int code = iv_gpu_activate_backward(activation, l->m->gemm_type, p->gate, p->up, l->dact, l->n.rows, n, leaf_slice,
                                        l->dy, concat->n, wide, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "gradient of the activation", err));
    if (wide) {
        size_t all = inputs * n;
        if (t->gate_bias) IV_TRY(iv_gpu_learner_bias_gradient(l, wide, all, n, t->gate_bias->offset + p->first, err));
        IV_TRY(iv_gpu_learner_bias_gradient(l, wide + all - n, all, n, t->up_bias->offset + p->first, err));
    }
    return iv_gpu_clear_padding(&l->pass, l->dy, concat->n, l->width, err);
}

static iv_status down_adapter(gpu_learner *l, size_t layer, const gpu_mlp_part *p, iv_error *err) {
    const iv_row_cuts *cuts = p->shared ? &l->m->tp.shared : &l->m->tp.down;
    gpu_row_parallel cut = {.cuts = cuts,
                            .x = (unsigned char *)(uintptr_t)p->act,
                            .x_stride = p->act_stride,
                            .x_first = cuts->of[l->f.rank].first,
                            .second = true};
    const learned_backward b = {.site =
                                    iv_gpu_learned_site(l, layer, p->shared ? IV_SITE_SHARED_DOWN : IV_SITE_DOWN, 0),
                                .concat = p->down_concat,
                                .axis = &l->axis,
                                .row = l->on.axis_rows,
                                .rows = l->n.rows,
                                .dy = l->dx_rounded,
                                .x = p->act,
                                .x_stride = p->act_stride,
                                .cut_inputs = &cut,
                                .dx = l->dact};
    return iv_gpu_learned_backward(l, &b, err);
}

static iv_status up_adapter(gpu_learner *l, size_t layer, const gpu_mlp_part *p, float *dx, iv_error *err) {
    const learned_backward b = {.site = iv_gpu_learned_site(l, layer, p->shared ? IV_SITE_SHARED_UP : IV_SITE_UP, 0),
                                .concat = p->up_concat,
                                .axis = &l->axis,
                                .row = l->on.axis_rows,
                                .rows = l->n.rows,
                                .dy = l->dy,
                                .x = l->f.normed,
                                .x_stride = l->h_stride,
                                .cut_outputs = true,
                                .dx = dx};
    return iv_gpu_learned_backward(l, &b, err);
}

iv_status iv_gpu_learner_mlp_backward(gpu_learner *l, size_t layer, const gpu_mlp_part *p, float *dx, iv_error *err) {
    const output_concat *up = p->up_concat, *down = p->down_concat;
    IV_TRY(iv_gpu_learner_weight_gradient(l, down, &l->axis, l->dx_rounded, p->act, p->act_stride, err));
    IV_TRY(iv_gpu_learner_input_gradient(l, down, l->n.rows, l->dx_rounded, l->dact, err));
    IV_TRY(down_adapter(l, layer, p, err));
    if (p->t->down_bias && l->f.rank == 0)
        IV_TRY(iv_gpu_learner_bias_gradient(l, l->dblock, l->h, l->h, p->t->down_bias->offset, err));
    if (p->gated) IV_TRY(shared_gate_backward(l, p, err));
    IV_TRY(gate_up_backward(l, layer, p, err));
    IV_TRY(iv_gpu_learner_normed(l, (iv_norm){IV_NORM_MLP, layer}, err));
    IV_TRY(iv_gpu_learner_weight_gradient(l, up, &l->axis, l->dy, l->f.normed, l->h_stride, err));
    IV_TRY(iv_gpu_learner_cut_gradient(l, up, l->dy, dx, err));
    return up_adapter(l, layer, p, dx, err);
}
