/* linear_wgmma_bf16_other_sm90a.cu: the other shapes of linear_wgmma_shapes.cuh for bfloat16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_bf16_other, IV_WGMMA_OTHER_SHAPES(IV_BF16))
