/* rows_backward_cases.h on the emulated kernels. */
#include "cuda/rows_backward_cases.h"
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Barriers that do not wait change the sums that are folded through shared memory. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    enum { N = 3000, TURNS = 20 };
    rng r = rng_start("emulated control");
    float *x = random_values(&r, NORMAL, IV_F32, N), *dy = random_values(&r, NORMAL, IV_F32, N), want[N], got[N];
    float *zeros = calloc(N, sizeof *zeros);
    iv_ref_rmsnorm_backward(x, dy, 0.0f, N, dy, zeros, want);
    iv_gpu_norm_backward_args a = {.x = gpu_copy(x, sizeof want), .weight = gpu_copy(dy, sizeof want)};
    a.n = N, a.rows = 1, a.dy = a.weight, a.dx = gpu_room(sizeof want), a.factors = gpu_room(sizeof(float));
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < TURNS; i++) {
            another_machine(&r, 4);
            GPU_OK(cudaMemcpy(a.dx, zeros, sizeof want, cudaMemcpyHostToDevice));
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_norm_backward(&a, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(got, a.dx, sizeof got, cudaMemcpyDeviceToHost));
            caught += e || memcmp(want, got, sizeof want) != 0;
        }
        printf("%s: %zu of %d runs differ\n", fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT], caught, TURNS);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree((void *)a.x), cudaFree((void *)a.weight), cudaFree(a.dx), cudaFree(a.factors);
    free(x), free(dy), free(zeros);
}

#define ON_ANY_MACHINE(test) cmocka_unit_test_setup(test, any_machine)

int main(void) {
    const struct CMUnitTest tests[] = {ROWS_BACKWARD_CASES(ON_ANY_MACHINE),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
