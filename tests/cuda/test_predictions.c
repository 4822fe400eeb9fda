/* The head's row ops of a training step on a GPU against the scalar reference. */
#include "cuda/predictions_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {PREDICTIONS_CASES(cmocka_unit_test)};
    return run_gpu_tests(tests, 0, "predictions", NULL, NULL);
}
