/* learner_adapter_sums.c: sums over tokens of an adapter's gradients. Their tiles are few, and each is one chain for
 * every virtual rank: where a pass holds the whole step, the chains of all virtual ranks run next to one another, as
 * groups of one launch, and are added in the tree (NUMERICS.md 15.3) behind it. */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"

enum { TILE = 128 }; /* outputs, and half of the inputs, of a tile (weight_gradient_wgmma.cuh) */

static bool divides(const gpu_learner *l, const iv_token_axis *axis, const learned_sum *s) {
    size_t tiles = (s->n + TILE - 1) / TILE * ((s->k + 2 * TILE - 1) / (2 * TILE));
    bool whole = axis->done == 0 && axis->range_count == axis->ranks;
    for (size_t p = 0; whole && p < axis->range_count; p++) whole = axis->ranges[p].starts && axis->ranges[p].ends;
    return whole && l->f.ranks == 1 && !s->groups && axis->ranks > 1 && axis->ranks <= LEARNED_CHAINS_MAX &&
           tiles < LEARNED_TILES_MAX && s->extent && s->extent <= l->learned->extent_max;
}

static iv_gpu_weight_gradient_args args_of(const gpu_learner *l, const iv_token_axis *axis, const learned_sum *s) {
    return (iv_gpu_weight_gradient_args){.arithmetic = l->f.arithmetic,
                                         .type = l->m->gemm_type,
                                         .axis = axis,
                                         .groups = s->groups,
                                         .dy = s->dy,
                                         .dy_stride = s->dy_stride,
                                         .n = s->n,
                                         .offsets = l->learned->offsets + s->offsets,
                                         .x = s->x,
                                         .x_stride = s->x_stride,
                                         .k = s->k,
                                         .sums = iv_gpu_learner_sums_from(&l->sums, s->base),
                                         .scratch = l->gradient_scratch,
                                         .sms = l->f.sms};
}

/* The chains of all virtual ranks, one after another in `partial`. */
static int make_chains(gpu_learner *l, const iv_token_axis *axis, const learned_sum *s) {
    const gpu_learned *all = l->learned;
    const bool head = axis == &l->head_axis;
    const iv_rank_range range = {.starts = true, .ends = true};
    const iv_token_axis one = {.padded = axis->padded, .ranges = &range, .range_count = 1, .ranks = 1};
    const iv_gpu_gradient_groups groups = {.count = axis->ranks,
                                           .bounds = all->bounds + 2 * head * LEARNED_CHAINS_MAX,
                                           .host_bounds = all->host_bounds[head],
                                           .bases = all->offsets + s->chains};
    iv_gpu_weight_gradient_args a = args_of(l, &one, s);
    a.groups = &groups, a.sums = (iv_axis_sums){.sum = all->partial};
    return iv_gpu_weight_gradient(&a, l->f.stream);
}

static int add_chains(gpu_learner *l, const iv_token_axis *axis, const learned_sum *s, size_t at, size_t n) {
    const float *from[LEARNED_CHAINS_MAX];
    for (size_t v = 0; v < axis->ranks; v++) from[v] = l->learned->partial + v * s->extent + (at - s->base);
    return iv_gpu_sum_rows(from, axis->ranks, n, l->sums.sum + at, l->f.stream);
}

iv_status iv_gpu_learned_sum(gpu_learner *l, const iv_token_axis *axis, const learned_sum *s, iv_error *err) {
    int code;
    if (!divides(l, axis, s)) {
        iv_gpu_weight_gradient_args a = args_of(l, axis, s);
        code = iv_gpu_weight_gradient(&a, l->f.stream);
        return iv_gpu_launched(&l->f, code, "gradient of the adapter", err);
    }
    code = make_chains(l, axis, s);
    for (const learned_module *m = s->of; m && !code; m = s->is_b ? NULL : m->next)
        code = s->is_b ? add_chains(l, axis, s, m->at_b, m->outputs * m->rank)
                       : add_chains(l, axis, s, m->at_a, m->rank * m->inputs);
    return iv_gpu_launched(&l->f, code, "gradient of the adapter", err);
}

/* Of the axes of all tokens and of predictions. */
iv_status iv_gpu_learned_axes(gpu_learner *l, iv_error *err) {
    gpu_learned *a = l->learned;
    const iv_token_axis *const axes[2] = {&l->axis, &l->head_axis};
    if (!a) return IV_OK;
    for (size_t i = 0; i < 2; i++)
        for (size_t p = 0; p < iv_size_min(axes[i]->range_count, LEARNED_CHAINS_MAX); p++) {
            a->host_bounds[i][2 * p] = (uint32_t)axes[i]->ranges[p].begin;
            a->host_bounds[i][2 * p + 1] = (uint32_t)axes[i]->ranges[p].end;
        }
    int code = cudaMemcpyAsync(a->bounds, a->host_bounds, sizeof a->host_bounds, cudaMemcpyHostToDevice, l->f.stream);
    return iv_gpu_launched(&l->f, code, "axes", err);
}
