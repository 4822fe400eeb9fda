/* column_sums.cu: sums over tokens that are no matrix products (NUMERICS.md 15.3): biases and norm weights. The chains
 * of the virtual ranks of a pass run next to each other, a block for each part and 32 columns; a second kernel adds them
 * in the tree. A chain is sequential, so its terms must not wait for memory: all threads of a block copy tiles of tokens
 * to a ring in shared memory, some tiles ahead of the one warp that adds them. Once NaN, a sum stays NaN, so only the
 * ends of chains are made canonical. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime.h>

enum {
    THREADS = 256,
    COLUMNS = 32,
    TOKENS = 32,                /* of a tile */
    BATCH = 16,                 /* tokens whose terms are in registers */
    STAGES = 8,                 /* of the ring */
    GROUP = THREADS / TOKENS,   /* tiles whose rows are known together */
    ACROSS = COLUMNS / 4,       /* threads that copy a token's columns, four each */
    TREE_THREADS = 64
};
static_assert(STAGES <= GROUP && TOKENS * ACROSS == THREADS, "two groups of rows suffice; a thread has an item of a tile");

struct problem {
    iv_sum_plan plan;
    const int32_t *row, *pick;
    const float *dy, *x, *r;
    size_t dy_stride, x_stride, offset;
    int n;
    float *chain; /* [part][n] */
};

template <bool NORM> struct ring {
    float dy[STAGES][TOKENS][COLUMNS], x[NORM ? STAGES : 1][TOKENS][COLUMNS];
    /* Of two groups of tiles: the token's row of dy, or -1 if it takes no part; its row of x; its factor. */
    int32_t row[2][THREADS], x_row[2][THREADS];
    float r[2][THREADS];
};

/* A thread's token of a group that is on its way. */
struct coming {
    int32_t row, x_row;
    float r;
};

IV_DEVICE void load_row(const problem &p, const iv_sum_part &part, uint32_t group, coming &c) {
    uint32_t token = part.begin + group * THREADS + threadIdx.x;
    c.row = token < part.end ? p.row[token] : -1;
}

template <bool NORM> IV_DEVICE void load_factor(const problem &p, coming &c) {
    c.x_row = NORM && p.pick && c.row >= 0 ? p.pick[c.row] : c.row;
    c.r = NORM && c.row >= 0 ? p.r[c.row] : 1.0f;
}

template <bool NORM> IV_DEVICE void store_row(ring<NORM> &m, uint32_t group, const coming &c) {
    m.row[group % 2][threadIdx.x] = c.row, m.x_row[group % 2][threadIdx.x] = c.x_row;
    m.r[group % 2][threadIdx.x] = c.r;
}

/* A copy to shared memory, which the commit's wait ends. Before compute capability 8.0 it is done at once. */
IV_DEVICE void copy_four(float *to, const float *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(16u)
                 : "memory");
#else
    store<4>(to, load<4>(from));
