/* learned_cases.h on emulated GPUs. */
#include "cuda/learned_cases.h"

int main(void) {
    few = trials(1, 0), lends = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_of_one),         cmocka_unit_test(adapters_that_move),
        cmocka_unit_test(adapters_reinforced),     cmocka_unit_test(adapters_of_several),
        cmocka_unit_test(adapters_of_one_base),    cmocka_unit_test(bases_that_do_not_serve),
        cmocka_unit_test(layers_that_do_not_serve)};
    return cmocka_run_group_tests(tests, begin, end);
}
