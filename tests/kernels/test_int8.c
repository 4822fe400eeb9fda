/* int8 layers against the reference, bit for bit: every kernel of this machine, random shapes, types and values,
 * weights from numbers and from codes, whole and in parts of K; extremes, zero rows, rows that are not finite. */
#include "random.h"
#include "kernels/int8.h"
#if defined(__x86_64__)
#include "base/cpu.h"
#include "kernels/cpu/x86/x86.h"
#endif

#include <string.h>

enum { KERNELS_MAX = 4, PARTS_MAX = 4 };

#if defined(__aarch64__)
#include "base/cpu.h"
#include "kernels/cpu/int8_dotprod.h"
#endif

static size_t all_kernels(const iv_int8_kernel **out) {
    size_t n = 0;
    out[n++] = &iv_int8_scalar;
#if defined(__x86_64__)
    if (iv_isa_detect() >= IV_ISA_AVX2) out[n++] = &iv_int8_avx2;
    if (iv_isa_detect() >= IV_ISA_AVX2 && iv_cpu_has("avxvnni")) out[n++] = &iv_int8_avxvnni;
    if (iv_isa_detect() >= IV_ISA_AVX512 && iv_cpu_has("avx512vnni")) out[n++] = &iv_int8_avx512vnni;
#endif
#if defined(__aarch64__)
    if (iv_cpu_has("dotprod")) out[n++] = &iv_int8_dotprod;
#endif
    return n;
}

/* A layer: its codes and scales one by one, and its inputs. */
typedef struct layer {
    size_t n, k, rows, stride;
    int terms;
    iv_dtype type;
    int8_t *codes; /* [n][k] */
    float *scales, *bias;
    void *weights; /* [n][k] of float32, of which codes and scales were made; NULL: they are a file's */
    void *x;
} layer;

static layer random_layer(rng *r, size_t n, size_t k, size_t rows, int terms) {
    layer l = {.n = n, .k = k, .rows = rows, .terms = terms, .stride = k + rng_below(r, 9)};
    l.type = (iv_dtype[]){IV_BF16, IV_F16, IV_F32}[rng_below(r, 3)];
    l.codes = malloc(n * k), l.scales = malloc(n * sizeof(float)), l.bias = random_values(r, NORMAL, IV_F32, n);
    l.x = random_values(r, (family)rng_below(r, FAMILIES), l.type, rows * l.stride);
    if (rng_below(r, 2)) {
        for (size_t i = 0; i < n * k; i++) l.codes[i] = (int8_t)rng_next(r);
        for (size_t i = 0; i < n; i++) l.scales[i] = random_float(r, WIDE);
    } else {
        l.weights = random_values(r, (family)rng_below(r, SPECIAL), IV_F32, n * k); /* finite */
        for (size_t i = 0; i < n; i++) {
            void *row = malloc(k * sizeof(float));
            for (size_t e = 0; e < k; e++) put_type(l.type, row, e, ((float *)l.weights)[i * k + e]);
            iv_int8_scale s = iv_ref_int8_scale(iv_ref_int8_magnitude(l.type, row, k), 1);
            iv_ref_int8_codes(l.type, row, k, s.inverse, 1, l.codes + i * k, NULL);
            l.scales[i] = s.scale;
            free(row);
        }
    }
    if (rng_below(r, 3) == 0) memset(l.x, 0, l.stride * iv_dtype_bytes(l.type)); /* a row of zeros */
    return l;
}

static void free_layer(layer *l) { free(l->codes), free(l->scales), free(l->bias), free(l->weights), free(l->x); }

/* y[rows][n] by the law, without bias. */
static float *reference(const layer *l) {
    float *y = malloc(l->rows * l->n * sizeof *y);
    int8_t *codes[2] = {malloc(l->k), malloc(l->k)};
    for (size_t r = 0; r < l->rows; r++) {
        const char *x = (const char *)l->x + r * l->stride * iv_dtype_bytes(l->type);
        iv_int8_scale s = iv_ref_int8_scale(iv_ref_int8_magnitude(l->type, x, l->k), l->terms);
        iv_ref_int8_codes(l->type, x, l->k, s.inverse, l->terms, codes[0], codes[1]);
        for (size_t i = 0; i < l->n; i++) {
            int32_t sums[2];
            for (int t = 0; t < l->terms; t++) sums[t] = iv_ref_int8_sum(codes[t], l->codes + i * l->k, l->k);
            y[r * l->n + i] = iv_ref_int8_result(sums, l->terms, s.scale, l->scales[i]);
        }
    }
    free(codes[0]), free(codes[1]);
    return y;
}

