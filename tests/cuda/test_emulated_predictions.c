/* predictions_cases.h on the emulated kernels. */
#include "cuda/predictions_cases.h"
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Runs that fail, or whose maxima and sums differ. */
static size_t count_mistakes(rng *r, emu_fault fault, size_t vocab, size_t rows) {
    enum { ROWS = 8 };
    const size_t turns = fault == EMU_RELEASE_EARLY ? 60 : 20; /* a copy that lands in time shows no mistake */
    float *x = random_values(r, NORMAL, IV_F32, rows * vocab), want[2 * ROWS], got[2 * ROWS];
    int32_t targets[ROWS] = {7, 3, -1, 5, 11, 13, 17, 19};
    for (size_t i = 0; i < rows; i++) iv_ref_sum_exp(x + i * vocab, vocab, &want[i], &want[rows + i]);
    float *gpu_x = gpu_copy(x, rows * vocab * sizeof *x), *out = gpu_room(3 * rows * sizeof *out);
    int32_t *gpu_targets = gpu_copy(targets, rows * sizeof *targets);
    size_t caught = 0;
    for (size_t i = 0; i < turns; i++) {
        another_machine(r, 4);
        emu_plant(fault);
        int e = iv_gpu_logit_statistics(gpu_x, rows, vocab, vocab, 1.0f, gpu_targets, out, out + rows, out + 2 * rows,
                                        NULL, NULL);
        if (!e) e = cudaDeviceSynchronize();
        emu_plant(EMU_NO_FAULT);
        GPU_OK(cudaMemcpy(got, out, 2 * rows * sizeof *got, cudaMemcpyDeviceToHost));
        caught += e || memcmp(want, got, 2 * rows * sizeof *want) != 0;
    }
    printf("%zu rows of %zu logits, %s: %zu of %zu runs differ\n", rows, vocab, fault_names[fault], caught, turns);
    cudaFree(gpu_x), cudaFree(out), cudaFree(gpu_targets), free(x);
    return caught;
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    static const emu_fault in_clusters[] = {EMU_FORGET_SYNCS, EMU_FORGET_WAITS, EMU_LOSE_ARRIVAL, EMU_RELEASE_EARLY};
    rng r = rng_start("emulated control");
    assert_int_equal(0, count_mistakes(&r, EMU_NO_FAULT, 3000, 1));
    assert_true(count_mistakes(&r, EMU_FORGET_SYNCS, 3000, 1) > 0);
    assert_int_equal(0, count_mistakes(&r, EMU_NO_FAULT, 9000, 8));
    for (size_t i = 0; i < sizeof in_clusters / sizeof *in_clusters; i++)
        assert_true(count_mistakes(&r, in_clusters[i], 9000, 8) > 0);
}

#define ON_ANY_MACHINE(test) cmocka_unit_test_setup(test, any_machine)

int main(void) {
    const struct CMUnitTest tests[] = {PREDICTIONS_CASES(ON_ANY_MACHINE),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
