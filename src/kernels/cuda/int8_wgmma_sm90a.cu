/* int8_wgmma_sm90a.cu: int8 layers on Hopper's wgmma. Weights are the 64-row operand, rows of codes the other: codes h
 * and l of a row are neighboring columns, so that a lane has both of their sums and weights are loaded once for both.
 *
 * One thread fills a ring of stages by TMA, 128 k at a time: weights [128][128], codes [QN][128]. Two warpgroups have
 * 64 outputs each and one accumulator. int32 sums are exact, so there are no leaves, and where tiles are few the CTAs
 * of a cluster divide K and add their sums through distributed shared memory in any order. */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_swiglu.cuh"

#include <math.h>

enum {
    WG8_N = 128, /* outputs of a tile */
    WG8_K = 128, /* of a stage, as bytes */
    WG8_CONSUMERS = 256,
    WG8_RING_MAX = 12,
    WG8_SHARED_MAX = 227 * 1024,
    WG8_BAND = 8, /* tiles of rows whose products use the same weights one after another */
    WG8_SPLIT_MAX = 8,
    WG8_MULTIPROCESSORS = 132
};

typedef struct wg8_plan {
    iv_int8_problem p;
    int columns; /* rows of codes */
    int blocks;  /* of K */
    int split, stages, weight_tiles, column_tiles, tiles;
    uint64_t weights_l2;
} wg8_plan;

/* ---- wgmma --------------------------------------------------------------------------------------------------------
 */

#define WG8_D4(d, i) "+r"((d)[i]), "+r"((d)[i + 1]), "+r"((d)[i + 2]), "+r"((d)[i + 3])
#define WG8_D8(d, i) WG8_D4(d, i), WG8_D4(d, i + 4)
#define WG8_D16(d, i) WG8_D8(d, i), WG8_D8(d, i + 8)
#define WG8_D32(d, i) WG8_D16(d, i), WG8_D16(d, i + 16)
#define WG8_D64(d, i) WG8_D32(d, i), WG8_D32(d, i + 32)
#define WG8_D128(d, i) WG8_D64(d, i), WG8_D64(d, i + 64)
#define WG8_ASM(N, LIST, OPS, A, B, S)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" LIST "}, %" #A ", %" #B ", p;\n}\n" \
                 : OPS                                                                                        \
                 : "l"(a), "l"(b), "r"(add))

/* d = (add ? d : 0) + A B^T, a step of 32 k. */
template <int COUNT> IV_DEVICE void wg8_multiply(int (&d)[COUNT], uint64_t a, uint64_t b, int add) {
    if constexpr (COUNT == 8)
        WG8_ASM(16, IV_WG_L1, WG8_D8(d, 0), 8, 9, 10);
    else if constexpr (COUNT == 16)
        WG8_ASM(32, IV_WG_L2, WG8_D16(d, 0), 16, 17, 18);
    else if constexpr (COUNT == 32)
        WG8_ASM(64, IV_WG_L4, WG8_D32(d, 0), 32, 33, 34);
    else if constexpr (COUNT == 64)
        WG8_ASM(128, IV_WG_L8, WG8_D64(d, 0), 64, 65, 66);
    else {
        static_assert(COUNT == 128, "no wgmma of this size here");
        WG8_ASM(256, IV_WG_L16, WG8_D128(d, 0), 128, 129, 130);
    }
}

