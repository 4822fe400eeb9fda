/* tree_allreduce_cases.h on emulated GPUs, one for each of up to eight ranks, on any machine. */
#define EMULATED 1
#include "cuda/tree_allreduce_cases.h"

/* A rank that does not wait reads old values. */
static void control_forgotten_waits_show(void **state) {
    (void)state;
    team t;
    emu_plant(EMU_FORGET_PEERS);
    open_team(&t, 4, timeout_ms_of_test());
    assert_true(misheard(&t) > 0);
    assert_true(emu_fault_happened());
    close_team(&t);
    emu_plant(EMU_NO_FAULT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allreduces),
        cmocka_unit_test(barriers),
        cmocka_unit_test(one_buffer_is_written_over),
        cmocka_unit_test(timeouts_are_recorded),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(control_forgotten_waits_show),
        cmocka_unit_test(owners),
    };
    set_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
