/* attention_cases.h: random attention problems, their reference and the comparison, shared by test_attention.c and
 * test_emulated_attention.c. */
#ifndef IV_TESTS_CUDA_ATTENTION_CASES_H
#define IV_TESTS_CUDA_ATTENTION_CASES_H

#include "random.h"
#include "kernels/cuda/attention_plan.h"
#include "numerics/attention.h"
#include "numerics/backward.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <cuda_runtime_api.h>
#include <math.h>

enum { SPANS_MAX = 40, BLOCK = IV_ATTENTION_BLOCK };

#define CUDA(call)                                                                              \
    do {                                                                                        \
        int cuda_code_ = (int)(call);                                                           \
        if (cuda_code_) fail_msg("%s: %s", #call, cudaGetErrorString((cudaError_t)cuda_code_)); \
    } while (0)

static bool is_hopper(void) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) return false;
    if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess) return false;
    return major == 9 && minor == 0;
}

typedef struct problem {
    iv_gpu_attention_shape s;
    float scale, inner; /* inner: of a capped shape */
    float *sinks;       /* [heads] or NULL */
    family keys;
    size_t span_count, rows, pages, table_count;
    iv_gpu_span spans[SPANS_MAX];
    uint32_t *tables;
    void *q, *kv; /* host */
    size_t q_bytes, kv_bytes;
    bool no_lse2; /* runs do not ask for it */
    struct {      /* device */
        void *q, *kv, *out, *plan, *scratch;
        float *lse2, *sinks;
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

/* Completes a problem whose shape, family, scale and spans (rows, position) are set: tables and contents. */
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
    for (size_t i = p->pages - 1; i; i--) { /* pages in random order */
        size_t j = rng_below(r, i + 1);
        uint32_t t = p->tables[i];
        p->tables[i] = p->tables[j], p->tables[j] = t;
    }
    size_t values = p->pages * p->s.kv_heads * 2 * BLOCK * p->s.head_dim,
           queries_count = p->rows * p->s.heads * p->s.head_dim;
    p->q_bytes = queries_count * element(p), p->kv_bytes = values * element(p);
    p->q = malloc(p->q_bytes), p->kv = malloc(p->kv_bytes);
    fill_random(r, queries, p->s.type, p->q, queries_count);
    size_t few = values < 65536 ? values : 65536; /* random numbers are slow: shifted copies of a stretch */
    fill_random(r, p->keys, p->s.type, p->kv, few);
    for (size_t at = few, n; at < values; at += n) {
        size_t from = rng_below(r, few / 2);
        n = few - from < values - at ? few - from : values - at;
        memcpy((char *)p->kv + at * element(p), (char *)p->kv + from * element(p), n * element(p));
    }
    p->inner = p->s.capped ? 0.05f : 0.0f, p->sinks = NULL, p->d.sinks = NULL;
    if (rng_below(r, 3) == 0) {
        p->sinks = random_values(r, rng_below(r, 3) ? NORMAL : WIDE, IV_F32, p->s.heads);
        p->d.sinks = to_device(p->sinks, p->s.heads * sizeof(float));
    }
    p->d.q = to_device(p->q, p->q_bytes), p->d.kv = to_device(p->kv, p->kv_bytes);
    p->d.spans = to_device(p->spans, sizeof p->spans);
    p->d.tables = to_device(p->tables, p->pages * sizeof *p->tables);
    CUDA(cudaMalloc(&p->d.out, p->q_bytes));
    CUDA(cudaMalloc((void **)&p->d.lse2, p->rows * p->s.heads * sizeof(float)));
    CUDA(cudaMalloc(&p->d.scratch, iv_gpu_attention_scratch(&p->s)));
    CUDA(cudaMalloc(&p->d.plan, iv_gpu_attention_plan_bytes(&p->s, p->rows, SPANS_MAX)));
}

static void free_problem(problem *p) {
    free(p->tables), free(p->q), free(p->kv), free(p->sinks);
    CUDA(cudaFree(p->d.sinks));
    CUDA(cudaFree(p->d.q));
    CUDA(cudaFree(p->d.kv));
    CUDA(cudaFree(p->d.out));
    CUDA(cudaFree(p->d.lse2));
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
                                   .score_inner = p->inner,
                                   .sinks = p->d.sinks,
                                   .q = p->d.q,
                                   .out = p->d.out,
                                   .lse2 = p->no_lse2 ? NULL : p->d.lse2,
                                   .plan = p->d.plan,
                                   .spans = p->d.spans,
                                   .tables = p->d.tables,
                                   .scratch = p->d.scratch,
                                   .decode = decode,
                                   .sms = sms,
                                   .rows = p->rows};
}

