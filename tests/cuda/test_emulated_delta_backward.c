/* delta_backward_cases.h on the emulated kernels, with fewer trials. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 4, (usual))
#include "cuda/delta_backward_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(pass_of_any_shape, any_machine),
                                       cmocka_unit_test_setup(pass_on_tensor_cores, any_machine),
                                       cmocka_unit_test_setup(pass_short_convolutions, any_machine),
                                       cmocka_unit_test_setup(pass_attention_gates, any_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
