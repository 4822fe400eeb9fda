/* packed_units.cuh: codes of a unit (kernels/packed_units.h) in shared memory, widened to a lane's operand of a tensor
 * core. Values are those of iv_code_value, then R, operation by operation; where two 16-bit numbers can be multiplied
 * at once, the product of code and scale is exact in float32, so that it is rounded once as well. */
#ifndef IV_KERNELS_CUDA_PACKED_UNITS_CUH
#define IV_KERNELS_CUDA_PACKED_UNITS_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/unit_form.h"

IV_DEVICE void iv_load_shared_words(uint32_t (&w)[4], uint32_t at, int bytes) {
    if (bytes == 16)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(at) : "memory");
}

IV_DEVICE void iv_load_shared_number(iv_dtype type, uint32_t at, float &x) {
    uint16_t h;
    if (type == IV_F32) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
        return;
    }
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(at) : "memory");
    x = iv_widen16(type, h);
}
/* Two copies of a bfloat16. */
IV_DEVICE void iv_load_shared_number(iv_dtype type, uint32_t at, uint32_t &pair) {
    uint16_t h;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(at) : "memory");
    pair = (uint32_t)h << 16 | h;
}

/* a & mask | bits, in one instruction. */
IV_DEVICE uint32_t iv_and_or(uint32_t a, uint32_t mask, uint32_t bits) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}

/* d = a * b + c of two bfloat16, each rounded once. */
IV_DEVICE uint32_t iv_fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* ---- codes of a step: the pairs at 2 q and at 2 q + 8 --------------------------------------------------------------
 */

/* Bytes of int8 as floats. */
IV_DEVICE void iv_unit_int8(uint32_t codes, float (&t)[4]) {
    uint32_t biased = codes ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; i++)
        t[i] = __fsub_rn(__uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7540u + i)), 8388736.0f);
}

IV_DEVICE void iv_unit_e4m3(uint32_t codes, float (&t)[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t pair;
        uint16_t two = (uint16_t)(codes >> 16 * i);
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
        t[2 * i] = iv_widen16(IV_F16, (uint16_t)pair), t[2 * i + 1] = iv_widen16(IV_F16, (uint16_t)(pair >> 16));
    }
}

/* GGUF's table, int8 by code, for the codes in four nibbles. */
IV_DEVICE uint32_t iv_unit_table(uint32_t four) {
    uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, four & 0x7777u);
    uint32_t high = __byte_perm(0x26190d01u, 0x71594535u, four & 0x7777u);
    uint32_t up = ((four >> 3 & 1u) * 0xffu) | ((four >> 7 & 1u) * 0xff00u) | ((four >> 11 & 1u) * 0xff0000u) |
                  ((four >> 15 & 1u) * 0xff000000u);
    return (low & ~up) | (high & up);
}

/* A word shifted to the left, or by a negative number to the right. */
IV_DEVICE uint32_t iv_unit_shift(uint32_t w, int by) { return by >= 0 ? w << by : w >> -by; }

/* Small integers and e2m1 of pair j of a word as two bfloat16; both are exact. */
template <iv_code_kind KIND> IV_DEVICE uint32_t iv_unit_bf16(uint32_t w, int j) {
    uint32_t pair = iv_and_or(w >> 4 * j, 0x000f000fu, 0x43004300u);
    if constexpr (KIND == IV_CODES_INT4) return iv_fma_bf16(pair, 0x3f803f80u, 0xc308c308u);
    if constexpr (KIND == IV_CODES_UINT4) return iv_fma_bf16(pair, 0x3f803f80u, 0xc300c300u);
    uint32_t magnitudes = iv_unit_shift(w, 6 - 4 * j) & 0x01c001c0u;
    uint32_t bits = iv_and_or(iv_unit_shift(w, 12 - 4 * j), 0x80008000u, magnitudes);
    if constexpr (KIND == IV_CODES_E2M1_DOUBLED) return iv_fma_bf16(bits, 0x7f007f00u, 0); /* no -0 */
    return iv_fma_bf16(bits, 0x7e807e80u, 0x80008000u);
}

