/* column_sums.cu: sums over tokens that are no matrix products (NUMERICS.md 15.3): biases and norm weights. The chains
 * of the virtual ranks of a pass run next to each other, a block for each part and 32 columns; a second kernel adds them
 * in the tree. A chain is sequential, so its terms must wait for nothing: the first warp of a block only adds, from
 * registers, and loads the terms that follow meanwhile; the other warps copy tiles of tokens to a ring in shared
 * memory, some tiles ahead. Once NaN, a sum stays NaN, so only the ends of chains are made canonical. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime.h>

enum {
    COLUMNS = 32,
    COPIERS = 128, /* threads that copy */
    THREADS = COLUMNS + COPIERS,
    TOKENS = 64,                 /* of a tile */
    BATCH = 16,                  /* tokens whose terms are in registers */
    KNOWN = 256,                 /* tokens of a group, whose rows are loaded together */
    GROUP = KNOWN / TOKENS,      /* tiles of a group */
    GROUPS = 4,                  /* whose rows are in shared memory */
    OWN = KNOWN / COPIERS,       /* tokens of a group whose rows a thread loads */
    ACROSS = COLUMNS / 4,        /* threads that copy a token's columns, four each */
    TOGETHER = COPIERS / ACROSS, /* tokens that are copied at a time */
    STAGES_MAX = 8,              /* tiles of the ring */
    STAGES_MIN = 4,              /* where a multiprocessor has several blocks */
    TREE_THREADS = 64
};
static_assert(STAGES_MAX <= 2 * GROUP && TOKENS % TOGETHER == 0, "rows are known ahead; a thread has whole items");

struct problem {
    iv_sum_plan plan;
    const int32_t *row, *pick;
    const float *dy, *x, *r;
    size_t dy_stride, x_stride, offset, later_offset;
    int n, later;
    float *chain; /* [part][n] */
};

template <bool NORM, int STAGES> struct ring {
    float dy[STAGES * TOKENS][COLUMNS], x[NORM ? STAGES * TOKENS : 1][COLUMNS];
};

/* Of tokens: the row of dy, or -1 if it takes no part; its row of x; its factor. */
struct known {
    int32_t row[GROUPS][KNOWN], x_row[GROUPS][KNOWN];
    float r[GROUPS][KNOWN];
};

/* A thread's tokens of a group that is on its way. */
struct coming {
    int32_t row[OWN], x_row[OWN];
    float r[OWN];
};

IV_DEVICE size_t place_of(const problem &p, int column) {
    return column < p.later ? p.offset + column : p.later_offset + (column - p.later);
}

IV_DEVICE int copier(void) { return (int)threadIdx.x - COLUMNS; }

IV_DEVICE void load_rows(const problem &p, const iv_sum_part &part, uint32_t group, coming &c) {
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        uint32_t token = part.begin + group * KNOWN + j * COPIERS + copier();
        c.row[j] = token < part.end ? p.row[token] : -1;
    }
}

template <bool NORM> IV_DEVICE void load_factors(const problem &p, coming &c) {
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        bool there = NORM && c.row[j] >= 0;
        c.x_row[j] = there && p.pick ? p.pick[c.row[j]] : c.row[j];
        c.r[j] = there ? p.r[c.row[j]] : 1.0f;
    }
}

IV_DEVICE void store_rows(known &k, uint32_t group, const coming &c) {
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        int at = j * COPIERS + copier();
        k.row[group % GROUPS][at] = c.row[j], k.x_row[group % GROUPS][at] = c.x_row[j];
        k.r[group % GROUPS][at] = c.r[j];
    }
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

/* Missing terms are -0 times 1, which changes no sum. A thread that has all of its terms copies them without a branch for
 * each: copies would wait for one another. */
template <bool NORM, bool FOURS, int STAGES>
IV_DEVICE void copy_tile(const problem &p, ring<NORM, STAGES> &m, const known &k, uint32_t tile) {
    constexpr int EACH = TOKENS / TOGETHER;
    int across = copier() % ACROSS * 4, left = p.n - (int)blockIdx.x * COLUMNS - across;
    int first = copier() / ACROSS, at = (int)(tile % GROUP) * TOKENS + first, group = (int)(tile / GROUP % GROUPS);
    int place = (int)(tile % STAGES) * TOKENS + first;
    const float *dy = p.dy + (p.n - left), *x = p.x + (p.n - left);
    int32_t row[EACH], x_row[EACH];
    bool whole = FOURS && left > 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        row[i] = k.row[group][at + i * TOGETHER], x_row[i] = NORM ? k.x_row[group][at + i * TOGETHER] : 0;
        whole = whole && row[i] >= 0;
    }
    if (whole) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            copy_four(&m.dy[place + i * TOGETHER][across], dy + (size_t)row[i] * p.dy_stride);
            if constexpr (NORM) copy_four(&m.x[place + i * TOGETHER][across], x + (size_t)x_row[i] * p.x_stride);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool there = row[i] >= 0;
        copy_item<FOURS>(&m.dy[place + i * TOGETHER][across], dy + (size_t)(there ? row[i] : 0) * p.dy_stride, left,
                         there, -0.0f);
        if constexpr (NORM)
            copy_item<FOURS>(&m.x[place + i * TOGETHER][across], x + (size_t)(there ? x_row[i] : 0) * p.x_stride, left,
                             there, 1.0f);
    }
}

