/* The fused operations of fma32 against the machine's: gradual against libm and FMA, flushed against FMA and
 * add with DAZ and FTZ set, a pair of k against vdpbf16ps. Operands are concentrated near rounding and
 * flushing boundaries. */
#include "random.h"
#include "base/cpu.h"
#include "numerics/fma32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { BLOCK = 1024 };

typedef struct operands {
    float a[BLOCK], b[BLOCK], c[BLOCK];
} operands;

static float ulps_off(rng *r, float x, uint32_t most) {
    return iv_float(iv_bits(x) + (uint32_t)rng_below(r, 2 * most + 1) - most);
}

/* c close to -a*b, with the remainder in any of the 48 bits of the product. */
static void cancelling(rng *r, operands *o, int i) {
    o->a[i] = random_float(r, WIDE), o->b[i] = random_float(r, NORMAL);
    o->c[i] = ulps_off(r, -(o->a[i] * o->b[i]), 2);
}

/* a*b + c within a few 2^-151 of the edge of flushing. */
static void at_the_edge(rng *r, operands *o, int i) {
    float s = rng_next(r) & 1 ? 1.0f : -1.0f;
    switch (rng_below(r, 4)) {
    case 0: /* the tie itself, 2^-126 - 2^-151 = 18631 * 1801 * 2^-151, and its neighbours */
        o->a[i] = s * 0x1.231cp-46f, o->b[i] = ulps_off(r, 0x1.c24p-81f, 1), o->c[i] = 0.0f;
        break;
    case 1: /* a product near 2^-126 alone */
        o->a[i] = s * (1.0f + (float)rng_below(r, 1 << 23) * 0x1p-23f);
        o->b[i] = ulps_off(r, (0x1p-100f / o->a[i]) * 0x1p-26f, 2), o->c[i] = rng_next(r) & 1 ? 0.0f : -0.0f;
        break;
    case 2: /* normal c, with a product that moves it to the boundary */
        o->c[i] = s * (1.0f + (float)rng_below(r, 1 << 23) * 0x1p-23f) * 0x1p-126f;
        o->a[i] = ulps_off(r, s * 0x1p-126f - o->c[i], 1) * 0x1p60f, o->b[i] = ulps_off(r, 0x1p-60f, 1);
        break;
    default:
        o->a[i] = random_float(r, SUBNORMAL), o->b[i] = random_float(r, SUBNORMAL),
        o->c[i] = random_float(r, SUBNORMAL);
    }
}

/* The sum in double is the midpoint of two floats, or next to it, and the exact sum may be on either side. */
static void at_a_midpoint(rng *r, operands *o, int i) {
    int exponent = (int)rng_below(r, 200) - 100;
    o->c[i] = ldexpf(1.0f + (float)rng_below(r, 1 << 23) * 0x1p-23f, exponent) * (rng_next(r) & 1 ? 1.0f : -1.0f);
    o->a[i] = ulps_off(r, ldexpf(rng_next(r) & 1 ? 1.0f : -1.0f, exponent - 24), 2);
    o->b[i] = ulps_off(r, 1.0f, 2);
}

static void fill(rng *r, operands *o, size_t kind) {
    for (int i = 0; i < BLOCK; i++) {
        if (kind == FAMILIES)
            cancelling(r, o, i);
        else if (kind == FAMILIES + 1)
            at_the_edge(r, o, i);
        else if (kind == FAMILIES + 2)
            at_a_midpoint(r, o, i);
        else if (kind == FAMILIES + 3)
            o->a[i] = iv_float((uint32_t)rng_next(r)), o->b[i] = iv_float((uint32_t)rng_next(r)),
            o->c[i] = iv_float((uint32_t)rng_next(r));
        else
            o->a[i] = random_float(r, (family)kind), o->b[i] = random_float(r, (family)kind),
            o->c[i] = random_float(r, (family)kind);
    }
}

enum { KINDS = FAMILIES + 4 };

/* Not inlined: no arithmetic may move across the change of mode. */
#if defined(__x86_64__)

enum { TINY_AFTER_ROUNDING = 1 };

__attribute__((target("fma"), noinline)) static void machine_fma(const operands *o, float *out) {
    for (int i = 0; i < BLOCK; i += 4)
        _mm_storeu_ps(out + i, _mm_fmadd_ps(_mm_loadu_ps(o->a + i), _mm_loadu_ps(o->b + i), _mm_loadu_ps(o->c + i)));
}

