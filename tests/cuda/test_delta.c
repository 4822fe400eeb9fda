/* Layers with a state on a GPU against the scalar reference: random shapes, every type, every way to divide sequences
 * into steps. */
#include "cuda/delta_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(delta_of_any_shape), cmocka_unit_test(delta_on_tensor_cores),
                                       cmocka_unit_test(delta_short_convolutions),
                                       cmocka_unit_test(delta_that_is_not_finite),
                                       cmocka_unit_test(delta_attention_gates)};
    return run_gpu_tests(tests, 0, "delta", NULL, NULL);
}
