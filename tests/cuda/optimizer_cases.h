/* optimizer_cases.h: the optimizer's ops against the scalar reference, shared by test_optimizer.c and
 * test_emulated_optimizer.c. */
#ifndef IV_TESTS_CUDA_OPTIMIZER_CASES_H
#define IV_TESTS_CUDA_OPTIMIZER_CASES_H

#include "base/digest.h"
#include "cuda/on_gpu.h"
#include "kernels/cuda/learn.h"
#include "train/flat/optimizer.h"

static const iv_dtype types[3] = {IV_BF16, IV_F16, IV_F32};
enum { BLOCK = IV_OPTIMIZER_BLOCK };

/* Another family for each block, so that a row has large, subnormal and special values side by side. */
static float *random_row(rng *r, size_t n, bool finite) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    family f = NORMAL;
    for (size_t i = 0; i < n; i++) {
        if (i % 512 == 0) f = (family)rng_below(r, FAMILIES);
        x[i] = random_float(r, f);
        if (finite && !isfinite(x[i])) x[i] = 0.0f;
    }
    return x;
}

/* ---- sums of squares ------------------------------------------------------------------------------------------- */

static void sums_of_blocks(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("block sums");
    size_t other_order = 0;
    for (size_t trial = 0; trial < trials(60, 600); trial++) {
        size_t blocks = trial % 10 == 9 ? 1 + rng_below(&r, 200) : 1 + rng_below(&r, 20), n = blocks * BLOCK;
        float *g = random_row(&r, n, trial % 2), *gpu_g = gpu_copy(g, n * sizeof *g);
        double *gpu_sums = gpu_room(blocks * sizeof *gpu_sums);
        GPU_OK(iv_gpu_block_sums(gpu_g, n, gpu_sums, NULL));
        double *got = host_copy(gpu_sums, blocks * sizeof *got);
        for (size_t b = 0; b < blocks; b++) {
            double want = iv_ref_sum_squares(g + b * BLOCK, BLOCK), plain = 0.0;
            for (size_t i = 0; i < BLOCK; i++) plain += (double)g[b * BLOCK + i] * (double)g[b * BLOCK + i];
            other_order += isfinite(want) && plain != want;
            if (memcmp(&want, &got[b], sizeof want) != 0 && !(isnan(want) && isnan(got[b])))
                fail_msg("block %zu of %zu: wanted %a, got %a", b, blocks, want, got[b]);
        }
        cudaFree(gpu_g), cudaFree(gpu_sums), free(g), free(got);
    }
    assert_true(other_order > 0); /* one lane instead of eight differs: the comparison can fail */
    assert_int_equal(iv_gpu_block_sums(NULL, BLOCK + 1, NULL, NULL), cudaErrorInvalidValue);
}

/* ---- AdamW ------------------------------------------------------------------------------------------------------- */

static iv_adamw_step random_step(rng *r) {
    static const double betas[] = {0.0, 0.5, 0.9, 0.95, 0.999}, epsilons[] = {1e-8, 1e-6, 1e-30, 1e-3};
    iv_adamw_options o = {.beta1 = betas[rng_below(r, 5)],
                          .beta2 = betas[rng_below(r, 5)],
                          .eps = epsilons[rng_below(r, 4)],
                          .weight_decay = rng_below(r, 2) ? 0.1 : 0.0};
    float scale = rng_below(r, 3) ? ldexpf(1.0f + (float)rng_below(r, 1000) * 0x1p-10f, -(int)rng_below(r, 30)) : 1.0f;
    return iv_adamw_constants(&o, ldexp(1.0, -(int)rng_below(r, 20)), 1 + rng_below(r, 1000), scale);
}

/* The same with the division as a product by the reciprocal: the control. */
static float other_weight(const iv_adamw_step *s, float w, float m, float v) {
    float d = sqrtf(v) * s->c2 + s->eps;
    return w - s->c1 * (m * (1.0f / d));
}

