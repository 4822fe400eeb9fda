/* linear_absent.c: families that are not there yet: no configurations, no preference. */
#include "kernels/cuda/ops.h"

enum { CUDA_NOT_SUPPORTED = 801 };
#define ABSENT __attribute__((weak))

ABSENT size_t iv_gpu_stream_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    (void)a, (void)out, (void)count;
    return 0;
}
ABSENT int iv_gpu_stream_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, void *scratch,
                                iv_gpu_stream s) {
    (void)a, (void)c, (void)scratch, (void)s;
    return CUDA_NOT_SUPPORTED;
}
ABSENT bool iv_gpu_stream_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c) {
    (void)a, (void)c;
    return false;
}
ABSENT size_t iv_gpu_wgmma_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    (void)a, (void)out, (void)count;
    return 0;
}
ABSENT int iv_gpu_wgmma_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, void *scratch,
                               iv_gpu_stream s) {
    (void)a, (void)c, (void)scratch, (void)s;
    return CUDA_NOT_SUPPORTED;
}
ABSENT bool iv_gpu_wgmma_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c) {
    (void)a, (void)c;
    return false;
}
ABSENT size_t iv_gpu_wgmma_scratch(size_t rows, size_t n) {
    (void)rows, (void)n;
    return 0;
}
