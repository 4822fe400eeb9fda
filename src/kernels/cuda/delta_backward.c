/* delta_backward.c: which kernels compute the gradients of the delta rule of a shape. */
#include "kernels/cuda/delta_backward.h"

#include <cuda_runtime_api.h>

enum { DIM_MAX = 512 };

/* Those of tensor cores read four neighbors of a row of dx at once. */
static bool is_tensor(const iv_gpu_delta_shape *s, iv_gpu_delta_family f) {
    return f == IV_GPU_DELTA_TENSOR && iv_gpu_delta_has(f, s) && s->width % 4 == 0;
}

size_t iv_gpu_delta_backward_scratch(const iv_gpu_delta_shape *s, size_t rows_max, size_t spans_max, int sms) {
    if (!s->value_heads) return 0;
    return is_tensor(s, iv_gpu_delta_choose(s)) ? iv_gpu_delta_tensor_scratch(s, rows_max, spans_max)
                                                : iv_gpu_delta_generic_scratch(s, spans_max, sms);
}

int iv_gpu_delta_rule_backward_with(const iv_gpu_delta_backward_args *a, iv_gpu_delta_family f, iv_gpu_stream stream) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    if (!s->value_heads || !a->forward.rows || !a->forward.span_count) return 0;
    if (s->group_first || s->value_heads != s->key_heads * s->group || s->key_dim > DIM_MAX || s->value_dim > DIM_MAX)
        return (int)cudaErrorInvalidValue;
    if (is_tensor(s, f)) return iv_gpu_delta_backward_tensor(a, stream);
    return iv_gpu_delta_backward_generic(a, stream);
}

int iv_gpu_delta_rule_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    return iv_gpu_delta_rule_backward_with(a, iv_gpu_delta_choose(&a->forward.shape), stream);
}
