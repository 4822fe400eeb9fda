/* linear_wgmma_bf16_large_sm90a.cu: the large shapes of linear_wgmma_shapes.cuh for bfloat16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_bf16_large, IV_WGMMA_LARGE_SHAPES(IV_BF16))
