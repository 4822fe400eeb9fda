/* linear_wgmma_bf16_fused_sm90a.cu: the shapes of linear_wgmma_shapes.cuh for training steps and bfloat16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_bf16_fused, IV_WGMMA_FUSED_SHAPES(IV_BF16))
