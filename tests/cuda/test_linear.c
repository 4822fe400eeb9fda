/* Linear layers on a GPU against the scalar law, bit for bit: random shapes, types, epilogues, biases, experts, edge
 * values; every legal configuration of a problem on the same inputs. Large problems are compared at sampled outputs.
 * Memory outside the rows and outputs of a problem must be unchanged, and a control shows that the comparison can fail.
 */
#include "cuda/linear_cases.h"

static size_t family_runs[IV_GPU_FAMILIES];

static void run(problem *p, const iv_gpu_linear_config *c) {
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    if (c)
        CUDA(iv_gpu_linear_with(&p->a, c, NULL));
    else
        CUDA(iv_gpu_linear(&p->a, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
}

static void check_all(problem *p) {
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t n = iv_gpu_linear_configs(&p->a, c, CONFIGS_MAX);
    assert_in_range(n, 1, CONFIGS_MAX);
    iv_gpu_linear_config chosen = iv_gpu_linear_choose(&p->a);
    for (size_t i = 0; i <= n; i++) { /* the last: the chosen one */
        char what[512];
        describe(p, i < n ? &c[i] : &chosen, what, sizeof what);
        run(p, i < n ? &c[i] : NULL);
        size_t bad = differences(p, what);
        if (bad) fail_msg("%s: %zu of %zu differ", what, bad, p->samples * p->out_rows);
        if (!guards_stand(p)) fail_msg("%s: wrote outside", what);
        configurations_run++, family_runs[i < n ? c[i].family : chosen.family]++;
    }
}

static void try_shape(rng *r, const shape *s) {
    problem p;
    make_problem(r, s, &p);
    check_all(&p);
    free_problem(&p);
}

static void random_problems(bool tc16, bool experts, const char *name) {
    rng r = rng_start(name);
    for (size_t i = 0; i < trials(experts ? 40 : 60, 2000); i++) {
        shape s = random_shape(&r, tc16);
        if (experts) {
            s.experts = 1 + rng_below(&r, 40), s.experts_per_token = 1 + rng_below(&r, s.experts < 8 ? s.experts : 8);
            s.first = rng_below(&r, s.experts), s.count = 1 + rng_below(&r, s.experts - s.first);
            s.weighted = rng_below(&r, 2), s.epilogue = s.weighted         ? IV_GPU_STORE
                                                        : rng_below(&r, 4) ? IV_GPU_SWIGLU
                                                                           : IV_GPU_STORE;
            s.n = 16 * (1 + rng_below(&r, 6)), s.rows = 1 + rng_below(&r, 40);
            s.k = s.k > 300 ? 300 : s.k, s.leaves = rng_below(&r, 2) ? 1 : 0, s.packed = rng_below(&r, 2);
        }
        try_shape(&r, &s);
    }
}

static void tc16_has_the_laws_bits(void **state) {
    (void)state;
    if (!is_hopper) {
        printf("SKIPPED: tc16 needs compute capability 9.0\n");
        skip();
    }
    random_problems(true, false, "tc16");
}
static void tc16_experts_have_the_laws_bits(void **state) {
    (void)state;
    if (!is_hopper) skip();
    random_problems(true, true, "tc16 experts");
}
static void fma32_has_the_laws_bits(void **state) {
    (void)state;
    random_problems(false, false, "fma32");
}
static void fma32_experts_have_the_laws_bits(void **state) {
    (void)state;
    random_problems(false, true, "fma32 experts");
}

/* Sizes of models, at sampled outputs. */
static void large_problems(void **state) {
    (void)state;
    if (!is_hopper) skip();
    rng r = rng_start("large");
    static const size_t rows[] = {1, 2, 8, 9, 16, 24, 33, 64};
    static const struct {
        size_t n, k;
        int leaves;
        iv_gpu_epilogue epilogue;
    } size[] = {{6144, 4096, 8, IV_GPU_STORE},   {4096, 4096, 8, IV_GPU_RESIDUAL}, {4096, 12288, 8, IV_GPU_RESIDUAL},
                {24576, 4096, 8, IV_GPU_SWIGLU}, {4096, 1536, 1, IV_GPU_STORE},    {4096, 6144, 4, IV_GPU_STORE},
                {2570, 5120, 8, IV_GPU_STORE},   {1024, 9728, 8, IV_GPU_RESIDUAL}, {5120, 3200, 1, IV_GPU_STORE}};
    for (size_t i = 0; i < (short_run() ? 1 : sizeof size / sizeof *size); i++)
        for (size_t m = 0; m < 2; m++) {
            shape s = {.arithmetic = IV_TC16,
                       .type = m ? IV_F16 : IV_BF16,
                       .weight = m ? IV_F16 : IV_BF16,
                       .n = size[i].n,
                       .k = size[i].k,
                       .leaves = size[i].leaves,
                       .epilogue = size[i].epilogue,
                       .rows = rows[rng_below(&r, sizeof rows / sizeof *rows)],
                       .fw = NORMAL,
                       .fx = rng_below(&r, 2) ? NORMAL : WIDE,
                       .samples = 48};
            try_shape(&r, &s);
        }
    static const struct {
        size_t n, k;
        bool weighted;
    } expert_size[] = {{1536, 2048, false}, {2048, 768, true}};
    for (size_t i = 0; i < (short_run() ? 1 : 4); i++) { /* 128 experts, 8 for a token */
        shape s = {.arithmetic = IV_TC16,
                   .type = IV_BF16,
                   .weight = IV_BF16,
                   .n = expert_size[i % 2].n,
                   .k = expert_size[i % 2].k,
                   .epilogue = expert_size[i % 2].weighted ? IV_GPU_STORE : IV_GPU_SWIGLU,
                   .rows = i < 2 ? 1 + rng_below(&r, 4) : 17 + rng_below(&r, 30),
                   .experts = 128,
                   .count = 24,
                   .first = 24 * rng_below(&r, 5),
                   .experts_per_token = 8,
                   .weighted = expert_size[i % 2].weighted,
                   .samples = 32};
        try_shape(&r, &s);
    }
}

/* The flushing of fma32: results near 2^-126, from products just below it. Law, 3.1. */
static void flushing_is_after_rounding(void **state) {
    (void)state;
    rng r = rng_start("flushing");
    shape s = {.arithmetic = IV_FMA32, .type = IV_F32, .weight = IV_F32, .rows = 24, .n = 64, .k = 16};
    problem p;
    make_problem(&r, &s, &p);
    float *w = (float *)p.w, *x = (float *)p.x, near[8]; /* (1 + a)(1 - a') is 1 minus a^2, about 2^-25 */
    for (size_t i = 0; i < 8; i++) near[i] = ldexpf((float)(724 + rng_below(&r, 2172)), -23);
    memset(w, 0, s.n * p.a.w.k_padded * 4);
    for (size_t n = 0; n < s.n; n++)
        w[n * p.a.w.k_padded] = ldexpf(1.0f + near[n % 8] + ldexpf((float)(n / 8), -23), -63);
    for (size_t m = 0; m < s.rows; m++)
        x[m * p.a.x_stride] = ldexpf(1.0f - (near[m % 8] + ldexpf((float)(m / 8) - 1.0f, -24)), -63);
    CUDA(cudaMemcpy((void *)p.a.w.data, w, s.n * p.a.w.k_padded * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy((void *)p.a.x, x, s.rows * p.a.x_stride * 4, cudaMemcpyHostToDevice));
    memcpy(p.want, p.before, p.out_bytes);
    iv_pool_run(pool, p.samples, reference_sample, &p);
    check_all(&p);
    free_problem(&p);
}

/* Control: a changed bit of x and another order of the leaves are both detected. */
static void the_check_can_fail(void **state) {
    (void)state;
    rng r = rng_start("control");
    shape s = {.arithmetic = is_hopper ? IV_TC16 : IV_FMA32,
               .type = IV_BF16,
               .weight = IV_BF16,
               .rows = 3,
               .n = 128,
               .k = 512};
    problem p;
    make_problem(&r, &s, &p);
    run(&p, NULL);
    assert_int_equal(differences(&p, "as it is"), 0);
    p.a.w.leaves = 4; /* the device adds another tree */
    run(&p, NULL);
    assert_int_not_equal(differences(&p, NULL), 0);
    p.a.w.leaves = 8;
    uint16_t bit = (uint16_t)(((const uint16_t *)p.x)[7] ^ 1);
    CUDA(cudaMemcpy((uint16_t *)p.a.x + 7, &bit, 2, cudaMemcpyHostToDevice));
    run(&p, NULL);
    assert_int_not_equal(differences(&p, NULL), 0);
    free_problem(&p);
}

/* Unsupported problems are refused, not computed wrongly. */
static void bad_problems_are_refused(void **state) {
    (void)state;
    rng r = rng_start("refused");
    shape s = {.arithmetic = IV_FMA32, .type = IV_BF16, .weight = IV_BF16, .rows = 3, .n = 32, .k = 128};
    problem p;
    make_problem(&r, &s, &p);
    iv_gpu_linear_config c = iv_gpu_linear_choose(&p.a);
    iv_gpu_linear_args bad[6];
    for (size_t i = 0; i < 6; i++) bad[i] = p.a;
    bad[0].w.leaves = 3, bad[1].w.k_padded = 120, bad[2].type = IV_F16, bad[3].w.data = (const char *)p.a.w.data + 2;
    bad[4].epilogue = IV_GPU_SWIGLU, bad[4].w.n = 24, bad[5].rows = SIZE_MAX / 2;
    for (size_t i = 0; i < 6; i++) assert_int_not_equal(iv_gpu_linear_with(&bad[i], &c, NULL), 0);
    bad[0] = p.a, bad[0].rows = 0; /* an empty problem succeeds */
    assert_int_equal(iv_gpu_linear_with(&bad[0], &c, NULL), 0);
    free_problem(&p);
}

int main(void) {
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("SKIPPED: 8 cases need a GPU; they run emulated in cuda_emulated_linear\n");
        return 77;
    }
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    is_hopper = major == 9 && minor == 0;
    iv_error err;
    if (iv_pool_open(0, &pool, &err) != IV_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_check_can_fail),         cmocka_unit_test(bad_problems_are_refused),
        cmocka_unit_test(tc16_has_the_laws_bits),     cmocka_unit_test(tc16_experts_have_the_laws_bits),
        cmocka_unit_test(fma32_has_the_laws_bits),    cmocka_unit_test(fma32_experts_have_the_laws_bits),
        cmocka_unit_test(flushing_is_after_rounding), cmocka_unit_test(large_problems),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("configurations compared: %zu (generic %zu, wgmma %zu, mma %zu)\n", configurations_run,
           family_runs[IV_GPU_GENERIC], family_runs[IV_GPU_WGMMA], family_runs[IV_GPU_MMA]);
    iv_pool_close(pool);
    return failed;
}
