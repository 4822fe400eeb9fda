/* vec_avx512.h: the vector vocabulary of numerics/vec_scalar.h with sixteen lanes. */
#ifndef IV_KERNELS_VEC_AVX512_H
#define IV_KERNELS_VEC_AVX512_H

#include "numerics/floats.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>

enum { V_LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }

enum { V_REGISTERS = 32 };

/* x * b + c for one float in memory and a vector: the multiplication takes the float from memory itself, which
 * saves the instruction that would spread it. */
#define V_SCALAR const float *
#define V_TAKE(p) (p)
static inline __attribute__((always_inline)) vf v_fma_scalar(const float *x, vf b, vf c) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*x));
    return c;
}

static inline vi v_bits(vf x) { return _mm512_castps_si512(x); }
static inline vf v_float(vi u) { return _mm512_castsi512_ps(u); }
static inline vi vi_set(uint32_t u) { return _mm512_set1_epi32((int)u); }
static inline vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_epi32(a, b); }
static inline vi vi_shl23(vi a) { return _mm512_slli_epi32(a, 23); }
static inline vi vi_shl16(vi a) { return _mm512_slli_epi32(a, 16); }
/* A word's low half moved to its high half. */
static inline vi vi_low_up(vi a) { return vi_shl16(a); }
static inline vi vi_sar23(vi a) { return _mm512_srai_epi32(a, 23); }
static inline vf vi_to_float(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vm v_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vm v_is_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline vm v_is_zero(vf a) { return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_EQ_OQ); }
static inline vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }

static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b where either is NaN */
static inline vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_truncate(vf a) { return _mm512_cvttps_epi32(a); }
static inline vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
static inline vi vi_madd16(vi a, vi b) { return _mm512_madd_epi16(a, b); }   /* a sum of two signed products */
static inline vi vi_mulhi16(vi a, vi b) { return _mm512_mulhi_epu16(a, b); } /* two products, each >> 16 */
#define vi_shl(a, n) _mm512_slli_epi32(a, n)                                 /* n is a constant */
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
/* The i-th of 64 pairs of words, i < 64: permutations of all of them, which are faster than 32 loads. */
static inline void vi_pair(const void *table, vi i, vi *first, vi *second) {
    const int *p = (const int *)table;
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const vi odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    vi a[4], b[4];
    for (int k = 0; k < 4; k++) {
        vi x = _mm512_loadu_si512(p + 32 * k), y = _mm512_loadu_si512(p + 32 * k + 16);
        a[k] = _mm512_permutex2var_epi32(x, even, y), b[k] = _mm512_permutex2var_epi32(x, odd, y);
    }
    __mmask16 upper = _mm512_test_epi32_mask(i, _mm512_set1_epi32(32));
    *first = _mm512_mask_blend_epi32(upper, _mm512_permutex2var_epi32(a[0], i, a[1]),
                                     _mm512_permutex2var_epi32(a[2], i, a[3]));
    *second = _mm512_mask_blend_epi32(upper, _mm512_permutex2var_epi32(b[0], i, b[1]),
                                      _mm512_permutex2var_epi32(b[2], i, b[3]));
}
static inline bool vi_any_negative(vi a) { return _mm512_movepi32_mask(a) != 0; }
static inline bool v_any(vm m) { return m != 0; }

/* Sixteen 16-bit values as floats, and floats rounded to them (nearest even, canonical NaN). */
static inline vf v_load_bf16(const uint16_t *p) {
    return v_float(vi_shl16(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p))));
}
static inline vf v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline void v_store_bf16(uint16_t *p, vf x) {
    vi u = v_bits(x), odd = vi_and(_mm512_srli_epi32(u, 16), vi_set(1));
    vi r = _mm512_srli_epi32(vi_add(vi_add(u, vi_set(0x7fff)), odd), 16);
    r = _mm512_mask_blend_epi32(v_is_nan(x), r, vi_set(IV_NAN_BF16_BITS));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(r));
}
static inline void v_store_f16(uint16_t *p, vf x) {
    __m256i h = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    h = _mm256_mask_blend_epi16(v_is_nan(x), h, _mm256_set1_epi16((short)IV_NAN_F16_BITS));
    _mm256_storeu_si256((__m256i *)(void *)p, h);
}

#endif
