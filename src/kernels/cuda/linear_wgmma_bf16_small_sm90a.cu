/* linear_wgmma_bf16_small_sm90a.cu: the small shapes of linear_wgmma_shapes.cuh for bfloat16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_bf16_small, IV_WGMMA_SMALL_SHAPES(IV_BF16))
