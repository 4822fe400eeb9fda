/* delta_backward_cases.h on the emulated kernels, with fewer trials; and mistakes planted in their synchronization. */
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

/* Do the gradients of values differ, or does a launch fail? */
static int differs(void *context) {
    rng r = *(rng *)context;
    pass_layer m;
    pass_layer_open(&r, IV_TC16, IV_BF16, true, 150, &m);
    iv_gpu_delta_backward_args b = pass_to_gpu(&r, &m);
    size_t width = m.l.width, first = 2 * m.l.keys, row = m.span[0].first_row;
    float *got = malloc(m.rows * width * sizeof *got);
    for (size_t i = 0; i < m.rows; i++) iv_delta_norm_backward(&m.c, &m.b, i);
    for (size_t h = 0; h < m.l.key_heads; h++) iv_delta_heads_backward(&m.c, &m.b, &m.span[0], h, m.scratch);
    int code = iv_gpu_delta_mix(&b.forward, NULL);
    if (!code) code = iv_gpu_delta_rule(&b.forward, NULL);
    if (!code) code = iv_gpu_delta_norm_backward(&b, NULL);
    if (code) return 0;
    emu_plant(EMU_FORGET_SYNCS);
    code = iv_gpu_delta_rule_backward_with(&b, IV_GPU_DELTA_TENSOR, NULL);
    if (!code) code = (int)cudaMemcpy(got, b.dx, m.rows * width * sizeof *got, cudaMemcpyDeviceToHost);
    return code || memcmp(got + row * width + first, m.b.dx + row * width + first, m.values * sizeof *got) != 0;
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    rng r = rng_start("emulated control");
    another_machine(&r, 4);
    assert_int_not_equal(in_a_process(differs, &r), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(pass_of_any_shape, any_machine),
                                       cmocka_unit_test_setup(pass_on_tensor_cores, any_machine),
                                       cmocka_unit_test_setup(pass_short_convolutions, any_machine),
                                       cmocka_unit_test_setup(pass_attention_gates, any_machine),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
