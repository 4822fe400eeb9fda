/* linear_wgmma_f16_sm90a.cu: the shapes of linear_wgmma.cuh for float16. */
#include "kernels/cuda/linear_wgmma.cuh"

const iv_wgmma_instance *iv_wgmma_f16(size_t *count) {
    static const iv_wgmma_instance all[] = {
        IV_WGMMA_ALL_LEAVES(IV_F16, 1, 16, false), IV_WGMMA_ALL_LEAVES(IV_F16, 1, 32, false),
        IV_WGMMA_ALL_LEAVES(IV_F16, 1, 64, false), IV_WGMMA_ALL_LEAVES(IV_F16, 2, 64, false),
        IV_WGMMA_ALL_LEAVES(IV_F16, 2, 128, false), IV_WGMMA_ALL_LEAVES(IV_F16, 2, 128, true),
        iv_wgmma_make<IV_F16, 2, 80, false, 4>(), iv_wgmma_make<IV_F16, 2, 80, false, 8>(),
        iv_wgmma_make<IV_F16, 2, 112, false, 4>(), iv_wgmma_make<IV_F16, 2, 112, false, 8>(),
        iv_wgmma_make<IV_F16, 2, 96, false, 2>(), iv_wgmma_make<IV_F16, 2, 96, false, 4>(),
        iv_wgmma_make<IV_F16, 2, 96, false, 8>(), iv_wgmma_make<IV_F16, 2, 96, true, 2>(),
        iv_wgmma_make<IV_F16, 2, 96, true, 4>(), iv_wgmma_make<IV_F16, 2, 96, true, 8>(),
        iv_wgmma_make<IV_F16, 2, 128, true, 1, 2>(), iv_wgmma_make<IV_F16, 2, 128, true, 2, 2>(),
        iv_wgmma_make<IV_F16, 2, 128, true, 4, 2>(), iv_wgmma_make<IV_F16, 2, 128, true, 8, 2>(),
        iv_wgmma_make<IV_F16, 2, 256, true, 1>(), /* one chain */
    };
    *count = sizeof all / sizeof *all;
    return all;
}
