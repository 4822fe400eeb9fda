/* rotate_backward.cu: the backward op of rotation and head norms: NUMERICS.md 15.6 and 15.7. A warp, or half of it, has
 * a leaf of a row: its query heads, then its key heads, in ascending order, so that a leaf's terms are one chain; then
 * its values. A block has ROTATE_WARPS leaves, or twice as many, of one row or several. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"
#include "kernels/cuda/rows.cuh"

enum { ROTATE_WARPS = IV_LEAVES_MAX };

typedef iv_gpu_rotate_backward_args rotate_args;

template <iv_dtype T> IV_DEVICE void put_zeros(void *row, size_t from, size_t to) { /* by a warp */
    for (size_t i = from + threadIdx.x % 32; i < to; i += 32) put<T>(row, i, 0.0f);
}

/* ---- any shape -------------------------------------------------------------------------------------------------- */

/* A part of dy: columns that begin at `to`. */
typedef struct leaf_part {
    unsigned first, heads; /* of dqkv's row, in heads */
    unsigned to, padded;   /* of dy's row, in elements */
} leaf_part;

/* q's, k's or v's part (0, 1, 2) of a leaf. */
IV_DEVICE leaf_part part_of(const rotate_args &a, unsigned leaf, int which) {
    unsigned heads = (unsigned)a.heads, kv_heads = (unsigned)a.kv_heads, d = (unsigned)a.head_dim;
    unsigned q = heads / (unsigned)a.leaves, kv = kv_heads / (unsigned)a.leaves;
    unsigned q_padded = (q * d + 15) / 16 * 16, kv_padded = (kv * d + 15) / 16 * 16;
    leaf_part p;
    p.heads = which == 0 ? q : kv;
    p.first = which == 0 ? leaf * q : heads + (which - 1) * kv_heads + leaf * kv;
    p.to = leaf * (q_padded + 2 * kv_padded + (unsigned)a.behind) + (which == 0 ? 0 : q_padded + (which - 1) * kv_padded);
    p.padded = which == 0 ? q_padded : kv_padded;
    return p;
}

template <iv_dtype T, int PER, bool EXACT> IV_DEVICE void load_typed_head(const void *from, unsigned d, float x[PER]) {
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < PER; j++) x[j] = EXACT || lane + 32 * j < d ? get<T>(from, lane + 32 * j) : 0.0f;
}

/* norm' of a head with input `raw`: dy becomes dx; h gains the weights' terms. */
template <int PER, bool EXACT>
IV_DEVICE void head_norm_backward(float dy[PER], float raw[PER], const float w[PER], unsigned d, float eps,
                                  float h[PER]) {
    float l[WARPS] = {0}, g[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) l[j % WARPS] = __fmaf_rn(raw[j], raw[j], l[j % WARPS]);
    float r = norm_scale(fold_warp(fold_far(l)), d, eps);
#pragma unroll
    for (int j = 0; j < WARPS; j++) l[j] = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        g[j] = dy[j] * w[j], raw[j] = raw[j] * r;
        if (EXACT || threadIdx.x % 32 + 32 * j < d) l[j % WARPS] = __fmaf_rn(g[j], raw[j], l[j % WARPS]);
    }
    float c = __fdiv_rn(fold_warp(fold_far(l)), (float)d);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        h[j] = iv_canon(__fmaf_rn(dy[j], raw[j], h[j]));
        dy[j] = iv_canon(__fmaf_rn(-raw[j], c, g[j]) * r);
    }
}

