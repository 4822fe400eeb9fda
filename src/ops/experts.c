/* experts.c: routing, and sums over the experts of a token. Their layers are linear layers of one chain (linear.c). */
#include "numerics/backward.h"
#include "numerics/floats.h"
#include "numerics/rows.h"
#include "ops/gpu.h"

typedef struct job {
    const iv_ops *ops;
    const float *logits, *weights, *dweights, *terms, *da, *by;
    const int32_t *ids;
    const void *act;
    size_t experts, k, n;
    bool normalize;
    int32_t *ids_out;
    float *out;
} job;

static iv_status check_experts(const char *what, size_t rows, size_t experts, size_t k, iv_error *err) {
    if (k == 0 || k > experts || k > IV_EXPERTS_PER_TOKEN_MAX)
        return iv_fail(err, IV_INVALID, "%s: experts of a token: wanted 1 to %d of %zu, found %zu", what,
                       IV_EXPERTS_PER_TOKEN_MAX, experts, k);
    return iv_ops_check_size(what, rows, experts, err);
}

/* The ids of each row ascend. */
static iv_status check_ids(const char *what, const int32_t *ids, size_t rows, size_t k, size_t experts, iv_error *err) {
    for (size_t i = 0; i < rows * k; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= experts || (i % k && ids[i] <= ids[i - 1]))
            return iv_fail(err, IV_INVALID, "%s: row %zu: wanted ascending ids below %zu, found %d", what, i / k,
                           experts, ids[i]);
    return IV_OK;
}

static iv_status run(iv_ops *ops, job *j, size_t rows, void (*task)(void *, size_t, size_t)) {
    j->ops = ops;
    iv_pool_run(ops->pool, rows, task, j);
    return iv_ops_leave(ops, IV_OK);
}

static void route_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    int32_t *ids = j->ids_out + row * j->k;
    float *weights = j->out + row * j->k;
    iv_ref_route(j->logits + row * j->experts, j->experts, j->k, j->normalize, ids, weights);
    iv_ref_sort_experts(ids, weights, j->k);
}

iv_status iv_ops_route(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                       int32_t *ids, float *weights, iv_error *err) {
    IV_TRY(check_experts("route", rows, experts, k, err));
    IV_TRY(iv_ops_enter(ops, "route", err));
    if (ops->gpu)
        return iv_ops_leave(ops, ops->gpu->route(ops, logits, rows, experts, k, normalize, ids, weights, err));
    job j = {.logits = logits, .experts = experts, .k = k, .normalize = normalize, .ids_out = ids, .out = weights};
    return run(ops, &j, rows, route_row);
}

static void route_row_backward(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t at = row * j->k;
    iv_ref_route_backward(j->logits + row * j->experts, j->experts, j->ids + at, j->weights + at, j->dweights + at,
                          j->k, j->normalize, j->out + row * j->experts);
}

iv_status iv_ops_route_backward(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                                const int32_t *ids, const float *weights, const float *dweights, float *dlogits,
                                iv_error *err) {
    IV_TRY(check_experts("route, backward", rows, experts, k, err));
    if (!ops->gpu) IV_TRY(check_ids("route, backward", ids, rows, k, experts, err));
    IV_TRY(iv_ops_enter(ops, "route, backward", err));
    if (ops->gpu)
        return iv_ops_leave(ops, ops->gpu->route_backward(ops, logits, rows, experts, k, normalize, ids, weights,
                                                          dweights, dlogits, err));
    job j = {.logits = logits,
             .experts = experts,
             .k = k,
             .normalize = normalize,
             .ids = ids,
             .weights = weights,
             .dweights = dweights,
             .out = dlogits};
    return run(ops, &j, rows, route_row_backward);
}

static void sum_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const float *terms = j->terms + row * j->k * j->n;
    float *out = j->out + row * j->n;
    for (size_t i = 0; i < j->n; i++) {
        float of_element[IV_EXPERTS_PER_TOKEN_MAX];
        for (size_t e = 0; e < j->k; e++) of_element[e] = terms[e * j->n + i];
        out[i] = iv_canonical(out[i] + iv_ref_combine(j->ids + row * j->k, of_element, j->k));
    }
}

iv_status iv_ops_expert_sum(iv_ops *ops, const int32_t *ids, const float *terms, size_t rows, size_t k, size_t n,
                            float *out, iv_error *err) {
    IV_TRY(check_experts("experts, sum", rows, IV_EXPERTS_PER_TOKEN_MAX, k, err));
    IV_TRY(iv_ops_check_size("experts, sum", rows, n, err));
    if (!ops->gpu) IV_TRY(check_ids("experts, sum", ids, rows, k, INT32_MAX, err));
    IV_TRY(iv_ops_enter(ops, "experts, sum", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->expert_sum(ops, ids, terms, rows, k, n, out, err));
    job j = {.ids = ids, .terms = terms, .k = k, .n = n, .out = out};
    return run(ops, &j, rows, sum_row);
}

static void weight_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const char *act = (const char *)j->act + row * j->n * iv_ops_width(j->ops);
    j->out[row] = iv_ref_expert_weight_gradient(j->ops->type, j->da + row * j->n, act, j->n);
}

iv_status iv_ops_expert_weight_gradient(iv_ops *ops, const float *da, const void *act, size_t rows, size_t n,
                                        float *out, iv_error *err) {
    IV_TRY(iv_ops_check_size("experts, weight gradient", rows, n, err));
    IV_TRY(iv_ops_enter(ops, "experts, weight gradient", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->expert_weight_gradient(ops, da, act, rows, n, out, err));
    job j = {.da = da, .act = act, .n = n, .out = out};
    return run(ops, &j, rows, weight_row);
}

static void scale_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    j->ops->compute.kernels->scale(j->out + row * j->n, j->n, j->by[row]);
}

iv_status iv_ops_scale_rows(iv_ops *ops, float *x, const float *by, size_t rows, size_t n, iv_error *err) {
    IV_TRY(iv_ops_check_size("scale_rows", rows, n, err));
    IV_TRY(iv_ops_enter(ops, "scale_rows", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->scale_rows(ops, x, by, rows, n, err));
    job j = {.by = by, .n = n, .out = x};
    return run(ops, &j, rows, scale_row);
}
