/* transpose_weights.cu: master weights, rounded and transposed: the weights of the layer that gives the gradient of a
 * linear layer's input. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"

#include <cuda_runtime.h>

enum { TILE = 64, THREADS = 256, ROWS = THREADS / TILE };

template <iv_dtype TYPE, typename T>
static __global__ void __launch_bounds__(THREADS) transpose(const float *master, const int64_t *offsets, size_t n,
                                                            size_t k, const int64_t *bases, T *out, size_t out_stride) {
    constexpr int PITCH = TILE + (TYPE == IV_F32 ? 1 : 2); /* an odd number of words */
    __shared__ T tile[TILE][PITCH];                        /* [column][input] */
    iv_let_next();
    iv_wait();
    size_t first_c = (size_t)blockIdx.y * TILE, first_j = (size_t)blockIdx.x * TILE;
    int x = threadIdx.x % TILE;
    if (bases) master += bases[blockIdx.z], out += blockIdx.z * k * out_stride;
#pragma unroll 4
    for (int c = threadIdx.x / TILE; c < TILE; c += ROWS) {
        int64_t offset = first_c + c < n ? offsets[first_c + c] : -1;
        float v = offset >= 0 && first_j + x < k ? master[offset + first_j + x] : 0.0f;
        tile[c][x] = TYPE == IV_F32 ? (T)__float_as_uint(iv_canon(v)) : (T)iv_round16(TYPE, v);
    }
    __syncthreads();
    if (first_c + x >= out_stride) return;
#pragma unroll 4
    for (int j = threadIdx.x / TILE; j < TILE; j += ROWS)
        if (first_j + j < k) out[(first_j + j) * out_stride + first_c + x] = tile[x][j];
}

int iv_gpu_transpose_weights(iv_dtype type, const float *master, const int64_t *offsets, size_t n, size_t k,
                             const int64_t *bases, size_t count, void *out, size_t out_stride, iv_gpu_stream stream) {
    size_t across = (k + TILE - 1) / TILE, down = (out_stride + TILE - 1) / TILE;
    if (!bases) count = 1;
    if (type > IV_F32 || n > out_stride || down > 65535 || across > INT32_MAX || count > 65535)
        return (int)cudaErrorInvalidValue;
    if (k == 0 || out_stride == 0 || count == 0) return 0;
    dim3 grid((unsigned)across, (unsigned)down, (unsigned)count);
    cudaStream_t s = (cudaStream_t)stream;
    if (type == IV_F32)
        return iv_launch(transpose<IV_F32, uint32_t>, grid, THREADS, s, master, offsets, n, k, bases, (uint32_t *)out,
                         out_stride);
    return iv_launch(type == IV_BF16 ? transpose<IV_BF16, uint16_t> : transpose<IV_F16, uint16_t>, grid, THREADS, s,
                     master, offsets, n, k, bases, (uint16_t *)out, out_stride);
}
