/* The cuts of each numerics as tables; linear layers and attention under a baseline are the law's kernels with
 * different cuts. */
#include "random.h"
#include "baseline/ops.h"
#include "kernels/attention.h"
#include "kernels/cpu/tile_common.h"
#include "kernels/linear.h"

static void names_go_there_and_back(void **state) {
    (void)state;
    iv_error err;
    for (int i = 0; i < IV_NUMERICS_COUNT; i++) {
        iv_numerics n = IV_INVAR;
        ASSERT_OK(iv_numerics_parse(iv_numerics_name((iv_numerics)i), &n, &err), &err);
        assert_int_equal(n, i);
    }
    iv_numerics n;
    assert_int_equal(iv_numerics_parse("Invar", &n, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "'Invar'"));
}

/* Rows and outputs do not affect the cuts of invar and bio; in vanilla more work means fewer cuts. */
static void splits_by_shape(void **state) {
    (void)state;
    static const struct {
        size_t rows, outputs;
        int splits;
    } table[] = {{1, 256, 8},  {1, 151936, 8}, {2, 256, 8},  {4, 256, 8},   {8, 256, 8},  {16, 256, 4}, {32, 256, 2},
                 {64, 256, 1}, {4, 1024, 4},   {8, 1024, 2}, {16, 1024, 1}, {4, 3072, 1}, {16, 32, 8},  {512, 32, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int found = iv_baseline_split_k(IV_VANILLA, table[i].rows, table[i].outputs, 8);
        if (found != table[i].splits)
            fail_msg("%zu rows, %zu outputs: wanted %d splits, found %d", table[i].rows, table[i].outputs,
                     table[i].splits, found);
    }
    for (size_t rows = 1; rows <= 600; rows++)
        for (int leaves = 1; leaves <= 8; leaves *= 2) {
            int cut = iv_baseline_split_k(IV_VANILLA, rows, 256, leaves);
            assert_int_equal(iv_baseline_split_k(IV_INVAR, rows, 256, leaves), leaves);
            assert_int_equal(iv_baseline_split_k(IV_BIO, rows, 256, leaves), 1);
            assert_int_equal(iv_baseline_split_k(IV_VANILLA_BLAS, rows, 256, leaves), cut);
            assert_true(cut >= 1 && cut <= leaves && (cut & (cut - 1)) == 0);
        }
}

static void attention_splits_by_shape(void **state) {
    (void)state;
    static const struct {
        size_t tiles, blocks, split_blocks;
    } table[] = {{4, 1, 1}, {4, 30, 1}, {4, 64, 2}, {64, 4, 2}, {64, 5, 3}, {128, 30, 30}, {4096, 7, 7}, {1, 0, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(iv_baseline_kv_split_blocks(IV_VANILLA, table[i].tiles, table[i].blocks),
                         table[i].split_blocks);
        assert_int_equal(iv_baseline_kv_split_blocks(IV_INVAR, table[i].tiles, table[i].blocks), 4);
        assert_int_equal(iv_baseline_kv_split_blocks(IV_BIO, table[i].tiles, table[i].blocks), 4);
    }
}

/* ---- linear -------------------------------------------------------------------------------------------- */

enum { ROWS = 40, N = 256, K = 512 };

typedef struct layer {
    iv_compute c;
    iv_matrix m;
    uint16_t *x, *w;
} layer;

static void layer_open(layer *l, rng *r, iv_isa isa, size_t threads) {
    iv_error err;
    *l = (layer){.c = {.kernels = iv_kernels_select(isa)}};
    ASSERT_OK(iv_pool_open(threads, &l->c.pool, &err), &err);
    assert_true(iv_linear_scratch(ROWS, K, &l->c.scratch_bytes));
    l->c.scratch = aligned_alloc(64, (l->c.scratch_bytes + 63) / 64 * 64);
    assert_true(iv_matrix_shape(&l->m, IV_BF16, N, K));
    l->m.data = aligned_alloc(64, iv_matrix_bytes(&l->m));
    assert_true(l->c.scratch && l->m.data);
    memset(l->m.data, 0, iv_matrix_bytes(&l->m));
    l->w = random_values(r, NORMAL, IV_BF16, N * K), l->x = random_values(r, NORMAL, IV_BF16, ROWS * K);
    iv_matrix_pack(&l->m, IV_BF16, l->w, K, 0, N);
}

static void layer_close(layer *l) {
    iv_pool_close(l->c.pool);
    free(l->c.scratch), free(l->m.data), free(l->w), free(l->x);
}

static void layer_run(layer *l, iv_numerics numerics, size_t first, size_t rows, float *out) {
    iv_error err;
    iv_baseline *b = NULL;
    const iv_kernels *law = l->c.kernels;
    if (numerics != IV_INVAR) {
        ASSERT_OK(iv_baseline_open(numerics, law, 1, &b, &err), &err);
        l->c.kernels = iv_baseline_kernels(b);
    }
    l->c.kernels->linear(&l->c, &(iv_linear_args){.weight = &l->m,
                                                  .type = IV_BF16,
                                                  .x = l->x + first * K,
                                                  .x_stride = K,
                                                  .rows = rows,
                                                  .out = out,
                                                  .out_stride = N});
    l->c.kernels = law;
    iv_baseline_close(b);
}

/* The scalar kernel with this number of leaves, row by row. */
static void reference(const layer *l, int leaves, size_t rows, float *out) {
    const iv_tile_kernel *t = &iv_tile_bf16_fma32_scalar;
    void *packed = aligned_alloc(64, (iv_tile_packed_bytes(t, 1, K) + 63) / 64 * 64);
    for (size_t r = 0; r < rows; r++)
        for (size_t p = 0; p < N / 32; p++) {
            t->pack(IV_BF16, l->x + r * K, K, 1, K, K, packed);
            t->linear(packed, 1, iv_matrix_panel(&l->m, p), K, leaves, (iv_tile_prefetch){0}, out + r * N + p * 32);
        }
    free(packed);
}

static void linear_is_the_kernel_with_another_cut(void **state) {
    (void)state;
    static const size_t rows[] = {1, 3, 8, 16, 17, 40};
    rng r = rng_start("linear under a baseline");
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        layer l;
        float want[ROWS * N], got[ROWS * N];
        layer_open(&l, &r, (iv_isa)isa, 1 + rng_below(&r, 3));
        for (int n = IV_INVAR; n <= IV_VANILLA; n++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                char what[100];
                snprintf(what, sizeof what, "%s %s %zu rows", iv_numerics_name((iv_numerics)n),
                         iv_isa_name((iv_isa)isa), rows[i]);
                reference(&l, iv_baseline_split_k((iv_numerics)n, rows[i], N, l.m.leaves), rows[i], want);
                layer_run(&l, (iv_numerics)n, 0, rows[i], got);
                assert_same_bits(what, want, got, rows[i] * N, sizeof(float), false);
            }
        layer_close(&l);
    }
}

/* Number of outputs of the last row that differ between a call of `rows` rows and one of that row alone. */
static size_t differing(layer *l, iv_numerics numerics, size_t rows) {
    float together[ROWS * N], alone[N];
    size_t n = 0;
    layer_run(l, numerics, 0, rows, together);
    layer_run(l, numerics, rows - 1, 1, alone);
    for (size_t i = 0; i < N; i++) n += iv_bits(together[(rows - 1) * N + i]) != iv_bits(alone[i]);
    return n;
}

static void rows_see_each_other_in_vanilla_only(void **state) {
    (void)state;
    rng r = rng_start("rows in company");
    layer l;
    layer_open(&l, &r, iv_isa_detect(), 2);
    for (size_t rows = 2; rows <= ROWS; rows++) {
        assert_int_equal(differing(&l, IV_INVAR, rows), 0);
        assert_int_equal(differing(&l, IV_BIO, rows), 0);
    }
    size_t found = differing(&l, IV_VANILLA, ROWS);
    printf("vanilla: %zu of %d outputs differ between a row alone and among %d\n", found, N, ROWS);
    assert_true(found > 0);
    layer_close(&l);
}

/* ---- attention ----------------------------------------------------------------------------------------- */

enum { HEADS = 2, DIM = 32, TOKENS = 500 };

/* One query token at the end of `copies` sequences that share their keys; the result of the first. */
static void attend(rng data, iv_numerics numerics, size_t copies, float *out) {
    iv_error err;
    iv_kv_layout l;
    iv_compute c = {.kernels = iv_kernels_select(iv_isa_detect())};
    iv_baseline *baseline = NULL;
    if (numerics != IV_INVAR) {
        ASSERT_OK(iv_baseline_open(numerics, c.kernels, 2, &baseline, &err), &err);
        c.kernels = iv_baseline_kernels(baseline);
    }
    size_t blocks = (TOKENS + 63) / 64;
    ASSERT_OK(iv_pool_open(2, &c.pool, &err), &err);
    assert_true(iv_kv_layout_make(&l, IV_F32, HEADS, DIM, DIM) && iv_attention_scratch(&l, &c.scratch_bytes));
    c.scratch_bytes *= 2;
    c.scratch = aligned_alloc(64, c.scratch_bytes);
    unsigned char *kv = calloc(blocks, l.page_bytes);
    uint32_t pages[(TOKENS + 63) / 64];
    for (size_t b = 0; b < blocks; b++) pages[b] = (uint32_t)b;
    float *k = random_values(&data, NORMAL, IV_F32, TOKENS * HEADS * DIM),
          *v = random_values(&data, NORMAL, IV_F32, TOKENS * HEADS * DIM),
          *q = random_values(&data, NORMAL, IV_F32, HEADS * DIM);
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t h = 0; h < HEADS; h++)
            assert_true(iv_kv_write(&l, kv + t / 64 * l.page_bytes, h, t % 64, k + (t * HEADS + h) * DIM,
                                    v + (t * HEADS + h) * DIM));
    iv_attention_span *spans = calloc(copies, sizeof *spans);
    float *queries = calloc(copies, HEADS * DIM * sizeof *queries), *all = calloc(copies, HEADS * DIM * sizeof *all);
    for (size_t i = 0; i < copies; i++) {
        spans[i] = (iv_attention_span){i, 1, TOKENS - 1, pages};
        memcpy(queries + i * HEADS * DIM, q, HEADS * DIM * sizeof *q);
    }
    c.kernels->attention(&c, &(iv_attention_args){.layout = &l,
                                                  .kv = kv,
                                                  .heads = HEADS,
                                                  .group = HEADS / l.heads,
                                                  .scale_log2e = 0.2f,
                                                  .q = queries,
                                                  .out = all,
                                                  .spans = spans,
                                                  .span_count = copies});
    memcpy(out, all, HEADS * DIM * sizeof *out);
    free(kv), free(k), free(v), free(q), free(spans), free(queries), free(all), free(c.scratch);
    iv_baseline_close(baseline);
    iv_pool_close(c.pool);
}

static void attention_splits_by_company_in_vanilla_only(void **state) {
    (void)state;
    rng r = rng_start("attention in company");
    float alone[HEADS * DIM], company[HEADS * DIM], law[HEADS * DIM];
    for (int n = IV_INVAR; n <= IV_VANILLA; n++) {
        attend(r, (iv_numerics)n, 1, alone);
        attend(r, (iv_numerics)n, 40, company);
        bool same = memcmp(alone, company, sizeof alone) == 0;
        assert_int_equal(same, n != IV_VANILLA);
        if (n == IV_INVAR) memcpy(law, alone, sizeof law);
        for (size_t i = 0; i < HEADS * DIM; i++)
            assert_true(fabsf(company[i] - law[i]) < 1e-5f && fabsf(alone[i] - law[i]) < 1e-5f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_go_there_and_back),
                                       cmocka_unit_test(splits_by_shape),
                                       cmocka_unit_test(attention_splits_by_shape),
                                       cmocka_unit_test(linear_is_the_kernel_with_another_cut),
                                       cmocka_unit_test(rows_see_each_other_in_vanilla_only),
                                       cmocka_unit_test(attention_splits_by_company_in_vanilla_only)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
