/* Gradients of a mixture in bfloat16 with the experts of float32 (which are float64's): no further from float64's than
 * PyTorch's bfloat16 backward with float64's experts (tests/data/train/routes.json). With experts of its own, another
 * rounding sends some tokens elsewhere, in PyTorch as here, and errors of single tokens decide which is nearer. This
 * program replaces the router's choice. */
#include "golden_gradients.h"
#include "numerics/rows.h"

enum { ROUTES_MAX = 4096, K_MAX = 8 };

static int32_t kept[ROUTES_MAX][K_MAX];
static size_t at, other; /* calls so far; tokens that would have had other experts */
static bool replay;

void __real_iv_ref_route(const float *logits, size_t experts, size_t k, int normalise, int32_t *ids, float *weights);

/* Records choices, or makes those of the same call once more: the other experts are out of reach. One thread. */
void __wrap_iv_ref_route(const float *logits, size_t experts, size_t k, int normalise, int32_t *ids, float *weights);
void __wrap_iv_ref_route(const float *logits, size_t experts, size_t k, int normalise, int32_t *ids, float *weights) {
    float masked[64];
    assert_true(at < ROUTES_MAX && k <= K_MAX && experts <= sizeof masked / sizeof *masked && normalise);
    __real_iv_ref_route(logits, experts, k, normalise, ids, weights);
    if (replay) {
        size_t same = 0;
        for (size_t e = 0; e < experts; e++) masked[e] = -1e30f;
        for (size_t i = 0; i < k; i++) masked[kept[at][i]] = logits[kept[at][i]];
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < k; j++) same += ids[i] == kept[at][j];
        other += same < k;
        __real_iv_ref_route(masked, experts, k, normalise, ids, weights);
    } else
        memcpy(kept[at], ids, k * sizeof *ids);
    at++;
}

static double recorded_mean(const char *which) {
    char path[4300];
    iv_error err;
    json_t *j, *value;
    const char *key;
    double sum = 0;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/tests/data/train/routes.json", INVAR_SOURCE_DIR);
    ASSERT_OK(iv_json_read(path, 1 << 20, &j, &err), &err);
    json_object_foreach(json_object_get(j, which), key, value) sum += json_number_value(value), n++;
    json_decref(j);
    assert_true(n > 10);
    return sum / (double)n;
}

static void the_same_experts(void **state) {
    (void)state;
    golden_errors e;
    size_t calls;
    at = other = 0, replay = false;
    gradient_options exact = {.dtype = IV_F32, .isa = iv_isa_detect(), .threads = 1, .pass = 64, .virtual_ranks = 4};
    golden_compare("qwen3_moe", &exact, &e);
    assert_true(e.worst < 1e-5);
    calls = at;
    static const iv_arithmetic arithmetics[] = {IV_FMA32, IV_TC16};
    for (size_t i = 0; i < 2; i++) {
        double own, torch = recorded_mean("same");
        gradient_options o = exact;
        o.arithmetic = arithmetics[i], o.dtype = IV_BF16;
        at = other = 0, replay = true;
        golden_compare("qwen3_moe", &o, &e);
        assert_int_equal(at, calls);
        printf("qwen3_moe bfloat16 %s: %zu of %zu routes would have been others; with the same experts: relative error "
               "of a "
               "tensor's gradient %.4g on average, PyTorch's %.4g\n",
               i ? "tc16" : "fma32", other, calls, e.mean, torch);
        assert_true(other > 0 && e.mean <= torch);
        own = recorded_mean("own");
        assert_true(torch < own); /* the routes are what makes it large */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