/* The heads of a leaf of q (which = 0) or k (1). The next head is loaded ahead. */
template <iv_dtype T, int PER, bool EXACT>
IV_DEVICE void heads_backward(const rotate_args &a, size_t row, unsigned leaf, int which, const float c[PER],
                              const float s[PER], float *swap, float h[PER]) {
    unsigned lane = threadIdx.x % 32, d = EXACT ? 32 * PER : (unsigned)a.head_dim;
    constexpr size_t element = T == IV_F32 ? 4 : 2;
    leaf_part p = part_of(a, leaf, which);
    const float *norm = which == 0 ? a.q_norm : a.k_norm;
    float *at = a.dqkv + (row * (a.heads + 2 * a.kv_heads) + p.first) * d, x[PER], next[PER], raw[PER], next_raw[PER];
    const char *raws = (const char *)(which == 0 ? a.q_raw : a.k_raw) +
                       (row * (which == 0 ? a.heads : a.kv_heads) + leaf * p.heads) * d * element;
    char *to = (char *)a.dy + (row * a.dy_stride + p.to) * element;
    float w[PER];
    load_head<PER, EXACT>(at, d, x);
    if (norm) load_typed_head<T, PER, EXACT>(raws, d, raw), load_head<PER, EXACT>(norm, d, w);
#pragma unroll 1
    for (unsigned left = p.heads; left > 0; left--, to += d * element) {
        raws += d * element;
        if (left > 1) load_head<PER, EXACT>(at + d, d, next);
        if (left > 1 && norm) load_typed_head<T, PER, EXACT>(raws, d, next_raw);
        if (norm && a.norms_behind) head_norm_backward<PER, EXACT>(x, raw, w, d, a.eps, h);
        rotate_head<PER, EXACT>(x, c, s, d, swap);
#pragma unroll
        for (int j = 0; j < PER; j++) x[j] = iv_canon(x[j]);
        if (norm && !a.norms_behind) head_norm_backward<PER, EXACT>(x, raw, w, d, a.eps, h);
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (EXACT || lane + 32 * j < d) {
                if (a.keeps) at[lane + 32 * j] = x[j];
                put<T>(to, lane + 32 * j, x[j]);
            }
        at += d;
#pragma unroll
        for (int j = 0; j < PER; j++) x[j] = next[j], raw[j] = next_raw[j];
    }
    put_zeros<T>(to, 0, p.padded - p.heads * d);
}

template <iv_dtype T, int PER, bool EXACT>
IV_DEVICE void round_values(const rotate_args &a, size_t row, unsigned leaf) {
    constexpr size_t element = T == IV_F32 ? 4 : 2;
    unsigned d = EXACT ? 32 * PER : (unsigned)a.head_dim;
    leaf_part p = part_of(a, leaf, 2);
    const float *from = a.dqkv + (row * (a.heads + 2 * a.kv_heads) + p.first) * d;
    char *to = (char *)a.dy + (row * a.dy_stride + p.to) * element;
#pragma unroll 4
    for (unsigned i = threadIdx.x % 32; i < p.heads * d; i += 32) put<T>(to, i, from[i]);
    put_zeros<T>(to, p.heads * d, p.padded);
}

/* A row's terms: the tree over its leaves, whose warps are neighbors. By the whole block. */
template <int PER>
IV_DEVICE void put_terms(const rotate_args &a, size_t row, int which, const float h[PER], float (*leaf)[PER * 32]) {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, leaves = (unsigned)a.leaves,
             first = warp / leaves * leaves;
    float *to = a.terms + (row * 2 + which) * a.head_dim;
    __syncthreads(); /* heads are exchanged in this memory too */
#pragma unroll
    for (int j = 0; j < PER; j++) leaf[warp][lane + 32 * j] = h[j];
    __syncthreads();
    for (unsigned e = (warp - first) * 32 + lane; e < a.head_dim && row < a.rows; e += leaves * 32) {
        float t[IV_LEAVES_MAX];
#pragma unroll
        for (unsigned i = 0; i < IV_LEAVES_MAX; i++) t[i] = i < leaves ? leaf[first + i][e] : 0.0f;
#pragma unroll
        for (unsigned stride = 1; stride < IV_LEAVES_MAX; stride *= 2)
#pragma unroll
            for (unsigned i = 0; i < IV_LEAVES_MAX; i += 2 * stride)
                if (stride < leaves) t[i] = t[i] + t[i + stride];
        to[e] = t[0];
    }
    __syncthreads();
}

/* Blocks of a multiprocessor: as many as fit without spilled registers. */
static constexpr int rotate_blocks(int per, bool exact) {
    return per <= 4 ? (per == 2 || exact ? 4 : 3) : per <= 8 ? 2 : 1;
}

