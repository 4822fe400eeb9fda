/* sample.cu: a row of logits to one token and its log-probability. Law: NUMERICS.md section 10.
 *
 * Three kernels: the largest logit by chunks of the row; the lane sums of exp, and beside them each chunk's best token
 * under Gumbel noise (or, where top-k or top-p filter the row, a histogram of distances from the maximum); the choice.
 * A lane's sum is one chain in ascending id: eight blocks have 32 lanes each, other warps compute the exps ahead of the
 * one that adds. Filtered rows are sorted only as deep as the histogram says that the filter can reach; rows that would
 * need more than CANDIDATES tokens are left to the host (token -1). */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/ops.h"
#include "numerics/rows.h"

enum {
    LANES = IV_ROW_LANES,
    GROUPS = LANES / 32, /* blocks that share the lanes of a row */
    CHUNK = 4096,        /* tokens a block looks at */
    MANY_ROWS = 16,      /* with so many, CHUNKS of them */
    CHUNKS = 4,
    LARGEST_THREADS = 256,
    EXP_WARPS = 16,
    WEIGH_THREADS = 32 * (EXP_WARPS + 1),
    SPAN = 128, /* of a lane's elements: how many are computed ahead of the sum */
    BINS = 512, /* sixteenths of a unit below the maximum; the last one has the rest */
    CHOOSE_THREADS = 512,
    CANDIDATES = 4096
};

#define DEVICE static __device__ __forceinline__
#define WHOLE_WARP 0xffffffffu
#define INFINITE 0x7f800000u

/* ---- the total order: larger logit, then smaller id ------------------------------------------------------------- */

/* In order of the value; equal zeros are equal; NaN is below all. */
DEVICE uint32_t order_of(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return x != x ? 0 : (u >> 31) ? ~u : u | 0x80000000u;
}
DEVICE float value_of(uint32_t order) { return __uint_as_float((order >> 31) ? order ^ 0x80000000u : ~order); }

/* The larger the earlier. */
DEVICE uint64_t entry_of(float x, uint32_t id) { return (uint64_t)order_of(x) << 32 | (uint32_t)~id; }
DEVICE uint32_t id_of(uint64_t entry) { return ~(uint32_t)entry; }
DEVICE float logit_of(uint64_t entry) { return value_of((uint32_t)(entry >> 32)); }

DEVICE uint64_t first_of_warp(uint64_t entry) {
    for (int stride = 16; stride > 0; stride /= 2) {
        uint64_t other = __shfl_xor_sync(WHOLE_WARP, entry, stride);
        entry = other > entry ? other : entry;
    }
    return entry;
}

/* Of all threads, in all threads of warp 0. `entries`: one a warp. */
DEVICE uint64_t first_of_block(uint64_t entry, uint64_t *entries) {
    entry = first_of_warp(entry);
    if (threadIdx.x % 32 == 0) entries[threadIdx.x / 32] = entry;
    __syncthreads();
    return first_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? entries[threadIdx.x % 32] : 0);
}

/* Of n in memory, by a warp; two a lane at once, as many as there are of usual vocabularies. */
DEVICE uint64_t first_of_list(const uint64_t *list, uint32_t n) {
    uint64_t entry = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < n; i += 64) {
        uint64_t a = list[i], b = i + 32 < n ? list[i + 32] : 0;
        a = a > b ? a : b;
        entry = a > entry ? a : entry;
    }
    return first_of_warp(entry);
}

/* ---- scratch --------------------------------------------------------------------------------------------- */

static __host__ __device__ inline size_t chunks_of(size_t vocab) { return (vocab + CHUNK - 1) / CHUNK; }

/* One row's. */
typedef struct row_scratch {
    uint64_t *largest, *best; /* [chunks]: of the logits; of logits and noise, for each share of a block */
    float *lanes;             /* [2][LANES]: of the logits; of those divided by the temperature */
    uint32_t *bins;           /* [BINS] */
} row_scratch;

static __host__ __device__ inline size_t row_bytes(size_t vocab) {
    return 2 * chunks_of(vocab) * sizeof(uint64_t) + 2 * LANES * sizeof(float) + BINS * sizeof(uint32_t);
}

