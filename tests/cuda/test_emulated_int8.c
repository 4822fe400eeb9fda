/* int8 layers in the emulator: random problems and configurations under random schedules have the reference's bits. */
#include "cuda/int8_cases.h"
#define GPU_OK CUDA
#include "cuda/emulator/emulated.h"

static void layers_have_the_laws_bits(void **state) {
    (void)state;
    static iv_gpu_int8_config c[CONFIGS_MAX];
    size_t problems = 0, families[IV_GPU_INT8_FAMILIES] = {0};
    rng r = rng_start("emulated int8");
    for (budget b = budget_of(20); has_time(&b);) {
        int8_shape s = random_int8_shape(&r);
        int8_problem q;
        make_int8_problem(&r, &s, &q);
        another_machine(&r, 6);
        try_int8_rows(&r, &q);
        try_int8_config(&q, NULL);
        size_t n = iv_gpu_int8_configs(&q.a, c, CONFIGS_MAX);
        assert_true(n <= CONFIGS_MAX);
        for (int i = 0; i < 6 && has_time(&b); i++) {
            size_t pick = rng_below(&r, n);
            another_machine(&r, 6);
            if (rng_below(&r, 3))
                try_int8_config(&q, &c[pick]);
            else
                try_int8_sums(&q, &c[pick]);
            families[c[pick].family]++;
        }
        free_int8_problem(&q), problems++;
    }
    printf("int8: %zu problems, %zu runs, by family", problems, configurations_run);
    for (size_t i = 0; i < IV_GPU_INT8_FAMILIES; i++) printf(" %zu", families[i]);
    printf(", all the law's bits\n");
}

static void rows_and_ranks(void **state) {
    (void)state;
    rng r = rng_start("emulated int8 rows");
    for (budget b = budget_of(4); has_time(&b);) {
        another_machine(&r, 6);
        norm_has_the_codes_of_its_rows(&r);
        ranks_have_the_law_of_one(&r);
    }
}

/* Control: the comparison sees a sum of which a bit is flipped. */
static void a_flipped_bit_is_seen(void **state) {
    (void)state;
    rng r = rng_start("emulated int8 control");
    int8_shape s = {.type = IV_BF16, .rows = 17, .n = 64, .k = 256, .terms = 1, .fx = NORMAL};
    int8_problem q;
    iv_gpu_int8_config c[CONFIGS_MAX];
    make_int8_problem(&r, &s, &q);
    CUDA(iv_gpu_int8_quantize(&q.rows, NULL));
    size_t n = iv_gpu_int8_configs(&q.a, c, CONFIGS_MAX), seen = 0, tried = 0;
    for (size_t i = 0; i < n; i++) {
        if (c[i].family == IV_GPU_INT8_DOTS) continue;
        emu_plant(EMU_FLIP_BIT);
        CUDA(iv_gpu_int8_linear_with(&q.a, &c[i], NULL));
        CUDA(cudaDeviceSynchronize());
        emu_plant(EMU_NO_FAULT);
        CUDA(cudaMemcpy(q.p.got, (char *)q.p.a.out - GUARD * q.p.out_element, q.p.out_bytes, cudaMemcpyDeviceToHost));
        seen += differences(&q.p, NULL) > 0, tried++;
    }
    assert_true(tried > 1 && seen == tried);
    free_int8_problem(&q);
}

int main(void) {
    iv_error err;
    if (iv_pool_open(1, &pool, &err) != IV_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_have_the_laws_bits), cmocka_unit_test(rows_and_ranks),
                                       cmocka_unit_test(a_flipped_bit_is_seen)};
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    iv_pool_close(pool);
    return bad;
}
