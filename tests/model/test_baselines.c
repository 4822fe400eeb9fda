/* The baselines are honest: about as far from float64 as the law is, so that what is compared is the order of sums
 * and not their quality. */
#include "reference.h"
#include "kernels/blas.h"
#include "model/widen.h"

static double error_of(const char *dir, const reference *ref, iv_numerics numerics, iv_arithmetic arithmetic,
                       iv_dtype dtype, bool rounded) {
    runner r;
    iv_error err;
    iv_blas *blas = NULL;
    iv_model_options o = {.has_dtype = true, .dtype = dtype};
    runner_open(&r, dir, &o, arithmetic, iv_isa_detect(), 2);
    if (numerics == IV_VANILLA_BLAS) {
        ASSERT_OK(iv_blas_open(2, &blas, &err), &err);
        ASSERT_OK(iv_model_widen(r.model, r.pool, &err), &err);
    }
    r.state->compute.numerics = numerics, r.state->compute.blas = blas;
    if (rounded) round_frequencies_to_bf16(r.model);
    float *logits = malloc(ref->tokens * ref->vocab * sizeof *logits);
    assert_non_null(logits);
    runner_step(&r, ref->ids, ref->tokens, logits);
    double e = relative_error(logits, ref->logits, ref->tokens * ref->vocab);
    runner_close(&r);
    iv_blas_close(blas);
    free(logits);
    return e;
}

/* rerouted: what a model with experts may be off by when the sums choose another expert; 0 without experts. */
static void about_equal(const char *dir, const char *file, bool rounded, double rerouted) {
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype dtype;
    } kinds[] = {{IV_FMA32, IV_BF16}, {IV_TC16, IV_BF16}, {IV_FMA32, IV_F16}, {IV_FMA32, IV_F32}};
    reference ref;
    iv_error err;
    iv_blas *blas = NULL;
    bool has_blas = iv_blas_open(1, &blas, &err) == IV_OK;
    if (!has_blas) printf("SKIPPED: %s\n", err.message);
    iv_blas_close(blas);
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
             * near tie is an error of its own size. */
            assert_true(e > 0.25 * law && e < (e > 10 * law ? rerouted : 4 * law));
            assert_true(e != law); /* it is another order of sums */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen3),     cmocka_unit_test(qwen2),
                                       cmocka_unit_test(llama31),   cmocka_unit_test(mistral),
                                       cmocka_unit_test(qwen3_moe), cmocka_unit_test(tiny_math)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