size_t iv_gpu_sample_scratch(size_t rows, size_t vocab) { return rows * row_bytes(vocab); }

DEVICE row_scratch scratch_of(void *scratch, size_t row, size_t vocab) {
    row_scratch s;
    s.largest = (uint64_t *)((char *)scratch + row * row_bytes(vocab));
    s.best = s.largest + chunks_of(vocab);
    s.lanes = (float *)(s.best + chunks_of(vocab));
    s.bins = (uint32_t *)(s.lanes + 2 * LANES);
    return s;
}

/* ---- a row as the choice is made from it ------------------------------------------------------------------------- */

typedef struct row_view {
    const float *logits;
    size_t vocab;
    float temperature;
    float max;     /* of the logits; never NaN */
    float reduced; /* max / temperature: division rounds monotonically, so the largest of the divided ones */
    bool greedy, top_k, top_p;
} row_view;

DEVICE float divided(const row_view &r, float x) { return r.temperature == 1.0f ? x : __fdiv_rn(x, r.temperature); }

DEVICE row_view view_of(const float *logits, size_t row, size_t vocab, const iv_gpu_sampling &p, uint64_t largest) {
    row_view r;
    r.logits = logits + row * vocab, r.vocab = vocab;
    r.temperature = p.temperature;
    r.max = (largest >> 32) == 0 ? __uint_as_float(INFINITE | 0x80000000u) : logit_of(largest) + 0.0f;
    r.reduced = divided(r, r.max);
    r.greedy = p.temperature == 0.0f;
    bool shares = !r.greedy && fabsf(r.reduced) < __uint_as_float(INFINITE);
    r.top_k = shares && p.top_k > 0 && (size_t)p.top_k < vocab;
    r.top_p = shares && p.top_p < 1.0f;
    return r;
}

/* Four logits from i on, a multiple of 4; beyond the row -infinity. */
DEVICE float4 four(const float *x, size_t i, size_t n) {
    if (n % 4 == 0) return *(const float4 *)(x + i);
    float none = __uint_as_float(INFINITE | 0x80000000u);
    return make_float4(x[i], i + 1 < n ? x[i + 1] : none, i + 2 < n ? x[i + 2] : none, i + 3 < n ? x[i + 3] : none);
}

/* COUNT of those a thread, THREADS * 4 apart, from `from` on: all asked for before any is used. Beyond the row:
 * anything. */
template <int COUNT, int THREADS> DEVICE void fours(const float *x, size_t from, size_t n, float4 q[COUNT]) {
    size_t first = from + 4 * threadIdx.x;
    if (n % 4 != 0) {
        for (int j = 0; j < COUNT; j++)
            if (first + j * 4 * THREADS < n) q[j] = four(x, first + j * 4 * THREADS, n);
        return;
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        size_t i = first + j * 4 * THREADS;
        const float *p = x + (i < n ? i : 0);
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(q[j].x), "=f"(q[j].y), "=f"(q[j].z), "=f"(q[j].w)
                     : "l"(p));
    }
}

/* ---- noise ------------------------------------------------------------------------------------------------- */

DEVICE uint4 philox(uint32_t block, uint64_t position, uint64_t seed) {
    uint32_t x0 = block, x1 = (uint32_t)position, x2 = (uint32_t)(position >> 32), x3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)p1, x3 = (uint32_t)p0, x0 = y0, x2 = y2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(x0, x1, x2, x3);
}

static __device__ __noinline__ float gumbel_of(uint32_t bits) {
    float v = __uint2float_rn(bits) * 0x1p-32f + 0x1p-33f;
    if (v > 0x1.fffffep-1f) v = 0x1.fffffep-1f;
    float e = v < 0x1p-12f ? __fmaf_rn(v * 0.5f, v, v) : -v_log(1.0f - v);
    return -v_log(e);
}

/* No noise of these bits is larger. */
DEVICE float noise_bound(uint32_t bits) { return (float)(__clz(bits) + 1 + (bits == 0)) * 0.6931472f + 0.25f; }
/* Nor is any smaller than this. */
#define NOISE_LEAST (-0x1.67e092p+1f)

