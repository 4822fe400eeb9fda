/* learner_adapter_backward.c: the backward pass through the modules of a product, on a GPU: gradients of A and B, and
 * of the product's input through them (NUMERICS.md 19.1). t is computed once more from the input. */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"

/* ---- t ------------------------------------------------------------------------------------------------------------
 */

static iv_gpu_adapter_rows rows_of(const learned_backward *b) {
    iv_gpu_adapter_rows r = {.plain = b->rows};
    if (b->groups) r.grouped = true, r.groups = *b->groups, r.entries = b->rows;
    return r;
}

/* t = R(A x) of all modules. */
static iv_status inner(gpu_learner *l, const learned_backward *b, size_t site, iv_error *err) {
    const gpu_adapters *all = &l->learned->forward;
    const gpu_site *s = &all->site[site];
    if (b->cut_inputs && l->f.ranks > 1) return iv_gpu_adapted_t(&l->pass, s, b->cut_inputs, err);
    iv_gpu_adapter_args a = {.arithmetic = l->f.arithmetic,
                             .type = l->m->gemm_type,
                             .parts = all->parts + s->at,
                             .slots = all->slots,
                             .pieces = s->pieces,
                             .rank_max = s->rank_max,
                             .rows = rows_of(b),
                             .sms = l->f.sms,
                             .x = b->x,
                             .x_stride = b->x_stride,
                             .k = iv_padded_k(b->site->k),
                             .leaves = b->site->leaves,
                             .by_entry = true,
                             .t = all->t,
                             .t_stride = b->site->t_width};
    if (b->groups) a.parts += (b->expert - l->shard->expert_first) * a.slots * a.pieces;
    return iv_gpu_launched(&l->f, iv_gpu_adapter_inner(&a, l->f.stream), "A of the adapter", err);
}

/* ---- sums over outputs --------------------------------------------------------------------------------------------
 */

/* R(scale dy) of a module's outputs. */
static iv_status scaled(gpu_learner *l, const learned_backward *b, const learned_module *m, const void **dz,
                        iv_error *err) {
    *dz = b->dy;
    if (m->whole && m->scale == 1.0f) return IV_OK;
    const iv_gpu_scale_columns_args a = {.type = l->m->gemm_type,
                                         .scale = m->scale,
                                         .columns = m->columns,
                                         .row = b->row,
                                         .rows = b->rows,
                                         .dy = b->dy,
                                         .dy_stride = b->concat->n,
                                         .dz = l->learned->dz};
    *dz = l->learned->dz;
    return iv_gpu_launched(&l->f, iv_gpu_scale_columns(&a, l->f.stream), "gradient of the adapter", err);
}

static float *node_of(const gpu_learner *l, const learned_backward *b, const gpu_forward *f) {
    return iv_gpu_adapter_node_at(f, l->turn, 0, b->site->t_width);
}

/* The sum over this rank's outputs of dz and B, in `out` [rows][t_width]. */
static iv_status outputs_sum(gpu_learner *l, const learned_backward *b, const learned_module *m, size_t index,
                             const void *dz, float *out, iv_error *err) {
    const iv_matrix w = {.format = iv_weight_plain(l->m->gemm_type),
                         .type = l->m->gemm_type,
                         .n = m->padded,
                         .k = m->n,
                         .k_padded = m->n,
                         .leaves = (int)m->columns.leaves,
                         .data = (unsigned char *)(uintptr_t)m->transposed};
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &w, dz, m->n, b->rows);
    a.out = out + m->first, a.out_stride = b->site->t_width;
    if (b->groups) {
        a.x_rows = 0, a.groups = b->groups;
        if (b->groups->count > 1) {
            const learned_site *s =
                iv_gpu_learned_site(l, b->layer, b->down ? IV_SITE_DOWN : IV_SITE_UP, b->expert + 1);
            const learned_module *next = s->first;
            while (index--) next = next->next;
            a.w.expert_bytes = (size_t)((const char *)next->transposed - (const char *)m->transposed);
        }
    }
    return iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of the adapter", err);
}

