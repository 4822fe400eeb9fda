/* A learner on a GPU gives the CPU's log-probabilities and gradients in every bit: models of every family and shapes
 * that use each kind of kernel, both arithmetics, every way of recomputing and of cutting a step into passes.
 * INVAR_CASE=NAME selects one model. */
#include "cuda/learner_cases.h"
#include "cuda/on_gpu.h"

static iv_gpu *gpu;

static bool have_gpu(void) {
    iv_error err;
    if (!gpu && iv_gpu_open(0, true, &gpu, &err) != IV_OK) printf("SKIPPED: %s\n", err.message);
    return gpu != NULL;
}

static void gpus_have_the_cpus_gradients(void **state) {
    (void)state;
    if (!have_gpu()) skip();
    rng r = rng_start("learner");
    const char *only = getenv("INVAR_CASE");
    for (size_t i = 0; i < CASES * trials(2, 20); i++) {
        const learner_case *c = &cases[i % CASES];
        bool big = strcmp(c->name, "wide") == 0 || strcmp(c->name, "moe") == 0;
        law_way w = random_law(&r);
        if (only && strcmp(only, c->name) != 0) continue;
        if (big) w.arithmetic = IV_TC16, w.dtype = IV_BF16;
        free_way ways[] = {
            {SEQUENCES_MAX, IV_RECOMPUTE_NONE, 2048, 0, i % 2 == 0, 0, false},
            {SEQUENCES_MAX, IV_RECOMPUTE_ATTENTION, 2048, 1 + rng_below(&r, 100000), true, 0, false},
            {SEQUENCES_MAX, IV_RECOMPUTE_LAYER, 4096, 0, false, 0, false},
            {1 + rng_below(&r, 6), (iv_recompute)rng_below(&r, 3), 1024, 0, rng_below(&r, 2),
             (size_t)1 << rng_below(&r, 28), false}, /* chunks of one expert, of several, of all */
            {1 + rng_below(&r, 6), IV_RECOMPUTE_NONE, 1024, 1 + rng_below(&r, 100000), i % 2 == 1, 0, true}};
        check_case(c, &w, gpu, &r, 3 + rng_below(&r, SEQUENCES_MAX - 2), big ? 40 : 150, ways, 5);
    }
}

static void refusals(void **state) {
    (void)state;
    if (!have_gpu()) skip();
    check_refusals(gpu);
}

static void values_that_are_not_finite(void **state) {
    (void)state;
    if (!have_gpu()) skip();
    check_not_finite(gpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpus_have_the_cpus_gradients), cmocka_unit_test(refusals),
                                       cmocka_unit_test(values_that_are_not_finite)};
    int failed = run_gpu_tests(tests, 0, "learner", NULL, NULL);
    iv_gpu_close(gpu);
    return failed;
}
