/* A product with adapters' rows on the CPU against the law's scalar form, row by row. */
#include "random.h"
#include "device/memory.h"
#include "model/cpu/product.h"
#include "numerics/adapter.h"
#include "numerics/attention.h"

enum { ROWS = 23, SLOTS = 3 };

typedef struct values {
    size_t n, k; /* with padded rows */
    void *data;
} values;

static values random_matrix(rng *r, iv_dtype type, size_t n, size_t k) {
    values v = {n, iv_padded_k(k), NULL};
    size_t width = iv_dtype_bytes(type);
    v.data = calloc(n * v.k, width);
    assert_non_null(v.data);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) {
            float x = (float)((double)rng_below(r, 20001) / 10000 - 1);
            if (rng_below(r, 40) == 0) x *= 1e-38f; /* flushed in places */
            if (type == IV_F32)
                ((float *)v.data)[i * v.k + j] = x;
            else
                ((uint16_t *)v.data)[i * v.k + j] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        }
    return v;
}

static iv_matrix pack(iv_dtype type, const values *v, size_t k, int leaves) {
    iv_matrix m;
    assert_true(iv_matrix_shape(&m, type, v->n, k));
    if (leaves) m.leaves = leaves;
    m.data = iv_memory_alloc(iv_matrix_bytes(&m));
    assert_non_null(m.data);
    iv_matrix_pack(&m, type, v->data, v->k, 0, v->n);
    return m;
}

/* One product of n outputs over k inputs, rows of three adapters and of the base in any order. The site is the head's.
 */
/* plain: the base's sums of a row, without `added`. of: NULL: a row of the base. */
static void check_row(const iv_ref_adapter *ref, const iv_adapted *of, const char *in, size_t n, const float *plain,
                      const float *added, const float *got) {
    float t[64];
    if (of) iv_ref_adapter_inner(ref, in, t);
    for (size_t j = 0; j < n; j++) {
        float y = plain[j];
        if (of && j >= of->out->first && j < of->out->first + of->out->b.n)
            y = iv_ref_adapt(ref, t, j - of->out->first, y);
        if (added) y = iv_canonical(y + added[j]);
        if (iv_bits(y) != iv_bits(got[j]))
            fail_msg("rank %zu, output %zu of %zu over %zu: wanted %08x, found %08x", of ? of->rank : 0, j, n,
                     ref->inputs, iv_bits(y), iv_bits(got[j]));
    }
}

static void check(rng *r, iv_arithmetic arithmetic, iv_dtype type, const iv_kernels *kernels) {
    size_t n = 1 + rng_below(r, 70), k = 1 + rng_below(r, 200), out_stride = n + rng_below(r, 3);
    values w = random_matrix(r, type, n, k), x = random_matrix(r, type, ROWS, k), a[SLOTS], b[SLOTS];
    iv_matrix base = pack(type, &w, k, 0);
    float *got = calloc(ROWS * out_stride, sizeof *got), *want = calloc(ROWS * out_stride, sizeof *want),
          *bias = calloc(n, sizeof *bias);
    for (size_t i = 0; i < n; i++) bias[i] = (float)rng_below(r, 100) - 50;
    iv_adapted modules[SLOTS] = {0}, *at[SLOTS][2] = {{NULL}};
    iv_adapted_out outs[SLOTS];
    iv_adapter adapters[SLOTS] = {0};
    const iv_adapter *slots[SLOTS];
    for (size_t s = 0; s < SLOTS; s++) {
        size_t rank = 1 + rng_below(r, 40), first = rng_below(r, n), part = 1 + rng_below(r, n - first);
        a[s] = random_matrix(r, type, rank, k), b[s] = random_matrix(r, type, part, rank);
        outs[s] = (iv_adapted_out){.b = pack(type, &b[s], rank, 1), .first = first};
        modules[s] = (iv_adapted){.rank = rank, .scale = 0.3f * (float)(s + 1), .out = &outs[s], .out_count = 1};
        modules[s].a[0] = pack(type, &a[s], k, base.leaves);
        at[s][0] = s == 1 && rng_below(r, 2) ? NULL : &modules[s]; /* an adapter need not have the module */
        adapters[s].at[0] = at[s], slots[s] = &adapters[s];
    }
    iv_error err;
    iv_pool *pool;
    ASSERT_OK(iv_pool_open(1, &pool, &err), &err);
    iv_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->config.hidden_size = (int64_t)k, m->gemm_type = type, m->tp.ranks = 1, m->tp.shard[0].vocab = n;
    iv_adapters table = {.slot = slots, .count = SLOTS, .rank_max = 40};
    uint32_t rows[ROWS];
    for (size_t i = 0; i < ROWS; i++) rows[i] = (uint32_t)rng_below(r, SLOTS + 1);
    iv_batch batch = {.tokens = ROWS, .adapters = rows};
    iv_cpu_model s = {.model = m, .tokens_max = ROWS, .batch = &batch};
    s.compute = (iv_compute){.kernels = kernels, .arithmetic = arithmetic, .pool = pool};
    ASSERT_OK(iv_cpu_use_adapters(&s, &table, 0, &err), &err);
    iv_cpu_note_adapters(&s);
    iv_linear_args args = {.weight = &base,
                           .type = type,
                           .x = x.data,
                           .x_stride = x.k,
                           .rows = ROWS,
                           .out = got,
                           .out_stride = out_stride,
                           .bias = rng_below(r, 2) ? bias : NULL};
    iv_cpu_product(&s, iv_site_head(m), &args, (iv_product_rows){0});
    const float *added = args.bias;
    args.out = want, args.bias = NULL;
    kernels->linear(&s.compute, &args);
    for (size_t i = 0; i < ROWS; i++) {
        const iv_adapted *of = rows[i] ? at[rows[i] - 1][0] : NULL;
        const char *in = (const char *)x.data + i * x.k * iv_dtype_bytes(type);
        iv_ref_adapter ref = {.arithmetic = arithmetic, .type = type, .inputs = k, .leaves = base.leaves};
        if (of) ref.a = a[rows[i] - 1].data, ref.b = b[rows[i] - 1].data, ref.rank = of->rank, ref.scale = of->scale;
        check_row(&ref, of, in, n, want + i * out_stride, added, got + i * out_stride);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        iv_memory_free(outs[i].b.data, iv_matrix_bytes(&outs[i].b));
        iv_memory_free(modules[i].a[0].data, iv_matrix_bytes(&modules[i].a[0]));
        free(a[i].data), free(b[i].data);
    }
    iv_memory_free(base.data, iv_matrix_bytes(&base));
    iv_cpu_adapted_free(s.adapted);
    iv_pool_close(pool);
    free(w.data), free(x.data), free(got), free(want), free(bias), free(m);
}

static void products_are_the_laws(void **state) {
    (void)state;
    static const iv_dtype types[] = {IV_BF16, IV_F16, IV_F32};
    rng r = rng_start("adapters");
    for (size_t i = 0; i < 60; i++) {
        const iv_kernels *kernels = iv_kernels_select(i % 4 ? iv_isa_detect() : IV_ISA_SCALAR);
        for (size_t t = 0; t < 3; t++) check(&r, IV_FMA32, types[t], kernels);
        for (size_t t = 0; t < 2; t++) check(&r, IV_TC16, types[t], kernels);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_the_laws)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
