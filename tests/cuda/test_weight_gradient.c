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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_axes_are_refused), cmocka_unit_test(transposed_weights),
                                       cmocka_unit_test(column_sums), cmocka_unit_test(weight_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
