/* columns.cu: copies rows and columns of activations for linear layers. No arithmetic. */
#include "kernels/cuda/ops.h"

#include <cuda_runtime.h>

template <typename T>
__global__ void copy_columns(const T *x, size_t stride, size_t column, size_t k, size_t rows, T *to, size_t to_stride) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < rows * to_stride;
         i += (size_t)gridDim.x * blockDim.x) {
        size_t row = i / to_stride, at = i % to_stride;
        to[i] = at < k ? x[row * stride + column + at] : T(0);
    }
}

static unsigned blocks_for(size_t n) {
    size_t blocks = (n + 255) / 256;
    return (unsigned)(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}

int iv_gpu_copy_columns(iv_dtype type, const void *x, size_t stride, size_t column, size_t k, size_t rows, void *to,
                        size_t to_stride, iv_gpu_stream stream) {
    unsigned blocks = blocks_for(rows * to_stride);
    if (type == IV_F32)
        copy_columns<<<blocks, 256, 0, stream>>>((const uint32_t *)x, stride, column, k, rows, (uint32_t *)to,
                                                 to_stride);
    else
        copy_columns<<<blocks, 256, 0, stream>>>((const uint16_t *)x, stride, column, k, rows, (uint16_t *)to,
                                                 to_stride);
    return cudaGetLastError();
}

template <typename T> __global__ void pick_rows(const T *x, size_t stride, const int32_t *pick, T *out) {
    const T *from = x + pick[blockIdx.x] * stride;
    for (size_t i = threadIdx.x; i < stride; i += blockDim.x) out[blockIdx.x * stride + i] = from[i];
}

int iv_gpu_pick_rows(iv_dtype type, const void *x, size_t stride, const int32_t *pick, size_t rows, void *out,
                     iv_gpu_stream stream) {
    if (rows == 0) return 0;
    if (type == IV_F32)
        pick_rows<<<(unsigned)rows, 256, 0, stream>>>((const uint32_t *)x, stride, pick, (uint32_t *)out);
    else
        pick_rows<<<(unsigned)rows, 256, 0, stream>>>((const uint16_t *)x, stride, pick, (uint16_t *)out);
    return cudaGetLastError();
}
