/* tc16.h: the arithmetic `tc16`, scalar form: one Hopper tensor-core step of 16 products and the
 * accumulator. Law: NUMERICS.md section 3.2, measured on an H200 (tests/data/tc16). */
#ifndef IV_NUMERICS_TC16_H
#define IV_NUMERICS_TC16_H

#include "base/dtype.h"
#include "numerics/floats.h"

/* c + sum of a[i]*b[i] for 16 bf16 (f16) pairs, as the hardware rounds it. */
float iv_tc16_step_bf16(const iv_bf16 a[16], const iv_bf16 b[16], float c);
float iv_tc16_step_f16(const iv_f16 a[16], const iv_f16 b[16], float c);

/* One chain over k elements (k a multiple of 16) from acc; type is IV_BF16 or IV_F16. */
float iv_tc16_chain(iv_dtype type, float acc, const uint16_t *a, const uint16_t *b, size_t k);

#endif
