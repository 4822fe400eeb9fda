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
    if (a->bias) {
        const float *bias = a->bias + (size_t)(a->ids[slot] - a->first) * a->bias_stride;
        float of_bias[IV_ROW_LANES] = {0};
        for (size_t i = 0; i < a->hidden; i++) {
            of_bias[i % IV_ROW_LANES] = fmaf(dx[i], bias[i], of_bias[i % IV_ROW_LANES]);
            a->weighed[entry * a->hidden + i] = dx[i] * w;
        }
        a->dw[slot] += iv_ref_fold_lanes(of_bias);
    }
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
    int32_t *ids = malloc(slots * sizeof *ids), first = (int32_t)rng_below(r, 3);
    for (size_t i = 0; i < slots; i++) ids[i] = first + (int32_t)rng_below(r, 5);
    bool biased = rng_below(r, 2);
    size_t apart = hidden + rng_below(r, 9);
    float *bias = random_values(r, NORMAL, IV_F32, 5 * apart), *weighed = malloc((entries * hidden + 1) * sizeof *dx);
    memset(weighed, 0xa5, entries * hidden * sizeof *weighed);
    iv_gpu_expert_rows_args want = {.slot = slot,
                                    .entries = entries,
                                    .k = k,
                                    .hidden = hidden,
                                    .n = n,
                                    .dx = dx,
                                    .weights = weights,
                                    .bias = biased ? bias : NULL,
                                    .bias_stride = apart,
                                    .ids = ids,
                                    .first = first,
                                    .weighed = weighed,
                                    .type = type,
                                    .act = act,
                                    .da = da,
                                    .dw = dw,
                                    .dy = dy,
                                    .dy_stride = stride};
    iv_gpu_expert_rows_args a = want;
    a.bias = biased ? gpu_copy(bias, 5 * apart * sizeof *bias) : NULL, a.ids = gpu_copy(ids, slots * sizeof *ids);
    a.weighed = gpu_room(entries * hidden * sizeof *weighed);
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
    if (biased) assert_gpu_has("gradients of biases", weighed, a.weighed, entries * hidden, sizeof *weighed, true);
    cudaFree((void *)a.bias), cudaFree((void *)a.ids), cudaFree(a.weighed), free(ids), free(bias), free(weighed);
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

/* Without the element of a shared expert's gate. */
static void want_logits(const iv_gpu_router_backward_args *a, size_t row, float *dl) {
    size_t k = a->router.k, experts = a->router.experts;
    memset(dl, 0, experts * sizeof *dl);
    if (a->ids[row * k] < 0) return;
    iv_ref_route_by_backward(&a->router, a->logits + row * a->stride, a->ids + row * k, a->weights + row * k,
                             a->dw + row * k, dl);
    for (size_t e = 0; e < experts; e++)
        put_type(a->type, a->dy, row * a->dy_stride + e / a->leaf * a->apart + e % a->leaf, dl[e]);
    if (a->last) put_type(a->type, a->dy, row * a->dy_stride + a->last_at, iv_canonical(a->last[row]));
}