__attribute__((noinline)) static void machine_add(const operands *o, float *out) {
    for (int i = 0; i < BLOCK; i += 4)
        _mm_storeu_ps(out + i, _mm_add_ps(_mm_loadu_ps(o->a + i), _mm_loadu_ps(o->c + i)));
}

#else /* compilers use an instruction for fmaf */

enum { TINY_AFTER_ROUNDING = 0 };

__attribute__((noinline)) static void machine_fma(const operands *o, float *out) {
    for (int i = 0; i < BLOCK; i++) out[i] = __builtin_fmaf(o->a[i], o->b[i], o->c[i]);
}

__attribute__((noinline)) static void machine_add(const operands *o, float *out) {
    for (int i = 0; i < BLOCK; i++) out[i] = o->a[i] + o->c[i];
}

#endif

/* A machine that detects subnormals before rounding flushes results that round up to 2^-126. */
static bool at_the_tie(float law, float machine) {
    return !TINY_AFTER_ROUNDING && fabsf(law) == 0x1p-126f && machine == 0.0f && signbit(law) == signbit(machine);
}

static void flushed(void (*op)(const operands *, float *), const operands *o, float *out) {
    IV_WITH_FP(IV_FP_FLUSH, op(o, out));
}

static bool same(float x, float y) { return iv_bits(x) == iv_bits(y) || (isnan(x) && isnan(y)); }

static void compare(const char *what, const operands *o, int i, float want, float got) {
    if (!same(want, got))
        fail_msg("%s(%08x, %08x, %08x): wanted %08x, got %08x", what, iv_bits(o->a[i]), iv_bits(o->b[i]),
                 iv_bits(o->c[i]), iv_bits(want), iv_bits(got));
}

static void needs(const char *feature, bool there) {
    if (there) return;
    printf("SKIPPED: this CPU has no %s\n", feature);
    skip();
}

static void fma_is_libm_s(void **state) {
    (void)state;
    rng r = rng_start("fma");
    size_t blocks = trials(40, 4000);
    static operands o;
    for (size_t kind = 0; kind < KINDS; kind++)
        for (size_t n = 0; n < blocks; n++) {
            fill(&r, &o, kind);
            for (int i = 0; i < BLOCK; i++)
                compare("fma", &o, i, fmaf(o.a[i], o.b[i], o.c[i]), iv_fma(o.a[i], o.b[i], o.c[i]));
        }
    printf("fma: %zu operands of %d kinds as libm's fmaf, 0 differ\n", blocks * KINDS * BLOCK, (int)KINDS);
}

static void flushed_operations_are_the_machine_s(void **state) {
    (void)state;
#if defined(__x86_64__)
    needs("FMA", iv_cpu_has("fma"));
#endif
    rng r = rng_start("flushed");
    size_t blocks = trials(40, 4000), edge = 0;
    static operands o;
    float fma[BLOCK], add[BLOCK], gradual[BLOCK];
    for (size_t kind = 0; kind < KINDS; kind++)
        for (size_t n = 0; n < blocks; n++) {
            fill(&r, &o, kind);
            flushed(machine_fma, &o, fma), flushed(machine_add, &o, add), machine_fma(&o, gradual);
            for (int i = 0; i < BLOCK; i++) {
                float law = iv_fma_ftz(o.a[i], o.b[i], o.c[i]);
                compare("fma_ftz in its two forms", &o, i, iv_fma_ftz_any(o.a[i], o.b[i], o.c[i]), law);
                if (!at_the_tie(law, fma[i])) compare("fma_ftz", &o, i, fma[i], law);
                compare("add_ftz (b unused)", &o, i, add[i], iv_add_ftz(o.a[i], o.c[i]));
                compare("fma on the machine", &o, i, gradual[i], iv_fma(o.a[i], o.b[i], o.c[i]));
                edge += fabsf(law) == 0x1p-126f;
            }
        }
    printf("fma_ftz, add_ftz: %zu operands of %d kinds as the machine with DAZ and FTZ (%zu results at "
           "2^-126), 0 differ\n",
           blocks * KINDS * BLOCK, (int)KINDS, edge);
    assert_true(edge > blocks);
}

