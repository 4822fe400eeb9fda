/* The attention kernels in the emulator (emulator/emulator.h) against the one-row reference, bit for bit, on
 * machines without a GPU: small random problems, every kernel of a shape, work divided among a few CTAs of devices
 * of all sizes, random schedules. A deadlock fails the test. Planted synchronization bugs must be caught. */
#include "cuda/attention_cases.h"
#define GPU_OK CUDA
#include "cuda/emulator/emulated.h"

static size_t launches;
static bool fault_happened;

/* The whole output, or NULL if the launch failed. */
static void *run_emulated(rng *r, const problem *p, bool generic, emu_fault fault) {
    size_t used;
    int workers_for = 1 + (int)rng_below(r, 6);
    void *plan = make_plan(p, generic, workers_for, &used), *out = malloc(p->q_bytes);
    CUDA(cudaMemcpy(p->d.plan, plan, used, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(p->d.out, 0x5a, p->q_bytes));
    reset_scratch(p, generic);
    another_machine(r, 5);
    iv_gpu_attention_args a = args_of(p, rng_below(r, 3) ? workers_for : 1 + (int)rng_below(r, 4));
    emu_plant(fault);
    int e = iv_attention_launch_as(&a, generic, NULL);
    if (!e) e = cudaDeviceSynchronize();
    fault_happened = emu_fault_happened();
    emu_plant(EMU_NO_FAULT);
    if (e && fault == EMU_NO_FAULT) {
        char text[400];
        describe(p, text, sizeof text);
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        fail_msg("%s kernel, workers for %d, %d launched: %s", generic ? "generic" : "own", workers_for, a.sms, text);
    }
    CUDA(cudaMemcpy(out, p->d.out, p->q_bytes, cudaMemcpyDeviceToHost));
    if (!e && fault == EMU_NO_FAULT) check_scratch(p, generic);
    free(plan);
    launches++;
    if (!e) return out;
    free(out);
    return NULL;
}

/* Compares sampled rows with the reference, and every other run with the first. */
static void check_emulated(rng *r, problem *p, bool fast) {
    free(take_lse2(p));
    void *first = run_emulated(r, p, !fast, EMU_NO_FAULT);
    float *lse2 = take_lse2(p);
    check_rows(r, p, first, lse2, 10);
    for (int i = 0; i < 3; i++) {
        bool generic = !fast || i == 2;
        p->no_lse2 = rng_below(r, 4) == 0;
        void *again = run_emulated(r, p, generic, EMU_NO_FAULT);
        assert_whole(p, generic ? "generic kernel" : "own kernel", first, again);
        check_lse2(p, generic ? "generic kernel" : "own kernel", lse2);
        free(again);
    }
    free(first), free(lse2);
}

static void small_problem(rng *r, problem *p, bool fast) {
    random_shape(r, p, fast);
    iv_gpu_attention_shape *s = &p->s;
    s->kv_heads = 1 + rng_below(r, 2), s->group = rng_below(r, 3) ? 1 + rng_below(r, 8) : 1 + rng_below(r, 20);
    s->heads = s->kv_heads * s->group, s->group_first = 0;
    if (!fast && s->head_dim > 96) s->head_dim = 80;
    if (fast && rng_below(r, 3) == 0) s->head_dim = 64;
    size_t kind = rng_below(r, fast ? 3 : 2);
    if (kind == 0)
        random_spans(r, p, 1 + rng_below(r, 4), 1, 900); /* a decode step */
    else if (kind == 1)
        random_spans(r, p, 1 + rng_below(r, 2), 4, 600);
    else
        random_spans(r, p, 1, 150, 100), s->group = 1, s->heads = s->kv_heads;
    finish_problem(r, p, rng_below(r, 4) ? NORMAL : SPECIAL);
}

static void kernels_have_the_reference_bits(const char *name, bool fast, double seconds) {
    rng r = rng_start(name);
    size_t n = launches;
    for (budget b = budget_of(seconds); has_time(&b);) {
        problem p = {0};
        small_problem(&r, &p, fast);
        check_emulated(&r, &p, fast);
        free_problem(&p);
    }
    printf("%s: %zu launches, 0 differ\n", name, launches - n);
}

static void hopper_kernels(void **state) {
    (void)state;
    kernels_have_the_reference_bits("emulated attention", true, 6);
}
/* A worker whose last tiles are whole merges its part of a shared slice while some of its warps may still be at
 * those tiles. */
static void whole_tiles_after_a_shared_slice(void **state) {
    (void)state;
    rng r = rng_start("emulated attention, whole tiles behind a share");
    size_t n = launches;
    for (budget b = budget_of(5); has_time(&b);) {
        problem p = {.s = {IV_TC16, IV_BF16, 0, 1, 64, 1 + rng_below(&r, 8), 0, 0}, .keys = NORMAL, .scale = 0.18f};
        p.s.heads = p.s.group, p.span_count = 2 + rng_below(&r, 3);
        for (size_t i = 0; i < p.span_count; i++) {
            int32_t position = (int32_t)(i ? rng_below(&r, 250) : 300 + rng_below(&r, 600));
            p.spans[i] = (iv_gpu_span){.rows = (int32_t)(1 + rng_below(&r, 4)), .position = position};
        }
        finish_problem(&r, &p, NORMAL);
        check_emulated(&r, &p, true);
        free_problem(&p);
    }
    printf("whole tiles after a shared slice: %zu launches, 0 differ\n", launches - n);
}

static void generic_kernel(void **state) {
    (void)state;
    kernels_have_the_reference_bits("emulated attention, generic", false, 3);
}

/* Launches without synchronization in between: each reads the previous output as its queries, and all use one
 * scratch. */
static void *run_chain(rng *r, const problem *p, bool plain, emu_fault fault) {
    size_t used, launched = 2 + p->rows % 3;
    int workers_for = plain ? 3 : 1 + (int)rng_below(r, 6), e = 0;
    void *plan = make_plan(p, plain, workers_for, &used), *out = malloc(p->q_bytes);
    void *x[2] = {to_device(p->q, p->q_bytes), to_device(p->q, p->q_bytes)};
    CUDA(cudaMemcpy(p->d.plan, plan, used, cudaMemcpyHostToDevice));
    reset_scratch(p, plain);
    another_machine(r, 5);
    emu_plant(fault);
    for (size_t i = 0; i < launched && !e; i++) {
        iv_gpu_attention_args a = args_of(p, workers_for);
        a.q = x[i % 2], a.out = x[(i + 1) % 2];
        e = iv_attention_launch_as(&a, plain, NULL);
        if (plain && !e) e = cudaDeviceSynchronize();
    }
    if (!e) e = cudaDeviceSynchronize();
    emu_plant(EMU_NO_FAULT);
    if (e && !fault) {
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        fail_msg("a chain of attention");
    }
    launches += launched;
    CUDA(cudaMemcpy(out, x[launched % 2], p->q_bytes, cudaMemcpyDeviceToHost));
    cudaFree(x[0]), cudaFree(x[1]), free(plan);
    return out;
}

static size_t chain_differs(rng *r, emu_fault fault) {
    problem p = {0};
    size_t differ = 0;
    small_problem(r, &p, true);
    void *want = run_chain(r, &p, true, EMU_NO_FAULT);
    for (int i = 0; i < 2; i++) {
        void *got = run_chain(r, &p, false, fault);
        differ += memcmp(want, got, p.q_bytes) != 0;
        if (!fault) assert_whole(&p, "a chain", want, got);
        free(got);
    }
    free(want);
    free_problem(&p);
    return differ;
}

static void overlapping_launches_have_the_same_bits(void **state) {
    (void)state;
    rng r = rng_start("emulated attention, chains");
    size_t n = launches, caught = 0;
    for (budget b = budget_of(5); has_time(&b);) chain_differs(&r, EMU_NO_FAULT);
    printf("emulated attention, chains: %zu launches, 0 differ\n", launches - n);
    for (int i = 0; i < 20 && !caught; i++) caught = chain_differs(&r, EMU_FORGET_LAST);
    printf("%s: caught in %zu of 2 runs\n", fault_names[EMU_FORGET_LAST], caught);
    assert_int_not_equal(caught, 0);
}

static void plant_mistakes(rng *r, const char *name, size_t head_dim, iv_gpu_span span, bool syncs) {
    problem p = {.s = {IV_TC16, IV_BF16, 2, 1, head_dim, 2, 0, 0}, .keys = NORMAL, .scale = 0.18f, .span_count = 1};
    p.spans[0] = span;
    finish_problem(r, &p, NORMAL);
    void *right = run_emulated(r, &p, false, EMU_NO_FAULT);
    for (emu_fault f = EMU_FORGET_WAITS; f <= EMU_FORGET_FENCES; f++) {
        size_t caught = 0, planted = 0;
        if (f > EMU_RELEASE_EARLY && f != EMU_FORGET_FENCES) continue;
        if ((f == EMU_FORGET_SYNCS || f == EMU_FORGET_FENCES) && !syncs) continue;
        for (int i = 0; i < 100 && caught < 1; i++) {
            void *got = run_emulated(r, &p, false, f);
            planted += fault_happened, caught += fault_happened && (!got || memcmp(got, right, p.q_bytes) != 0);
            free(got);
        }
        printf("%s: %s: %zu of %zu caught\n", name, fault_names[f], caught, planted);
        assert_int_not_equal(caught, 0);
    }
    free(right);
    free_problem(&p);
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    rng r = rng_start("emulated control");
    plant_mistakes(&r, "decode", 64, (iv_gpu_span){.rows = 1, .position = 1700}, true);
    /* Twice around the rings; its threads synchronize only through mbarriers and shuffles. */
    plant_mistakes(&r, "prefill", 64, (iv_gpu_span){.rows = 130, .position = 700}, false);
    plant_mistakes(&r, "prefill in pairs", 256, (iv_gpu_span){.rows = 70, .position = 700}, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(planted_mistakes_are_caught), cmocka_unit_test(hopper_kernels),
                                       cmocka_unit_test(whole_tiles_after_a_shared_slice),
                                       cmocka_unit_test(generic_kernel),
                                       cmocka_unit_test(overlapping_launches_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
