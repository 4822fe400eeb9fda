/* column_sums.cu: sums over tokens that are no matrix products (NUMERICS.md 15.3): biases and norm weights. The chains
 * of the virtual ranks of a pass run next to each other, a block for each part and 16 columns; a second kernel adds them
 * in the tree. A launch may have two problems, whose blocks fill the GPU together.
 *
 * A chain is sequential, so its terms must wait for nothing: the first warp of a block only adds, and keeps several
 * tokens ahead in registers. The other warps copy the terms of later rounds to shared memory, asynchronously: nothing
 * but the copies' places limits how many are on their way. Once NaN, a sum stays NaN, so only the ends of chains are
 * made canonical. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime.h>

enum {
    COLUMNS = 16,
    COPIERS = 256, /* threads that copy */
    ADDERS = 32,   /* a warp, a lane for each column */
    THREADS = ADDERS + COPIERS,
    FOUR = 4,                  /* columns of a copier; tokens of a group */
    ACROSS = COLUMNS / FOUR,   /* copiers of a token */
    TOKENS = 2,                /* of a copier */
    APART = COPIERS / ACROSS,  /* from one to the next */
    ROUND = APART * TOKENS,    /* tokens that are added between two barriers */
    GROUPS = ROUND / FOUR,     /* of a round */
    BATCH = 64 / FOUR,         /* groups that are added without a branch */
    AHEAD = 4,                 /* groups in registers */
    FEW_STAGES = 3,            /* rounds in shared memory, if many blocks hide the loads of one another, */
    MANY_STAGES = 6,           /* or if they do not: one is added, the others are on their way */
    ROWS_AHEAD = 12,           /* rounds whose numbers of rows are prefetched */
    PROBLEMS = 2,
    TREE_THREADS = 64
};
static_assert(BATCH % AHEAD == 0 && GROUPS % BATCH == 0, "a group has the same registers in every batch");
static_assert(TOKENS <= ACROSS, "one of a token's copiers copies its factor");

struct problem {
    const int32_t *row, *pick;
    const float *dy, *x, *r; /* x NULL: values */
    size_t dy_stride, x_stride, offset, later_offset;
    int n, later;
    float *chain; /* [part][n] */
};

struct launch {
    iv_sum_plan plan;
    problem p[PROBLEMS];
    unsigned first; /* block of the second problem, of the kernel at hand */
};

/* Terms of a round. */
template <bool NORM> struct terms {
    float dy[ROUND][COLUMNS], x[NORM ? ROUND : 1][COLUMNS];
    float r[NORM ? ROUND : FOUR];
};

/* Missing terms are -0 times 1, which changes no sum. */
static __device__ const float4 minus_zeros = {-0.0f, -0.0f, -0.0f, -0.0f};
static __device__ const float4 ones = {1.0f, 1.0f, 1.0f, 1.0f};

IV_DEVICE size_t place_of(const problem &p, int column) {
    return column < p.later ? p.offset + column : p.later_offset + (column - p.later);
}

/* ---- copying ---------------------------------------------------------------------------------------------------- */

/* A copier's tokens of a round: the row of dy, or -1 if it takes no part; its row of x. */
struct known {
    int32_t row[TOKENS], x_row[TOKENS];
};

/* What a copier knows when it copies round k: rows of x of that round, rows of k + 1. */
struct copying {
    int32_t row[TOKENS];
    known now;
};

IV_DEVICE int copier(void) { return (int)threadIdx.x - ADDERS; }

IV_DEVICE void load_rows(const problem &p, const iv_sum_part &part, uint32_t round, int32_t (&row)[TOKENS]) {
    uint32_t token = part.begin + round * ROUND + copier() / ACROSS;
#pragma unroll
    for (int i = 0; i < TOKENS; i++) row[i] = token + i * APART < part.end ? p.row[token + i * APART] : -1;
    uint32_t ahead = part.begin + (round + ROWS_AHEAD) * ROUND + copier() * 32; /* a line of memory each */
    if (copier() < ROUND / 32 && ahead < part.end) iv_prefetch_l2(&p.row[ahead]);
}

