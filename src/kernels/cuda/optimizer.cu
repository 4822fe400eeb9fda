/* optimizer.cu: the optimizer's ops over rows of f32 in the flat layout: sums of squares, AdamW, sums of gradients,
 * rows of matrices from master weights, the search for values that are too large. Law: NUMERICS.md 15.1, 15.10.
 *
 * All of them are limited by memory: loads and stores are 16 bytes wide where the row allows it. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"

#include <math.h>
#include <string.h>

enum { THREADS = 256, CHUNK = 4096 }; /* elements of a block of threads */

static bool aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

static unsigned blocks_of(size_t n, size_t each) { return (unsigned)((n + each - 1) / each); }

/* ---- sums of squares ----------------------------------------------------------------------------------------- */

/* A thread is one of the eight lanes of a block's sum; a warp has four blocks. The product of two floats is exact in
 * f64, so the fused form has the bits of the law's product and sum. */
enum { SUM_LANES = 8, SUM_THREADS = 128, SUM_BATCH = 32 };

static __global__ void __launch_bounds__(SUM_THREADS) block_sums(const float *gradient, size_t blocks, double *sums) {
    iv_let_next();
    iv_wait();
    size_t block = ((size_t)blockIdx.x * SUM_THREADS + threadIdx.x) / SUM_LANES;
    unsigned j = threadIdx.x % SUM_LANES;
    size_t from = (block < blocks ? block : blocks - 1) * IV_OPTIMIZER_BLOCK; /* whole warps reach the shuffles */
    const float *g = gradient + from + j;
    double l = 0.0;
    for (int i = 0; i < IV_OPTIMIZER_BLOCK / SUM_LANES; i += SUM_BATCH, g += SUM_BATCH * SUM_LANES) {
        float x[SUM_BATCH];
#pragma unroll
        for (int k = 0; k < SUM_BATCH; k++) x[k] = g[k * SUM_LANES];
#pragma unroll
        for (int k = 0; k < SUM_BATCH; k++) l = __fma_rn((double)x[k], (double)x[k], l);
    }
    /* ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)), in every lane */
    l = l + __shfl_xor_sync(0xffffffffu, l, 4);
    l = l + __shfl_xor_sync(0xffffffffu, l, 2);
    l = l + __shfl_xor_sync(0xffffffffu, l, 1);
    if (j == 0 && block < blocks) sums[block] = l;
}

int iv_gpu_block_sums(const float *gradient, size_t n, double *sums, iv_gpu_stream stream) {
    if (n % IV_OPTIMIZER_BLOCK != 0) return (int)cudaErrorInvalidValue;
    if (n == 0) return 0;
    size_t blocks = n / IV_OPTIMIZER_BLOCK;
    return iv_launch(block_sums, dim3(blocks_of(blocks, SUM_THREADS / SUM_LANES)), SUM_THREADS, stream, gradient,
                     blocks, sums);
}

/* ---- AdamW ----------------------------------------------------------------------------------------------------- */

IV_DEVICE void adamw_element(const iv_adamw_step &s, bool decay, float gradient, float &w, float &m, float &v) {
    float g = gradient * s.scale;
    m = iv_canon(__fmaf_rn(s.b1, m, s.a1 * g));
    v = iv_canon(__fmaf_rn(s.b2, v, (s.a2 * g) * g));
    float d = __fsqrt_rn(v) * s.c2 + s.eps;
    if (decay) w = __fmaf_rn(s.k, w, w);
    w = iv_canon(w - s.c1 * __fdiv_rn(m, d));
}

/* Block b of threads has block b of the flat layout. */
static __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ iv_adamw_step s, const bool *decays,
                                                        const float *gradient, float *w, float *m, float *v) {
    iv_let_next();
    iv_wait();
    bool decay = decays[blockIdx.x] && s.k != 0.0f;
    size_t first = (size_t)blockIdx.x * IV_OPTIMIZER_BLOCK + 4 * threadIdx.x;
#pragma unroll 2
    for (int i = 0; i < IV_OPTIMIZER_BLOCK; i += 4 * THREADS) {
        size_t at = first + i;
        elements<4> g = load<4>(gradient + at), x = load<4>(w + at), y = load<4>(m + at), z = load<4>(v + at);
#pragma unroll
        for (int k = 0; k < 4; k++) adamw_element(s, decay, g.at[k], x.at[k], y.at[k], z.at[k]);
        store<4>(w + at, x), store<4>(m + at, y), store<4>(v + at, z);
    }
}

int iv_gpu_adamw(const iv_adamw_step *step, const bool *decays, const float *gradient, float *w, float *m, float *v,
                 size_t n, iv_gpu_stream stream) {
    if (n % IV_OPTIMIZER_BLOCK != 0) return (int)cudaErrorInvalidValue;
    if (!aligned16(gradient) || !aligned16(w) || !aligned16(m) || !aligned16(v)) return (int)cudaErrorInvalidValue;
    if (n == 0) return 0;
    return iv_launch(adamw, dim3((unsigned)(n / IV_OPTIMIZER_BLOCK)), THREADS, stream, *step, decays, gradient, w, m,
                     v);
}