/* What the copy of a later tile needs is loaded meanwhile: the rows of the next group, their picks and factors. */
template <bool NORM, bool FOURS, int STAGES>
IV_DEVICE void copy_ahead(const problem &p, const iv_sum_part &part, ring<NORM, STAGES> &m, known &k, uint32_t tile,
                          coming &c) {
    copy_tile<NORM, FOURS>(p, m, k, tile);
    copies_commit();
    if (tile % GROUP == 0) load_rows(p, part, tile / GROUP + 1, c);
    if (tile % GROUP == GROUP / 2) load_factors<NORM>(p, c);
    if (tile % GROUP == GROUP - 1) store_rows(k, tile / GROUP + 1, c);
}

/* The terms of BATCH tokens, in registers. */
template <bool NORM> struct batch {
    float dy[BATCH], x[NORM ? BATCH : 1], r[NORM ? BATCH : 1];
};

/* Where a batch of the chain begins for this thread: bytes from the begin of the ring's dy and x, and of the factors. */
struct cursor {
    uint32_t terms, factors;
};

template <int STAGES> IV_DEVICE cursor cursor_of(uint32_t batch) {
    uint32_t at = batch * BATCH;
    return {(at % (STAGES * TOKENS) * COLUMNS + threadIdx.x) * 4, at % (GROUPS * KNOWN) * 4};
}

template <bool NORM, int STAGES>
IV_DEVICE void load_batch(const ring<NORM, STAGES> &m, const known &k, cursor c, batch<NORM> &b) {
    const char *dy = (const char *)m.dy + c.terms, *x = (const char *)m.x + c.terms, *r = (const char *)k.r + c.factors;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        b.dy[i] = ((const float *)dy)[i * COLUMNS];
        if constexpr (NORM) b.x[i] = ((const float *)x)[i * COLUMNS], b.r[i] = ((const float *)r)[i];
    }
}

template <bool NORM> IV_DEVICE float add_batch(const batch<NORM> &b, float sum) {
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if constexpr (NORM)
            sum = __fmaf_rn(b.dy[i], __fmul_rn(b.x[i], b.r[i]), sum);
        else
            sum = __fadd_rn(sum, b.dy[i]);
    return sum;
}

/* The chain of a column: its sum, batches of terms, the batch that is loaded next. */
template <bool NORM> struct adding {
    batch<NORM> even, odd;
    cursor next;
    uint32_t batches;
    float sum;
};

/* Each batch is loaded while the one before it is added: a load from shared memory takes as long as several additions.
 * If the compiler knew which batch comes next, it would load each term where it is added, to save registers, so that is
 * hidden from it, and the two branches differ, so that it does not join them. */
template <bool NORM, int STAGES>
IV_DEVICE void add_tile(const ring<NORM, STAGES> &m, const known &k, adding<NORM> &a) {
#pragma unroll 1
    for (int i = 0; i < TOKENS / BATCH; i++) {
        cursor now = a.next;
        uint32_t parity = a.batches % 2;
        a.next = cursor_of<STAGES>(++a.batches);
        asm volatile("" : "+r"(parity));
        if (parity) {
            asm volatile("" : "+r"(now.terms), "+r"(now.factors));
            load_batch(m, k, now, a.odd);
            a.sum = add_batch(a.even, a.sum);
        } else {
            asm volatile("" : "+r"(now.terms));
            load_batch(m, k, now, a.even);
            a.sum = add_batch(a.odd, a.sum);
        }
    }
}

/* By all threads. At the begin of round `tile` this tile and the next one are there, and all readings of tile - 1 are
 * done, whose stage is copied next. */
template <bool NORM, bool FOURS, int STAGES>
IV_DEVICE float chain_of(const problem &p, const iv_sum_part &part, ring<NORM, STAGES> &m, known &k, float sum) {
    uint32_t tiles = (part.end - part.begin + TOKENS - 1) / TOKENS;
    bool adds = threadIdx.x < COLUMNS;
    coming c;
    adding<NORM> a;
    a.next = cursor_of<STAGES>(1), a.batches = 1, a.sum = sum;
    if (!adds) load_rows(p, part, 0, c), load_factors<NORM>(p, c), store_rows(k, 0, c);
    for (uint32_t tile = 0; tile + 1 < STAGES; tile++) {
        if (tile % GROUP == 0) __syncthreads();
        if (!adds) copy_ahead<NORM, FOURS>(p, part, m, k, tile, c);
    }
    if (!adds) copies_wait<STAGES - 2>();
    __syncthreads();
    if (adds) load_batch(m, k, cursor_of<STAGES>(0), a.even);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        if (!adds) copies_wait<STAGES - 3>();
        __syncthreads();
        if (adds)
            add_tile(m, k, a);
        else
            copy_ahead<NORM, FOURS>(p, part, m, k, tile + STAGES - 1, c);
    }
    copies_wait<0>();
    return a.sum;
}

