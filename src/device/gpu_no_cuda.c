/* gpu_no_cuda.c: gpu.h in a build without CUDA: every call is IV_UNSUPPORTED. */
#include "device/gpu.h"

static iv_status absent(iv_error *err) {
    return iv_fail(err, IV_UNSUPPORTED,
                   "device cuda: this build has no CUDA: install the CUDA toolkit (nvcc) and build again");
}

iv_status iv_gpu_count(size_t *count, iv_error *err) {
    *count = 0;
    return absent(err);
}

iv_status iv_gpu_open(size_t ordinal, bool tensor_cores, iv_gpu **out, iv_error *err) {
    (void)ordinal, (void)tensor_cores, (void)out;
    return absent(err);
}

void iv_gpu_close(iv_gpu *gpu) { IV_ASSERT(!gpu); }
const iv_gpu_info *iv_gpu_get_info(const iv_gpu *gpu) {
    (void)gpu;
    return NULL;
}
const iv_gpu *iv_gpu_of(const iv_memspace *memspace) {
    (void)memspace;
    return NULL;
}

iv_memspace *iv_gpu_memspace(iv_gpu *gpu) {
    (void)gpu;
    return NULL;
}
size_t iv_gpu_memory_available(const iv_gpu *gpu) {
    (void)gpu;
    return 0;
}
iv_status iv_gpu_use(const iv_gpu *gpu, iv_error *err) {
    (void)gpu;
    return absent(err);
}
iv_status iv_gpu_peer(iv_gpu *const *gpus, size_t count, iv_error *err) {
    (void)gpus, (void)count;
    return absent(err);
}
iv_status iv_gpu_check(const iv_gpu *gpu, int code, const char *what, iv_error *err) {
    (void)gpu, (void)code, (void)what;
    return absent(err);
}
