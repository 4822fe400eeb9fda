/* linear_mma_bf16_sm90a.cu: the instances of linear_mma.cuh for bfloat16. */
#include "kernels/cuda/linear_mma.cuh"

IV_MMA_INSTANCES(iv_mma_bf16, IV_BF16)
