/* linear_wgmma_f16_other_sm90a.cu: the other shapes of linear_wgmma_shapes.cuh for float16. */
#include "kernels/cuda/linear_wgmma_shapes.cuh"

IV_WGMMA_PART(iv_wgmma_f16_other, IV_WGMMA_OTHER_SHAPES(IV_F16))
