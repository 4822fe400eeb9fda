/* codes_avx512.h: codes of packed panels (numerics/weight_codes.h) as sixteen floats. */
#ifndef IV_KERNELS_CODES_AVX512_H
#define IV_KERNELS_CODES_AVX512_H

#include "kernels/cpu/x86/vec_avx512.h"
#include "numerics/weight_codes.h"

typedef struct code_table {
    vf values;
} code_table;

static inline code_table load_table(const float *values) { return (code_table){v_load(values)}; }

#define CODE_TABLES(fn, n) /* one look-up serves all */

/* The number of the low four bits of each word. */
static inline __attribute__((always_inline)) vf look_up(const iv_code_kind kind, const code_table *t, vi words) {
    (void)kind;
    return _mm512_permutexvar_ps(words, t->values);
}

/* Sixteen signed bytes as words. */
static inline vi load_bytes(const int8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Sixteen unsigned halves as words. */
static inline vi load_halves(const unsigned char *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Sixteen e4m3 codes, as the float16 whose bits theirs are: the numbers / 256, exact also where that is subnormal. */
static inline vf e4m3_small(const int8_t *p) {
    __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i sign = _mm256_and_si256(h, _mm256_set1_epi16(-0x8000));
    return _mm512_cvtph_ps(_mm256_or_si256(sign, _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16(0x3f80))));
}

static inline vf round_f16(vf x) { return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

#endif
