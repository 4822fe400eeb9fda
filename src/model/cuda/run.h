/* run.h: the threads of the ranks, and how they wait. */
#ifndef IV_MODEL_CUDA_RUN_H
#define IV_MODEL_CUDA_RUN_H

#include "model/cuda/state.h"

iv_status iv_gpu_start_threads(iv_gpu_model *g, iv_error *err);
void iv_gpu_stop_threads(iv_gpu_model *g);

/* Behind piece `piece` (a layer, then slices of logits) of a step that is being launched: with NCCL, which waits for a
 * lost rank for ever, waits until few pieces are on their way, so that no launch waits for room. 0 or a code. */
int iv_gpu_pace(gpu_rank *r, size_t piece);

#endif
