/* attention_backward_cases.h: random problems of attention's backward pass, their reference and the comparison, shared
 * by test_attention_backward.c and test_emulated_attention_backward.c. */
#ifndef IV_TESTS_CUDA_ATTENTION_BACKWARD_CASES_H
#define IV_TESTS_CUDA_ATTENTION_BACKWARD_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/attention_backward.h"
#include "numerics/backward.h"
#include "numerics/tree.h"

#include <math.h>

enum { SPANS_MAX = 8, BLOCK = IV_ATTENTION_BLOCK };

static bool is_hopper(void) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) return false;
    if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess) return false;
    return major == 9 && minor == 0;
}

typedef struct problem {
    iv_gpu_attention_shape s;
    family values;
    size_t span_count, rows, pages, tiles_bytes;
    iv_gpu_span spans[SPANS_MAX];
    uint32_t *tables;
    void *q, *out, *dout, *kv; /* host */
    float *lse2, *sinks;       /* sinks: [heads] or NULL */
    struct {                   /* device */
        void *q, *out, *dout, *kv, *scratch, *tiles;
        float *lse2, *dqkv, *sinks, *terms;
        iv_gpu_span *spans;
        uint32_t *tables;
    } d;
} problem;

static size_t element(const problem *p) { return iv_dtype_bytes(p->s.type); }
static size_t width_of(const problem *p) { return (p->s.heads + 2 * p->s.kv_heads) * p->s.head_dim; }
static size_t dqkv_bytes(const problem *p) { return p->rows * width_of(p) * sizeof(float); }
static float scale_of(const problem *p) { return (float)(1.0 / sqrt((double)p->s.head_dim)); }
static float scale_log2e_of(const problem *p) { return (float)(1.4426950408889634 / sqrt((double)p->s.head_dim)); }

static float inner_of(const problem *p) { return p->s.capped ? 0.06f : 0.0f; }

/* Rows past a sequence's end, and slots of its last page past it, are random too. */
static void fill(rng *r, const problem *p, family f, void *to, size_t n) {
    for (size_t i = 0; i < n; i++) put_type(p->s.type, to, i, random_float(r, f));
}

static void place_spans(rng *r, problem *p) {
    size_t row = 16 * rng_below(r, 2), table = rng_below(r, 2);
    for (size_t i = 0; i < p->span_count; i++) {
        iv_gpu_span *s = &p->spans[i];
        s->first_row = (int32_t)row, s->table = (int32_t)table;
        row += ((size_t)s->rows + 15) / 16 * 16 + 16 * (rng_below(r, 4) == 0);
        table += ((size_t)s->rows + BLOCK - 1) / BLOCK;
    }
    p->rows = row, p->pages = table + 2;
    p->tables = malloc(p->pages * sizeof *p->tables);
    for (size_t i = 0; i < p->pages; i++) p->tables[i] = (uint32_t)i;
    for (size_t i = p->pages - 1; i; i--) { /* pages in random order */
        size_t j = rng_below(r, i + 1);
        uint32_t t = p->tables[i];
        p->tables[i] = p->tables[j], p->tables[j] = t;
    }
}

static bool has_sequence(const problem *p, size_t row) {
    for (size_t i = 0; i < p->span_count; i++) {
        size_t first = (size_t)p->spans[i].first_row;
        if (row >= first && row < first + (size_t)p->spans[i].rows) return true;
    }
    return false;
}

/* Gradients of the output. Those of rows of no sequence are finite. */
static void fill_gradients(rng *r, const problem *p, family f) {
    size_t width = p->s.heads * p->s.head_dim;
    for (size_t row = 0; row < p->rows; row++)
        fill(r, p, has_sequence(p, row) ? f : NORMAL, (char *)p->dout + row * width * element(p), width);
}

