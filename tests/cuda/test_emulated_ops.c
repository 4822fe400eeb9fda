/* ops_cases.h on emulated GPUs of 2 to 9 multiprocessors. */
#include "emulator/include/control.h"
#include "cuda/ops_cases.h"

/* A flipped bit of a tensor core's sum is found. */
static void control_a_flipped_bit_differs(void **state) {
    (void)state;
    rng r = rng_start("ops, a flipped bit");
    world w;
    open_world(&r, &w, true);
    emu_seed(rng_next(&r));
    emu_plant(EMU_FLIP_BIT);
    bool equal = layer_is_equal(&r, &w), happened = emu_fault_happened();
    emu_plant(EMU_NO_FAULT);
    assert_true(happened);
    assert_false(equal);
    close_world(&w);
}

int main(void) {
    devices = 8;
    const struct CMUnitTest tests[] = {OPS_CASES, cmocka_unit_test(control_a_flipped_bit_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