template <int COUNT> IV_DEVICE void wg8_hold(int (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------
 */

struct wg8_tile {
    int n, column; /* its first */
};

template <int QN> IV_DEVICE wg8_tile wg8_tile_at(const wg8_plan &p, int at) {
    int band = at / (WG8_BAND * p.weight_tiles), rest = at - band * WG8_BAND * p.weight_tiles,
        height = min(WG8_BAND, p.column_tiles - band * WG8_BAND);
    return {rest / height * WG8_N, (band * WG8_BAND + rest % height) * QN};
}

template <int TERMS_, int QN_, iv_dtype TYPE_> struct wg8_shape {
    static constexpr int TERMS = TERMS_, QN = QN_, COUNT = QN / 2, CHUNKS = QN / 8;
    static constexpr iv_dtype TYPE = TYPE_;
    static constexpr int WEIGHT_BYTES = WG8_N * WG8_K, STAGE = WEIGHT_BYTES + QN * WG8_K;
    static constexpr int CTAS = QN <= 64 ? 2 : 1;                                     /* on a multiprocessor */
    static constexpr int BATCH = TERMS == 1 ? (QN >= 128 ? 4 : 2) : QN >= 32 ? 4 : 2; /* chunks of an epilogue's turn */
    /* a launch has 168 registers a thread: of large accumulators the producer's warpgroup gives some away */
    static constexpr bool MOVED = QN == 256;
    static constexpr int THREADS = WG8_CONSUMERS + (MOVED ? 128 : 32);
    static constexpr int ROWS = QN / TERMS, SCALES = (ROWS + 31) / 32; /* of rows, that a lane loads */
    static constexpr int SCALE_BYTES = WG8_CONSUMERS / 32 * ROWS * 4;  /* each warp has a copy */
};

typedef void (*wg8_function)(CUtensorMap, CUtensorMap, wg8_plan);
struct wg8_instance {
    int terms, columns, stage, root, ctas, threads, scales;
    iv_dtype type;
    wg8_function kernel;
};

/* Blocks of K of a CTA of the cluster: [first, last). */
struct wg8_range {
    int first, last;
};
IV_DEVICE wg8_range wg8_range_of(const wg8_plan &p, int rank) {
    return {p.blocks * rank / p.split, p.blocks * (rank + 1) / p.split};
}

/* ---- the producer ------------------------------------------------------------------------------------------------ */

/* One thread. Weights do not depend on the preceding kernel: the ring fills with the first tile's while that ends. */
template <class S>
IV_DEVICE void wg8_produce(const CUtensorMap *w, const CUtensorMap *x, const wg8_plan &p, uint32_t ring, uint32_t full,
                           uint32_t empty, int first, int step, wg8_range k) {
    int early = min(p.stages, k.last - k.first), round = 0, stage = 0, phase = 0;
    for (int i = 0; i < early && first < p.tiles; i++) {
        iv_mbar_expect(full + 8 * i, S::STAGE);
        iv_tma_load_2d(ring + i * S::STAGE, w, full + 8 * i, (k.first + i) * WG8_K, wg8_tile_at<S::QN>(p, first).n,
                       p.weights_l2);
    }
    iv_wait();
    for (int at = first; at < p.tiles; at += step) {
        wg8_tile t = wg8_tile_at<S::QN>(p, at);
        for (int block = k.first; block < k.last; block++, round++) {
            uint32_t to = ring + stage * S::STAGE, bar = full + 8 * stage;
            if (round >= early) {
                if (round >= p.stages) iv_mbar_wait(empty + 8 * stage, phase ^ 1);
                iv_mbar_expect(bar, S::STAGE);
                iv_tma_load_2d(to, w, bar, block * WG8_K, t.n, p.weights_l2);
            }
            iv_tma_load_2d(to + S::WEIGHT_BYTES, x, bar, block * WG8_K, t.column, IV_L2_LAST);
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
    }
}

/* ---- the epilogue ------------------------------------------------------------------------------------------------ */

/* The row of value v (0 or 1) of the chunk of columns that begins with `column`. */
template <class S> IV_DEVICE int wg8_row(int column, int v) {
    return (column + (int)threadIdx.x % 4 * 2 + v) / S::TERMS;
}

template <class S> IV_DEVICE void wg8_put_sums(const wg8_plan &plan, int n, int column, const int4 (&v)[S::BATCH]) {
    const iv_linear_problem &l = plan.p.l;
#pragma unroll
    for (int c = 0; c < S::BATCH; c++) {
        int sum[4] = {v[c].x, v[c].y, v[c].z, v[c].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = wg8_row<S>(column + 8 * c, i % 2), term = S::TERMS == 2 ? i % 2 : 0, at = n + i / 2 * 8;
            if (row < l.rows && at < l.n) plan.p.sums[((size_t)row * S::TERMS + term) * l.n + at] = sum[i];
        }
    }
}

/* Chunks of eight columns, from `column` on: of each (n, 2 t), (n, 2 t + 1), (n + 8, 2 t), (n + 8, 2 t + 1). All loads
 * are issued before a value is used. Missing addends are -0, which changes no sum; NaN sums are canonical on this
 * hardware. */
template <class S>
IV_DEVICE void wg8_epilogue(const wg8_plan &plan, int n, int column, const float *of_rows, const float (&scale)[2],
                            const float (&bias)[2], const int4 (&v)[S::BATCH]) {
    constexpr int EACH = 2 / S::TERMS, COUNT = S::BATCH * EACH, L = S::TERMS - 1;
    const iv_linear_problem &l = plan.p.l;
    if (plan.p.sums) return wg8_put_sums<S>(plan, n, column, v);
    float of_row[COUNT], y[2][COUNT];
    bool there0 = n < l.n, there1 = n + 8 < l.n, add = l.epilogue == IV_GPU_RESIDUAL;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        of_row[i] = of_rows[wg8_row<S>(i / EACH * 8, i % EACH)];
    }
    float old[2][COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row = wg8_row<S>(column + i / EACH * 8, i % EACH);
        const float *from = (const float *)l.out + (size_t)row * l.out_stride + n;
        old[0][i] = iv_load_if(from, add && there0 && row < l.rows);
        old[1][i] = iv_load_if(from + 8, add && there1 && row < l.rows);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int sum[4] = {v[i / EACH].x, v[i / EACH].y, v[i / EACH].z, v[i / EACH].w};
        int at = i % EACH;
        y[0][i] = __fadd_rn(iv_int8_result<S::TERMS>(sum[at], sum[at + L], of_row[i], scale[0]), bias[0]);
        y[1][i] = __fadd_rn(iv_int8_result<S::TERMS>(sum[2 + at], sum[2 + at + L], of_row[i], scale[1]), bias[1]);
    }
    if (l.epilogue == IV_GPU_SWIGLU) {
        float gate[COUNT], act[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            gate[i] = iv_gate(y[0][i], there0 && wg8_row<S>(column + i / EACH * 8, i % EACH) < l.rows);
        iv_swiglu_many(gate, y[1], act);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int row = wg8_row<S>(column + i / EACH * 8, i % EACH);
            if (there0 && row < l.rows)
                ((uint16_t *)l.out)[(size_t)row * l.out_stride + n / 16 * 8 + n % 8] = iv_round16(S::TYPE, act[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row = wg8_row<S>(column + i / EACH * 8, i % EACH);
        float *out = (float *)l.out + (size_t)row * l.out_stride + n;
        iv_store_if(out, __fadd_rn(old[0][i], y[0][i]), there0 && row < l.rows);
        iv_store_if(out + 8, __fadd_rn(old[1][i], y[1][i]), there1 && row < l.rows);
    }
}

/* Of a thread's two outputs. */
IV_DEVICE void wg8_load_outputs(const wg8_plan &plan, int n, float (&scale)[2], float (&bias)[2]) {
    const iv_linear_problem &l = plan.p.l;
    const float *scales = iv_int8_scales_of(l, 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        scale[i] = iv_load_if(scales + n + 8 * i, n + 8 * i < l.n);
        bias[i] = iv_load_if(l.bias + n + 8 * i, l.bias && n + 8 * i < l.n);
    }
}

IV_DEVICE int wg8_output_of(int thread) { return thread / 32 * 16 + thread % 32 / 4; }

/* A whole tile by its own consumers. Sums move through the registers, so that one loop, which fits the instruction
 * cache, has all chunks. */
template <class S>
IV_DEVICE void wg8_epilogue_tile(const wg8_plan &plan, const wg8_tile &t, const float *of_rows, int (&d)[S::COUNT]) {
    int n = t.n + wg8_output_of(threadIdx.x);
    float scale[2], bias[2];
    wg8_load_outputs(plan, n, scale, bias);
#pragma unroll 1
    for (int c = 0; c < S::CHUNKS && t.column + 8 * c < plan.columns; c += S::BATCH) {
        int4 v[S::BATCH];
#pragma unroll
        for (int i = 0; i < S::BATCH; i++) v[i] = make_int4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
        wg8_epilogue<S>(plan, n, t.column + 8 * c, of_rows + 8 * c / S::TERMS, scale, bias, v);
#pragma unroll
        for (int i = 0; i + 4 * S::BATCH < S::COUNT; i++) d[i] = d[i + 4 * S::BATCH];
    }
}

/* The sums of a cluster's CTAs, each of which ends a part of the columns. A warp is at the same chunks throughout. */
template <class S>
IV_DEVICE void wg8_reduce(const wg8_plan &plan, const wg8_tile &t, uint32_t ring, int rank, const float *of_rows) {
    constexpr int BATCHES = S::CHUNKS / S::BATCH;
    int pieces = BATCHES * (WG8_CONSUMERS / 32), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int piece = rank * (WG8_CONSUMERS / 32) + warp; piece < pieces; piece += plan.split * (WG8_CONSUMERS / 32)) {
        int thread = piece % (WG8_CONSUMERS / 32) * 32 + lane, first = piece / (WG8_CONSUMERS / 32) * S::BATCH;
        int n = t.n + wg8_output_of(thread);
        float scale[2], bias[2];
        wg8_load_outputs(plan, n, scale, bias);
        int4 v[S::BATCH];
#pragma unroll
        for (int i = 0; i < S::BATCH; i++) v[i] = make_int4(0, 0, 0, 0);
#pragma unroll 1
        for (int c = 0; c < plan.split; c += 2) { /* a power of two */
            float4 part[2][S::BATCH];
#pragma unroll
            for (int i = 0; i < 2 * S::BATCH; i++)
                part[i / S::BATCH][i % S::BATCH] = iv_load_cluster4(iv_shared_of(
                    ring + ((first + i % S::BATCH) * WG8_CONSUMERS + thread) * 16, (uint32_t)(c + i / S::BATCH)));
#pragma unroll
            for (int i = 0; i < 2 * S::BATCH; i++) {
                float4 from = part[i / S::BATCH][i % S::BATCH];
                int4 &to = v[i % S::BATCH];
                to.x += __float_as_int(from.x), to.y += __float_as_int(from.y);
                to.z += __float_as_int(from.z), to.w += __float_as_int(from.w);
            }
        }
        wg8_epilogue<S>(plan, n, t.column + 8 * first, of_rows + 8 * first / S::TERMS, scale, bias, v);
    }
}

/* What the end of a tile needs: scales of rows, on their way while it is multiplied, and addends in L2. */
template <class S> IV_DEVICE void wg8_ask(const wg8_plan &plan, const wg8_tile &t, float (&scales)[S::SCALES]) {
    const iv_linear_problem &l = plan.p.l;
    int first = t.column / S::TERMS, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::SCALES; i++) {
        int row = first + lane + 32 * i;
        scales[i] = iv_load_if(plan.p.scales + row, row < l.rows && lane + 32 * i < S::ROWS);
    }
    if (l.epilogue != IV_GPU_RESIDUAL || plan.p.sums) return;
    for (int i = threadIdx.x; i < S::ROWS * (WG8_N / 32); i += WG8_CONSUMERS) {
        int row = first + i / (WG8_N / 32), n = t.n + i % (WG8_N / 32) * 32;
        if (row < l.rows && n < l.n) iv_prefetch_l2((const float *)l.out + (size_t)row * l.out_stride + n);
    }
}

/* To the warp's copy. */
template <class S> IV_DEVICE void wg8_keep(const float (&scales)[S::SCALES], float *of_rows) {
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < S::SCALES; i++)
        if (lane + 32 * i < S::ROWS) of_rows[lane + 32 * i] = scales[i];
    __syncwarp();
}

/* ---- the consumers ----------------------------------------------------------------------------------------------- */

template <class S>
IV_DEVICE void wg8_consume(const wg8_plan &p, uint32_t ring, uint32_t full, uint32_t empty, int first, int step,
                           wg8_range k, int4 *root, float *of_rows) {
    int stage = 0, phase = 0, d[S::COUNT];
    uint32_t mine = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64 * WG8_K;
    for (int at = first; at < p.tiles; at += step) {
        int before = -1;
        float scales[S::SCALES];
        wg8_ask<S>(p, wg8_tile_at<S::QN>(p, at), scales);
#pragma unroll 1
        for (int block = k.first; block < k.last; block++) {
            iv_mbar_wait(full + 8 * stage, phase);
            uint32_t here = ring + stage * S::STAGE;
            uint64_t a = iv_wgmma_desc(here + mine), b = iv_wgmma_desc(here + S::WEIGHT_BYTES);
            iv_wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; s++) wg8_multiply(d, a + 2 * s, b + 2 * s, s > 0 || block > k.first);
            iv_wgmma_commit();
            iv_wgmma_wait<1>(); /* the block before is complete */
            if (before >= 0 && threadIdx.x % 32 == 0) iv_mbar_arrive(empty + 8 * before);
            before = stage;
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
        iv_wgmma_wait<0>();
        wg8_hold(d);
        if (threadIdx.x % 32 == 0) iv_mbar_arrive(empty + 8 * before);
        wg8_keep<S>(scales, of_rows);
        if (p.split == 1) {
            wg8_epilogue_tile<S>(p, wg8_tile_at<S::QN>(p, at), of_rows, d);
            continue;
        }
        iv_named_sync(1, WG8_CONSUMERS); /* then the ring is free: a cluster has one tile */
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c++)
            root[c * WG8_CONSUMERS + threadIdx.x] = make_int4(d[4 * c], d[4 * c + 1], d[4 * c + 2], d[4 * c + 3]);
        return;
    }
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    wg8_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
               const __grid_constant__ wg8_plan p) {
    extern __shared__ __align__(1024) char shared[];
    uint32_t ring = iv_shared(shared), full = ring + p.stages * S::STAGE, empty = full + 8 * p.stages;
    float *of_rows = (float *)(shared + p.stages * (S::STAGE + 16)) + threadIdx.x / 32 * S::ROWS; /* of consumers */
    int rank = p.split > 1 ? (int)iv_cluster_rank() : 0, first = blockIdx.x / p.split, step = gridDim.x / p.split;
    wg8_range k = wg8_range_of(p, rank);
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; s++)
            iv_mbar_init(full + 8 * s, 1), iv_mbar_init(empty + 8 * s, WG8_CONSUMERS / 32);
        iv_mbar_init_fence();
    }
    iv_let_next();
    __syncthreads();
    if (threadIdx.x >= WG8_CONSUMERS) {
        if constexpr (S::MOVED) iv_registers_give<40>();
        if (__shfl_sync(~0u, threadIdx.x / 32, 0) == WG8_CONSUMERS / 32 && iv_elect())
            wg8_produce<S>(&w, &x, p, ring, full, empty, first, step, k);
        __syncwarp();
        if (p.split > 1) iv_cluster_sync();
    } else {
        if constexpr (S::MOVED) iv_registers_take<232>();
        iv_wait();
        wg8_consume<S>(p, ring, full, empty, first, step, k, (int4 *)shared, of_rows);
        if (p.split > 1) {
            iv_cluster_sync(); /* all sums are written */
            wg8_reduce<S>(p, wg8_tile_at<S::QN>(p, first), ring, rank, of_rows);
        }
    }
    if (p.split > 1) iv_cluster_leave(); /* no peer still reads from this one */
}

