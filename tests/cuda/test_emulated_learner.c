/* A learner on an emulated GPU gives the CPU's log-probabilities and gradients in every bit: models of every family,
 * both arithmetics, every way of recomputing and of cutting a step into passes. */
#include "cuda/learner_cases.h"

#include "cuda/emulator/include/control.h"

enum { SECONDS = 8, SECONDS_LONG = 900 };

static iv_gpu *gpu;

static void emulated_gpus_have_the_cpus_gradients(void **state) {
    (void)state;
    rng r = rng_start("emulated learner");
    clock_t end = clock() + (clock_t)(getenv("INVAR_TEST_LONG") ? SECONDS_LONG : SECONDS) * CLOCKS_PER_SEC;
    const char *only = getenv("INVAR_CASE");
    for (size_t i = 0; i < FAMILIES_COUNT || clock() < end; i++) {
        const learner_case *c = &cases[i < FAMILIES_COUNT ? i : rng_below(&r, FAMILIES_COUNT + 2)];
        law_way w = random_law(&r);
        if (only && strcmp(only, c->name) != 0) continue;
        free_way ways[] = {{SEQUENCES_MAX, IV_RECOMPUTE_NONE, 512, 0, i % 2 == 0},
                           {1 + rng_below(&r, 4), (iv_recompute)rng_below(&r, 3), 256, 1 + rng_below(&r, 20000),
                            i % 2 == 1, (size_t)1 << rng_below(&r, 20),
                            rng_below(&r, 2)}}; /* chunks of one expert, of several, of all */
        emu_seed(rng_next(&r));
        check_case(c, &w, gpu, &r, 3 + rng_below(&r, 3), i % 3 ? 24 : 80, ways, 2);
    }
}

/* Control: tensor-core results with a flipped lowest bit, one in 64. */
static void control_a_flipped_bit_differs(void **state) {
    (void)state;
    rng r = {3};
    law_way w = {IV_TC16, IV_BF16, 2, 1.0f, false};
    free_way f = {SEQUENCES_MAX, IV_RECOMPUTE_NONE, 256};
    learned want, got;
    sequences x;
    open_on_cpu(&cases[0], &w, &want);
    learned_open(&cases[0], &w, iv_gpu_memspace(gpu), &got);
    sequences_make(&r, 500, 2, 20, &w, &x);
    run_step(&want, &x, &w, &f, false);
    open_on_gpu(gpu, &got, &w, &f);
    emu_plant(EMU_FLIP_BIT);
    run_step(&got, &x, &w, &f, false);
    assert_true(emu_fault_happened());
    emu_plant(EMU_NO_FAULT);
    assert_true(differences(&want, &got, &x, false) > 0);
    learned_close(&want), learned_close(&got), sequences_free(&x);
}

static void refusals(void **state) {
    (void)state;
    check_refusals(gpu);
}

static void values_that_are_not_finite(void **state) {
    (void)state;
    check_not_finite(gpu);
}

int main(void) {
    iv_error err;
    if (iv_gpu_open(0, true, &gpu, &err) != IV_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_gpus_have_the_cpus_gradients),
                                       cmocka_unit_test(control_a_flipped_bit_differs), cmocka_unit_test(refusals),
                                       cmocka_unit_test(values_that_are_not_finite)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    iv_gpu_close(gpu);
    return failed;
}
