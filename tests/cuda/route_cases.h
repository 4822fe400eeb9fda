/* route_cases.h: routing and combining against the scalar reference, shared by test_route.c and
 * test_emulated_rows.c. */
#ifndef IV_TESTS_CUDA_ROUTE_CASES_H
#define IV_TESTS_CUDA_ROUTE_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/ops.h"
#include "numerics/router.h"
#include "numerics/rows.h"

static size_t random_experts(rng *r) {
    static const size_t usual[] = {1, 2, 8, 60, 64, 128, 128, 200, 256, 300, 512};
    return usual[rng_below(r, sizeof usual / sizeof *usual)];
}

static size_t random_rows(rng *r) {
    static const size_t usual[] = {1, 1, 4, 31, 32, 33, 100, 500, 1200};
    return usual[rng_below(r, sizeof usual / sizeof *usual)];
}

static void want_routes(const iv_router *router, const float *logits, size_t stride, const float *correction,
                        size_t rows, int32_t *ids, float *weights) {
    size_t k = router->k;
    for (size_t row = 0; row < rows; row++) {
        int32_t *id = ids + row * k;
        float *w = weights + row * k;
        iv_ref_route_by(router, logits + row * stride, correction, id, w);
        for (size_t i = 1; i < k; i++)
            for (size_t j = i; j > 0 && id[j] < id[j - 1]; j--) {
                int32_t t = id[j];
                float u = w[j];
                id[j] = id[j - 1], w[j] = w[j - 1], id[j - 1] = t, w[j - 1] = u;
            }
    }
}

static void want_groups(const int32_t *ids, size_t rows, size_t experts, size_t k, int32_t *offsets, int32_t *slots) {
    size_t n = 0;
    for (size_t e = 0; e < experts; e++) {
        offsets[e] = (int32_t)n;
        for (size_t i = 0; i < rows * k; i++)
            if (ids[i] == (int32_t)e) slots[n++] = (int32_t)i;
    }
    offsets[experts] = (int32_t)n;
}

static void route_trial(rng *r, size_t experts, size_t rows) {
    size_t k = 1 + rng_below(r, experts < 9 ? experts : 8), most = experts < 64 ? experts : 64;
    if (rng_below(r, 5) == 0) k = 1 + rng_below(r, most);
    int32_t counted = (int32_t)(rng_below(r, 3) ? rows : rng_below(r, rows + 1));
    family f = rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES);
    bool ties = rng_below(r, 3) == 0;
    iv_router router = {.experts = experts, .k = k, .normalise = rng_below(r, 2), .scale = rng_below(r, 2) ? 1 : 2.5f};
    if (rng_below(r, 2)) router.least = 1e-6f;
    if (rng_below(r, 2)) router.score = IV_SCORE_SIGMOID;
    if (router.score == IV_SCORE_SIGMOID && experts % 4 == 0 && rng_below(r, 2)) {
        router.groups = experts % 8 == 0 && rng_below(r, 2) ? 8 : 4, router.chosen_groups = router.groups / 2;
        if (k > experts / 2) router.chosen_groups = router.groups;
    }
    size_t stride = experts + rng_below(r, 2);
    float *correction = random_values(r, NORMAL, IV_F32, experts), *weights = malloc(rows * k * sizeof *weights);
    float *logits = random_values(r, f, IV_F32, rows * stride);
    if (rng_below(r, 3) == 0) memset(correction, 0, experts * sizeof *correction);
    for (size_t i = 0; ties && i < rows * stride; i++) logits[i] = floorf(logits[i]) * (i % 2 ? 0.0f : -1.0f);
    int32_t *ids = malloc(rows * k * sizeof *ids), *offsets = malloc((experts + 1) * sizeof *offsets);
    int32_t *slots = malloc(rows * k * sizeof *slots);
    bool corrects = router.score == IV_SCORE_SIGMOID && rng_below(r, 2);
    want_routes(&router, logits, stride, corrects ? correction : NULL, rows, ids, weights);
    want_groups(ids, (size_t)counted, experts, k, offsets, slots);
    float *gpu_logits = gpu_copy(logits, rows * stride * sizeof *logits), *gpu_weights = gpu_room(rows * k * 4);
    float *gpu_correction = gpu_copy(correction, experts * sizeof *correction);
    int32_t *gpu_ids = gpu_room(rows * k * 4), *gpu_offsets = gpu_room((experts + 1) * 4),
            *gpu_slots = gpu_room(rows * k * 4);
    int32_t *gpu_counted = gpu_copy(&counted, sizeof counted);
    GPU_OK(iv_gpu_route(&(iv_gpu_route_args){.router = router,
                                             .logits = gpu_logits,
                                             .stride = stride,
                                             .correction = corrects ? gpu_correction : NULL,
                                             .rows = rows,
                                             .true_rows = gpu_counted,
                                             .ids = gpu_ids,
                                             .weights = gpu_weights,
                                             .offsets = gpu_offsets,
                                             .slots = gpu_slots},
                        NULL));
    assert_gpu_has("ids", ids, gpu_ids, rows * k, 4, false);
    assert_gpu_has("weights", weights, gpu_weights, rows * k, 4, true);
    assert_gpu_has("offsets", offsets, gpu_offsets, experts + 1, 4, false);
    assert_gpu_has("slots", slots, gpu_slots, (size_t)counted * k, 4, false);
    cudaFree(gpu_logits), cudaFree(gpu_weights), cudaFree(gpu_ids), cudaFree(gpu_offsets), cudaFree(gpu_slots);
    cudaFree(gpu_counted), cudaFree(gpu_correction), free(correction), free(logits), free(weights), free(ids),
        free(offsets), free(slots);
}