/* The only chain of a column goes to its sum itself. */
static inline __host__ __device__ bool is_alone(const iv_sum_plan &plan) {
    return plan.parts == 1 && plan.part[0].joins == 0 && plan.part[0].to == IV_SUM_SUM;
}

template <bool NORM, bool FOURS, int STAGES>
static __global__ void __launch_bounds__(THREADS) column_chains(const __grid_constant__ problem p) {
    extern __shared__ __align__(16) char shared[];
    known &k = *(known *)shared;
    ring<NORM, STAGES> &m = *(ring<NORM, STAGES> *)(shared + sizeof k);
    const iv_sum_part &part = p.plan.part[blockIdx.y];
    int column = (int)blockIdx.x * COLUMNS + (int)threadIdx.x;
    bool mine = threadIdx.x < COLUMNS && column < p.n;
    iv_let_next();
    iv_wait();
    float *to = p.plan.sums.sum + place_of(p, column);
    float sum = chain_of<NORM, FOURS>(p, part, m, k, mine && part.continues ? *to : 0.0f);
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
    size_t place = place_of(p, column);
    for (int index = 0; index < p.plan.parts; index++) {
        const iv_sum_part &part = p.plan.part[index];
        float sum = p.chain[(size_t)index * p.n + column];
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level >= part.joins) continue;
            bool sums = part.from_sums >> level & 1;
            sum = __fadd_rn(sums ? p.plan.sums.level[level][place] : waiting[level], sum);
        }
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level != part.joins) continue;
            if (part.to == IV_SUM_WAITS) waiting[level] = sum;
            if (part.to == IV_SUM_LEVEL) p.plan.sums.level[level][place] = sum;
        }
        if (part.to == IV_SUM_SUM) p.plan.sums.sum[place] = sum;
    }
}

size_t iv_gpu_column_sums_scratch(size_t n) { return IV_VIRTUAL_RANKS_MAX * n * sizeof(float); }

template <bool NORM, bool FOURS, int STAGES> static int launch_stages(const problem *p, dim3 grid, cudaStream_t stream) {
    auto *kernel = column_chains<NORM, FOURS, STAGES>;
    int shared = (int)(sizeof(known) + sizeof(ring<NORM, STAGES>));
    int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return e ? e : iv_launch_shared(kernel, grid, THREADS, (size_t)shared, stream, *p);
}

/* Few blocks, which wait for memory alone on a multiprocessor, have more on its way. */
template <bool NORM> static int launch_chains(const problem *p, cudaStream_t stream) {
    enum { FEW = 128 };
    dim3 grid((unsigned)((p->n + COLUMNS - 1) / COLUMNS), (unsigned)p->plan.parts);
    bool fours = p->n % 4 == 0 && p->dy_stride % 4 == 0 && (uintptr_t)p->dy % 16 == 0;
    if (NORM) fours = fours && p->x_stride % 4 == 0 && (uintptr_t)p->x % 16 == 0;
    if (!fours) return launch_stages<NORM, false, STAGES_MIN>(p, grid, stream);
    return grid.x * grid.y <= FEW ? launch_stages<NORM, true, STAGES_MAX>(p, grid, stream)
                                  : launch_stages<NORM, true, STAGES_MIN>(p, grid, stream);
}

int iv_gpu_column_sums(const iv_gpu_column_sums_args *a, iv_gpu_stream stream) {
    problem p = {};
    bool norm = a->kind == IV_GPU_SUM_NORM;
    if (a->n > INT32_MAX / IV_VIRTUAL_RANKS_MAX || (!norm && a->kind != IV_GPU_SUM_VALUES) || a->later > a->n ||
        !iv_sum_plan_make(a->axis, &a->sums, &p.plan))
        return (int)cudaErrorInvalidValue;
    if (a->n == 0 || p.plan.parts == 0) return 0;
    p.row = a->row, p.pick = a->pick, p.dy = a->dy, p.x = a->x, p.r = a->r;
    p.dy_stride = a->dy_stride, p.x_stride = a->x_stride, p.n = (int)a->n;
    p.offset = a->offset, p.later = a->later ? (int)a->later : p.n, p.later_offset = a->later_offset;
    p.chain = (float *)a->scratch;
    cudaStream_t s = (cudaStream_t)stream;
    int e = norm ? launch_chains<true>(&p, s) : launch_chains<false>(&p, s);
    unsigned blocks = (unsigned)((a->n + TREE_THREADS - 1) / TREE_THREADS);
    return e || is_alone(p.plan) ? e : iv_launch(column_tree, dim3(blocks), TREE_THREADS, s, p);
}
