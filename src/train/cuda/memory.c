/* memory.c: memory of a trainer on a GPU, and the wait for its stream. */
#include "train/cuda/gpu.h"

iv_status iv_flat_gpu_alloc(iv_flat_gpu *g, size_t bytes, const char *what, void **out, iv_error *err) {
    const iv_gpu_info *info = iv_gpu_get_info(g->gpu);
    *out = g->memspace->alloc(g->memspace, bytes);
    if (*out) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "GPU %d (%s): no memory for %s: wanted %zu bytes", info->ordinal, info->name,
                   what, bytes);
}

iv_status iv_flat_gpu_scratch(iv_flat_gpu *g, size_t bytes, void **out, iv_error *err) {
    if (bytes > g->scratch_bytes) {
        g->memspace->free(g->memspace, g->scratch);
        g->scratch = NULL, g->scratch_bytes = 0;
        IV_TRY(iv_flat_gpu_alloc(g, bytes, "the results of a training step", &g->scratch, err));
        g->scratch_bytes = bytes;
    }
    *out = g->scratch;
    return IV_OK;
}

iv_status iv_flat_gpu_finish(iv_flat_gpu *g, int code, const char *what, iv_error *err) {
    if (code == cudaSuccess) code = (int)cudaStreamSynchronize(g->stream);
    return iv_gpu_check(g->gpu, code, what, err);
}

iv_status iv_flat_gpu_hashed(iv_flat_gpu *g, iv_error *err) {
    if (!g->hashing) return IV_OK;
    return iv_gpu_check(g->gpu, (int)cudaStreamSynchronize(g->hashing), "weight digests", err);
}