/* w: the four words of a row of 8-bit codes, or the two of 4-bit codes. */
template <iv_code_kind KIND> IV_DEVICE void iv_unit_codes(const uint32_t (&w)[4], int s, float (&t)[4]) {
    if constexpr (KIND == IV_CODES_INT8) {
        iv_unit_int8(w[s], t);
    } else if constexpr (KIND == IV_CODES_E4M3) {
        iv_unit_e4m3(w[s], t);
    } else if constexpr (KIND == IV_CODES_NONLINEAR) {
        uint32_t of = s % 2 ? w[s / 2] >> 8 : w[s / 2];
        uint32_t four = (of & 0xffu) | (of >> 8 & 0xff00u); /* firsts of two pairs, then their seconds */
        iv_unit_int8(__byte_perm(iv_unit_table(four), 0, 0x3120), t);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t pair = iv_unit_bf16<KIND>(w[s / 2], s % 2 * 2 + i);
            t[2 * i] = __uint_as_float(pair << 16), t[2 * i + 1] = __uint_as_float(pair & 0xffff0000u);
        }
    }
}

/* ---- a lane's operand of four steps ---------------------------------------------------------------------------------
 */

/* What a loop over units is compiled for. PAIRS: codes and scales are bfloat16, and so is their exact product. SECOND,
 * GROUPS and SCALE: of the form, or ANY. */
enum { IV_UNIT_ANY = -1 };
template <iv_dtype TYPE_, iv_code_kind KIND_, bool PAIRS_, int SECOND_, int GROUPS_, int SCALE_> struct iv_unit_traits {
    static constexpr iv_dtype TYPE = TYPE_;
    static constexpr iv_code_kind KIND = KIND_;
    static constexpr bool PAIRS = PAIRS_;
    static constexpr int SECOND = SECOND_, GROUPS = GROUPS_, SCALE = SCALE_, LANE_BYTES = KIND < IV_CODES_INT8 ? 8 : 16;
    static constexpr bool SHORT = SCALE != IV_UNIT_ANY; /* code that may be unrolled */
    static_assert(!PAIRS ||
                      (TYPE == IV_BF16 && SECOND == IV_SECOND_NONE && KIND < IV_CODES_NONLINEAR && SCALE == IV_BF16),
                  "exact products");
};
template <class U> IV_DEVICE iv_code_second iv_unit_second(const iv_unit_form &f) {
    return U::SECOND == IV_UNIT_ANY ? f.second : (iv_code_second)U::SECOND;
}
template <class U> IV_DEVICE int iv_unit_groups(const iv_unit_form &f) {
    return U::GROUPS == IV_UNIT_ANY ? f.groups : U::GROUPS;
}
template <class U> IV_DEVICE iv_dtype iv_unit_scale_type(const iv_unit_form &f) {
    return U::SCALE == IV_UNIT_ANY ? f.scale_type : (iv_dtype)U::SCALE;
}

/* Scales or seconds of a lane's row, a number a step. `at`: of the row's first. */
template <class U, class T> IV_DEVICE void iv_unit_numbers(const iv_unit_form &f, uint32_t at, T (&out)[4]) {
    iv_dtype type = iv_unit_scale_type<U>(f);
    uint32_t group = IV_UNIT_ROWS * (type == IV_F32 ? 4 : 2);
    int groups = iv_unit_groups<U>(f), each = IV_UNIT_STEPS / groups;
    if (U::GROUPS != IV_UNIT_ANY || groups == 1) {
#pragma unroll
        for (int s = 0; s < IV_UNIT_STEPS; s++)
            if (U::GROUPS == IV_UNIT_ANY ? s == 0 : s % each == 0)
                iv_load_shared_number(type, at + (U::GROUPS == IV_UNIT_ANY ? 0 : s / each) * group, out[s]);
            else
                out[s] = out[s - 1];
        return;
    }
#pragma unroll
    for (int s = 0; s < IV_UNIT_STEPS; s++) iv_load_shared_number(type, at + IV_UNIT_GROUP(f, s) * group, out[s]);
}

/* A lane's row of a unit: its first scale, and its first second behind all scales. */
template <class U> IV_DEVICE uint32_t iv_unit_scales(const iv_unit_form &f, uint32_t unit) {
    return unit + U::LANE_BYTES * 32 + threadIdx.x % 32 / 4 * (iv_unit_scale_type<U>(f) == IV_F32 ? 4 : 2);
}
template <class U> IV_DEVICE uint32_t iv_unit_seconds(const iv_unit_form &f, uint32_t scales) {
    return scales + iv_unit_groups<U>(f) * IV_UNIT_ROWS * (iv_unit_scale_type<U>(f) == IV_F32 ? 4 : 2);
}

