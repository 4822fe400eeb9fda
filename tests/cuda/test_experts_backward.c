/* Row ops of a mixture's backward pass on a GPU against the scalar reference. */
#include "cuda/experts_backward_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {EXPERTS_BACKWARD_CASES(cmocka_unit_test)};
    return run_gpu_tests(tests, 0, "experts_backward", NULL, NULL);
}
