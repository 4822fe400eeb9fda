/* floats.h: bit views, rounding to the storage types and back, the canonical NaN.
 *
 * Law: NUMERICS.md section 2. Conversions to bf16 and f16 round to nearest, ties to even; every NaN that
 * leaves an op is the canonical one of its type. Integer arithmetic only: the same on every machine. */
#ifndef IV_NUMERICS_FLOATS_H
#define IV_NUMERICS_FLOATS_H

#include "base/dtype.h"
#include "numerics/strict.h"

#include <stdint.h>
#include <string.h>

typedef uint16_t iv_bf16; /* bits */
typedef uint16_t iv_f16;  /* bits */

#define IV_NAN_F32_BITS UINT32_C(0x7fffffff) /* NVIDIA's FMA result: free there, one blend here */
#define IV_NAN_BF16_BITS UINT16_C(0x7fff)
#define IV_NAN_F16_BITS UINT16_C(0x7fff)

static inline uint32_t iv_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float iv_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float iv_canonical(float x) { return x == x ? x : iv_float(IV_NAN_F32_BITS); }

static inline float iv_bf16_to_f32(iv_bf16 h) { return iv_float((uint32_t)h << 16); }

static inline iv_bf16 iv_bf16_from_f32(float x) {
    uint32_t u = iv_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return IV_NAN_BF16_BITS;
    return (iv_bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float iv_f16_to_f32(iv_f16 h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return iv_float(fraction ? IV_NAN_F32_BITS : sign | 0x7f800000u);
    if (exponent) return iv_float(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* exact */
    return iv_float(sign | iv_bits(magnitude));
}

static inline iv_f16 iv_f16_from_f32(float x) {
    uint32_t u = iv_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return IV_NAN_F16_BITS;
    if (a >= 0x477ff000u) return (iv_f16)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (a < 0x33000001u) return (iv_f16)sign;              /* at most 2^-25: ties to even zero */
    if (a < 0x38800000u) {                                 /* a subnormal half */
        uint32_t shift = 126u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
        uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
        return (iv_f16)(sign | (q + (rest > half || (rest == half && (q & 1)))));
    }
    uint32_t v = a - 0x38000000u;
    return (iv_f16)(sign | ((v + 0xfffu + ((v >> 13) & 1u)) >> 13));
}

/* The i-th of the elements at p, BF16, F16 or F32. */
static inline float iv_element(iv_dtype type, const void *p, size_t i) {
    if (type == IV_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == IV_BF16 ? iv_bf16_to_f32(h) : iv_f16_to_f32(h);
}

#endif
