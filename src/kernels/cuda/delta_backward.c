/* delta_backward.c: which kernels compute the gradients of the delta rule of a shape. */
#include "kernels/cuda/delta_backward.h"

#include <cuda_runtime_api.h>

size_t iv_gpu_delta_backward_scratch(const iv_gpu_delta_shape *s, size_t rows_max, size_t spans_max, int sms) {
    (void)rows_max;
    return s->value_heads ? iv_gpu_delta_generic_scratch(s, spans_max, sms) : 0;
}

int iv_gpu_delta_rule_backward_with(const iv_gpu_delta_backward_args *a, iv_gpu_delta_family f, iv_gpu_stream stream) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    if (!s->value_heads || !a->forward.rows || !a->forward.span_count) return 0;
    if (s->group_first || s->value_heads != s->key_heads * s->group || s->key_dim > 512 || s->value_dim > 512)
        return (int)cudaErrorInvalidValue;
    (void)f;
    return iv_gpu_delta_backward_generic(a, stream);
}

int iv_gpu_delta_rule_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    return iv_gpu_delta_rule_backward_with(a, iv_gpu_delta_choose(&a->forward.shape), stream);
}
