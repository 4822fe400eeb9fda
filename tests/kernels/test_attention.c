/* Paged attention against the one-row reference, bit for bit: random heads, windows, positions, chunkings, types. */
#include "random.h"
#include "kernels/attention.h"
#include "numerics/tree.h"

typedef struct problem {
    iv_dtype type;
    iv_arithmetic arithmetic;
    size_t heads, kv_heads, head_dim, first, rows; /* query tokens [first, first + rows) of a sequence */
    int64_t window;
    float scale, inner; /* inner: of capped scores, or 0 */
    const float *sinks; /* [heads] or NULL */
    void *q, *k, *v;    /* [tokens][heads][dim], [tokens][kv_heads][dim] */
} problem;

/* value_dim: the first elements of a value, which are all that it has. */
static void *run_fast(const problem *p, iv_isa isa, size_t threads, size_t value_dim) {
    iv_error err;
    iv_kv_layout l;
    iv_compute c = {.kernels = iv_kernels_select(isa), .arithmetic = p->arithmetic};
    size_t tokens = p->first + p->rows, blocks = (tokens + 63) / 64, e = iv_dtype_bytes(p->type), dim = p->head_dim;
    assert_true(iv_kv_layout_make(&l, p->type, p->kv_heads, dim, value_dim));
    ASSERT_OK(iv_pool_open(threads, &c.pool, &err), &err);
    assert_true(iv_attention_scratch(&l, &c.scratch_bytes));
    c.scratch_bytes *= threads;
    c.scratch = aligned_alloc(64, c.scratch_bytes);
    uint32_t *pages = calloc(blocks, sizeof *pages); /* in reverse: page numbers must not matter */
    unsigned char *kv = calloc(blocks, l.page_bytes);
    for (size_t b = 0; b < blocks; b++) pages[b] = (uint32_t)(blocks - 1 - b);
    for (size_t t = 0; t < tokens; t++)
        for (size_t h = 0; h < p->kv_heads; h++) {
            size_t at = (t * p->kv_heads + h) * dim * e;
            assert_true(
                iv_kv_write(&l, kv + pages[t / 64] * l.page_bytes, h, t % 64, (char *)p->k + at, (char *)p->v + at));
        }
    char *out = calloc(p->rows * p->heads * value_dim, e);
    iv_attention_span span = {0, p->rows, (int64_t)p->first, pages};
    const void *q = (char *)p->q + p->first * p->heads * dim * e;
    iv_attention(&c, &(iv_attention_args){.layout = &l,
                                          .kv = kv,
                                          .heads = p->heads,
                                          .group = p->heads / l.heads,
                                          .window = p->window,
                                          .scale_log2e = p->scale,
                                          .score_inner = p->inner,
                                          .sinks = p->sinks,
                                          .q = q,
                                          .out = out,
                                          .spans = &span,
                                          .span_count = 1});
    free(kv), free(pages), free(c.scratch);
    iv_pool_close(c.pool);
    return out;
}

static void run_reference(const problem *p, size_t row, size_t head, void *out) {
    size_t e = iv_dtype_bytes(p->type), dim = p->head_dim, padded = iv_padded_k(dim), t = p->first + row;
    size_t kv = head / (p->heads / p->kv_heads);
    char *q = calloc(padded, e), *k = calloc((t + 1) * padded, e), *v = calloc((t + 1) * dim, e);
    memcpy(q, (char *)p->q + (t * p->heads + head) * dim * e, dim * e);
    for (size_t i = 0; i <= t; i++) {
        memcpy(k + i * padded * e, (char *)p->k + (i * p->kv_heads + kv) * dim * e, dim * e);
        memcpy(v + i * dim * e, (char *)p->v + (i * p->kv_heads + kv) * dim * e, dim * e);
    }
    float *y = calloc(dim, sizeof *y);
    assert_true(iv_ref_attention(&(iv_ref_attention_args){p->arithmetic, p->type, dim, (int64_t)t, p->window, p->scale,
                                                          p->inner, p->sinks ? p->sinks + head : NULL, q, k, v},
                                 y));
    for (size_t d = 0; d < dim; d++) put_type(p->type, out, d, y[d]);
    free(q), free(k), free(v), free(y);
}

