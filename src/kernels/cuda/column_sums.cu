/* column_sums.cu: sums over tokens that are no matrix products (NUMERICS.md 15.3): biases and norm weights. The chains
 * of the virtual ranks of a pass run next to each other, a block for each part and 32 columns; a second kernel adds them
 * in the tree. A chain is sequential, so its terms must not wait for memory: all threads of a block copy the next tile of
 * tokens to shared memory while one warp adds the previous one, and indices are loaded further ahead. Once NaN, a sum
 * stays NaN, so only the ends of chains are made canonical. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime.h>

enum { THREADS = 256, COLUMNS = 32, TOKENS = 64, TREE_THREADS = 64 };

struct problem {
    iv_sum_plan plan;
    const int32_t *row, *pick;
    const float *dy, *x, *r;
    size_t dy_stride, x_stride, offset;
    int n;
    float *chain; /* [part][n] */
};

/* A tile's terms: dy, and x times r. */
template <bool NORM> struct tile {
    float dy[TOKENS][COLUMNS], x[NORM ? TOKENS : 1][COLUMNS];
};

/* A thread's items of the tile that is copied next: V columns of a token each. */
template <bool NORM, int V> struct items {
    static constexpr int COUNT = TOKENS * COLUMNS / V / THREADS, ACROSS = COLUMNS / V;
    int32_t row[COUNT], x_row[COUNT]; /* -1: the token takes no part */
    elements<V> dy[COUNT], x[NORM ? COUNT : 1];
    float r[NORM ? COUNT : 1];
};

template <int V> IV_DEVICE int item_token(int i) { return (int)(threadIdx.x + i * THREADS) / (COLUMNS / V); }
template <int V> IV_DEVICE int item_column(void) { return (int)threadIdx.x % (COLUMNS / V) * V; }

template <bool NORM, int V>
IV_DEVICE void load_rows(const problem &p, const iv_sum_part &part, uint32_t first, items<NORM, V> &t) {
#pragma unroll
    for (int i = 0; i < t.COUNT; i++) {
        uint32_t token = first + item_token<V>(i);
        bool there = token < part.end && (int)blockIdx.x * COLUMNS + item_column<V>() < p.n;
        t.row[i] = there ? p.row[token] : -1;
    }
}

template <bool NORM, int V> IV_DEVICE void load_picks(const problem &p, items<NORM, V> &t) {
#pragma unroll
    for (int i = 0; i < t.COUNT; i++) t.x_row[i] = NORM && p.pick && t.row[i] >= 0 ? p.pick[t.row[i]] : t.row[i];
}

/* Missing terms are -0 times 1, which changes no sum. */
template <bool NORM, int V> IV_DEVICE void load_terms(const problem &p, items<NORM, V> &t) {
    int column = (int)blockIdx.x * COLUMNS + item_column<V>();
#pragma unroll
    for (int i = 0; i < t.COUNT; i++) {
        bool there = t.row[i] >= 0;
        size_t row = there ? (size_t)t.row[i] : 0, x_row = there ? (size_t)t.x_row[i] : 0;
#pragma unroll
        for (int j = 0; j < V; j++) t.dy[i].at[j] = -0.0f;
        if (there) t.dy[i] = load<V>(p.dy + row * p.dy_stride + column);
        if constexpr (NORM) {
#pragma unroll
            for (int j = 0; j < V; j++) t.x[i].at[j] = 1.0f;
            if (there) t.x[i] = load<V>(p.x + x_row * p.x_stride + column);
            t.r[i] = there ? p.r[row] : 1.0f;
        }
    }
}

template <bool NORM, int V> IV_DEVICE void store_terms(const items<NORM, V> &t, tile<NORM> &to) {
#pragma unroll
    for (int i = 0; i < t.COUNT; i++) {
        int token = item_token<V>(i), column = item_column<V>();
        store<V>(&to.dy[token][column], t.dy[i]);
        if constexpr (NORM) {
            elements<V> x;
#pragma unroll
            for (int j = 0; j < V; j++) x.at[j] = __fmul_rn(t.x[i].at[j], t.r[i]);
            store<V>(&to.x[token][column], x);
        }
    }
}

