/* The head's row ops of a training step on a GPU against the scalar reference. */
#include "cuda/predictions_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {PREDICTIONS_CASES(cmocka_unit_test)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
