/* Linear layers of codes on a GPU: every configuration of random forms and problems has the law's bits. */
#include "cuda/packed_linear_cases.h"

static void codes_have_the_laws_bits(void **state) {
    (void)state;
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t problems = trials(150, 3000);
    rng r = rng_start("packed linear");
    for (size_t i = 0; i < problems; i++) {
        shape s = packed_shape(&r);
        problem p;
        iv_gpu_linear_args packed;
        iv_code_form form;
        char text[128];
        if (!is_hopper) s.arithmetic = IV_FMA32;
        make_problem(&r, &s, &p);
        pack_problem(&r, &p, &packed, &form);
        describe_form(&form, text, sizeof text);
        check_widened(&p, &packed, text);
        try_packed(&p, &packed, NULL, text);
        size_t n = iv_gpu_linear_configs(&packed, c, CONFIGS_MAX);
        for (size_t k = 0; k < n; k++) try_packed(&p, &packed, &c[k], text);
        free_packed(&p, &packed);
    }
    printf("packed linear: %zu problems, %zu runs, all the law's bits\n", problems, configurations_run);
}

static void frequent_forms_are_widened_exactly(void **state) {
    (void)state;
    rng r = rng_start("packed forms");
    check_frequent_forms(&r, trials(20, 400));
}

int main(void) {
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("SKIPPED: 2 cases need a GPU; they run emulated in cuda_emulated_packed_linear\n");
        return 77;
    }
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    is_hopper = major == 9 && minor == 0;
    iv_error err;
    if (iv_pool_open(0, &pool, &err) != IV_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_have_the_laws_bits),
                                       cmocka_unit_test(frequent_forms_are_widened_exactly)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    iv_pool_close(pool);
    return failed;
}
