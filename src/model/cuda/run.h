/* run.h: the threads of the ranks. */
#ifndef IV_MODEL_CUDA_RUN_H
#define IV_MODEL_CUDA_RUN_H

#include "model/cuda/gpu_model.h"

iv_status iv_gpu_start_threads(iv_gpu_model *g, iv_error *err);
void iv_gpu_stop_threads(iv_gpu_model *g);

#endif
