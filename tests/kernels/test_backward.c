/* The ops of the backward pass against their references, bit for bit: every instruction set, random shapes and edge
 * values, any number of threads, and any division of the token axis into passes. */
#include "random.h"
#include "base/size.h"
#include "kernels/attention_backward.h"
#include "kernels/pack_columns.h"
#include "kernels/weight_gradient.h"
#include "numerics/backward.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

static float *floats(rng *r, family f, size_t n) {
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float(r, f);
    return x;
}

static void same(const char *what, const void *want, const void *got, size_t bytes) {
    if (memcmp(want, got, bytes) == 0) return;
    size_t at = 0;
    while (((const char *)want)[at] == ((const char *)got)[at]) at++;
    fail_msg("%s: byte %zu of %zu differs", what, at, bytes);
}

static void row_ops(const iv_kernels *k, rng *r) {
    size_t n = 1 + rng_below(r, 900);
    family f = (family)rng_below(r, FAMILIES);
    iv_dtype type = (iv_dtype)rng_below(r, 3), to = (iv_dtype)rng_below(r, 3);
    float *x = floats(r, f, n), *w = floats(r, NORMAL, n), *dy = floats(r, f, n), *add = floats(r, NORMAL, n);
    float *want = malloc(2 * n * sizeof *want), *got = malloc(2 * n * sizeof *got);
    for (int adds = 0; adds < 2; adds++) {
        float a = iv_ref_rmsnorm_backward(x, w, 1e-5f, n, dy, adds ? add : NULL, want);
        float b = k->rmsnorm_backward(x, w, 1e-5f, n, dy, adds ? add : NULL, got);
        same("rmsnorm_backward", want, got, n * sizeof *want);
        if (a == a) assert_int_equal(iv_bits(a), iv_bits(b));
    }
    float dot[2] = {iv_ref_norm_dot(x, w, 0.37f, n, dy), k->norm_dot(x, w, 0.37f, n, dy)};
    if (dot[0] == dot[0]) assert_int_equal(iv_bits(dot[0]), iv_bits(dot[1]));
    iv_ref_norm_by_backward(x, w, 0.37f, 0.8f, n, dy, want), k->norm_by_backward(x, w, 0.37f, 0.8f, n, dy, got);
    same("norm_by_backward", want, got, n * sizeof *want);
    memcpy(want, add, n * sizeof *want), memcpy(got, add, n * sizeof *got);
    iv_ref_norm_weight_backward(dy, x, 0.37f, n, want), k->norm_weight_backward(dy, x, 0.37f, n, got);
    same("norm_weight_backward", want, got, n * sizeof *want);
    void *gate = random_values(r, type == IV_F16 ? NORMAL : f, type, n), *up = random_values(r, NORMAL, type, n);
    size_t width = iv_dtype_bytes(to);
    for (int kind = 0; kind < IV_ACTIVATION_KINDS; kind++) {
        iv_activation a = {.kind = (iv_activation_kind)kind,
                           .limit = 0.7,
                           .alpha = 1.702,
                           .positive = 0.8,
                           .negative = 0.7,
                           .beta = 0.5,
                           .eps = -1e-2};
        bool gated = iv_activation_is_gated(&a);
        void *of_want = gated ? (char *)want + n * width : NULL, *of_got = gated ? (char *)got + n * width : NULL;
        iv_ref_activate_backward(&a, type, gated ? gate : NULL, up, dy, n, to, of_want, want);
        k->activate_backward(&a, type, gated ? gate : NULL, up, dy, n, to, of_got, got);
        same("activate_backward", want, got, (gated ? 2 : 1) * n * width);
    }
    float max, sum, c = random_float(r, NORMAL);
    iv_ref_sum_exp(x, n, &max, &sum);
    size_t first = rng_below(r, n), count = 1 + rng_below(r, n - first), target = rng_below(r, n);
    iv_ref_logits_backward(x + first, first, count, max, sum, c, target, to, want);
    k->logits_backward(x + first, first, count, max, sum, c, target, to, got);
    same("logits_backward", want, got, count * width);
    float a = iv_ref_row_dot(type, gate, up, n), b = k->row_dot(type, gate, up, n);
    if (a == a) assert_int_equal(iv_bits(a), iv_bits(b));
    free(x), free(w), free(dy), free(add), free(want), free(got), free(gate), free(up);
}

