/* sum_exp.cuh: the largest logit and the sum of exponentials of a row that a warp holds in registers. Law: NUMERICS.md
 * section 4. */
#ifndef IV_KERNELS_CUDA_SUM_EXP_CUH
#define IV_KERNELS_CUDA_SUM_EXP_CUH

#include "kernels/cuda/law.cuh"
#include "numerics/rows.h"

#include <stddef.h>

enum { LANE_GROUPS = IV_ROW_LANES / 32 };

#define WHOLE_WARP 0xffffffffu

/* m and S of sum-exp; x[j] is element lane + 32 j. */
template <int PER> IV_DEVICE void sum_exp(const float x[PER], size_t n, float *max, float *sum) {
    unsigned lane = threadIdx.x % 32;
    float m = __uint_as_float(0xff800000u), l[LANE_GROUPS] = {0};
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (lane + 32 * j < n) m = iv_max(m, x[j]);
    for (int stride = 16; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    m = m + 0.0f;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (lane + 32 * j < n) l[j % LANE_GROUPS] = l[j % LANE_GROUPS] + v_exp(x[j] - m);
    float s = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    for (int stride = 16; stride > 0; stride /= 2) s = s + __shfl_xor_sync(WHOLE_WARP, s, stride);
    *max = m, *sum = s;
}

#endif