/* Room for no tile, for those of some KV heads, for all. */
static size_t random_tiles(rng *r, const problem *p) {
    size_t tiles = 0;
    for (size_t i = 0; i < p->span_count; i++) {
        size_t blocks = ((size_t)p->spans[i].rows + BLOCK - 1) / BLOCK;
        tiles += blocks * (blocks + 1) / 2;
    }
    return rng_below(r, 4) ? tiles * p->s.group * (1 + rng_below(r, p->s.kv_heads)) * BLOCK * BLOCK * 2 : 0;
}

/* Completes a problem whose shape, families and span lengths are set. */
static void finish_problem(rng *r, problem *p, family gradients) {
    place_spans(r, p);
    size_t n = p->rows * p->s.heads * p->s.head_dim, e = element(p);
    size_t kv = p->pages * p->s.kv_heads * 2 * BLOCK * p->s.head_dim;
    p->q = malloc(n * e), p->out = malloc(n * e), p->dout = malloc(n * e), p->kv = malloc(kv * e);
    p->lse2 = malloc(p->rows * p->s.heads * sizeof *p->lse2);
    fill(r, p, p->values, p->q, n), fill(r, p, p->values, p->out, n), fill(r, p, p->values, p->kv, kv);
    fill_gradients(r, p, gradients);
    for (size_t i = 0; i < p->rows * p->s.heads; i++) p->lse2[i] = random_float(r, NORMAL) + 1.0f;
    p->d.q = gpu_copy(p->q, n * e), p->d.out = gpu_copy(p->out, n * e), p->d.dout = gpu_copy(p->dout, n * e);
    p->d.kv = gpu_copy(p->kv, kv * e), p->d.lse2 = gpu_copy(p->lse2, p->rows * p->s.heads * sizeof *p->lse2);
    p->d.spans = gpu_copy(p->spans, sizeof p->spans);
    p->d.tables = gpu_copy(p->tables, p->pages * sizeof *p->tables);
    p->sinks = rng_below(r, 3) ? NULL : random_values(r, NORMAL, IV_F32, p->s.heads);
    p->d.sinks = p->sinks ? gpu_copy(p->sinks, p->s.heads * sizeof *p->sinks) : NULL;
    p->d.terms = gpu_room(p->rows * p->s.heads * sizeof *p->d.terms);
    p->d.scratch = gpu_room(iv_gpu_attention_backward_scratch(&p->s, p->rows, p->span_count));
    p->d.dqkv = gpu_room(dqkv_bytes(p));
    p->tiles_bytes = random_tiles(r, p), p->d.tiles = gpu_room(p->tiles_bytes + 1);
}

static void free_problem(problem *p) {
    void *all[] = {p->d.q,       p->d.out,   p->d.dout,  p->d.kv,     p->d.lse2,  p->d.dqkv,
                   p->d.scratch, p->d.tiles, p->d.spans, p->d.tables, p->d.sinks, p->d.terms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) GPU_OK(cudaFree(all[i]));
    free(p->tables), free(p->q), free(p->out), free(p->dout), free(p->kv), free(p->lse2), free(p->sinks);
}

static iv_gpu_attention_backward_args args_of(const problem *p, int sms) {
    return (iv_gpu_attention_backward_args){.shape = p->s,
                                            .kv = {p->s.type, p->s.kv_heads, p->s.head_dim, p->d.kv, p->pages},
                                            .spans = p->d.spans,
                                            .host_spans = p->spans,
                                            .span_count = p->span_count,
                                            .tables = p->d.tables,
                                            .scale_log2e = scale_log2e_of(p),
                                            .scale = scale_of(p),
                                            .score_inner = inner_of(p),
                                            .sinks = p->d.sinks,
                                            .sink_terms = p->d.terms,
                                            .q = p->d.q,
                                            .out = p->d.out,
                                            .dout = p->d.dout,
                                            .lse2 = p->d.lse2,
                                            .dqkv = p->d.dqkv,
                                            .rows = p->rows,
                                            .scratch = p->d.scratch,
                                            .tiles = p->d.tiles,
                                            .tiles_bytes = p->tiles_bytes,
                                            .sms = sms};
}

