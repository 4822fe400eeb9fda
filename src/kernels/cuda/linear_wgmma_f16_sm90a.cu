/* linear_wgmma_f16_sm90a.cu: the shapes of linear_wgmma.cuh for float16. */
#include "kernels/cuda/linear_wgmma.cuh"

const iv_wgmma_instance *iv_wgmma_f16(size_t *count) {
    static const iv_wgmma_instance all[] = {
        IV_WGMMA_ALL_LEAVES(IV_F16, 1, 16, false, 1), IV_WGMMA_ALL_LEAVES(IV_F16, 1, 32, false, 1),
        IV_WGMMA_ALL_LEAVES(IV_F16, 1, 64, false, 1), IV_WGMMA_ALL_LEAVES(IV_F16, 2, 64, false, 1),
        IV_WGMMA_ALL_LEAVES(IV_F16, 2, 128, false, 1), IV_WGMMA_ALL_LEAVES(IV_F16, 2, 128, true, 2),
        iv_wgmma_make<IV_F16, 2, 96, false, 1, 2>(), iv_wgmma_make<IV_F16, 2, 96, false, 1, 4>(),
        iv_wgmma_make<IV_F16, 2, 96, false, 1, 8>(),
        /* one chain */
        iv_wgmma_make<IV_F16, 2, 256, true, 2, 1>(), iv_wgmma_make<IV_F16, 2, 128, false, 2, 1>(),
    };
    *count = sizeof all / sizeof *all;
    return all;
}