/* dt of all modules from their sums, over the ranks if these divide the outputs. */
static iv_status round_sums(gpu_learner *l, const learned_backward *b, iv_error *err) {
    const gpu_adapters *all = &l->learned->forward;
    size_t width = b->site->t_width;
    if (b->cut_outputs && l->f.ranks > 1) {
        iv_gpu_peers peers = iv_gpu_peers_of(&l->f);
        iv_gpu_allreduce_args a = {.arithmetic = l->f.arithmetic,
                                   .rows = b->rows,
                                   .hidden = width,
                                   .x = all->sums,
                                   .type = l->m->gemm_type,
                                   .normed_stride = width,
                                   .whole = true};
        iv_learner_node_order(l->f.ranks, b->concat->leaves, &a.order);
        for (size_t r = 0; r < l->f.ranks; r++) a.node[r] = node_of(l, b, l->f.peer[r]);
        l->turn = !l->turn;
        int code = iv_gpu_fill(all->sums, b->rows * width, -0.0f, l->f.stream);
        if (!code) code = iv_gpu_tree_allreduce(&peers, &a, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "all-reduce of the ranks", err));
    }
    int code =
        iv_gpu_round_rows(all->sums, width, 0, width, b->rows, l->m->gemm_type, l->learned->dt, width, l->f.stream);
    return iv_gpu_launched(&l->f, code, "rounding", err);
}

/* ---- sums over tokens ---------------------------------------------------------------------------------------------
 */

/* Of experts: their bases instead of one. */
static void group(const gpu_learner *l, const learned_backward *b, size_t which, learned_sum *s,
                  iv_gpu_gradient_groups *groups) {
    if (!b->sums) return;
    *groups = *b->sums;
    groups->bases = l->learned->offsets + iv_gpu_learned_bases(l->learned, b->layer, b->down, which) + b->expert;
    s->groups = groups, s->base = 0;
}

/* Of B: every rank has its outputs; if ranks divide the inputs, all have all outputs, and t. */
static iv_status add_b(gpu_learner *l, const learned_backward *b, const learned_module *m, size_t index, const void *dz,
                       iv_error *err) {
    if (!b->x || (b->cut_inputs && l->f.rank > 0)) return IV_OK;
    iv_gpu_gradient_groups groups;
    learned_sum s = {.dy = dz,
                     .dy_stride = m->n,
                     .n = m->n,
                     .x = (const char *)l->learned->forward.t + m->first * l->width,
                     .x_stride = b->site->t_width,
                     .k = m->rank,
                     .base = m->at_b,
                     .offsets = m->b_offsets,
                     .chains = m->b_chains,
                     .extent = m->b_extent,
                     .of = m,
                     .is_b = true};
    group(l, b, 1 + index, &s, &groups);
    return iv_gpu_learned_sum(l, b->axis, &s, err);
}

/* Of all A: every rank has its inputs; if ranks divide the outputs, all have all inputs, and dt. */
static iv_status add_a(gpu_learner *l, const learned_backward *b, iv_error *err) {
    if (!b->x || (b->cut_outputs && l->f.rank > 0)) return IV_OK;
    iv_gpu_gradient_groups groups;
    learned_sum s = {.dy = l->learned->dt,
                     .dy_stride = b->site->t_width,
                     .n = b->site->t_width,
                     .x = b->x,
                     .x_stride = b->x_stride,
                     .k = b->site->k,
                     .base = b->site->base,
                     .offsets = b->site->a_offsets,
                     .chains = b->site->a_chains,
                     .extent = b->site->a_extent,
                     .of = b->site->first};
    group(l, b, 0, &s, &groups);
    return iv_gpu_learned_sum(l, b->axis, &s, err);
}

/* ---- the input ----------------------------------------------------------------------------------------------------
 */

