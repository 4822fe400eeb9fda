/* Attention on a GPU against the one-row reference, bit for bit: random spans, windows, groups, head sizes and types;
 * every kernel of a shape, and every division of the work, on the same inputs. */
#include "cuda/attention_cases.h"
#include "cuda/on_gpu.h"

static bool no_gpu(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return false;
    printf("SKIPPED: there is no GPU\n");
    return true;
}

/* The whole output; rows outside spans keep the poison. */
static void *run_gpu(const problem *p, bool generic, int sms, int launched_sms) {
    size_t used;
    void *plan = make_plan(p, generic, sms, &used), *out = malloc(p->q_bytes);
    CUDA(cudaMemcpy(p->d.plan, plan, used, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(p->d.out, 0x5a, p->q_bytes));
    reset_scratch(p, generic);
    iv_gpu_attention_args a = args_of(p, launched_sms);
    CUDA(iv_attention_launch_as(&a, generic, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(out, p->d.out, p->q_bytes, cudaMemcpyDeviceToHost));
    check_scratch(p, generic);
    free(plan);
    return out;
}

/* Runs every kernel of the shape, checks sampled rows, and compares all runs with one another. */
static void check_problem(rng *r, problem *p, size_t samples) {
    static const int sms[] = {132, 1, 7, 40, 200};
    char what[100];
    free(take_lse2(p));
    void *first = run_gpu(p, true, 132, 132);
    float *lse2 = take_lse2(p);
    check_rows(r, p, first, lse2, samples);
    for (int generic = 0; generic < 2; generic++)
        for (size_t i = 0; i < sizeof sms / sizeof *sms; i++) {
            int launched = i == 2 ? 3 : sms[i]; /* also fewer CTAs than workers */
            p->no_lse2 = i == 4;
            void *again = run_gpu(p, generic, sms[i], launched);
            snprintf(what, sizeof what, "%s kernel, %d and %d SMs", generic ? "generic" : "own", sms[i], launched);
            assert_whole(p, what, first, again);
            check_lse2(p, what, lse2);
            free(again);
        }
    free(first), free(lse2);
}

static void one_problem(rng *r, bool fast) {
    problem p = {0};
    random_shape(r, &p, fast);
    size_t kind = rng_below(r, 4), count = 1 + rng_below(r, 6);
    if (kind == 0)
        random_spans(r, &p, 1 + rng_below(r, SPANS_MAX), 1, 1500); /* a decode step */
    else if (kind == 1)
        random_spans(r, &p, count, 5, 2500);
    else
        random_spans(r, &p, count, fast ? 400 : 100, kind == 2 ? 1200 : 100);
    finish_problem(r, &p, rng_below(r, 4) ? NORMAL : SPECIAL);
    check_problem(r, &p, 8);
    free_problem(&p);
}

static void every_kernel_has_the_reference_bits(void **state) {
    (void)state;
    if (no_gpu()) skip();
    rng r = rng_start("cuda attention");
    size_t n = trials(60, 600);
    for (size_t i = 0; i < n; i++) one_problem(&r, i % 2 && is_hopper());
    printf("cuda attention: %zu problems, 0 differ\n", n);
}

/* Sizes of models at long contexts: 32 heads over 8, and one long sequence. */
static void long_contexts(void **state) {
    (void)state;
    if (no_gpu() || !is_hopper()) skip();
    rng r = rng_start("cuda attention, long");
    for (int i = 0; i < (short_run() ? 1 : 4); i++) {
        problem p = {.s = {IV_TC16, IV_BF16, 32, 8, i % 2 ? 64 : 128, 4, 0, 0}, .keys = NORMAL};
        p.scale = (float)(1.4426950408889634 / sqrt((double)p.s.head_dim));
        if (i < 2)
            random_spans(&r, &p, 3, 1, 9000);
        else
            random_spans(&r, &p, 1, 2000, 3000);
        finish_problem(&r, &p, NORMAL);
        check_problem(&r, &p, 6);
        free_problem(&p);
    }
}

/* A step of single rows whose group is wider than a short tile. */
static void wide_groups(void **state) {
    (void)state;
    if (no_gpu() || !is_hopper()) skip();
    rng r = rng_start("cuda attention, wide groups");
    problem p = {.s = {IV_TC16, IV_BF16, 60, 2, 64, 30, 0, 0}, .keys = NORMAL, .scale = 0.18f};
    random_spans(&r, &p, 5, 1, 700);
    finish_problem(&r, &p, NORMAL);
    check_problem(&r, &p, 8);
    free_problem(&p);
}

/* A captured launch follows the plan in memory at replay. */
static void graphs_follow_the_plan(void **state) {
    (void)state;
    if (no_gpu() || !is_hopper()) skip();
    rng r = rng_start("cuda attention, graphs");
    for (int decode = 0; decode < 2; decode++) {
        problem p = {.s = {IV_TC16, IV_BF16, 8, 2, 128, 4, 0, 0}, .keys = NORMAL, .scale = 0.127f};
        random_spans(&r, &p, 6, decode ? 1 : 300, 1500);
        finish_problem(&r, &p, NORMAL);
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA(cudaStreamCreate(&stream));
        iv_gpu_attention_args a = args_of(&p, 132);
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        CUDA(iv_gpu_attention(&a, stream));
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&exec, graph, 0));
        void *whole = run_gpu(&p, false, 132, 132), *got = malloc(p.q_bytes);
        size_t all = p.span_count, used;
        for (size_t n = 1; n <= all; n++) { /* the first n spans only; other rows stay unchanged */
            p.span_count = n;
            void *plan = make_plan(&p, false, 132, &used);
            CUDA(cudaMemcpy(p.d.plan, plan, used, cudaMemcpyHostToDevice));
            CUDA(cudaMemset(p.d.out, 0x5a, p.q_bytes));
            CUDA(cudaGraphLaunch(exec, stream));
            CUDA(cudaStreamSynchronize(stream));
            CUDA(cudaMemcpy(got, p.d.out, p.q_bytes, cudaMemcpyDeviceToHost));
            size_t row = p.s.heads * p.s.head_dim * 2;
            for (size_t i = 0; i < all; i++)
                for (int j = 0; j < p.spans[i].rows; j++) {
                    char *at = (char *)got + (size_t)(p.spans[i].first_row + j) * row;
                    if (i < n)
                        assert_memory_equal(at, (char *)whole + (at - (char *)got), row);
                    else
                        for (size_t k = 0; k < row; k++) assert_int_equal(at[k], 0x5a);
                }
            free(plan);
        }
        p.span_count = all;
        free(whole), free(got);
        CUDA(cudaGraphExecDestroy(exec));
        CUDA(cudaGraphDestroy(graph));
        CUDA(cudaStreamDestroy(stream));
        free_problem(&p);
    }
}