template <bool NORM> IV_DEVICE void load_picks(const problem &p, const int32_t (&row)[TOKENS], known &k) {
#pragma unroll
    for (int i = 0; i < TOKENS; i++)
        k.row[i] = row[i], k.x_row[i] = NORM && row[i] >= 0 && p.pick ? p.pick[row[i]] : row[i];
}

/* To the shared memory of who waits; at once on a GPU without asynchronous copies. */
IV_DEVICE void copy_four(float *to, const float *from) {
#if __CUDA_ARCH__ >= 800
    iv_copy16(iv_shared(to), from, true);
#else
    store<FOUR>(to, load<FOUR>(from));
#endif
}
IV_DEVICE void copy_one(float *to, const float *from) {
#if __CUDA_ARCH__ >= 800
    iv_copy4(iv_shared(to), from);
#else
    *to = *from;
#endif
}
IV_DEVICE void end_group(void) {
#if __CUDA_ARCH__ >= 800
    iv_copies_commit();
#endif
}
template <int PENDING> IV_DEVICE void wait_for_group(void) {
#if __CUDA_ARCH__ >= 800
    iv_copies_wait<PENDING>();
#endif
}

/* Four columns of a row, as much of them as there is, or `missing`. */
template <bool FOURS>
IV_DEVICE void copy_item(float *to, const float *from, int left, bool there, const float *missing) {
    if (FOURS) copy_four(to, there && left > 0 ? from : missing);
#pragma unroll
    for (int j = 0; j < FOUR && !FOURS; j++) to[j] = there && j < left ? from[j] : missing[j];
}

template <bool NORM, bool FOURS> IV_DEVICE void copy_terms(const problem &p, int first, const known &k, terms<NORM> &t) {
    int across = copier() % ACROSS, token = copier() / ACROSS, column = first + across * FOUR, left = p.n - column;
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        bool there = k.row[i] >= 0;
        size_t row = there ? (size_t)k.row[i] : 0, x_row = there ? (size_t)k.x_row[i] : 0;
        int at = token + i * APART;
        copy_item<FOURS>(&t.dy[at][across * FOUR], p.dy + row * p.dy_stride + column, left, there, &minus_zeros.x);
        if constexpr (NORM) {
            copy_item<FOURS>(&t.x[at][across * FOUR], p.x + x_row * p.x_stride + column, left, there, &ones.x);
            if (i == across) copy_one(&t.r[at], there ? p.r + row : &ones.x);
        }
    }
}

/* Copies a round, if there is one; what the next one needs is loaded meanwhile. Each call is a group of copies. */
template <bool NORM, bool FOURS>
IV_DEVICE void copy_round(const problem &p, const iv_sum_part &part, int first, uint32_t round, copying &c,
                          terms<NORM> &t) {
    if (part.begin + round * ROUND < part.end) copy_terms<NORM, FOURS>(p, first, c.now, t);
    end_group();
    load_picks<NORM>(p, c.row, c.now);
    load_rows(p, part, round + 2, c.row);
}

/* ---- adding ----------------------------------------------------------------------------------------------------- */

/* Terms of a lane's column that are in registers. */
template <bool NORM> struct waiting {
    float dy[AHEAD][FOUR], x[NORM ? AHEAD : 1][FOUR];
    float4 r[NORM ? AHEAD : 1];
};

/* The loads stay in program order. The compiler would make them where their values are added. */
template <bool NORM> IV_DEVICE void load_group(const terms<NORM> &t, int group, int slot, waiting<NORM> &w) {
    uint32_t dy = iv_shared(&t.dy[group * FOUR][threadIdx.x]), x = iv_shared(&t.x[NORM ? group * FOUR : 0][threadIdx.x]);
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        w.dy[slot][i] = iv_load_shared(dy + i * (uint32_t)sizeof t.dy[0]);
        if constexpr (NORM) w.x[slot][i] = iv_load_shared(x + i * (uint32_t)sizeof t.x[0]);
    }
    if constexpr (NORM) w.r[slot] = iv_load_shared4(iv_shared(&t.r[group * FOUR]));
}

template <bool NORM> IV_DEVICE float add_group(const waiting<NORM> &w, int slot, float sum) {
    const float *r = &w.r[NORM ? slot : 0].x;
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        sum = NORM ? __fmaf_rn(w.dy[slot][i], __fmul_rn(w.x[NORM ? slot : 0][i], r[i]), sum)
                   : __fadd_rn(sum, w.dy[slot][i]);
    return sum;
}

