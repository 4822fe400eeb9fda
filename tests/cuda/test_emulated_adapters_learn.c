/* adapters_learn_cases.h on the emulated kernels, with fewer trials. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 2, (usual))
#include "cuda/adapters_learn_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(factors_of_masters, any_machine),
                                       cmocka_unit_test_setup(scaled_columns, any_machine),
                                       cmocka_unit_test_setup(gradients_of_inputs, any_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
