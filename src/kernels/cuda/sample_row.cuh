/* sample_row.cuh: common parts of the sampling kernels: the total order of tokens, a row's scratch, its temperature
 * and filters, and noise. Law: NUMERICS.md section 10. */
#ifndef IV_KERNELS_CUDA_SAMPLE_ROW_CUH
#define IV_KERNELS_CUDA_SAMPLE_ROW_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/ops.h"
#include "numerics/rows.h"

enum {
    LANES = IV_ROW_LANES,
    CHUNK = 4096, /* tokens of a block of the first kernel */
    LARGEST_THREADS = 256,
    GROUPS = LARGEST_THREADS / 32, /* of a chunk: the tokens of a warp, whose largest logit is stored */
    BINS = 512,                    /* sixteenths of a unit below the maximum; the last bin has the rest */
    EXP_WARPS = 16,
    WEIGH_THREADS = 32 * (EXP_WARPS + 1),
    CHOOSE_THREADS = 512,
    CANDIDATES = 4096,    /* tokens sorted at once */
    TOP_CANDIDATES = 1024 /* capacity for candidates for the top tokens */
};

#define WHOLE_WARP 0xffffffffu
#define INFINITE 0x7f800000u

/* ---- the total order: larger logit, then smaller id ------------------------------------------------------------- */

/* Bits in the order of values: equal zeros are equal, NaN is below all. */
IV_DEVICE uint32_t order_of(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return x != x ? 0 : (u >> 31) ? ~u : u | 0x80000000u;
}
IV_DEVICE float value_of(uint32_t order) { return __uint_as_float((order >> 31) ? order ^ 0x80000000u : ~order); }

/* A sort key: larger keys come first. */
IV_DEVICE uint64_t entry_of(float x, uint32_t id) { return (uint64_t)order_of(x) << 32 | (uint32_t)~id; }
IV_DEVICE uint32_t id_of(uint64_t entry) { return ~(uint32_t)entry; }
IV_DEVICE float logit_of(uint64_t entry) { return value_of((uint32_t)(entry >> 32)); }

IV_DEVICE uint64_t first_of_warp(uint64_t entry) {
    for (int stride = 16; stride > 0; stride /= 2) {
        uint64_t other = __shfl_xor_sync(WHOLE_WARP, entry, stride);
        entry = other > entry ? other : entry;
    }
    return entry;
}

/* The first entry of a block, in all threads of warp 0. `entries`: one per warp. */
IV_DEVICE uint64_t first_of_block(uint64_t entry, uint64_t *entries) {
    entry = first_of_warp(entry);
    if (threadIdx.x % 32 == 0) entries[threadIdx.x / 32] = entry;
    __syncthreads();
    return first_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? entries[threadIdx.x % 32] : 0);
}

