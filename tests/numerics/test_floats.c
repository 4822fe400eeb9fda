/* Conversions between float and the two 16-bit types, both ways, against double arithmetic and against the CPU's
 * instruction. All 65,536 halves always; all 2^32 floats with INVAR_TEST_LONG, else a stride, and every rounding
 * boundary.
 */
#include "random.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { HALVES = 1 << 16, STRIDE = 4099, BLOCK = 4096 };

typedef struct format {
    const char *name;
    int fraction_bits, exponent_bits;
    uint16_t (*from)(float);
    float (*to)(uint16_t);
} format;

static uint16_t bf16_from(float x) { return iv_bf16_from_f32(x); }
static float bf16_to(uint16_t h) { return iv_bf16_to_f32(h); }
static uint16_t f16_from(float x) { return iv_f16_from_f32(x); }
static float f16_to(uint16_t h) { return iv_f16_to_f32(h); }

static const format formats[] = {{"bfloat16", 7, 8, bf16_from, bf16_to}, {"float16", 10, 5, f16_from, f16_to}};

static int bias(const format *f) { return (1 << (f->exponent_bits - 1)) - 1; }

/* The value of a half by its fields. Infinity is infinity; NaN is NaN. */
static double decoded(const format *f, uint16_t h) {
    int field = h >> f->fraction_bits & ((1 << f->exponent_bits) - 1), fraction = h & ((1 << f->fraction_bits) - 1);
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (field == (1 << f->exponent_bits) - 1) return fraction ? (double)NAN : sign * (double)INFINITY;
    int hidden = field ? 1 << f->fraction_bits : 0;
    return sign * ldexp(fraction + hidden, (field ? field : 1) - bias(f) - f->fraction_bits);
}

/* x rounded to a whole number of quanta of the format, ties to even: exact scaling and one rint. */
static double rounded(const format *f, float x) {
    int exponent;
    double v = x;
    if (v == 0.0 || isinf(v) || isnan(v)) return v;
    frexp(v, &exponent);
    if (exponent - 1 < 1 - bias(f)) exponent = 2 - bias(f);
    int quantum = exponent - 1 - f->fraction_bits;
    double y = ldexp(rint(ldexp(v, -quantum)), quantum);
    return fabs(y) >= ldexp(1.0, bias(f) + 1) ? copysign((double)INFINITY, v) : y;
}

static void check_float(const format *f, uint32_t u) {
    float x = iv_float(u);
    uint16_t h = f->from(x);
    if (isnan(x)) {
        if (h != 0x7fff) fail_msg("%s from %08x: wanted 7fff, got %04x", f->name, u, h);
        return;
    }
    double want = rounded(f, x), got = decoded(f, h);
    if (want != got || (h >> 15) != (u >> 31))
        fail_msg("%s from %08x: wanted %a, got %04x = %a", f->name, u, want, h, got);
}

static void every_half_widens(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const format *f = &formats[i];
        for (uint32_t h = 0; h < HALVES; h++) {
            double want = decoded(f, (uint16_t)h);
            float got = f->to((uint16_t)h);
            if (isnan(want) ? !isnan(got) : want != got || (h >> 15) != (iv_bits(got) >> 31))
                fail_msg("%s %04x: wanted %a, got %a", f->name, h, want, got);
            if (!isnan(want)) assert_int_equal(f->from(got), h);
        }
    }
    assert_int_equal(iv_bits(iv_f16_to_f32(0x7c01)), IV_NAN_F32_BITS);
    printf("bfloat16, float16: 65536 halves widen exactly and come back\n");
}

/* Each half's value, the midpoint above it, and the floats next to both. */
static void every_boundary_rounds(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const format *f = &formats[i];
        size_t n = 0;
        for (uint32_t h = 0; h < HALVES; h++) {
            double low = decoded(f, (uint16_t)h), high = decoded(f, (uint16_t)(h + 1));
            if (!isfinite(low)) continue;
            if (!isfinite(high)) high = copysign(ldexp(1.0, bias(f) + 1), low);
            uint32_t at[2] = {iv_bits((float)low), iv_bits((float)((low + high) / 2))}; /* both exact */
            for (int j = 0; j < 6; j++, n++) check_float(f, at[j / 3] + (uint32_t)(j % 3) - 1u);
        }
        printf("%s: %zu floats at rounding boundaries\n", f->name, n);
    }
}

static void floats_round_in_double(void **state) {
    (void)state;
    uint64_t step = getenv("INVAR_TEST_LONG") ? 1 : STRIDE, n = 0;
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += step, n++)
        for (size_t i = 0; i < 2; i++) check_float(&formats[i], (uint32_t)u);
    printf("bfloat16, float16: %llu floats (every %llu) round like double arithmetic\n", (unsigned long long)n,
           (unsigned long long)step);
}

#if defined(__x86_64__)

__attribute__((target("avx,f16c"))) static void convert_block(const float *x, uint16_t *h) {
    for (int i = 0; i < BLOCK; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(h + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

static bool converts(void) { return __builtin_cpu_supports("avx2"); } /* comes with F16C, which clang 14 cannot name */

#else

static void convert_block(const float *x, uint16_t *h) {
    for (int i = 0; i < BLOCK; i++) {
        __fp16 y = (__fp16)x[i];
        memcpy(h + i, &y, sizeof y);
    }
}

static bool converts(void) { return true; }

#endif

static void floats_round_as_the_cpu_does(void **state) {
    (void)state;
    if (!converts()) {
        printf("SKIPPED: this CPU has no AVX2 and F16C\n");
        skip();
    }
    uint64_t step = getenv("INVAR_TEST_LONG") ? 1 : 257, at = 0, n = 0;
    while (at < (uint64_t)1 << 32) {
        float x[BLOCK];
        uint16_t want[BLOCK];
        for (int i = 0; i < BLOCK; i++, at += step) x[i] = iv_float((uint32_t)at);
        convert_block(x, want);
        for (int i = 0; i < BLOCK; i++, n++) {
            uint16_t got = iv_f16_from_f32(x[i]);
            if (isnan(x[i]) ? got != IV_NAN_F16_BITS : got != want[i])
                fail_msg("float16 from %08x: the CPU returns %04x, got %04x", iv_bits(x[i]), want[i], got);
        }
    }
    printf("float16: %llu floats (every %llu) as the CPU rounds them\n", (unsigned long long)n,
           (unsigned long long)step);
}

/* Negative control: truncation is not rounding to nearest even. */
static uint16_t bf16_cut(float x) { return (uint16_t)(iv_bits(x) >> 16); }

static void control_truncation_differs(void **state) {
    (void)state;
    uint32_t differ = 0, n = 0;
    for (uint32_t u = 0x3f800000u; u < 0x40000000u; u += 61, n++)
        differ += rounded(&formats[0], iv_float(u)) != decoded(&formats[0], bf16_cut(iv_float(u)));
    assert_true(differ > n / 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_widens),          cmocka_unit_test(every_boundary_rounds),
        cmocka_unit_test(floats_round_in_double),     cmocka_unit_test(floats_round_as_the_cpu_does),
        cmocka_unit_test(control_truncation_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