#endif
}
IV_DEVICE void copies_commit(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> IV_DEVICE void copies_wait(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/* Four columns of a row, or `missing`, as much of them as there is. */
template <bool FOURS>
IV_DEVICE void copy_item(float *to, const float *from, int left, bool there, float missing) {
    if (FOURS && there && left > 0) return copy_four(to, from);
#pragma unroll
    for (int j = 0; j < 4; j++) to[j] = there && j < left ? from[j] : missing;
}

/* Missing terms are -0 times 1, which changes no sum. */
template <bool NORM, bool FOURS> IV_DEVICE void copy_tile(const problem &p, ring<NORM> &m, uint32_t tile) {
    int token = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS * 4, column = (int)blockIdx.x * COLUMNS + across;
    int at = (int)(tile % GROUP) * TOKENS + token, group = (int)(tile / GROUP % 2), stage = (int)(tile % STAGES);
    int32_t row = m.row[group][at], x_row = m.x_row[group][at];
    bool there = row >= 0;
    copy_item<FOURS>(&m.dy[stage][token][across], p.dy + (size_t)(there ? row : 0) * p.dy_stride + column, p.n - column,
                     there, -0.0f);
    if constexpr (NORM)
        copy_item<FOURS>(&m.x[stage][token][across], p.x + (size_t)(there ? x_row : 0) * p.x_stride + column,
                         p.n - column, there, 1.0f);
}

/* The terms of BATCH tokens, in registers: the next ones are loaded before these are added, because a load from shared
 * memory takes as long as several additions. __syncwarp keeps the compiler from loading each term where it is added. */
template <bool NORM> struct batch {
    float dy[BATCH], x[NORM ? BATCH : 1];
};

template <bool NORM> IV_DEVICE void load_batch(const ring<NORM> &m, uint32_t tile, int first, batch<NORM> &b) {
    const float *r = &m.r[tile / GROUP % 2][tile % GROUP * TOKENS + first];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        b.dy[i] = m.dy[tile % STAGES][first + i][threadIdx.x];
        if constexpr (NORM) b.x[i] = __fmul_rn(m.x[tile % STAGES][first + i][threadIdx.x], r[i]);
    }
}

/* By one warp. */
template <bool NORM> IV_DEVICE float add_tile(const ring<NORM> &m, uint32_t tile, float sum) {
    batch<NORM> now, next;
    load_batch(m, tile, 0, next);
#pragma unroll
    for (int first = 0; first < TOKENS; first += BATCH) {
        now = next;
        if (first + BATCH < TOKENS) load_batch(m, tile, first + BATCH, next);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            sum = NORM ? __fmaf_rn(now.dy[i], now.x[NORM ? i : 0], sum) : __fadd_rn(sum, now.dy[i]);
    }
    return sum;
}

/* What the copy of tile `tile` needs is loaded meanwhile: the rows of the next group, their picks and factors. */
template <bool NORM, bool FOURS>
IV_DEVICE void copy_ahead(const problem &p, const iv_sum_part &part, ring<NORM> &m, uint32_t tile, coming &c) {
    copy_tile<NORM, FOURS>(p, m, tile);
    copies_commit();
    if (tile % GROUP == 0) load_row(p, part, tile / GROUP + 1, c);
    if (tile % GROUP == GROUP / 2) load_factor<NORM>(p, c);
    if (tile % GROUP == GROUP - 1) store_row(m, tile / GROUP + 1, c);
}

template <bool NORM, bool FOURS>
static __global__ void __launch_bounds__(THREADS) column_chains(const __grid_constant__ problem p) {
    extern __shared__ __align__(16) char shared[];
    ring<NORM> &m = *(ring<NORM> *)shared;
    const iv_sum_part &part = p.plan.part[blockIdx.y];
    uint32_t tiles = (part.end - part.begin + TOKENS - 1) / TOKENS, ahead = STAGES - 1;
    int column = (int)blockIdx.x * COLUMNS + (int)threadIdx.x;
    bool adds = threadIdx.x < COLUMNS;
    coming c;
    iv_let_next();
    iv_wait();
    float sum = adds && column < p.n && part.continues ? p.plan.sums.sum[p.offset + column] : 0.0f;
    load_row(p, part, 0, c), load_factor<NORM>(p, c), store_row(m, 0, c);
    __syncthreads();
    for (uint32_t tile = 0; tile < ahead; tile++) copy_ahead<NORM, FOURS>(p, part, m, tile, c);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* it is also behind all readings of the stage that is copied next */
        copy_ahead<NORM, FOURS>(p, part, m, tile + ahead, c);
        if (adds) sum = add_tile(m, tile, sum);
    }
    copies_wait<0>();
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
    auto *kernel = fours ? column_chains<NORM, true> : column_chains<NORM, false>;
    int shared = (int)sizeof(ring<NORM>);
    int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    dim3 grid((unsigned)((p->n + COLUMNS - 1) / COLUMNS), (unsigned)p->plan.parts);
    return e ? e : iv_launch_shared(kernel, grid, THREADS, (size_t)shared, stream, *p);
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
