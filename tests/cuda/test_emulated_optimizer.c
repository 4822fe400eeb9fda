/* optimizer_cases.h on the emulated kernels, with fewer trials. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 2, (usual)*2)
#include "cuda/optimizer_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Barriers that do not wait change the words that lanes take from shared memory. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    enum { GROUP = 1024, N = 40 * GROUP, RUNS = 20 };
    rng r = rng_start("emulated control");
    float *w = random_row(&r, N, false), *gpu_w = gpu_copy(w, N * sizeof *w);
    uint8_t *digests = gpu_room(N / GROUP * 32), want[N / GROUP][32], got[N / GROUP][32];
    for (size_t i = 0; i < N / GROUP; i++) iv_digest_of(w + i * GROUP, GROUP * sizeof *w, want[i]);
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < RUNS; i++) {
            another_machine(&r, 4);
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_digests(gpu_w, N, GROUP, digests, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(got, digests, sizeof got, cudaMemcpyDeviceToHost));
            caught += e || memcmp(want, got, sizeof want) != 0;
        }
        printf("%s: %zu of %d runs differ\n", fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT], caught, RUNS);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree(gpu_w), cudaFree(digests), free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sums_of_blocks, any_machine), cmocka_unit_test_setup(adamw_steps, any_machine),
        cmocka_unit_test_setup(added_sums, any_machine),     cmocka_unit_test_setup(written_rows, any_machine),
        cmocka_unit_test_setup(searches, any_machine),       cmocka_unit_test_setup(digests, any_machine),
        cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
