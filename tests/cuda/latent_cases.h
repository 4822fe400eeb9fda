/* latent_cases.h: the kernels of latent attention against the scalar reference, shared by test_latent.c and
 * test_emulated_latent.c: random shapes of any widths, and those that tensor cores compute. */
#ifndef IV_TESTS_CUDA_LATENT_CASES_H
#define IV_TESTS_CUDA_LATENT_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/latent.h"
#include "numerics/attention.h"
#include "numerics/rows.h"

enum { LATENT_SPANS = 5, LATENT_BLOCK = IV_ATTENTION_BLOCK, LATENT_SMS_MAX = 140 };

static bool latent_tc16_runs(void) { /* here: other tensor cores add differently */
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    return major == 9 && minor == 0;
}

static iv_arithmetic latent_arithmetic(rng *r, iv_dtype type) {
    return type != IV_F32 && latent_tc16_runs() && rng_below(r, 3) ? IV_TC16 : IV_FMA32;
}

/* ---- products of heads ---------------------------------------------------------------------------------------------
 */

typedef struct latent_product {
    iv_gpu_head_products_args a; /* of the device */
    char *w, *x;
    size_t padded;
} latent_product;

static void latent_product_check(const latent_product *p, const char *out, const char *what) {
    const iv_gpu_head_products_args *a = &p->a;
    size_t e = iv_dtype_bytes(a->type), of_w = iv_dtype_bytes(a->w_type);
    char *x = calloc(p->padded, e), *w = calloc(p->padded, e), *want = malloc(a->n * e);
    for (size_t i = 0; i < a->rows * a->heads; i++) {
        size_t row = i / a->heads, head = i % a->heads, at = row * a->out_stride + head * a->out_head;
        memcpy(x, p->x + (row * a->x_stride + head * a->x_head) * e, a->k * e);
        for (size_t j = 0; j < a->n; j++) {
            const char *row_of_w = p->w + head * a->w_apart + j * p->padded * of_w;
            for (size_t k = 0; k < p->padded; k++) put_type(a->type, w, k, as_float(a->w_type, row_of_w, k));
            put_type(a->type, want, j, iv_canonical(iv_ref_chain(a->arithmetic, a->type, 0.0f, x, w, p->padded)));
        }
        assert_same_bits(what, want, out + at * e, a->n, e, false);
        for (size_t b = 0; b < (a->out_head - a->n) * e; b++) /* nothing of what lies between heads */
            assert_int_equal((unsigned char)out[(at + a->n) * e + b], 0xa5);
    }
    free(x), free(w), free(want);
}

