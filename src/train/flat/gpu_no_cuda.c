/* gpu_no_cuda.c: a GPU's flat buffers in a build without CUDA. Not reached: no GPU can be opened. */
#include "train/flat/flat_ops.h"

iv_status iv_flat_open_gpu(iv_gpu *gpu, iv_pool *pool, iv_flat **out, iv_error *err) {
    (void)gpu, (void)pool, (void)out;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

void iv_flat_join_gpus(iv_flat *const *flats, size_t count) { (void)flats, (void)count; }

iv_status iv_flat_link_gpu(iv_flat *r, iv_comm *processes, const char *how, iv_error *err) {
    (void)r, (void)processes, (void)how;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}
