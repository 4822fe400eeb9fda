/* linear_mma_f16_sm90a.cu: the instances of linear_mma.cuh for float16. */
#include "kernels/cuda/linear_mma.cuh"

IV_MMA_INSTANCES(iv_mma_f16, IV_F16)
