/* linear_wgmma_shapes.cuh: the shapes of linear_wgmma.cuh in four parts, in the order in which they are tried. Each
 * part of a type is a translation unit, so that several compile at a time. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_SHAPES_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_SHAPES_CUH

#include "kernels/cuda/linear_wgmma.cuh"

#define IV_WGMMA_SMALL_SHAPES(T)                                                                                      \
    IV_WGMMA_ALL_LEAVES(T, 1, 16, false), IV_WGMMA_ALL_LEAVES(T, 1, 32, false), IV_WGMMA_ALL_LEAVES(T, 1, 64, false), \
        IV_WGMMA_ALL_LEAVES(T, 2, 64, false)
#define IV_WGMMA_LARGE_SHAPES(T) IV_WGMMA_ALL_LEAVES(T, 2, 128, false), IV_WGMMA_ALL_LEAVES(T, 2, 128, true)
#define IV_WGMMA_OTHER_SHAPES(T)                                                                                      \
    iv_wgmma_make<T, 2, 80, false, 4>(), iv_wgmma_make<T, 2, 80, false, 8>(), iv_wgmma_make<T, 2, 112, false, 4>(),   \
        iv_wgmma_make<T, 2, 112, false, 8>(), iv_wgmma_make<T, 2, 96, false, 2>(),                                    \
        iv_wgmma_make<T, 2, 96, false, 4>(), iv_wgmma_make<T, 2, 96, false, 8>(), iv_wgmma_make<T, 2, 96, true, 2>(), \
        iv_wgmma_make<T, 2, 96, true, 4>(), iv_wgmma_make<T, 2, 96, true, 8>(),                                       \
        iv_wgmma_make<T, 2, 128, true, 1, 2>(), iv_wgmma_make<T, 2, 128, true, 2, 2>(),                               \
        iv_wgmma_make<T, 2, 128, true, 4, 2>(), iv_wgmma_make<T, 2, 128, true, 8, 2>(),                               \
        iv_wgmma_make<T, 2, 256, true, 1>() /* one chain */

/* Pairs of wide tiles with the epilogues of training steps. */
#define IV_WGMMA_FUSED_SHAPES(T)                                                                \
    iv_wgmma_make<T, 2, 128, true, 1, 2, true>(), iv_wgmma_make<T, 2, 128, true, 2, 2, true>(), \
        iv_wgmma_make<T, 2, 128, true, 4, 2, true>(), iv_wgmma_make<T, 2, 128, true, 8, 2, true>()

/* Weights in units of codes. */
#define IV_WGMMA_PACKED_OF(T, groups, tokens, leaves) iv_wgmma_make<T, groups, tokens, false, leaves, 1, false, true>()
#define IV_WGMMA_PACKED_LEAVES(T, groups, tokens)                                       \
    IV_WGMMA_PACKED_OF(T, groups, tokens, 1), IV_WGMMA_PACKED_OF(T, groups, tokens, 2), \
        IV_WGMMA_PACKED_OF(T, groups, tokens, 4), IV_WGMMA_PACKED_OF(T, groups, tokens, 8)
#define IV_WGMMA_PACKED_SHAPES(T)                                                                         \
    IV_WGMMA_PACKED_LEAVES(T, 1, 16), IV_WGMMA_PACKED_LEAVES(T, 1, 32), IV_WGMMA_PACKED_LEAVES(T, 1, 64), \
        IV_WGMMA_PACKED_LEAVES(T, 2, 64)

#define IV_WGMMA_PART(name, ...)                              \
    const iv_wgmma_instance *name(size_t *count) {            \
        static const iv_wgmma_instance all[] = {__VA_ARGS__}; \
        *count = sizeof all / sizeof *all;                    \
        return all;                                           \
    }

#endif
