/* widen_units.h: the part of iv_gpu_widen_units (ops.h) for Hopper. */
#ifndef IV_KERNELS_CUDA_WIDEN_UNITS_H
#define IV_KERNELS_CUDA_WIDEN_UNITS_H

#include "kernels/cuda/ops.h"

/* The same for matrices of bfloat16. */
int iv_gpu_widen_units_bf16(const iv_gpu_matrix *w, void *out, iv_gpu_stream stream);

#endif
