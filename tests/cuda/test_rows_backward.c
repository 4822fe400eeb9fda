/* Row ops of a training step on a GPU against the scalar reference: random shapes, every type, edge values. */
#include "cuda/rows_backward_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {ROWS_BACKWARD_CASES(cmocka_unit_test)};
    return run_gpu_tests(tests, 0, "rows_backward", NULL, NULL);
}
