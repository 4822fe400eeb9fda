/* single_ops.cu: single_ops.h. Copies are bound by memory: eight elements a thread where the layout allows it. */
#include "kernels/cuda/single_ops.h"
#include "kernels/cuda/eights.cuh"
#include "kernels/cuda/launch.cuh"

/* ---- rows and columns -------------------------------------------------------------------------------------------- */

/* V elements from one 16-byte address on. */
template <class word, int V> IV_DEVICE void copy_whole(const word *from, word *to) {
    static_assert(V * sizeof(word) % 16 == 0, "whole vectors");
#pragma unroll
    for (unsigned i = 0; i < V * sizeof(word) / 16; i++) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

template <class word, int V>
static __global__ void __launch_bounds__(EIGHTS_THREADS) take(const __grid_constant__ iv_gpu_take_args a) {
    iv_let_next();
    iv_wait();
    size_t c = first_column<V>();
    if (c >= a.out_stride) return;
    int64_t row = a.rows ? a.rows[blockIdx.x] : (int64_t)blockIdx.x;
    alignas(16) word v[V] = {};
    int64_t column[V];
    bool whole = V > 1;
#pragma unroll
    for (int j = 0; j < V; j++) {
        column[j] = row < 0 || c + j >= a.n ? -1 : a.columns ? a.columns[c + j] : (int64_t)(a.first + c + j);
        whole = whole && column[j] >= 0 && column[j] == column[0] + j;
    }
    const word *from = (const word *)a.x + (row < 0 ? 0 : row) * a.x_stride;
    word *to = (word *)a.out + blockIdx.x * a.out_stride + c;
    if (V == 1) {
        *to = column[0] < 0 ? (word)0 : from[column[0]];
        return;
    }
    if (whole && column[0] % V == 0) {
        copy_whole<word, V == 1 ? 8 : V>(from + column[0], v);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            if (column[j] >= 0) v[j] = from[column[j]];
    }
    copy_whole<word, V == 1 ? 8 : V>(v, to);
}

template <class word> static int launch_take(const iv_gpu_take_args *a, cudaStream_t stream) {
    bool fits = a->out_stride % 8 == 0 && iv_fits_eights(a->type, a->x, a->x_stride) &&
                iv_fits_eights(a->type, a->out, a->out_stride);
    return iv_launch(fits ? take<word, 8> : take<word, 1>, iv_eights_grid(a->count, a->out_stride, fits ? 8 : 1),
                     EIGHTS_THREADS, stream, *a);
}

int iv_gpu_take(const iv_gpu_take_args *a, iv_gpu_stream stream) {
    if (a->count == 0 || a->out_stride == 0) return 0;
    if (a->n > a->out_stride || a->type > IV_F32 || a->count > INT32_MAX) return (int)cudaErrorInvalidValue;
    return a->type == IV_F32 ? launch_take<uint32_t>(a, (cudaStream_t)stream)
                             : launch_take<uint16_t>(a, (cudaStream_t)stream);
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

enum { KV_THREADS = 128 };

template <class word> IV_DEVICE bool is_finite(word bits, uint32_t exponent) { return (bits & exponent) != exponent; }

/* A block has a row; a thread V elements of a head at a time. */
template <class word, int V>
static __global__ void __launch_bounds__(KV_THREADS)
    write_kv(const __grid_constant__ iv_gpu_write_kv_args a, uint32_t exponent) {
    iv_let_next();
    iv_wait();
    unsigned d = (unsigned)a.kv.head_dim, n = (unsigned)a.kv.heads * d;
    int64_t slot = a.slots[blockIdx.x];
    const word *k = (const word *)a.k + (size_t)blockIdx.x * n, *v = (const word *)a.v + (size_t)blockIdx.x * n;
    size_t block = (size_t)IV_ATTENTION_BLOCK * d, page = (size_t)slot / IV_ATTENTION_BLOCK * a.kv.heads * 2 * block,
           in_page = (size_t)slot % IV_ATTENTION_BLOCK * d;
    bool finite = true;
    for (unsigned i = threadIdx.x * V; i < n; i += KV_THREADS * V) {
        word *keys = (word *)a.kv.pages + page + i / d * 2 * block + in_page + i % d, *values = keys + block;
        alignas(16) word x[2][V];
        if (V == 1) {
            x[0][0] = k[i], x[1][0] = v[i], *keys = x[0][0], *values = x[1][0];
        } else {
            copy_whole<word, V == 1 ? 8 : V>(k + i, x[0]), copy_whole<word, V == 1 ? 8 : V>(v + i, x[1]);
            copy_whole<word, V == 1 ? 8 : V>(x[0], keys), copy_whole<word, V == 1 ? 8 : V>(x[1], values);
        }
#pragma unroll
        for (int j = 0; j < V; j++) finite = finite && is_finite(x[0][j], exponent) && is_finite(x[1][j], exponent);
    }
    if (!finite) atomicMin((unsigned long long *)a.bad, (unsigned long long)blockIdx.x);
}

template <class word> static int launch_kv(const iv_gpu_write_kv_args *a, uint32_t exponent, cudaStream_t stream) {
    bool fits = a->kv.head_dim % 8 == 0 && ((uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->kv.pages) % 16 == 0;
    return iv_launch(fits ? write_kv<word, 8> : write_kv<word, 1>, dim3((unsigned)a->rows), KV_THREADS, stream, *a,
                     exponent);
}

int iv_gpu_write_kv(const iv_gpu_write_kv_args *a, iv_gpu_stream stream) {
    if (a->rows == 0) return 0;
    if (a->rows > INT32_MAX || a->kv.heads * a->kv.head_dim > INT32_MAX / 2) return (int)cudaErrorInvalidValue;
    switch (a->kv.type) {
    case IV_BF16: return launch_kv<uint16_t>(a, 0x7f80u, (cudaStream_t)stream);
    case IV_F16: return launch_kv<uint16_t>(a, 0x7c00u, (cudaStream_t)stream);
    case IV_F32: return launch_kv<uint32_t>(a, 0x7f800000u, (cudaStream_t)stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- row ops ------------------------------------------------------------------------------------------------------
 */

/* Thread t is lane t of the law. */
template <iv_dtype T>
static __global__ void __launch_bounds__(LANES) row_products(const float *a, const void *b, size_t n, float *out) {
    __shared__ float lanes[LANES];
    iv_let_next();
    iv_wait();
    size_t at = blockIdx.x * n;
    float lane = 0.0f;
    for (size_t i = threadIdx.x; i < n; i += LANES) lane = __fmaf_rn(a[at + i], get<T>(b, at + i), lane);
    float sum = fold_block(lane, lanes);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

int iv_gpu_row_products(const float *a, const void *b, iv_dtype type, size_t rows, size_t n, float *out,
                        iv_gpu_stream stream) {
    if (rows == 0) return 0;
    if (rows > INT32_MAX || type > IV_F32) return (int)cudaErrorInvalidValue;
    auto *kernel = type == IV_BF16  ? row_products<IV_BF16>
                   : type == IV_F16 ? row_products<IV_F16>
                                    : row_products<IV_F32>;
    return iv_launch(kernel, dim3((unsigned)rows), LANES, (cudaStream_t)stream, a, b, n, out);
}

static __global__ void __launch_bounds__(EIGHTS_THREADS) scale_rows(float *x, const float *by, size_t n) {
    iv_let_next();
    iv_wait();
    size_t i = first_column<1>();
    if (i < n) x[blockIdx.x * n + i] = x[blockIdx.x * n + i] * by[blockIdx.x];
}

int iv_gpu_scale_rows(float *x, const float *by, size_t rows, size_t n, iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    if (rows > INT32_MAX) return (int)cudaErrorInvalidValue;
    return iv_launch(scale_rows, iv_eights_grid(rows, n, 1), EIGHTS_THREADS, (cudaStream_t)stream, x, by, n);
}

static __global__ void __launch_bounds__(EIGHTS_THREADS)
    coefficients(const float *d, float temperature, size_t n, float *out) {
    iv_let_next();
    iv_wait();
    size_t i = (size_t)blockIdx.x * EIGHTS_THREADS + threadIdx.x;
    if (i < n) out[i] = __fdiv_rn(-d[i], temperature);
}

int iv_gpu_logprob_coefficients(const float *d, float temperature, size_t n, float *out, iv_gpu_stream stream) {
    if (n == 0) return 0;
    return iv_launch(coefficients, dim3((unsigned)((n + EIGHTS_THREADS - 1) / EIGHTS_THREADS)), EIGHTS_THREADS,
                     (cudaStream_t)stream, d, temperature, n, out);
}