static void routes(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("routes");
    for (size_t trial = 0; trial < trials(150, 3000); trial++) route_trial(&r, random_experts(&r), random_rows(&r));
    route_trial(&r, 128, 16384);
}

static int by_value(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void random_ids(rng *r, size_t experts, size_t k, int32_t *ids) {
    for (size_t i = 0; i < k; i++)
        for (bool again = true; again;) {
            ids[i] = (int32_t)rng_below(r, experts), again = false;
            for (size_t j = 0; j < i; j++) again |= ids[j] == ids[i];
        }
    qsort(ids, k, sizeof *ids, by_value);
}

/* Returns how many elements another order of the same terms would change. */
static size_t combine_trial(rng *r) {
    size_t experts = random_experts(r), k = 1 + rng_below(r, experts < 12 ? experts : 12), rows = 1 + rng_below(r, 9),
           changed = 0;
    size_t hidden = rng_below(r, 3) ? 4 * (1 + rng_below(r, 600)) : 1 + rng_below(r, 300);
    if (rng_below(r, 6) == 0) k = 1 + rng_below(r, experts < 64 ? experts : 64);
    size_t ranks = 1 + rng_below(r, experts < 8 ? experts : 8), n = rows * k * hidden;
    int32_t *ids = malloc(rows * k * sizeof *ids), first[9] = {0};
    for (size_t i = 1; i <= ranks; i++) first[i] = (int32_t)(i * experts / ranks);
    for (size_t i = 0; i < rows; i++) random_ids(r, experts, k, ids + i * k);
    float *terms = random_values(r, (family)rng_below(r, FAMILIES), IV_F32, n), *own[8];
    float *x = random_values(r, NORMAL, IV_F32, rows * hidden), *want = malloc(rows * hidden * sizeof *want);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < hidden; i++) {
            float t[64], ahead = 0.0f;
            for (size_t e = 0; e < k; e++) t[e] = terms[(row * k + e) * hidden + i], ahead = e ? ahead + t[e] : t[e];
            float c = iv_ref_combine(ids + row * k, t, k);
            want[row * hidden + i] = iv_canonical(x[row * hidden + i] + c);
            changed += c == c && iv_bits(c) != iv_bits(ahead);
        }
    for (size_t rank = 0; rank < ranks; rank++) { /* terms of other ranks are undefined there */
        float *part = random_values(r, NORMAL, IV_F32, n);
        for (size_t i = 0; i < rows * k; i++)
            if (ids[i] >= first[rank] && ids[i] < first[rank + 1])
                memcpy(part + i * hidden, terms + i * hidden, hidden * sizeof *part);
        own[rank] = gpu_copy(part, n * sizeof *part);
        free(part);
    }
    int32_t *gpu_ids = gpu_copy(ids, rows * k * sizeof *ids);
    float *gpu_x = gpu_copy(x, rows * hidden * sizeof *x);
    GPU_OK(iv_gpu_combine((const float *const *)own, first, ranks, gpu_ids, rows, k, hidden, gpu_x, NULL));
    assert_gpu_has("combined", want, gpu_x, rows * hidden, 4, false);
    for (size_t rank = 0; rank < ranks; rank++) cudaFree(own[rank]);
    cudaFree(gpu_ids), cudaFree(gpu_x), free(ids), free(terms), free(x), free(want);
    return changed;
}