/* One token with its noise against the best so far. What cannot reach the maximum with the least noise is passed over. */
static __device__ __noinline__ uint64_t consider(const row_view &r, float min_p, float x, uint32_t bits, uint32_t id,
                                                 uint64_t best) {
    if (!(fabsf(r.reduced) < __uint_as_float(INFINITE))) { /* a division overflowed: no noise */
        uint64_t entry = entry_of(x, id);
        return entry > best ? entry : best;
    }
    if (x + noise_bound(bits) < r.reduced + NOISE_LEAST) return best;
    if (min_p > 0.0f && !(v_exp(x - r.reduced) >= min_p)) return best;
    uint64_t entry = entry_of(x + gumbel_of(bits), id);
    return entry > best ? entry : best;
}

/* What nearly all tokens fail, without a division: eight leading zeros or less and a logit too low for their noise.
 * logit * inverse is as near to the quotient as `low` has to spare; where it might not be, low is -infinity. */
#define FEW_ZEROS 0x00800000u
#define FEW_ZEROS_NOISE 6.5f
typedef struct hopeless {
    float inverse, low;
} hopeless;

DEVICE hopeless hopeless_of(const row_view &r) {
    hopeless h;
    h.inverse = __fdiv_rn(1.0f, r.temperature);
    h.low = r.reduced + NOISE_LEAST - FEW_ZEROS_NOISE - (fabsf(r.reduced) + 32.0f) * 0x1p-20f;
    if (!(h.inverse > 0x1p-100f && h.inverse < 0x1p100f && fabsf(h.low) < __uint_as_float(INFINITE)))
        h.low = __uint_as_float(INFINITE | 0x80000000u);
    return h;
}

/* ---- the first kernel: the largest logit ----------------------------------------------------------------------- */

static __global__ void __launch_bounds__(LARGEST_THREADS) find_largest(const float *logits, size_t vocab, void *scratch) {
    __shared__ uint64_t entries[LARGEST_THREADS / 32];
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.y, from = (size_t)blockIdx.x * CHUNK;
    row_scratch s = scratch_of(scratch, row, vocab);
    const float *x = logits + row * vocab;
    enum { COUNT = CHUNK / (4 * LARGEST_THREADS) };
    uint32_t order = 0, at = 0;
    float4 q[COUNT];
    fours<COUNT, LARGEST_THREADS>(x, from, vocab, q);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        size_t i = from + 4 * (threadIdx.x + j * LARGEST_THREADS);
        if (i >= vocab) break;
        const float y[4] = {q[j].x, q[j].y, q[j].z, q[j].w};
#pragma unroll
        for (int e = 0; e < 4; e++) { /* beyond the row: -infinity, and a larger id */
            uint32_t o = order_of(y[e]);
            if (o > order) order = o, at = (uint32_t)i + e;
        }
    }
    uint64_t entry = first_of_block((uint64_t)order << 32 | (uint32_t)~at, entries);
    if (threadIdx.x == 0) s.largest[blockIdx.x] = entry;
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < BINS; i += LARGEST_THREADS) s.bins[i] = 0;
}

/* ---- the second: sums of exp, and candidates --------------------------------------------------------------------- */

/* Lanes [32 group, 32 group + 32). All warps but the last compute exps, a span ahead of the last, which adds. */
template <bool DIVIDE> DEVICE void sum_lanes(const row_view &r, unsigned group, float *lanes, float (*e)[SPAN][32]) {
    enum { EACH = SPAN / EXP_WARPS };
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t count = (r.vocab + LANES - 1) / LANES, spans = (count + SPAN - 1) / SPAN, base = 32 * group + lane;
    float x[EACH], max = DIVIDE ? r.reduced : r.max, sum = 0.0f;
    if (warp < EXP_WARPS)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            size_t i = (warp + j * EXP_WARPS) * LANES + base;
            x[j] = i < r.vocab ? r.logits[i] : 0.0f;
        }
