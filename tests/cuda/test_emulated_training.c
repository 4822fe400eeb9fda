/* training_cases.h on emulated GPUs. */
#include "cuda/training_cases.h"

int main(void) {
    few = trials(1, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(supervised), cmocka_unit_test(moved),
                                       cmocka_unit_test(reinforcement), cmocka_unit_test(gradients)};
    return cmocka_run_group_tests(tests, begin, end);
}
