/* latent_cases.h on the emulated kernels, with fewer trials; and mistakes planted in their synchronization. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 4, (usual))
#include "cuda/latent_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Does attention on tensor cores differ from the general kernel's, or fail? */
static int differs(void *context) {
    rng r = *(rng *)context;
    latent_problem p = {.turns = 64, .span_count = 1};
    p.a.shape = (iv_gpu_attention_shape){IV_TC16, IV_BF16, 5, 1, 256, 5, 0, 0, false};
    latent_open(&r, &p, 9, 400);
    size_t row = 5 * 256 * 2, first = (size_t)p.spans[0].first_row * row, bytes = (size_t)p.spans[0].rows * row;
    char *want = latent_attend(&p, true, 2, NULL);
    emu_plant(EMU_FORGET_SYNCS);
    char *got = latent_attend(&p, false, 2, NULL);
    return !got || memcmp(got + first, want + first, bytes) != 0;
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    rng r = rng_start("emulated control");
    another_machine(&r, 4);
    assert_int_not_equal(in_a_process(differs, &r), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(latent_packings_have_every_head_once),
                                       cmocka_unit_test_setup(latent_rows_have_the_reference_bits, any_machine),
                                       cmocka_unit_test_setup(latent_products_have_the_bits_of_chains, any_machine),
                                       cmocka_unit_test_setup(latent_attention_of_any_widths, any_machine),
                                       cmocka_unit_test_setup(latent_attention_on_tensor_cores, any_machine),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
