/* Attention on a GPU against the one-row reference, bit for bit: random spans, windows, groups, head sizes and types;
 * every kernel that a shape has, and every way to share out the work, on the same inputs. */
#include "random.h"
#include "kernels/cuda/attention_plan.h"
#include "numerics/attention.h"
#include "numerics/tree.h"

#include <cuda_runtime_api.h>
#include <math.h>

enum { SPANS_MAX = 40, BLOCK = IV_ATTENTION_BLOCK };

#define CUDA(call)                                                                              \
    do {                                                                                        \
        int cuda_code_ = (int)(call);                                                           \
        if (cuda_code_) fail_msg("%s: %s", #call, cudaGetErrorString((cudaError_t)cuda_code_)); \
    } while (0)

static bool no_gpu(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return false;
    printf("SKIPPED: there is no GPU\n");
    return true;
}

static bool is_hopper(void) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) return false;
    if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess) return false;
    return major == 9 && minor == 0;
}

typedef struct problem {
    iv_gpu_attention_shape s;
    float scale;
    family keys;
    size_t span_count, rows, pages, table_count;
    iv_gpu_span spans[SPANS_MAX];
    uint32_t *tables;
    void *q, *kv; /* host */
    size_t q_bytes, kv_bytes;
    struct { /* device */
        void *q, *kv, *out, *plan, *scratch;
        iv_gpu_span *spans;
        uint32_t *tables;
    } d;
} problem;

static size_t element(const problem *p) { return iv_dtype_bytes(p->s.type); }

