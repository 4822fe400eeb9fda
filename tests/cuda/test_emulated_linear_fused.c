/* linear_fused_cases.h on the emulated kernels. */
#include "cuda/linear_fused_cases.h"
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 6);
    return 0;
}

static void fused_layers(void **state) {
    (void)state;
    check_fused("emulated fused layers", trials(24, 400), 300, 300, 600);
}

/* Outputs that TMA writes must be fenced; terms of other warpgroups awaited. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    static const emu_fault faults[] = {EMU_NO_FAULT, EMU_FORGET_WAITS, EMU_LOSE_ARRIVAL};
    rng r = rng_start("emulated control");
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        size_t caught = 0, turns = 0;
        for (; turns < (f ? 40 : 4) && caught < 2; turns++) {
            fused_case c;
            another_machine(&r, 4);
            make_case(&r, &c, (fused_kind)(turns % FUSED_KINDS), 300, 200, 1024);
            want_case(&c);
            emu_plant(faults[f]);
            int e = iv_gpu_linear(&c.a, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            caught += e || differences(&c) != 0;
            free_case(&c);
        }
        printf("fused layers: %s: %zu of %zu caught\n", fault_names[faults[f]], caught, turns);
        assert_true(f ? caught > 0 : caught == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(fused_layers, any_machine),
                                       cmocka_unit_test_setup(fused_controls, any_machine),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