/* Adds at least `tokens` of a round, as far as it has them; terms beyond the part are missing ones. */
template <bool NORM> IV_DEVICE float add_round(const terms<NORM> &t, uint32_t tokens, float sum) {
    waiting<NORM> w;
#pragma unroll
    for (int i = 0; i + 1 < AHEAD; i++) load_group(t, i, i, w);
#pragma unroll 1
    for (int first = 0; first < GROUPS && (uint32_t)first * FOUR < tokens; first += BATCH) {
        int next = (first + BATCH) % GROUPS; /* what is loaded last in a round is not used */
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int later = i + AHEAD - 1;
            load_group(t, later < BATCH ? first + later : next + later - BATCH, later % AHEAD, w);
            sum = add_group(w, i % AHEAD, sum);
        }
    }
    return sum;
}

/* By all threads. Behind the barrier of a round its terms are there, and all readings of the round before are done,
 * whose memory is written next. */
template <bool NORM, bool FOURS, int STAGES>
IV_DEVICE float chain_of(const problem &p, const iv_sum_part &part, int first, char *shared, float sum) {
    terms<NORM>(&t)[STAGES] = *(terms<NORM>(*)[STAGES])shared;
    uint32_t tokens = part.end - part.begin, rounds = (tokens + ROUND - 1) / ROUND;
    bool adds = threadIdx.x < ADDERS;
    copying c;
    if (!adds) {
        load_rows(p, part, 0, c.row), load_picks<NORM>(p, c.row, c.now), load_rows(p, part, 1, c.row);
#pragma unroll
        for (uint32_t round = 0; round + 1 < STAGES; round++)
            copy_round<NORM, FOURS>(p, part, first, round, c, t[round]);
    }
#pragma unroll 1
    for (uint32_t round = 0, stage = 0; round < rounds; round++) {
        if (!adds) wait_for_group<STAGES - 2>();
        __syncthreads();
        uint32_t free = stage == 0 ? STAGES - 1 : stage - 1;
        if (!adds) copy_round<NORM, FOURS>(p, part, first, round + STAGES - 1, c, t[free]);
        if (threadIdx.x < COLUMNS) sum = add_round(t[stage], tokens - round * ROUND, sum);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    return sum;
}

/* The only chain of a column goes to its sum itself. */
static inline __host__ __device__ bool is_alone(const iv_sum_plan &plan) {
    return plan.parts == 1 && plan.part[0].joins == 0 && plan.part[0].to == IV_SUM_SUM;
}

/* The block's problem, and its place in it. */
IV_DEVICE const problem &problem_of(const launch &l, int *block) {
    bool second = blockIdx.x >= l.first;
    *block = (int)(second ? blockIdx.x - l.first : blockIdx.x);
    return second ? l.p[1] : l.p[0];
}

template <bool FOURS, int STAGES>
static __global__ void __launch_bounds__(THREADS, 3) column_chains(const __grid_constant__ launch l) {
    extern __shared__ __align__(16) char shared[];
    const iv_sum_part &part = l.plan.part[blockIdx.y];
    int block, column;
    const problem p = problem_of(l, &block);
    column = block * COLUMNS + (int)threadIdx.x;
    bool mine = threadIdx.x < COLUMNS && column < p.n;
    iv_let_next();
    iv_wait();
    float *to = l.plan.sums.sum + (mine ? place_of(p, column) : 0), sum = mine && part.continues ? *to : 0.0f;
    sum = p.x ? chain_of<true, FOURS, STAGES>(p, part, block * COLUMNS, shared, sum)
              : chain_of<false, FOURS, STAGES>(p, part, block * COLUMNS, shared, sum);
    if (!is_alone(l.plan)) to = p.chain + (size_t)blockIdx.y * p.n + column;
    if (mine) *to = iv_canon(sum);
}

/* The chains of a column in order. */
static __global__ void __launch_bounds__(TREE_THREADS) column_tree(const __grid_constant__ launch l) {
    int block;
    const problem p = problem_of(l, &block);
    int column = block * TREE_THREADS + threadIdx.x;
    iv_let_next();
    iv_wait();
    if (column >= p.n) return;
    float waiting[IV_VIRTUAL_LEVELS_MAX] = {};
    size_t place = place_of(p, column);
    for (int index = 0; index < l.plan.parts; index++) {
        const iv_sum_part &part = l.plan.part[index];
        float sum = p.chain[(size_t)index * p.n + column];
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level >= part.joins) continue;
            bool sums = part.from_sums >> level & 1;
            sum = __fadd_rn(sums ? l.plan.sums.level[level][place] : waiting[level], sum);
        }
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level != part.joins) continue;
            if (part.to == IV_SUM_WAITS) waiting[level] = sum;
            if (part.to == IV_SUM_LEVEL) l.plan.sums.level[level][place] = sum;
        }
        if (part.to == IV_SUM_SUM) l.plan.sums.sum[place] = sum;
    }
}