/* dx = canon(dx + canon(dt A)): an adapter's term with scale 1. */
static iv_status add_input(gpu_learner *l, const learned_backward *b, const learned_module *m, iv_error *err) {
    const iv_gpu_adapter_args a = {.arithmetic = l->f.arithmetic,
                                   .type = l->m->gemm_type,
                                   .parts = m->back,
                                   .slots = 2,
                                   .pieces = 1,
                                   .rank_max = m->padded,
                                   .rows = rows_of(b),
                                   .sms = l->f.sms,
                                   .t = l->learned->dt,
                                   .t_stride = b->site->t_width,
                                   .piece = {{0, (uint32_t)b->site->k}},
                                   .n = b->site->k,
                                   .y = b->dx,
                                   .y_stride = b->site->k};
    return iv_gpu_launched(&l->f, iv_gpu_adapter_outer(&a, l->f.stream), "gradient of inputs", err);
}

/* The same of all modules in one pass over dx; *done: it can. */
static iv_status add_inputs(gpu_learner *l, const learned_backward *b, bool *done, iv_error *err) {
    iv_gpu_input_terms_args a = {.type = l->m->gemm_type,
                                 .dt = l->learned->dt,
                                 .dt_stride = b->site->t_width,
                                 .rows = b->rows,
                                 .k = b->site->k,
                                 .dx = b->dx,
                                 .rounded = b->rounded};
    for (const learned_module *m = b->site->first; m && a.terms < IV_GPU_INPUT_TERMS_MAX; m = m->next, a.terms++) {
        a.term[a.terms].factor = m->back_factor;
        a.term[a.terms].rank = (int32_t)m->rank, a.term[a.terms].first = (int32_t)m->first;
        *done = !m->next;
    }
    *done = *done && !b->groups && iv_gpu_input_terms_takes(l->f.arithmetic, &a);
    if (!*done) return IV_OK;
    return iv_gpu_launched(&l->f, iv_gpu_input_terms(&a, l->f.stream), "gradient of inputs", err);
}

static iv_status end_input(gpu_learner *l, const learned_backward *b, iv_error *err) {
    bool done = false;
    if (!b->dx || !b->rows) return IV_OK;
    IV_TRY(add_inputs(l, b, &done, err));
    if (done) return IV_OK;
    for (const learned_module *m = b->site->first; m; m = m->next) IV_TRY(add_input(l, b, m, err));
    if (!b->rounded) return IV_OK;
    size_t k = b->site->k;
    int code = iv_gpu_round_rows(b->dx, k, 0, k, b->rows, l->m->gemm_type, b->rounded, k, l->f.stream);
    return iv_gpu_launched(&l->f, code, "rounding", err);
}

/* t, whose inputs of several ranks may be copied to where x is: it is copied once more. */
static iv_status make_t(gpu_learner *l, learned_backward *b, iv_error *err) {
    size_t table, site = iv_gpu_shared_site(l->m, (size_t)(b->site - l->learned->site), &table);
    if (!b->x || !b->rows) return IV_OK;
    IV_TRY(inner(l, b, site, err));
    if (!b->cut_inputs || l->f.ranks == 1) return IV_OK;
    b->x = b->cut_inputs->x, b->x_stride = b->cut_inputs->x_stride;
    return iv_gpu_inputs_at(&l->pass, 0, b->site->k, &b->x, &b->x_stride, err);
}

iv_status iv_gpu_learned_backward(gpu_learner *l, const learned_backward *given, iv_error *err) {
    learned_backward copy = *given, *b = &copy;
    size_t index = 0;
    if (!b->site) return IV_OK;
    const gpu_adapters *all = &l->learned->forward;
    bool cut = b->cut_outputs && l->f.ranks > 1;
    IV_TRY(make_t(l, b, err));
    for (const learned_module *m = b->site->first; m; m = m->next, index++) {
        const void *dz = l->learned->dz;
        if (b->rows) {
            IV_TRY(scaled(l, b, m, &dz, err));
            IV_TRY(outputs_sum(l, b, m, index, dz, cut ? node_of(l, b, &l->f) : all->sums, err));
        }
        IV_TRY(add_b(l, b, m, index, dz, err));
    }
    if (b->rows) IV_TRY(round_sums(l, b, err));
    IV_TRY(add_a(l, b, err));
    return end_input(l, b, err);
}
