/* widen_avx512.c: packed panels widened with AVX-512. */
#include "kernels/cpu/x86/vec_avx512.h"
#include "kernels/cpu/x86/x86.h"

typedef struct widen_table {
    vf values;
} widen_table;

static inline widen_table load_table(const float *values) { return (widen_table){v_load(values)}; }
static inline vf look_up(const widen_table *t, vi codes) { return _mm512_permutexvar_ps(codes, t->values); }
static inline vi load_bytes(const int8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
/* As a float16 the code is 2^8 too small: exact, also where it is subnormal. */
static inline vf e4m3(vi words) {
    vi half = vi_or(vi_and(words, vi_set(0x8000u)), vi_and(vi_shl(words, 7), vi_set(0x3f80u)));
    return v_mul(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(half)), v_set(256.0f));
}

#define WIDEN_NAME iv_widen_avx512
#include "kernels/cpu/widen.inc.h"
