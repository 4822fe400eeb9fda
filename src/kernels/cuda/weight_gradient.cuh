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
    /* Of groups (learn.h). Last: dense kernels' code, down to their registers, is what it was without them. */
    const uint32_t *bounds; /* NULL: none, and the tokens are those of the plan's ranges */
    const int64_t *bases;
    int group_tiles; /* `tiles` of a group */
};

/* Sets the tiles of a problem that has `tiles` for each group. False: too many. */
static inline bool iv_gradient_set_groups(const iv_gpu_weight_gradient_args *a, size_t tiles, iv_gradient_problem *p) {
    size_t groups = a->groups ? a->groups->count : 1;
    if (tiles > INT32_MAX / 2 / groups) return false;
    p->group_tiles = (int)tiles, p->tiles = (int)(tiles * groups);
    if (a->groups) p->bounds = a->groups->bounds, p->bases = a->groups->bases;
    return true;
}

struct iv_gradient_span { /* of tokens */
    int begin, end;
};
/* The tokens of a range of a group. */
IV_DEVICE iv_gradient_span iv_gradient_span_of(const iv_gradient_problem &p, int group, int range) {
    const uint32_t *bounds = p.bounds + 2 * ((size_t)group * (size_t)p.plan.ranges + (size_t)range);
    return {(int)bounds[0], (int)bounds[1]};
}

struct iv_gradient_place {
    bool there;
    size_t at;
};

/* A value outside is +0 or any other number; it is not written. */
template <int COUNT, class AT>
IV_DEVICE void iv_gradient_begin(const iv_gradient_problem &p, const iv_sum_range &range, const AT &at,
                                 float (&acc)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        iv_gradient_place to = at(i);
        acc[i] = range.continues && to.there ? p.plan.sums.sum[to.at] : 0.0f;
    }
}

/* waiting: this thread's first value of level 0; value i of level l is THREADS * (l * COUNT + i) floats on. */
template <int COUNT, int THREADS, class AT>
IV_DEVICE void iv_gradient_end(const iv_gradient_problem &p, const iv_sum_range &range, const AT &at, float *waiting,
                               float (&acc)[COUNT]) {
    for (int level = 0; level < range.joins; level++) {
        bool sums = range.from_sums >> level & 1;
        const float *from = sums ? p.plan.sums.level[level] : waiting + (size_t)level * COUNT * THREADS;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            iv_gradient_place to = at(i);
            if (!sums) to.there = true, to.at = (size_t)i * THREADS;
            if (to.there) acc[i] = __fadd_rn(from[to.at], acc[i]);
        }
    }
    if (range.to == IV_SUM_WAITS) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) waiting[(size_t)(range.joins * COUNT + i) * THREADS] = acc[i];
        return;
    }
    float *out = range.to == IV_SUM_LEVEL ? p.plan.sums.level[range.joins] : p.plan.sums.sum;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        iv_gradient_place to = at(i);
        if (to.there) out[to.at] = acc[i];
    }
}

#endif
