/* Kernels of latent attention: products of heads against chains of the reference, and a page that stores its values as
 * a part of its keys against one that stores both. */
#include "random.h"
#include "kernels/attention.h"
#include "kernels/head_products.h"
#include "kernels/turned_values.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

enum { HEADS_MAX = 5, B = IV_ATTENTION_BLOCK };

static float rounded_chain(iv_arithmetic arithmetic, iv_dtype type, const void *x, const void *w, size_t k) {
    size_t padded = iv_padded_k(k), e = iv_dtype_bytes(type);
    void *a = calloc(padded, e), *b = calloc(padded, e);
    memcpy(a, x, k * e), memcpy(b, w, k * e);
    float y = iv_ref_chain(arithmetic, type, 0.0f, a, b, padded);
    free(a), free(b);
    return y;
}

static void products(rng *r) {
    iv_dtype type = (iv_dtype)rng_below(r, 3);
    iv_arithmetic arithmetic = type != IV_F32 && rng_below(r, 3) == 0 ? IV_TC16 : IV_FMA32;
    size_t heads = 1 + rng_below(r, HEADS_MAX), rows = 1 + rng_below(r, 120), n = 1 + rng_below(r, 90);
    size_t k = 1 + rng_below(r, 90), e = iv_dtype_bytes(type), x_head = k + rng_below(r, 4), out_head = n + 3;
    size_t x_stride = heads * x_head + rng_below(r, 5), out_stride = heads * out_head, threads = 1 + rng_below(r, 3);
    char *x = random_values(r, NORMAL, type, rows * x_stride), *w = random_values(r, NORMAL, type, heads * n * k);
    iv_matrix weights[HEADS_MAX];
    for (size_t h = 0; h < heads; h++) {
        assert_true(iv_matrix_shape(&weights[h], type, n, k));
        weights[h].data = aligned_alloc(64, (iv_matrix_bytes(&weights[h]) + 63) / 64 * 64);
        memset(weights[h].data, 0, iv_matrix_bytes(&weights[h]));
        iv_matrix_pack(&weights[h], type, w + h * n * k * e, k, 0, n);
    }
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        iv_error err;
        iv_compute c = {.kernels = iv_kernels_select((iv_isa)isa), .arithmetic = arithmetic};
        ASSERT_OK(iv_pool_open(threads, &c.pool, &err), &err);
        c.scratch_bytes = iv_head_products_scratch(k) * threads;
        c.scratch = aligned_alloc(64, c.scratch_bytes);
        char *out = malloc(rows * out_stride * e);
        memset(out, 0x55, rows * out_stride * e);
        iv_head_products(
            &c, &(iv_head_products_args){weights, heads, rows, type, x, x_stride, x_head, out, out_stride, out_head});
        for (size_t i = 0; i < rows * heads; i++) {
            size_t row = i / heads, h = i % heads, at = row * out_stride + h * out_head;
            char want[90 * 4];
            for (size_t j = 0; j < n; j++)
                put_type(
                    type, want, j,
                    rounded_chain(arithmetic, type, x + (row * x_stride + h * x_head) * e, w + (h * n + j) * k * e, k));
            assert_same_bits("a head's product", want, out + at * e, n, e, false);
            for (size_t b = 0; b < 3 * e; b++) assert_int_equal(out[(at + n) * e + b], 0x55); /* no other head's */
        }
        free(out), free(c.scratch);
        iv_pool_close(c.pool);
    }
    for (size_t h = 0; h < heads; h++) free(weights[h].data);
    free(x), free(w);
}

static void products_have_the_bits_of_chains(void **state) {
    (void)state;
    rng r = rng_start("head products");
    for (size_t i = 0; i < trials(20, 300); i++) products(&r);
}