static void adamw_steps(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("adamw");
    size_t others = 0, decayed = 0, kept = 0, subnormal = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t blocks = trial % 10 == 9 ? 1 + rng_below(&r, 100) : 1 + rng_below(&r, 6), n = blocks * BLOCK;
        bool finite = trial % 4 != 0, *decays = malloc(blocks * sizeof *decays);
        float *w = random_row(&r, n, finite), *m = random_row(&r, n, finite), *v = random_row(&r, n, finite);
        float *gpu_w = gpu_copy(w, n * 4), *gpu_m = NULL, *gpu_v = NULL;
        for (size_t b = 0; b < blocks; b++) decays[b] = rng_below(&r, 2);
        for (size_t i = 0; i < n; i++) {
            if (finite || rng_below(&r, 4)) v[i] = fabsf(v[i]); /* as it always is; a negative one gives NaN */
            if (trial == 1) m[i] = v[i] = 0.0f;                 /* the first step */
        }
        gpu_m = gpu_copy(m, n * 4), gpu_v = gpu_copy(v, n * 4);
        bool *gpu_decays = gpu_copy(decays, blocks * sizeof *decays);
        for (int turn = 0; turn < 3; turn++) { /* each from the results of the one before */
            iv_adamw_step s = random_step(&r);
            float *g = random_row(&r, n, finite), *gpu_g = gpu_copy(g, n * 4), *before = malloc(n * 4);
            memcpy(before, w, n * 4);
            GPU_OK(iv_gpu_adamw(&s, gpu_decays, gpu_g, gpu_w, gpu_m, gpu_v, n, NULL));
            for (size_t b = 0; b < blocks; b++) {
                size_t at = b * BLOCK;
                iv_ref_adamw(&s, decays[b], g + at, w + at, m + at, v + at, BLOCK);
                bool decay = decays[b] && s.k != 0.0f;
                decayed += decay, kept += !decay;
                for (size_t i = at; i < at + BLOCK; i++) {
                    others += !decay && isfinite(w[i]) && other_weight(&s, before[i], m[i], v[i]) != w[i];
                    subnormal += fpclassify(m[i]) == FP_SUBNORMAL || fpclassify(v[i]) == FP_SUBNORMAL;
                }
            }
            assert_gpu_has("m", m, gpu_m, n, 4, false);
            assert_gpu_has("v", v, gpu_v, n, 4, false);
            assert_gpu_has("w", w, gpu_w, n, 4, false);
            cudaFree(gpu_g), free(g), free(before);
        }
        cudaFree(gpu_w), cudaFree(gpu_m), cudaFree(gpu_v), cudaFree(gpu_decays);
        free(w), free(m), free(v), free(decays);
    }
    printf("blocks with decay %zu, without %zu; subnormal moments %zu; %zu weights differ if the division is a "
           "product by the reciprocal\n",
           decayed, kept, subnormal, others);
    assert_true(others > 0 && decayed > 0 && kept > 0 && subnormal > 0);
    iv_adamw_step s = random_step(&r);
    assert_int_equal(iv_gpu_adamw(&s, NULL, NULL, NULL, NULL, NULL, 100, NULL), cudaErrorInvalidValue);
}

/* ---- sums, rows of matrices, values that are too large
 * ------------------------------------------------------------------ */

static void added_sums(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("added sums");
    for (size_t trial = 0; trial < trials(60, 600); trial++) {
        size_t n = rng_below(&r, trial % 10 == 9 ? 100000 : 9000), skew = trial % 3 == 0 ? rng_below(&r, 4) : 0;
        float *a = random_row(&r, n + skew, false), *b = random_row(&r, n, false);
        float *gpu_a = gpu_copy(a, (n + skew) * 4), *gpu_b = gpu_copy(b, n * 4);
        GPU_OK(iv_gpu_add_sums(gpu_a + skew, gpu_b, n, NULL));
        for (size_t i = 0; i < n; i++) a[skew + i] = a[skew + i] + b[i];
        assert_gpu_has("sum", a, gpu_a, n + skew, 4, true);
        cudaFree(gpu_a), cudaFree(gpu_b), free(a), free(b);
    }
}

static void written_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("rows of matrices");
    static const size_t usual[] = {1, 2, 15, 16, 64, 100, 256, 1000, 1024, 2048, 2056, 3000};
    for (size_t trial = 0; trial < trials(60, 600); trial++) {
        size_t k = usual[rng_below(&r, sizeof usual / sizeof *usual)], count = 1 + rng_below(&r, 40);
        size_t k_padded = iv_padded_k(k) + 16 * rng_below(&r, 2), n = count * k + 8 + rng_below(&r, 5000);
        iv_dtype type = types[trial % 3];
        size_t width = iv_dtype_bytes(type), places = 2 * count + 3, bytes = places * k_padded * width;
        float *master = random_row(&r, n, false);
        iv_gpu_packed_row *rows = malloc(count * sizeof *rows);
        unsigned char *want = malloc(bytes);
        memset(want, 0xa5, bytes);           /* as gpu_room: rows between those written stay */
        for (size_t i = 0; i < count; i++) { /* from any place; aligned in half of the trials */
            size_t from = rng_below(&r, n - k + 1), to = 2 * (count - 1 - i) + rng_below(&r, 2);
            if (trial % 2) from = from / 4 * 4;
            rows[i] = (iv_gpu_packed_row){(int64_t)from, (int64_t)(to * k_padded * width)};
            for (size_t j = 0; j < k_padded; j++)
                put_type(type, want, to * k_padded + j, j < k ? iv_canonical(master[from + j]) : 0.0f);
        }
        float *gpu_master = gpu_copy(master, n * 4);
        iv_gpu_packed_row *gpu_rows = gpu_copy(rows, count * sizeof *rows);
        void *out = gpu_room(bytes);
        GPU_OK(iv_gpu_write_rows(type, gpu_master, gpu_rows, count, k, k_padded, out, NULL));
        assert_gpu_has("rows", want, out, places * k_padded, width, false);
        cudaFree(gpu_master), cudaFree(gpu_rows), cudaFree(out), free(master), free(rows), free(want);
    }
    assert_int_equal(iv_gpu_write_rows(IV_BF16, NULL, NULL, 1, 17, 16, NULL, NULL), cudaErrorInvalidValue);
}

