/* Row ops of a training step on a GPU against the scalar reference: random shapes, every type, edge values. */
#include "cuda/rows_backward_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {ROWS_BACKWARD_CASES(cmocka_unit_test)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