static void *to_device(const void *from, size_t bytes) {
    void *p = NULL;
    CUDA(cudaMalloc(&p, bytes ? bytes : 1));
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

static void fill_random(rng *r, family f, iv_dtype type, void *to, size_t n) {
    for (size_t i = 0; i < n; i++) put_type(type, to, i, random_float(r, f));
}

/* Shape, family and scale are there; spans too (rows, position). Makes tables and contents. */
static void finish_problem(rng *r, problem *p, family queries) {
    size_t row = rng_below(r, 3), table = 0;
    for (size_t i = 0; i < p->span_count; i++) {
        iv_gpu_span *s = &p->spans[i];
        s->first_row = (int32_t)row, s->table = (int32_t)table;
        row += (size_t)s->rows + rng_below(r, 2), table += (size_t)(s->position + s->rows + BLOCK - 1) / BLOCK;
    }
    p->rows = row + rng_below(r, 4), p->table_count = table, p->pages = table + 3;
    p->tables = malloc(p->pages * sizeof *p->tables);
    for (size_t i = 0; i < p->pages; i++) p->tables[i] = (uint32_t)i;
    for (size_t i = p->pages - 1; i; i--) { /* pages lie anywhere */
        size_t j = rng_below(r, i + 1);
        uint32_t t = p->tables[i];
        p->tables[i] = p->tables[j], p->tables[j] = t;
    }
    size_t values = p->pages * p->s.kv_heads * 2 * BLOCK * p->s.head_dim,
           queries_count = p->rows * p->s.heads * p->s.head_dim;
    p->q_bytes = queries_count * element(p), p->kv_bytes = values * element(p);
    p->q = malloc(p->q_bytes), p->kv = malloc(p->kv_bytes);
    fill_random(r, queries, p->s.type, p->q, queries_count);
    size_t few = values < 65536 ? values : 65536; /* making numbers is slow: copies of a stretch, shifted */
    fill_random(r, p->keys, p->s.type, p->kv, few);
    for (size_t at = few, n; at < values; at += n) {
        size_t from = rng_below(r, few / 2);
        n = few - from < values - at ? few - from : values - at;
        memcpy((char *)p->kv + at * element(p), (char *)p->kv + from * element(p), n * element(p));
    }
    p->d.q = to_device(p->q, p->q_bytes), p->d.kv = to_device(p->kv, p->kv_bytes);
    p->d.spans = to_device(p->spans, sizeof p->spans);
    p->d.tables = to_device(p->tables, p->pages * sizeof *p->tables);
    CUDA(cudaMalloc(&p->d.out, p->q_bytes));
    CUDA(cudaMalloc(&p->d.scratch, iv_gpu_attention_scratch(&p->s, p->rows, SPANS_MAX, 65536)));
    CUDA(cudaMalloc(&p->d.plan, iv_gpu_attention_plan_bytes(&p->s, p->rows, SPANS_MAX, 65536)));
}

static void free_problem(problem *p) {
    free(p->tables), free(p->q), free(p->kv);
    CUDA(cudaFree(p->d.q));
    CUDA(cudaFree(p->d.kv));
    CUDA(cudaFree(p->d.out));
    CUDA(cudaFree(p->d.plan));
    CUDA(cudaFree(p->d.scratch));
    CUDA(cudaFree(p->d.spans));
    CUDA(cudaFree(p->d.tables));
}

static iv_gpu_attention_args args_of(const problem *p, int sms) {
    bool decode = true;
    for (size_t i = 0; i < p->span_count; i++) decode = decode && p->spans[i].rows == 1;
    return (iv_gpu_attention_args){.shape = p->s,
                                   .kv = {p->s.type, p->s.kv_heads, p->s.head_dim, p->d.kv, p->pages},
                                   .scale_log2e = p->scale,
                                   .q = p->d.q,
                                   .out = p->d.out,
                                   .plan = p->d.plan,
                                   .spans = p->d.spans,
                                   .tables = p->d.tables,
                                   .scratch = p->d.scratch,
                                   .decode = decode,
                                   .sms = sms,
                                   .rows = p->rows};
}

static void *make_plan(const problem *p, bool generic, int sms, size_t *used) {
    size_t bytes = iv_gpu_attention_plan_bytes(&p->s, p->rows, SPANS_MAX, 65536);
    void *plan = malloc(bytes);
    *used = iv_attention_plan_as(&p->s, generic, p->spans, p->span_count, sms, plan, bytes);
    assert_true(*used > 0 && *used <= bytes);
    return plan;
}

static bool takes_generic(const problem *p, bool generic) { return !iv_attention_geometry_of(&p->s, generic).hopper; }

/* Of the generic kernel only the counters begin as zero. */
static void reset_scratch(const problem *p, bool generic) {
    size_t counters = IV_ATTENTION_WORKERS_MAX * sizeof(int32_t);
    size_t bytes = iv_gpu_attention_scratch(&p->s, p->rows, SPANS_MAX, 65536);
    CUDA(cudaMemset(p->d.scratch, 0, counters));
    CUDA(cudaMemset((char *)p->d.scratch + counters, takes_generic(p, generic) ? 0xff : 0, bytes - counters));
}

/* What a launch leaves is what it wants to find. */
static void check_scratch(const problem *p, bool generic) {
    size_t bytes = iv_gpu_attention_scratch(&p->s, p->rows, SPANS_MAX, 65536);
    if (takes_generic(p, generic)) bytes = IV_ATTENTION_WORKERS_MAX * sizeof(int32_t);
    uint32_t *words = malloc(bytes);
    CUDA(cudaMemcpy(words, p->d.scratch, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes / 4; i++)
        if (words[i]) fail_msg("word %zu of the scratch: 0 wanted, %08x left", i, words[i]);
    free(words);
}

/* The whole output; rows of no span hold the poison. */
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

static void reference(const problem *p, const iv_gpu_span *span, size_t row, size_t head, void *out) {
    size_t e = element(p), dim = p->s.head_dim, padded = iv_padded_k(dim), t = (size_t)span->position + row;
    size_t kv = (p->s.group_first + head) / p->s.group;
    char *q = calloc(padded, e), *k = calloc((t + 1) * padded, e), *v = calloc((t + 1) * dim, e);
    memcpy(q, (char *)p->q + (((size_t)span->first_row + row) * p->s.heads + head) * dim * e, dim * e);
    for (size_t i = 0; i <= t; i++) {
        size_t page = p->tables[(size_t)span->table + i / BLOCK];
        const char *from = (char *)p->kv + ((page * p->s.kv_heads + kv) * 2 * BLOCK + i % BLOCK) * dim * e;
        memcpy(k + i * padded * e, from, dim * e);
        memcpy(v + i * dim * e, from + BLOCK * dim * e, dim * e);
    }
    float *y = calloc(dim, sizeof *y);
    assert_true(iv_ref_attention(
        &(iv_ref_attention_args){p->s.arithmetic, p->s.type, dim, (int64_t)t, p->s.window, p->scale, q, k, v}, y));
    for (size_t d = 0; d < dim; d++) put_type(p->s.type, out, d, y[d]);
    free(q), free(k), free(v), free(y);
}

static void describe(const problem *p, char *text, size_t bytes) {
    snprintf(text, bytes, "%s %s heads %zu/%zu group %zu first %zu dim %zu window %lld scale %a keys %d spans %zu",
             iv_dtype_name(p->s.type), p->s.arithmetic == IV_TC16 ? "tc16" : "fma32", p->s.heads, p->s.kv_heads,
             p->s.group, p->s.group_first, p->s.head_dim, (long long)p->s.window, (double)p->scale, (int)p->keys,
             p->span_count);
}

static void check_rows(rng *r, const problem *p, const void *got, size_t samples) {
    char what[400], text[300];
    size_t n = p->s.head_dim, e = element(p);
    void *want = malloc(n * e);
    describe(p, text, sizeof text);
    for (size_t i = 0; i < samples; i++) {
        const iv_gpu_span *s = &p->spans[i < p->span_count ? i : rng_below(r, p->span_count)];
        size_t row = i % 3 ? rng_below(r, (size_t)s->rows) : (size_t)s->rows - 1, head = rng_below(r, p->s.heads);
        reference(p, s, row, head, want);
        snprintf(what, sizeof what, "%s; span rows %d position %d, row %zu head %zu", text, s->rows, s->position, row,
                 head);
        assert_same_bits(what, want, (const char *)got + (((size_t)s->first_row + row) * p->s.heads + head) * n * e, n,
                         e, false);
    }
    free(want);
}

static void assert_whole(const problem *p, const char *what, const void *a, const void *b) {
    char text[500];
    describe(p, text, sizeof text);
    snprintf(text + strlen(text), sizeof text - strlen(text), "; %s", what);
    assert_same_bits(text, a, b, p->q_bytes / element(p), element(p), false);
}

/* Runs whatever the shape has, checks sampled rows, and that all runs agree everywhere. */
static void check_problem(rng *r, problem *p, size_t samples) {
    static const int sms[] = {132, 1, 7, 40, 200};
    char what[100];
    void *first = run_gpu(p, true, 132, 132);
    check_rows(r, p, first, samples);
    for (int generic = 0; generic < 2; generic++)
        for (size_t i = 0; i < sizeof sms / sizeof *sms; i++) {
            int launched = i == 2 ? 3 : sms[i]; /* fewer CTAs than workers, too */
            void *again = run_gpu(p, generic, sms[i], launched);
            snprintf(what, sizeof what, "%s kernel, %d and %d SMs", generic ? "generic" : "own", sms[i], launched);
            assert_whole(p, what, first, again);
            free(again);
        }
    free(first);
}

/* Spans of up to `rows` rows at positions up to `depth`. */
static void random_spans(rng *r, problem *p, size_t count, size_t rows, size_t depth) {
    p->span_count = count;
    for (size_t i = 0; i < count; i++) {
        p->spans[i].rows = (int32_t)(1 + rng_below(r, rows));
        p->spans[i].position = (int32_t)(rng_below(r, 4) ? rng_below(r, depth) : 0);
        if (rng_below(r, 4) == 0) p->spans[i].position = p->spans[i].position / 64 * 64 + (rng_below(r, 2) ? 63 : 0);
    }
}

static void random_shape(rng *r, problem *p, bool fast) {
    static const size_t dims[] = {16, 32, 8, 64, 80, 128, 96, 20, 256};
    iv_gpu_attention_shape *s = &p->s;
    s->type = (iv_dtype)rng_below(r, fast ? 2 : 3);
    s->arithmetic = fast || (s->type != IV_F32 && rng_below(r, 2) && is_hopper()) ? IV_TC16 : IV_FMA32;
    s->head_dim = fast ? (size_t)(rng_below(r, 3) ? 128 : 64) : dims[rng_below(r, 9)];
    s->kv_heads = 1 + rng_below(r, 3);
    s->group = rng_below(r, 5) ? 1 + rng_below(r, 8) : 1 + rng_below(r, 40);
    s->heads = s->kv_heads * s->group;
    if (s->group > 1 && rng_below(r, 4) == 0) { /* a rank's share need not begin or end with a group */
        s->group_first = rng_below(r, s->group);
        s->heads -= s->group_first + (s->kv_heads > 1 ? rng_below(r, s->group) : 0);
        if (s->heads == 0) s->heads = 1;
    }
    s->window = rng_below(r, 3) ? 0 : (int64_t)(1 + rng_below(r, 700));
    p->scale = (float)(1.4426950408889634 / sqrt((double)s->head_dim)) * (rng_below(r, 4) ? 1.0f : 40.0f);
    p->keys = (family[]){NORMAL, NORMAL, WIDE, SUBNORMAL, CANCEL, SPARSE}[s->type == IV_F16 ? 0 : rng_below(r, 6)];
}

static void one_problem(rng *r, bool fast) {
    problem p = {0};
    random_shape(r, &p, fast);
    size_t kind = rng_below(r, 4), count = 1 + rng_below(r, 6);
    if (kind == 0)
        random_spans(r, &p, 1 + rng_below(r, SPANS_MAX), 1, 1500); /* a step of decoding */
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

/* What models have, deep: 32 heads over 8, and one long sequence. */
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

/* A captured launch follows the plan that is in memory when it is replayed. */
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
        for (size_t n = 1; n <= all; n++) { /* the first n spans alone; the others' rows stay as they are */
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

/* The check can fail: one more bit in one key shows. */
static void a_changed_key_shows(void **state) {
    (void)state;
    if (no_gpu()) skip();
    rng r = rng_start("cuda attention, control");
    problem p = {.s = {IV_FMA32, IV_BF16, 2, 1, 64, 2, 0, 0}, .keys = NORMAL, .scale = 0.18f};
    p.span_count = 1, p.spans[0] = (iv_gpu_span){.rows = 1, .position = 70};
    finish_problem(&r, &p, NORMAL);
    void *before = run_gpu(&p, false, 132, 132);
    uint16_t *key = (uint16_t *)p.kv + ((size_t)p.tables[0] * 2 * BLOCK + 5) * 64; /* its exponent, in all of the key */
    for (int d = 0; d < 64; d++) key[d] = (uint16_t)(key[d] ^ 0x0080);
    CUDA(cudaMemcpy(p.d.kv, p.kv, p.kv_bytes, cudaMemcpyHostToDevice));
    void *after = run_gpu(&p, false, 132, 132);
    assert_memory_not_equal(before, after, p.q_bytes);
    free(before), free(after);
    free_problem(&p);
}

/* Plans alone: every unit is some worker's, once, and shares add up. Needs no GPU. */
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

/* A rank with more KV heads than the plan's rank still has each of its units once, as the kernels walk (attention.cuh).
 * Needs no GPU. */
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
    return cmocka_run_group_tests(tests, NULL, NULL);
}
