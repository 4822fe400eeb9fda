/* gpu.h: flat buffers of a trainer in a GPU's memory: what its files share. */
#ifndef IV_TRAIN_CUDA_GPU_H
#define IV_TRAIN_CUDA_GPU_H

#include "kernels/cuda/nccl.h"
#include "train/flat/flat_ops.h"

#include <cuda_runtime_api.h>

enum { IV_FLAT_PACKINGS = 4, IV_FLAT_GPUS_MAX = 64 };

typedef struct iv_flat_packing iv_flat_packing;

typedef struct iv_flat_gpu {
    iv_flat base;
    iv_gpu *gpu;
    iv_memspace *memspace;
    iv_pool *pool;
    cudaStream_t stream;
    void *scratch; /* on the GPU, grown on demand */
    size_t scratch_bytes;
    float *staged; /* pinned, for vectors */
    size_t staged_max;
    cudaStream_t hashing;
    cudaEvent_t updated;
    uint8_t (*digests)[32]; /* on the GPU, [digests_max]: on their way for hashed[hashed_count], or of nothing: NULL */
    size_t digests_max, hashed_count;
    const float *hashed;
    iv_flat_packing *packing[IV_FLAT_PACKINGS]; /* of the models written last; NULL: none yet */
    const iv_flat_packing *current;             /* of the model whose chunks are written */
    size_t packings;                            /* made so far */
    iv_nccl *nccl;                              /* of a linked table */
    size_t processes, process;
    int group[IV_FLAT_GPUS_MAX]; /* ordinals of the GPUs that write models together, this one's too */
    size_t group_count;
} iv_flat_gpu;

/* ---- memory.c */
/* Zeroed memory of the GPU; IV_NO_MEMORY names it and `what`. */
iv_status iv_flat_gpu_alloc(iv_flat_gpu *g, size_t bytes, const char *what, void **out, iv_error *err);

/* At least `bytes` of scratch; what it held is lost. */
iv_status iv_flat_gpu_scratch(iv_flat_gpu *g, size_t bytes, void **out, iv_error *err);

/* Waits for the streams that hash. */
iv_status iv_flat_gpu_hashed(iv_flat_gpu *g, iv_error *err);

/* Waits for the stream if `code`, of a launch, is 0. */
iv_status iv_flat_gpu_finish(iv_flat_gpu *g, int code, const char *what, iv_error *err);

/* ---- model.c */
iv_status iv_flat_gpu_read_model(iv_flat *r, const iv_model *first, float *flat, iv_error *err);
iv_status iv_flat_gpu_write_model(iv_flat *r, iv_model *first, const float *flat, size_t begin, size_t end, int parts,
                                  iv_error *err);
void iv_flat_packing_free(iv_flat_gpu *g, iv_flat_packing *p); /* NULL is fine */

/* ---- link.c */
iv_status iv_flat_gpu_exchange(iv_flat *r, const float *const *mine, const size_t *n, float *const *to,
                               const size_t *theirs, iv_error *err);

#endif
