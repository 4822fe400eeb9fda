/* weight_gradient.cuh: what kernels of weight gradients share: their parameters, and the begin and the end of a chain.
 * A thread has COUNT values of a tile; `at` gives the place of each: struct { bool there; size_t at; } of the sums. */
#ifndef IV_KERNELS_CUDA_WEIGHT_GRADIENT_CUH
#define IV_KERNELS_CUDA_WEIGHT_GRADIENT_CUH

#include "kernels/cuda/law.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

struct iv_gradient_problem {
    iv_sum_plan plan;
    const void *dy, *x;
    size_t dy_stride, x_stride;
    const int64_t *offsets;
    int n, k;
    int tiles_k, tiles; /* along the inputs, and of the grid's loop */
    iv_dtype type;
    bool vectors; /* rows may be loaded in vectors */
    float *scratch;
    size_t scratch_floats; /* of a CTA */
};

struct iv_gradient_place {
    bool there;
    size_t at;
};

/* A value outside is +0 or any other number; it is not written. */
template <int COUNT, class AT>
IV_DEVICE void iv_gradient_begin(const iv_gradient_problem &p, const iv_sum_part &part, const AT &at,
                                 float (&acc)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        iv_gradient_place to = at(i);
        acc[i] = part.continues && to.there ? p.plan.sums.sum[to.at] : 0.0f;
    }
}

/* waiting: this thread's first value of level 0; value i of level l is THREADS * (l * COUNT + i) floats on. */
template <int COUNT, int THREADS, class AT>
IV_DEVICE void iv_gradient_end(const iv_gradient_problem &p, const iv_sum_part &part, const AT &at, float *waiting,
                               float (&acc)[COUNT]) {
    for (int level = 0; level < part.joins; level++) {
        bool sums = part.from_sums >> level & 1;
        const float *from = sums ? p.plan.sums.level[level] : waiting + (size_t)level * COUNT * THREADS;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            iv_gradient_place to = at(i);
            if (!sums) to.there = true, to.at = (size_t)i * THREADS;
            if (to.there) acc[i] = __fadd_rn(from[to.at], acc[i]);
        }
    }
    if (part.to == IV_SUM_WAITS) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) waiting[(size_t)(part.joins * COUNT + i) * THREADS] = acc[i];
        return;
    }
    float *out = part.to == IV_SUM_LEVEL ? p.plan.sums.level[part.joins] : p.plan.sums.sum;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        iv_gradient_place to = at(i);
        if (to.there) out[to.at] = acc[i];
    }
}

#endif