/* tiles: a shape that the kernel of tiles takes. */
static void latent_product_case(rng *r, bool tiles) {
    latent_product p = {0};
    iv_gpu_head_products_args *a = &p.a;
    a->type = (iv_dtype)rng_below(r, tiles ? 2 : 3);
    a->arithmetic = tiles ? IV_TC16 : latent_arithmetic(r, a->type);
    a->w_type = a->type == IV_F32 ? (iv_dtype)rng_below(r, 3) : a->type;
    a->heads = 1 + rng_below(r, 4), a->rows = 1 + rng_below(r, rng_below(r, 2) ? 16 : 140);
    a->n = tiles ? 2 + 2 * rng_below(r, 140) : 1 + rng_below(r, 90);
    a->k = tiles ? 16 + 16 * rng_below(r, 16) : 1 + rng_below(r, 90);
    size_t e = iv_dtype_bytes(a->type), of_w = iv_dtype_bytes(a->w_type), to = tiles ? 8 : 1;
    p.padded = iv_padded_k(a->k);
    a->x_head = a->k + to * rng_below(r, 3), a->x_stride = a->heads * a->x_head + to * rng_below(r, 4);
    a->out_head = a->n + 2 * rng_below(r, 3), a->out_stride = a->heads * a->out_head + 2 * rng_below(r, 2);
    a->w_apart = (a->n * p.padded * of_w + 63) / 64 * 64 + 64 * rng_below(r, 3);
    p.x = random_values(r, rng_below(r, 4) ? NORMAL : SPECIAL, a->type, a->rows * a->x_stride);
    p.w = calloc(a->heads, a->w_apart);
    for (size_t i = 0; i < a->heads * a->n; i++) {
        char *row = random_values(r, NORMAL, a->w_type, a->k);
        memcpy(p.w + i / a->n * a->w_apart + i % a->n * p.padded * of_w, row, a->k * of_w);
        free(row);
    }
    void *x = gpu_copy(p.x, a->rows * a->x_stride * e), *w = gpu_copy(p.w, a->heads * a->w_apart);
    a->x = x, a->w = w;
    assert_true(!tiles || iv_head_products_fit_tiles(a));
    for (int i = 0; i < (tiles ? 3 : 2); i++) {
        size_t bytes = a->rows * a->out_stride * e;
        void *out = gpu_room(bytes);
        a->out = out;
        GPU_OK(i == 0   ? iv_gpu_head_products(a, NULL)
               : i == 1 ? iv_head_products_general(a, NULL)
                        : iv_head_products_tiles(a, NULL));
        char *got = host_copy(out, bytes);
        latent_product_check(&p, got, i == 1 ? "products of heads, general" : "products of heads");
        free(got), cudaFree(out);
    }
    cudaFree(x), cudaFree(w), free(p.x), free(p.w);
}

static void latent_products_have_the_bits_of_chains(void **state) {
    (void)state;
    rng r = rng_start("latent products");
    for (size_t i = 0; i < trials(40, 400); i++) latent_product_case(&r, latent_tc16_runs() && i % 2);
}

/* ---- rows ----------------------------------------------------------------------------------------------------------
 */

static void *latent_rounded(iv_dtype type, const float *x, size_t n, size_t room) {
    char *to = calloc(room, iv_dtype_bytes(type));
    for (size_t i = 0; i < n; i++) put_type(type, to, i, iv_canonical(x[i]));
    return to;
}

static bool latent_finite(iv_dtype type, const void *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(as_float(type, x, i))) return false;
    return true;
}

enum { LATENT_POSITIONS = 40 };

typedef struct latent_tables { /* host */
    float *cosine, *sine, *query;
    int32_t *positions;
} latent_tables;

static latent_tables latent_tables_of(rng *r, size_t rows, size_t pairs, bool scaled) {
    latent_tables t = {.cosine = random_values(r, NORMAL, IV_F32, LATENT_POSITIONS * pairs),
                       .sine = random_values(r, NORMAL, IV_F32, LATENT_POSITIONS * pairs),
                       .query = scaled ? random_values(r, NORMAL, IV_F32, LATENT_POSITIONS) : NULL,
                       .positions = malloc(rows * sizeof(int32_t))};
    for (size_t i = 0; i < rows; i++) t.positions[i] = (int32_t)rng_below(r, LATENT_POSITIONS);
    return t;
}

static void latent_tables_free(latent_tables *t) { free(t->cosine), free(t->sine), free(t->query), free(t->positions); }

/* The expected key of a row, and the input of q_b. */
static void *latent_key_of(const iv_gpu_latent_rows_args *a, const latent_tables *t, const float *row,
                           const float *norm, size_t i) {
    size_t pairs = a->turns / 2, at = (size_t)t->positions[i] * pairs;
    float *key = malloc((a->rank + a->turns) * sizeof *key);
    iv_ref_rmsnorm(row + a->latent_at, norm, a->eps, a->rank, key);
    memcpy(key + a->rank, row + a->latent_at + a->rank, a->turns * sizeof *key);
    iv_ref_rope(key + a->rank, t->cosine + at, t->sine + at, pairs);
    void *typed = latent_rounded(a->type, key, a->rank + a->turns, a->rank + a->turns);
    free(key);
    return typed;
}

