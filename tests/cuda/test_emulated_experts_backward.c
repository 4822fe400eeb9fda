/* experts_backward_cases.h on the emulated kernels. */
#include "cuda/experts_backward_cases.h"
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Barriers that do not wait change the gradient of a routing weight. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    enum { N = 1500, TURNS = 20 };
    rng r = rng_start("emulated control");
    float *x = random_values(&r, NORMAL, IV_F32, N), lanes[IV_ROW_LANES] = {0}, want, got;
    for (size_t i = 0; i < N; i++) lanes[i % IV_ROW_LANES] = fmaf(x[i], x[i], lanes[i % IV_ROW_LANES]);
    want = iv_ref_fold_lanes(lanes);
    iv_gpu_expert_rows_args a = {.entries = 1, .k = 1, .hidden = 16, .n = N, .type = IV_F32, .dy_stride = 16};
    a.slot = gpu_copy(&(int32_t){0}, sizeof(int32_t)), a.weights = gpu_copy(&(float){1.0f}, sizeof(float));
    a.dx = gpu_copy(x, N * sizeof *x), a.act = a.dx, a.da = gpu_copy(x, N * sizeof *x);
    a.dw = gpu_room(sizeof(float)), a.dy = gpu_room(16 * sizeof(float));
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < TURNS; i++) {
            another_machine(&r, 4);
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_expert_weigh(&a, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(&got, a.dw, sizeof got, cudaMemcpyDeviceToHost));
            caught += e || memcmp(&want, &got, sizeof want) != 0;
        }
        printf("%s: %zu of %d runs differ\n", fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT], caught, TURNS);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree((void *)a.slot), cudaFree((void *)a.weights), cudaFree((void *)a.dx), cudaFree(a.da), cudaFree(a.dw);
    cudaFree(a.dy), free(x);
}

#define ON_ANY_MACHINE(test) cmocka_unit_test_setup(test, any_machine)

int main(void) {
    const struct CMUnitTest tests[] = {EXPERTS_BACKWARD_CASES(ON_ANY_MACHINE),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
