/* run.h: the threads of the ranks, and their waiting. */
#ifndef IV_MODEL_CUDA_RUN_H
#define IV_MODEL_CUDA_RUN_H

#include "model/cuda/state.h"

iv_status iv_gpu_start_threads(iv_gpu_model *g, iv_error *err);
void iv_gpu_stop_threads(iv_gpu_model *g);

/* After piece `piece` (a layer, then slices of logits) of a step was launched. NCCL's kernels never time out: with them
 * it waits until few pieces are in flight, so that no launch blocks for room. */
iv_status iv_gpu_pace(gpu_rank *r, size_t piece, iv_error *err);

#endif
