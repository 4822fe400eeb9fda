/* cublas.h: linear layers by cuBLAS, for the vanilla-blas baseline on a GPU (NUMERICS.md, 14). The library is loaded
 * on demand and is not a dependency. Its kernel, and therefore its order of additions, depends on the shape. */
#ifndef IV_KERNELS_CUDA_CUBLAS_H
#define IV_KERNELS_CUDA_CUBLAS_H

#include "base/status.h"
#include "kernels/cuda/learn.h"
#include "kernels/cuda/ops.h"

typedef struct iv_cublas iv_cublas;

/* Opens a handle on the calling thread's GPU with its own workspace, so that graphs can capture its calls.
 * IV_NOT_FOUND names the missing library. */
iv_status iv_cublas_open(iv_cublas **out, iv_error *err);
void iv_cublas_close(iv_cublas *blas); /* NULL is fine */

/* Is the problem supported: one matrix, 16-bit, no bias, no SwiGLU? */
bool iv_cublas_takes(const iv_gpu_linear_args *a);
/* Like iv_gpu_linear with outputs of `out_type`: float32, or the layer's 16-bit type, rounded by the library.
 * Returns 0 or an error code. */
int iv_cublas_linear(iv_cublas *blas, const iv_gpu_linear_args *a, iv_dtype out_type, iv_gpu_stream stream);
/* out [n][k] = dy^T x over all tokens of the axis, or with `add` out + it, for bench_training_ops: one product,
 * whatever the virtual ranks and the offsets. 16-bit types, no groups. */
int iv_cublas_weight_gradient(iv_cublas *blas, const iv_gpu_weight_gradient_args *a, float *out, bool add,
                              iv_gpu_stream stream);

#endif
