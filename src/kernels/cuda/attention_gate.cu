/* attention_gate.cu: the output gate of attention in a training step: forward with a tape, and backward; its columns of
 * a concatenation. */
#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

enum { THREADS = 256 };

static dim3 grid_of(size_t rows, size_t n) { return dim3((unsigned)rows, (unsigned)((n + THREADS - 1) / THREADS)); }

template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS)
    gate_tape(const float *gate, size_t stride, size_t n, void *attended, void *raw, void *kept_gate) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = (size_t)blockIdx.y * THREADS + threadIdx.x, at = row * n + i;
    if (i >= n) return;
    float x = get<T>(attended, at), g = gate[row * stride + i];
    put<T>(raw, at, x), put<T>(kept_gate, at, g);
    put<T>(attended, at, x * iv_sigmoid(g));
}

int iv_gpu_attention_gate_tape(const float *gate, size_t gate_stride, size_t rows, size_t n, iv_dtype type,
                               void *attended, void *raw, void *kept_gate, iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    cudaStream_t s = (cudaStream_t)stream;
    auto *kernel = type == IV_BF16 ? gate_tape<IV_BF16> : type == IV_F16 ? gate_tape<IV_F16> : gate_tape<IV_F32>;
    return iv_launch(kernel, grid_of(rows, n), THREADS, s, gate, gate_stride, n, attended, raw, kept_gate);
}

template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS)
    gate_backward(const float *dattended, const void *raw, const void *kept_gate, size_t n, void *dout, float *dgate) {
    iv_let_next();
    iv_wait();
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    float d = dattended[i], s = iv_sigmoid(get<T>(kept_gate, i));
    put<T>(dout, i, d * s);
    dgate[i] = iv_canon((d * get<T>(raw, i)) * (s * (1.0f - s)));
}

int iv_gpu_attention_gate_backward(const float *dattended, const void *raw, const void *kept_gate, size_t rows,
                                   size_t n, iv_dtype type, void *dout, float *dgate, iv_gpu_stream stream) {
    size_t all = rows * n;
    if (all == 0) return 0;
    dim3 grid((unsigned)((all + THREADS - 1) / THREADS));
    auto *kernel = type == IV_BF16  ? gate_backward<IV_BF16>
                   : type == IV_F16 ? gate_backward<IV_F16>
                                    : gate_backward<IV_F32>;
    return iv_launch(kernel, grid, THREADS, (cudaStream_t)stream, dattended, raw, kept_gate, all, dout, dgate);
}

typedef struct concat {
    const float *x;
    const int32_t *positions;
    size_t n, each, padded, apart, at, dy_stride;
    void *dy;
} concat;

/* A thread has a column of the part's leaves. */
template <iv_dtype T> static __global__ void __launch_bounds__(THREADS) concat_rows(const __grid_constant__ concat c) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = (size_t)blockIdx.y * THREADS + threadIdx.x, leaf = i / c.padded, e = i % c.padded;
    size_t output = leaf * c.each + e;
    if (leaf * c.each >= c.n) return;
    bool there = c.positions[row] >= 0 && e < c.each && output < c.n;
    put<T>(c.dy, row * c.dy_stride + leaf * c.apart + c.at + e, there ? c.x[row * c.n + output] : 0.0f);
}

int iv_gpu_concat_rows(const float *x, const int32_t *positions, size_t rows, size_t n, size_t leaves, size_t apart,
                       size_t at, iv_dtype type, void *dy, size_t dy_stride, iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    if (leaves == 0 || n % leaves) return (int)cudaErrorInvalidValue;
    concat c = {x, positions, n, n / leaves, (n / leaves + 15) / 16 * 16, apart, at, dy_stride, dy};
    auto *kernel = type == IV_BF16 ? concat_rows<IV_BF16> : type == IV_F16 ? concat_rows<IV_F16> : concat_rows<IV_F32>;
    return iv_launch(kernel, grid_of(rows, leaves * c.padded), THREADS, (cudaStream_t)stream, c);
}