static void latent_rows_case(rng *r) {
    iv_gpu_latent_rows_args a = {
        .type = (iv_dtype)rng_below(r, 3), .rows = 1 + rng_below(r, 20), .eps = 1e-6f, .layer = 3};
    a.low = rng_below(r, 3) ? 1 + rng_below(r, 600) : 0, a.rank = 1 + rng_below(r, 530);
    a.turns = 2 + 2 * rng_below(r, 40), a.low_stride = iv_padded_k(a.low);
    a.latent_at = a.low + rng_below(r, 9), a.x_stride = a.latent_at + a.rank + a.turns + rng_below(r, 3);
    size_t width = a.rank + a.turns, e = iv_dtype_bytes(a.type), pages = a.rows / LATENT_BLOCK + 2;
    family f = rng_below(r, 4) ? NORMAL : WIDE;
    float *x = random_values(r, f, IV_F32, a.rows * a.x_stride);
    for (size_t i = 0; i < a.rows; i++)
        if (rng_below(r, 6) == 0)
            x[i * a.x_stride + a.latent_at + rng_below(r, width)] = rng_below(r, 2) ? INFINITY : NAN;
    float *q_norm = random_values(r, NORMAL, IV_F32, a.low + 1), *kv_norm = random_values(r, NORMAL, IV_F32, a.rank);
    latent_tables t = latent_tables_of(r, a.rows, a.turns / 2, false);
    int64_t *slots = malloc(a.rows * sizeof *slots);
    for (size_t i = 0; i < a.rows; i++) slots[i] = rng_below(r, 5) ? (int64_t)(LATENT_BLOCK + a.rows - 1 - i) : -1;
    size_t floats = LATENT_POSITIONS * a.turns / 2 * sizeof(float), bytes = pages * LATENT_BLOCK * width * e;
    uint64_t none = UINT64_MAX, want_bad = none;
    void *on[] = {gpu_copy(x, a.rows * a.x_stride * 4),
                  gpu_copy(q_norm, a.low * 4),
                  gpu_copy(kv_norm, a.rank * 4),
                  gpu_copy(t.cosine, floats),
                  gpu_copy(t.sine, floats),
                  gpu_copy(t.positions, a.rows * 4),
                  gpu_copy(slots, a.rows * 8),
                  gpu_room(bytes),
                  gpu_room(a.rows * a.low_stride * e),
                  gpu_copy(&none, 8)};
    a.x = on[0], a.q_norm = on[1], a.kv_norm = on[2], a.cosine = on[3], a.sine = on[4], a.positions = on[5];
    a.slots = on[6], a.pages = on[7], a.low_out = on[8], a.bad = on[9];
    GPU_OK(iv_gpu_latent_rows(&a, NULL));
    char *got = host_copy(a.pages, bytes), *want = malloc(bytes),
         *low = host_copy(a.low_out, a.rows * a.low_stride * e);
    memset(want, 0xa5, bytes);
    float *normed = malloc((a.low + 1) * sizeof *normed);
    for (size_t i = 0; i < a.rows; i++) {
        const float *row = x + i * a.x_stride;
        iv_ref_rmsnorm(row, q_norm, a.eps, a.low, normed);
        void *typed = latent_rounded(a.type, normed, a.low, a.low_stride);
        assert_same_bits("input of q_b", typed, low + i * a.low_stride * e, a.low_stride, e, false);
        free(typed);
        if (slots[i] < 0) continue;
        void *key = latent_key_of(&a, &t, row, kv_norm, i);
        bool finite = latent_finite(a.type, key, width);
        if (finite) memcpy(want + (size_t)slots[i] * width * e, key, width * e);
        if (!finite && want_bad == none) want_bad = (uint64_t)3 << 32 | i;
        free(key);
    }
    assert_memory_equal(want, got, bytes);
    assert_gpu_has("the row that is not finite", &want_bad, a.bad, 2, 4, false);
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) cudaFree(on[i]);
    free(x), free(q_norm), free(kv_norm), free(slots), free(got), free(want), free(low), free(normed);
    latent_tables_free(&t);
}

