/* linear_mma_bf16_packed_sm90a.cu: the packed instances of linear_mma.cuh for bfloat16. */
#include "kernels/cuda/linear_mma.cuh"

IV_MMA_PACKED_INSTANCES(iv_mma_bf16_packed, IV_BF16)
