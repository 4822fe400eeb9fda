/* The kernels of attention's backward pass in the emulator (emulator/emulator.h) against the scalar reference, bit for
 * bit: small random problems, devices of all sizes, random schedules. Planted synchronization bugs must be caught. */
#include "cuda/attention_backward_cases.h"
#include "cuda/emulator/emulated.h"

static size_t launches;
static bool fault_happened;

/* The whole dqkv after `times` passes in a row, or NULL if one failed. */
static float *run_emulated(rng *r, const problem *p, bool generic, int times, emu_fault fault) {
    float *got = malloc(dqkv_bytes(p));
    int e = 0;
    GPU_OK(cudaMemset(p->d.dqkv, 0xa5, dqkv_bytes(p)));
    /* With a planted mistake kernels may read it too early: then they find no work. */
    GPU_OK(
        cudaMemset(p->d.scratch, fault ? 0 : 0xa5, iv_gpu_attention_backward_scratch(&p->s, p->rows, p->span_count)));
    another_machine(r, 5);
    iv_gpu_attention_backward_args a = args_of(p, 1 + (int)rng_below(r, 6));
    emu_plant(fault);
    for (int i = 0; i < times && !e; i++) e = iv_attention_backward_as(&a, generic, NULL);
    if (!e) e = cudaDeviceSynchronize();
    fault_happened = emu_fault_happened();
    emu_plant(EMU_NO_FAULT);
    if (e && fault == EMU_NO_FAULT) {
        char text[400];
        describe(p, text, sizeof text);
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        fail_msg("%s kernel, %d SMs: %s", generic ? "generic" : "own", a.sms, text);
    }
    GPU_OK(cudaMemcpy(got, p->d.dqkv, dqkv_bytes(p), cudaMemcpyDeviceToHost));
    launches++;
    if (!e) return got;
    free(got);
    return NULL;
}

static void kernels_have_the_reference_bits(const char *name, bool fast, double seconds) {
    rng r = rng_start(name);
    size_t n = launches;
    for (budget b = budget_of(seconds); has_time(&b);) {
        problem p = {0};
        random_shape(&r, &p, fast, true, 1 + rng_below(&r, fast ? 3 : 6));
        size_t most = fast && rng_below(&r, 4) == 0 ? 300 : 150;
        random_spans(&r, &p, 1 + rng_below(&r, 3), most, most + 10);
        finish_problem(&r, &p, gradients_of(&r, &p));
        float *want = reference(&p);
        for (int i = 0; i < 2; i++) {
            float *got = run_emulated(&r, &p, !fast, 1 + i, EMU_NO_FAULT);
            assert_whole(&p, i ? "twice" : "once", want, got);
            free(got);
        }
        free(want);
        free_problem(&p);
    }
    printf("%s: %zu runs, 0 differ\n", name, launches - n);
}

static void generic_kernel(void **state) {
    (void)state;
    kernels_have_the_reference_bits("emulated attention backward, generic", false, 3);
}

static void hopper_kernels(void **state) {
    (void)state;
    kernels_have_the_reference_bits("emulated attention backward", true, 7);
}

typedef struct attempt {
    const problem *p;
    const float *right;
    bool generic;
    emu_fault fault;
    int times;
    rng r;
} attempt;

enum { NOTHING_PLANTED = 40, NOT_CAUGHT, CAUGHT };

static int attempted(void *context) {
    attempt *a = context;
    problem now = *a->p;
    if (a->fault != EMU_FLIP_BIT) now.tiles_bytes = 0; /* a false tile may be outside of all memory */
    float *got = run_emulated(&a->r, &now, a->generic, a->times, a->fault);
    if (!fault_happened) return NOTHING_PLANTED;
    return !got || memcmp(got, a->right, dqkv_bytes(a->p)) != 0 ? CAUGHT : NOT_CAUGHT;
}

static size_t catches(rng *r, const problem *p, const float *right, bool generic, emu_fault fault, int times,
                      int most) {
    size_t caught = 0, planted = 0;
    for (int i = 0; i < most && !caught; i++) {
        attempt a = {p, right, generic, fault, times, {rng_next(r)}};
        int outcome = in_a_process(attempted, &a);
        assert_true(outcome == -1 || (outcome >= NOTHING_PLANTED && outcome <= CAUGHT));
        planted += outcome != NOTHING_PLANTED, caught += outcome == CAUGHT || outcome == -1;
    }
    printf("%s, %s: %zu of %zu caught\n", generic ? "generic" : "own", fault_names[fault], caught, planted);
    return caught;
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    static const emu_fault faults[] = {EMU_FORGET_WAITS, EMU_LOSE_ARRIVAL, EMU_RELEASE_EARLY,
                                       EMU_FORGET_LAST,  EMU_FLIP_BIT,     EMU_FORGET_FENCES};
    rng r = rng_start("emulated control");
    problem p = {.s = {IV_TC16, IV_BF16, 2, 1, 64, 2, 0, 0}, .values = NORMAL, .span_count = 2};
    p.spans[0].rows = 150, p.spans[1].rows = 70;
    finish_problem(&r, &p, NORMAL);
    float *right = reference(&p);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        assert_int_not_equal(catches(&r, &p, right, false, faults[i], faults[i] == EMU_FORGET_LAST ? 2 : 1, 200), 0);
    assert_int_not_equal(catches(&r, &p, right, true, EMU_FORGET_SYNCS, 1, 40), 0);
    free(right);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(generic_kernel), cmocka_unit_test(hopper_kernels),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
