/* Whole-logit digests: every thread count, instruction set and chunking must match the recorded digest of its
 * model, arithmetic and dtype. `INVAR_RECORD=1` prints the lines to record instead (a change of them is a change
 * of the law: NUMERICS.md, section 12). The same file holds for every compiler and optimisation level.
 * `INVAR_TEST_MODEL=NAME` checks that model alone. */
#include "runner.h"
#include "base/digest.h"
#include "base/file.h"

enum { TOKENS = 66 }; /* reaches a second block of attention */

static const char *const models[] = {"tests/data/hf/qwen3",       "tests/data/hf/qwen2",     "tests/data/hf/llama31",
                                     "tests/data/hf/mistral_v03", "tests/data/hf/qwen3_moe", "models/tiny-math"};
static const struct {
    iv_arithmetic arithmetic;
    iv_dtype dtype;
    const char *name;
    int terms;
} kinds[] = {{IV_FMA32, IV_BF16, "fma32-bfloat16", 0},   {IV_FMA32, IV_F16, "fma32-float16", 0},
             {IV_FMA32, IV_F32, "fma32-float32", 0},     {IV_TC16, IV_BF16, "tc16-bfloat16", 0},
             {IV_TC16, IV_F16, "tc16-float16", 0},       {IV_FMA32, IV_BF16, "i8+fma32-bfloat16", 1},
             {IV_FMA32, IV_F32, "i8+fma32-float32", 1},  {IV_TC16, IV_BF16, "i8x2+tc16-bfloat16", 2},
             {IV_FMA32, IV_F16, "i8x2+fma32-float16", 2}};
static const struct { size_t threads, chunk; } ways[] = {{1, TOKENS}, {2, 7}, {3, 33}, {7, 1}};

enum {
    MODELS = sizeof models / sizeof *models,
    KINDS = sizeof kinds / sizeof *kinds,
    WAYS = sizeof ways / sizeof *ways
};

static bool wanted(size_t model) {
    const char *only = getenv("INVAR_TEST_MODEL");
    return !only || strcmp(models[model] + strlen(models[model]) - strnlen(only, strlen(models[model])), only) == 0;
}

/* tiny-math is ten times the others: a prefix is enough there. */
static size_t tokens_of(size_t model) { return strstr(models[model], "tiny") ? 6 : TOKENS; }

static void digest_of(size_t model, size_t kind, iv_isa isa, size_t threads, size_t chunk, char hex[65]) {
    runner r;
    iv_model_options o = {.has_dtype = true, .dtype = kinds[kind].dtype, .terms = kinds[kind].terms};
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path(models[model]));
    runner_open(&r, dir, &o, kinds[kind].arithmetic, isa, threads);
    size_t vocab = (size_t)r.model->config.vocab_size, n = tokens_of(model);
    int32_t ids[TOKENS];
    rng g = {42};
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&g, vocab);
    float *logits = malloc(n * vocab * sizeof *logits);
    for (size_t at = 0; at < n; at += chunk) {
        size_t take = n - at < chunk ? n - at : chunk;
        runner_step(&r, ids + at, take, logits + at * vocab);
    }
    uint8_t d[32];
    iv_digest_of(logits, n * vocab * sizeof *logits, d);
    iv_digest_hex(d, hex);
    free(logits);
    runner_close(&r);
}

static void record(void) {
    for (size_t m = 0; m < MODELS; m++)
        for (size_t k = 0; k < KINDS; k++) {
            char hex[65];
            digest_of(m, k, IV_ISA_SCALAR, 1, TOKENS, hex);
            printf("RECORD %s %s %s\n", models[m], kinds[k].name, hex);
        }
}

/* The recorded digest of "model kind", or NULL. */
static const char *recorded(const char *text, size_t m, size_t k) {
    char key[200];
    snprintf(key, sizeof key, "%s %s ", models[m], kinds[k].name);
    const char *line = strstr(text, key);
    return line ? line + strlen(key) : NULL;
}

static void every_way_meets_the_recorded_digest(void **state) {
    (void)state;
    iv_buf file = {0};
    iv_error err;
    if (getenv("INVAR_RECORD")) {
        record();
        skip();
    }
    ASSERT_OK(iv_file_read(source_path("tests/data/golden_digests.txt"), 1 << 16, &file, &err), &err);
    size_t met = 0, digests = 0;
    for (size_t m = 0; m < MODELS; m++)
        for (size_t k = 0; k < KINDS && wanted(m); k++) {
            digests++;
            const char *want = recorded(file.data, m, k);
            assert_non_null(want);
            for (int isa = 0; isa <= (int)iv_isa_detect(); isa++)
                for (size_t w = 0; w < WAYS; w++) {
                    if (isa == IV_ISA_SCALAR && w % 3 != 0 && !getenv("INVAR_TEST_LONG"))
                        continue; /* slow: 2 of 4 variants */
                    met++;
                    char hex[65];
                    digest_of(m, k, (iv_isa)isa, ways[w].threads, ways[w].chunk, hex);
                    if (strncmp(hex, want, 64) != 0)
                        fail_msg("%s %s on %s, %zu threads, chunks of %zu: wanted %.64s, got %s", models[m],
                                 kinds[k].name, iv_isa_name((iv_isa)isa), ways[w].threads, ways[w].chunk, want, hex);
                }
        }
    for (int isa = (int)iv_isa_detect() + 1; isa < IV_ISA_COUNT; isa++)
        printf("SKIPPED: this CPU has no %s\n", iv_isa_name((iv_isa)isa));
    printf("golden: %zu runs matched %zu digests\n", met, digests);
    assert_true(digests > 0);
    iv_buf_free(&file);
}

/* Negative control: each arithmetic and dtype has a different digest. */
static void control_kinds_differ(void **state) {
    (void)state;
    char hex[KINDS][65];
    for (size_t k = 0; k < KINDS; k++) digest_of(0, k, iv_isa_detect(), 1, TOKENS, hex[k]);
    for (size_t a = 0; a < KINDS; a++)
        for (size_t b = 0; b < a; b++) assert_string_not_equal(hex[a], hex[b]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_way_meets_the_recorded_digest),
                                       cmocka_unit_test(control_kinds_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