/* The check can fail: one changed bit in one key is detected. */
static void a_changed_key_shows(void **state) {
    (void)state;
    if (no_gpu()) skip();
    rng r = rng_start("cuda attention, control");
    problem p = {.s = {IV_FMA32, IV_BF16, 2, 1, 64, 2, 0, 0}, .keys = NORMAL, .scale = 0.18f};
    p.span_count = 1, p.spans[0] = (iv_gpu_span){.rows = 1, .position = 70};
    finish_problem(&r, &p, NORMAL);
    void *before = run_gpu(&p, false, 132, 132);
    uint16_t *key = (uint16_t *)p.kv + ((size_t)p.tables[0] * 2 * BLOCK + 5) * 64; /* the exponent, in all of the key */
    for (int d = 0; d < 64; d++) key[d] = (uint16_t)(key[d] ^ 0x0080);
    CUDA(cudaMemcpy(p.d.kv, p.kv, p.kv_bytes, cudaMemcpyHostToDevice));
    void *after = run_gpu(&p, false, 132, 132);
    assert_memory_not_equal(before, after, p.q_bytes);
    free(before), free(after);
    free_problem(&p);
}

/* Plans only: every unit belongs to exactly one worker, and the parts of shared slices add up. Needs no GPU. */
static void plans_cover_every_unit(void **state) {
    (void)state;
    rng r = rng_start("attention plans");
    for (int i = 0; i < 3000; i++) {
        problem p = {0};
        random_shape(&r, &p, rng_below(&r, 2));
        random_spans(&r, &p, 1 + rng_below(&r, SPANS_MAX), rng_below(&r, 2) ? 1 : 100, rng_below(&r, 2) ? 30000 : 500);
        for (size_t s = 0; s < p.span_count; s++) p.rows += (size_t)p.spans[s].rows;
        size_t used;
        bool generic = rng_below(&r, 2);
        char *plan = make_plan(&p, generic, 1 + (int)rng_below(&r, 200), &used);
        const iv_attention_plan *h = (const iv_attention_plan *)(void *)plan;
        iv_attention_geometry g = iv_attention_geometry_of(&p.s, generic);
        const iv_attention_worker *w = h->worker;
        const iv_attention_kv_split *kv_split = (const iv_attention_kv_split *)(void *)(plan + h->kv_splits_at);
        const iv_attention_tile *tile = (const iv_attention_tile *)(void *)(plan + h->short_at);
        int parts[IV_ATTENTION_WORKERS_MAX] = {0}, at_tile = 0, at_unit = 0;
        for (int k = 0; k < h->workers; k++) {
            assert_true(w[k].tile == at_tile && w[k].unit == at_unit);
            bool first = true;
            while (at_tile < w[k].end_tile || at_unit < w[k].end_unit) {
                int n = tile[at_tile].last_block / 4 - tile[at_tile].first_block / 4 + 1, split = at_unit % n;
                int end = at_tile < w[k].end_tile ? at_unit - split + n : w[k].end_unit;
                if (end > at_unit - split + n) end = at_unit - split + n;
                bool last = at_tile == w[k].end_tile && end == w[k].end_unit;
                bool done = end == n * g.slices;
                if (done && at_tile + 1 == w[k].end_tile && w[k].end_unit == 0) last = true;
                int number = first && w[k].kv_split_first >= 0 ? w[k].kv_split_first : last ? w[k].kv_split_last : -1;
                bool whole = split == 0 && end - at_unit == n;
                assert_true(whole == (number < 0));
                if (!whole) {
                    assert_in_range(number, 0, h->kv_splits - 1);
                    parts[number]++;
                    assert_true(split ? split >= kv_split[number].split : end - at_unit == kv_split[number].split);
                }
                first = false;
                at_unit = end;
                if (done) at_tile++, at_unit = 0;
            }
        }
        assert_true(h->short_tiles == at_tile && at_unit == 0);
        for (int k = 0; k < h->kv_splits; k++) assert_int_equal(parts[k], kv_split[k].parts);
        free(plan);
    }
}

