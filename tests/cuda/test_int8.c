/* int8 layers on a GPU: every configuration of random problems and of sizes of models has the reference's bits. */
#include "cuda/int8_cases.h"

static void try_int8(rng *r, const int8_shape *s) {
    static iv_gpu_int8_config c[CONFIGS_MAX];
    int8_problem q;
    make_int8_problem(r, s, &q);
    try_int8_rows(r, &q);
    try_int8_config(&q, NULL);
    size_t n = iv_gpu_int8_configs(&q.a, c, CONFIGS_MAX);
    assert_true(n <= CONFIGS_MAX);
    for (size_t i = 0; i < n; i++) try_int8_config(&q, &c[i]), try_int8_sums(&q, &c[i]);
    free_int8_problem(&q);
}

static void layers_have_the_laws_bits(void **state) {
    (void)state;
    size_t problems = trials(200, 4000);
    rng r = rng_start("int8");
    for (size_t i = 0; i < problems; i++) {
        int8_shape s = random_int8_shape(&r);
        try_int8(&r, &s);
    }
    printf("int8: %zu problems, %zu runs, all the law's bits\n", problems, configurations_run);
}

/* Sizes of models, at sampled outputs. */
static void large_problems(void **state) {
    (void)state;
    static const struct {
        size_t n, k;
        iv_gpu_epilogue epilogue;
    } size[] = {{6144, 4096, IV_GPU_STORE},   {4096, 4096, IV_GPU_RESIDUAL}, {4096, 12288, IV_GPU_RESIDUAL},
                {24576, 4096, IV_GPU_SWIGLU}, {2570, 5120, IV_GPU_STORE},    {1024, 65536, IV_GPU_STORE}};
    static const size_t rows[] = {1, 7, 33, 64, 200, 700, 2100};
    rng r = rng_start("large int8");
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int terms = 1; terms <= 2; terms++) {
            int8_shape s = {.type = IV_BF16,
                            .rows = rows[rng_below(&r, sizeof rows / sizeof *rows)],
                            .n = size[i].n,
                            .k = size[i].k,
                            .terms = terms,
                            .epilogue = size[i].epilogue,
                            .fx = NORMAL,
                            .samples = 24};
            try_int8(&r, &s);
        }
}

static void rows_and_ranks(void **state) {
    (void)state;
    rng r = rng_start("int8 rows");
    for (size_t i = trials(100, 2000); i--;) norm_has_the_codes_of_its_rows(&r), ranks_have_the_law_of_one(&r);
}

int main(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("SKIPPED: 3 cases need a GPU; they run emulated in cuda_emulated_int8\n");
        return 77;
    }
    iv_error err;
    if (iv_pool_open(0, &pool, &err) != IV_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_have_the_laws_bits), cmocka_unit_test(large_problems),
                                       cmocka_unit_test(rows_and_ranks)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    iv_pool_close(pool);
    return failed;
}