template <iv_dtype T, int PER, bool EXACT>
static __global__ void __launch_bounds__(ROTATE_WARPS * 32, rotate_blocks(PER, EXACT))
    rotate_backward(const __grid_constant__ rotate_args a) {
    __shared__ float swap[ROTATE_WARPS][PER * 32];
    unsigned warp = threadIdx.x / 32, leaves = (unsigned)a.leaves, leaf = warp % leaves;
    unsigned d = EXACT ? 32 * PER : (unsigned)a.head_dim;
    size_t row = blockIdx.x * (ROTATE_WARPS / leaves) + warp / leaves;
    iv_let_next();
    iv_wait();
    int32_t position = row < a.rows ? a.positions[row] : -1;
    float c[PER], s[PER];
    if (position >= 0) {
        load_angles<PER, EXACT>(a.cosine + (size_t)position * (d / 2), d, c);
        load_angles<PER, EXACT>(a.sine + (size_t)position * (d / 2), d, s);
#pragma unroll
        for (int j = 0; j < PER; j++) s[j] = -s[j];
    }
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        float h[PER] = {0};
        if (position >= 0) heads_backward<T, PER, EXACT>(a, row, leaf, which, c, s, swap[warp], h);
        if (a.q_norm) put_terms<PER>(a, row, which, h, swap);
    }
    if (row >= a.rows) return;
    leaf_part last = part_of(a, leaf, 2);
    unsigned end = last.to + last.padded, begin = part_of(a, leaf, 0).to;
    char *dy = (char *)a.dy + row * a.dy_stride * (T == IV_F32 ? 4 : 2);
    if (position >= 0)
        round_values<T, PER, EXACT>(a, row, leaf);
    else
        put_zeros<T>(dy, begin, end);
    if (leaf + 1 == leaves) put_zeros<T>(dy, end + a.behind, a.dy_stride);
}

template <iv_dtype T, bool EXACT> static int launch_rotate(const rotate_args *a, cudaStream_t stream) {
    size_t d = a->head_dim, rows = ROTATE_WARPS / a->leaves;
    auto *kernel = d <= 64    ? rotate_backward<T, 2, EXACT>
                   : d <= 128 ? rotate_backward<T, 4, EXACT>
                   : d <= 256 ? rotate_backward<T, 8, EXACT>
                              : rotate_backward<T, 16, EXACT>;
    return iv_launch(kernel, dim3((unsigned)((a->rows + rows - 1) / rows)), ROTATE_WARPS * 32, stream, *a);
}

template <iv_dtype T> static int launch_rotate_of(const rotate_args *a, cudaStream_t stream) {
    size_t d = a->head_dim;
    return d == 64 || d == 128 || d == 256 || d == 512 ? launch_rotate<T, true>(a, stream)
                                                       : launch_rotate<T, false>(a, stream);
}

/* ---- heads of 128 and 256, 16 bits ------------------------------------------------------------------------------ */

/* Half a warp has a head, and the other half the same head of the next row, so that sums, divisions and addresses are
 * those of two heads. A lane has elements 64 j + 4 lane, and the three after it, for j < FOURS: loads of 16 and eight
 * bytes, and both elements that are rotated together. Blocks go from row to row, and each warp loads two heads ahead,
 * also of the next row. */
enum { ROTATE_HALVES = 2 * ROTATE_WARPS };

template <int FOURS> struct head {
    float4 x[FOURS];
    uint2 raw[FOURS];
};

/* A row of half a warp: its position; -1: padding, or no row. */
typedef struct walk {
    unsigned row;
    int32_t position;
} walk;

/* Heads of a leaf: q's, then k's, then v's. */
typedef struct leaf_heads {
    unsigned leaf, q, kv, all;
    int to_k, to_v; /* elements from the end of q's to k's first, from the end of k's to v's */
} leaf_heads;

/* The head that is loaded next. */
typedef struct loading {
    const float *x;
    const uint16_t *raw;
    unsigned row, head;
    bool here;
} loading;

