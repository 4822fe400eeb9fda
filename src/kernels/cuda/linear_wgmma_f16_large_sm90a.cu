/* linear_wgmma_f16_large_sm90a.cu: the large shapes of linear_wgmma_shapes.cuh for float16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_f16_large, IV_WGMMA_LARGE_SHAPES(IV_F16))
