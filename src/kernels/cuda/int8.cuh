/* int8.cuh: what kernels of int8 layers share: a problem by value, scales, the end of a sum, tensor-core steps. */
#ifndef IV_KERNELS_CUDA_INT8_CUH
#define IV_KERNELS_CUDA_INT8_CUH

#include "kernels/cuda/int8.h"
#include "kernels/cuda/linear_tile.cuh"

typedef struct iv_int8_problem {
    iv_linear_problem l; /* x is not used; k_padded counts bytes of codes */
    const int8_t *codes;
    size_t code_stride;  /* from a term to the next */
    const float *scales; /* of rows */
    int32_t *sums;
} iv_int8_problem;

static inline iv_int8_problem iv_int8_problem_of(const iv_gpu_int8_args *a) {
    iv_int8_problem p = {};
    p.l = iv_linear_problem_of(&a->l);
    p.codes = a->codes, p.code_stride = a->code_stride, p.scales = a->scales, p.sums = a->sums;
    return p;
}

/* Of the outputs of an expert. */
IV_DEVICE const float *iv_int8_scales_of(const iv_linear_problem &l, int expert) {
    return (const float *)((const char *)l.w + expert * l.expert_bytes + (size_t)l.n * l.k_padded);
}

/* iv_ref_int8_scale. */
IV_DEVICE void iv_int8_scale_of(uint32_t magnitude, int terms, float *inverse, float *scale) {
    float a = __uint_as_float(magnitude);
    if (magnitude >= 0x7f800000u)
        *inverse = 0.0f, *scale = __uint_as_float(IV_NAN_F32_BITS);
    else if (a < 0x1p-100f)
        *inverse = *scale = 0.0f;
    else
        *inverse = __fdiv_rn(127.0f, a), *scale = __fdiv_rn(a, terms == 1 ? 127.0f : 127.0f * IV_INT8_LOW);
}

/* The codes of x: h in the low byte, l in the next. */
template <int TERMS> IV_DEVICE uint32_t iv_int8_codes_of(float x, float inverse) {
    float p = inverse == 0.0f ? 0.0f : __fmul_rn(x, inverse);
    int h = __float2int_rn(p), l = 0;
    if (TERMS == 2) l = __float2int_rn(__fmul_rn(__fsub_rn(p, __int2float_rn(h)), IV_INT8_LOW));
    return (uint32_t)(h & 0xff) | (uint32_t)(l & 0xff) << 8;
}

/* iv_ref_int8_result. NaN results of this hardware are canonical. */
template <int TERMS> IV_DEVICE float iv_int8_result(int h, int l, float row_scale, float scale) {
    float t = __int2float_rn(h);
    if (TERMS == 2) t = __fmaf_rn(t, IV_INT8_LOW, __int2float_rn(l));
    return __fmul_rn(__fmul_rn(t, row_scale), scale);
}

/* d += A B^T of int8: 16 rows of A, 8 of B, 32 k. A lane's words of A: rows lane / 4 and 8 further, k 4 (lane % 4) and
 * 16 further (a[0] and a[1], then a[2] and a[3]); of B: row lane / 4, the same k. Results as of floats. EIGHTS: by
 * Turing's instruction. */
template <bool EIGHTS> IV_DEVICE void iv_int8_step(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define IV_INT8_EIGHT(x, y, a, b)                                                                 \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(x), "+r"(y)                                                               \
                 : "r"(a), "r"(b))
    if constexpr (EIGHTS) {
        IV_INT8_EIGHT(d[0], d[1], a[0], b0);
        IV_INT8_EIGHT(d[2], d[3], a[1], b0);
        IV_INT8_EIGHT(d[0], d[1], a[2], b1);
        IV_INT8_EIGHT(d[2], d[3], a[3], b1);
    } else {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
    }
#undef IV_INT8_EIGHT
}

#endif