IV_DEVICE unsigned half_lane(void) { return threadIdx.x % 16; }

IV_DEVICE walk row_at(const rotate_args &a, unsigned row) { return {row, row < a.rows ? a.positions[row] : -1}; }

IV_DEVICE leaf_heads leaf_of(const rotate_args &a, unsigned leaf, unsigned d) {
    unsigned leaves = (unsigned)a.leaves;
    leaf_heads l = {leaf, (unsigned)a.heads / leaves, (unsigned)a.kv_heads / leaves, 0, 0, 0};
    l.all = l.q + 2 * l.kv;
    l.to_k = (int)((a.heads + leaf * l.kv - (leaf + 1) * l.q) * d), l.to_v = (int)((a.kv_heads - l.kv) * d);
    return l;
}

IV_DEVICE loading begin_row(const rotate_args &a, const leaf_heads &l, const walk &w, unsigned d) {
    size_t x = w.row * (a.heads + 2 * a.kv_heads) + l.leaf * l.q, raw = w.row * a.heads + l.leaf * l.q;
    return {a.dqkv + x * d, (const uint16_t *)a.q_raw + raw * d, w.row, 0, w.position >= 0};
}

template <int FOURS> IV_DEVICE void load_fours(const float *from, float4 (&to)[FOURS]) {
#pragma unroll
    for (int j = 0; j < FOURS; j++) to[j] = *(const float4 *)(from + 64 * j + 4 * half_lane());
}

/* Loads a head; `then` is the row after the one that is processed. */
template <int FOURS>
IV_DEVICE void load_next(const rotate_args &a, const leaf_heads &l, const walk &then, loading &at, head<FOURS> &to) {
    constexpr unsigned D = 64 * FOURS;
    if (at.here) {
        load_fours<FOURS>(at.x, to.x);
        if (a.q_norm && at.head < l.q + l.kv)
#pragma unroll
            for (int j = 0; j < FOURS; j++) to.raw[j] = *(const uint2 *)(at.raw + 64 * j + 4 * half_lane());
    }
    at.head++, at.x += D, at.raw += D;
    if (at.head == l.q) at.x += l.to_k, at.raw = (const uint16_t *)a.k_raw + (at.row * a.kv_heads + l.leaf * l.kv) * D;
    if (at.head == l.q + l.kv) at.x += l.to_v;
    if (at.head == l.all) at = begin_row(a, l, then, D);
}

