/* rows.cuh: common parts of row ops: typed elements, the sums over the law's 256 lanes (NUMERICS.md section 4), heads
 * in registers and their rotation. */
#ifndef IV_KERNELS_CUDA_ROWS_CUH
#define IV_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/law.cuh"
#include "kernels/cuda/ops.h"

#include <stddef.h>

enum { LANES = 256, WARPS = LANES / 32 };

template <iv_dtype T> IV_DEVICE float get(const void *p, size_t i) {
    return T == IV_F32 ? ((const float *)p)[i] : iv_widen16(T, ((const uint16_t *)p)[i]);
}

template <iv_dtype T> IV_DEVICE uint32_t rounded(float x) {
    return T == IV_F32 ? __float_as_uint(iv_canon(x)) : iv_round16(T, x);
}

template <iv_dtype T> IV_DEVICE void put_bits(void *p, size_t i, uint32_t bits) {
    if (T == IV_F32)
        ((uint32_t *)p)[i] = bits;
    else
        ((uint16_t *)p)[i] = (uint16_t)bits;
}

template <iv_dtype T> IV_DEVICE void put(void *p, size_t i, float x) { put_bits<T>(p, i, rounded<T>(x)); }

/* Of the current GPU. */
static inline int iv_multiprocessors(void) {
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 1;
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count < 1 ? 1 : count;
}

/* Strides 16 ... 1. Both lanes of a pair add the same two numbers, so every lane ends with lane 0's sum. */
IV_DEVICE float fold_warp(float x) {
    for (int stride = 16; stride > 0; stride /= 2) x = x + __shfl_xor_sync(0xffffffffu, x, stride);
    return x;
}

/* Strides 128, 64 and 32, over lanes that are 32 apart. */
IV_DEVICE float fold_far(const float l[WARPS]) {
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

IV_DEVICE float norm_scale(float sum, size_t n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, (float)n) + eps));
}

/* The sum over all lanes, in every thread. */
IV_DEVICE float fold_block(float lane, float *lanes) {
    lanes[threadIdx.x] = lane;
    __syncthreads();
    float l[WARPS];
#pragma unroll
    for (int j = 0; j < WARPS; j++) l[j] = lanes[threadIdx.x % 32 + 32 * j];
    return fold_warp(fold_far(l));
}

/* ---- heads ---------------------------------------------------------------------------------------------- */

/* A warp has a head: x[j] is element lane + 32 j. EXACT: head_dim is 32 PER, so both elements of a pair are in one
 * lane and no bounds are checked; otherwise pairs are exchanged through shared memory. */

template <int PER, bool EXACT> IV_DEVICE void load_head(const float *from, unsigned d, float x[PER]) {
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < PER; j++) x[j] = EXACT || lane + 32 * j < d ? from[lane + 32 * j] : 0.0f;
}

/* The angles of a lane's pairs. */
template <int PER, bool EXACT> IV_DEVICE void load_angles(const float *table, unsigned d, float out[PER]) {
    unsigned lane = threadIdx.x % 32, pairs = d / 2;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        if (EXACT && j >= PER / 2)
            out[j] = out[j % (PER / 2)];
        else
            out[j] = EXACT || i < d ? table[EXACT || i < pairs ? i : i - pairs] : 0.0f;
    }
}

template <int PER, bool EXACT>
IV_DEVICE void rotate_head(float x[PER], const float c[PER], const float s[PER], unsigned d, float *swap) {
    unsigned lane = threadIdx.x % 32, pairs = d / 2;
    float other[PER];
    if (!EXACT) {
#pragma unroll
        for (int j = 0; j < PER; j++) swap[lane + 32 * j] = x[j];
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        if (EXACT)
            other[j] = x[(j + PER / 2) % PER];
        else
            other[j] = i < d ? swap[i < pairs ? i + pairs : i - pairs] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < PER; j++) {
        bool first = EXACT ? j < PER / 2 : lane + 32 * j < pairs;
        float cross = other[j] * s[j];
        x[j] = __fmaf_rn(x[j], c[j], first ? -cross : cross);
    }
    if (!EXACT) __syncwarp(); /* swap is free again */
}

/* y of a row, scaled. */
IV_DEVICE float iv_scaled(const iv_gpu_row_scales &s, size_t row, float y) {
    return s.logits ? iv_canon(y) * iv_sigmoid(s.logits[row * s.apart]) : y;
}

#endif