/* The same attention over a layout of either kind. */
static void *attend(iv_isa isa, iv_arithmetic arithmetic, const iv_kv_layout *l, size_t heads, size_t tokens,
                    const char *k, const void *q) {
    iv_error err;
    iv_compute c = {.kernels = iv_kernels_select(isa), .arithmetic = arithmetic};
    size_t blocks = (tokens + B - 1) / B, e = iv_dtype_bytes(l->type);
    uint32_t pages[16];
    unsigned char *kv = calloc(blocks, l->page_bytes);
    char *out = calloc(tokens * heads * l->value_dim, e);
    for (size_t b = 0; b < blocks; b++) pages[b] = (uint32_t)b;
    for (size_t t = 0; t < tokens; t++)
        assert_true(iv_kv_write(l, kv + t / B * l->page_bytes, 0, t % B, k + t * l->key_dim * e,
                                l->shared ? NULL : k + t * l->key_dim * e));
    ASSERT_OK(iv_pool_open(2, &c.pool, &err), &err);
    assert_true(iv_attention_scratch(l, &c.scratch_bytes));
    c.scratch_bytes *= 2, c.scratch = aligned_alloc(64, c.scratch_bytes);
    memset(c.scratch, 0xff, c.scratch_bytes);
    iv_attention_span span = {0, tokens, 0, pages};
    iv_attention(&c, &(iv_attention_args){.layout = l,
                                          .kv = kv,
                                          .heads = heads,
                                          .group = heads,
                                          .scale_log2e = 0.2f,
                                          .q = q,
                                          .out = out,
                                          .spans = &span,
                                          .span_count = 1});
    iv_pool_close(c.pool);
    free(kv), free(c.scratch);
    return out;
}

static void shared(rng *r) {
    iv_dtype type = (iv_dtype)rng_below(r, 3);
    iv_arithmetic arithmetic = type != IV_F32 && rng_below(r, 3) == 0 ? IV_TC16 : IV_FMA32;
    size_t values = 1 + rng_below(r, 150), keys = values + rng_below(r, 40), heads = 1 + rng_below(r, 20);
    size_t tokens = 1 + rng_below(r, 330), e = iv_dtype_bytes(type);
    iv_kv_layout both, once;
    assert_true(iv_kv_layout_make(&both, type, 1, keys, values) &&
                iv_kv_layout_make_shared(&once, type, 1, keys, values));
    assert_int_equal(once.page_bytes, B * iv_padded_k(keys) * e);
    void *k = random_values(r, NORMAL, type, tokens * keys), *q = random_values(r, NORMAL, type, tokens * heads * keys);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        void *want = attend((iv_isa)isa, arithmetic, &both, heads, tokens, k, q);
        void *got = attend((iv_isa)isa, arithmetic, &once, heads, tokens, k, q);
        assert_memory_equal(want, got, tokens * heads * values * e);
        free(want), free(got);
    }
    free(k), free(q);
}

static void shared_values_have_the_bits_of_stored_ones(void **state) {
    (void)state;
    rng r = rng_start("shared values");
    for (size_t i = 0; i < trials(12, 200); i++) shared(&r);
}

/* Element d of key j is the value's element d of that key, and what lies behind the keys is zero. */
static void values_are_turned_keys(void **state) {
    (void)state;
    rng r = rng_start("turned values");
    for (size_t i = 0; i < trials(30, 300); i++) {
        iv_dtype type = (iv_dtype)rng_below(&r, 3);
        size_t values = 1 + rng_below(&r, 150), keys = values + rng_below(&r, 40), e = iv_dtype_bytes(type);
        iv_kv_layout l;
        assert_true(iv_kv_layout_make_shared(&l, type, 1, keys, values));
        unsigned char *page = calloc(1, l.page_bytes), *out = malloc(iv_matrix_bytes(&l.values));
        char *k = random_values(&r, NORMAL, type, B * keys), *row = malloc(B * e);
        for (size_t j = 0; j < B; j++) assert_true(iv_kv_write(&l, page, 0, j, k + j * keys * e, NULL));
        for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
            memset(out, 0xff, iv_matrix_bytes(&l.values));
            iv_turned_values(iv_kernels_select((iv_isa)isa), &l, iv_kv_keys(&l, page, 0), out);
            l.values.data = out;
            for (size_t d = 0; d < values; d++) {
                iv_matrix_unpack(&l.values, row, B, d, 1);
                for (size_t j = 0; j < B; j++) assert_memory_equal(row + j * e, k + (j * keys + d) * e, e);
            }
            for (size_t b = 0; b < iv_matrix_bytes(&l.values); b += e) /* finite behind them, too */
                assert_true(isfinite(iv_element(type, out, b / e)));
        }
        free(page), free(out), free(k), free(row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_have_the_bits_of_chains),
                                       cmocka_unit_test(values_are_turned_keys),
                                       cmocka_unit_test(shared_values_have_the_bits_of_stored_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