static void search_trial(rng *r, size_t n, size_t bad, size_t skew) {
    static const uint32_t values[] = {0x7f800000u, 0xff800000u, 0x7fffffffu, 0x7f800001u, 0xffc12345u};
    float *x = random_row(r, n + skew, true), *gpu_x;
    uint64_t want = UINT64_MAX, *at = gpu_room(sizeof *at);
    for (size_t i = 0; i < bad && n; i++) {
        size_t place = rng_below(r, n);
        x[skew + place] = iv_float(values[rng_below(r, 5)]);
        want = place < want ? place : want;
    }
    gpu_x = gpu_copy(x, (n + skew) * 4);
    for (int turn = 0; turn < 2; turn++) { /* then of values that become an infinity in f16 */
        float limit = 65520.0f;
        if (turn == 0)
            GPU_OK(iv_gpu_find_not_finite(gpu_x + skew, n, at, NULL));
        else
            GPU_OK(iv_gpu_find_beyond(gpu_x + skew, n, limit, at, NULL));
        for (size_t i = 0; turn && i < n && i < want; i++)
            if (fabsf(x[skew + i]) >= limit) want = i;
        uint64_t *got = host_copy(at, sizeof *got);
        if (*got != want)
            fail_msg("%zu values: wanted %llu, got %llu", n, (unsigned long long)want, (unsigned long long)*got);
        free(got);
    }
    cudaFree(gpu_x), cudaFree(at), free(x);
}

static void searches(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("searches");
    search_trial(&r, 0, 0, 0);
    search_trial(&r, BLOCK, 0, 0);
    for (size_t trial = 0; trial < trials(80, 800); trial++)
        search_trial(&r, trial % 4 ? rng_below(&r, 20000) : BLOCK * (1 + rng_below(&r, 4)), rng_below(&r, 4),
                     trial % 3 == 0 ? rng_below(&r, 4) : 0);
#ifdef LARGE_ROWS /* more than the threads of a launch take in one batch */
    for (size_t trial = 0; trial < 6; trial++) search_trial(&r, 9000000 + rng_below(&r, 20000000), trial / 2, 0);
#endif
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

/* Compares all digests; returns how many differ. */
static size_t digest_differences(const float *w, size_t n, size_t group, float *gpu_w) {
    size_t groups = (n + group - 1) / group, bad = 0;
    uint8_t *gpu_digests = gpu_room(groups * 32), want[32];
    GPU_OK(iv_gpu_digests(gpu_w, n, group, gpu_digests, NULL));
    uint8_t *got = host_copy(gpu_digests, groups * 32);
    for (size_t i = 0; i < groups; i++) {
        size_t count = n - i * group < group ? n - i * group : group;
        iv_digest_of(w + i * group, count * sizeof *w, want);
        bad += memcmp(want, got + i * 32, 32) != 0;
    }
    cudaFree(gpu_digests), free(got);
    return bad;
}

static void digest_trial(rng *r, size_t n, size_t group) {
    float *w = random_row(r, n, false), *gpu_w = gpu_copy(w, n * sizeof *w);
    size_t bad = digest_differences(w, n, group, gpu_w);
    if (bad) fail_msg("%zu weights in groups of %zu: %zu digests differ", n, group, bad);
    size_t at = rng_below(r, n);
    w[at] = iv_float(iv_bits(w[at]) ^ 1u << rng_below(r, 32));
    assert_int_equal(digest_differences(w, n, group, gpu_w), 1); /* the control: one bit, one digest */
    cudaFree(gpu_w), free(w);
}

static void digests(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("digests");
    static const size_t small[] = {16, 32, 48, 80, 112, 1024, BLOCK};
    digest_trial(&r, 3 * (size_t)IV_WEIGHT_GROUP + 5 * BLOCK, IV_WEIGHT_GROUP);
    digest_trial(&r, IV_WEIGHT_GROUP, IV_WEIGHT_GROUP);
    digest_trial(&r, BLOCK, IV_WEIGHT_GROUP);
    for (size_t n = 1; n <= 100; n++) digest_trial(&r, n, 112); /* every place of the end in the last blocks */
    for (size_t trial = 0; trial < trials(40, 400); trial++) {
        size_t group = small[rng_below(&r, sizeof small / sizeof *small)],
               most = group * 80 < 60000 ? group * 80 : 60000;
        digest_trial(&r, 1 + rng_below(&r, most), group);
    }
    assert_int_equal(iv_gpu_digests(NULL, 100, 17, NULL, NULL), cudaErrorInvalidValue);
#ifdef LARGE_ROWS
    digest_trial(&r, 150 * (size_t)IV_WEIGHT_GROUP + 3 * BLOCK, IV_WEIGHT_GROUP);
#endif
}

#endif