/* The first of n entries in memory, by a warp; two per lane at once, which covers the usual vocabularies. */
IV_DEVICE uint64_t first_of_list(const uint64_t *list, uint32_t n) {
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

/* Of one row. */
typedef struct row_scratch {
    /* [chunks]: largest logit of each chunk, and of its ids that may be drawn; best token with noise of each slice of
     * the vocabulary */
    uint64_t *largest, *largest_allowed, *best;
    uint64_t *kept;         /* [CANDIDATES]: tokens that the filters may keep, as entries of the divided logits */
    uint64_t *top_logprobs; /* [TOP_CANDIDATES]: tokens that may be among the top ones, as entries of the logits */
    float *lanes;           /* [2][LANES]: sums of exp of the logits, and of the divided logits */
    uint32_t *groups;       /* [chunks][GROUPS]: the largest logit of each group that may be drawn, in order_of */
    uint32_t *bins;         /* [BINS] */
    uint32_t *counts;       /* [2]: of kept and of top_logprobs; above the capacity: incomplete */
    float *floor;           /* [2]: the lowest divided logit in `kept`; the second is padding */
} row_scratch;

static __host__ __device__ inline size_t row_bytes(size_t vocab) {
    return (3 * chunks_of(vocab) + CANDIDATES + TOP_CANDIDATES) * sizeof(uint64_t) + 2 * LANES * sizeof(float) +
           (chunks_of(vocab) * GROUPS + BINS + 4) * sizeof(uint32_t);
}

IV_DEVICE row_scratch scratch_of(void *scratch, size_t row, size_t vocab) {
    row_scratch s;
    s.largest = (uint64_t *)((char *)scratch + row * row_bytes(vocab));
    s.largest_allowed = s.largest + chunks_of(vocab);
    s.best = s.largest_allowed + chunks_of(vocab);
    s.kept = s.best + chunks_of(vocab);
    s.top_logprobs = s.kept + CANDIDATES;
    s.lanes = (float *)(s.top_logprobs + TOP_CANDIDATES);
    s.groups = (uint32_t *)(s.lanes + 2 * LANES);
    s.bins = s.groups + chunks_of(vocab) * GROUPS;
    s.counts = s.bins + BINS;
    s.floor = (float *)(s.counts + 2);
    return s;
}

/* ---- a row's sampling parameters -------------------------------------------------------------------------------- */

typedef struct row_view {
    const float *logits;
    size_t vocab;
    const uint32_t *allowed; /* a bit per id: 0 is never drawn, as if its logit were -infinity. NULL: all are 1 */
    float temperature;
    float max;     /* of the logits; never NaN */
    float reduced; /* of those that may be drawn, over the temperature: division rounds monotonically, so this is the
                      largest divided logit */
    float min_p;
    uint32_t k;    /* tokens kept by top-k; all, if it is off */
    float top_p;   /* 1: off */
    bool draws;    /* noise is added: not greedy, and the division did not overflow */
    bool filtered; /* top-k or top-p is on */
    /* The second lane sums are of the divided logits that may be drawn, if these differ from the logits, over the
     * tokens that min-p keeps if that is requested. */
    bool own_lanes;
    float lanes_min_p;
} row_view;

/* Filters ignore tokens this far below the maximum: their exp is zero, so they change no sum, and no noise makes up
 * for the distance. */
#define WEIGHTLESS 88.0f

IV_DEVICE float divided(const row_view &r, float x) { return r.temperature == 1.0f ? x : __fdiv_rn(x, r.temperature); }

IV_DEVICE bool is_allowed(const uint32_t *allowed, size_t id) {
    return !allowed || (allowed[id / 32] >> (id % 32) & 1);
}

IV_DEVICE float max_of(uint64_t largest) {
    return (largest >> 32) == 0 ? __uint_as_float(INFINITE | 0x80000000u) : logit_of(largest) + 0.0f;
}

/* largest, largest_allowed: first entries of the row, and of its ids that may be drawn. */
IV_DEVICE row_view view_of(const float *logits, size_t row, size_t vocab, const uint32_t *allowed,
                           const iv_row_sampling &p, uint64_t largest, uint64_t largest_allowed) {
    row_view r;
    r.logits = logits + row * vocab, r.vocab = vocab, r.allowed = allowed;
    r.temperature = p.temperature;
    r.max = max_of(largest);
    r.reduced = divided(r, allowed ? max_of(largest_allowed) : r.max);
    r.min_p = p.min_p;
    r.draws = p.temperature != 0.0f && fabsf(r.reduced) < __uint_as_float(INFINITE);
    r.k = r.draws && p.top_k > 0 && (size_t)p.top_k < vocab ? (uint32_t)p.top_k : (uint32_t)vocab;
    r.top_p = r.draws && p.top_p < 1.0f ? p.top_p : 1.0f;
    r.filtered = r.k < vocab || r.top_p < 1.0f;
    r.lanes_min_p = r.filtered ? 0.0f : p.min_p;
    r.own_lanes = r.draws && r.k == vocab && (r.top_p < 1.0f || p.sampling_logprob) &&
                  (p.temperature != 1.0f || r.lanes_min_p > 0.0f || allowed);
    return r;
}

/* Four logits from i on, a multiple of 4; -infinity beyond the row. */
IV_DEVICE float4 four(const float *x, size_t i, size_t n) {
    if (n % 4 == 0) return *(const float4 *)(x + i);
    float none = __uint_as_float(INFINITE | 0x80000000u);
    return make_float4(x[i], i + 1 < n ? x[i + 1] : none, i + 2 < n ? x[i + 2] : none, i + 3 < n ? x[i + 3] : none);
}

/* COUNT groups of four per thread, THREADS * 4 apart, of [from, to): all are loaded before any is used. Undefined
 * beyond `to`. */
template <int COUNT, int THREADS>
IV_DEVICE void fours(const float *x, size_t from, size_t to, size_t n, float4 q[COUNT]) {
    size_t first = from + 4 * threadIdx.x;
    if (n % 4 != 0) {
        for (int j = 0; j < COUNT; j++)
            if (first + j * 4 * THREADS < to) q[j] = four(x, first + j * 4 * THREADS, n);
        return;
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        size_t i = first + j * 4 * THREADS;
        const float *p = x + (i < to ? i : 0);
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(q[j].x), "=f"(q[j].y), "=f"(q[j].z), "=f"(q[j].w)
                     : "l"(p));
    }
}

/* Calls f(logit, id) for the tokens of [from, to), by a block. `from` is a multiple of 4. A group of four is skipped
 * if `none` of it is of interest; what is not allowed has -infinity. */