/* The weight, before R. */
template <class U> IV_DEVICE float iv_unit_value(const iv_unit_form &f, float t, float scale, float number) {
    iv_code_second second = iv_unit_second<U>(f);
    if (U::SECOND == IV_SECOND_ZERO || U::SECOND == IV_UNIT_ANY)
        t = __fsub_rn(t, second == IV_SECOND_ZERO ? number : 0.0f); /* + 0 and - 0 change nothing */
    t = __fmul_rn(t, scale);
    if (U::SECOND == IV_SECOND_MIN || U::SECOND == IV_UNIT_ANY)
        t = __fadd_rn(t, second == IV_SECOND_MIN ? number : -0.0f);
    return t;
}

/* Words HIGH and HIGH + 2 of each step, from a row's codes. */
template <class U, int HIGH>
IV_DEVICE void iv_widen_row(uint32_t (&a)[4][4], const uint32_t (&words)[4], uint32_t scales, const iv_unit_form &f) {
    float scale[4], second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    iv_unit_numbers<U>(f, scales, scale);
    if (iv_unit_second<U>(f) != IV_SECOND_NONE) iv_unit_numbers<U>(f, iv_unit_seconds<U>(f, scales), second);
#pragma unroll
    for (int s = 0; s < IV_UNIT_STEPS; s++) {
        float t[4];
        iv_unit_codes<U::KIND>(words, s, t);
#pragma unroll
        for (int i = 0; i < 4; i++) t[i] = iv_unit_value<U>(f, t[i], scale[s], second[s]);
        a[s][HIGH] = iv_pack16(U::TYPE, t[0], t[1]), a[s][HIGH + 2] = iv_pack16(U::TYPE, t[2], t[3]);
    }
}

/* The same for PAIRS. */
template <class U, int HIGH>
IV_DEVICE void iv_widen_row_pairs(uint32_t (&a)[4][4], const uint32_t (&words)[4], uint32_t scales,
                                  const iv_unit_form &f) {
    uint32_t scale[4]; /* two equal ones */
    iv_unit_numbers<U>(f, scales, scale);
#pragma unroll
    for (int s = 0; s < IV_UNIT_STEPS; s++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            a[s][HIGH + 2 * i] = iv_fma_bf16(iv_unit_bf16<U::KIND>(words[s / 2], s % 2 * 2 + i), scale[s], 0x80008000u);
}

/* A lane's codes of 16 outputs, of the units at shared addresses `unit` and `next`, and their four steps of 16 k. */
struct iv_unit_lane {
    uint32_t low[4], high[4];
};
template <class U> IV_DEVICE void iv_load_unit(iv_unit_lane &l, uint32_t unit, uint32_t next) {
    uint32_t at = threadIdx.x % 32 * U::LANE_BYTES;
    iv_load_shared_words(l.low, unit + at, U::LANE_BYTES);
    iv_load_shared_words(l.high, next + at, U::LANE_BYTES);
}
template <class U>
IV_DEVICE void iv_widen_unit(uint32_t (&a)[4][4], const iv_unit_lane &l, uint32_t unit, uint32_t next,
                             const iv_unit_form &f) {
    uint32_t low = iv_unit_scales<U>(f, unit), high = iv_unit_scales<U>(f, next);
    if constexpr (U::PAIRS) {
        iv_widen_row_pairs<U, 0>(a, l.low, low, f);
        iv_widen_row_pairs<U, 1>(a, l.high, high, f);
    } else {
        iv_widen_row<U, 0>(a, l.low, low, f);
        iv_widen_row<U, 1>(a, l.high, high, f);
    }
}

/* Four 8 x 8 matrices of 16-bit numbers to shared memory, from mma's operand. Lane 8 i + r has the address of row r of
 * matrix i. */
IV_DEVICE void iv_store_matrices(uint32_t row, const uint32_t (&m)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m[0]), "r"(m[1]),
                 "r"(m[2]), "r"(m[3])
                 : "memory");
}
/* Their 16 rows of 64 k to shared memory as wgmma reads them, with 128-byte swizzle. */
enum { IV_UNIT_ROW_BYTES = 128 };
IV_DEVICE void iv_unit_store(uint32_t rows, const uint32_t (&a)[4][4]) {
    int lane = threadIdx.x % 32;
    uint32_t row = rows + (lane / 8 % 2 * 8 + lane % 8) * IV_UNIT_ROW_BYTES;
#pragma unroll
    for (int s = 0; s < IV_UNIT_STEPS; s++) iv_store_matrices(row + ((2 * s + lane / 16 ^ lane % 8) << 4), a[s]);
}

