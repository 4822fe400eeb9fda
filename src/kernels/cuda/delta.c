/* delta.c: the shape of a layout, and which kernels compute the delta rule of a shape. */
#include "kernels/cuda/delta.h"
#include "kernels/delta.h"
#include "numerics/delta.h"

#include <cuda_runtime_api.h>

enum { DIM_MAX = 512 };

iv_gpu_delta_shape iv_gpu_delta_shape_of(const iv_delta_layout *l, iv_arithmetic arithmetic) {
    return (iv_gpu_delta_shape){.arithmetic = arithmetic,
                                .type = l->type,
                                .key_heads = (uint32_t)l->key_heads,
                                .value_heads = (uint32_t)l->value_heads,
                                .group = (uint32_t)l->group,
                                .group_first = (uint32_t)l->group_first,
                                .key_dim = (uint32_t)l->key_dim,
                                .value_dim = (uint32_t)l->value_dim,
                                .taps = (uint32_t)l->taps,
                                .channels = (uint32_t)l->channels,
                                .width = (uint32_t)l->width,
                                .query_scale = l->key_dim ? iv_delta_query_scale(l->key_dim) : 0.0f,
                                .key_bytes = iv_matrix_bytes(&l->key),
                                .update_bytes = iv_matrix_bytes(&l->update),
                                .rounded_bytes = iv_matrix_bytes(&l->rounded),
                                .state_bytes = l->state_bytes,
                                .slot_inputs = l->slot_inputs,
                                .tail_updates = l->tail_updates,
                                .tail_rounded = l->tail_rounded,
                                .tail_totals = l->tail_totals,
                                .tail_inputs = l->tail_inputs};
}

static const struct {
    iv_gpu_delta_family family;
    uint32_t key_dim, value_dim; /* 0: any */
    bool tc16;                   /* alone */
} kernels[] = {{IV_GPU_DELTA_TENSOR, 128, 128, true}, {IV_GPU_DELTA_GENERIC, 0, 0, false}};

static bool takes(size_t i, const iv_gpu_delta_shape *s) {
    if (kernels[i].tc16 && s->arithmetic != IV_TC16) return false;
    if (kernels[i].key_dim && s->key_dim != kernels[i].key_dim) return false;
    if (kernels[i].value_dim && s->value_dim != kernels[i].value_dim) return false;
    return s->key_dim <= DIM_MAX && s->value_dim <= DIM_MAX;
}

bool iv_gpu_delta_has(iv_gpu_delta_family f, const iv_gpu_delta_shape *s) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].family == f) return takes(i, s);
    return false;
}

iv_gpu_delta_family iv_gpu_delta_choose(const iv_gpu_delta_shape *s) {
    size_t i = 0;
    while (i + 1 < sizeof kernels / sizeof *kernels && !takes(i, s)) i++;
    return kernels[i].family;
}

int iv_gpu_delta_rule_with(const iv_gpu_delta_args *a, iv_gpu_delta_family f, iv_gpu_stream stream) {
    if (!a->shape.value_heads || !a->rows || !a->span_count) return 0;
    if (!iv_gpu_delta_has(f, &a->shape)) return (int)cudaErrorInvalidValue;
    bool keeps = IV_GPU_DELTA_KEEPS(*a);
    if (f == IV_GPU_DELTA_GENERIC || keeps) {
        int code = f == IV_GPU_DELTA_GENERIC ? iv_gpu_delta_generic(a, stream) : iv_gpu_delta_prefill(a, stream);
        return code ? code : iv_gpu_delta_norm(a, false, stream);
    }
    int code = iv_gpu_delta_decode(a, stream);
    if (!code && !a->decode) code = iv_gpu_delta_prefill(a, stream);
    return code || a->decode ? code : iv_gpu_delta_norm(a, true, stream);
}

int iv_gpu_delta_rule(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    return iv_gpu_delta_rule_with(a, iv_gpu_delta_choose(&a->shape), stream);
}
