/* run.h: the threads of the ranks, and captured steps. */
#ifndef IV_MODEL_CUDA_RUN_H
#define IV_MODEL_CUDA_RUN_H

#include "model/cuda/state.h"

iv_status iv_gpu_start_threads(iv_gpu_model *g, iv_error *err);
void iv_gpu_stop_threads(iv_gpu_model *g);
/* Keeps *err as the reason why no further step runs, unless there is one. */
void iv_gpu_abort(iv_gpu_model *g, const iv_error *err);
/* IV_OK, or that reason. */
iv_status iv_gpu_aborted(const iv_gpu_model *g, iv_error *err);

/* Frees the captured steps: their launches are stale. */
void iv_gpu_forget_graphs(gpu_rank *r);
/* Of steps with adapters alone. */
void iv_gpu_forget_adapted_graphs(gpu_rank *r);

#endif
