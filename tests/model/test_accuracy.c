/* The five families against float64 logits of the same checkpoints, in every arithmetic and dtype that runs. */
#include "reference.h"

static double check(const char *dir, const reference *ref, iv_arithmetic arithmetic, const iv_dtype *dtype,
                    bool rounded, double limit) {
    runner r;
    iv_model_options o = {.has_dtype = dtype != NULL, .dtype = dtype ? *dtype : IV_BF16};
    runner_open(&r, dir, &o, arithmetic, iv_isa_detect(), 2);
    assert_int_equal(r.model->config.vocab_size, ref->vocab);
    if (rounded) round_frequencies_to_bf16(r.model);
    float *logits = malloc(ref->tokens * ref->vocab * sizeof *logits);
    double worst = 0;
    for (size_t s = 0; s < ref->sequences; s++) {
        runner_reset(&r);
        runner_step(&r, ref->ids + s * ref->tokens, ref->tokens, logits);
        double e = relative_error(logits, ref->logits + s * ref->tokens * ref->vocab, ref->tokens * ref->vocab);
        if (e > worst) worst = e;
    }
    printf("%-40s %s %-8s relative error %.6f\n", strrchr(dir, '/') + 1, arithmetic == IV_TC16 ? "tc16 " : "fma32",
           iv_dtype_name(r.model->gemm_type), worst);
    assert_true(worst < limit);
    runner_close(&r);
    free(logits);
    return worst;
}

static void all_types(const char *dir, const char *reference_file, bool rounded, double limit) {
    reference ref;
    const iv_dtype f16 = IV_F16, f32 = IV_F32;
    reference_open(&ref, reference_file);
    double bf16 = check(dir, &ref, IV_FMA32, NULL, rounded, limit);
    check(dir, &ref, IV_TC16, NULL, rounded, limit);
    double half = check(dir, &ref, IV_FMA32, &f16, rounded, limit);
    check(dir, &ref, IV_TC16, &f16, rounded, limit);
    double full = check(dir, &ref, IV_FMA32, &f32, rounded, limit);
    assert_true(half < bf16 && full < half); /* more bits, less error: the types are in effect */
    assert_true(full < 2e-5);
    reference_close(&ref);
}

/* The users' configuration: double frequencies. */
static void check_plain(const char *dir, const char *file, double limit) {
    reference ref;
    reference_open(&ref, file);
    printf("with double frequencies: ");
    check(dir, &ref, IV_FMA32, NULL, false, limit);
    printf("with double frequencies: ");
    check(dir, &ref, IV_TC16, NULL, false, limit);
    printf("with the reference's bf16 frequencies:\n");
    reference_close(&ref);
}

static void one_family(const char *name, double limit) {
    char dir[4096], file[4200];
    snprintf(dir, sizeof dir, "%s", source_path("tests/data/hf/"));
    strcat(dir, name);
    snprintf(file, sizeof file, "%s/reference.safetensors", dir);
    check_plain(dir, file, limit);
    all_types(dir, file, true, limit);
}

static void qwen3(void **state) { (void)state, one_family("qwen3", 0.04); }
static void llama31(void **state) { (void)state, one_family("llama31", 0.04); }
static void mistral(void **state) { (void)state, one_family("mistral_v03", 0.04); }
static void qwen2(void **state) { (void)state, one_family("qwen2", 0.04); }
static void qwen3_moe(void **state) { (void)state, one_family("qwen3_moe", 0.2); }

static void tiny_math(void **state) {
    (void)state;
    char dir[4096], file[4200];
    snprintf(dir, sizeof dir, "%s", source_path("models/tiny-math"));
    snprintf(file, sizeof file, "%s/oracle.safetensors", dir);
    all_types(dir, file, false, 0.04);
}

static void stories15m(void **state) {
    (void)state;
    const char *path = shared_path("models/stories15m");
    SKIP_WITHOUT(path, "models/stories15m");
    char dir[4096], file[4200];
    snprintf(dir, sizeof dir, "%s", path);
    snprintf(file, sizeof file, "%s/oracle.safetensors", dir);
    all_types(dir, file, false, 0.04);
}

/* ---- greedy continuations ------------------------------------------------------------------------------ */

/* Logits after each of the reference's greedy ids (teacher forcing). */
static float *follow(const char *dir, const reference *ref, iv_arithmetic arithmetic, iv_dtype dtype, bool rounded) {
    runner r;
    iv_model_options o = {.has_dtype = true, .dtype = dtype};
    runner_open(&r, dir, &o, arithmetic, iv_isa_detect(), 2);
    if (rounded) round_frequencies_to_bf16(r.model);
    float *logits = malloc(ref->greedy_count * ref->vocab * sizeof *logits);
    assert_non_null(logits);
    runner_step(&r, ref->greedy, ref->greedy_count, logits);
    runner_close(&r);
    return logits;
}