/* A result counts as subnormal after rounding, so the tie below 2^-126 is kept. */
static void flushing_begins_below_the_tie(void **state) {
    (void)state;
    assert_true(iv_fma_ftz(0x1.231cp-46f, 0x1.c24p-81f, 0.0f) == 0x1p-126f);
    assert_int_equal(iv_bits(iv_fma_ftz(-0x1.231cp-46f, 0x1.c23ffep-81f, 0.0f)), 0x80000000u);
    assert_int_equal(iv_bits(iv_fma_ftz(0x1p-100f, 0x1p-100f, -0.0f)), 0);
    assert_int_equal(iv_bits(iv_add_ftz(0x1p-126f, -0x1.8p-126f)), 0x80000000u);
    assert_true(iv_add_ftz(0x1p-149f, 1.0f) == 1.0f && iv_bits(iv_add_ftz(-0x1p-149f, -0.0f)) == 0x80000000u);
    assert_true(isnan(iv_fma_ftz(0x1p-149f, INFINITY, 1.0f))); /* 0 * inf */
}

#if defined(__x86_64__)

__attribute__((target("avx512f,avx512bf16"), noinline)) static void dot_product(const uint32_t *a, const uint32_t *b,
                                                                                float *acc) {
    __m512 y = _mm512_dpbf16_ps(_mm512_loadu_ps(acc), (__m512bh)_mm512_loadu_si512(a), (__m512bh)_mm512_loadu_si512(b));
    _mm512_storeu_ps(acc, y);
}

#else

static void dot_product(const uint32_t *a, const uint32_t *b, float *acc) { (void)a, (void)b, (void)acc; }

#endif

static void a_pair_is_vdpbf16ps(void **state) {
    (void)state;
    needs("AVX512_BF16", iv_cpu_has("avx512f") && iv_cpu_has("avx512bf16"));
    rng r = rng_start("vdpbf16ps");
    size_t n = trials(20000, 2000000), reversed_differ = 0;
    for (size_t t = 0; t < n; t++) {
        uint16_t a[32], b[32];
        float acc[16], got[16];
        family f = (family)(t % FAMILIES);
        for (int i = 0; i < 32; i++)
            a[i] = iv_bf16_from_f32(random_float(&r, f)), b[i] = iv_bf16_from_f32(random_float(&r, f));
        for (int i = 0; i < 16; i++) acc[i] = got[i] = random_float(&r, f);
        dot_product((const uint32_t *)(void *)a, (const uint32_t *)(void *)b, got);
        for (int i = 0; i < 16; i++) {
            float x[2] = {iv_bf16_to_f32(a[2 * i]), iv_bf16_to_f32(a[2 * i + 1])};
            float y[2] = {iv_bf16_to_f32(b[2 * i]), iv_bf16_to_f32(b[2 * i + 1])};
            float want = iv_fma32_chain(acc[i], x, y, 2);
            if (!same(want, got[i]))
                fail_msg("pair %08x . %08x + %08x: the machine returns %08x, got %08x",
                         *(uint32_t *)(void *)(a + 2 * i), *(uint32_t *)(void *)(b + 2 * i), iv_bits(acc[i]),
                         iv_bits(got[i]), iv_bits(want));
            reversed_differ += !same(want, iv_fma_ftz(x[1], y[1], iv_fma_ftz(x[0], y[0], acc[i])));
        }
    }
    printf("fma32: %zu pairs as vdpbf16ps adds them, 0 differ; even before odd would differ in %zu\n", 16 * n,
           reversed_differ);
    assert_true(reversed_differ > n / 100); /* negative control */
}

/* Negative control: a double sum rounded once more, without a look at midpoints, is wrong for some of these. */
static void control_midpoints_need_the_exact_sum(void **state) {
    (void)state;
    rng r = {12};
    static operands o;
    size_t differ = 0;
    fill(&r, &o, FAMILIES + 2);
    for (int i = 0; i < BLOCK; i++)
        differ += (float)((double)o.a[i] * (double)o.b[i] + (double)o.c[i]) != iv_fma_ftz(o.a[i], o.b[i], o.c[i]);
    assert_true(differ > BLOCK / 100);
}

/* Negative control: without the flush some of these results differ. */
static void control_gradual_underflow_differs(void **state) {
    (void)state;
    rng r = {11};
    static operands o;
    size_t differ = 0;
    fill(&r, &o, FAMILIES + 1);
    for (int i = 0; i < BLOCK; i++) differ += !same(iv_fma(o.a[i], o.b[i], o.c[i]), iv_fma_ftz(o.a[i], o.b[i], o.c[i]));
    assert_true(differ > BLOCK / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fma_is_libm_s),
        cmocka_unit_test(flushed_operations_are_the_machine_s),
        cmocka_unit_test(flushing_begins_below_the_tie),
        cmocka_unit_test(a_pair_is_vdpbf16ps),
        cmocka_unit_test(control_gradual_underflow_differs),
        cmocka_unit_test(control_midpoints_need_the_exact_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