static void latent_queries_case(rng *r) {
    iv_gpu_latent_queries_args a = {.type = (iv_dtype)rng_below(r, 3), .rows = 1 + rng_below(r, 9)};
    a.heads = 1 + rng_below(r, 11), a.keeps = 1 + rng_below(r, 150), a.turns = 2 + 2 * rng_below(r, 40);
    a.rank = 1 + rng_below(r, 60), a.still_head = iv_padded_k(a.keeps);
    size_t head = a.keeps + a.turns, pairs = a.turns / 2, e = iv_dtype_bytes(a.type), width = a.rank + a.turns;
    a.x_stride = a.heads * head + rng_below(r, 4);
    float *x = random_values(r, rng_below(r, 3) ? NORMAL : SPECIAL, IV_F32, a.rows * a.x_stride);
    latent_tables t = latent_tables_of(r, a.rows, pairs, rng_below(r, 2));
    size_t floats = LATENT_POSITIONS * pairs * sizeof(float), q_bytes = a.rows * a.heads * width * e;
    void *on[] = {gpu_copy(x, a.rows * a.x_stride * 4),
                  gpu_copy(t.cosine, floats),
                  gpu_copy(t.sine, floats),
                  gpu_copy(t.positions, a.rows * 4),
                  t.query ? gpu_copy(t.query, LATENT_POSITIONS * 4) : NULL,
                  gpu_room(a.rows * a.heads * a.still_head * e),
                  gpu_room(q_bytes)};
    a.x = on[0], a.cosine = on[1], a.sine = on[2], a.positions = on[3], a.query = on[4], a.still = on[5], a.q = on[6];
    GPU_OK(iv_gpu_latent_queries(&a, NULL));
    char *still = host_copy(a.still, a.rows * a.heads * a.still_head * e), *q = host_copy(a.q, q_bytes);
    float *y = malloc(head * sizeof *y);
    for (size_t i = 0; i < a.rows * a.heads; i++) {
        size_t row = i / a.heads, at = (size_t)t.positions[row];
        memcpy(y, x + row * a.x_stride + i % a.heads * head, head * sizeof *y);
        iv_ref_rope(y + a.keeps, t.cosine + at * pairs, t.sine + at * pairs, pairs);
        for (size_t d = 0; d < head && t.query; d++) y[d] *= t.query[at];
        void *want = latent_rounded(a.type, y, a.keeps, a.still_head),
             *p = latent_rounded(a.type, y + a.keeps, a.turns, a.turns);
        assert_same_bits("the part that stays", want, still + i * a.still_head * e, a.still_head, e, false);
        assert_same_bits("the part that turns", p, q + (i * width + a.rank) * e, a.turns, e, false);
        for (size_t b = 0; b < a.rank * e; b++) assert_int_equal((unsigned char)q[i * width * e + b], 0xa5);
        free(want), free(p);
    }
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) cudaFree(on[i]);
    free(x), free(still), free(q), free(y);
    latent_tables_free(&t);
}

static void latent_rows_have_the_reference_bits(void **state) {
    (void)state;
    rng r = rng_start("latent rows");
    for (size_t i = 0; i < trials(40, 400); i++) latent_rows_case(&r), latent_queries_case(&r);
}

/* ---- attention -----------------------------------------------------------------------------------------------------
 */

typedef struct latent_problem {
    iv_gpu_attention_args a; /* of the device */
    size_t turns, rows, pages;
    iv_gpu_span spans[LATENT_SPANS];
    size_t span_count;
    uint32_t *tables;
    char *q, *kv;
    float *sinks;
    void *on[6];
} latent_problem;

