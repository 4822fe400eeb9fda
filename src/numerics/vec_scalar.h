/* vec_scalar.h: the vector operations with one lane, for elementary.h and rows.h in plain C.
 *
 * Every instruction set has a file with these names (kernels/cpu/x86/vec_avx2.h, vec_avx512.h); include
 * exactly one before elementary.h. vf: floats, vi: 32-bit integers, vm: a truth value per lane. */
#ifndef IV_NUMERICS_VEC_SCALAR_H
#define IV_NUMERICS_VEC_SCALAR_H

#include "numerics/fma32.h"

#include <math.h>

enum { V_LANES = 1 };
typedef float vf;
typedef uint32_t vi;
typedef int vm;

static inline vf v_set(float x) { return x; }
static inline vf v_load(const float *p) { return *p; }
static inline void v_store(float *p, vf x) { *p = x; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_fma(vf a, vf b, vf c) { return iv_fma(a, b, c); }
static inline vi v_bits(vf x) { return iv_bits(x); }
static inline vf v_float(vi u) { return iv_float(u); }
static inline vi vi_set(uint32_t u) { return u; }
static inline vi vi_add(vi a, vi b) { return a + b; }
static inline vi vi_sub(vi a, vi b) { return a - b; }
static inline vi vi_and(vi a, vi b) { return a & b; }
static inline vi vi_shl23(vi a) { return a << 23; }
static inline vi vi_sar23(vi a) { return (vi)((int32_t)a >> 23); }
static inline vf vi_to_float(vi a) { return (float)(int32_t)a; } /* exact for the small integers used */
static inline vm v_less(vf a, vf b) { return a < b; }            /* false for NaN */
static inline vm v_is_nan(vf a) { return a != a; }
static inline vf v_select(vm m, vf yes, vf no) { return m ? yes : no; }

#endif
