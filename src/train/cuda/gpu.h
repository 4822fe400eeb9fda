/* gpu.h: rows of a trainer in a GPU's memory: what its files share. */
#ifndef IV_TRAIN_CUDA_GPU_H
#define IV_TRAIN_CUDA_GPU_H

#include "kernels/cuda/nccl.h"
#include "train/flat/flat_ops.h"

#include <cuda_runtime_api.h>

enum { IV_ROWS_PACKINGS = 4, IV_ROWS_GPUS_MAX = 64 };

typedef struct iv_rows_packing iv_rows_packing;

typedef struct iv_rows_gpu {
    iv_rows base;
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
    iv_rows_packing *packing[IV_ROWS_PACKINGS]; /* of the models written last; NULL: none yet */
    const iv_rows_packing *current;             /* of the model whose pieces are written */
    size_t packings;                            /* made so far */
    iv_nccl *nccl;                              /* of a linked table */
    size_t processes, process;
    int group[IV_ROWS_GPUS_MAX]; /* ordinals of the GPUs that write models together, this one's too */
    size_t group_count;
} iv_rows_gpu;

/* ---- memory.c */
/* Zeroed memory of the GPU; IV_NO_MEMORY names it and `what`. */
iv_status iv_rows_gpu_alloc(iv_rows_gpu *g, size_t bytes, const char *what, void **out, iv_error *err);

/* At least `bytes` of scratch; what it held is lost. */
iv_status iv_rows_gpu_scratch(iv_rows_gpu *g, size_t bytes, void **out, iv_error *err);

/* Waits for the streams that hash. */
iv_status iv_rows_gpu_hashed(iv_rows_gpu *g, iv_error *err);

/* Waits for the stream if `code`, of a launch, is 0. */
iv_status iv_rows_gpu_finish(iv_rows_gpu *g, int code, const char *what, iv_error *err);

/* ---- model.c */
iv_status iv_rows_gpu_read_model(iv_rows *r, const iv_model *first, float *row, iv_error *err);
iv_status iv_rows_gpu_write_model(iv_rows *r, iv_model *first, const float *row, size_t begin, size_t end, int parts,
                                  iv_error *err);
void iv_rows_packing_free(iv_rows_gpu *g, iv_rows_packing *p); /* NULL is fine */

/* ---- link.c */
iv_status iv_rows_gpu_exchange(iv_rows *r, const float *const *mine, const size_t *n, float *const *to,
                               const size_t *theirs, iv_error *err);

#endif
