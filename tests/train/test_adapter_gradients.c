/* Gradients of A and B: next to PEFT's in float64, and one set of bits in every layout. */
#include "public_case.h"
#include "adapter_case.h"

#include <math.h>

enum { TOKENS = 12 };
static const int32_t ids[TOKENS] = {3, 17, 29, 5, 40, 11, 90, 2, 7, 8, 8, 61}; /* of record_adapters.py */

static const struct {
    const char *adapter, *model;
    size_t ranks; /* tensor-parallel, at most */
} golden[] = {{"qwen3", "hf/qwen3", 4},       {"qwen3_head", "hf/qwen3", 4},          {"qwen2_tied", "hf/qwen2", 2},
              {"qwen2_head", "hf/qwen2", 4},  {"qwen3_moe", "hf/qwen3_moe", 4},       {"phi3", "families/phi3_a", 1},
              {"lfm2", "families/lfm2_a", 1}, {"gemma4", "families/gemma4_text_a", 1}};

/* Gradients of the mean loss over the tokens, of all tensors in the order of the file. */
static void gradients_of(const iv_trainer_options *o, const tensor_file *names, float *out) {
    float mask[TOKENS], logprobs[TOKENS];
    iv_error err;
    iv_trainer *t = trainer_with(o);
    for (size_t i = 0; i < TOKENS; i++) mask[i] = i ? 1.0f : 0.0f;
    iv_trainer_sequence s = {.ids = ids, .mask = mask, .count = TOKENS, .logprobs = logprobs};
    iv_trainer_batch b;
    iv_trainer_batch_init(&b);
    b.sequences = &s, b.count = 1;
    ASSERT_OK(iv_trainer_gradients(t, &b, TOKENS - 1, &err), &err);
    for (size_t i = 0; i < names->count; out += names->tensor[i++].elements)
        ASSERT_OK(iv_trainer_get_gradient(t, names->tensor[i].name, out, names->tensor[i].elements, &err), &err);
    iv_trainer_close(t);
}

static double norm(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static void gradients_are_pefts(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof golden / sizeof *golden; c++) {
        char path[400];
        snprintf(path, sizeof path, "%s/gradients.safetensors", adapter_path(golden[c].adapter));
        tensor_file want = tensor_file_open(path);
        iv_trainer_options o = trainer_options();
        o.model = case_path(golden[c].model), o.lora = adapter_path(golden[c].adapter), o.dtype = "float32";
        float *got = calloc(want.elements, sizeof *got), *other = calloc(want.elements, sizeof *other);
        assert_true(got && other);
        gradients_of(&o, &want, got);
        double worst = 0;
        for (size_t i = 0, at = 0; i < want.count; at += want.tensor[i++].elements) {
            size_t n = want.tensor[i].elements;
            double size = norm(want.values + at, n), apart;
            for (size_t k = 0; k < n; k++) other[k] = got[at + k] - want.values[at + k];
            apart = norm(other, n) / (size > 0 ? size : 1);
            if (apart > 2e-5)
                fail_msg("%s: %s: %.3g of its norm from PEFT", golden[c].adapter, want.tensor[i].name, apart);
            worst = fmax(worst, apart);
        }
        printf("%s: %zu tensors, at most %.2g of a norm from PEFT in float64\n", golden[c].adapter, want.count, worst);
        for (size_t ranks = 2; ranks <= golden[c].ranks; ranks *= 2) {
            o.tensor_parallel = ranks, o.recompute = "layer", o.isa = "scalar", o.threads = 2;
            gradients_of(&o, &want, other);
            assert_same_bits(golden[c].adapter, got, other, want.elements, sizeof *got, false);
        }
        free(got), free(other);
        tensor_file_close(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_pefts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