#pragma unroll 1
    for (size_t span = 0; span <= spans; span++) {
        if (warp < EXP_WARPS && span < spans) {
            float next[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                size_t i = ((span + 1) * SPAN + warp + j * EXP_WARPS) * LANES + base;
                next[j] = i < r.vocab ? r.logits[i] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                size_t i = (span * SPAN + warp + j * EXP_WARPS) * LANES + base;
                float y = v_exp((DIVIDE ? __fdiv_rn(x[j], r.temperature) : x[j]) - max);
                e[span & 1][warp + j * EXP_WARPS][lane] = i < r.vocab ? y : 0.0f; /* +0 changes no lane */
                x[j] = next[j];
            }
        }
        if (warp == EXP_WARPS && span > 0) {
#pragma unroll 32
            for (int m = 0; m < SPAN; m++) sum = sum + e[(span - 1) & 1][m][lane];
        }
        __syncthreads();
    }
    if (warp == EXP_WARPS) lanes[base] = sum;
}

/* A monotone function of the token's place in the order: how far below the maximum. */
DEVICE int bin_of(const row_view &r, float x) { return (int)fminf((r.reduced - x) * 16.0f, (float)(BINS - 1)); }

DEVICE void count_bins(const row_view &r, size_t from, size_t to, uint32_t *bins) {
    __shared__ uint32_t own[BINS];
    for (int i = threadIdx.x; i < BINS; i += WEIGH_THREADS) own[i] = 0;
    __syncthreads();
#pragma unroll 2
    for (size_t i = from + threadIdx.x; i < to; i += WEIGH_THREADS)
        atomicAdd(&own[bin_of(r, divided(r, r.logits[i]))], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += WEIGH_THREADS)
        if (own[i]) atomicAdd(&bins[i], own[i]);
}

/* The best of tokens [from, to), with noise; the next logits are loaded while these are looked at. */
DEVICE void draw(const row_view &r, const iv_gpu_sampling &p, size_t from, size_t to, uint64_t *out) {
    __shared__ uint64_t entries[WEIGH_THREADS / 32];
    uint64_t best = 0;
    size_t i = from + 4 * threadIdx.x;
    hopeless h = hopeless_of(r);
    float4 next = i < to ? four(r.logits, i, r.vocab) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    while (i < to) {
        float4 q = next;
        uint32_t id = (uint32_t)i;
        i += 4 * WEIGH_THREADS;
        if (i < to) next = four(r.logits, i, r.vocab);
        uint4 n = philox(id / 4, p.position, p.seed);
        const float x[4] = {q.x, q.y, q.z, q.w};
        const uint32_t bits[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!(x[e] * h.inverse < h.low && bits[e] >= FEW_ZEROS) && id + e < to)
                best = consider(r, p.min_p, divided(r, x[e]), bits[e], id + e, best);
    }
    best = first_of_block(best, entries);
    if (threadIdx.x == 0) *out = best;
}

static __global__ void __launch_bounds__(WEIGH_THREADS)
    weigh(const float *logits, size_t vocab, size_t share, const iv_gpu_sampling *sampling, void *scratch) {
    iv_let_next();
    iv_wait();
    __shared__ float exps[2][SPAN][32];
    size_t row = blockIdx.y;
    row_scratch s = scratch_of(scratch, row, vocab);
    const iv_gpu_sampling p = sampling[row];
    bool sums = blockIdx.x < 2 * GROUPS, divide = sums && blockIdx.x >= GROUPS;
    if (p.temperature == 0.0f && (divide || !sums)) return;
    if (divide && (p.temperature == 1.0f || p.top_p >= 1.0f)) return;
    row_view r = view_of(logits, row, vocab, p, first_of_list(s.largest, chunks_of(vocab)));
    if (sums && !divide) sum_lanes<false>(r, blockIdx.x, s.lanes, exps);
    if (divide && r.top_p && !r.top_k) sum_lanes<true>(r, blockIdx.x - GROUPS, s.lanes + LANES, exps);
    if (sums) return;
    size_t part = blockIdx.x - 2 * GROUPS, from = part * share, to = from + share < vocab ? from + share : vocab;
    if (r.top_k || r.top_p)
        count_bins(r, from, to, s.bins);
    else
        draw(r, p, from, to, &s.best[part]);
}

