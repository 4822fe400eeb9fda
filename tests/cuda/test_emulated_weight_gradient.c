/* weight_gradient_cases.h on the emulated kernels, with fewer trials. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 4, (usual))
#include "cuda/weight_gradient_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

static void generic_gradients(void **state) {
    (void)state;
    rng r = rng_start("emulated generic gradients");
    size_t steps = 0;
    for (budget b = budget_of(3); has_time(&b) || steps < 4; steps++) {
        gradient_case c = random_gradient(&r, 96, 100, 70);
        gradient_step(&r, &c, generic_gradient);
    }
    printf("generic: %zu steps\n", steps);
}

static void wgmma_gradients(void **state) {
    (void)state;
    rng r = rng_start("emulated wgmma gradients");
    size_t steps = 0;
    for (budget b = budget_of(7); has_time(&b) || steps < 6; steps++) {
        another_machine(&r, 6);
        gradient_case c = random_wgmma(&r, 300, 300, 100);
        gradient_kernel *chosen = iv_gpu_weight_gradient;
        gradient_step(&r, &c, steps % 4 < IV_GRADIENT_SHAPES ? wgmma_kernels[steps % 4] : chosen);
    }
    printf("wgmma: %zu steps, %zu passes\n", steps, wgmma_runs);
    assert_true(wgmma_runs > 0);
    wgmma_runs = 0;
}

static void grouped_gradients(void **state) {
    (void)state;
    static gradient_kernel *const others[] = {generic_gradient, iv_gpu_weight_gradient};
    rng r = rng_start("emulated gradients of experts");
    size_t steps = 0;
    for (budget b = budget_of(8); has_time(&b) || steps < 7; steps++) {
        another_machine(&r, 6);
        size_t kernel = steps % (IV_GRADIENT_SHAPES + 2);
        bool wgmma = kernel < IV_GRADIENT_SHAPES;
        gradient_case c = wgmma || rng_below(&r, 2) ? random_wgmma(&r, 200, 200, 80) : random_gradient(&r, 96, 100, 50);
        grouped_step(&r, &c, wgmma ? wgmma_kernels[kernel] : others[kernel - IV_GRADIENT_SHAPES]);
    }
    printf("experts: %zu steps, %zu passes by wgmma\n", steps, wgmma_runs);
    assert_true(wgmma_runs > 0);
}

/* ---- controls ---------------------------------------------------------------------------------------------------- */

typedef struct control { /* one virtual rank of one pass */
    gradient_case c;
    iv_rank_range range;
    iv_token_axis axis;
    iv_gpu_weight_gradient_args a;
    float *want, *got;
} control;

static control make_control(rng *r, size_t n, size_t k, size_t tokens) {
    control t = {.c = {.arithmetic = IV_TC16, .type = IV_BF16, .n = n, .k = k, .dy_stride = n, .x_stride = k},
                 .range = {0, tokens, true, true}};
    t.axis = (iv_token_axis){.padded = tokens, .range_count = 1, .ranks = 1};
    char *dy = random_values(r, NORMAL, IV_BF16, tokens * n), *x = random_values(r, NORMAL, IV_BF16, tokens * k);
    int64_t *offsets = malloc(n * sizeof *offsets);
    for (size_t c = 0; c < n; c++) offsets[c] = (int64_t)(c * k);
    t.want = calloc(n * k, sizeof(float)), t.got = calloc(n * k, sizeof(float));
    gradient_chain(&(pass){&t.c, dy, x}, &t.range, t.want);
    t.a = (iv_gpu_weight_gradient_args){
        .arithmetic = IV_TC16, .type = IV_BF16, .dy_stride = n, .n = n, .x_stride = k, .k = k};
    t.a.dy = gpu_copy(dy, 2 * tokens * n), t.a.x = gpu_copy(x, 2 * tokens * k);
    t.a.offsets = gpu_copy(offsets, n * sizeof *offsets), t.a.sums.sum = gpu_room(n * k * sizeof(float));
    t.a.sms = 2, t.a.scratch = gpu_room(iv_gpu_weight_gradient_scratch(t.a.sms));
    free(dy), free(x), free(offsets);
    return t;
}

static void free_control(control *t) {
    cudaFree((void *)t->a.dy), cudaFree((void *)t->a.x), cudaFree((void *)t->a.offsets), cudaFree(t->a.sums.sum);
    cudaFree(t->a.scratch), free(t->want), free(t->got);
}

