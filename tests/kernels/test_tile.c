/* Every tile kernel against the scalar form, bit for bit: random shapes, all row counts, all data families. */
#include "random.h"
#include "base/cpu.h"
#include "kernels/cpu/tile_common.h"
#if defined(__x86_64__)
#include "kernels/cpu/x86/x86.h"
#endif
#include "kernels/matrix.h"

#include <math.h>

typedef struct candidate {
    const iv_tile_kernel *kernel, *reference;
    iv_dtype weight;
    bool widens; /* also accepts fp32 activations */
    iv_isa needs;
    bool needs_dot_product;
} candidate;

static const candidate candidates[] = {
#if defined(__x86_64__)
    {&iv_tile_bf16_fma32_avx2, &iv_tile_bf16_fma32_scalar, IV_BF16, true, IV_ISA_AVX2, false},
    {&iv_tile_f16_fma32_avx2, &iv_tile_f16_fma32_scalar, IV_F16, true, IV_ISA_AVX2, false},
    {&iv_tile_f32_fma32_avx2, &iv_tile_f32_fma32_scalar, IV_F32, true, IV_ISA_AVX2, false},
    {&iv_tile_bf16_tc16_avx2, &iv_tile_bf16_tc16_scalar, IV_BF16, false, IV_ISA_AVX2, false},
    {&iv_tile_f16_tc16_avx2, &iv_tile_f16_tc16_scalar, IV_F16, false, IV_ISA_AVX2, false},
    {&iv_tile_bf16_fma32_avx512, &iv_tile_bf16_fma32_scalar, IV_BF16, true, IV_ISA_AVX512, false},
    {&iv_tile_f16_fma32_avx512, &iv_tile_f16_fma32_scalar, IV_F16, true, IV_ISA_AVX512, false},
    {&iv_tile_f32_fma32_avx512, &iv_tile_f32_fma32_scalar, IV_F32, true, IV_ISA_AVX512, false},
    {&iv_tile_bf16_fma32_avx512bf16, &iv_tile_bf16_fma32_scalar, IV_BF16, false, IV_ISA_AVX512, true},
    {&iv_tile_bf16_tc16_avx512, &iv_tile_bf16_tc16_scalar, IV_BF16, false, IV_ISA_AVX512, false},
    {&iv_tile_f16_tc16_avx512, &iv_tile_f16_tc16_scalar, IV_F16, false, IV_ISA_AVX512, false},
#else
    {&iv_tile_bf16_fma32_scalar, &iv_tile_bf16_fma32_scalar, IV_BF16, true, IV_ISA_SCALAR, false},
    {&iv_tile_f16_fma32_scalar, &iv_tile_f16_fma32_scalar, IV_F16, true, IV_ISA_SCALAR, false},
    {&iv_tile_f32_fma32_scalar, &iv_tile_f32_fma32_scalar, IV_F32, true, IV_ISA_SCALAR, false},
    {&iv_tile_bf16_tc16_scalar, &iv_tile_bf16_tc16_scalar, IV_BF16, false, IV_ISA_SCALAR, false},
    {&iv_tile_f16_tc16_scalar, &iv_tile_f16_tc16_scalar, IV_F16, false, IV_ISA_SCALAR, false},
#endif
};

static bool runs_here(const candidate *c) {
    return iv_isa_detect() >= c->needs && (!c->needs_dot_product || iv_cpu_has("avx512bf16"));
}

static void *packed(const iv_tile_kernel *t, iv_dtype type, const void *a, size_t stride, size_t rows, size_t k,
                    size_t kp) {
    void *p = aligned_alloc(64, (iv_tile_packed_bytes(t, rows, kp) + 63) / 64 * 64);
    assert_non_null(p);
    t->pack(type, a, stride, rows, k, kp, p);
    return p;
}

