/* test_weight_gradient.c: sums over tokens on a GPU against the scalar reference. */
#include "cuda/weight_gradient_cases.h"

static void weight_gradients(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("weight gradients");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        gradient_case c = random_gradient(&r, 300, 400, 150);
        gradient_step(&r, &c, trial % 2 ? generic_gradient : iv_gpu_weight_gradient);
    }
}

static void hopper_gradients(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    if (!has_tc16()) {
        printf("SKIPPED: tc16 wants compute capability 9.0\n");
        skip();
    }
    rng r = rng_start("weight gradients on Hopper");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        gradient_case c = random_wgmma(&r, 700, 700, 200);
        gradient_step(&r, &c, wgmma_kernels[trial % IV_GRADIENT_SHAPES]);
    }
    printf("%zu passes by wgmma\n", wgmma_runs);
    assert_true(wgmma_runs > 0);
}

/* Every kernel for several experts at once. */
static void grouped_gradients(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("weight gradients of experts");
    wgmma_runs = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        size_t kernel = trial % (IV_GRADIENT_SHAPES + 2);
        bool wgmma = has_tc16() && kernel < IV_GRADIENT_SHAPES;
        gradient_case c = wgmma ? random_wgmma(&r, 500, 500, 200) : random_gradient(&r, 200, 300, 100);
        gradient_kernel *any = kernel % 2 ? generic_gradient : iv_gpu_weight_gradient;
        grouped_step(&r, &c, wgmma ? wgmma_kernels[kernel] : any);
    }
    printf("%zu passes by wgmma\n", wgmma_runs);
    assert_true(wgmma_runs > 0 || !has_tc16());
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_axes_are_refused), cmocka_unit_test(transposed_weights),
                                       cmocka_unit_test(column_sums),          cmocka_unit_test(weight_gradients),
                                       cmocka_unit_test(hopper_gradients),     cmocka_unit_test(grouped_gradients)};
    return run_gpu_tests(tests, 1, "weight_gradient", NULL, NULL);
}
