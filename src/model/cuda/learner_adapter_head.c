/* learner_adapter_head.c: the head's module of an adapter that learns, on a GPU: its part of logits, and its gradients,
 * leaf by leaf of the vocabulary. */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"

static iv_gpu_adapter_args args_of(const gpu_learner *l, size_t rows) {
    const learned_module *m = l->learned->head.module;
    return (iv_gpu_adapter_args){.arithmetic = l->f.arithmetic,
                                 .type = l->m->gemm_type,
                                 .slots = 2,
                                 .rank_max = m->padded,
                                 .rows = {.plain = rows},
                                 .sms = l->f.sms,
                                 .t_stride = m->padded};
}

iv_status iv_gpu_learned_head_t(gpu_learner *l, iv_error *err) {
    const gpu_learned *all = l->learned;
    if (!all || !all->head.module || !l->n.picks) return IV_OK;
    iv_gpu_adapter_args a = args_of(l, l->n.picks);
    a.parts = all->head.forward, a.pieces = all->head.pieces;
    a.x = l->picked, a.x_stride = l->h_stride, a.k = l->h_stride, a.leaves = iv_leaf_count(l->h_stride, IV_SUM_WHOLE);
    a.t = all->forward.t;
    return iv_gpu_launched(&l->f, iv_gpu_adapter_inner(&a, l->f.stream), "A of the head", err);
}

iv_status iv_gpu_learned_logits(gpu_learner *l, size_t first, size_t rows, size_t column, size_t n, float *logits,
                                iv_error *err) {
    const gpu_learned *all = l->learned;
    if (!all || !all->head.module || !rows) return IV_OK;
    const learned_head *h = &all->head;
    bool whole = n == (size_t)l->m->config.vocab_size;
    size_t leaf = whole ? 0 : column / h->leaf;
    iv_gpu_adapter_args a = args_of(l, rows);
    a.pieces = whole ? h->pieces : 1;
    a.parts = whole ? h->forward : h->forward + h->pieces + leaf - 1; /* slot 0 has none */
    for (size_t i = 0; i < a.pieces; i++)
        a.piece[i] = (iv_gpu_adapter_piece){whole ? h->piece[i].first : 0, h->piece[leaf + i].n};
    a.t = (char *)all->forward.t + first * h->module->padded * l->width;
    a.n = n, a.y = logits, a.y_stride = n;
    return iv_gpu_launched(&l->f, iv_gpu_adapter_outer(&a, l->f.stream), "B of the head", err);
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 */

/* R(scale dl). */
static iv_status scaled(gpu_learner *l, size_t leaf, const output_concat *concat, const void *dl, const void **dz,
                        iv_error *err) {
    const learned_head *h = &l->learned->head;
    iv_gpu_scale_columns_args a = {.type = l->m->gemm_type,
                                   .scale = h->module->scale,
                                   .columns = h->module->columns,
                                   .row = l->on.pick,
                                   .rows = l->n.picks,
                                   .dy = dl,
                                   .dy_stride = concat->stride,
                                   .dz = l->learned->head_dz};
    *dz = dl;
    if (h->module->scale == 1.0f) return IV_OK;
    a.columns.run[0].n = a.columns.run[0].all = h->piece[l->f.rank * l->head.leaves + leaf].n;
    *dz = a.dz;
    return iv_gpu_launched(&l->f, iv_gpu_scale_columns(&a, l->f.stream), "gradient of the head's adapter", err);
}

iv_status iv_gpu_learned_leaf(gpu_learner *l, size_t leaf, const output_concat *concat, const void *dl, iv_error *err) {
    gpu_learned *all = l->learned;
    const learned_module *m = all ? all->head.module : NULL;
    const void *dz;
    if (!m) return IV_OK;
    IV_TRY(scaled(l, leaf, concat, dl, &dz, err));
    const learned_sum of_b = {.dy = dz,
                              .dy_stride = m->n,
                              .n = m->n,
                              .x = all->forward.t,
                              .x_stride = m->padded,
                              .k = m->rank,
                              .base = m->at_b,
                              .offsets = m->b_offsets + leaf * m->n};
    IV_TRY(iv_gpu_learned_sum(l, &l->head_axis, &of_b, err));
    if (!l->n.picks) return IV_OK;
    const iv_matrix w = {.format = iv_weight_plain(l->m->gemm_type),
                         .type = l->m->gemm_type,
                         .n = m->padded,
                         .k = m->n,
                         .k_padded = m->n,
                         .leaves = 1,
                         .data = (unsigned char *)(uintptr_t)m->transposed + leaf * m->padded * m->n * l->width};
    float **node = all->head_nodes;
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &w, dz, m->n, l->n.picks);
    a.out = node[0], a.out_stride = m->padded;
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of the head's adapter", err));
    return iv_gpu_learner_join_leaf(l, node, leaf, m->padded, err);
}

iv_status iv_gpu_learned_end_head(gpu_learner *l, float *dh, iv_error *err) {
    const gpu_learned *all = l->learned;
    const learned_module *m = all ? all->head.module : NULL;
    if (!m) return IV_OK;
    float *dt = all->head_nodes[0];
    IV_TRY(iv_gpu_learner_add_ranks(l, iv_gpu_adapter_node_at, m->padded, all->head_nodes, &dt, err));
    if (l->n.picks) {
        int code = iv_gpu_round_rows(dt, m->padded, 0, m->padded, l->n.picks, l->m->gemm_type, all->dt, m->padded,
                                     l->f.stream);
        iv_gpu_adapter_args a = args_of(l, l->n.picks);
        a.parts = m->back, a.pieces = 1, a.piece[0] = (iv_gpu_adapter_piece){0, (uint32_t)l->h};
        a.t = all->dt, a.n = a.y_stride = l->h, a.y = dh;
        if (!code) code = iv_gpu_adapter_outer(&a, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "gradient of the head's inputs", err));
    }
    if (l->f.rank > 0) return IV_OK;
    const learned_sum of_a = {.dy = all->dt,
                              .dy_stride = m->padded,
                              .n = m->padded,
                              .x = l->picked,
                              .x_stride = l->h_stride,
                              .k = l->h,
                              .base = m->at_a,
                              .offsets = all->head.a_offsets,
                              .chains = all->head.a_chains,
                              .extent = all->head.a_extent,
                              .of = m};
    return iv_gpu_learned_sum(l, &l->head_axis, &of_a, err);
}
