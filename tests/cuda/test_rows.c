/* Row ops on a GPU against the scalar reference: random shapes, every type, edge values. */
#include "cuda/rows_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(embedding),     cmocka_unit_test(additions),
                                       cmocka_unit_test(logit_shapes),  cmocka_unit_test(rmsnorm),
                                       cmocka_unit_test(activations),   cmocka_unit_test(copies),
                                       cmocka_unit_test(centered_rows), cmocka_unit_test(rotations)};
    return run_gpu_tests(tests, 0, "rows", NULL, NULL);
}