IV_DEVICE float4 sum4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
IV_DEVICE float from_lane(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

/* The fold of section 4 over lanes 64 j + 4 lane + i; no lane is -0. In every lane of the half. Lanes first divide the
 * four sums among them: at stride 32 two each, at stride 16 one. */
template <int FOURS> IV_DEVICE float fold_fours(const float4 (&l)[FOURS]) {
    float4 s;
    if constexpr (FOURS == 2) s = sum4(l[0], l[1]);
    if constexpr (FOURS == 4) s = sum4(sum4(l[0], l[2]), sum4(l[1], l[3]));
    bool two = threadIdx.x & 8, one = threadIdx.x & 4;
    float x = (two ? s.z : s.x) + from_lane(two ? s.x : s.z, 8), y = (two ? s.w : s.y) + from_lane(two ? s.y : s.w, 8);
    float sum = (one ? y : x) + from_lane(one ? x : y, 4);
    sum = sum + from_lane(sum, 2), sum = sum + from_lane(sum, 1);
    sum = sum + from_lane(sum, 8);
    return sum + from_lane(sum, 4);
}

/* Calls f for each of four components. */
#define EACH_OF_FOUR(f) f(x) f(y) f(z) f(w)

/* rope' */
template <int FOURS>
IV_DEVICE void rotate_fours(float4 (&x)[FOURS], const float4 (&c)[FOURS / 2], const float4 (&s)[FOURS / 2]) {
#pragma unroll
    for (int j = 0; j < FOURS / 2; j++) {
        float4 u = x[j], v = x[j + FOURS / 2];
#define ROTATE(i) \
    x[j].i = __fmaf_rn(u.i, c[j].i, -(v.i * -s[j].i)), x[j + FOURS / 2].i = __fmaf_rn(v.i, c[j].i, u.i * -s[j].i);
        EACH_OF_FOUR(ROTATE)
#undef ROTATE
    }
}

template <iv_dtype T> IV_DEVICE float4 widened(uint2 raw) {
    return make_float4(iv_widen16(T, (uint16_t)raw.x), iv_widen16(T, (uint16_t)(raw.x >> 16)),
                       iv_widen16(T, (uint16_t)raw.y), iv_widen16(T, (uint16_t)(raw.y >> 16)));
}

/* norm' of a head: dy becomes dx; h gains the weights' terms. Products with 1 / D are exact quotients by D, a power of
 * two. */
template <iv_dtype T, int FOURS>
IV_DEVICE void fours_norm_backward(float4 (&dy)[FOURS], const uint2 (&raw)[FOURS], const float *weights, float eps,
                                   float4 (&h)[FOURS]) {
    constexpr float SHARE = 1.0f / (64 * FOURS);
    float4 x[FOURS], g[FOURS], l[FOURS], w[FOURS];
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        x[j] = widened<T>(raw[j]);
#define SQUARE(i) l[j].i = __fmaf_rn(x[j].i, x[j].i, 0.0f);
        EACH_OF_FOUR(SQUARE)
#undef SQUARE
    }
    float r = __fdiv_rn(1.0f, __fsqrt_rn(fold_fours<FOURS>(l) * SHARE + eps));
    load_fours<FOURS>(weights, w);
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
#define WEIGH(i) g[j].i = dy[j].i * w[j].i, x[j].i = x[j].i * r, l[j].i = __fmaf_rn(g[j].i, x[j].i, 0.0f);
        EACH_OF_FOUR(WEIGH)
#undef WEIGH
    }
    float c = fold_fours<FOURS>(l) * SHARE;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
#define FINISH(i) h[j].i = __fmaf_rn(dy[j].i, x[j].i, h[j].i), dy[j].i = __fmaf_rn(-x[j].i, c, g[j].i) * r;
        EACH_OF_FOUR(FINISH)
#undef FINISH
    }
}

/* Rows' terms: the tree over the leaves of each, which are neighbors in `terms`. By the whole block. */
template <int D> IV_DEVICE void put_row_terms(const rotate_args &a, unsigned first_row, const float *terms) {
    unsigned leaves = (unsigned)a.leaves;
    for (unsigned i = threadIdx.x; i < ROTATE_HALVES / leaves * 2 * D; i += ROTATE_WARPS * 32) {
        unsigned row = i / (2 * D), e = i % (2 * D);
        float t[IV_LEAVES_MAX];
#pragma unroll
        for (unsigned l = 0; l < IV_LEAVES_MAX; l++) t[l] = l < leaves ? terms[(row * leaves + l) * 2 * D + e] : 0.0f;
#pragma unroll
        for (unsigned stride = 1; stride < IV_LEAVES_MAX; stride *= 2)
#pragma unroll
            for (unsigned l = 0; l < IV_LEAVES_MAX; l += 2 * stride)
                if (stride < leaves) t[l] = t[l] + t[l + stride];
        if (first_row + row < a.rows) a.terms[(size_t)(first_row + row) * 2 * D + e] = iv_canon(t[0]);
    }
}

/* A head of a leaf into its columns of dy, and, for biases, back. */
template <iv_dtype T, int FOURS>
IV_DEVICE void put_fours(const rotate_args &a, const leaf_heads &l, const walk &w, unsigned t, const float4 (&x)[FOURS],
                         uint16_t *to) {
    constexpr unsigned D = 64 * FOURS;
    if (w.row >= a.rows) return;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        uint2 y = make_uint2(iv_pack16(T, x[j].x, x[j].y), iv_pack16(T, x[j].z, x[j].w));
        *(uint2 *)(to + 64 * j) = w.position < 0 ? make_uint2(0, 0) : y;
    }
    if (!a.keeps || t >= l.q + l.kv || w.position < 0) return;
    size_t first = t < l.q ? l.leaf * l.q + t : a.heads + l.leaf * l.kv + t - l.q;
    float *at = a.dqkv + (w.row * (a.heads + 2 * a.kv_heads) + first) * D + 4 * half_lane();
