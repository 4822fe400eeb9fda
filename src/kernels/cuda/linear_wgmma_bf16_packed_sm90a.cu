/* linear_wgmma_bf16_packed_sm90a.cu: the packed shapes of linear_wgmma_shapes.cuh for bfloat16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_bf16_packed, IV_WGMMA_PACKED_SHAPES(IV_BF16))