static void latent_spans(rng *r, latent_problem *p, size_t most, size_t depth) {
    size_t row = rng_below(r, 3), table = 0;
    for (size_t i = 0; i < p->span_count; i++) {
        iv_gpu_span *s = &p->spans[i];
        s->rows = (int32_t)(1 + rng_below(r, most)), s->position = (int32_t)(rng_below(r, 4) ? rng_below(r, depth) : 0);
        if (rng_below(r, 4) == 0) s->position = s->position / LATENT_BLOCK * LATENT_BLOCK + (rng_below(r, 2) ? 63 : 0);
        s->first_row = (int32_t)row, s->table = (int32_t)table;
        row += (size_t)s->rows + rng_below(r, 2);
        table += (size_t)(s->position + s->rows + LATENT_BLOCK - 1) / LATENT_BLOCK;
        p->a.decode = p->a.decode && s->rows == 1;
    }
    p->rows = row + rng_below(r, 4), p->pages = table + 2;
    p->tables = malloc(p->pages * sizeof *p->tables);
    for (size_t i = 0; i < p->pages; i++) p->tables[i] = (uint32_t)((i * 7 + 3) % p->pages);
    if (p->pages % 7 == 0) /* 7 reaches not all */
        for (size_t i = 0; i < p->pages; i++) p->tables[i] = (uint32_t)(p->pages - 1 - i);
}

/* The shape of p->a and the spans' number are set. */
static void latent_open(rng *r, latent_problem *p, size_t most, size_t depth) {
    iv_gpu_attention_shape *s = &p->a.shape;
    size_t width = s->head_dim + p->turns, e = iv_dtype_bytes(s->type);
    p->a.decode = true;
    latent_spans(r, p, most, depth);
    family f = (family[]){NORMAL, NORMAL, WIDE, SUBNORMAL, CANCEL, SPARSE}[s->type == IV_F16 ? 0 : rng_below(r, 6)];
    p->q = random_values(r, rng_below(r, 5) ? NORMAL : SPECIAL, s->type, p->rows * s->heads * width);
    size_t n = p->pages * LATENT_BLOCK * width, few = n < 40000 ? n : 40000; /* shifted copies of a stretch */
    char *stretch = random_values(r, f, s->type, few);
    p->kv = malloc(n * e);
    for (size_t at = 0, m; at < n; at += m) {
        size_t from = rng_below(r, few / 2);
        m = few - from < n - at ? few - from : n - at;
        memcpy(p->kv + at * e, stretch + from * e, m * e);
    }
    free(stretch);
    if (rng_below(r, 4) == 0) p->sinks = random_values(r, NORMAL, IV_F32, s->heads);
    s->capped = rng_below(r, 5) == 0, s->window = rng_below(r, 4) ? 0 : (int64_t)(1 + rng_below(r, 500));
    p->a.score_inner = s->capped ? 0.05f : 0.0f;
    p->a.scale_log2e = (float)(1.4426950408889634 / sqrt((double)width)) * (rng_below(r, 4) ? 1.0f : 40.0f);
    p->on[0] = gpu_copy(p->q, p->rows * s->heads * width * e), p->on[1] = gpu_copy(p->kv, n * e);
    p->on[2] = gpu_copy(p->tables, p->pages * sizeof *p->tables);
    p->on[3] = p->sinks ? gpu_copy(p->sinks, s->heads * sizeof(float)) : NULL;
    p->on[4] = gpu_room(iv_gpu_attention_scratch(s));
    p->on[5] = gpu_room(p->rows * s->heads * sizeof(float));
    p->a.q = p->on[0], p->a.kv.pages = p->on[1], p->a.tables = p->on[2], p->a.sinks = p->on[3], p->a.scratch = p->on[4];
    p->a.lse2 = p->on[5], p->a.rows = p->rows;
}

static void latent_close(latent_problem *p) {
    for (size_t i = 0; i < sizeof p->on / sizeof *p->on; i++) cudaFree(p->on[i]);
    free(p->tables), free(p->q), free(p->kv), free(p->sinks);
}

