/* The baselines are fair: their error against float64 is about that of the law, so comparisons show the order of sums
 * and not their accuracy. */
#include "ranks_runner.h"
#include "reference.h"
#include "baseline/ops.h"
#include "model/widen.h"

static double error_of(const char *dir, const reference *ref, iv_numerics numerics, iv_arithmetic arithmetic,
                       iv_dtype dtype, bool rounded) {
    runner r;
    iv_error err;
    iv_baseline *baseline = NULL;
    iv_model_options o = {.has_dtype = true, .dtype = dtype};
    runner_open(&r, dir, &o, arithmetic, iv_isa_detect(), 2);
    if (numerics != IV_INVAR) {
        ASSERT_OK(iv_baseline_open(numerics, r.state->compute.kernels, 2, &baseline, &err), &err);
        if (iv_baseline_widens(baseline)) ASSERT_OK(iv_model_widen(r.model, baseline, r.pool, &err), &err);
        r.state->compute.kernels = iv_baseline_kernels(baseline);
    }
    if (rounded) round_frequencies_to_bf16(r.model);
    float *logits = malloc(ref->tokens * ref->vocab * sizeof *logits);
    assert_non_null(logits);
    runner_step(&r, ref->ids, ref->tokens, logits);
    double e = relative_error(logits, ref->logits, ref->tokens * ref->vocab);
    runner_close(&r);
    iv_baseline_close(baseline);
    free(logits);
    return e;
}

/* rerouted: error limit of a model with experts if a token is routed to another expert; 0 without experts. */
static void about_equal(const char *dir, const char *file, bool rounded, double rerouted) {
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype dtype;
    } kinds[] = {{IV_FMA32, IV_BF16}, {IV_TC16, IV_BF16}, {IV_FMA32, IV_F16}, {IV_FMA32, IV_F32}};
    reference ref;
    iv_error err;
    iv_baseline *blas = NULL;
    bool has_blas = iv_baseline_open(IV_VANILLA_BLAS, iv_kernels_select(IV_ISA_SCALAR), 1, &blas, &err) == IV_OK;
    if (!has_blas) printf("SKIPPED: %s\n", err.message);
    iv_baseline_close(blas);
    reference_open(&ref, file);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        double law = error_of(dir, &ref, IV_INVAR, kinds[k].arithmetic, kinds[k].dtype, rounded);
        for (int n = IV_BIO; n <= IV_VANILLA_BLAS; n++) {
            if (n == IV_VANILLA_BLAS && (!has_blas || kinds[k].arithmetic != IV_FMA32)) continue;
            double e = error_of(dir, &ref, (iv_numerics)n, kinds[k].arithmetic, kinds[k].dtype, rounded);
            printf("%-12s %s %-8s relative error %.3g, invar %.3g: %s\n", strrchr(dir, '/') + 1,
                   kinds[k].arithmetic == IV_TC16 ? "tc16 " : "fma32", iv_dtype_name(kinds[k].dtype), e, law,
                   iv_numerics_name((iv_numerics)n));
            /* One chain of K rounds up to twice as far as eight leaves; a token routed to another expert on a
             * near tie causes an error of about the size of the values. */
            assert_true(e > 0.25 * law && e < (e > 10 * law ? rerouted : 4 * law));
            assert_true(e != law); /* a different order of sums */
        }
    }
    reference_close(&ref);
}

static void of_family(const char *name) {
    char dir[4096], file[4200];
    snprintf(dir, sizeof dir, "%s%s", source_path("tests/data/hf/"), name);
    snprintf(file, sizeof file, "%s/reference.safetensors", dir);
    about_equal(dir, file, true, strstr(name, "moe") ? 0.2 : 0);
}