static void gradient_rows(const iv_kernels *k, rng *r) {
    float *s = floats(r, (family)rng_below(r, FAMILIES), 64), *dp = floats(r, NORMAL, 64);
    iv_dtype type = (iv_dtype)rng_below(r, 3);
    iv_arithmetic arithmetic = rng_below(r, 2) ? IV_TC16 : IV_FMA32;
    int first = (int)rng_below(r, 66), last = (int)rng_below(r, 64);
    bool capped = rng_below(r, 2);
    float want[2][64] = {{0}}, got[2][64] = {{0}}, lse2 = random_float(r, NORMAL), delta = random_float(r, NORMAL);
    iv_ref_attention_gradients(arithmetic, s, dp, first, last, capped, 0.3f, lse2, delta, type, want[0], want[1]);
    k->attention_gradients(arithmetic, s, dp, first, last, capped, 0.3f, lse2, delta, type, got[0], got[1]);
    same("attention_gradients", want, got, sizeof want);
    free(s), free(dp);
}

static void rows_of_every_isa(void **state) {
    (void)state;
    rng r = rng_start("backward rows");
    for (size_t i = 0; i < trials(300, 10000); i++)
        for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
            row_ops(iv_kernels_select((iv_isa)isa), &r);
            gradient_rows(iv_kernels_select((iv_isa)isa), &r);
        }
}

/* ---- attention --------------------------------------------------------------------------------------------- */

static iv_compute compute_open(iv_isa isa, iv_arithmetic arithmetic, size_t threads, size_t bytes) {
    iv_error err;
    iv_compute c = {.kernels = iv_kernels_select(isa), .arithmetic = arithmetic, .scratch_bytes = bytes};
    ASSERT_OK(iv_pool_open(threads, &c.pool, &err), &err);
    c.scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return c;
}

static void compute_close(iv_compute *c) {
    iv_pool_close(c->pool);
    free(c->scratch);
}

/* KV head h of sequence s: the reference has heads apart. */
static void reference_head(const iv_attention_backward_args *a, iv_arithmetic arithmetic, size_t s, size_t h,
                           float *want) {
    size_t g = a->group, heads = a->kv_heads * g, dim = a->head_dim, width = iv_dtype_bytes(a->type);
    size_t m = a->sequences[s].rows, first = a->sequences[s].first;
    char *t[5];
    const char *from[5] = {a->q, a->out, a->dout, a->k, a->v};
    float *dq = calloc((g + 2) * m * dim, sizeof *dq), *dk = dq + g * m * dim, *dv = dk + m * dim,
          *l = calloc(g * m, sizeof *l);
    for (int i = 0; i < 5; i++) {
        size_t of = i < 3 ? g : 1, all = i < 3 ? heads : a->kv_heads;
        t[i] = malloc(of * m * dim * width);
        for (size_t j = 0; j < of; j++)
            for (size_t row = 0; row < m; row++)
                memcpy(t[i] + (j * m + row) * dim * width, from[i] + ((first + row) * all + h * of + j) * dim * width,
                       dim * width);
    }
    for (size_t j = 0; j < g; j++)
        for (size_t row = 0; row < m; row++) l[j * m + row] = a->lse2[(first + row) * heads + h * g + j];
    iv_ref_attention_backward_args ref = {arithmetic, a->type,        m,    dim,  g,    a->window, a->scale_log2e,
                                          a->scale,   a->score_inner, t[0], t[1], t[2], t[3],      t[4],
                                          l};
    assert_true(iv_ref_attention_backward(&ref, dq, dk, dv));
    for (size_t row = 0; row < m; row++) {
        float *to = want + (first + row) * a->dqkv_stride;
        for (size_t j = 0; j < g; j++) memcpy(to + (h * g + j) * dim, dq + (j * m + row) * dim, dim * sizeof *to);
        memcpy(to + (heads + h) * dim, dk + row * dim, dim * sizeof *to);
        memcpy(to + (heads + a->kv_heads + h) * dim, dv + row * dim, dim * sizeof *to);
    }
    for (int i = 0; i < 5; i++) free(t[i]);
    free(dq), free(l);
}

