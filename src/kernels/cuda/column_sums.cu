/* column_sums.cu: sums over tokens that are no matrix products (NUMERICS.md 15.3): biases and norm weights. The chains
 * of the virtual ranks of a pass run next to each other, a block for each range and 16 columns; a second kernel adds
 * them in the tree. A chain is sequential, so its terms must wait for nothing: the first warp of a block only adds,
 * four tokens for each load from shared memory. The other warps load the terms of later tokens into registers, four
 * tokens of four columns a thread, and store them column by column. Once NaN, a sum stays NaN, so only the ends of
 * chains are made canonical. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime.h>

enum {
    COLUMNS = 16,
    COPIERS = 256, /* threads that copy */
    ADDERS = 32,   /* a warp, a lane for each column */
    THREADS = ADDERS + COPIERS,
    FOUR = 4,                          /* columns and tokens of a copier */
    ACROSS = COLUMNS / FOUR,           /* copiers of a token */
    ROUND = COPIERS / ACROSS * FOUR,   /* tokens that are copied and added between two barriers */
    GROUPS = ROUND / FOUR,             /* loads of a lane in a round */
    BATCH = 64 / FOUR,                 /* of them, without a branch */
    AHEAD = 4,                         /* loads of a lane in registers */
    TREE_THREADS = 64
};
static_assert(BATCH % AHEAD == 0 && GROUPS % BATCH == 0, "a load has the same registers in every batch");

struct problem {
    iv_sum_plan plan;
    const int32_t *row, *pick;
    const float *dy, *x, *r;
    size_t dy_stride, x_stride, offset, later_offset;
    int n, later;
    float *chain; /* [range][n] */
};

/* Terms of a round: four tokens of a column in a place. factor: x * r. */
template <bool NORM> struct terms {
    float4 dy[COLUMNS][GROUPS], factor[NORM ? COLUMNS : 1][NORM ? GROUPS : 1];
};

/* The place of a group of tokens: neither eight columns' loads nor the stores of four columns by two groups have bank
 * conflicts. */
IV_DEVICE int place_in(int column, int group) {
    return group ^ (((column >> 3 ^ column >> 1) & 1) << 2 | (column >> 2 & 1) << 1 | (column & 1));
}

IV_DEVICE size_t offset_of(const problem &p, int column) {
    return column < p.later ? p.offset + column : p.later_offset + (column - p.later);
}

/* ---- copying ---------------------------------------------------------------------------------------------------- */

/* A copier's tokens of a round: the row of dy, or -1 if it takes no part; its row of x. */
struct known {
    int32_t row[FOUR], x_row[FOUR];
};

/* Their columns and factors. */
template <bool NORM> struct block {
    elements<FOUR> dy[FOUR], x[NORM ? FOUR : 1];
    float r[FOUR];
};

/* What a copier has on its way: rows of round k + 4, rows of x of k + 3, terms of k + 2, if k is added. */
template <bool NORM> struct copying {
    int32_t row[FOUR];
    known then;
    block<NORM> now;
};

IV_DEVICE int copier(void) { return (int)threadIdx.x - ADDERS; }

IV_DEVICE void load_rows(const problem &p, const iv_sum_range &range, uint32_t round, int32_t (&row)[FOUR]) {
    uint32_t token = range.begin + round * ROUND + copier() / ACROSS * FOUR;
#pragma unroll
    for (int i = 0; i < FOUR; i++) row[i] = token + i < range.end ? p.row[token + i] : -1;
}

template <bool NORM> IV_DEVICE void load_picks(const problem &p, const int32_t (&row)[FOUR], known &k) {
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        k.row[i] = row[i], k.x_row[i] = NORM && row[i] >= 0 && p.pick ? p.pick[row[i]] : row[i];
}

/* Four columns of a row, or `missing`, as much of them as there is. */
template <bool FOURS> IV_DEVICE elements<FOUR> load_item(const float *from, int left, bool there, float missing) {
    elements<FOUR> e;
#pragma unroll
    for (int j = 0; j < FOUR; j++) e.at[j] = missing;
    if (FOURS && there && left > 0) e = load<FOUR>(from);
#pragma unroll
    for (int j = 0; j < FOUR && !FOURS; j++)
        if (there && j < left) e.at[j] = from[j];
    return e;
}

/* Missing terms are -0 times 1, which changes no sum. */
template <bool NORM, bool FOURS> IV_DEVICE void load_block(const problem &p, const known &k, block<NORM> &b) {
    int column = (int)blockIdx.x * COLUMNS + copier() % ACROSS * FOUR, left = p.n - column;
    const float *dy = p.dy + column, *x = p.x + column;
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        bool there = k.row[i] >= 0;
        b.dy[i] = load_item<FOURS>(dy + (size_t)(there ? k.row[i] : 0) * p.dy_stride, left, there, -0.0f);
        if constexpr (NORM)
            b.x[i] = load_item<FOURS>(x + (size_t)(there ? k.x_row[i] : 0) * p.x_stride, left, there, 1.0f);
        b.r[i] = NORM && there ? p.r[k.row[i]] : 1.0f;
    }
}