/* The output of a launch over a plan for `sms`, and its lse2. NULL: it failed. */
static void *latent_attend(latent_problem *p, bool general, int sms, float **lse2) {
    const iv_gpu_attention_shape *s = &p->a.shape;
    size_t bytes = iv_gpu_latent_plan_bytes(s, p->turns, p->rows, LATENT_SPANS);
    size_t out_bytes = p->rows * s->heads * s->head_dim * iv_dtype_bytes(s->type);
    void *plan = calloc(1, bytes), *out = gpu_room(out_bytes), *on;
    size_t used = iv_latent_plan_as(s, p->turns, general, p->spans, p->span_count, sms, plan, bytes);
    assert_true(used > 0 && used <= bytes);
    on = gpu_copy(plan, bytes);
    GPU_OK(cudaMemset(p->a.scratch, 0, IV_ATTENTION_WORKERS_MAX * sizeof(int32_t)));
    GPU_OK(cudaMemset(p->a.lse2, 0xa5, p->rows * s->heads * sizeof(float)));
    iv_gpu_attention_args a = p->a;
    a.plan = on, a.out = out, a.sms = sms;
    int failed = iv_latent_attention_as(&a, p->turns, general, NULL);
    if (!failed) failed = cudaDeviceSynchronize();
    void *got = failed ? NULL : host_copy(out, out_bytes);
    if (lse2) *lse2 = failed ? NULL : host_copy(p->a.lse2, p->rows * s->heads * sizeof(float));
    int32_t *counters = got ? host_copy(p->a.scratch, IV_ATTENTION_WORKERS_MAX * sizeof(int32_t)) : NULL;
    for (size_t i = 0; counters && i < IV_ATTENTION_WORKERS_MAX; i++) assert_int_equal(counters[i], 0);
    free(counters), free(plan), cudaFree(out), cudaFree(on);
    return got;
}

/* A row of a head: the values are the beginning of the keys, so a reference of wide values gives them first. */
static void latent_check_row(const latent_problem *p, const iv_gpu_span *span, size_t row, size_t head,
                             const char *got) {
    const iv_gpu_attention_shape *s = &p->a.shape;
    size_t width = s->head_dim + p->turns, padded = iv_padded_k(width), e = iv_dtype_bytes(s->type);
    size_t t = (size_t)span->position + row, at = ((size_t)span->first_row + row) * s->heads + head;
    char *q = calloc(padded, e), *k = calloc((t + 1) * padded, e), *v = calloc((t + 1) * width, e), text[200];
    float *y = calloc(width, sizeof *y);
    memcpy(q, p->q + at * width * e, width * e);
    for (size_t i = 0; i <= t; i++) {
        size_t page = p->tables[(size_t)span->table + i / LATENT_BLOCK];
        const char *from = p->kv + (page * LATENT_BLOCK + i % LATENT_BLOCK) * width * e;
        memcpy(k + i * padded * e, from, width * e), memcpy(v + i * width * e, from, width * e);
    }
    iv_ref_attention_args a = {s->arithmetic,
                               s->type,
                               width,
                               (int64_t)t,
                               s->window,
                               p->a.scale_log2e,
                               p->a.score_inner,
                               p->sinks ? p->sinks + head : NULL,
                               q,
                               k,
                               v};
    assert_true(iv_ref_attention(&a, y));
    char *want = latent_rounded(s->type, y, s->head_dim, s->head_dim);
    snprintf(text, sizeof text, "latent %zu + %zu, %zu heads of %zu, %s, window %lld%s%s: position %zu, head %zu",
             s->head_dim, p->turns, s->heads, s->group, iv_dtype_name(s->type), (long long)s->window,
             s->capped ? ", capped" : "", p->sinks ? ", sinks" : "", t, head);
    assert_same_bits(text, want, got + at * s->head_dim * e, s->head_dim, e, false);
    free(q), free(k), free(v), free(y), free(want);
}