static void one_attention(rng *r) {
    static const size_t dims[] = {16, 32, 64, 8, 20, 48};
    iv_attention_backward_args a = {.type = (iv_dtype)rng_below(r, 3), .kv_heads = 1 + rng_below(r, 2)};
    iv_arithmetic arithmetic = a.type != IV_F32 && rng_below(r, 2) ? IV_TC16 : IV_FMA32;
    a.group = 1 + rng_below(r, 3), a.head_dim = dims[rng_below(r, 6)],
    a.window = rng_below(r, 2) ? 0 : 1 + (int64_t)rng_below(r, 90);
    a.scale_log2e = 0.25f, a.scale = 0.17f, a.score_inner = rng_below(r, 2) ? 0.03f : 0.0f;
    size_t n[2] = {1 + rng_below(r, 70), 1 + rng_below(r, 100)}, rows = n[0] + n[1], width = iv_dtype_bytes(a.type);
    iv_row_range ranges[2] = {{0, n[0]}, {n[0], n[1]}};
    a.sequences = ranges, a.sequence_count = 2;
    size_t heads = a.kv_heads * a.group, dim = a.head_dim;
    a.dqkv_stride = (heads + 2 * a.kv_heads) * dim;
    char *q = random_values(r, NORMAL, a.type, rows * heads * dim),
         *o = random_values(r, NORMAL, a.type, rows * heads * dim);
    char *d = random_values(r, NORMAL, a.type, rows * heads * dim);
    char *k = random_values(r, NORMAL, a.type, rows * a.kv_heads * dim),
         *v = random_values(r, NORMAL, a.type, rows * a.kv_heads * dim);
    float *lse2 = floats(r, NORMAL, rows * heads);
    a.q = q, a.out = o, a.dout = d, a.k = k, a.v = v, a.lse2 = lse2;
    float *got = calloc(rows * a.dqkv_stride, sizeof *got), *want = calloc(rows * a.dqkv_stride, sizeof *want);
    float *sinks = floats(r, NORMAL, heads), *terms = calloc(rows * heads, sizeof *terms),
          *want_terms = calloc(rows * heads, sizeof *terms);
    a.sinks = rng_below(r, 2) ? sinks : NULL;
    for (size_t i = 0; a.sinks && i < rows * heads; i++)
        want_terms[i] = iv_ref_sink_gradient(arithmetic, sinks[i % heads], lse2[i],
                                             iv_ref_row_dot(a.type, d + i * dim * width, o + i * dim * width, dim));
    for (size_t s = 0; s < 2; s++)
        for (size_t h = 0; h < a.kv_heads; h++) reference_head(&a, arithmetic, s, h, want);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        size_t bytes, threads = 1 + rng_below(r, 3);
        assert_true(iv_attention_backward_scratch(a.type, dim, iv_size_max(n[0], n[1]), &bytes));
        iv_compute c = compute_open((iv_isa)isa, arithmetic, threads, bytes * threads);
        a.dqkv = memset(got, 0, rows * a.dqkv_stride * sizeof *got);
        a.sink_terms = memset(terms, 0, rows * heads * sizeof *terms);
        iv_attention_backward(&c, &a);
        same("attention_backward", want, got, rows * a.dqkv_stride * sizeof *got);
        same("sinks", want_terms, terms, rows * heads * sizeof *terms);
        compute_close(&c);
    }
    free(q), free(o), free(d), free(k), free(v), free(lse2), free(got), free(want);
    free(sinks), free(terms), free(want_terms);
}

static void attention_of_every_isa(void **state) {
    (void)state;
    rng r = rng_start("attention backward");
    for (size_t i = 0; i < trials(12, 300); i++) one_attention(&r);
}

/* ---- weight gradients -------------------------------------------------------------------------------------- */

enum { RANKS = 4, SEQUENCES = 7, N = 37, K = 70 };

typedef struct step {
    iv_dtype type;
    iv_arithmetic arithmetic;
    size_t length[SEQUENCES], rank[SEQUENCES], first[SEQUENCES], rows; /* ranks ascend */
    void *dy, *x;                                                      /* [rows][N], [rows][K] */
    float *scale;                                                      /* [rows] */
} step;

static void reference_sums(const step *s, float *weights) {
    size_t width = iv_dtype_bytes(s->type), most = iv_padded_k(200);
    char *a = malloc(most * width), *b = malloc(most * width);
    for (size_t i = 0; i < N * K; i++) {
        float node[RANKS] = {0};
        for (size_t q = 0; q < SEQUENCES; q++) {
            memset(a, 0, most * width), memset(b, 0, most * width);
            for (size_t t = 0; t < s->length[q]; t++) {
                memcpy(a + t * width, (char *)s->dy + ((s->first[q] + t) * N + i / K) * width, width);
                memcpy(b + t * width, (char *)s->x + ((s->first[q] + t) * K + i % K) * width, width);
            }
            float *acc = &node[s->rank[q]];
            *acc = iv_ref_chain(s->arithmetic, s->type, *acc, a, b, iv_padded_k(s->length[q]));
        }
        weights[i] = (node[0] + node[1]) + (node[2] + node[3]);
    }
    free(a), free(b);
}