/* ---- the third: the choice ------------------------------------------------------------------------------------- */

DEVICE float fold_lanes(const float *lanes) {
    float l[GROUPS];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) l[j] = lanes[threadIdx.x % 32 + 32 * j];
    float s = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    for (int stride = 16; stride > 0; stride /= 2) s = s + __shfl_xor_sync(WHOLE_WARP, s, stride);
    return s;
}

/* Inclusive sums over the threads of a block; `parts`: one a warp. Of numbers that add without rounding, or where an
 * estimate will do. */
template <class number> DEVICE number scan_block(number x, number *parts) {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (unsigned stride = 1; stride < 32; stride *= 2) {
        number lower = __shfl_up_sync(WHOLE_WARP, x, stride);
        if (lane >= stride) x += lower;
    }
    __syncthreads(); /* parts may be in use by the call before */
    if (lane == 31) parts[warp] = x;
    __syncthreads();
    number before = lane < warp ? parts[lane] : 0;
    for (int stride = 16; stride > 0; stride /= 2) before += __shfl_xor_sync(WHOLE_WARP, before, stride);
    return x + before;
}

/* What the threads of a filtered row share. */
typedef struct filter {
    uint64_t entry[CANDIDATES]; /* in order, once sorted */
    uint64_t entries[CHOOSE_THREADS / 32];
    double sums[CHOOSE_THREADS / 32];
    uint32_t counts[CHOOSE_THREADS / 32];
    float lane[LANES];
    uint32_t count, last_bin, reached;
} filter;

/* The depth that the filters can reach: bins [0, last]; BINS if it holds more than the candidates there is room for.
 * For top-p from below: a token weighs at least what the far end of its bin does. */
DEVICE uint32_t depth_of(const row_view &r, const row_scratch &s, int32_t k, double target, filter *f) {
    uint32_t bin = threadIdx.x, here = s.bins[bin];
    uint32_t count = scan_block(here, f->counts);
    double weight = bin + 1 < BINS ? (double)here * (double)v_exp((float)(bin + 1) * -0.0625f) : 0.0;
    double mass = scan_block(weight, f->sums);
    bool enough = r.top_k ? count >= (uint32_t)k : mass >= target * 1.001;
    if (bin == 0) f->last_bin = BINS - 1, f->count = 0;
    __syncthreads();
    if (enough) atomicMin(&f->last_bin, bin);
    int fitting = __syncthreads_count(count <= CANDIDATES); /* those bins fit */
    uint32_t last = f->last_bin;
    if (last < fitting) return last;
    return r.top_k || fitting == 0 ? BINS : fitting - 1;
}

static __device__ __noinline__ void gather_four(const row_view &r, uint32_t last, float4 q, uint32_t id, filter *f) {
#pragma unroll 1
    for (int e = 0; e < 4 && id + e < r.vocab; e++) {
        float y = divided(r, e < 2 ? (e == 0 ? q.x : q.y) : e == 2 ? q.z : q.w);
        if (bin_of(r, y) > (int)last) continue;
        uint32_t at = atomicAdd(&f->count, 1u);
        if (at < CANDIDATES) f->entry[at] = entry_of(y, id + e);
    }
}

/* All tokens of bins [0, last], in any order. */
DEVICE void gather(const row_view &r, uint32_t last, filter *f) {
    enum { AHEAD = 8 };
    float depth = (float)(last + 1) * 0.0625f, size = fabsf(r.max) + r.temperature * depth;
    float cut = r.max - r.temperature * depth - size * 0x1p-16f - 0x1p-100f; /* below it no token's bin is that near */
    bool all = last == BINS - 1 || !(fabsf(cut) < __uint_as_float(INFINITE));
#pragma unroll 1
    for (size_t from = 0; from < r.vocab; from += AHEAD * 4 * CHOOSE_THREADS) {
        float4 q[AHEAD];
        fours<AHEAD, CHOOSE_THREADS>(r.logits, from, r.vocab, q);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            size_t i = from + 4 * (threadIdx.x + j * CHOOSE_THREADS);
            bool none = !all && !(fmaxf(fmaxf(q[j].x, q[j].y), fmaxf(q[j].z, q[j].w)) >= cut);
            if (i < r.vocab && !none) gather_four(r, last, q[j], (uint32_t)i, f);
        }
    }
    __syncthreads();
}

