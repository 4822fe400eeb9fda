/* predictions_cases.h on the emulated kernels. */
#include "cuda/predictions_cases.h"
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Barriers that do not wait change maxima and sums. */
static void plant_mistakes(size_t vocab) {
    enum { TURNS = 20 };
    rng r = rng_start("emulated control");
    float *x = random_values(&r, NORMAL, IV_F32, vocab), want[2], got[2];
    iv_ref_sum_exp(x, vocab, &want[0], &want[1]);
    float *gpu_x = gpu_copy(x, vocab * sizeof *x), *out = gpu_room(3 * sizeof *out);
    int32_t *target = gpu_copy(&(int32_t){7}, sizeof *target);
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < TURNS; i++) {
            another_machine(&r, 4);
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_logit_statistics(gpu_x, 1, vocab, vocab, 1.0f, target, out, out + 1, out + 2, NULL, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
            caught += e || memcmp(want, got, sizeof want) != 0;
        }
        printf("%zu logits, %s: %zu of %d runs differ\n", vocab, fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT],
               caught, TURNS);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree(gpu_x), cudaFree(out), cudaFree(target), free(x);
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    plant_mistakes(3000);
    plant_mistakes(9000); /* in a cluster */
}

#define ON_ANY_MACHINE(test) cmocka_unit_test_setup(test, any_machine)

int main(void) {
    const struct CMUnitTest tests[] = {PREDICTIONS_CASES(ON_ANY_MACHINE),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
