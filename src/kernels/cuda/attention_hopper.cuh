/* attention_hopper.cuh: common parts of the two Hopper attention kernels: tensor maps, the launch, rows of pages.
 * TMA stores a block's keys (or values) as chunks of 64 of head_dim: rows of 128 bytes with 128-byte swizzle. */
#ifndef IV_KERNELS_CUDA_ATTENTION_HOPPER_CUH
#define IV_KERNELS_CUDA_ATTENTION_HOPPER_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"

enum { IV_CHUNK_ELEMENTS = 64, IV_CHUNK_BYTES = IV_ATTENTION_BLOCK * 128 };

/* ---- host ------------------------------------------------------------------------------------------------------- */

/* A tensor map of 16-bit elements, contiguous in the first dimension, with a swizzled box. L2 fetches exactly what
 * is requested: 256 bytes at a time stream 10 % slower. */
static int iv_map_make(CUtensorMap *map, iv_dtype type, const void *data, int sides, const uint64_t *size,
                       const uint64_t *stride_bytes, const uint32_t *box) {
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    PFN_cuTensorMapEncodeTiled_v12000 encode = iv_tensor_map_encoder();
    if (!encode) return cudaErrorNotSupported;
    CUtensorMapDataType kind = type == IV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    CUresult r =
        encode(map, kind, (uint32_t)sides, (void *)data, (const cuuint64_t *)size, (const cuuint64_t *)stride_bytes,
               box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : cudaErrorInvalidValue;
}

template <class... P>
static int iv_launch_with_shared(void (*kernel)(P...), int grid, int threads, size_t bytes, cudaStream_t stream,
                                 P... arguments) {
    cudaError_t failed =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (failed) return failed;
    return iv_launch_shared(kernel, dim3((unsigned)grid), threads, bytes, stream, arguments...);
}

/* ---- device ----------------------------------------------------------------------------------------------------- */

/* The row of the map where a page's keys (values: 1) of a head begin. */
IV_DEVICE int iv_page_row(const iv_attention_params &p, uint32_t page, int kv_head, int values) {
    return (int)((page * (uint32_t)p.page_heads + (uint32_t)kv_head) * 2 + (uint32_t)values) * IV_ATTENTION_BLOCK;
}

/* Like iv_mbar_wait, for a producer: polling without a pause takes a third of its scheduler's issue slots. */
IV_DEVICE void iv_mbar_wait_idle(uint32_t bar, uint32_t parity) {
    while (!iv_mbar_test(bar, parity)) asm volatile("nanosleep.u32 %0;" ::"n"(40));
}

/* The CTA's j-th item: tile and KV head. The direction over the CTAs alternates, so that long and short tiles mix. */
typedef struct iv_tall_item {
    iv_attention_tile tile;
    int kv_head;
} iv_tall_item;

IV_DEVICE bool iv_next_tall(const iv_attention_params &p, int j, iv_tall_item *to) {
    const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
    int grid = gridDim.x, column = j % 2 ? grid - 1 - (int)blockIdx.x : (int)blockIdx.x, index = j * grid + column;
    if (index >= head->tall_tiles * p.kv_heads) return false;
    const int4 *t = (const int4 *)(p.plan + head->tall_at) + 2 * (index / p.kv_heads);
    int4 a = __ldg(t), b = __ldg(t + 1);
    to->tile = {a.x, a.y, a.z, a.w, b.x, b.y, {0, 0}};
    to->kv_head = index % p.kv_heads;
    return true;
}

#endif