/* The largest logit except that of `id`. */
static size_t best_but(const float *x, size_t n, size_t id) {
    size_t best = id == 0;
    for (size_t i = 0; i < n; i++)
        if (i != id && x[i] > x[best]) best = i;
    return best;
}

/* Our greedy choices must be the float64 model's, in float32 always. In the 16-bit types a few may differ where
 * float32's margin between the two tokens is below the type's error; each is printed. */
static void greedy_ids(const char *dir, const char *file, size_t prompt, bool rounded, double limit) {
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype dtype;
        const char *name;
    } kinds[] = {{IV_FMA32, IV_BF16, "fma32 bfloat16"},
                 {IV_TC16, IV_BF16, "tc16 bfloat16"},
                 {IV_FMA32, IV_F16, "fma32 float16"},
                 {IV_TC16, IV_F16, "tc16 float16"}};
    reference ref;
    reference_open(&ref, file);
    if (prompt == 0) prompt = ref.tokens;
    const char *model = strrchr(dir, '/') + 1;
    float *exact = follow(dir, &ref, IV_FMA32, IV_F32, rounded);
    for (size_t i = prompt; i < ref.greedy_count; i++) {
        const float *row = exact + (i - 1) * ref.vocab;
        size_t want = (size_t)ref.greedy[i], other = best_but(row, ref.vocab, want);
        if (!(row[want] > row[other])) fail_msg("%s: float32: token %zu: wanted %zu, got %zu", model, i, want, other);
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        float *logits = follow(dir, &ref, kinds[k].arithmetic, kinds[k].dtype, rounded);
        size_t exceptions = 0;
        for (size_t i = prompt; i < ref.greedy_count; i++) {
            const float *row = logits + (i - 1) * ref.vocab, *sure = exact + (i - 1) * ref.vocab;
            size_t want = (size_t)ref.greedy[i], got = best_but(row, ref.vocab, want);
            if (row[want] > row[got]) continue;
            double size = 0, margin = (double)sure[want] - (double)sure[got];
            for (size_t v = 0; v < ref.vocab; v++) size += (double)sure[v] * (double)sure[v];
            size = sqrt(size / (double)ref.vocab);
            printf("%s: %s: token %zu: %zu and not %zu, whose margin is %.5f of logits of %.3f\n", model, kinds[k].name,
                   i, got, want, margin, size);
            assert_true(margin < 2 * limit * size);
            exceptions++;
        }
        printf("%-16s %s: %zu greedy tokens, %zu exceptions\n", model, kinds[k].name, ref.greedy_count - prompt,
               exceptions);
        assert_true(exceptions * 10 <= ref.greedy_count - prompt);
        free(logits);
    }
    free(exact);
    reference_close(&ref);
}

static void family_greedy(const char *name, double limit) {
    char dir[4096], file[4200];
    snprintf(dir, sizeof dir, "%s%s", source_path("tests/data/hf/"), name);
    snprintf(file, sizeof file, "%s/reference.safetensors", dir);
    greedy_ids(dir, file, 16, true, limit);
}

static void greedy_families(void **state) {
    (void)state;
    family_greedy("qwen3", 0.04), family_greedy("llama31", 0.04), family_greedy("mistral_v03", 0.04);
    family_greedy("qwen2", 0.04), family_greedy("qwen3_moe", 0.2);
}

static void greedy_tiny_math(void **state) {
    (void)state;
    greedy_ids(INVAR_SOURCE_DIR "/models/tiny-math", INVAR_SOURCE_DIR "/models/tiny-math/oracle.safetensors", 0, false,
               0.04);
}

static void greedy_stories15m(void **state) {
    (void)state;
    const char *path = shared_path("models/stories15m");
    SKIP_WITHOUT(path, "models/stories15m");
    char dir[4096], file[4200];
    snprintf(dir, sizeof dir, "%s", path);
    snprintf(file, sizeof file, "%s/oracle.safetensors", dir);
    greedy_ids(dir, file, 0, false, 0.04);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen3),
                                       cmocka_unit_test(llama31),
                                       cmocka_unit_test(mistral),
                                       cmocka_unit_test(qwen2),
                                       cmocka_unit_test(qwen3_moe),
                                       cmocka_unit_test(tiny_math),
                                       cmocka_unit_test(stories15m),
                                       cmocka_unit_test(greedy_families),
                                       cmocka_unit_test(greedy_tiny_math),
                                       cmocka_unit_test(greedy_stories15m)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
