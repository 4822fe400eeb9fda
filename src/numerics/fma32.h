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

/* The same with subnormal inputs and results flushed; a result counts as subnormal after rounding. */
float iv_fma_ftz(float a, float b, float c);

/* a + b, nearest even, subnormals flushed in and out: the tree's node in `fma32`. */
float iv_add_ftz(float a, float b);

/* One chain over k elements (k even) from acc. The result may be any NaN. */
float iv_fma32_chain(float acc, const float *a, const float *b, size_t k);

#endif
