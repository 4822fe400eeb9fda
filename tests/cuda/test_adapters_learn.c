/* adapters_learn_cases.h on a GPU. */
#include "cuda/adapters_learn_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors_of_masters), cmocka_unit_test(scaled_columns),
                                       cmocka_unit_test(gradients_of_inputs)};
    return run_gpu_tests(tests, 0, "adapters_learn", NULL, NULL);
}
