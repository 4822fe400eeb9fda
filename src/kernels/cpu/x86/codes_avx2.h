/* codes_avx2.h: codes of packed panels (numerics/weight_codes.h) as eight floats. */
#ifndef IV_KERNELS_CODES_AVX2_H
#define IV_KERNELS_CODES_AVX2_H

#include "kernels/cpu/x86/vec_avx2.h"
#include "numerics/weight_codes.h"

typedef struct code_table {
    vf low, high;
} code_table;

static inline code_table load_table(const float *values) {
    return (code_table){v_load(values), v_load(values + V_LANES)};
}

/* Forms whose numbers are had with less than a look-up among 16. */
#define CODE_TABLES(fn, n)                                                                                         \
    fn(n, IV_CODES_INT4, IV_SECOND_NONE) fn(n, IV_CODES_INT4, IV_SECOND_ZERO) fn(n, IV_CODES_UINT4, IV_SECOND_MIN) \
        fn(n, IV_CODES_E2M1, IV_SECOND_NONE)

/* The number of the low four bits of each word. kind: of such a form, or IV_CODES_NONLINEAR for all. */
static inline __attribute__((always_inline)) vf look_up(const iv_code_kind kind, const code_table *t, vi words) {
    if (kind == IV_CODES_INT4) return v_sub(vi_to_float(vi_and(words, vi_set(15))), v_set(8.0f));
    if (kind == IV_CODES_UINT4) return vi_to_float(vi_and(words, vi_set(15)));
    vi sign = vi_shl(words, 28); /* the permutation reads three bits, the fourth is there */
    vf low = _mm256_permutevar8x32_ps(t->low, words);
    if (kind == IV_CODES_E2M1) return v_float(vi_xor(v_bits(low), vi_and(sign, vi_set(0x80000000u))));
    return _mm256_blendv_ps(low, _mm256_permutevar8x32_ps(t->high, words), v_float(sign));
}

/* Eight signed bytes as words. */
static inline vi load_bytes(const int8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* Eight unsigned halves as words. */
static inline vi load_halves(const unsigned char *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Eight e4m3 codes, as the float16 whose bits theirs are: the numbers / 256, exact also where that is subnormal. */
static inline vf e4m3_small(const int8_t *p) {
    __m128i h = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m128i sign = _mm_and_si128(h, _mm_set1_epi16(-0x8000));
    return _mm256_cvtph_ps(_mm_or_si128(sign, _mm_and_si128(_mm_slli_epi16(h, 7), _mm_set1_epi16(0x3f80))));
}

static inline vf round_f16(vf x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

#endif