#pragma unroll
    for (int j = 0; j < FOURS; j++)
        *(float4 *)(at + 64 * j) = make_float4(iv_canon(x[j].x), iv_canon(x[j].y), iv_canon(x[j].z), iv_canon(x[j].w));
}

template <int FOURS>
IV_DEVICE void load_angles_of(const rotate_args &a, const walk &w, float4 (&c)[FOURS / 2], float4 (&s)[FOURS / 2]) {
    if (w.position < 0) return;
    load_fours<FOURS / 2>(a.cosine + (size_t)w.position * (32 * FOURS), c);
    load_fours<FOURS / 2>(a.sine + (size_t)w.position * (32 * FOURS), s);
}

/* Terms of half a warp's leaf; +0 of padding. */
template <int FOURS> IV_DEVICE void put_leaf_terms(const walk &w, const float4 (&h)[2][FOURS], float *to) {
#pragma unroll
    for (int j = 0; j < 2 * FOURS; j++)
        *(float4 *)(to + 64 * j + 4 * half_lane()) =
            w.position < 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : h[j / FOURS][j % FOURS];
}

template <iv_dtype T, int FOURS>
static __global__ void __launch_bounds__(ROTATE_WARPS * 32, FOURS == 2 ? 2 : 1)
    rotate_fours_backward(const __grid_constant__ rotate_args a) {
    constexpr unsigned D = 64 * FOURS;
    __shared__ __align__(16) float terms[ROTATE_HALVES][2 * D], norms[2][D];
    unsigned leaves = (unsigned)a.leaves, each = ROTATE_HALVES / leaves;
    unsigned leaf = threadIdx.x / 32 % leaves, own = threadIdx.x / 32 / leaves * 2 + threadIdx.x / 16 % 2;
    leaf_heads l = leaf_of(a, leaf, D);
    float4 c[FOURS / 2] = {}, s[FOURS / 2] = {}, next_c[FOURS / 2] = {}, next_s[FOURS / 2] = {};
    head<FOURS> now = {}, next = {}, after = {};
    iv_let_next();
    iv_wait();
    unsigned step = gridDim.x * each, first = blockIdx.x * each;
    walk w = row_at(a, first + own), then = row_at(a, first + own + step);
    if (a.q_norm && threadIdx.x < D)
        norms[0][threadIdx.x] = a.q_norm[threadIdx.x], norms[1][threadIdx.x] = a.k_norm[threadIdx.x];
    __syncthreads();
    loading at = begin_row(a, l, w, D);
    load_next<FOURS>(a, l, then, at, now), load_next<FOURS>(a, l, then, at, next);
    load_angles_of<FOURS>(a, w, c, s);
    for (; first < a.rows; first += step) {
        walk last = row_at(a, first + own + 2 * step);
        float4 h[2][FOURS] = {};
        uint16_t *to = (uint16_t *)a.dy + w.row * a.dy_stride + leaf * (l.all * D + a.behind) + 4 * half_lane();
        load_angles_of<FOURS>(a, then, next_c, next_s);
#pragma unroll 1
        for (unsigned t = 0; t < l.all; t++, to += D) { /* padding is computed too: its results are not written */
            load_next<FOURS>(a, l, then, at, after);
            if (t < l.q + l.kv) rotate_fours<FOURS>(now.x, c, s);
            if (a.q_norm && t < l.q) fours_norm_backward<T, FOURS>(now.x, now.raw, norms[0], a.eps, h[0]);
            if (a.q_norm && t >= l.q && t < l.q + l.kv)
                fours_norm_backward<T, FOURS>(now.x, now.raw, norms[1], a.eps, h[1]);
            put_fours<T, FOURS>(a, l, w, t, now.x, to);
            now = next, next = after;
        }
        uint16_t *row = (uint16_t *)a.dy + w.row * a.dy_stride;
        for (size_t i = leaves * (l.all * D + a.behind) + half_lane();
             leaf + 1 == leaves && w.row < a.rows && i < a.dy_stride; i += 16)
            put<T>(row, i, 0.0f);
        if (a.q_norm) {
            put_leaf_terms<FOURS>(w, h, terms[own * leaves + leaf]);
            __syncthreads();
            put_row_terms<D>(a, first, terms[0]);
            __syncthreads();
        }
        w = then, then = last;
#pragma unroll
        for (int j = 0; j < FOURS / 2; j++) c[j] = next_c[j], s[j] = next_s[j];
    }
}