/* ---- sums of gradients ----------------------------------------------------------------------------------------- */

template <int V> static __global__ void __launch_bounds__(THREADS) add_sums(float *a, const float *b, size_t n) {
    iv_let_next();
    iv_wait();
    size_t first = (size_t)blockIdx.x * CHUNK + V * threadIdx.x;
#pragma unroll 4
    for (int i = 0; i < CHUNK; i += V * THREADS) {
        size_t at = first + i;
        if (at + V <= n) {
            elements<V> x = load<V>(a + at), y = load<V>(b + at);
#pragma unroll
            for (int k = 0; k < V; k++) x.at[k] = x.at[k] + y.at[k];
            store<V>(a + at, x);
        } else {
#pragma unroll 1
            for (; at < n; at++) a[at] = a[at] + b[at]; /* less than a vector is left */
        }
    }
}

int iv_gpu_add_sums(float *a, const float *b, size_t n, iv_gpu_stream stream) {
    if (n == 0) return 0;
    return iv_launch(aligned16(a) && aligned16(b) ? add_sums<4> : add_sums<1>, dim3(blocks_of(n, CHUNK)), THREADS,
                     stream, a, b, n);
}

/* Rows may be other GPUs' memory. All loads of an element come before its additions. */
template <int COUNT> struct pointers {
    const float *at[COUNT];
};

template <int COUNT> static __global__ void __launch_bounds__(THREADS)
    sum_rows(const __grid_constant__ pointers<COUNT> from, float *out, size_t n) {
    iv_let_next();
    iv_wait();
    size_t first = (size_t)blockIdx.x * CHUNK + 4 * threadIdx.x;
#pragma unroll 2
    for (int i = 0; i < CHUNK; i += 4 * THREADS) {
        size_t at = first + i;
        if (at >= n) return;
        elements<4> x[COUNT];
#pragma unroll
        for (int r = 0; r < COUNT; r++) x[r] = load<4>(from.at[r] + at);
#pragma unroll
        for (int stride = 1; stride < COUNT; stride *= 2)
#pragma unroll
            for (int r = 0; r < COUNT; r += 2 * stride)
#pragma unroll
                for (int k = 0; k < 4; k++) x[r].at[k] = x[r].at[k] + x[r + stride].at[k];
        store<4>(out + at, x[0]);
    }
}

template <int COUNT> static int sum_of(const float *const *from, size_t n, float *out, iv_gpu_stream stream) {
    pointers<COUNT> p;
    bool aligned = aligned16(out) && n % 4 == 0;
    for (int r = 0; r < COUNT; r++) p.at[r] = from[r], aligned = aligned && aligned16(from[r]);
    if (!aligned) return (int)cudaErrorInvalidValue;
    return iv_launch(sum_rows<COUNT>, dim3(blocks_of(n, CHUNK)), THREADS, stream, p, out, n);
}

