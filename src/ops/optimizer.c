/* optimizer.c: AdamW on tensors of any length, sums of equal arrays, virtual ranks. */
#include "base/cpu.h"
#include "ops/gpu.h"
#include "train/flat/optimizer.h"
#include "train/data/order.h"

#include <math.h>
#include <string.h>

enum { CHUNK = IV_OPTIMIZER_BLOCK };

typedef struct job {
    const iv_kernels *kernels;
    const iv_adamw_step *step;
    bool decay;
    const float *gradient, *const *from;
    size_t n, count;
    float *w, *m, *v, *out;
    double *sums;
} job;

static size_t chunks(size_t n) { return n / CHUNK + (n % CHUNK > 0); }

static void sum_block(void *context, size_t index, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t at = index * CHUNK;
    j->sums[index] = j->kernels->sum_squares(j->gradient + at, iv_size_min(CHUNK, j->n - at));
}

iv_status iv_ops_block_sums(iv_ops *ops, const float *gradient, size_t n, double *sums, iv_error *err) {
    job j = {.kernels = ops->compute.kernels, .gradient = gradient, .n = n, .sums = sums};
    IV_TRY(iv_ops_enter(ops, "optimizer, norm", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->block_sums(ops, gradient, n, sums, err));
    iv_pool_run(ops->pool, chunks(n), sum_block, &j);
    return iv_ops_leave(ops, IV_OK);
}

static bool scale_of(const double *sums, size_t blocks, double denominator, double max_norm, double *norm,
                     float *scale) {
    return iv_gradient_scale(iv_total_of_sums(sums, blocks), denominator, max_norm, norm, scale);
}

iv_status iv_ops_gradient_scale(const double *sums, size_t blocks, double denominator, double max_norm, double *norm,
                                float *scale, iv_error *err) {
    bool good;
    if (!(denominator > 0) || !isfinite(denominator))
        return iv_fail(err, IV_INVALID, "optimizer: denominator: wanted above 0, found %g", denominator);
    if (!(max_norm >= 0)) return iv_fail(err, IV_INVALID, "optimizer: max_norm: wanted 0 or more, found %g", max_norm);
    IV_WITH_FP(IV_FP_DEFAULT, good = scale_of(sums, blocks, denominator, max_norm, norm, scale));
    if (good) return IV_OK;
    return iv_fail(err, IV_NOT_FINITE, "optimizer: the gradient's norm is %g: no weight was changed", *norm);
}

static void step_chunk(void *context, size_t index, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t at = index * CHUNK;
    j->kernels->adamw(j->step, j->decay, j->gradient + at, j->w + at, j->m + at, j->v + at,
                      iv_size_min(CHUNK, j->n - at));
}

static iv_status check_options(const iv_ops_adamw *o, iv_error *err) {
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return iv_fail(err, IV_INVALID, "optimizer: betas: wanted 0 to below 1, found %g, %g", o->beta1, o->beta2);
    if (!(o->eps >= 0) || !(o->weight_decay >= 0) || !isfinite(o->learning_rate))
        return iv_fail(err, IV_INVALID,
                       "optimizer: wanted eps and weight_decay of 0 or more and a finite rate, found %g, %g, %g",
                       o->eps, o->weight_decay, o->learning_rate);
    if (o->step == 0) return iv_fail(err, IV_INVALID, "optimizer: step: wanted 1 or more, found 0");
    return IV_OK;
}

iv_status iv_ops_adamw_step(iv_ops *ops, const iv_ops_adamw *o, const float *gradient, size_t n, float *w, float *m,
                            float *v, iv_error *err) {
    IV_TRY(check_options(o, err));
    IV_TRY(iv_ops_enter(ops, "optimizer", err));
    iv_adamw_options options = {o->beta1, o->beta2, o->eps, o->weight_decay};
    iv_adamw_step step = iv_adamw_constants(&options, o->learning_rate, o->step, o->scale);
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->adamw(ops, &step, o->decay, gradient, n, w, m, v, err));
    job j = {.kernels = ops->compute.kernels,
             .step = &step,
             .decay = o->decay,
             .gradient = gradient,
             .n = n,
             .w = w,
             .m = m,
             .v = v};
    iv_pool_run(ops->pool, chunks(n), step_chunk, &j);
    return iv_ops_leave(ops, IV_OK);
}

/* ---- sums of arrays
 * -------------------------------------------------------------------------------------------------- */

static void tree_chunk(void *context, size_t index, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t at = index * CHUNK, n = iv_size_min(CHUNK, j->n - at);
    float node[IV_VIRTUAL_LEVELS_MAX + 1][CHUNK];
    for (size_t i = 0; i < j->count; i++) { /* node[l]: a subtree of 2^l arrays that waits for its sibling */
        float *now = node[IV_VIRTUAL_LEVELS_MAX];
        memcpy(now, j->from[i] + at, n * sizeof *now);
        size_t level = 0;
        for (; i >> level & 1; level++)
            for (size_t e = 0; e < n; e++) now[e] = node[level][e] + now[e];
        memcpy(i + 1 == j->count ? j->out + at : node[level], now, n * sizeof *now);
    }
}

iv_status iv_ops_tree_sum(iv_ops *ops, const float *const *from, size_t count, size_t n, float *out, iv_error *err) {
    if (count == 0 || count > IV_VIRTUAL_RANKS_MAX || (count & (count - 1)))
        return iv_fail(err, IV_INVALID, "tree sum: wanted a power of two of arrays up to %d, found %zu",
                       IV_VIRTUAL_RANKS_MAX, count);
    IV_TRY(iv_ops_enter(ops, "tree sum", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->tree_sum(ops, from, count, n, out, err));
    job j = {.from = from, .n = n, .count = count, .out = out};
    iv_pool_run(ops->pool, chunks(n), tree_chunk, &j);
    return iv_ops_leave(ops, IV_OK);
}

iv_status iv_ops_virtual_ranks(const size_t *lengths, size_t n, size_t virtual_ranks, uint32_t *index, size_t *begin,
                               iv_error *err) {
    if (virtual_ranks == 0 || virtual_ranks > IV_VIRTUAL_RANKS_MAX || (virtual_ranks & (virtual_ranks - 1)))
        return iv_fail(err, IV_INVALID, "virtual ranks: wanted a power of two, at most %d, found %zu",
                       IV_VIRTUAL_RANKS_MAX, virtual_ranks);
    return iv_train_pack(lengths, n, virtual_ranks, index, begin, err);
}