/* Whole fours at their addresses. */
static bool fits_fours(const rotate_args *a) {
    uintptr_t floats =
        (uintptr_t)a->dqkv | (uintptr_t)a->cosine | (uintptr_t)a->sine | (uintptr_t)a->q_norm | (uintptr_t)a->k_norm;
    return (a->head_dim == 128 || a->head_dim == 256) && a->type != IV_F32 && !a->norms_behind && floats % 16 == 0 &&
           a->dy_stride % 4 == 0 && ((uintptr_t)a->q_raw | (uintptr_t)a->k_raw | (uintptr_t)a->dy) % 8 == 0;
}

template <iv_dtype T, int FOURS> static int launch_fours(const rotate_args *a, cudaStream_t stream) {
    size_t each = ROTATE_HALVES / a->leaves, blocks = (a->rows + each - 1) / each;
    size_t most = (size_t)iv_multiprocessors() * (FOURS == 2 ? 2 : 1);
    return iv_launch(rotate_fours_backward<T, FOURS>, dim3((unsigned)(blocks < most ? blocks : most)),
                     ROTATE_WARPS * 32, stream, *a);
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

/* Elements of the run. */
static size_t run_of(const rotate_args *a) {
    size_t q = a->heads / a->leaves * a->head_dim, kv = a->kv_heads / a->leaves * a->head_dim;
    return a->leaves * (iv_padded_k(q) + 2 * iv_padded_k(kv) + a->behind);
}

int iv_gpu_rotate_backward(const iv_gpu_rotate_backward_args *a, iv_gpu_stream stream) {
    if (a->rows == 0) return 0;
    if (a->rows > INT32_MAX) return (int)cudaErrorInvalidValue;
    size_t d = a->head_dim, leaves = a->leaves;
    if (d < 2 || d % 2 != 0 || d > 512 || leaves < 1 || leaves > IV_LEAVES_MAX || (leaves & (leaves - 1)) != 0 ||
        a->heads % leaves != 0 || a->kv_heads % leaves != 0 || a->dy_stride < run_of(a) || a->behind % 16 || !a->q_norm != !a->k_norm)
        return (int)cudaErrorInvalidValue;
    if (fits_fours(a)) {
        cudaStream_t s = (cudaStream_t)stream;
        if (d == 128) return a->type == IV_BF16 ? launch_fours<IV_BF16, 2>(a, s) : launch_fours<IV_F16, 2>(a, s);
        return a->type == IV_BF16 ? launch_fours<IV_BF16, 4>(a, s) : launch_fours<IV_F16, 4>(a, s);
    }
    switch (a->type) {
    case IV_BF16: return launch_rotate_of<IV_BF16>(a, stream);
    case IV_F16: return launch_rotate_of<IV_F16>(a, stream);
    case IV_F32: return launch_rotate_of<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

static __global__ void scale_queries(float *x, size_t n, size_t stride, const int32_t *positions, const float *scale) {
    iv_let_next();
    iv_wait();
    size_t i = (size_t)blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
    if (i < n && positions[row] >= 0) x[row * stride + i] *= scale[positions[row]];
}

int iv_gpu_scale_queries(float *x, size_t rows, size_t n, size_t stride, const int32_t *positions, const float *scale,
                         iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    return iv_launch(scale_queries, dim3((unsigned)rows, (unsigned)((n + 255) / 256)), 256, (cudaStream_t)stream, x, n,
                     stride, positions, scale);
}