static void *make_plan(const problem *p, bool generic, int sms, size_t *used) {
    size_t bytes = iv_gpu_attention_plan_bytes(&p->s, p->rows, SPANS_MAX);
    void *plan = malloc(bytes);
    *used = iv_attention_plan_as(&p->s, generic, p->spans, p->span_count, sms, plan, bytes);
    assert_true(*used > 0 && *used <= bytes);
    return plan;
}

static bool takes_generic(const problem *p, bool generic) { return !iv_attention_geometry_of(&p->s, generic).hopper; }

/* For the generic kernel only the counters begin as zero. */
static void reset_scratch(const problem *p, bool generic) {
    size_t counters = IV_ATTENTION_WORKERS_MAX * sizeof(int32_t);
    size_t bytes = iv_gpu_attention_scratch(&p->s);
    CUDA(cudaMemset(p->d.scratch, 0, counters));
    CUDA(cudaMemset((char *)p->d.scratch + counters, takes_generic(p, generic) ? 0xff : 0, bytes - counters));
}

/* A launch leaves the scratch as it needs to find it. */
static void check_scratch(const problem *p, bool generic) {
    size_t bytes = iv_gpu_attention_scratch(&p->s);
    if (takes_generic(p, generic)) bytes = IV_ATTENTION_WORKERS_MAX * sizeof(int32_t);
    uint32_t *words = malloc(bytes);
    CUDA(cudaMemcpy(words, p->d.scratch, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes / 4; i++)
        if (words[i]) fail_msg("word %zu of the scratch: 0 wanted, %08x left", i, words[i]);
    free(words);
}

/* m and the sum of one split (law, section 7), in plain loops. */
static void reference_split(const iv_ref_attention_args *a, int64_t split, float *max, float *sum) {
    size_t padded = iv_padded_k(a->head_dim), e = iv_dtype_bytes(a->type);
    int64_t low = iv_first_visible(a->position, a->window);
    float lanes[IV_ATTENTION_LANES] = {0};
    *max = -INFINITY;
    for (int64_t first = split * IV_KV_SPLIT; first < (split + 1) * IV_KV_SPLIT; first += BLOCK) {
        float score[BLOCK], weights[BLOCK], most = -INFINITY; /* weights: raw storage */
        if (first + BLOCK <= low || first > a->position) continue;
        for (int64_t j = 0; j < BLOCK; j++) {
            bool seen = first + j >= low && first + j <= a->position;
            const char *key = (const char *)a->keys + (size_t)(first + j) * padded * e;
            score[j] = seen ? iv_ref_chain(a->arithmetic, a->type, 0.0f, a->q, key, padded) : -INFINITY;
            if (seen && a->score_inner != 0.0f) iv_ref_cap(&score[j], a->score_inner, 1.0f, 1);
            most = score[j] > most ? score[j] : most;
        }
        float m = iv_attention_next_max(*max, most * a->scale_log2e),
              alpha = iv_attention_exp2(a->arithmetic, *max - m);
        for (size_t c = 0; c < IV_ATTENTION_LANES; c++) lanes[c] *= alpha;
        for (size_t j = 0; j < BLOCK; j++)
            put_type(a->type, weights, j, iv_attention_exp2(a->arithmetic, fmaf(score[j], a->scale_log2e, -m)));
        if (a->arithmetic == IV_TC16) lanes[0] = iv_ref_sum_weights(a->type, lanes[0], weights, BLOCK);
        for (size_t j = 0; j < BLOCK && a->arithmetic == IV_FMA32; j++)
            lanes[j % IV_ATTENTION_LANES] += iv_element(a->type, weights, j);
        *max = m;
    }
    *sum = iv_attention_sum(a->arithmetic, lanes);
}

static float reference_lse2(const iv_ref_attention_args *a) {
    int64_t first = iv_first_visible(a->position, a->window) / IV_KV_SPLIT;
    float max, sum, m, s;
    reference_split(a, first, &max, &sum);
    for (int64_t i = first + 1; i <= a->position / IV_KV_SPLIT; i++) {
        reference_split(a, i, &m, &s);
        float both = m > max ? m : max;
        float keep = iv_attention_exp2(a->arithmetic, max - both), add = iv_attention_exp2(a->arithmetic, m - both);
        sum = fmaf(s, add, sum * keep), max = both;
    }
    if (a->sink) {
        float sink = iv_sink_log2e(*a->sink), both = sink > max ? sink : max;
        sum = fmaf(sum, iv_attention_exp2(a->arithmetic, max - both), iv_attention_exp2(a->arithmetic, sink - both));
        max = both;
    }
    return iv_ref_attention_lse2(max, sum);
}

/* A row's output, and its lse2. */
static float reference(const problem *p, const iv_gpu_span *span, size_t row, size_t head, void *out) {
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
    iv_ref_attention_args a = {p->s.arithmetic,
                               p->s.type,
                               dim,
                               (int64_t)t,
                               p->s.window,
                               p->scale,
                               p->inner,
                               p->sinks ? p->sinks + head : NULL,
                               q,
                               k,
                               v};
    assert_true(iv_ref_attention(&a, y));
    for (size_t d = 0; d < dim; d++) put_type(p->s.type, out, d, y[d]);
    float lse2 = reference_lse2(&a);
    free(q), free(k), free(v), free(y);
    return lse2;
}

static void describe(const problem *p, char *text, size_t bytes) {
    snprintf(text, bytes, "%s %s heads %zu/%zu group %zu first %zu dim %zu window %lld scale %a%s%s keys %d spans %zu",
             iv_dtype_name(p->s.type), p->s.arithmetic == IV_TC16 ? "tc16" : "fma32", p->s.heads, p->s.kv_heads,
             p->s.group, p->s.group_first, p->s.head_dim, (long long)p->s.window, (double)p->scale,
             p->s.capped ? " capped" : "", p->sinks ? " sinks" : "", (int)p->keys, p->span_count);
}

/* lse2 of the last run, to be freed; then the device's is poisoned. */
static float *take_lse2(const problem *p) {
    size_t bytes = p->rows * p->s.heads * sizeof(float);
    float *got = malloc(bytes);
    CUDA(cudaMemcpy(got, p->d.lse2, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(p->d.lse2, 0x5a, bytes));
    return got;
}

/* Sampled rows of the last run, whose output is `got`; its lse2 is `lse2`. */
static void check_rows(rng *r, const problem *p, const void *got, const float *lse2, size_t samples) {
    char what[400], text[300];
    size_t n = p->s.head_dim, e = element(p);
    void *want = malloc(n * e);
    describe(p, text, sizeof text);
    for (size_t i = 0; i < samples; i++) {
        const iv_gpu_span *s = &p->spans[i < p->span_count ? i : rng_below(r, p->span_count)];
        size_t row = i % 3 ? rng_below(r, (size_t)s->rows) : (size_t)s->rows - 1, head = rng_below(r, p->s.heads);
        float want_lse2 = reference(p, s, row, head, want);
        snprintf(what, sizeof what, "%s; span rows %d position %d, row %zu head %zu", text, s->rows, s->position, row,
                 head);
        assert_same_bits(what, want, (const char *)got + (((size_t)s->first_row + row) * p->s.heads + head) * n * e, n,
                         e, false);
        strcat(what, ", lse2");
        assert_same_bits(what, &want_lse2, lse2 + ((size_t)s->first_row + row) * p->s.heads + head, 1, 4, true);
    }
    free(want);
}

/* lse2 of the last run has the bits of `lse2`, or it was not wanted and is untouched. */
static void check_lse2(const problem *p, const char *what, const float *lse2) {
    char text[500];
    size_t n = p->rows * p->s.heads;
    float *got = take_lse2(p), *poison = take_lse2(p);
    describe(p, text, sizeof text);
    snprintf(text + strlen(text), sizeof text - strlen(text), "; lse2, %s", what);
    assert_same_bits(text, p->no_lse2 ? poison : lse2, got, n, sizeof *got, true);
    free(got), free(poison);
}

static void assert_whole(const problem *p, const char *what, const void *a, const void *b) {
    char text[500];
    describe(p, text, sizeof text);
    snprintf(text + strlen(text), sizeof text - strlen(text), "; %s", what);
    assert_same_bits(text, a, b, p->q_bytes / element(p), element(p), false);
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
    s->head_dim = fast ? (size_t)64 << rng_below(r, 3) : dims[rng_below(r, 9)];
    s->kv_heads = 1 + rng_below(r, 3);
    s->group = rng_below(r, 5) ? 1 + rng_below(r, 8) : 1 + rng_below(r, 40);
    s->heads = s->kv_heads * s->group;
    if (s->group > 1 && rng_below(r, 4) == 0) { /* a rank's heads need not begin or end at a group */
        s->group_first = rng_below(r, s->group);
        s->heads -= s->group_first + (s->kv_heads > 1 ? rng_below(r, s->group) : 0);
        if (s->heads == 0) s->heads = 1;
    }
    s->window = rng_below(r, 3) ? 0 : (int64_t)(1 + rng_below(r, 700));
    s->capped = rng_below(r, 4) == 0;
    p->scale = (float)(1.4426950408889634 / sqrt((double)s->head_dim)) * (rng_below(r, 4) ? 1.0f : 40.0f);
    p->keys = (family[]){NORMAL, NORMAL, WIDE, SUBNORMAL, CANCEL, SPARSE}[s->type == IV_F16 ? 0 : rng_below(r, 6)];
}

#endif
