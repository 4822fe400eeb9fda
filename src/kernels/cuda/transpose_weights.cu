/* transpose_weights.cu: weights, rounded if they are master weights, and transposed: the weights of the layer that
 * gives the gradient of a linear layer's input. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"
#include "kernels/cuda/single_ops.h"

#include <cuda_runtime.h>

enum { TILE = 64, THREADS = 256, ROWS = THREADS / TILE };

/* FROM: what the weights are, float32 or TYPE. */
template <iv_dtype FROM, iv_dtype TYPE, typename T>
static __global__ void __launch_bounds__(THREADS) transpose(const void *weights, const int64_t *offsets, size_t n,
                                                            size_t k, const int64_t *bases, T *out, size_t out_stride) {
    constexpr int PITCH = TILE + (TYPE == IV_F32 ? 1 : 2); /* an odd number of words */
    __shared__ T tile[TILE][PITCH];                        /* [column][input] */
    iv_let_next();
    iv_wait();
    size_t first_c = (size_t)blockIdx.y * TILE, first_j = (size_t)blockIdx.x * TILE;
    int x = threadIdx.x % TILE;
    int64_t base = bases ? bases[blockIdx.z] : 0;
    out += blockIdx.z * k * out_stride;
#pragma unroll 4
    for (int c = threadIdx.x / TILE; c < TILE; c += ROWS) {
        int64_t offset = first_c + c < n ? offsets[first_c + c] : -1;
        bool there = offset >= 0 && first_j + x < k;
        offset += base;
        if (FROM != IV_F32) {
            tile[c][x] = there ? ((const T *)weights)[offset + first_j + x] : (T)0;
            continue;
        }
        float v = there ? ((const float *)weights)[offset + first_j + x] : 0.0f;
        tile[c][x] = TYPE == IV_F32 ? (T)__float_as_uint(iv_canon(v)) : (T)iv_round16(TYPE, v);
    }
    __syncthreads();
    if (first_c + x >= out_stride) return;
#pragma unroll 4
    for (int j = threadIdx.x / TILE; j < TILE; j += ROWS)
        if (first_j + j < k) out[(first_j + j) * out_stride + first_c + x] = tile[x][j];
}

template <iv_dtype FROM, iv_dtype TYPE, typename T>
static int launch(const void *weights, const int64_t *offsets, size_t n, size_t k, const int64_t *bases, size_t count,
                  void *out, size_t out_stride, iv_gpu_stream stream) {
    size_t across = (k + TILE - 1) / TILE, down = (out_stride + TILE - 1) / TILE;
    if (n > out_stride || down > 65535 || across > INT32_MAX || count > 65535) return (int)cudaErrorInvalidValue;
    if (k == 0 || out_stride == 0 || count == 0) return 0;
    return iv_launch(transpose<FROM, TYPE, T>, dim3((unsigned)across, (unsigned)down, (unsigned)count), THREADS,
                     (cudaStream_t)stream, weights, offsets, n, k, bases, (T *)out, out_stride);
}

int iv_gpu_transpose_weights(iv_dtype type, const float *master, const int64_t *offsets, size_t n, size_t k,
                             const int64_t *bases, size_t count, void *out, size_t out_stride, iv_gpu_stream s) {
    if (!bases) count = 1;
    switch (type) {
    case IV_BF16: return launch<IV_F32, IV_BF16, uint16_t>(master, offsets, n, k, bases, count, out, out_stride, s);
    case IV_F16: return launch<IV_F32, IV_F16, uint16_t>(master, offsets, n, k, bases, count, out, out_stride, s);
    case IV_F32: return launch<IV_F32, IV_F32, uint32_t>(master, offsets, n, k, bases, count, out, out_stride, s);
    default: return (int)cudaErrorInvalidValue;
    }
}

int iv_gpu_transpose_typed(iv_dtype type, const void *weights, const int64_t *offsets, size_t n, size_t k, void *out,
                           size_t out_stride, iv_gpu_stream s) {
    if (type == IV_F32)
        return iv_gpu_transpose_weights(type, (const float *)weights, offsets, n, k, NULL, 1, out, out_stride, s);
    if (type > IV_F32) return (int)cudaErrorInvalidValue;
    /* 16 bits of either type are copied. */
    return launch<IV_BF16, IV_BF16, uint16_t>(weights, offsets, n, k, NULL, 1, out, out_stride, s);
}
