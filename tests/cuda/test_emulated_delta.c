/* delta_cases.h on the emulated kernels, with fewer trials; and mistakes planted in their synchronization. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 4, (usual))
#include "cuda/delta_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Does a prefill of 150 rows differ, or fail? */
static int differs(void *context) {
    rng r = *(rng *)context;
    delta_layer d;
    delta_memory m;
    size_t rows[DELTA_SEQUENCES] = {150, 0, 0}, width = 2;
    delta_layer_open(&r, IV_TC16, IV_BF16, true, 150, &d);
    delta_memory_open(&r, &d, &m);
    void *out = malloc(rows[0] * d.outputs * width);
    emu_plant(EMU_FORGET_SYNCS);
    return delta_step(&r, &d, &m, rows, IV_GPU_DELTA_TENSOR, out) ||
           memcmp(out, d.want[0], rows[0] * d.outputs * width) != 0;
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    rng r = rng_start("emulated control");
    another_machine(&r, 4);
    assert_int_not_equal(in_a_process(differs, &r), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(delta_of_any_shape, any_machine),
                                       cmocka_unit_test_setup(delta_on_tensor_cores, any_machine),
                                       cmocka_unit_test_setup(delta_short_convolutions, any_machine),
                                       cmocka_unit_test_setup(delta_that_is_not_finite, any_machine),
                                       cmocka_unit_test(delta_attention_gates),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
