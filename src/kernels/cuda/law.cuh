/* law.cuh: the law's scalar functions on the device: bits, rounding, elementary functions. The elementary functions
 * are src/numerics/elementary.h. */
#ifndef IV_KERNELS_CUDA_LAW_CUH
#define IV_KERNELS_CUDA_LAW_CUH

#include "base/dtype.h"

#include <cuda_runtime.h>
#include <stdint.h>

#define IV_NAN_F32_BITS 0x7fffffffu
#define IV_DEVICE static __device__ __forceinline__
#define IV_ELEMENTARY IV_DEVICE

typedef float vf;
typedef uint32_t vi;
typedef bool vm;

IV_DEVICE vf v_set(float x) { return x; }
IV_DEVICE vf v_add(vf a, vf b) { return __fadd_rn(a, b); }
IV_DEVICE vf v_sub(vf a, vf b) { return __fsub_rn(a, b); }
IV_DEVICE vf v_mul(vf a, vf b) { return __fmul_rn(a, b); }
IV_DEVICE vf v_div(vf a, vf b) { return __fdiv_rn(a, b); }
IV_DEVICE vf v_fma(vf a, vf b, vf c) { return __fmaf_rn(a, b, c); }
IV_DEVICE vi v_bits(vf x) { return __float_as_uint(x); }
IV_DEVICE vf v_float(vi u) { return __uint_as_float(u); }
IV_DEVICE vi vi_set(uint32_t u) { return u; }
IV_DEVICE vi vi_add(vi a, vi b) { return a + b; }
IV_DEVICE vi vi_sub(vi a, vi b) { return a - b; }
IV_DEVICE vi vi_and(vi a, vi b) { return a & b; }
IV_DEVICE vi vi_shl23(vi a) { return a << 23; }
IV_DEVICE vi vi_sar23(vi a) { return (vi)((int32_t)a >> 23); }
IV_DEVICE vf vi_to_float(vi a) { return (float)(int32_t)a; }
IV_DEVICE vm v_less(vf a, vf b) { return a < b; }
IV_DEVICE vm v_is_nan(vf a) { return a != a; }
IV_DEVICE vf v_select(vm m, vf yes, vf no) { return m ? yes : no; }

#include "numerics/activate.h"

/* ex2 of the law (section 5), which describes this instruction. */
IV_DEVICE vf v_ex2(vf x) {
    vf y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x, or the canonical NaN. */
IV_DEVICE float iv_canon(float x) { return x == x ? x : __uint_as_float(IV_NAN_F32_BITS); }

IV_DEVICE float iv_sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + v_exp(0.0f - x)); }

/* max(m, x) of the law: ignores a NaN x. */
IV_DEVICE float iv_max(float m, float x) { return x > m ? x : m; }

/* Rounds to nearest even; NaN canonical. cvt.rn returns 0x7fff for any NaN, as the law requires. */
IV_DEVICE uint16_t iv_round16(iv_dtype type, float x) {
    uint16_t h;
    if (type != IV_BF16) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
        return h;
    }
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    uint32_t u = __float_as_uint(x);
    return x == x ? (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16) : (uint16_t)0x7fff;
#endif
}

/* Rounds two values; the first in the low half. Needs sm_80. */
IV_DEVICE uint32_t iv_pack16(iv_dtype type, float low, float high) {
    uint32_t r;
    if (type == IV_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

IV_DEVICE float iv_widen16(iv_dtype type, uint16_t h) {
    float x;
    if (type == IV_BF16) return __uint_as_float((uint32_t)h << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

/* Operations of fma32 (law, 3.1): subnormal inputs and results are flushed. */
IV_DEVICE float iv_fma_flush(float a, float b, float c) {
    float d;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}
IV_DEVICE float iv_add_flush(float a, float b) {
    float d;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

#endif
