/* strict.h: refuses compilers and flags that would change the order or rounding of a sum. */
#ifndef IV_NUMERICS_STRICT_H
#define IV_NUMERICS_STRICT_H

#include <float.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "invar cannot be built with fast-math: its answers are defined to the bit"
#endif
#if !defined(__CUDACC__) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16 /* 16: half precision as such */
#error "invar needs FLT_EVAL_METHOD 0 (SSE arithmetic, not x87)"
#endif

#endif
