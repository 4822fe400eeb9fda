/* experts_backward_cases.h: row ops of a mixture's backward pass against the scalar reference, shared by
 * test_experts_backward.c and test_emulated_experts_backward.c. */
#ifndef IV_TESTS_CUDA_EXPERTS_BACKWARD_CASES_H
#define IV_TESTS_CUDA_EXPERTS_BACKWARD_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/learn.h"
#include "numerics/rows.h"

static const iv_dtype types[3] = {IV_BF16, IV_F16, IV_F32};

static family random_family(rng *r) { return rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES); }

static size_t random_n(rng *r) {
    static const size_t usual[] = {1, 6, 24, 100, 255, 256, 257, 768, 1000, 1408, 2048, 2500};
    return usual[rng_below(r, sizeof usual / sizeof *usual)];
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

/* In host memory: da in place, dw, dy after weighing, and dy before it. Returns whether a sum in plain order differs.
 */
static bool want_entry(const iv_gpu_expert_rows_args *a, size_t entry, void *unweighed) {
    int32_t slot = a->slot[entry];
    if (slot < 0) return false;
    const float *dx = a->dx + (size_t)slot / a->k * a->hidden;
    float *da = a->da + entry * a->n, w = a->weights[slot], lanes[IV_ROW_LANES] = {0}, plain = 0.0f;
    for (size_t i = 0; i < a->n; i++) {
        float g = iv_element(a->type, a->act, entry * a->n + i), *lane = &lanes[i % IV_ROW_LANES];
        *lane = fmaf(da[i], g, *lane), plain = fmaf(da[i], g, plain);
        da[i] = da[i] * w;
    }
    a->dw[slot] = iv_ref_fold_lanes(lanes);
    for (size_t i = 0; i < a->hidden; i++) {
        put_type(a->type, a->dy, entry * a->dy_stride + i, iv_canonical(dx[i] * w));
        put_type(a->type, unweighed, entry * a->dy_stride + i, iv_canonical(dx[i]));
    }
    return isfinite(plain) && plain != a->dw[slot];
}

static size_t entries_trial(rng *r, iv_dtype type) {
    size_t hidden = random_n(r), n = random_n(r), k = 1 + rng_below(r, 8), rows = 1 + rng_below(r, 10),
           slots = rows * k;
    size_t entries = rng_below(r, slots + 6), width = iv_dtype_bytes(type), differ = 0;
    size_t stride = rng_below(r, 2) ? iv_padded_k(hidden) : hidden + rng_below(r, 9);
    int32_t *slot = malloc((entries + slots) * sizeof *slot), list[90];
    for (size_t i = 0; i < slots; i++) list[i] = (int32_t)i;
    for (size_t i = 0, at = 0; i < entries; i++) { /* distinct, with padding between them */
        bool padding = at == slots || rng_below(r, 4) == 0;
        size_t j = at + (padding ? 0 : rng_below(r, slots - at));
        slot[i] = padding ? -1 : list[j];
        if (!padding) list[j] = list[at++];
    }
    float *dx = random_values(r, random_family(r), IV_F32, rows * hidden),
          *da = random_values(r, random_family(r), IV_F32, entries * n);
    float *weights = random_values(r, NORMAL, IV_F32, slots), *dw = malloc(slots * sizeof *dw);
    void *act = random_values(r, random_family(r), type, entries * n);
    void *dy = calloc(entries * stride + 1, width), *unweighed = calloc(entries * stride + 1, width);
    memset(dw, 0xa5, slots * sizeof *dw);
    iv_gpu_expert_rows_args want = {slot, entries, k, hidden, n, dx, weights, type, act, da, dw, dy, stride}, a = want;
    a.slot = gpu_copy(slot, entries * sizeof *slot), a.dx = gpu_copy(dx, rows * hidden * sizeof *dx);
    a.weights = gpu_copy(weights, slots * sizeof *weights), a.act = gpu_copy(act, entries * n * width);
    a.da = gpu_copy(da, entries * n * sizeof *da), a.dw = gpu_room(slots * sizeof *dw);
    a.dy = gpu_room(entries * stride * width);
    for (size_t i = 0; i < entries; i++) differ += want_entry(&want, i, unweighed);
    GPU_OK(iv_gpu_expert_gradient_in(&a, NULL));
    assert_gpu_has("dx", unweighed, a.dy, entries * stride, width, false);
    GPU_OK(iv_gpu_expert_weigh(&a, NULL));
    assert_gpu_has("weighed dx", dy, a.dy, entries * stride, width, false);
    assert_gpu_has("gradients of act", da, a.da, entries * n, sizeof *da, true);
    assert_gpu_has("gradients of weights", dw, a.dw, slots, sizeof *dw, true);
    cudaFree((void *)a.slot), cudaFree((void *)a.dx), cudaFree((void *)a.weights), cudaFree((void *)a.act);
    cudaFree(a.da), cudaFree(a.dw), cudaFree(a.dy);
    free(slot), free(dx), free(da), free(weights), free(dw), free(act), free(dy), free(unweighed);
    return differ;
}

static void expert_entries(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("entries of experts");
    size_t differ = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) differ += entries_trial(&r, types[trial % 3]);
    assert_true(differ > 0);
}

