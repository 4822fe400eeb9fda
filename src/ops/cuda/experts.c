/* experts.c: routing, and sums over the experts of a token, on a GPU. */
#include "ops/cuda/state.h"

static iv_status check_experts(const gpu_ops *g, size_t experts, iv_error *err) {
    if (experts <= IV_GPU_EXPERTS_MAX) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: a GPU takes up to %d experts, found %zu", g->base.what, IV_GPU_EXPERTS_MAX,
                   experts);
}

static iv_status route(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                       int32_t *ids, float *weights, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    int32_t *offsets, *slots;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, logits, ids, weights));
    IV_TRY(check_experts(g, experts, err));
    if (rows == 0) return IV_OK;
    IV_TRY(iv_gpu_ops_scratch(g, experts + 1, sizeof *offsets, &offsets, err));
    IV_TRY(iv_gpu_ops_scratch(g, rows * k, sizeof *slots, &slots, err));
    return iv_gpu_ops_launched(
        g,
        iv_gpu_route(&(iv_gpu_route_args){.router = {.experts = experts, .k = k, .normalise = normalize, .scale = 1},
                                          .logits = logits,
                                          .stride = experts,
                                          .rows = rows,
                                          .ids = ids,
                                          .weights = weights,
                                          .offsets = offsets,
                                          .slots = slots},
                     g->stream),
        err);
}

static iv_status route_backward(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                                const int32_t *ids, const float *weights, const float *dweights, float *dlogits,
                                iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    IV_TRY(GPU_OPS_ADDRESSES(g, err, logits, ids, weights, dweights, dlogits));
    IV_TRY(check_experts(g, experts, err));
    iv_router router = {.experts = experts, .k = k, .normalise = normalize, .scale = 1};
    iv_gpu_router_backward_args a = {.router = router,
                                     .logits = logits,
                                     .rows = rows,
                                     .stride = experts,
                                     .ids = ids,
                                     .weights = weights,
                                     .dw = dweights,
                                     .type = IV_F32,
                                     .dy = dlogits,
                                     .dy_stride = experts,
                                     .leaf = experts,
                                     .apart = experts};
    return iv_gpu_ops_launched(g, iv_gpu_router_backward(&a, g->stream), err);
}

static iv_status expert_sum(iv_ops *ops, const int32_t *ids, const float *terms, size_t rows, size_t k, size_t n,
                            float *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    const int32_t first[2] = {0, IV_GPU_EXPERTS_MAX};
    IV_TRY(GPU_OPS_ADDRESSES(g, err, ids, terms, out));
    return iv_gpu_ops_launched(g, iv_gpu_combine(&terms, first, 1, ids, rows, k, n, out, g->stream), err);
}

static iv_status expert_weight_gradient(iv_ops *ops, const float *da, const void *act, size_t rows, size_t n,
                                        float *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    IV_TRY(GPU_OPS_ADDRESSES(g, err, da, act, out));
    return iv_gpu_ops_launched(g, iv_gpu_row_products(da, act, ops->type, rows, n, out, g->stream), err);
}

static iv_status scale_rows(iv_ops *ops, float *x, const float *by, size_t rows, size_t n, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    IV_TRY(GPU_OPS_ADDRESSES(g, err, x, by));
    return iv_gpu_ops_launched(g, iv_gpu_scale_rows(x, by, rows, n, g->stream), err);
}

void iv_gpu_ops_expert_table(iv_ops_gpu *table) {
    table->route = route, table->route_backward = route_backward, table->expert_sum = expert_sum;
    table->expert_weight_gradient = expert_weight_gradient, table->scale_rows = scale_rows;
}
