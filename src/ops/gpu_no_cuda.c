/* gpu_no_cuda.c: gpu.h in a build without CUDA. */
#include "ops/gpu.h"
#include "device/gpu.h"

iv_status iv_ops_open_gpu(size_t ordinal, iv_arithmetic arithmetic, const iv_ops_memory *memory, iv_ops **out,
                          iv_error *err) {
    size_t count;
    (void)ordinal, (void)arithmetic, (void)memory, (void)out;
    return iv_gpu_count(&count, err);
}
