/* training_vanilla.c: cuBLAS in the place of the learner's products. */
#include "bench/gpu/training_vanilla.h"

#include "kernels/cuda/weight_gradient_plan.h"

#include <cuda_runtime_api.h>

static struct {
    iv_cublas *blas;
    vanilla_kind kind;
} state;

const char *vanilla_name(vanilla_kind kind) {
    static const char *const names[VANILLA_KINDS] = {"ours", "vanilla", "vanilla, our epilogues"};
    return names[kind];
}

iv_status vanilla_choose(vanilla_kind kind, iv_error *err) {
    if (kind != VANILLA_OFF && !state.blas) IV_TRY(iv_cublas_open(&state.blas, err));
    state.kind = kind;
    return IV_OK;
}

/* Of ours, which VANILLA_PLAIN keeps. */
static bool has_epilogue(const iv_gpu_linear_args *a) {
    return a->epilogue == IV_GPU_SWIGLU || a->epilogue == IV_GPU_LOGITS || a->fused.addend;
}

bool vanilla_fuses(const iv_gpu_linear_args *a, bool ours) {
    if (state.kind != VANILLA_ALL) return ours;
    return a->epilogue == IV_GPU_ROUND || a->fused.addend;
}

/* Biases are the zeros of gradients of inputs: the families with real ones are refused (training_ops.c). */
bool vanilla_takes_linear(const iv_gpu_linear_args *a) {
    iv_gpu_linear_args plain = *a;
    plain.bias = NULL;
    return state.kind != VANILLA_OFF && !(state.kind == VANILLA_PLAIN && has_epilogue(a)) &&
           a->epilogue != IV_GPU_LOGITS && iv_cublas_takes(&plain);
}

bool vanilla_takes_gradient(const iv_gpu_weight_gradient_args *a) {
    return state.kind != VANILLA_OFF && !a->groups && a->type != IV_F32;
}

int vanilla_linear(const iv_gpu_linear_args *a, iv_gpu_stream stream) {
    iv_gpu_linear_args plain = *a;
    int code = 0;
    plain.bias = NULL;
    if (a->fused.addend)
        code = (int)cudaMemcpyAsync(a->out, a->fused.addend, a->rows * a->out_stride * sizeof(float),
                                    cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
    return code ? code : iv_cublas_linear(state.blas, &plain, a->epilogue == IV_GPU_ROUND ? a->type : IV_F32, stream);
}

int vanilla_gradient(const iv_gpu_weight_gradient_args *a, iv_gpu_stream stream) {
    iv_sum_plan plan;
    if (!iv_sum_plan_make(a->axis, &a->sums, &plan) || plan.ranges == 0) return (int)cudaErrorInvalidValue;
    return iv_cublas_weight_gradient(state.blas, a, a->sums.sum, plan.range[0].continues, stream);
}
