/* The kernels of linear layers in the emulator (emulator/emulator.h) against the scalar law, bit for bit, on machines
 * without a GPU: random problems and configurations of all families under random schedules; a deadlock fails. Mistakes
 * that are planted in the synchronisation are found. */
#define main test_linear_main
#include "cuda/test_linear.c"
#undef main
#define GPU_OK CUDA
#include "cuda/emulator/emulated.h"

static void try_config(rng *r, problem *p, const iv_gpu_linear_config *c) {
    char what[512];
    another_machine(r, 6);
    describe(p, c, what, sizeof what);
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    int e = iv_gpu_linear_with(&p->a, c, p->scratch, p->scratch_bytes, NULL);
    if (e) {
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        fail_msg("%s", what);
    }
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
    size_t bad = differences(p, what);
    if (bad) fail_msg("%s: %zu of %zu differ", what, bad, p->samples * p->out_rows);
    if (!guards_stand(p)) fail_msg("%s: wrote outside", what);
    configurations_run++, family_runs[c->family]++;
}

static shape small_shape(rng *r, iv_gpu_family family) {
    static const size_t lengths[] = {1024, 2048, 768, 1280, 512, 256};
    bool wide = family == IV_GPU_WGMMA;
    shape s = random_shape(r, family != IV_GPU_GENERIC || rng_below(r, 2));
    s.rows = rng_below(r, 3) ? 1 + rng_below(r, 17) : 1 + rng_below(r, wide ? 160 : 64);
    s.n = s.epilogue == IV_GPU_SWIGLU ? 16 * (1 + rng_below(r, 8)) : 1 + rng_below(r, 160);
    s.k = rng_below(r, 3) ? lengths[rng_below(r, 6)] : 1 + rng_below(r, 1000);
    if (s.rows * s.n > 2000) s.k = s.k > 700 ? 512 : s.k;
    if (s.leaves) { /* fewer than the law's, as a rank has */
        s.leaves = iv_leaf_count(iv_padded_k(s.k));
        while (s.leaves > 1 && rng_below(r, 2)) s.leaves /= 2;
    }
    if (rng_below(r, 3)) return s;
    s.experts = 1 + rng_below(r, 30), s.experts_per_token = 1 + rng_below(r, s.experts < 5 ? s.experts : 5);
    s.first = rng_below(r, s.experts), s.count = 1 + rng_below(r, s.experts - s.first);
    s.weighted = rng_below(r, 2), s.epilogue = s.weighted || rng_below(r, 4) == 0 ? IV_GPU_STORE : IV_GPU_SWIGLU;
    s.n = 16 * (1 + rng_below(r, 4)), s.rows = 1 + rng_below(r, wide ? 40 : 16);
    s.k = s.k > 300 ? 256 : s.k, s.leaves = 0;
    return s;
}

static void family_has_the_laws_bits(const char *name, iv_gpu_family family, double seconds) {
    static size_t (*const configs[])(const iv_gpu_linear_args *, iv_gpu_linear_config *,
                                     size_t) = {iv_gpu_generic_configs, iv_gpu_stream_configs, iv_gpu_wgmma_configs};
    static iv_gpu_linear_config c[CONFIGS_MAX];
    rng r = rng_start(name);
    for (budget b = budget_of(seconds); has_time(&b);) {
        shape s = small_shape(&r, family);
        problem p;
        make_problem(&r, &s, &p);
        size_t n = configs[family](&p.a, c, CONFIGS_MAX);
        for (int i = 0; i < 4 && n && has_time(&b); i++) try_config(&r, &p, &c[rng_below(&r, n)]);
        free_problem(&p);
    }
    printf("%s: %zu runs, all the law's bits\n", name, family_runs[family]);
}

static void stream_has_the_laws_bits(void **state) {
    (void)state;
    family_has_the_laws_bits("emulated stream", IV_GPU_STREAM, 6);
}
static void wgmma_has_the_laws_bits(void **state) {
    (void)state;
    family_has_the_laws_bits("emulated wgmma", IV_GPU_WGMMA, 7);
}
static void generic_has_the_laws_bits(void **state) {
    (void)state;
    family_has_the_laws_bits("emulated generic", IV_GPU_GENERIC, 2);
}

/* True when the launch with a planted mistake fails or gives other bits. */
static bool is_caught(problem *p, const iv_gpu_linear_config *c, emu_fault fault, bool *happened) {
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    emu_plant(fault);
    int e = iv_gpu_linear_with(&p->a, c, p->scratch, p->scratch_bytes, NULL);
    *happened = emu_fault_happened();
    if (fault == EMU_LOSE_ARRIVAL && e) assert_non_null(strstr(cudaGetErrorString(e), "deadlock"));
    emu_plant(EMU_NO_FAULT);
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
    return e || differences(p, NULL) || !guards_stand(p);
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    rng r = rng_start("emulated control");
    shape s = {.arithmetic = IV_TC16, .type = IV_BF16, .weight = IV_BF16, .rows = 5, .n = 200, .k = 1024};
    problem p;
    make_problem(&r, &s, &p);
    static iv_gpu_linear_config c[CONFIGS_MAX];
    for (int family = 0; family < 2; family++) {
        size_t n = (family ? iv_gpu_wgmma_configs : iv_gpu_stream_configs)(&p.a, c, CONFIGS_MAX);
        for (emu_fault f = EMU_FORGET_WAITS; f <= EMU_FLIP_BIT; f++) {
            size_t planted = 0, caught = 0;
            for (int i = 0; i < 60 && caught < 2; i++) {
                another_machine(&r, 4);
                bool happened, bad = is_caught(&p, &c[rng_below(&r, n)], f, &happened);
                planted += happened, caught += happened && bad;
            }
            printf("%s: %s: %zu of %zu caught\n", family ? "wgmma" : "stream", fault_names[f], caught, planted);
            if (family && f == EMU_FORGET_SYNCS) continue; /* these kernels hardly need them */
            assert_int_not_equal(caught, 0);
        }
    }
    free_problem(&p);
}

int main(void) {
    iv_error err;
    if (iv_pool_open(1, &pool, &err) != IV_OK) return 1;
    is_hopper = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_mistakes_are_caught), cmocka_unit_test(stream_has_the_laws_bits),
        cmocka_unit_test(wgmma_has_the_laws_bits), cmocka_unit_test(generic_has_the_laws_bits)};
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    iv_pool_close(pool);
    return bad;
}