template <bool NORM> IV_DEVICE void store_block(const block<NORM> &b, terms<NORM> &t) {
    int first = copier() % ACROSS * FOUR, group = copier() / ACROSS;
#pragma unroll
    for (int j = 0; j < FOUR; j++) {
        int place = place_in(first + j, group);
        t.dy[first + j][place] = make_float4(b.dy[0].at[j], b.dy[1].at[j], b.dy[2].at[j], b.dy[3].at[j]);
        if constexpr (NORM)
            t.factor[first + j][place] = make_float4(__fmul_rn(b.x[0].at[j], b.r[0]), __fmul_rn(b.x[1].at[j], b.r[1]),
                                                     __fmul_rn(b.x[2].at[j], b.r[2]), __fmul_rn(b.x[3].at[j], b.r[3]));
    }
}

/* Round `round` goes to shared memory; what later rounds need is loaded meanwhile. */
template <bool NORM, bool FOURS>
IV_DEVICE void copy_round(const problem &p, const iv_sum_range &range, uint32_t round, copying<NORM> &c,
                          terms<NORM> &t) {
    store_block(c.now, t);
    load_block<NORM, FOURS>(p, c.then, c.now);
    load_picks<NORM>(p, c.row, c.then);
    load_rows(p, range, round + 3, c.row);
}

template <bool NORM, bool FOURS>
IV_DEVICE void begin_copying(const problem &p, const iv_sum_range &range, copying<NORM> &c) {
    load_rows(p, range, 0, c.row), load_picks<NORM>(p, c.row, c.then);
    load_rows(p, range, 1, c.row), load_block<NORM, FOURS>(p, c.then, c.now);
    load_picks<NORM>(p, c.row, c.then), load_rows(p, range, 2, c.row);
}

/* ---- adding ----------------------------------------------------------------------------------------------------- */

/* Terms of a lane's column that are in registers. */
template <bool NORM> struct waiting {
    float4 dy[AHEAD], factor[NORM ? AHEAD : 1];
};

template <bool NORM> IV_DEVICE void load_group(const terms<NORM> &t, int group, int slot, waiting<NORM> &w) {
    int column = (int)threadIdx.x, place = place_in(column, group % GROUPS);
    w.dy[slot] = t.dy[column][place];
    if constexpr (NORM) w.factor[slot] = t.factor[column][place];
}

template <bool NORM> IV_DEVICE float add_group(const waiting<NORM> &w, int slot, float sum) {
    const float *dy = &w.dy[slot].x, *factor = &w.factor[NORM ? slot : 0].x;
#pragma unroll
    for (int i = 0; i < FOUR; i++) sum = NORM ? __fmaf_rn(dy[i], factor[i], sum) : __fadd_rn(sum, dy[i]);
    return sum;
}

/* Adds at least `tokens` of a round, as far as it has them; terms beyond the range are missing ones. */
template <bool NORM> IV_DEVICE float add_round(const terms<NORM> &t, uint32_t tokens, float sum) {
    waiting<NORM> w;
#pragma unroll
    for (int i = 0; i + 1 < AHEAD; i++) load_group(t, i, i, w);
#pragma unroll 1
    for (int first = 0; first < GROUPS && (uint32_t)first * FOUR < tokens; first += BATCH)
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            load_group(t, first + i + AHEAD - 1, (i + AHEAD - 1) % AHEAD, w);
            sum = add_group(w, i % AHEAD, sum);
        }
    return sum;
}

/* By all threads. At the begin of a round its terms are there, and all readings of the round before are done, whose
 * memory is written next. */
template <bool NORM, bool FOURS>
IV_DEVICE float chain_of(const problem &p, const iv_sum_range &range, terms<NORM> (&t)[2], float sum) {
    uint32_t tokens = range.end - range.begin, rounds = (tokens + ROUND - 1) / ROUND;
    bool adds = threadIdx.x < ADDERS;
    copying<NORM> c;
    if (!adds) begin_copying<NORM, FOURS>(p, range, c);
    for (uint32_t round = 0; round <= rounds; round++) {
        if (!adds && round < rounds) copy_round<NORM, FOURS>(p, range, round, c, t[round % 2]);
        if (threadIdx.x < COLUMNS && round > 0) sum = add_round(t[(round - 1) % 2], tokens - (round - 1) * ROUND, sum);
        __syncthreads();
    }
    return sum;
}