size_t iv_gpu_column_sums_scratch(size_t n) { return IV_VIRTUAL_RANKS_MAX * n * sizeof(float); }

static bool has_fours(const problem *p) {
    bool fours = p->n % 4 == 0 && p->dy_stride % 4 == 0 && (uintptr_t)p->dy % 16 == 0;
    return fours && (!p->x || (p->x_stride % 4 == 0 && (uintptr_t)p->x % 16 == 0));
}

/* Blocks of both problems, of so many columns. */
static unsigned blocks_of(launch *l, int columns) {
    l->first = (unsigned)((l->p[0].n + columns - 1) / columns);
    return l->first + (unsigned)((l->p[1].n + columns - 1) / columns);
}

template <int STAGES> static int launch_chains_of(const launch *l, dim3 grid, cudaStream_t stream) {
    auto *kernel = has_fours(&l->p[0]) && has_fours(&l->p[1]) ? column_chains<true, STAGES> : column_chains<false, STAGES>;
    int shared = STAGES * (int)(l->p[0].x || l->p[1].x ? sizeof(terms<true>) : sizeof(terms<false>));
    int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return e ? e : iv_launch_shared(kernel, grid, THREADS, (size_t)shared, stream, *l);
}

static int launch_chains(launch *l, cudaStream_t stream) {
    dim3 grid(blocks_of(l, COLUMNS), (unsigned)l->plan.parts);
    bool few = iv_overlaps() && (size_t)grid.x * grid.y <= 2 * (size_t)iv_multiprocessors();
    return few ? launch_chains_of<MANY_STAGES>(l, grid, stream) : launch_chains_of<FEW_STAGES>(l, grid, stream);
}

/* False if the arguments are invalid. */
static bool make_problem(const iv_gpu_column_sums_args *a, problem *p) {
    bool norm = a->kind == IV_GPU_SUM_NORM;
    if (a->n > INT32_MAX / IV_VIRTUAL_RANKS_MAX || (!norm && a->kind != IV_GPU_SUM_VALUES) || a->later > a->n)
        return false;
    p->row = a->row, p->pick = norm ? a->pick : NULL, p->dy = a->dy, p->x = norm ? a->x : NULL, p->r = a->r;
    p->dy_stride = a->dy_stride, p->x_stride = a->x_stride, p->n = (int)a->n;
    p->offset = a->offset, p->later = a->later ? (int)a->later : p->n, p->later_offset = a->later_offset;
    p->chain = (float *)a->scratch;
    return true;
}

int iv_gpu_column_sums(const iv_gpu_column_sums_args *a, iv_gpu_stream stream) {
    launch l = {};
    const iv_gpu_column_sums_args *b = a->second;
    if (!make_problem(a, &l.p[0]) || (b && (b->axis != a->axis || !make_problem(b, &l.p[1]))) ||
        !iv_sum_plan_make(a->axis, &a->sums, &l.plan))
        return (int)cudaErrorInvalidValue;
    if (l.p[0].n + l.p[1].n == 0 || l.plan.parts == 0) return 0;
    cudaStream_t s = (cudaStream_t)stream;
    int e = launch_chains(&l, s);
    if (e || is_alone(l.plan)) return e;
    unsigned blocks = blocks_of(&l, TREE_THREADS);
    return iv_launch(column_tree, dim3(blocks), TREE_THREADS, s, l);
}