/* ---- the reference ------------------------------------------------------------------------------------------------
 */

/* Rows of one head from [rows][heads][head_dim]. */
static void gather(const problem *p, const void *from, const iv_gpu_span *s, size_t head, void *to) {
    size_t bytes = p->s.head_dim * element(p);
    for (size_t i = 0; i < (size_t)s->rows; i++)
        memcpy((char *)to + i * bytes, (const char *)from + (((size_t)s->first_row + i) * p->s.heads + head) * bytes,
               bytes);
}

static void scatter(const problem *p, float *dqkv, const iv_gpu_span *s, size_t head, const float *from) {
    size_t dim = p->s.head_dim;
    for (size_t i = 0; i < (size_t)s->rows; i++)
        memcpy(dqkv + ((size_t)s->first_row + i) * width_of(p) + head * dim, from + i * dim, dim * sizeof *from);
}

static void reference_head(const problem *p, const iv_gpu_span *s, size_t kv, float *dqkv) {
    size_t n = (size_t)s->rows, dim = p->s.head_dim, group = p->s.group, bytes = n * dim * element(p);
    char *q = malloc(group * bytes), *o = malloc(group * bytes), *d = malloc(group * bytes);
    char *k = malloc(bytes), *v = malloc(bytes);
    float *lse2 = malloc(group * n * sizeof *lse2), *dq = malloc(group * n * dim * sizeof *dq);
    float *dk = malloc(n * dim * sizeof *dk), *dv = malloc(n * dim * sizeof *dv);
    for (size_t h = 0; h < group; h++) {
        size_t head = kv * group + h;
        gather(p, p->q, s, head, q + h * bytes), gather(p, p->out, s, head, o + h * bytes);
        gather(p, p->dout, s, head, d + h * bytes);
        for (size_t i = 0; i < n; i++) lse2[h * n + i] = p->lse2[((size_t)s->first_row + i) * p->s.heads + head];
    }
    for (size_t i = 0; i < n; i++) {
        size_t page = p->tables[(size_t)s->table + i / BLOCK], row = dim * element(p);
        const char *from = (char *)p->kv + ((page * p->s.kv_heads + kv) * 2 * BLOCK + i % BLOCK) * row;
        memcpy(k + i * row, from, row), memcpy(v + i * row, from + BLOCK * row, row);
    }
    assert_true(iv_ref_attention_backward(&(iv_ref_attention_backward_args){p->s.arithmetic, p->s.type, n, dim, group,
                                                                            p->s.window, scale_log2e_of(p), scale_of(p),
                                                                            inner_of(p), q, o, d, k, v, lse2},
                                          dq, dk, dv));
    for (size_t h = 0; h < group; h++) scatter(p, dqkv, s, kv * group + h, dq + h * n * dim);
    scatter(p, dqkv, s, p->s.heads + kv, dk), scatter(p, dqkv, s, p->s.heads + p->s.kv_heads + kv, dv);
    free(q), free(o), free(d), free(k), free(v), free(lse2), free(dq), free(dk), free(dv);
}

/* The whole dqkv; rows of no sequence keep the poison of gpu_room. */
static float *reference(const problem *p) {
    float *want = malloc(dqkv_bytes(p));
    memset(want, 0xa5, dqkv_bytes(p));
    for (size_t i = 0; i < p->span_count; i++)
        for (size_t kv = 0; kv < p->s.kv_heads; kv++) reference_head(p, &p->spans[i], kv, want);
    return want;
}