/* Calls RUN::run<traits>(arguments) with the traits of a form, so that no loop looks at it. */
template <class RUN, iv_dtype TYPE, iv_code_kind KIND, bool PAIRS, int SECOND, int GROUPS, int SCALE, class... A>
IV_DEVICE void iv_unit_run(A &&...a) {
    RUN::template run<iv_unit_traits<TYPE, KIND, PAIRS, SECOND, GROUPS, SCALE>>(a...);
}
template <class RUN, iv_dtype TYPE, iv_code_kind KIND, class... A>
IV_DEVICE void iv_unit_choose_of(const iv_unit_form &f, A &&...a) {
    constexpr bool E2M1 = KIND == IV_CODES_E2M1 || KIND == IV_CODES_E2M1_DOUBLED;
    constexpr int USUAL = E2M1 || KIND == IV_CODES_INT8 ? 2 : 1; /* groups of the most frequent files */
    bool none = f.second == IV_SECOND_NONE;
    if (f.groups == USUAL) {
        if constexpr ((E2M1 || KIND == IV_CODES_INT4) && TYPE == IV_BF16)
            if (none && f.scale_type == IV_BF16)
                return iv_unit_run<RUN, TYPE, KIND, true, IV_SECOND_NONE, USUAL, IV_BF16>(a...);
        if constexpr (KIND == IV_CODES_INT4)
            if (f.second == IV_SECOND_ZERO && f.scale_type == IV_F16)
                return iv_unit_run<RUN, TYPE, KIND, false, IV_SECOND_ZERO, USUAL, IV_F16>(a...);
        if constexpr (KIND == IV_CODES_INT8)
            if (none && f.scale_type == IV_F16)
                return iv_unit_run<RUN, TYPE, KIND, false, IV_SECOND_NONE, USUAL, IV_F16>(a...);
        if constexpr (KIND == IV_CODES_E4M3) {
            if (none && f.scale_type == IV_F32)
                return iv_unit_run<RUN, TYPE, KIND, false, IV_SECOND_NONE, USUAL, IV_F32>(a...);
            if (none && f.scale_type == IV_BF16)
                return iv_unit_run<RUN, TYPE, KIND, false, IV_SECOND_NONE, USUAL, IV_BF16>(a...);
        }
    }
    if constexpr (KIND == IV_CODES_INT4 || KIND == IV_CODES_E2M1 || KIND == IV_CODES_INT8)
        if (none) return iv_unit_run<RUN, TYPE, KIND, false, IV_SECOND_NONE, IV_UNIT_ANY, IV_UNIT_ANY>(a...);
    iv_unit_run<RUN, TYPE, KIND, false, IV_UNIT_ANY, IV_UNIT_ANY, IV_UNIT_ANY>(a...);
}
template <class RUN, iv_dtype TYPE, class... A> IV_DEVICE void iv_unit_choose(const iv_unit_form &f, A &&...a) {
    switch (f.kind) {
    case IV_CODES_INT4: return iv_unit_choose_of<RUN, TYPE, IV_CODES_INT4>(f, a...);
    case IV_CODES_UINT4: return iv_unit_choose_of<RUN, TYPE, IV_CODES_UINT4>(f, a...);
    case IV_CODES_E2M1: return iv_unit_choose_of<RUN, TYPE, IV_CODES_E2M1>(f, a...);
    case IV_CODES_E2M1_DOUBLED: return iv_unit_choose_of<RUN, TYPE, IV_CODES_E2M1_DOUBLED>(f, a...);
    case IV_CODES_NONLINEAR: return iv_unit_choose_of<RUN, TYPE, IV_CODES_NONLINEAR>(f, a...);
    case IV_CODES_INT8: return iv_unit_choose_of<RUN, TYPE, IV_CODES_INT8>(f, a...);
    default: return iv_unit_choose_of<RUN, TYPE, IV_CODES_E4M3>(f, a...);
    }
}

#endif
