/* Epilogues of training steps on a GPU. */
#include "cuda/linear_fused_cases.h"

static void fused_layers(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    check_fused("fused layers", trials(160, 2000), 700, 900, 1400);
    check_fused("large fused layers", trials(12, 100), 9000, 4000, 2048);
}

int main(void) {
    int major = 0, minor = 0;
    if (gpus_here()) {
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    }
    if (major != 9 || minor != 0) {
        printf(
            "SKIPPED: 2 cases need a GPU of compute capability 9.0; they run emulated in cuda_emulated_linear_fused\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(fused_layers), cmocka_unit_test(fused_controls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
