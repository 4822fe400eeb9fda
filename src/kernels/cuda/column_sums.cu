/* column_sums.cu: sums over tokens that are no matrix products (NUMERICS.md 15.3): biases and norm weights. The chains
 * of the virtual ranks of a pass run next to each other, a thread for each column; a second kernel adds them in the
 * tree. Once NaN, a sum stays NaN, so only the ends of chains are made canonical. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime.h>

enum { THREADS = 64, STEP = 16 };

struct problem {
    iv_sum_plan plan;
    const int32_t *row, *pick;
    const float *dy, *x, *r;
    size_t dy_stride, x_stride, offset;
    int n;
    float *chain; /* [part][n] */
};

/* The terms of 16 tokens: dy, and x times r. */
template <bool NORM> struct terms {
    float dy[STEP], x[STEP];
    bool there[STEP];
};

template <bool NORM> IV_DEVICE void load_terms(const problem &p, uint32_t first, int column, terms<NORM> &t) {
    int32_t row[STEP];
    float r[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i += 4) *(int4 *)&row[i] = *(const int4 *)(p.row + first + i);
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        t.there[i] = row[i] >= 0;
        size_t from = t.there[i] ? (size_t)row[i] : 0;
        t.dy[i] = t.there[i] ? p.dy[from * p.dy_stride + column] : 0.0f;
        if (!NORM) continue;
        size_t x_row = t.there[i] && p.pick ? (size_t)p.pick[from] : from;
        t.x[i] = t.there[i] ? p.x[x_row * p.x_stride + column] : 0.0f;
        r[i] = t.there[i] ? p.r[from] : 0.0f;
    }
#pragma unroll
    for (int i = 0; NORM && i < STEP; i++) t.x[i] = __fmul_rn(t.x[i], r[i]);
}

template <bool NORM> IV_DEVICE float add_terms(const terms<NORM> &t, float sum) {
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        float next = NORM ? __fmaf_rn(t.dy[i], t.x[i], sum) : __fadd_rn(sum, t.dy[i]);
        sum = t.there[i] ? next : sum;
    }
    return sum;
}

/* The terms of the next tokens are loaded while these are added. */
template <bool NORM>
static __global__ void __launch_bounds__(THREADS) column_chains(const __grid_constant__ problem p) {
    int column = blockIdx.x * THREADS + threadIdx.x;
    const iv_sum_part &part = p.plan.part[blockIdx.y];
    iv_let_next();
    iv_wait();
    if (column >= p.n) return;
    float sum = part.continues ? p.plan.sums.sum[p.offset + column] : 0.0f;
    terms<NORM> now, next;
    if (part.begin < part.end) load_terms(p, part.begin, column, next);
    for (uint32_t first = part.begin; first < part.end; first += STEP) {
        now = next;
        if (first + STEP < part.end) load_terms(p, first + STEP, column, next);
        sum = add_terms(now, sum);
    }
    p.chain[(size_t)blockIdx.y * p.n + column] = iv_canon(sum);
}

/* The chains of a column in order. */
static __global__ void __launch_bounds__(THREADS) column_tree(const __grid_constant__ problem p) {
    int column = blockIdx.x * THREADS + threadIdx.x;
    iv_let_next();
    iv_wait();
    if (column >= p.n) return;
    float waiting[IV_VIRTUAL_LEVELS_MAX] = {};
    for (int index = 0; index < p.plan.parts; index++) {
        const iv_sum_part &part = p.plan.part[index];
        float sum = p.chain[(size_t)index * p.n + column];
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level >= part.joins) continue;
            bool sums = part.from_sums >> level & 1;
            sum = __fadd_rn(sums ? p.plan.sums.level[level][p.offset + column] : waiting[level], sum);
        }
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level != part.joins) continue;
            if (part.to == IV_SUM_WAITS) waiting[level] = sum;
            if (part.to == IV_SUM_LEVEL) p.plan.sums.level[level][p.offset + column] = sum;
        }
        if (part.to == IV_SUM_SUM) p.plan.sums.sum[p.offset + column] = sum;
    }
}

size_t iv_gpu_column_sums_scratch(size_t n) { return IV_VIRTUAL_RANKS_MAX * n * sizeof(float); }

int iv_gpu_column_sums(const iv_gpu_column_sums_args *a, iv_gpu_stream stream) {
    problem p = {};
    bool norm = a->kind == IV_GPU_SUM_NORM;
    if (a->n > INT32_MAX / IV_VIRTUAL_RANKS_MAX || (!norm && a->kind != IV_GPU_SUM_VALUES) ||
        (uintptr_t)a->row % 16 != 0 || !iv_sum_plan_make(a->axis, &a->sums, &p.plan))
        return (int)cudaErrorInvalidValue;
    if (a->n == 0 || p.plan.parts == 0) return 0;
    p.row = a->row, p.pick = a->pick, p.dy = a->dy, p.x = a->x, p.r = a->r;
    p.dy_stride = a->dy_stride, p.x_stride = a->x_stride, p.offset = a->offset, p.n = (int)a->n;
    p.chain = (float *)a->scratch;
    unsigned blocks = (unsigned)((a->n + THREADS - 1) / THREADS);
    int e = iv_launch(norm ? column_chains<true> : column_chains<false>, dim3(blocks, (unsigned)p.plan.parts), THREADS,
                      (cudaStream_t)stream, p);
    return e ? e : iv_launch(column_tree, dim3(blocks), THREADS, (cudaStream_t)stream, p);
}
