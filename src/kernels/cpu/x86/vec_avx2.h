/* vec_avx2.h: the vector vocabulary of numerics/vec_scalar.h with eight lanes. */
#ifndef IV_KERNELS_VEC_AVX2_H
#define IV_KERNELS_VEC_AVX2_H

#include "numerics/floats.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>

enum { V_LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }

enum { V_REGISTERS = 16 };

/* x * b + c for one float in memory and a vector: spread once, used for every vector of a row. The sum stays in its
 * register: compilers choose forms that overwrite x or b, move sums about and spill them. */
#define V_SCALAR vf
#define V_TAKE(p) v_set(*(p))
static inline __attribute__((always_inline)) vf v_fma_scalar(vf x, vf b, vf c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(x), "x"(b));
    return c;
}

static inline vi v_bits(vf x) { return _mm256_castps_si256(x); }
static inline vf v_float(vi u) { return _mm256_castsi256_ps(u); }
static inline vi vi_set(uint32_t u) { return _mm256_set1_epi32((int)u); }
static inline vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_shl23(vi a) { return _mm256_slli_epi32(a, 23); }
static inline vi vi_shl16(vi a) { return _mm256_slli_epi32(a, 16); }
/* As vi_shl16, by a shuffle: shifts share their ports with multiplications, shuffles do not. */
static inline vi vi_low_up(vi a) {
    const __m128i low_up = _mm_set_epi8(13, 12, -1, -1, 9, 8, -1, -1, 5, 4, -1, -1, 1, 0, -1, -1);
    return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(low_up));
}
static inline vi vi_sar23(vi a) { return _mm256_srai_epi32(a, 23); }
static inline vf vi_to_float(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vm v_less(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vm v_is_nan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
static inline vm v_is_zero(vf a) { return _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_EQ_OQ); }
static inline vf v_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }

static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); } /* b where either is NaN */
static inline vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_truncate(vf a) { return _mm256_cvttps_epi32(a); }
static inline vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
static inline vi vi_madd16(vi a, vi b) { return _mm256_madd_epi16(a, b); }   /* a sum of two signed products */
static inline vi vi_mulhi16(vi a, vi b) { return _mm256_mulhi_epu16(a, b); } /* two products, each >> 16 */
#define vi_shl(a, n) _mm256_slli_epi32(a, n)                                 /* n is a constant */
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
/* The i-th of 64 pairs of words: eight loads of both, which are faster than two gathers. */
static inline void vi_pair(const void *table, vi i, vi *first, vi *second) {
    const double *p = (const double *)table;
    __m128i low = _mm256_castsi256_si128(i), high = _mm256_extracti128_si256(i, 1);
#define PAIR(half, n) _mm_loadl_epi64((const __m128i *)(const void *)(p + (unsigned)_mm_extract_epi32(half, n)))
    __m128i a = _mm_unpacklo_epi32(PAIR(low, 0), PAIR(low, 1)), b = _mm_unpacklo_epi32(PAIR(low, 2), PAIR(low, 3));
    __m128i c = _mm_unpacklo_epi32(PAIR(high, 0), PAIR(high, 1)), d = _mm_unpacklo_epi32(PAIR(high, 2), PAIR(high, 3));
#undef PAIR
    *first = _mm256_setr_m128i(_mm_unpacklo_epi64(a, b), _mm_unpacklo_epi64(c, d));
    *second = _mm256_setr_m128i(_mm_unpackhi_epi64(a, b), _mm_unpackhi_epi64(c, d));
}
static inline bool vi_any_negative(vi a) { return _mm256_movemask_ps(v_float(a)) != 0; }
static inline bool v_any(vm m) { return _mm256_movemask_ps(m) != 0; }

/* Eight 16-bit values as floats, and floats rounded to them (nearest even, canonical NaN). */
static inline vf v_load_bf16(const uint16_t *p) {
    return v_float(vi_shl16(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p))));
}
static inline vf v_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline void v_store_bf16(uint16_t *p, vf x) {
    vi u = v_bits(x), odd = vi_and(_mm256_srli_epi32(u, 16), vi_set(1));
    vi r = _mm256_srli_epi32(vi_add(vi_add(u, vi_set(0x7fff)), odd), 16);
    r = v_bits(v_select(v_is_nan(x), v_float(vi_set(IV_NAN_BF16_BITS)), v_float(r)));
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128((__m128i *)(void *)p, h);
}
static inline void v_store_f16(uint16_t *p, vf x) {
    __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vi m = v_bits(v_is_nan(x));
    __m128i nan = _mm_packs_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_blendv_epi8(h, _mm_set1_epi16((short)IV_NAN_F16_BITS), nan);
    _mm_storeu_si128((__m128i *)(void *)p, h);
}

#endif
