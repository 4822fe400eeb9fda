/* Gradients of layers with a state on a GPU against the CPU's: random shapes, every type, several sequences. */
#include "cuda/delta_backward_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pass_of_any_shape), cmocka_unit_test(pass_on_tensor_cores),
                                       cmocka_unit_test(pass_short_convolutions),
                                       cmocka_unit_test(pass_attention_gates)};
    return run_gpu_tests(tests, 0, "delta_backward", NULL, NULL);
}