/* The columns [column, column + k) as a matrix. */
static iv_matrix matrix_of(rng *r, const layer *l, size_t column, size_t k) {
    iv_matrix m;
    assert_true(iv_matrix_shape(&m, l->type, l->n, k) && iv_int8_shape(&m, l->terms));
    m.data = aligned_alloc(64, iv_matrix_bytes(&m));
    memset(m.data, 0, iv_matrix_bytes(&m));
    for (size_t at = 0, n; at < l->n; at += n) { /* in pieces, as tensors are read */
        n = 1 + rng_below(r, l->n - at);
        if (l->weights)
            iv_int8_put(&m, IV_F32, (float *)l->weights + at * l->k, l->k, column, at, n);
        else
            iv_int8_put_codes(&m, (uint8_t *)l->codes + at * l->k, l->scales + at, l->k, column, at, n);
    }
    return m;
}

static iv_compute compute_of(const iv_kernels *table, iv_pool *pool, const layer *l) {
    iv_compute c = {.kernels = table, .arithmetic = IV_FMA32, .pool = pool};
    assert_true(iv_linear_scratch(l->rows, l->k, &c.scratch_bytes));
    c.scratch = aligned_alloc(64, (c.scratch_bytes + 63) / 64 * 64);
    return c;
}

static iv_linear_args args_of(const layer *l, const iv_matrix *m, size_t column, float *out) {
    return (iv_linear_args){.weight = m,
                            .type = l->type,
                            .x = (const char *)l->x + column * iv_dtype_bytes(l->type),
                            .x_stride = l->stride,
                            .rows = l->rows,
                            .out = out,
                            .out_stride = l->n};
}

/* The ends of a layer: bias, a zero, the residual. */
static void check_whole(rng *r, const layer *l, const iv_compute *c, const float *want, const char *name) {
    iv_matrix m = matrix_of(r, l, 0, l->k);
    float *out = random_values(r, NORMAL, IV_F32, l->rows * l->n), *sum = malloc(l->rows * l->n * sizeof *sum);
    bool bias = rng_below(r, 2), accumulate = rng_below(r, 2), zero = rng_below(r, 2);
    for (size_t i = 0; i < l->rows * l->n; i++) {
        sum[i] = zero ? iv_canonical(want[i] + 0.0f) : want[i];
        if (bias) sum[i] = iv_canonical(sum[i] + l->bias[i % l->n]);
        if (accumulate) sum[i] = iv_canonical(out[i] + sum[i]);
    }
    iv_linear_args a = args_of(l, &m, 0, out);
    a.bias = bias ? l->bias : NULL, a.accumulate = accumulate, a.from_zero = zero;
    iv_linear(c, &a);
    assert_same_bits(name, sum, out, l->rows * l->n, sizeof *out, false);
    free(m.data), free(out), free(sum);
}

/* Parts of K, as ranks have them: magnitudes are a maximum, sums are added, in the order that the seed gives. */
static void check_parts(rng *r, const layer *l, const iv_compute *c, const float *want, const char *name) {
    size_t parts = 1 + rng_below(r, PARTS_MAX), cut[PARTS_MAX + 1] = {0}, terms = (size_t)l->terms;
    for (size_t i = 1; i < parts; i++) cut[i] = cut[i - 1] + rng_below(r, l->k - cut[i - 1] + 1); /* perhaps none */
    cut[parts] = l->k;
    iv_matrix m[PARTS_MAX];
    uint32_t *most = calloc(l->rows, sizeof *most), *part = malloc(l->rows * sizeof *part);
    int32_t *sums = calloc(l->rows * terms * l->n, sizeof *sums), *own = malloc(l->rows * terms * l->n * sizeof *own);
    for (size_t i = 0; i < parts; i++) {
        m[i] = matrix_of(r, l, cut[i], cut[i + 1] - cut[i]);
        iv_linear_args a = args_of(l, &m[i], cut[i], NULL);
        c->kernels->magnitudes(c, &a, part);
        for (size_t row = 0; row < l->rows; row++) most[row] = part[row] > most[row] ? part[row] : most[row];
    }
    for (size_t i = parts; i-- > 0;) {
        iv_linear_args a = args_of(l, &m[i], cut[i], NULL);
        iv_int8_sums(c, &a, most, own);
        for (size_t e = 0; e < l->rows * terms * l->n; e++) sums[e] = (int32_t)((uint32_t)sums[e] + (uint32_t)own[e]);
    }
    float *out = malloc(l->rows * l->n * sizeof *out);
    size_t step = 32 * (1 + rng_below(r, 4));
    for (size_t row = 0; row < l->rows; row++)
        for (size_t n = 0; n < l->n; n += step)
            iv_int8_results(c, &m[rng_below(r, parts)], most[row], sums + row * terms * l->n + n, l->n, n,
                            n + step < l->n ? step : l->n - n, out + row * l->n + n);
    assert_same_bits(name, want, out, l->rows * l->n, sizeof *out, false);
    for (size_t i = 0; i < parts; i++) free(m[i].data);
    free(most), free(part), free(sums), free(own), free(out);
}