/* The only chain of a column goes to its sum itself. */
static inline __host__ __device__ bool is_alone(const iv_sum_plan &plan) {
    return plan.ranges == 1 && plan.range[0].joins == 0 && plan.range[0].to == IV_SUM_SUM;
}

template <bool NORM, bool FOURS>
static __global__ void __launch_bounds__(THREADS, 2) column_chains(const __grid_constant__ problem p) {
    extern __shared__ __align__(16) char shared[];
    terms<NORM>(&t)[2] = *(terms<NORM>(*)[2])shared;
    const iv_sum_range &range = p.plan.range[blockIdx.y];
    int column = (int)blockIdx.x * COLUMNS + (int)threadIdx.x;
    bool mine = threadIdx.x < COLUMNS && column < p.n;
    iv_let_next();
    iv_wait();
    float *to = p.plan.sums.sum + (mine ? offset_of(p, column) : 0);
    float sum = chain_of<NORM, FOURS>(p, range, t, mine && range.continues ? *to : 0.0f);
    if (!is_alone(p.plan)) to = p.chain + (size_t)blockIdx.y * p.n + column;
    if (mine) *to = iv_canon(sum);
}

/* The chains of a column in order. */
static __global__ void __launch_bounds__(TREE_THREADS) column_tree(const __grid_constant__ problem p) {
    int column = blockIdx.x * TREE_THREADS + threadIdx.x;
    iv_let_next();
    iv_wait();
    if (column >= p.n) return;
    float waiting[IV_VIRTUAL_LEVELS_MAX] = {};
    size_t offset = offset_of(p, column);
    for (int index = 0; index < p.plan.ranges; index++) {
        const iv_sum_range &range = p.plan.range[index];
        float sum = p.chain[(size_t)index * p.n + column];
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level >= range.joins) continue;
            bool sums = range.from_sums >> level & 1;
            sum = __fadd_rn(sums ? p.plan.sums.level[level][offset] : waiting[level], sum);
        }
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level != range.joins) continue;
            if (range.to == IV_SUM_WAITS) waiting[level] = sum;
            if (range.to == IV_SUM_LEVEL) p.plan.sums.level[level][offset] = sum;
        }
        if (range.to == IV_SUM_SUM) p.plan.sums.sum[offset] = sum;
    }
}

size_t iv_gpu_column_sums_scratch(size_t n) { return IV_VIRTUAL_RANKS_MAX * n * sizeof(float); }

template <bool NORM, bool FOURS> static int launch_chains_of(const problem *p, cudaStream_t stream) {
    auto *kernel = column_chains<NORM, FOURS>;
    dim3 grid((unsigned)((p->n + COLUMNS - 1) / COLUMNS), (unsigned)p->plan.ranges);
    int shared = (int)(2 * sizeof(terms<NORM>));
    int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return e ? e : iv_launch_shared(kernel, grid, THREADS, (size_t)shared, stream, *p);
}

template <bool NORM> static int launch_chains(const problem *p, cudaStream_t stream) {
    bool fours = p->n % 4 == 0 && p->dy_stride % 4 == 0 && (uintptr_t)p->dy % 16 == 0;
    if (NORM) fours = fours && p->x_stride % 4 == 0 && (uintptr_t)p->x % 16 == 0;
    return fours ? launch_chains_of<NORM, true>(p, stream) : launch_chains_of<NORM, false>(p, stream);
}

int iv_gpu_column_sums(const iv_gpu_column_sums_args *a, iv_gpu_stream stream) {
    problem p = {};
    bool norm = a->kind == IV_GPU_SUM_NORM;
    if (a->n > INT32_MAX / IV_VIRTUAL_RANKS_MAX || (!norm && a->kind != IV_GPU_SUM_VALUES) || a->later > a->n ||
        !iv_sum_plan_make(a->axis, &a->sums, &p.plan))
        return (int)cudaErrorInvalidValue;
    if (a->n == 0 || p.plan.ranges == 0) return 0;
    p.row = a->row, p.pick = a->pick, p.dy = a->dy, p.x = a->x, p.r = a->r;
    p.dy_stride = a->dy_stride, p.x_stride = a->x_stride, p.n = (int)a->n;
    p.offset = a->offset, p.later = a->later ? (int)a->later : p.n, p.later_offset = a->later_offset;
    p.chain = (float *)a->scratch;
    cudaStream_t s = (cudaStream_t)stream;
    int e = norm ? launch_chains<true>(&p, s) : launch_chains<false>(&p, s);
    unsigned blocks = (unsigned)((a->n + TREE_THREADS - 1) / TREE_THREADS);
    return e || is_alone(p.plan) ? e : iv_launch(column_tree, dim3(blocks), TREE_THREADS, s, p);
}
