/* elementary64.h: exponential, logarithm, sine and cosine in double, without libm. Law: NUMERICS.md section 6.
 *
 * Used for rotary tables, learning rates and the coefficients of losses. */
#ifndef IV_NUMERICS_ELEMENTARY64_H
#define IV_NUMERICS_ELEMENTARY64_H

#include <stdint.h>

/* x is normal and positive. */
double iv_log64(double x);

/* Any x: +0 below -700, +inf above 700, NaN for NaN. iv_exp64(0) is 1 in every bit. */
double iv_exp64(double x);

/* 0 <= x < 2^30. */
void iv_sincos64(double x, double *sine, double *cosine);

/* b^n by squaring: r = 1; for each bit of n from the lowest: r = r * b if it is set, then b = b * b. */
double iv_power64(double b, uint64_t n);

#endif