/* On a rank with more KV heads than the plan's rank, the kernels' walk (attention.cuh) visits each unit once. Needs
 * no GPU. */
static void plans_serve_ranks_with_more_heads(void **state) {
    (void)state;
    rng r = rng_start("attention plans of uneven ranks");
    for (int i = 0; i < 1000; i++) {
        problem p = {0};
        random_shape(&r, &p, rng_below(&r, 2));
        random_spans(&r, &p, 1 + rng_below(&r, 8), 1, rng_below(&r, 2) ? 30000 : 500);
        for (size_t s = 0; s < p.span_count; s++) p.rows += (size_t)p.spans[s].rows;
        size_t used;
        bool generic = rng_below(&r, 2);
        char *plan = make_plan(&p, generic, 1 + (int)rng_below(&r, 200), &used);
        const iv_attention_plan *h = (const iv_attention_plan *)(void *)plan;
        const iv_attention_worker *w = h->worker;
        const iv_attention_tile *tile = (const iv_attention_tile *)(void *)(plan + h->short_at);
        iv_gpu_attention_shape more = p.s;
        more.kv_heads += 1 + rng_below(&r, 3);
        int slices = iv_attention_geometry_of(&more, generic).slices, at_tile = 0, at_unit = 0;
        for (int k = 0; k < h->workers; k++) {
            assert_true(w[k].tile == at_tile && w[k].unit == at_unit);
            while (at_tile < w[k].end_tile || (at_tile == w[k].end_tile && at_unit < w[k].end_unit)) {
                int n = tile[at_tile].last_block / 4 - tile[at_tile].first_block / 4 + 1, slice = at_unit / n;
                int left = at_tile == w[k].end_tile ? w[k].end_unit - at_unit : n, begin = at_unit - slice * n;
                int end = begin + left < n ? begin + left : n;
                assert_true(slice < slices);
                at_unit += end - begin;
                if (end == n && slice + 1 == slices) at_tile++, at_unit = 0;
            }
        }
        assert_true(h->short_tiles == at_tile && at_unit == 0);
        free(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_cover_every_unit),
        cmocka_unit_test(plans_serve_ranks_with_more_heads),
        cmocka_unit_test(a_changed_key_shows),
        cmocka_unit_test(graphs_follow_the_plan),
        cmocka_unit_test(every_kernel_has_the_reference_bits),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(wide_groups),
    };
    return run_gpu_tests(tests, 2, "attention", NULL, NULL);
}