/* Largest first; a bitonic network over the next power of two. */
static __device__ __noinline__ void sort_entries(uint64_t *entry, uint32_t n) {
    uint32_t size = 2;
    while (size < n) size *= 2;
#pragma unroll 1
    for (uint32_t i = n + threadIdx.x; i < size; i += CHOOSE_THREADS) entry[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t run = 2; run <= size; run *= 2)
#pragma unroll 1
        for (uint32_t stride = run / 2; stride > 0; stride /= 2) {
#pragma unroll 1
            for (uint32_t t = threadIdx.x; t < size / 2; t += CHOOSE_THREADS) {
                uint32_t a = 2 * t - (t & (stride - 1)), b = a + stride;
                uint64_t x = entry[a], y = entry[b];
                if ((x < y) == ((a & run) == 0)) entry[a] = y, entry[b] = x;
            }
            __syncthreads();
        }
}

/* The total of n candidates: sorted by lane, then id, each lane adds its own. Leaves them in order again. */
DEVICE float total_of(const row_view &r, uint32_t n, filter *f) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint32_t id = id_of(f->entry[i]), order = (uint32_t)(f->entry[i] >> 32);
        f->entry[i] = (uint64_t)~((id % LANES) << 24 | id / LANES) << 32 | order;
    }
    sort_entries(f->entry, n);
    if (threadIdx.x < LANES) {
        uint64_t after = (uint64_t)~(threadIdx.x << 24) << 32 | UINT32_MAX; /* larger ones belong to lanes before */
        uint32_t low = 0, high = n;
#pragma unroll 1
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (f->entry[middle] > after)
                low = middle + 1;
            else
                high = middle;
        }
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t i = low; i < n && (~(uint32_t)(f->entry[i] >> 32)) >> 24 == threadIdx.x; i++)
            sum = sum + v_exp(value_of((uint32_t)f->entry[i]) - r.reduced);
        f->lane[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint32_t place = ~(uint32_t)(f->entry[i] >> 32), id = (place & 0xffffffu) * LANES + (place >> 24);
        f->entry[i] = (uint64_t)(uint32_t)f->entry[i] << 32 | (uint32_t)~id;
    }
    sort_entries(f->entry, n);
    return fold_lanes(f->lane);
}

/* How many of n sorted candidates make up the target; n + 1 if they do not. What is at most NEAR below the maximum weighs
 * 2^-17 or more; doubles add that without rounding (17 + 23 bits below one, 12 above), so in any order. The rest is
 * added one after another. */
#define NEAR 11.75f
DEVICE uint32_t nucleus_of(const row_view &r, uint32_t n, double target, filter *f) {
    enum { EACH = CANDIDATES / CHOOSE_THREADS };
    double own = 0.0;
    uint32_t first = threadIdx.x * EACH, near = first;
#pragma unroll 1
    for (; near < first + EACH && near < n; near++) {
        float x = logit_of(f->entry[near]) - r.reduced;
        if (x < -NEAR) break;
        own += (double)v_exp(x);
    }
    if (threadIdx.x == 0) f->reached = n + 1;
    uint32_t all_near = scan_block(near - first, f->counts);
    double sum = scan_block(own, f->sums), all_sum = sum;
    sum -= own; /* exact */
#pragma unroll 1
    for (uint32_t i = first; i < near; i++) {
        sum += (double)v_exp(logit_of(f->entry[i]) - r.reduced);
        if (sum >= target) {
            atomicMin(&f->reached, i + 1);
            break;
        }
    }
    __syncthreads();
    if (threadIdx.x == CHOOSE_THREADS - 1)
#pragma unroll 1
        for (uint32_t i = all_near; i < n && f->reached > n; i++) {
            all_sum += (double)v_exp(logit_of(f->entry[i]) - r.reduced);
            if (all_sum >= target) f->reached = i + 1;
        }
    __syncthreads();
    return f->reached;
}