/* The terms of sinks that the last run left, in rows of sequences. */
static void check_sinks(const problem *p) {
    size_t n = p->rows * p->s.heads, bytes = p->s.head_dim * element(p);
    float *got = malloc(n * sizeof *got);
    GPU_OK(cudaMemcpy(got, p->d.terms, n * sizeof *got, cudaMemcpyDeviceToHost));
    for (size_t i = 0; p->sinks && i < n; i++) {
        if (!has_sequence(p, i / p->s.heads)) continue;
        float delta = iv_ref_row_dot(p->s.type, (char *)p->dout + i * bytes, (char *)p->out + i * bytes, p->s.head_dim);
        float want = iv_ref_sink_gradient(p->s.arithmetic, p->sinks[i % p->s.heads], p->lse2[i], delta);
        assert_same_bits("a sink's term", &want, &got[i], 1, 4, false);
    }
    free(got);
}

static void describe(const problem *p, char *text, size_t bytes) {
    int at = snprintf(text, bytes, "%s %s heads %zu/%zu dim %zu window %lld values %d rows", iv_dtype_name(p->s.type),
                      p->s.arithmetic == IV_TC16 ? "tc16" : "fma32", p->s.heads, p->s.kv_heads, p->s.head_dim,
                      (long long)p->s.window, (int)p->values);
    for (size_t i = 0; i < p->span_count; i++) at += snprintf(text + at, bytes - (size_t)at, " %d", p->spans[i].rows);
}

static void assert_whole(const problem *p, const char *what, const float *want, const float *got) {
    char text[600];
    describe(p, text, 400);
    snprintf(text + strlen(text), sizeof text - strlen(text), "; %s, rows of %zu", what, width_of(p));
    check_sinks(p);
    assert_same_bits(text, want, got, dqkv_bytes(p) / 4, 4, false);
}

/* Gradients that are not finite, sometimes. The Hopper kernels multiply 64 rows from any row of a sequence, with zeros
 * past its end: there only one sequence may have such gradients (a step that has any is refused). */
static family gradients_of(rng *r, const problem *p) {
    bool may = p->span_count == 1 || !iv_attention_backward_is_hopper(&p->s);
    return may && rng_below(r, 4) == 0 ? SPECIAL : p->values;
}

/* ---- random problems ----------------------------------------------------------------------------------------------
 */

static int32_t random_length(rng *r, size_t most) {
    static const int32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};
    int32_t n = rng_below(r, 2) ? lengths[rng_below(r, 11)] : (int32_t)(1 + rng_below(r, most));
    return n <= (int32_t)most ? n : (int32_t)most;
}

/* Lengths up to `most`, all together up to `total`. */
static void random_spans(rng *r, problem *p, size_t count, size_t most, size_t total) {
    size_t left = total;
    for (p->span_count = 0; p->span_count < count && left; p->span_count++) {
        int32_t n = random_length(r, most < left ? most : left);
        p->spans[p->span_count] = (iv_gpu_span){.rows = n};
        left -= (size_t)n;
    }
}

static void random_shape(rng *r, problem *p, bool fast, bool tc16, size_t heads_most) {
    static const size_t dims[] = {16, 32, 8, 64, 80, 20, 48, 136, 256};
    iv_gpu_attention_shape *s = &p->s;
    s->type = (iv_dtype)rng_below(r, fast ? 2 : 3);
    s->arithmetic = fast || (s->type != IV_F32 && rng_below(r, 2) && tc16) ? IV_TC16 : IV_FMA32;
    s->head_dim = fast ? (size_t)(rng_below(r, 2) ? 128 : 64) : dims[rng_below(r, 9)];
    s->group = 1 + rng_below(r, heads_most < 5 ? heads_most : 5);
    s->kv_heads = 1 + rng_below(r, heads_most / s->group);
    s->heads = s->kv_heads * s->group;
    s->window = rng_below(r, 3) ? 0 : (int64_t)(1 + rng_below(r, 150));
    s->capped = !fast && rng_below(r, 4) == 0;
    p->values = (family[]){NORMAL, NORMAL, WIDE, SUBNORMAL, CANCEL, SPARSE}[s->type == IV_F16 ? 0 : rng_below(r, 6)];
}

#endif
