/* expert_bias.cu: a block adds the bias of one entry's expert. */
#include "kernels/cuda/expert_bias.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/law.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) add_bias(const __grid_constant__ iv_gpu_expert_bias_args a) {
    iv_let_next();
    iv_wait();
    int32_t entry = (int32_t)blockIdx.x;
    if (entry < a.offsets[a.first] || entry >= a.offsets[a.first + a.count]) return;
    int32_t slot = a.slots[entry];
    const float *bias = a.bias + (size_t)(a.ids[slot] - a.first) * a.bias_stride;
    float *x = a.x + (size_t)(a.weights ? slot : entry) * a.x_stride, w = a.weights ? a.weights[slot] : 1.0f;
    for (size_t i = threadIdx.x; i < a.n; i += THREADS) {
        float y = iv_canon(x[i] + bias[i]);
        x[i] = a.weights ? w * y : y;
    }
    if (a.ones && threadIdx.x == 0) a.ones[slot] = 1.0f;
}

int iv_gpu_expert_bias(const iv_gpu_expert_bias_args *a, iv_gpu_stream stream) {
    if (a->entries == 0 || a->count == 0) return 0;
    if (a->n > a->bias_stride || a->n > a->x_stride) return (int)cudaErrorInvalidValue;
    return iv_launch(add_bias, dim3((unsigned)a->entries), THREADS, stream, *a);
}
