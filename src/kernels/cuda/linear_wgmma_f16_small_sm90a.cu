/* linear_wgmma_f16_small_sm90a.cu: the small shapes of linear_wgmma_shapes.cuh for float16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_f16_small, IV_WGMMA_SMALL_SHAPES(IV_F16))
