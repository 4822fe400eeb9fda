/* add_rows.cu: the residual addition of a block whose output is normed first. Law: NUMERICS.md sections 4 and 8.2. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"

/* A block has a row. Thread t is lane t of the law. */
static __global__ void __launch_bounds__(LANES) add_normed(const __grid_constant__ iv_gpu_add_args a) {
    __shared__ float lanes[LANES];
    iv_let_next();
    iv_wait();
    size_t at = (size_t)blockIdx.x * a.n;
    const float *y = a.y + at;
    float lane = 0.0f;
    for (size_t i = threadIdx.x; i < a.n; i += LANES) lane = __fmaf_rn(y[i], y[i], lane);
    float r = norm_scale(fold_block(lane, lanes), a.n, a.eps);
    for (size_t i = threadIdx.x; i < a.n; i += LANES) {
        float x = iv_canon(__fmaf_rn(a.scale, iv_canon((y[i] * r) * a.weight[i]), a.x[at + i]));
        a.to[at + i] = a.after == 1.0f ? x : iv_canon(x * a.after);
    }
}

static __global__ void __launch_bounds__(LANES) add(const __grid_constant__ iv_gpu_add_args a) {
    iv_let_next();
    iv_wait();
    size_t at = (size_t)blockIdx.x * a.n;
    for (size_t i = threadIdx.x; i < a.n; i += LANES)
        a.to[at + i] = iv_canon(a.x ? __fmaf_rn(a.scale, a.y[at + i], a.x[at + i]) : a.y[at + i] * a.scale);
}

int iv_gpu_add_rows(const iv_gpu_add_args *a, iv_gpu_stream stream) {
    if (a->rows == 0) return 0;
    if (a->rows > INT32_MAX || (a->weight && !a->x)) return (int)cudaErrorInvalidValue;
    return iv_launch(a->weight ? add_normed : add, dim3((unsigned)a->rows), LANES, stream, *a);
}

static __global__ void __launch_bounds__(LANES) plus_one(const float *x, size_t n, float *to) {
    iv_let_next();
    iv_wait();
    size_t i = (size_t)blockIdx.x * LANES + threadIdx.x;
    if (i < n) to[i] = 1.0f + x[i];
}

int iv_gpu_plus_one(const float *x, size_t n, float *to, iv_gpu_stream stream) {
    if (n == 0) return 0;
    return iv_launch(plus_one, dim3((unsigned)((n + LANES - 1) / LANES)), LANES, stream, x, n, to);
}