/* The token of a row that top-k or top-p filter, in warp 0; -1: too many candidates. All threads call it. */
DEVICE int32_t choose_filtered(const row_view &r, const row_scratch &s, const iv_gpu_sampling &p, filter *f) {
    float total = r.top_p && !r.top_k ? fold_lanes(s.lanes + (r.temperature != 1.0f ? LANES : 0)) : 0.0f;
    uint32_t last = depth_of(r, s, p.top_k, (double)p.top_p * (double)total, f);
    if (last == BINS) return -1;
    gather(r, last, f);
    uint32_t n = f->count, all = (uint32_t)r.vocab;
    sort_entries(f->entry, n);
    if (r.top_k) {
        n = all = (uint32_t)p.top_k;
        if (r.top_p) total = total_of(r, n, f);
    }
    if (r.top_p) {
        uint32_t kept = nucleus_of(r, n, (double)p.top_p * (double)total, f);
        if (kept > n && n < all) return -1;
        n = kept < n ? kept : n;
    }
    uint64_t best = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint32_t id = id_of(f->entry[i]);
        uint4 noise = philox(id / 4, p.position, p.seed);
        uint32_t bits = id % 4 == 0 ? noise.x : id % 4 == 1 ? noise.y : id % 4 == 2 ? noise.z : noise.w;
        best = consider(r, p.min_p, logit_of(f->entry[i]), bits, id, best);
    }
    return (int32_t)id_of(first_of_block(best, f->entries));
}

static __global__ void __launch_bounds__(CHOOSE_THREADS)
    choose(const float *logits, size_t vocab, size_t share, const iv_gpu_sampling *sampling, void *scratch,
           iv_gpu_sampled *out) {
    __shared__ filter f;
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    row_scratch s = scratch_of(scratch, row, vocab);
    const iv_gpu_sampling p = sampling[row];
    uint64_t largest = first_of_list(s.largest, chunks_of(vocab));
    row_view r = view_of(logits, row, vocab, p, largest);
    int32_t token;
    if (r.top_k || r.top_p) {
        token = choose_filtered(r, s, p, &f);
        if (threadIdx.x >= 32) return;
    } else {
        if (threadIdx.x >= 32) return;
        token = (int32_t)id_of(r.greedy ? largest : first_of_list(s.best, (uint32_t)((vocab + share - 1) / share)));
    }
    float log_sum = v_log(fold_lanes(s.lanes));
    if (threadIdx.x > 0) return;
    if (token >= (int64_t)vocab) token = 0; /* a row of NaN */
    float x = token < 0 ? 0.0f : r.logits[token];
    out[row].token = token, out[row].max = r.max, out[row].log_sum = log_sum;
    out[row].logprob = token < 0 ? 0.0f : (x - r.max) - log_sum;
}

int iv_gpu_sample(const float *logits, size_t rows, size_t vocab, const iv_gpu_sampling *sampling, void *scratch,
                  iv_gpu_sampled *out, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    if (vocab < 1 || vocab > (size_t)1 << 24 || rows > 65535) return (int)cudaErrorInvalidValue;
    unsigned chunks = (unsigned)chunks_of(vocab), y = (unsigned)rows;
    size_t share = rows < MANY_ROWS ? CHUNK : CHUNKS * CHUNK; /* a block's, in the second kernel */
    unsigned parts = (unsigned)((vocab + share - 1) / share);
    int error = iv_launch(find_largest, dim3(chunks, y), LARGEST_THREADS, stream, logits, vocab, scratch);
    if (!error)
        error = iv_launch(weigh, dim3(2 * GROUPS + parts, y), WEIGH_THREADS, stream, logits, vocab, share, sampling,
                          scratch);
    if (!error) error = iv_launch(choose, dim3(y), CHOOSE_THREADS, stream, logits, vocab, share, sampling, scratch, out);
    return error;
}