/* ---- the router -------------------------------------------------------------------------------------------------- */

static void want_logits(const iv_gpu_router_backward_args *a, size_t row) {
    const int32_t *ids = a->ids + row * a->k;
    const float *w = a->weights + row * a->k, *dw = a->dw + row * a->k, *x = a->logits + row * a->experts;
    float out[IV_GPU_EXPERTS_MAX] = {0}, mean = 0.0f, max, sum;
    if (ids[0] < 0) return;
    for (size_t s = 0; s < a->k; s++) mean = fmaf(dw[s], w[s], mean);
    iv_ref_sum_exp(x, a->experts, &max, &sum);
    for (size_t e = 0; e < a->experts && !a->normalise; e++) out[e] = (iv_ref_exp(x[e] - max) / sum) * (0.0f - mean);
    for (size_t s = 0; s < a->k; s++) out[ids[s]] = w[s] * (dw[s] - mean);
    for (size_t e = 0; e < a->experts; e++) put_type(a->type, a->dy, row * a->dy_stride + e, iv_canonical(out[e]));
}

static int by_id(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void router_trial(rng *r, iv_dtype type) {
    static const size_t usual[] = {1, 2, 8, 60, 64, 128, 129, 160, 256, 300, 512, 512};
    size_t experts = usual[rng_below(r, 12)], most = experts < 64 ? experts : 64, width = iv_dtype_bytes(type);
    size_t k = 1 + rng_below(r, rng_below(r, 3) && most > 8 ? 8 : most), rows = rng_below(r, 14);
    size_t stride = rng_below(r, 2) ? iv_padded_k(experts) : experts + rng_below(r, 20);
    float *logits = random_values(r, random_family(r), IV_F32, rows * experts);
    float *weights = random_values(r, NORMAL, IV_F32, rows * k),
          *dw = random_values(r, random_family(r), IV_F32, rows * k);
    int32_t *ids = malloc((rows * k + 1) * sizeof *ids), list[IV_GPU_EXPERTS_MAX];
    void *dy = calloc(rows * stride + 1, width);
    for (size_t i = 0; i < rows; i++) {
        bool padding = rng_below(r, 6) == 0;
        for (size_t e = 0; e < experts; e++) list[e] = (int32_t)e;
        for (size_t s = 0; s < k; s++) {
            size_t j = s + rng_below(r, experts - s);
            ids[i * k + s] = padding ? -1 : list[j], list[j] = list[s];
        }
        qsort(ids + i * k, k, sizeof *ids, by_id);
    }
    iv_gpu_router_backward_args want = {logits, rows, experts, k, rng_below(r, 2), ids, weights, dw, type, dy, stride};
    iv_gpu_router_backward_args a = want;
    a.logits = gpu_copy(logits, rows * experts * sizeof *logits), a.ids = gpu_copy(ids, rows * k * sizeof *ids);
    a.weights = gpu_copy(weights, rows * k * sizeof *weights), a.dw = gpu_copy(dw, rows * k * sizeof *dw);
    a.dy = gpu_room(rows * stride * width);
    for (size_t i = 0; i < rows; i++) want_logits(&want, i);
    GPU_OK(iv_gpu_router_backward(&a, NULL));
    assert_gpu_has("gradients of the router's logits", dy, a.dy, rows * stride, width, false);
    cudaFree((void *)a.logits), cudaFree((void *)a.ids), cudaFree((void *)a.weights), cudaFree((void *)a.dw);
    cudaFree(a.dy), free(logits), free(weights), free(dw), free(ids), free(dy);
}

static void routers_backward(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("routers backward");
    for (size_t trial = 0; trial < trials(80, 1000); trial++) router_trial(&r, types[trial % 3]);
    iv_gpu_router_backward_args wide = {.rows = 1, .experts = 513, .k = 1, .dy_stride = 528};
    assert_int_not_equal(0, iv_gpu_router_backward(&wide, NULL));
}

#define EXPERTS_BACKWARD_CASES(test) test(expert_entries), test(routers_backward)

#endif
