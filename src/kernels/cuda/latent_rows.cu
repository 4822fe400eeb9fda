/* latent_rows.cu: the rows of latent attention (law, section 18): the norms of its low ranks, the key that turns and
 * its page, and queries on their way to the latent. */
#include "kernels/cuda/latent.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

enum { QUERY_WARPS = 4 };

template <iv_dtype T> IV_DEVICE bool is_finite(uint32_t bits) {
    constexpr uint32_t exponent = T == IV_BF16 ? 0x7f80u : T == IV_F16 ? 0x7c00u : 0x7f800000u;
    return (bits & exponent) != exponent;
}

IV_DEVICE float row_scale(const float *x, size_t n, float eps, float *lanes) {
    float lane = 0.0f;
    for (size_t i = threadIdx.x; i < n; i += LANES) lane = __fmaf_rn(x[i], x[i], lane);
    return norm_scale(fold_block(lane, lanes), n, eps);
}

/* A block has a row. */
template <iv_dtype T>
static __global__ void __launch_bounds__(LANES) latent_rows(const __grid_constant__ iv_gpu_latent_rows_args a) {
    __shared__ float lanes[2][LANES];
    __shared__ int broken;
    extern __shared__ uint32_t key[]; /* [rank + turns] */
    size_t row = blockIdx.x, pairs = a.turns / 2, width = a.rank + a.turns;
    iv_let_next();
    iv_wait();
    const float *x = a.x + row * a.x_stride, *latent = x + a.latent_at, *turning = latent + a.rank;
    if (threadIdx.x == 0) broken = 0;
    if (a.low) {
        float r = row_scale(x, a.low, a.eps, lanes[0]);
        for (size_t i = threadIdx.x; i < a.low_stride; i += LANES)
            put<T>(a.low_out, row * a.low_stride + i, i < a.low ? (x[i] * r) * a.q_norm[i] : 0.0f);
    }
    int64_t slot = a.slots[row];
    if (slot < 0) return;
    float r = row_scale(latent, a.rank, a.eps, lanes[1]);
    bool finite = true;
    for (size_t i = threadIdx.x; i < a.rank; i += LANES) {
        key[i] = rounded<T>((latent[i] * r) * a.kv_norm[i]);
        finite = finite && is_finite<T>(key[i]);
    }
    size_t angles = (size_t)a.positions[row] * pairs;
    for (size_t i = threadIdx.x; i < pairs; i += LANES) {
        float c = a.cosine[angles + i], s = a.sine[angles + i], low = turning[i], high = turning[i + pairs];
        key[a.rank + i] = rounded<T>(__fmaf_rn(low, c, -(high * s)));
        key[a.rank + pairs + i] = rounded<T>(__fmaf_rn(high, c, low * s));
        finite = finite && is_finite<T>(key[a.rank + i]) && is_finite<T>(key[a.rank + pairs + i]);
    }
    if (!finite) broken = 1;
    __syncthreads();
    if (broken) {
        if (threadIdx.x == 0) atomicMin((unsigned long long *)a.bad, (unsigned long long)a.layer << 32 | row);
        return;
    }
    for (size_t i = threadIdx.x; i < width; i += LANES) put_bits<T>(a.pages, (size_t)slot * width + i, key[i]);
}

template <iv_dtype T> static int launch_rows(const iv_gpu_latent_rows_args *a, cudaStream_t stream) {
    return iv_launch_shared(latent_rows<T>, dim3((unsigned)a->rows), LANES, (a->rank + a->turns) * sizeof(uint32_t),
                            stream, *a);
}

int iv_gpu_latent_rows(const iv_gpu_latent_rows_args *a, iv_gpu_stream stream) {
    if (a->rows == 0) return 0;
    if (a->turns % 2 || a->rank + a->turns > IV_GPU_LATENT_MAX) return (int)cudaErrorInvalidValue;
    switch (a->type) {
    case IV_BF16: return launch_rows<IV_BF16>(a, stream);
    case IV_F16: return launch_rows<IV_F16>(a, stream);
    case IV_F32: return launch_rows<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* A warp has a head. */
template <iv_dtype T>
static __global__ void __launch_bounds__(32 * QUERY_WARPS)
    latent_queries(const __grid_constant__ iv_gpu_latent_queries_args a) {
    size_t row = blockIdx.x, head = (size_t)blockIdx.y * QUERY_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    iv_let_next();
    iv_wait();
    if (head >= a.heads) return;
    size_t pairs = a.turns / 2, position = (size_t)a.positions[row], at = row * a.heads + head;
    const float *x = a.x + row * a.x_stride + head * (a.keeps + a.turns), *turning = x + a.keeps;
    float scale = a.query ? a.query[position] : 1.0f;
    for (size_t i = lane; i < a.still_head; i += 32)
        put<T>(a.still, at * a.still_head + i, i < a.keeps ? x[i] * scale : 0.0f);
    size_t to = at * (a.rank + a.turns) + a.rank;
    for (size_t i = lane; i < pairs; i += 32) {
        float c = a.cosine[position * pairs + i], s = a.sine[position * pairs + i], low = turning[i],
              high = turning[i + pairs];
        put<T>(a.q, to + i, __fmaf_rn(low, c, -(high * s)) * scale);
        put<T>(a.q, to + pairs + i, __fmaf_rn(high, c, low * s) * scale);
    }
}

int iv_gpu_latent_queries(const iv_gpu_latent_queries_args *a, iv_gpu_stream stream) {
    if (a->rows == 0 || a->heads == 0) return 0;
    if (a->turns % 2) return (int)cudaErrorInvalidValue;
    dim3 grid((unsigned)a->rows, (unsigned)((a->heads + QUERY_WARPS - 1) / QUERY_WARPS));
    switch (a->type) {
    case IV_BF16: return iv_launch(latent_queries<IV_BF16>, grid, 32 * QUERY_WARPS, (cudaStream_t)stream, *a);
    case IV_F16: return iv_launch(latent_queries<IV_F16>, grid, 32 * QUERY_WARPS, (cudaStream_t)stream, *a);
    case IV_F32: return iv_launch(latent_queries<IV_F32>, grid, 32 * QUERY_WARPS, (cudaStream_t)stream, *a);
    default: return (int)cudaErrorInvalidValue;
    }
}
