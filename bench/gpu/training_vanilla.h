/* training_vanilla.h: the linear layers of a training step by cuBLAS, for bench_training_ops --vanilla. Every product
 * is one call; the order of its additions is the library's. Ops that the learner has in epilogues run apart where
 * cuBLAS cannot do them: SwiGLU and the gradient of logits. */
#ifndef IV_BENCH_TRAINING_VANILLA_H
#define IV_BENCH_TRAINING_VANILLA_H

#include "kernels/cuda/cublas.h"

typedef enum vanilla_kind {
    VANILLA_OFF,   /* ours */
    VANILLA_ALL,   /* every product by cuBLAS */
    VANILLA_PLAIN, /* by cuBLAS only where no epilogue of ours saves a pass over memory; VANILLA_KINDS: how many */
    VANILLA_KINDS
} vanilla_kind;

const char *vanilla_name(vanilla_kind kind);

/* What is on from now on. The first that is not VANILLA_OFF loads cuBLAS. */
iv_status vanilla_choose(vanilla_kind kind, iv_error *err);

/* Whether the epilogue of `a` exists: cuBLAS rounds, and adds to an addend that was copied before. `ours`: whether ours
 * does. */
bool vanilla_fuses(const iv_gpu_linear_args *a, bool ours);
/* Whether cuBLAS computes it now. */
bool vanilla_takes_linear(const iv_gpu_linear_args *a);
bool vanilla_takes_gradient(const iv_gpu_weight_gradient_args *a);
int vanilla_linear(const iv_gpu_linear_args *a, iv_gpu_stream stream);
/* The product lies at the beginning of the layer's sums, in the order of the run: as many bytes as ours, but not at
 * their places if the run has several leaves. So the steps train no model. */
int vanilla_gradient(const iv_gpu_weight_gradient_args *a, iv_gpu_stream stream);

#endif