/* ---- configurations --------------------------------------------------------------------------------------------- */

template <int TERMS, int QN, iv_dtype TYPE> static wg8_instance wg8_make(void) {
    using S = wg8_shape<TERMS, QN, TYPE>;
    return {TERMS, QN, S::STAGE, WG8_N * QN * 4, S::CTAS, S::THREADS, S::SCALE_BYTES, TYPE, wg8_kernel<S>};
}
#define WG8_COLUMNS(terms, type)                                                           \
    wg8_make<terms, 16, type>(), wg8_make<terms, 32, type>(), wg8_make<terms, 64, type>(), \
        wg8_make<terms, 128, type>(), wg8_make<terms, 256, type>()

static const wg8_instance *wg8_instances(size_t *count) {
    static const wg8_instance all[] = {WG8_COLUMNS(1, IV_BF16), WG8_COLUMNS(2, IV_BF16), WG8_COLUMNS(1, IV_F16),
                                       WG8_COLUMNS(2, IV_F16)};
    *count = sizeof all / sizeof *all;
    return all;
}

static size_t wg8_ceil(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t wg8_columns(const iv_gpu_int8_args *a) { return a->l.rows * (size_t)a->l.w.terms; }
static size_t wg8_blocks(const iv_gpu_int8_args *a) { return wg8_ceil(a->l.w.k_padded, WG8_K); }

static int wg8_shared(const wg8_instance *w, int stages) { return stages * (w->stage + 16) + w->scales; }

static int wg8_stages(const wg8_instance *w, int ctas) {
    int stages = (WG8_SHARED_MAX + 1024) / ctas - 1024 - w->scales;
    stages /= w->stage + 16;
    return stages < WG8_RING_MAX ? stages : WG8_RING_MAX;
}

/* The type matters to SwiGLU alone. */
static bool wg8_fits(const iv_gpu_int8_args *a, const wg8_instance *w, int split, int ctas) {
    iv_dtype type = a->l.type == IV_F16 ? IV_F16 : IV_BF16;
    int stages = wg8_stages(w, ctas);
    return w->terms == a->l.w.terms && w->type == type && ctas <= w->ctas && stages >= 2 &&
           (split == 1 || ((size_t)split <= wg8_blocks(a) && stages * w->stage >= w->root));
}

static bool wg8_possible(const iv_gpu_int8_args *a) {
    const iv_gpu_linear_args *l = &a->l;
    return !l->groups && l->rows > 0 && l->w.n > 0 && l->rows <= 1u << 24 && l->w.n <= 1u << 24 &&
           !(l->epilogue == IV_GPU_SWIGLU && l->type == IV_F32);
}

size_t iv_gpu_int8_wgmma_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count) {
    size_t all, found = 0;
    const wg8_instance *w = wg8_instances(&all);
    if (!wg8_possible(a)) return 0;
    for (size_t i = 0; i < all; i++)
        for (int ctas = 1; ctas <= w[i].ctas; ctas++)
            for (int split = 1; split <= WG8_SPLIT_MAX; split *= 2) {
                if (!wg8_fits(a, &w[i], split, ctas)) continue;
                if (found < count)
                    out[found] = {IV_GPU_INT8_WGMMA, WG8_N, w[i].columns, split, wg8_stages(&w[i], ctas), ctas};
                found++;
            }
    return found;
}

