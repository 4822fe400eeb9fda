/* widen_avx2.c: packed panels widened with AVX2. */
#include "kernels/cpu/x86/vec_avx2.h"
#include "kernels/cpu/x86/x86.h"

typedef struct widen_table {
    vf low, high;
} widen_table;

static inline widen_table load_table(const float *values) {
    return (widen_table){v_load(values), v_load(values + V_LANES)};
}
/* The permutation reads three bits, the blend the fourth, as a sign. */
static inline vf look_up(const widen_table *t, vi codes) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t->low, codes), _mm256_permutevar8x32_ps(t->high, codes),
                            v_float(vi_shl(codes, 28)));
}
static inline vi load_bytes(const int8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
/* As a float16 the code is 2^8 too small: exact, also where it is subnormal. */
static inline vf e4m3(vi words) {
    vi half = vi_or(vi_and(words, vi_set(0x8000u)), vi_and(vi_shl(words, 7), vi_set(0x3f80u)));
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return v_mul(_mm256_cvtph_ps(packed), v_set(256.0f));
}

#define WIDEN_NAME iv_widen_avx2
#include "kernels/cpu/widen.inc.h"