static void one_shape(rng *r, const candidate *c) {
    family fa = (family)rng_below(r, FAMILIES), fb = rng_below(r, 2) ? fa : (family)rng_below(r, FAMILIES);
    size_t rows = 1 + rng_below(r, c->kernel->rows_max),
           k = 1 + rng_below(r, (size_t[]){96, 96, 96, 700, 96, 96, 96, 2600}[rng_below(r, 8)]);
    size_t stride = k + rng_below(r, 3);
    iv_dtype act = c->widens && rng_below(r, 3) == 0 ? IV_F32 : c->weight;
    iv_matrix m;
    assert_true(iv_matrix_shape(&m, c->weight, IV_PANEL_COLUMNS, k));
    if (rng_below(r, 2)) m.leaves = iv_leaf_count(m.k_padded, IV_SUM_OF_RANKS);
    m.data = aligned_alloc(64, iv_matrix_bytes(&m));
    memset(m.data, 0, iv_matrix_bytes(&m));
    void *w = random_values(r, fb, c->weight, m.n * k), *a = random_values(r, fa, act, rows * stride);
    iv_matrix_pack(&m, c->weight, w, m.k, 0, m.n);
    void *pa = packed(c->kernel, act, a, stride, rows, k, m.k_padded);
    void *pr = packed(c->reference, act, a, stride, rows, k, m.k_padded);
    float want[IV_TILE_ROWS_MAX * 32], got[IV_TILE_ROWS_MAX * 32];
    c->reference->linear(pr, rows, m.data, m.k_padded, m.leaves, (iv_tile_prefetch){0}, want);
    iv_tile_prefetch prefetch = {(uintptr_t)m.data, rng_below(r, 200)}; /* any address, mapped or not */
    c->kernel->linear(pa, rows, m.data, m.k_padded, m.leaves, prefetch, got);
    char what[160];
    snprintf(what, sizeof what, "%s rows %zu k %zu families %d %d act %s", c->kernel->name, rows, k, (int)fa, (int)fb,
             iv_dtype_name(act));
    assert_same_bits(what, want, got, rows * 32, 4, false);
    for (size_t i = 0; i < rows * 32; i++) want[i] = got[i] = random_float(r, fa);
    c->reference->chain(pr, rows, m.data, m.k_padded, want);
    c->kernel->chain(pa, rows, m.data, m.k_padded, got);
    assert_same_bits(what, want, got, rows * 32, 4, true);
    free(w), free(a), free(pa), free(pr), free(m.data);
}

static void tiles_have_the_reference_bits(void **state) {
    (void)state;
    rng r = rng_start("tiles");
    size_t n = trials(300, 10000);
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        if (!runs_here(&candidates[i])) {
            printf("SKIPPED: this CPU has no %s\n", candidates[i].kernel->name);
            continue;
        }
        for (size_t t = 0; t < n; t++) one_shape(&r, &candidates[i]);
        printf("%s: %zu shapes, 0 differ\n", candidates[i].kernel->name, n);
    }
}

/* Negative control: one chain instead of leaves has different bits. */
static void control_leaves_matter(void **state) {
    (void)state;
    rng r = {7};
    enum { K = 512 };
    float *a = random_values(&r, NORMAL, IV_F32, K), *w = random_values(&r, NORMAL, IV_F32, 32 * K);
    iv_matrix m;
    assert_true(iv_matrix_shape(&m, IV_F32, 32, K));
    m.data = aligned_alloc(64, iv_matrix_bytes(&m));
    memset(m.data, 0, iv_matrix_bytes(&m));
    iv_matrix_pack(&m, IV_F32, w, m.k, 0, 32);
    void *p = packed(&iv_tile_f32_fma32_scalar, IV_F32, a, K, 1, K, K);
    float tree[32], line[32];
    iv_tile_f32_fma32_scalar.linear(p, 1, m.data, K, m.leaves, (iv_tile_prefetch){0}, tree);
    iv_tile_f32_fma32_scalar.linear(p, 1, m.data, K, 1, (iv_tile_prefetch){0}, line);
    assert_int_equal(m.leaves, 4);
    assert_int_not_equal(memcmp(tree, line, sizeof tree), 0);
    free(a), free(w), free(p), free(m.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_have_the_reference_bits),
                                       cmocka_unit_test(control_leaves_matter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
