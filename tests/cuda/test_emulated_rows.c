/* test_rows.c and test_route.c, with fewer trials, over the emulated kernels: row ops, moved columns, routing, grouping
 * and combining against the scalar reference. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 8, (usual)*2)
#define main test_rows_main
#include "cuda/test_rows.c"
#undef main
#define main test_route_main
#include "cuda/test_route.c"
#undef main
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Barriers that do not wait are seen in the sums that are folded through shared memory. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    enum { N = 3000 };
    rng r = rng_start("emulated control");
    float *x = random_values(&r, NORMAL, IV_F32, N), want[N], got[N], one[N];
    for (size_t i = 0; i < N; i++) one[i] = 1.0f;
    iv_ref_rmsnorm(x, one, 0.0f, N, want);
    float *gpu_x = gpu_copy(x, sizeof want), *gpu_one = gpu_copy(one, sizeof one), *out = gpu_room(sizeof got);
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < 20; i++) {
            another_machine(&r, 4);
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_rmsnorm(gpu_x, N, NULL, gpu_one, 0.0f, 1, IV_F32, out, N, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
            caught += e || memcmp(want, got, sizeof want) != 0;
        }
        printf("%s: %zu of 20 runs differ\n", fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT], caught);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree(gpu_x), cudaFree(gpu_one), cudaFree(out), free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(embedding, any_machine),    cmocka_unit_test_setup(rmsnorm, any_machine),
        cmocka_unit_test_setup(swiglu, any_machine),       cmocka_unit_test_setup(copies, any_machine),
        cmocka_unit_test_setup(rotations, any_machine),    cmocka_unit_test_setup(routes, any_machine),
        cmocka_unit_test_setup(combinations, any_machine), cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
