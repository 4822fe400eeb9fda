/* The sampling kernels in the emulator (emulator/emulator.h) against the host's sampler. */
#define main test_sample_main
#include "cuda/test_sample.c"
#undef main
#include "cuda/emulator/emulated.h"

static void emulated_samples(void **state) {
    (void)state;
    rng r = rng_start("samples");
    static const size_t around[] = {1, 120, 255, 4096, 5000, 9000};
    for (budget b = budget_of(5); has_time(&b);) {
        another_machine(&r, 20);
        sample_trial(&r, 1 + rng_below(&r, around[rng_below(&r, 6)]), 1 + rng_below(&r, 5), rng_below(&r, 10) == 0);
    }
    report();
}

static void emulated_hard_rows(void **state) {
    (void)state;
    rng r = rng_start("hard rows");
    many = compared = moved = shares = likely = 0;
    for (size_t kind = 0; kind < HARD_ROWS; kind++) {
        another_machine(&r, 20);
        hard_trial(&r, kind, kind == HARD_ROWS - 1 ? 12000 : 4200 + rng_below(&r, 8000), HARD_FILTERS);
    }
    report();
    assert_true(compared == HARD_ROWS * HARD_FILTERS && many > compared / 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_samples), cmocka_unit_test(emulated_hard_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
