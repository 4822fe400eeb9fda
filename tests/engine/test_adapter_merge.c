/* Adapters that are merged into a copy of the model: its answers are near those of the model next to the adapter, its
 * weights are its own, and what cannot be merged is refused. */
#include "client.h"
#include "invar_model.h"
#include "train/checkpoint/files.h"
#include "format/scratch.h"

#include <math.h>

enum { TOKENS = 12 };
static const int32_t ids[TOKENS] = {3, 17, 29, 5, 40, 11, 90, 2, 7, 8, 8, 61};

static const char *path_of(const char *below) {
    static char path[8][400];
    static size_t next;
    char *out = path[next++ % 8];
    snprintf(out, sizeof path[0], "%s/tests/data/%s", INVAR_SOURCE_DIR, below);
    return out;
}

/* Logits in float32, and the digest of the weights. */
static void logits_of(const char *model, const char *adapter, float *logits, char digest[80]) {
    iv_engine_options o = small_options();
    iv_engine_info info;
    iv_error err;
    o.model = model, o.max_model_len = 128, o.dtype = "float32", o.max_loras = adapter ? 1 : 0;
    iv_engine *e = open_with(&o);
    if (adapter) ASSERT_OK(iv_engine_load_adapter(e, "a", adapter, &err), &err);
    ASSERT_OK(iv_engine_logits_with(e, adapter ? "a" : NULL, ids, TOKENS, logits, &err), &err);
    iv_engine_get_info(e, &info);
    snprintf(digest, 80, "%s", info.weights_digest);
    iv_engine_close(e);
}

static double apart(const float *a, const float *b, size_t n) {
    double most = 0, size = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - b[i])), size = fmax(size, fabs((double)b[i]));
    return most / size;
}

static void merged_models_answer_as_adapters_do(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"adapters/qwen3", "hf/qwen3"},
                                           {"adapters/qwen3_moe", "hf/qwen3_moe"},
                                           {"adapters/phi3", "families/phi3_a"},
                                           {"adapters/lfm2", "families/lfm2_a"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        static float want[TOKENS * 512], got[TOKENS * 512], base[TOKENS * 512];
        char digest[80], other[80], out[600];
        iv_error err;
        scratch dir;
        scratch_open(&dir);
        snprintf(out, sizeof out, "%s/merged", dir.dir);
        iv_export_options o;
        iv_export_info info;
        iv_export_options_init(&o);
        o.dtype = "float32", o.lora = path_of(cases[c][0]), o.threads = 1;
        ASSERT_OK(iv_export(path_of(cases[c][1]), out, &o, &info, &err), &err);
        logits_of(path_of(cases[c][1]), path_of(cases[c][0]), want, digest);
        logits_of(path_of(cases[c][1]), NULL, base, digest);
        logits_of(out, NULL, got, other);
        size_t n = TOKENS * 300; /* of a vocabulary of 300 at least */
        printf("%s: %.2g from the adapter, %.2g from the base\n", cases[c][0], apart(got, want, n),
               apart(base, want, n));
        assert_true(apart(got, want, n) < 5e-6 && apart(base, want, n) > 0.05);
        assert_string_equal(other, info.weights_digest + strlen("sha256:"));
        assert_string_not_equal(other, digest);
        ASSERT_OK(iv_training_remove_tree(dir.dir, &err), &err);
    }
}

static void what_cannot_be_merged_is_refused(void **state) {
    (void)state;
    iv_error err;
    iv_export_info info;
    iv_export_options o;
    scratch dir;
    scratch_open(&dir);
    char out[600];
    snprintf(out, sizeof out, "%s/merged", dir.dir);
    iv_export_options_init(&o);
    o.lora = path_of("adapters/qwen3_head"), o.threads = 1;
    expect_error("tied", iv_export(path_of("hf/qwen3"), out, &o, &info, &err), &err, IV_UNSUPPORTED, "tied");
    o.lora = path_of("adapters/qwen3");
    expect_error("shape", iv_export(path_of("families/phi3_a"), out, &o, &info, &err), &err, IV_FORMAT, "lora_A");
    o.lora = path_of("adapters");
    expect_error("none", iv_export(path_of("hf/qwen3"), out, &o, &info, &err), &err, IV_NOT_FOUND, "adapter_config");
    assert_int_equal(scratch_count(&dir), 0); /* nothing is left */
    scratch_close(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(merged_models_answer_as_adapters_do),
                                       cmocka_unit_test(what_cannot_be_merged_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