template <int THREADS, class all_of, class token_of>
IV_DEVICE void each_token(const row_view &r, size_t from, size_t to, all_of none, token_of f) {
    enum { AHEAD = 4 };
#pragma unroll 1
    for (; from < to; from += AHEAD * 4 * THREADS) {
        float4 q[AHEAD];
        fours<AHEAD, THREADS>(r.logits, from, to, r.vocab, q);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            size_t i = from + 4 * (threadIdx.x + j * THREADS);
            if (i >= to || none(q[j])) continue;
#pragma unroll 1
            for (int e = 0; e < 4 && i + e < to; e++) {
                float x = e < 2 ? (e == 0 ? q[j].x : q[j].y) : e == 2 ? q[j].z : q[j].w;
                f(is_allowed(r.allowed, i + e) ? x : __uint_as_float(INFINITE | 0x80000000u), (uint32_t)i + e);
            }
        }
    }
}

/* ---- noise ------------------------------------------------------------------------------------------------- */

IV_DEVICE uint4 philox(uint32_t block, uint64_t position, uint64_t seed) {
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

/* An upper bound of the noise of these bits. */
IV_DEVICE float noise_bound(uint32_t bits) { return (float)(__clz(bits) + 1 + (bits == 0)) * 0.6931472f + 0.25f; }
/* A lower bound of all noise. */
#define NOISE_LEAST (-0x1.67e092p+1f)

/* Compares a token, with noise, with the best so far. A token that cannot reach the maximum with the least noise is
 * skipped. */
static __device__ __noinline__ uint64_t compete(float max, float min_p, float x, uint32_t bits, uint32_t id,
                                                uint64_t best) {
    if (!(fabsf(max) < __uint_as_float(INFINITE))) { /* a division overflowed: no noise */
        uint64_t entry = entry_of(x, id);
        return entry > best ? entry : best;
    }
    if (x + noise_bound(bits) < max + NOISE_LEAST) return best;
    if (min_p > 0.0f && !(v_exp(x - max) >= min_p)) return best;
    uint64_t entry = entry_of(x + gumbel_of(bits), id);
    return entry > best ? entry : best;
}
IV_DEVICE uint64_t consider(const row_view &r, float x, uint32_t bits, uint32_t id, uint64_t best) {
    return compete(r.reduced, r.min_p, x, bits, id, best);
}

/* A fast test that rejects nearly all tokens without a division: at most eight leading zeros, and a logit too low
 * for their noise. logit * inverse approximates the quotient within the margin in `low`; if that is not certain, low
 * is -infinity. */
#define FEW_ZEROS 0x00800000u
#define FEW_ZEROS_NOISE 6.5f
typedef struct hopeless {
    float inverse, low;
} hopeless;

IV_DEVICE hopeless hopeless_of(const row_view &r) {
    hopeless h;
    h.inverse = __fdiv_rn(1.0f, r.temperature);
    h.low = r.reduced + NOISE_LEAST - FEW_ZEROS_NOISE - (fabsf(r.reduced) + 32.0f) * 0x1p-20f;
    if (!(h.inverse > 0x1p-100f && h.inverse < 0x1p100f && fabsf(h.low) < __uint_as_float(INFINITE)))
        h.low = __uint_as_float(INFINITE | 0x80000000u);
    return h;
}

IV_DEVICE uint32_t noise_bits(const iv_row_sampling &p, uint32_t id) {
    uint4 n = philox(id / 4, p.position, p.seed);
    return id % 4 == 0 ? n.x : id % 4 == 1 ? n.y : id % 4 == 2 ? n.z : n.w;
}

/* ---- sums over a block ----------------------------------------------------------------------------------------- */

IV_DEVICE float fold_lanes(const float *lanes) {
    float l[LANES / 32];
#pragma unroll
    for (int j = 0; j < LANES / 32; j++) l[j] = lanes[threadIdx.x % 32 + 32 * j];
    float s = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    for (int stride = 16; stride > 0; stride /= 2) s = s + __shfl_xor_sync(WHOLE_WARP, s, stride);
    return s;
}

/* Inclusive sums over the threads of a block; `parts`: one per warp. For numbers that add without rounding, or for
 * estimates. */
template <class number> IV_DEVICE number scan_block(number x, number *parts) {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (unsigned stride = 1; stride < 32; stride *= 2) {
        number lower = __shfl_up_sync(WHOLE_WARP, x, stride);
        if (lane >= stride) x += lower;
    }
    __syncthreads(); /* parts may still be in use by the previous call */
    if (lane == 31) parts[warp] = x;
    __syncthreads();
    number before = lane < warp ? parts[lane] : 0;
    for (int stride = 16; stride > 0; stride /= 2) before += __shfl_xor_sync(WHOLE_WARP, before, stride);
    return x + before;
}

#endif
