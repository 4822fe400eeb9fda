/* adapters_cases.h on the emulated kernels, with fewer trials; and mistakes planted in them. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 2, (usual))
#include "cuda/adapters_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

static int fault;

/* A layer of several leaves whose rows all have adapters, with the fault. */
static int differs(void *context) {
    rng r = *(rng *)context;
    adapter_layer l;
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) return 1;
    do make_layer(&r, IV_TC16, IV_BF16, false, &l);
    while (l.args.leaves < 4 || l.rows < 8 || l.args.rank_max < 16 || l.args.rows.plain);
    make_values(&r, &l);
    emu_plant(fault);
    if (iv_gpu_adapter_inner(&l.args, NULL) || iv_gpu_adapter_outer(&l.args, NULL)) return 1;
    compare_layer(&l); /* ends the process where bits differ */
    return 0;
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    static const int faults[] = {EMU_NO_FAULT, EMU_FLIP_BIT, EMU_FORGET_SYNCS};
    rng r = rng_start("emulated control");
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        size_t caught = 0;
        fault = faults[i];
        for (int n = 0; n < 6; n++, rng_next(&r)) another_machine(&r, 4), caught += in_a_process(differs, &r) != 0;
        printf("%s: caught %zu of 6\n", fault_names[fault], caught);
        assert_true(fault == EMU_NO_FAULT ? caught == 0 : caught > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(adapters_of_rows, any_machine),
                                       cmocka_unit_test_setup(adapters_of_experts, any_machine),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