/* True if the launch with a planted bug fails or gives other bits. */
static bool is_caught(control *t, gradient_kernel *kernel, emu_fault fault, bool *happened) {
    size_t bytes = t->c.n * t->c.k * sizeof(float);
    t->axis.ranges = &t->range, t->a.axis = &t->axis;
    GPU_OK(cudaMemset(t->a.sums.sum, 0xa5, bytes));
    emu_plant(fault);
    int e = kernel(&t->a, NULL);
    if (!e) e = cudaDeviceSynchronize();
    *happened = emu_fault_happened();
    emu_plant(EMU_NO_FAULT);
    GPU_OK(cudaMemcpy(t->got, t->a.sums.sum, bytes, cudaMemcpyDeviceToHost));
    return e || memcmp(t->want, t->got, bytes) != 0;
}

static void check_faults(rng *r, const char *name, control *t, gradient_kernel *kernel, const emu_fault *faults,
                         size_t count) {
    for (size_t f = 0; f < count; f++) {
        size_t planted = 0, caught = 0;
        for (int turn = 0; turn < 40 && caught < 2; turn++) {
            another_machine(r, 4);
            bool happened, bad = is_caught(t, kernel, faults[f], &happened);
            planted += happened, caught += bad;
            assert_true(faults[f] || !bad);
            if (!faults[f] && turn == 3) break;
        }
        printf("%s: %s: %zu of %zu caught\n", name, fault_names[faults[f]], caught, planted);
        assert_true(!faults[f] || caught > 0);
    }
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    static const emu_fault generic[] = {EMU_NO_FAULT, EMU_FORGET_SYNCS, EMU_FLIP_BIT};
    rng r = rng_start("emulated control");
    control t = make_control(&r, 96, 80, 160);
    check_faults(&r, "generic", &t, generic_gradient, generic, 3);
    free_control(&t);
    static const emu_fault wgmma[] = {EMU_NO_FAULT, EMU_FORGET_WAITS, EMU_LOSE_ARRIVAL, EMU_RELEASE_EARLY,
                                      EMU_FLIP_BIT};
    control u = make_control(&r, 144, 64, 8 * 64 + 16); /* more blocks than stages */
    for (size_t i = 0; i < 2; i++) check_faults(&r, "wgmma", &u, wgmma_kernels[i], wgmma, 5);
    free_control(&u);
}

/* The tree of column sums must wait for the chains, which are the launch before it. */
static void forgotten_launches_are_caught(void **state) {
    (void)state;
    enum { N = 150, RANKS = 4, TOKENS = 16 * RANKS };
    rng r = rng_start("emulated column control");
    int32_t row[TOKENS];
    iv_rank_range ranges[RANKS];
    float want[N], got[N];
    for (int i = 0; i < TOKENS; i++) row[i] = i;
    for (size_t i = 0; i < RANKS; i++) ranges[i] = (iv_rank_range){16 * i, 16 * i + 16, true, true};
    iv_token_axis axis = {.padded = TOKENS, .row = row, .ranges = ranges, .range_count = RANKS, .ranks = RANKS};
    float *dy = random_values(&r, NORMAL, IV_F32, TOKENS * N);
    iv_gpu_column_sums_args a = {.axis = &axis, .row = row, .dy = dy, .dy_stride = N, .n = N}, gpu = a;
    places p = {&(int64_t){0}, 1, N};
    host_pass(&axis, &(iv_axis_sums){.sum = want}, &p, column_chain, &a);
    gpu.row = gpu_copy(row, sizeof row), gpu.dy = gpu_copy(dy, TOKENS * sizeof(float[N]));
    gpu.sums.sum = gpu_room(sizeof got), gpu.scratch = gpu_room(iv_gpu_column_sums_scratch(N));
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0, turns = 0;
        for (; turns < (planted ? 1000 : 20) && caught < 2; turns++) {
            another_machine(&r, 4);
            GPU_OK(cudaMemset(gpu.scratch, 0xa5, iv_gpu_column_sums_scratch(N)));
            emu_plant(planted ? EMU_FORGET_LAST : EMU_NO_FAULT);
            GPU_OK(iv_gpu_column_sums(&gpu, NULL));
            GPU_OK(cudaDeviceSynchronize());
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(got, gpu.sums.sum, sizeof got, cudaMemcpyDeviceToHost));
            caught += memcmp(want, got, sizeof got) != 0;
        }
        printf("column sums: %s: %zu of %zu caught\n", fault_names[planted ? EMU_FORGET_LAST : EMU_NO_FAULT], caught,
               turns);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree((void *)gpu.row), cudaFree((void *)gpu.dy), cudaFree(gpu.sums.sum), cudaFree(gpu.scratch), free(dy);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(planted_mistakes_are_caught),
                                       cmocka_unit_test(forgotten_launches_are_caught),
                                       cmocka_unit_test(bad_axes_are_refused),
                                       cmocka_unit_test_setup(transposed_weights, any_machine),
                                       cmocka_unit_test_setup(column_sums, any_machine),
                                       cmocka_unit_test_setup(generic_gradients, any_machine),
                                       cmocka_unit_test(wgmma_gradients),
                                       cmocka_unit_test(grouped_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
