/* gpu_no_cuda.c: a GPU's rows in a build without CUDA. Not reached: no GPU can be opened. */
#include "train/flat/flat_ops.h"

iv_status iv_rows_open_gpu(iv_gpu *gpu, iv_pool *pool, iv_rows **out, iv_error *err) {
    (void)gpu, (void)pool, (void)out;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}

void iv_rows_join_gpus(iv_rows *const *rows, size_t count) { (void)rows, (void)count; }

iv_status iv_rows_link_gpu(iv_rows *r, iv_comm *processes, const char *how, iv_error *err) {
    (void)r, (void)processes, (void)how;
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: this build has no CUDA");
}
