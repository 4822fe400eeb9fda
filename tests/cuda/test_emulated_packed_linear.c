/* Linear layers of codes in the emulator: random forms, problems and configurations under random schedules. */
#include "cuda/packed_linear_cases.h"
#define GPU_OK CUDA
#include "cuda/emulator/emulated.h"

static void codes_have_the_laws_bits(void **state) {
    (void)state;
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t problems = 0, kinds[IV_CODE_KINDS] = {0};
    rng r = rng_start("emulated packed linear");
    for (budget b = budget_of(10); has_time(&b);) {
        shape s = packed_shape(&r);
        problem p;
        iv_gpu_linear_args packed;
        iv_code_form form;
        char text[128];
        make_problem(&r, &s, &p);
        another_machine(&r, 6);
        pack_problem(&r, &p, &packed, &form);
        describe_form(&form, text, sizeof text);
        check_widened(&p, &packed, text);
        try_packed(&p, &packed, NULL, text);
        size_t n = iv_gpu_linear_configs(&packed, c, CONFIGS_MAX);
        for (int i = 0; i < 4 && n && has_time(&b); i++) {
            another_machine(&r, 6);
            try_packed(&p, &packed, &c[rng_below(&r, n)], text);
            kinds[form.kind]++;
        }
        free_packed(&p, &packed), problems++;
    }
    printf("packed linear: %zu problems, %zu runs, by kind", problems, configurations_run);
    for (size_t i = 0; i < IV_CODE_KINDS; i++) printf(" %zu", kinds[i]);
    printf(", all the law's bits\n");
}

static void frequent_forms_are_widened_exactly(void **state) {
    (void)state;
    rng r = rng_start("emulated packed forms");
    check_frequent_forms(&r, 4);
}

/* Control: the same check sees codes of which a bit is changed. */
static void changed_codes_are_seen(void **state) {
    (void)state;
    enum { N = 16, K = 64, CODES = 256 /* bytes of a unit's */ };
    rng r = rng_start("emulated packed control");
    shape s = {.arithmetic = IV_TC16, .type = IV_BF16, .weight = IV_BF16, .rows = 3, .n = N, .k = K};
    problem p;
    iv_gpu_linear_args packed;
    iv_code_form form;
    do {
        make_problem(&r, &s, &p);
        pack_problem(&r, &p, &packed, &form);
    } while (form.kind != IV_CODES_INT4 && (free_packed(&p, &packed), true));
    unsigned char codes[CODES];
    uint16_t got[N * K];
    CUDA(cudaMemcpy(codes, packed.w.data, CODES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < CODES; i++) codes[i] ^= 8;
    CUDA(cudaMemcpy((void *)(uintptr_t)packed.w.data, codes, CODES, cudaMemcpyHostToDevice));
    CUDA(iv_gpu_widen_units(&packed.w, packed.widened, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(got, packed.widened, sizeof got, cudaMemcpyDeviceToHost));
    assert_int_not_equal(memcmp(got, p.w, sizeof got), 0);
    free_packed(&p, &packed);
}

int main(void) {
    iv_error err;
    if (iv_pool_open(1, &pool, &err) != IV_OK) return 1;
    is_hopper = true;
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_have_the_laws_bits),
                                       cmocka_unit_test(frequent_forms_are_widened_exactly),
                                       cmocka_unit_test(changed_codes_are_seen)};
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    iv_pool_close(pool);
    return bad;
}
