/* attention_mma.cuh: common parts of the Hopper attention kernels on mma.sync: products and their operands, a block of
 * keys or values in shared memory, and the ring of blocks. */
#ifndef IV_KERNELS_CUDA_ATTENTION_MMA_CUH
#define IV_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention_hopper.cuh"

template <iv_dtype TYPE> IV_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

IV_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
IV_DEVICE void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* The address of 8 elements: row of a block, group of eight in head_dim. A block is stored as groups of eight rows,
 * each as chunks. These are contiguous in global memory, too, which streams faster than chunks of all rows. */
template <int DIM> IV_DEVICE uint32_t block_address(uint32_t block, int row, int eighth) {
    return block + (uint32_t)(row / 8 * (DIM * 16) + eighth / 8 * 1024 + row % 8 * 128 + ((eighth ^ row) % 8 << 4));
}

/* A tensor map of all pages as chunks of head_dim by groups of eight rows; a box is one block's keys or values. */
static inline int iv_blocks_map(CUtensorMap *map, const iv_gpu_kv *kv) {
    uint64_t row = kv->head_dim * iv_dtype_bytes(kv->type), chunks = kv->head_dim / IV_CHUNK_ELEMENTS;
    uint64_t eights = (uint64_t)kv->page_count * iv_gpu_kv_page_heads(kv) * 2 * IV_ATTENTION_BLOCK / 8;
    uint64_t size[4] = {IV_CHUNK_ELEMENTS, 8, chunks, eights}, stride[3] = {row, 128, 8 * row};
    uint32_t box[4] = {IV_CHUNK_ELEMENTS, 8, (uint32_t)chunks, IV_ATTENTION_BLOCK / 8};
    if (eights > INT32_MAX / 8) return cudaErrorInvalidValue;
    return iv_map_make(map, kv->type, kv->pages, 4, size, stride, box);
}

/* A position in the ring; fills and reads follow one order. */
typedef struct ring_position {
    int stage;
    uint32_t phase;
} ring_position;

template <int STAGES> IV_DEVICE ring_position ahead(ring_position r, int by) {
    r.stage += by;
    if (r.stage >= STAGES) r.stage -= STAGES, r.phase ^= 1;
    return r;
}

#endif