int iv_gpu_sum_rows(const float *const *from, size_t count, size_t n, float *out, iv_gpu_stream stream) {
    if (n == 0) return 0;
    switch (count) {
    case 1: return sum_of<1>(from, n, out, stream);
    case 2: return sum_of<2>(from, n, out, stream);
    case 4: return sum_of<4>(from, n, out, stream);
    case 8: return sum_of<8>(from, n, out, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- matrices from master weights ------------------------------------------------------------------------------ */

template <iv_dtype T> IV_DEVICE uint32_t rounded(float x) {
    return T == IV_F32 ? __float_as_uint(iv_canon(x)) : iv_round16(T, x);
}

/* Eight elements, at a 16-byte address. */
template <iv_dtype T> IV_DEVICE void put8(void *p, const float x[8]) {
    uint32_t words[T == IV_F32 ? 8 : 4];
#pragma unroll
    for (int i = 0; i < (T == IV_F32 ? 8 : 4); i++)
        words[i] = T == IV_F32 ? rounded<T>(x[i]) : rounded<T>(x[2 * i % 8]) | rounded<T>(x[(2 * i + 1) % 8]) << 16;
    ((uint4 *)p)[0] = make_uint4(words[0], words[1], words[2], words[3]);
    if (T == IV_F32)
        ((uint4 *)p)[1] = make_uint4(words[4 % (T == IV_F32 ? 8 : 4)], words[5 % (T == IV_F32 ? 8 : 4)],
                                     words[6 % (T == IV_F32 ? 8 : 4)], words[7 % (T == IV_F32 ? 8 : 4)]);
}

/* A thread has eight elements of a row; 1 << across threads have a row. */
template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS)
    write_rows(const float *master, const iv_gpu_packed_row *rows, size_t count, size_t k, size_t k_padded,
               unsigned across, char *out) {
    iv_let_next();
    iv_wait();
    size_t row = (size_t)blockIdx.x * (THREADS >> across) + (threadIdx.x >> across);
    size_t j = (((size_t)blockIdx.y << across) + (threadIdx.x & ((1u << across) - 1))) * 8;
    if (row >= count || j >= k_padded) return;
    const float *from = master + rows[row].from + j;
    float x[8];
    if (j + 8 <= k && (uintptr_t)from % 16 == 0) {
        elements<4> low = load<4>(from), high = load<4>(from + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = low.at[i], x[4 + i] = high.at[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = j + i < k ? from[i] : 0.0f;
    }
    put8<T>(out + rows[row].to + j * (T == IV_F32 ? 4 : 2), x);
}

template <iv_dtype T>
static int launch_write_rows(const float *master, const iv_gpu_packed_row *rows, size_t count, size_t k,
                             size_t k_padded, void *out, cudaStream_t stream) {
    unsigned across = 0;
    while ((1u << across) < THREADS && ((size_t)8 << across) < k_padded) across++;
    dim3 grid(blocks_of(count, THREADS >> across), blocks_of(k_padded, (size_t)8 << across));
    return iv_launch(write_rows<T>, grid, THREADS, stream, master, rows, count, k, k_padded, across, (char *)out);
}

int iv_gpu_write_rows(iv_dtype type, const float *master, const iv_gpu_packed_row *rows, size_t count, size_t k,
                      size_t k_padded, void *out, iv_gpu_stream stream) {
    if (k > k_padded || k_padded % 8 != 0 || !aligned16(out)) return (int)cudaErrorInvalidValue;
    if (count == 0 || k_padded == 0) return 0;
    switch (type) {
    case IV_BF16: return launch_write_rows<IV_BF16>(master, rows, count, k, k_padded, out, stream);
    case IV_F16: return launch_write_rows<IV_F16>(master, rows, count, k, k_padded, out, stream);
    case IV_F32: return launch_write_rows<IV_F32>(master, rows, count, k, k_padded, out, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- values that are too large --------------------------------------------------------------------------------- */

static __global__ void found_none(uint64_t *at) {
    iv_let_next();
    iv_wait();
    if (threadIdx.x == 0) *at = UINT64_MAX;
}

/* A NaN is above every limit. */
IV_DEVICE bool beyond(float x, uint32_t limit) { return (__float_as_uint(x) & 0x7fffffffu) >= limit; }

template <int V> IV_DEVICE bool any_beyond(const elements<V> &e, uint32_t limit) {
    bool any = false;
#pragma unroll
    for (int k = 0; k < V; k++) any = any || beyond(e.at[k], limit);
    return any;
}

/* A thread's elements ascend; it stops at the first that is beyond the limit. */
template <int V>
static __global__ void __launch_bounds__(THREADS) find_beyond(const float *x, size_t n, uint32_t limit, uint64_t *at) {
    enum { BATCH = 4 }; /* vectors whose loads overlap */
    iv_let_next();
    iv_wait();
    size_t stride = (size_t)gridDim.x * THREADS * V, i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * V;
    for (; i + (BATCH - 1) * stride + V <= n; i += BATCH * stride) {
        elements<V> e[BATCH];
        bool any = false;
#pragma unroll
        for (int k = 0; k < BATCH; k++) e[k] = load<V>(x + i + k * stride);
#pragma unroll
        for (int k = 0; k < BATCH; k++) any = any || any_beyond<V>(e[k], limit);
        if (any) break;
    }
#pragma unroll 1
    for (; i < n; i += stride) { /* one by one: the batch that has it, or the rest */
#pragma unroll 1
        for (int k = 0; k < V && i + k < n; k++) {
            if (!beyond(x[i + k], limit)) continue;
            atomicMin((unsigned long long *)at, (unsigned long long)(i + k));
            return;
        }
    }
}

int iv_gpu_find_beyond(const float *x, size_t n, float limit, uint64_t *at, iv_gpu_stream stream) {
    enum { BLOCKS_MAX = 2048 }; /* as many as a large GPU holds at once */
    uint32_t bits;
    if (!(limit > 0.0f)) return (int)cudaErrorInvalidValue;
    memcpy(&bits, &limit, sizeof bits);
    int e = iv_launch(found_none, dim3(1), 32, stream, at);
    if (e || n == 0) return e;
    size_t blocks = (n + CHUNK - 1) / CHUNK;
    return iv_launch(aligned16(x) ? find_beyond<4> : find_beyond<1>,
                     dim3((unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX)), THREADS, stream, x, n, bits, at);
}

int iv_gpu_find_not_finite(const float *x, size_t n, uint64_t *at, iv_gpu_stream stream) {
    return iv_gpu_find_beyond(x, n, INFINITY, at, stream);
}