/* Cycles of a launch: rounds of CTAs, bound by products, by L2 or by memory. */
static double wg8_cost(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c) {
    const double l2 = 60, memory = 2400; /* bytes a cycle: of a multiprocessor, of all */
    double columns = c->tile_m,
           tiles = (double)wg8_ceil(a->l.w.n, WG8_N) * (double)wg8_ceil(wg8_columns(a), (size_t)c->tile_m);
    int sms =
        a->l.spare > 0 && a->l.spare < WG8_MULTIPROCESSORS ? WG8_MULTIPROCESSORS - a->l.spare : WG8_MULTIPROCESSORS;
    /* multiprocessors that clusters of 4 and 8 leave unused: they do not divide those that share a crossbar */
    sms -= c->split_k <= 2 ? 0 : c->split_k <= 4 ? 12 : 28;
    if (sms < c->split_k) sms = c->split_k;
    double slots = (double)sms * c->ctas / c->split_k, rounds = ceil(tiles / slots);
    double together = fmin(c->ctas, fmax(1, ceil(tiles * c->split_k / sms))); /* CTAs of a multiprocessor */
    double block = fmax(4 * columns, (WG8_N + columns) * WG8_K / l2) * together;
    double cycles = rounds * (ceil((double)wg8_blocks(a) / c->split_k) * fmax(block, 350) + 1500 +
                              (a->l.epilogue == IV_GPU_SWIGLU ? 30 : 15) * columns);
    if (c->split_k > 1) cycles += 1500 * c->split_k;
    return fmax(cycles, (double)a->l.w.n * (double)a->l.w.k_padded / memory);
}

