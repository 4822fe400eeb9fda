/* fma32.h: the arithmetic `fma32`, scalar form. Law: NUMERICS.md section 3.1.
 *
 * A step takes a pair of k: acc = a[k+1]*b[k+1] + acc, then acc = a[k]*b[k] + acc, each rounded once to
 * nearest even, subnormal inputs and results treated as zero of their sign. This is what vdpbf16ps does.
 * Everything here is exact double arithmetic, so it needs the floating-point environment of section 2 (IV_FP_DEFAULT)
 * and nothing else. */
#ifndef IV_NUMERICS_FMA32_H
#define IV_NUMERICS_FMA32_H

#include "numerics/floats.h"

/* a*b + c rounded once (IEEE 754 fusedMultiplyAdd, gradual underflow). */
float iv_fma(float a, float b, float c);

/* The same with subnormal inputs and results flushed; a result counts as subnormal after rounding. For any operands. */
float iv_fma_ftz_any(float a, float b, float c);

static inline double iv_daz(float x) {
    uint32_t u = iv_bits(x);
    return (double)iv_float(u & ((u & 0x7f800000u) ? UINT32_MAX : 0x80000000u));
}

/* Results below this are under FLT_MIN after rounding to 24 bits with an unbounded exponent. */
#define IV_FTZ_BELOW (0x1p-126 - 0x1p-151)

/* Equal to iv_fma_ftz_any. A double sum is rounded to float correctly unless it is a midpoint of two floats: only then
 * may the exact sum lie on its other side, since rounding is monotonic. IV_FTZ_BELOW has a midpoint's bits too. */
static inline float iv_fma_ftz(float a, float b, float c) {
    double s = iv_daz(a) * iv_daz(b) + iv_daz(c);
    uint64_t u;
    memcpy(&u, &s, sizeof u);
    if ((u & 0x1fffffffu) == 0x10000000u) return iv_fma_ftz_any(a, b, c);
    if (s < IV_FTZ_BELOW && s > -IV_FTZ_BELOW) return iv_float((uint32_t)(u >> 32) & 0x80000000u);
    return (float)s;
}

/* a + b, nearest even, subnormals flushed in and out: the tree's node in `fma32`. */
float iv_add_ftz(float a, float b);

/* One chain over k elements (k even) from acc. The result may be any NaN. */
float iv_fma32_chain(float acc, const float *a, const float *b, size_t k);

#endif
