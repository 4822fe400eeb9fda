/* Attention's backward pass on a GPU against the scalar reference, bit for bit: random sequences, windows, groups, head
 * sizes and types; and the Hopper kernels against the generic one at sizes that the reference is too slow for. */
#include "cuda/attention_backward_cases.h"

/* The whole dqkv. */
static float *run_gpu(const problem *p, bool generic, int sms) {
    iv_gpu_attention_backward_args a = args_of(p, sms);
    GPU_OK(cudaMemset(p->d.dqkv, 0xa5, dqkv_bytes(p)));
    GPU_OK(cudaMemset(p->d.scratch, 0xa5, iv_gpu_attention_backward_scratch(&p->s, p->rows, p->span_count)));
    GPU_OK(iv_attention_backward_as(&a, generic, NULL));
    return host_copy(p->d.dqkv, dqkv_bytes(p));
}

static void check_kernels(const problem *p, const float *want) {
    static const int sms[] = {132, 1, 7};
    char what[100];
    for (size_t i = 0; i < 4; i++) {
        bool generic = i == 3 || !iv_attention_backward_is_hopper(&p->s);
        float *got = run_gpu(p, generic, sms[i % 3]);
        snprintf(what, sizeof what, "%s kernel, %d SMs", generic ? "generic" : "own", sms[i % 3]);
        assert_whole(p, what, want, got);
        free(got);
        if (!iv_attention_backward_is_hopper(&p->s)) break;
    }
}

static void every_kernel_has_the_reference_bits(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("cuda attention backward");
    size_t n = trials(40, 600);
    for (size_t i = 0; i < n; i++) {
        problem p = {0};
        random_shape(&r, &p, i % 2 && is_hopper(), is_hopper(), 6);
        random_spans(&r, &p, 1 + rng_below(&r, 4), 260, 330);
        finish_problem(&r, &p, gradients_of(&r, &p));
        float *want = reference(&p);
        check_kernels(&p, want);
        free(want);
        free_problem(&p);
    }
    printf("cuda attention backward: %zu problems, 0 differ\n", n);
}

static void many_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    if (!is_hopper()) skip();
    rng r = rng_start("cuda attention backward, many rows");
    size_t n = trials(6, 60);
    for (size_t i = 0; i < n; i++) {
        problem p = {.s = {IV_TC16, i % 4 == 3 ? IV_F16 : IV_BF16, 16, 4, i % 2 ? 64 : 128, 4, 0, 0}, .values = NORMAL};
        if (i % 3 == 1) p.s.group = 1, p.s.kv_heads = 8, p.s.heads = 8;
        if (i % 3 == 2) p.s.group = 7, p.s.kv_heads = 2, p.s.heads = 14, p.s.window = (int64_t)rng_below(&r, 1500);
        for (p.span_count = 0; p.span_count < 1 + i % 4; p.span_count++)
            p.spans[p.span_count].rows = (int32_t)(1 + rng_below(&r, short_run() ? 300 : 3000));
        finish_problem(&r, &p, NORMAL);
        float *want = run_gpu(&p, true, 132);
        check_kernels(&p, want);
        free(want);
        free_problem(&p);
    }
    printf("cuda attention backward, many rows: %zu problems, 0 differ\n", n);
}

/* A graph is replayed after its spans changed: they are read from device memory. */
static void graphs_follow_the_spans(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("cuda attention backward, graphs");
    for (int fast = 0; fast < 2; fast++) {
        if (fast && !is_hopper()) continue;
        problem p = {.s = {fast ? IV_TC16 : IV_FMA32, IV_BF16, 4, 2, 64, 2, 0, 0}, .values = NORMAL, .span_count = 2};
        p.spans[0].rows = 180, p.spans[1].rows = 90;
        finish_problem(&r, &p, NORMAL);
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        iv_gpu_attention_backward_args a = args_of(&p, 132);
        float *whole = run_gpu(&p, !fast, 132);
        GPU_OK(cudaStreamCreate(&stream));
        GPU_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        GPU_OK(iv_attention_backward_as(&a, !fast, stream));
        GPU_OK(cudaStreamEndCapture(stream, &graph));
        GPU_OK(cudaGraphInstantiate(&exec, graph, 0));
        for (int round = 0; round < 3; round++) {
            p.spans[0].rows = (int32_t[]){180, 70, 130}[round];
            GPU_OK(cudaMemcpy(p.d.spans, p.spans, sizeof p.spans, cudaMemcpyHostToDevice));
            float *want = round ? reference(&p) : whole;
            GPU_OK(cudaMemset(p.d.dqkv, 0xa5, dqkv_bytes(&p)));
            GPU_OK(cudaGraphLaunch(exec, stream));
            GPU_OK(cudaStreamSynchronize(stream));
            float *got = host_copy(p.d.dqkv, dqkv_bytes(&p));
            assert_whole(&p, "a graph", want, got);
            free(want), free(got);
        }
        GPU_OK(cudaGraphExecDestroy(exec));
        GPU_OK(cudaGraphDestroy(graph));
        GPU_OK(cudaStreamDestroy(stream));
        free_problem(&p);
    }
}

/* The check can fail: a changed bit of a visible key shows; one of a key past the end does not. */
static void a_changed_key_shows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("cuda attention backward, control");
    problem p = {.s = {IV_FMA32, IV_BF16, 2, 1, 64, 2, 0, 0}, .values = NORMAL, .span_count = 1};
    p.spans[0].rows = 70;
    finish_problem(&r, &p, NORMAL);
    float *before = run_gpu(&p, true, 132);
    for (int seen = 0; seen < 2; seen++) {
        size_t position = seen ? 65 : 75, page = p.tables[(size_t)p.spans[0].table + 1];
        uint16_t *key = (uint16_t *)p.kv + (page * 2 * BLOCK + position % BLOCK) * 64;
        key[3] ^= 0x0080;
        GPU_OK(cudaMemcpy(p.d.kv, p.kv, p.pages * 2 * BLOCK * 64 * 2, cudaMemcpyHostToDevice));
        float *after = run_gpu(&p, true, 132);
        assert_true((memcmp(before, after, dqkv_bytes(&p)) != 0) == (seen != 0));
        free(after);
    }
    free(before);
    free_problem(&p);
}

static void bad_shapes_are_refused(void **state) {
    (void)state;
    iv_gpu_attention_backward_args a = {.shape = {IV_FMA32, IV_F32, 4, 2, 64, 2, 0, 0}, .kv = {IV_F32, 2, 64, NULL, 0}};
    assert_int_equal(iv_gpu_attention_backward(&a, NULL), 0); /* no rows */
    a.shape.group_first = 1;
    assert_int_equal(iv_gpu_attention_backward(&a, NULL), cudaErrorInvalidValue);
    a.shape.group_first = 0, a.kv.type = IV_BF16;
    assert_int_equal(iv_gpu_attention_backward(&a, NULL), cudaErrorInvalidValue);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_shapes_are_refused), cmocka_unit_test(every_kernel_has_the_reference_bits),
        cmocka_unit_test(many_rows), cmocka_unit_test(graphs_follow_the_spans), cmocka_unit_test(a_changed_key_shows)};
    return run_gpu_tests(tests, 1, "attention_backward", NULL, NULL);
}
