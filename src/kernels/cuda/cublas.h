/* cublas.h: linear layers by cuBLAS, for the vanilla-blas baseline on a GPU (NUMERICS.md, 14). The library is looked
 * for when it is asked for and is no dependency. Which kernel it takes, and so how it adds, depends on the shape. */
#ifndef IV_KERNELS_CUDA_CUBLAS_H
#define IV_KERNELS_CUDA_CUBLAS_H

#include "base/status.h"
#include "kernels/cuda/ops.h"

typedef struct iv_cublas iv_cublas;

/* A handle on the calling thread's GPU, with memory of its own so that graphs can hold its calls. IV_NOT_FOUND names
 * the library when it is not there. */
iv_status iv_cublas_open(iv_cublas **out, iv_error *err);
void iv_cublas_close(iv_cublas *blas); /* NULL is fine */

/* Does it take this problem: one matrix, 16-bit, no bias, no SwiGLU? */
bool iv_cublas_takes(const iv_gpu_linear_args *a);
/* As iv_gpu_linear, but with outputs of `out_type`: float32, or the layer's own 16 bits, which the library rounds to.
 * 0 or a code that is not. */
int iv_cublas_linear(iv_cublas *blas, const iv_gpu_linear_args *a, iv_dtype out_type, iv_gpu_stream stream);

#endif
