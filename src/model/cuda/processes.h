/* processes.h: ranks that are other processes, each with one GPU: what they computed comes here as bytes, and the
 * additions are made here, all of them, from copies. */
#ifndef IV_MODEL_CUDA_PROCESSES_H
#define IV_MODEL_CUDA_PROCESSES_H

#include "model/cuda/state.h"

/* What a rank tells the others when they connect. */
typedef struct gpu_word {
    uint64_t status;
    iv_nccl_id id;
    char message[600];
} gpu_word;

/* How bytes travel: by NCCL on the stream, or through this process's memory and `comm`. */
struct gpu_processes {
    iv_comm *comm;          /* the engine's */
    unsigned char *mine[2]; /* pinned, taken in turn (comm.h); NULL with NCCL */
    uint64_t said[2];
    gpu_word words[2];
    int turn;
    iv_status status; /* of the comm, once it has failed */
    iv_error error;
};

/* Bytes of r->gathered. */
size_t iv_gpu_gathered_bytes(const iv_model *m);
/* Rows that are gathered at once, where all ranks' pieces of a row are `row_bytes` long: the same on all ranks. */
size_t iv_gpu_gathered_rows(size_t row_bytes);

/* After a step: the least of all ranks' *value. */
iv_status iv_gpu_least(iv_gpu_model *g, uint64_t *value, iv_error *err);

void iv_gpu_disconnect(iv_gpu_model *g);

#endif
