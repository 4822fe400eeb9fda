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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_samples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