/* Sampled rows against the reference; other divisions of the work, and the general kernel, against the first. */
static void latent_check(rng *r, latent_problem *p, bool tiles) {
    const iv_gpu_attention_shape *s = &p->a.shape;
    size_t row_bytes = s->heads * s->head_dim * iv_dtype_bytes(s->type);
    float *lse2, *other;
    char *first = latent_attend(p, !tiles, 1 + (int)rng_below(r, 6), &lse2), *again;
    assert_non_null(first);
    for (size_t i = 0; i < 6; i++) {
        const iv_gpu_span *span = &p->spans[i < p->span_count ? i : rng_below(r, p->span_count)];
        size_t row = i % 3 ? rng_below(r, (size_t)span->rows) : (size_t)span->rows - 1;
        latent_check_row(p, span, row, rng_below(r, s->heads), first);
    }
    for (int i = 0; i < 2; i++) {
        again = latent_attend(p, i == 1 || !tiles, 1 + (int)rng_below(r, i ? 6 : LATENT_SMS_MAX), &other);
        assert_non_null(again);
        for (size_t j = 0; j < p->span_count; j++) {
            size_t at = (size_t)p->spans[j].first_row, n = (size_t)p->spans[j].rows;
            assert_same_bits(i ? "the general kernel" : "another division of the work", first + at * row_bytes,
                             again + at * row_bytes, n * s->heads * s->head_dim, iv_dtype_bytes(s->type), false);
            assert_same_bits("lse2", lse2 + at * s->heads, other + at * s->heads, n * s->heads, 4, true);
        }
        free(again), free(other);
    }
    free(first), free(lse2);
}

static void latent_attention_case(rng *r, bool tiles) {
    latent_problem p = {0};
    iv_gpu_attention_shape *s = &p.a.shape;
    s->type = (iv_dtype)rng_below(r, tiles ? 2 : 3), s->arithmetic = tiles ? IV_TC16 : latent_arithmetic(r, s->type);
    s->head_dim = tiles ? (rng_below(r, 2) ? 512 : 256) : 1 + rng_below(r, 200);
    p.turns = tiles ? 64 : 2 + 2 * rng_below(r, 35);
    s->kv_heads = 1, s->heads = 1 + rng_below(r, rng_below(r, 3) ? 20 : 70);
    s->group = s->heads + (rng_below(r, 3) ? 0 : rng_below(r, 4)); /* of a rank that has more */
    size_t kind = rng_below(r, 3);
    p.span_count = 1 + rng_below(r, kind == 2 ? 1 : LATENT_SPANS);
    latent_open(r, &p, kind == 0 ? 1 : kind == 1 ? 4 : 40, kind == 0 ? 900 : 300);
    latent_check(r, &p, tiles);
    latent_close(&p);
}

static void latent_attention_of_any_widths(void **state) {
    (void)state;
    rng r = rng_start("latent attention");
    for (size_t i = 0; i < trials(20, 300); i++) latent_attention_case(&r, false);
}

static void latent_attention_on_tensor_cores(void **state) {
    (void)state;
    rng r = rng_start("latent attention on tensor cores");
    if (!latent_tc16_runs()) return;
    for (size_t i = 0; i < trials(20, 300); i++) latent_attention_case(&r, true);
}

/* How heads are packed: no head is lost or twice, rows fit, and tall tiles waste no more than short ones. */
static void latent_packings_have_every_head_once(void **state) {
    (void)state;
    for (size_t group = 1; group <= 300; group++) {
        iv_latent_packing of[2] = {iv_latent_short_tiles(group), iv_latent_tall_tiles(group)};
        for (int i = 0; i < 2; i++) {
            assert_true(of[i].width >= 1 && of[i].tokens >= 1 && of[i].tokens * of[i].width <= of[i].rows);
            assert_true((size_t)(of[i].width * of[i].slices) >= group);
            assert_true((size_t)(of[i].width * (of[i].slices - 1)) < group);
        }
        assert_true(of[1].tokens * of[0].slices >= of[0].tokens * of[1].slices || of[0].rows != of[1].rows);
    }
}

#endif