template <bool NORM> IV_DEVICE float add_tile(const tile<NORM> &t, float sum) {
#pragma unroll 16
    for (int i = 0; i < TOKENS; i++)
        sum = NORM ? __fmaf_rn(t.dy[i][threadIdx.x], t.x[i][threadIdx.x], sum) : __fadd_rn(sum, t.dy[i][threadIdx.x]);
    return sum;
}

/* Terms are a tile ahead of the chain, rows and picks two. */
template <bool NORM, int V>
static __global__ void __launch_bounds__(THREADS) column_chains(const __grid_constant__ problem p) {
    __shared__ __align__(16) tile<NORM> tiles[2];
    const iv_sum_part &part = p.plan.part[blockIdx.y];
    int column = (int)blockIdx.x * COLUMNS + (int)threadIdx.x;
    bool adds = threadIdx.x < COLUMNS;
    items<NORM, V> t;
    iv_let_next();
    iv_wait();
    float sum = adds && column < p.n && part.continues ? p.plan.sums.sum[p.offset + column] : 0.0f;
    load_rows(p, part, part.begin, t), load_picks(p, t), load_terms(p, t);
    load_rows(p, part, part.begin + TOKENS, t), load_picks(p, t);
    int at = 0;
    for (uint32_t first = part.begin; first < part.end; first += TOKENS, at ^= 1) {
        store_terms(t, tiles[at]);
        __syncthreads(); /* it is also behind all readings of the other tile */
        load_terms(p, t);
        load_rows(p, part, first + 2 * TOKENS, t);
        if (adds) sum = add_tile(tiles[at], sum);
        load_picks(p, t);
    }
    if (adds && column < p.n) p.chain[(size_t)blockIdx.y * p.n + column] = iv_canon(sum);
}

/* The chains of a column in order. */
static __global__ void __launch_bounds__(TREE_THREADS) column_tree(const __grid_constant__ problem p) {
    int column = blockIdx.x * TREE_THREADS + threadIdx.x;
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

template <bool NORM> static int launch_chains(const problem *p, cudaStream_t stream) {
    bool fours = p->n % 4 == 0 && p->dy_stride % 4 == 0 && (uintptr_t)p->dy % 16 == 0;
    if (NORM) fours = fours && p->x_stride % 4 == 0 && (uintptr_t)p->x % 16 == 0;
    dim3 grid((unsigned)((p->n + COLUMNS - 1) / COLUMNS), (unsigned)p->plan.parts);
    return iv_launch(fours ? column_chains<NORM, 4> : column_chains<NORM, 1>, grid, THREADS, stream, *p);
}

int iv_gpu_column_sums(const iv_gpu_column_sums_args *a, iv_gpu_stream stream) {
    problem p = {};
    bool norm = a->kind == IV_GPU_SUM_NORM;
    if (a->n > INT32_MAX / IV_VIRTUAL_RANKS_MAX || (!norm && a->kind != IV_GPU_SUM_VALUES) ||
        !iv_sum_plan_make(a->axis, &a->sums, &p.plan))
        return (int)cudaErrorInvalidValue;
    if (a->n == 0 || p.plan.parts == 0) return 0;
    p.row = a->row, p.pick = a->pick, p.dy = a->dy, p.x = a->x, p.r = a->r;
    p.dy_stride = a->dy_stride, p.x_stride = a->x_stride, p.offset = a->offset, p.n = (int)a->n;
    p.chain = (float *)a->scratch;
    cudaStream_t s = (cudaStream_t)stream;
    int e = norm ? launch_chains<true>(&p, s) : launch_chains<false>(&p, s);
    unsigned blocks = (unsigned)((a->n + TREE_THREADS - 1) / TREE_THREADS);
    return e ? e : iv_launch(column_tree, dim3(blocks), TREE_THREADS, s, p);
}