static void add_scaled(void *context, size_t row, size_t first, size_t count, float *acc) {
    const float *scale = context;
    for (size_t i = 0; i < count; i++) acc[i] = acc[i] + scale[row] * (float)(first + i + 1);
}

static void one_step(rng *r) {
    step s = {.type = (iv_dtype)rng_below(r, 3)};
    s.arithmetic = s.type != IV_F32 && rng_below(r, 2) ? IV_TC16 : IV_FMA32;
    size_t rank = rng_below(r, 2), width = iv_dtype_bytes(s.type);
    iv_axis_sequence sequences[SEQUENCES];
    for (size_t q = 0; q < SEQUENCES; q++) {
        if (q) rank = iv_size_min(RANKS - 1, rank + rng_below(r, 3));
        s.rank[q] = rank, s.length[q] = rng_below(r, 4) ? 1 + rng_below(r, 60) : 0, s.first[q] = s.rows,
        s.rows += s.length[q];
        sequences[q] = (iv_axis_sequence){s.length[q], rank};
    }
    s.dy = random_values(r, NORMAL, s.type, s.rows * N), s.x = random_values(r, NORMAL, s.type, s.rows * K);
    s.scale = floats(r, NORMAL, s.rows);
    float *want = calloc(N * K, sizeof *want), columns_want[K];
    reference_sums(&s, want);
    float node[RANKS][K] = {{0}};
    for (size_t q = 0; q < SEQUENCES; q++)
        for (size_t t = 0; t < s.length[q]; t++) add_scaled(s.scale, s.first[q] + t, 0, K, node[s.rank[q]]);
    for (size_t i = 0; i < K; i++) columns_want[i] = (node[0][i] + node[1][i]) + (node[2][i] + node[3][i]);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        float *memory = malloc(3 * (N * K + K) * sizeof *memory);
        for (size_t i = 0; i < 3 * (N * K + K); i++) memory[i] = NAN; /* nothing is read before it is written */
        iv_axis_sums sums = {memory, {memory + (N * K + K), memory + 2 * (N * K + K)}};
        size_t bytes, threads = 1 + rng_below(r, 3), padded = 0;
        for (size_t q = 0; q < SEQUENCES; q++) padded += iv_padded_k(s.length[q]);
        assert_true(iv_weight_gradient_scratch(padded, threads, &bytes));
        iv_compute c = compute_open((iv_isa)isa, s.arithmetic, threads, bytes);
        int32_t *row = malloc((padded + 1) * sizeof *row);
        const void **rows = malloc((padded + 1) * sizeof *rows);
        size_t done = 0;
        for (size_t from = 0, to; from < SEQUENCES; from = to) {
            iv_rank_range ranges[RANKS];
            iv_token_axis axis;
            to = rng_below(r, 3) ? from + 1 + rng_below(r, SEQUENCES - from) : SEQUENCES;
            iv_token_axis_make(sequences, SEQUENCES, RANKS, from, to, row, ranges, &axis);
            assert_int_equal(axis.done, done);
            for (size_t p = 0; p < axis.range_count; p++) done += axis.ranges[p].ends;
            iv_matrix x;
            assert_true(iv_matrix_shape(&x, s.type, K, axis.padded));
            x.data = aligned_alloc(64, (iv_matrix_bytes(&x) + 63) / 64 * 64);
            for (size_t i = 0; i < axis.padded; i++)
                rows[i] = row[i] < 0 ? NULL : (char *)s.x + (s.first[from] + (size_t)row[i]) * K * width;
            iv_pack_columns(&c, s.type, rows, &x);
            iv_weight_gradient(&c, &(iv_weight_gradient_args){
                                       &axis, &x, s.type, (char *)s.dy + s.first[from] * N * width, N, N, &sums, 0, K});
            iv_axis_sum_columns(&c, &(iv_axis_columns){&axis, &sums, N * K, K, add_scaled, s.scale + s.first[from]});
            free(x.data);
        }
        assert_int_equal(done, RANKS);
        same("weight_gradient", want, memory, N * K * sizeof *want);
        same("columns", columns_want, memory + N * K, sizeof columns_want);
        compute_close(&c);
        free(memory), free(row), free(rows);
    }
    free(want), free(s.dy), free(s.x), free(s.scale);
}

static void sums_over_tokens(void **state) {
    (void)state;
    rng r = rng_start("weight gradient");
    for (size_t i = 0; i < trials(30, 1000); i++) one_step(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_every_isa), cmocka_unit_test(attention_of_every_isa),
                                       cmocka_unit_test(sums_over_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
