/* training_cases.h on emulated GPUs. */
#include "cuda/training_cases.h"

int main(void) {
    few = trials(1, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(supervised),    cmocka_unit_test(moved),
                                       cmocka_unit_test(reinforcement), cmocka_unit_test(gradients),
                                       cmocka_unit_test(several_gpus),  cmocka_unit_test(reinforcement_on_several),
                                       cmocka_unit_test(too_few_gpus)};
    return cmocka_run_group_tests(tests, begin, end);
}