static void check_layer(rng *r, const layer *l, iv_pool *pool) {
    const iv_int8_kernel *kernels[KERNELS_MAX];
    size_t count = all_kernels(kernels);
    float *want = reference(l);
    for (size_t i = 0; i < count; i++) {
        iv_kernels table = *iv_kernels_select(IV_ISA_AVX512);
        table.int8 = kernels[i];
        iv_compute c = compute_of(&table, pool, l);
        check_whole(r, l, &c, want, kernels[i]->name);
        check_parts(r, l, &c, want, kernels[i]->name);
        free(c.scratch);
    }
    free(want);
}

static void check_random(rng *r, size_t n, size_t k, size_t rows, iv_pool *pool) {
    layer l = random_layer(r, n, k, rows, 1 + (int)rng_below(r, 2));
    check_layer(r, &l, pool);
    free_layer(&l);
}

static void shapes(void **state) {
    (void)state;
    rng r = rng_start("int8");
    iv_pool *pool;
    iv_error err;
    ASSERT_OK(iv_pool_open(3, &pool, &err), &err);
    for (size_t i = 0, count = trials(150, 2000); i < count; i++)
        check_random(&r, 1 + rng_below(&r, 150), 1 + rng_below(&r, 400), 1 + rng_below(&r, 40), pool);
    for (size_t i = 0; i < trials(3, 20); i++)
        check_random(&r, 1 + rng_below(&r, 40), 65536, 1 + rng_below(&r, 3), pool);
    check_random(&r, 700, 2048, 70, pool); /* several blocks of tiles */
    iv_pool_close(pool);
}

/* The largest sums that the law allows. */
static void extremes(void **state) {
    (void)state;
    rng r = rng_start("int8 extremes");
    iv_pool *pool;
    iv_error err;
    ASSERT_OK(iv_pool_open(1, &pool, &err), &err);
    for (int terms = 1; terms <= 2; terms++)
        for (int sign = -1; sign <= 1; sign += 2) {
            layer l = random_layer(&r, 3, IV_INT8_K_MAX, 2, terms);
            free(l.weights), l.weights = NULL;
            for (size_t i = 0; i < l.n * l.k; i++) l.codes[i] = -128;
            for (size_t i = 0; i < l.n; i++) l.scales[i] = 1.0f;
            for (size_t i = 0; i < l.rows * l.stride; i++) put_type(l.type, l.x, i, (float)sign * 127.0f);
            float *want = reference(&l);
            assert_true(want[0] == (float)-sign * 127.0f * 128.0f * IV_INT8_K_MAX);
            check_layer(&r, &l, pool);
            free(want), free_layer(&l);
        }
    iv_pool_close(pool);
}

/* What the law says of rows: zeros, tiny ones, and those with a number that is not finite. */
static void special_rows(void **state) {
    (void)state;
    const float rows[][4] = {{0.0f, -0.0f, 0.0f, 0.0f}, {0x1.fffffep-101f, 0, 0, -0x1p-149f}, {0x1p-100f, 0, 0, 0},
                             {INFINITY, 1, 0, 0},       {1, -INFINITY, INFINITY, 0},          {1, NAN, 3, 4}};
    const int8_t codes[4] = {1, 2, 3, 4};
    for (int terms = 1; terms <= 2; terms++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            int8_t x[2][4];
            iv_int8_scale s = iv_ref_int8_scale(iv_ref_int8_magnitude(IV_F32, rows[i], 4), terms);
            iv_ref_int8_codes(IV_F32, rows[i], 4, s.inverse, terms, x[0], x[1]);
            int32_t sums[2] = {iv_ref_int8_sum(x[0], codes, 4), terms == 2 ? iv_ref_int8_sum(x[1], codes, 4) : 0};
            float y = iv_ref_int8_result(sums, terms, s.scale, 1.0f);
            if (i < 2) assert_int_equal(iv_bits(y), 0);
            if (i == 2) assert_true(y > 0x1.fffffp-101f && y < 0x1.00001p-100f);
            if (i > 2) assert_int_equal(iv_bits(y), IV_NAN_F32_BITS);
        }
}

/* Two terms leave an error of half a step of the second, one term half a step of the first. */
static void errors_of_terms(void **state) {
    (void)state;
    rng r = rng_start("int8 errors");
    float *x = random_values(&r, NORMAL, IV_F32, 1000);
    float most = iv_float(iv_ref_int8_magnitude(IV_F32, x, 1000));
    for (int terms = 1; terms <= 2; terms++) {
        int8_t h[1000], l[1000] = {0};
        iv_int8_scale s = iv_ref_int8_scale(iv_bits(most), terms);
        iv_ref_int8_codes(IV_F32, x, 1000, s.inverse, terms, h, l);
        for (size_t i = 0; i < 1000; i++) {
            double back = terms == 1 ? (double)h[i] * s.scale : ((double)h[i] * 254 + l[i]) * s.scale;
            assert_true(fabs(back - x[i]) <= 0.51 * s.scale); /* the float that is rounded has an error too */
        }
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes), cmocka_unit_test(extremes),
                                       cmocka_unit_test(special_rows), cmocka_unit_test(errors_of_terms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