static void combinations(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("combinations");
    size_t changed = 0;
    for (size_t trial = 0; trial < trials(150, 3000); trial++) changed += combine_trial(&r);
    assert_true(changed > 0); /* the tree is not the plain sum: the comparison can fail */
}

/* Gathers the rows of a GPU's experts; memory around them is unchanged. */
static void pack_trial(rng *r) {
    size_t experts = random_experts(r), rows = random_rows(r) % 520 + 1,
           k = 1 + rng_below(r, experts < 9 ? experts : 8);
    size_t bytes = 16 * (1 + rng_below(r, rng_below(r, 3) ? 30 : 400)), entries = 0, n = rows * k;
    iv_gpu_groups g = {.experts = experts, .first = rng_below(r, experts), .experts_per_token = k};
    g.count = rng_below(r, experts - g.first + 1);
    int32_t *offsets = calloc(experts + 1, sizeof *offsets), *slots = calloc(n, sizeof *slots);
    for (size_t e = 0; e < experts; e++) { /* some are empty, some entries are missing */
        size_t more = rng_below(r, 2 * n / experts + 2), left = n - entries;
        for (size_t i = 0; i < (more < left ? more : left); i++) slots[entries++] = (int32_t)rng_below(r, n);
        offsets[e + 1] = (int32_t)entries;
    }
    unsigned char *x = random_values(r, NORMAL, IV_BF16, rows * bytes / 2);
    unsigned char *want = random_values(r, NORMAL, IV_BF16, n * bytes / 2);
    void *gpu_x = gpu_copy(x, rows * bytes), *out = gpu_copy(want, n * bytes);
    int32_t *gpu_offsets = gpu_copy(offsets, (experts + 1) * sizeof *offsets), *gpu_slots = gpu_copy(slots, n * 4);
    g.offsets = gpu_offsets, g.slots = gpu_slots;
    for (int32_t i = offsets[g.first]; i < offsets[g.first + g.count]; i++)
        memcpy(want + (size_t)i * bytes, x + (size_t)slots[i] / k * bytes, bytes);
    GPU_OK(iv_gpu_pack_rows(&g, rows, gpu_x, bytes, out, NULL));
    assert_gpu_has("packed rows", want, out, n * bytes / 2, 2, false);
    cudaFree(gpu_x), cudaFree(out), cudaFree(gpu_offsets), cudaFree(gpu_slots);
    free(offsets), free(slots), free(x), free(want);
}

static void packed_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("packed rows");
    for (size_t trial = 0; trial < trials(150, 3000); trial++) pack_trial(&r);
}

#endif