static int by_id(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void router_trial(rng *r, iv_dtype type) {
    static const size_t usual[] = {1, 2, 8, 60, 64, 128, 129, 160, 256, 300, 512, 512};
    size_t experts = usual[rng_below(r, 12)], most = experts < 64 ? experts : 64, width = iv_dtype_bytes(type);
    size_t k = 1 + rng_below(r, rng_below(r, 3) && most > 8 ? 8 : most), rows = rng_below(r, 14);
    bool shared = rng_below(r, 3) == 0, biased = rng_below(r, 3) == 0;
    size_t leaves = (size_t)1 << rng_below(r, 3), leaf = (experts + leaves - 1) / leaves,
           apart = leaf + shared + rng_below(r, 20), stride = leaves * apart + rng_below(r, 9);
    iv_router router = {.experts = experts,
                        .k = k,
                        .score = rng_below(r, 2) ? IV_SCORE_SIGMOID : IV_SCORE_SOFTMAX,
                        .normalise = rng_below(r, 2),
                        .scale = rng_below(r, 2) ? 1.0f : 2.5f};
    float *logits = random_values(r, random_family(r), IV_F32, rows * (experts + shared));
    float *last = random_values(r, random_family(r), IV_F32, rows), *dl = malloc((rows * experts + 1) * sizeof *dl);
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
    iv_gpu_router_backward_args want = {
        router, logits, rows, experts + shared, ids,  weights, dw,  shared ? last : NULL,
        NULL,   type,   dy,   stride,           leaf, apart,   leaf};
    iv_gpu_router_backward_args a = want;
    a.last = shared ? gpu_copy(last, rows * sizeof *last) : NULL;
    a.dl = biased ? gpu_room(rows * experts * sizeof *dl) : NULL;
    a.logits = gpu_copy(logits, rows * a.stride * sizeof *logits), a.ids = gpu_copy(ids, rows * k * sizeof *ids);
    a.weights = gpu_copy(weights, rows * k * sizeof *weights), a.dw = gpu_copy(dw, rows * k * sizeof *dw);
    a.dy = gpu_room(rows * stride * width);
    for (size_t i = 0; i < rows; i++) want_logits(&want, i, dl + i * experts);
    GPU_OK(iv_gpu_router_backward(&a, NULL));
    assert_gpu_has("gradients of the router's logits", dy, a.dy, rows * stride, width, false);
    if (biased) assert_gpu_has("the same unrounded", dl, a.dl, rows * experts, sizeof *dl, true);
    cudaFree((void *)a.last), cudaFree(a.dl), free(last), free(dl);
    cudaFree((void *)a.logits), cudaFree((void *)a.ids), cudaFree((void *)a.weights), cudaFree((void *)a.dw);
    cudaFree(a.dy), free(logits), free(weights), free(dw), free(ids), free(dy);
}

static void routers_backward(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("routers backward");
    for (size_t trial = 0; trial < trials(80, 1000); trial++) router_trial(&r, types[trial % 3]);
    iv_gpu_router_backward_args wide = {
        .router = {.experts = 513, .k = 1}, .rows = 1, .stride = 513, .dy_stride = 528, .leaf = 513, .apart = 513};
    assert_int_not_equal(0, iv_gpu_router_backward(&wide, NULL));
}

/* ---- the gate of a shared expert ----------------------------------------------------------------------------------
 */

static void want_gate(const iv_gpu_shared_gate_args *a, size_t row) {
    float of[IV_LEAVES_MAX], p = iv_ref_sigmoid(a->z[row * a->z_apart]), *da = a->da + row * a->n;
    for (size_t leaf = 0; leaf < a->leaves; leaf++) {
        float lanes[IV_ROW_LANES] = {0};
        for (size_t i = leaf * a->leaf; i < (leaf + 1) * a->leaf && i < a->n; i++) {
            float *lane = &lanes[i % a->leaf % IV_ROW_LANES];
            *lane = fmaf(da[i], iv_element(a->type, a->act, row * a->act_stride + i), *lane), da[i] = da[i] * p;
        }
        of[leaf] = iv_ref_fold_lanes(lanes);
    }
    for (size_t stride = 1; stride < a->leaves; stride *= 2)
        for (size_t i = 0; i < a->leaves; i += 2 * stride) of[i] = of[i] + of[i + stride];
    a->dz[row] = a->part ? of[0] : iv_canonical(of[0] * (1.0f - p));
}

static void gate_trial(rng *r, iv_dtype type) {
    size_t n = random_n(r), rows = rng_below(r, 9), leaves = (size_t)1 << rng_below(r, 4), width = iv_dtype_bytes(type);
    size_t leaf = iv_padded_k((n + leaves - 1) / leaves), stride = n + rng_below(r, 9), apart = 1 + rng_below(r, 5);
    float *z = random_values(r, NORMAL, IV_F32, rows * apart), *dz = malloc((rows + 1) * sizeof *dz);
    float *da = random_values(r, random_family(r), IV_F32, rows * n);
    void *act = random_values(r, random_family(r), type, rows * stride);
    iv_gpu_shared_gate_args want = {z, rows, apart, n, leaf, leaves, type, act, stride, da, dz, rng_below(r, 2)},
                            a = want;
    a.z = gpu_copy(z, rows * apart * sizeof *z), a.act = gpu_copy(act, rows * stride * width);
    a.da = gpu_copy(da, rows * n * sizeof *da), a.dz = gpu_room(rows * sizeof *dz);
    for (size_t i = 0; i < rows; i++) want_gate(&want, i);
    GPU_OK(iv_gpu_shared_gate_backward(&a, NULL));
    assert_gpu_has("gradients of act", da, a.da, rows * n, sizeof *da, true);
    assert_gpu_has("gradients of the gate", dz, a.dz, rows, sizeof *dz, true);
    for (size_t i = 0; i < rows; i++) dz[i] = iv_canonical(dz[i] * (1.0f - iv_ref_sigmoid(z[i * apart])));
    GPU_OK(iv_gpu_shared_gate_finish(a.z, apart, rows, a.dz, NULL)); /* of a part */
    assert_gpu_has("gradients of a gate whose parts are summed", dz, a.dz, rows, sizeof *dz, true);
    cudaFree((void *)a.z), cudaFree((void *)a.act), cudaFree(a.da), cudaFree(a.dz), free(z), free(dz), free(da),
        free(act);
}

static void shared_gates(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("gates of shared experts");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) gate_trial(&r, types[trial % 3]);
    iv_gpu_shared_gate_args many = {.rows = 1, .leaves = IV_LEAVES_MAX + 1};
    assert_int_not_equal(0, iv_gpu_shared_gate_backward(&many, NULL));
}

#define EXPERTS_BACKWARD_CASES(test) test(expert_entries), test(routers_backward), test(shared_gates)

#endif