static void one_problem(rng *r) {
    static const size_t dims[] = {16, 32, 48, 64, 80, 128, 8, 20};
    problem p = {.type = (iv_dtype)rng_below(r, 3), .kv_heads = 1 + rng_below(r, 3), .head_dim = dims[rng_below(r, 8)]};
    p.arithmetic = p.type != IV_F32 && rng_below(r, 3) == 0 ? IV_TC16 : IV_FMA32;
    p.heads = p.kv_heads * (1 + rng_below(r, rng_below(r, 6) ? 4 : 15));
    p.first = rng_below(r, 3) ? rng_below(r, 640) : 0, p.rows = 1 + rng_below(r, 90);
    p.window = rng_below(r, 2) ? 0 : (int64_t)(1 + rng_below(r, 400));
    p.scale = random_float(r, NORMAL) * (rng_below(r, 2) ? 1.0f : 30.0f);
    family f = (family[]){NORMAL, WIDE, SUBNORMAL, CANCEL, SPARSE}[p.type == IV_F16 ? 0 : rng_below(r, 5)];
    size_t tokens = p.first + p.rows, e = iv_dtype_bytes(p.type);
    float *sinks = random_values(r, rng_below(r, 3) ? NORMAL : WIDE, IV_F32, p.heads);
    p.inner = rng_below(r, 3) ? 0.0f : 0.02f, p.sinks = rng_below(r, 3) ? NULL : sinks;
    p.q = random_values(r, NORMAL, p.type, tokens * p.heads * p.head_dim);
    p.k = random_values(r, f, p.type, tokens * p.kv_heads * p.head_dim);
    p.v = random_values(r, f, p.type, tokens * p.kv_heads * p.head_dim);
    char *want = malloc(p.head_dim * e), what[200];
    char *got[IV_ISA_COUNT] = {0};
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++)
        got[isa] = run_fast(&p, (iv_isa)isa, 1 + rng_below(r, 3), p.head_dim);
    for (int check = 0; check < 6; check++) {
        size_t row = check ? rng_below(r, p.rows) : p.rows - 1, head = rng_below(r, p.heads);
        run_reference(&p, row, head, want);
        for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
            snprintf(what, sizeof what,
                     "%s %s arithmetic %d heads %zu/%zu dim %zu tokens %zu+%zu window %lld family %d row %zu head %zu",
                     iv_isa_name((iv_isa)isa), iv_dtype_name(p.type), (int)p.arithmetic, p.heads, p.kv_heads,
                     p.head_dim, p.first, p.rows, (long long)p.window, (int)f, row, head);
            assert_same_bits(what, want, got[isa] + (row * p.heads + head) * p.head_dim * e, p.head_dim, e, false);
        }
    }
    size_t all = p.rows * p.heads * p.head_dim * e;
    for (int isa = 1; isa <= (int)iv_isa_detect(); isa++) assert_memory_equal(got[0], got[isa], all);
    size_t narrow = 1 + rng_below(r, p.head_dim); /* each element of the result depends on its own of the values */
    char *few = run_fast(&p, iv_isa_detect(), 2, narrow);
    for (size_t i = 0; i < p.rows * p.heads; i++)
        assert_memory_equal(few + i * narrow * e, got[0] + i * p.head_dim * e, narrow * e);
    free(few);
    for (int isa = 0; isa < IV_ISA_COUNT; isa++) free(got[isa]);
    free(want), free(sinks), free(p.q), free(p.k), free(p.v);
}

static void paged_attention_has_the_reference_bits(void **state) {
    (void)state;
    rng r = rng_start("attention");
    size_t n = trials(25, 1000); /* six rows each, on every instruction set */
    for (size_t i = 0; i < n; i++) one_problem(&r);
    printf("attention: %zu problems, 0 differ\n", n);
}

static void non_finite_values_are_refused(void **state) {
    (void)state;
    iv_kv_layout l;
    assert_true(iv_kv_layout_make(&l, IV_BF16, 1, 16, 16));
    unsigned char *page = calloc(1, l.page_bytes), *before = calloc(1, l.page_bytes);
    uint16_t good[16] = {0x3f80}, bad[16] = {0, 0x7f80};
    assert_false(iv_kv_write(&l, page, 0, 3, good, bad));
    assert_false(iv_kv_write(&l, page, 0, 3, bad, good));
    assert_memory_equal(page, before, l.page_bytes);
    assert_true(iv_kv_write(&l, page, 0, 3, good, good));
    assert_memory_not_equal(page, before, l.page_bytes);
    free(page), free(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(paged_attention_has_the_reference_bits),
                                       cmocka_unit_test(non_finite_values_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