static void qwen3(void **state) { (void)state, of_family("qwen3"); }
static void qwen2(void **state) { (void)state, of_family("qwen2"); }
static void llama31(void **state) { (void)state, of_family("llama31"); }
static void mistral(void **state) { (void)state, of_family("mistral_v03"); }
static void qwen3_moe(void **state) { (void)state, of_family("qwen3_moe"); }
static void tiny_math(void **state) {
    (void)state;
    about_equal(INVAR_SOURCE_DIR "/models/tiny-math", INVAR_SOURCE_DIR "/models/tiny-math/oracle.safetensors", false,
                0);
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

enum { TOKENS = 24 };

/* A prompt's logits on this number of ranks, whole or in chunks. */
static float *ranked(const char *dir, iv_numerics numerics, iv_dtype dtype, size_t ranks, size_t chunk, size_t *vocab) {
    ranks_runner r;
    rng g = {11};
    int32_t ids[TOKENS];
    ranks_open_as(&r, dir, numerics, dtype, IV_FMA32, ranks, 1);
    for (size_t i = 0; i < TOKENS; i++) ids[i] = (int32_t)rng_below(&g, r.vocab);
    float *logits = malloc(TOKENS * r.vocab * sizeof *logits);
    assert_non_null(logits);
    for (size_t at = 0; at < TOKENS; at += chunk) ranks_step(&r, ids + at, chunk, logits + at * r.vocab);
    *vocab = r.vocab;
    ranks_close(&r);
    return logits;
}

/* Bits depend on ranks and chunks as follows: neither in invar, ranks in bio, both in vanilla. */
static void across_ranks(const char *dir) {
    static const size_t ranks[] = {2, 3, 4, 8};
    for (int n = IV_INVAR; n <= IV_VANILLA; n++)
        for (iv_dtype dtype = IV_BF16; dtype <= IV_F32; dtype = (iv_dtype)(dtype + (IV_F32 - IV_BF16))) {
            size_t vocab, bytes, moved_ranks = 0, moved_chunks = 0;
            float *one = ranked(dir, (iv_numerics)n, dtype, 1, TOKENS, &vocab);
            bytes = TOKENS * vocab * sizeof *one;
            for (size_t i = 0; i < 4; i++) {
                float *whole = ranked(dir, (iv_numerics)n, dtype, ranks[i], TOKENS, &vocab),
                      *chunks = ranked(dir, (iv_numerics)n, dtype, ranks[i], 2, &vocab);
                bool same_ranks = memcmp(one, whole, bytes) == 0, same_chunks = memcmp(whole, chunks, bytes) == 0;
                double difference = 0, size = 0;
                for (size_t v = 0; v < TOKENS * vocab; v++)
                    difference += pow((double)whole[v] - (double)one[v], 2), size += pow((double)one[v], 2);
                printf("%-12s %-8s %-8s %zu ranks: %s one rank's bits, off by %.2g; chunks %s\n", strrchr(dir, '/') + 1,
                       iv_numerics_name((iv_numerics)n), iv_dtype_name(dtype), ranks[i], same_ranks ? "has" : "has not",
                       sqrt(difference / size), same_chunks ? "too" : "differ");
                moved_ranks += !same_ranks, moved_chunks += !same_chunks;
                assert_true(sqrt(difference / size) < 0.03); /* a different order, but the same model */
                free(whole), free(chunks);
            }
            /* Rounding to 16-bit activations may hide a difference in float32, so not every case differs. */
            size_t least = dtype == IV_F32 ? 4 : 1;
            assert_true(n == IV_INVAR ? moved_ranks == 0 : moved_ranks >= least);
            assert_true((moved_chunks > 0) == (n == IV_VANILLA)); /* not for every number of ranks: cuts may coincide */
            free(one);
        }
}

static void ranks_tiny_math(void **state) { (void)state, across_ranks(INVAR_SOURCE_DIR "/models/tiny-math"); }
static void ranks_qwen2(void **state) { (void)state, across_ranks(INVAR_SOURCE_DIR "/tests/data/hf/qwen2"); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen3),           cmocka_unit_test(qwen2),
                                       cmocka_unit_test(llama31),         cmocka_unit_test(mistral),
                                       cmocka_unit_test(qwen3_moe),       cmocka_unit_test(tiny_math),
                                       cmocka_unit_test(ranks_tiny_math), cmocka_unit_test(ranks_qwen2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