bool iv_gpu_int8_wgmma_prefer(const iv_gpu_int8_args *a, iv_gpu_int8_config *c) {
    enum { CONFIGS = 64 };
    iv_gpu_int8_config all[CONFIGS];
    double least = HUGE_VAL;
    size_t n = iv_gpu_int8_wgmma_configs(a, all, CONFIGS);
    for (size_t i = 0; i < n && i < CONFIGS; i++) {
        double cost = wg8_cost(a, &all[i]);
        if (cost < least) least = cost, *c = all[i];
    }
    return least < HUGE_VAL;
}

/* ---- the launch ---------------------------------------------------------------------------------------------------
 */

static int wg8_encode(CUtensorMap *map, const void *data, size_t k, size_t rows, size_t row_bytes, int box) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    cuuint64_t dims[2] = {k, rows}, strides[1] = {row_bytes};
    cuuint32_t boxes[2] = {WG8_K, (cuuint32_t)box}, ones[2] = {1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)data, dims, strides, boxes, ones,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static int wg8_multiprocessors(void) {
    static int known;
    int device = 0;
    if (!known && cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&known, cudaDevAttrMultiProcessorCount, device);
    return known ? known : WG8_MULTIPROCESSORS;
}

int iv_gpu_int8_wgmma_launch(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream s) {
    size_t all, i = 0;
    const wg8_instance *w = wg8_instances(&all);
    CUtensorMap weights, codes;
    if (!wg8_possible(a) || c->split_k < 1 || c->split_k > WG8_SPLIT_MAX || c->ctas < 1) return cudaErrorInvalidValue;
    while (i < all && !(w[i].columns == c->tile_m && wg8_fits(a, &w[i], c->split_k, c->ctas))) i++;
    if (i == all) return cudaErrorInvalidValue;
    wg8_plan p = {iv_int8_problem_of(a), (int)wg8_columns(a), (int)wg8_blocks(a), c->split_k,
                  wg8_stages(&w[i], c->ctas)};
    p.weight_tiles = (int)wg8_ceil(a->l.w.n, WG8_N), p.column_tiles = (int)wg8_ceil(wg8_columns(a), (size_t)c->tile_m);
    p.tiles = p.weight_tiles * p.column_tiles;
    p.weights_l2 = p.column_tiles == 1 ? IV_L2_FIRST : IV_L2_NORMAL;
    int e = wg8_encode(&weights, a->l.w.data, a->l.w.k_padded, a->l.w.n, a->l.w.k_padded, WG8_N);
    if (!e) e = wg8_encode(&codes, a->codes, a->l.w.k_padded, wg8_columns(a), a->code_stride, c->tile_m);
    if (!e)
        e = cudaFuncSetAttribute((const void *)w[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 WG8_SHARED_MAX);
    if (e) return e;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = !a->l.fresh;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)c->split_k;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int sms = wg8_multiprocessors(), resident = (a->l.spare > 0 && a->l.spare < sms ? sms - a->l.spare : sms) * c->ctas;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3((unsigned)w[i].threads);
    config.dynamicSmemBytes = (size_t)wg8_shared(&w[i], p.stages), config.stream = (cudaStream_t)s;
    config.attrs = attributes, config.numAttrs = c->split_k > 1 ? 2 : 1;
    config.gridDim = dim3((unsigned)(c->split_k > 1 ? p.tiles * c->split_k : p.tiles < resident ? p.tiles : resident));
    return cudaLaunchKernelEx(&config, w[i].kernel, weights, codes, p);
}
