/* processes.h: ranks that are processes with one GPU each: their results arrive as bytes, and every rank makes all
 * additions from its copies. */
#ifndef IV_MODEL_CUDA_PROCESSES_H
#define IV_MODEL_CUDA_PROCESSES_H

#include "model/cuda/state.h"

/* A rank's message while they connect. */
typedef struct gpu_word {
    uint64_t status;
    iv_nccl_id id;
    char message[600];
} gpu_word;

/* Bytes travel by NCCL on the stream, or through this process's memory and `comm`. */
struct gpu_processes {
    iv_comm *comm;          /* the engine's */
    unsigned char *mine[2]; /* pinned, used alternately (comm.h); NULL with NCCL */
    uint64_t agreement[2];
    gpu_word words[2];
    int turn;
    iv_status status; /* of the comm, once it has failed */
    iv_error error;
};

/* After a step: *value becomes the minimum over the ranks. */
iv_status iv_gpu_least(iv_gpu_model *g, uint64_t *value, iv_error *err);

void iv_gpu_disconnect(iv_gpu_model *g);

#endif
