/* attention_backward_hopper.cuh: common parts of the two Hopper kernels of attention's backward pass. In shared memory
 * 64 rows of q, dO, K or V are a tile: chunks of 64 of head_dim, rows of 128 bytes with 128-byte swizzle. wgmma reads
 * it by rows (K-major) and, as 64 steps of k, by columns (MN-major). A tile may reach past a sequence's end, where its
 * weights are zero: those rows must be finite, or the step's gradients are not and it is refused. */
#ifndef IV_KERNELS_CUDA_ATTENTION_BACKWARD_HOPPER_CUH
#define IV_KERNELS_CUDA_ATTENTION_BACKWARD_HOPPER_CUH

#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_hopper.cuh"

enum {
    BLOCK = IV_ATTENTION_BLOCK,
    GROUPS = 2, /* consumer warpgroups */
    WARPS = 4 * GROUPS,
    THREADS = 128 + 128 * GROUPS,
    STAGES_MAX = 8,
    STATS_BYTES = 2 * BLOCK * 4 /* lse2 and delta of 64 rows */
};

template <int DIM> struct sizes {
    static constexpr int CHUNKS = DIM / IV_CHUNK_ELEMENTS;
    static constexpr int TILE = CHUNKS * IV_CHUNK_BYTES;
    static constexpr int OWN = GROUPS * 2 * TILE; /* two operands of each warpgroup */
    static constexpr int STAGE = 2 * TILE, STAGES = DIM == 128 ? 4 : 8;
};

typedef struct backward_maps {
    CUtensorMap q, dout, pages;
} backward_maps;

/* What a CTA computes now: two units of a work entry. rows 0: nothing more. */
typedef struct item {
    int first_row, rows, unit, kv_head, tile;
} item;

typedef struct shared_state {
    uint64_t own_full, own_empty, full[STAGES_MAX], empty[STAGES_MAX];
    item now; /* valid from own_full until own_empty */
} shared_state;

/* Addresses in shared memory: the warpgroups' own tiles, the stages' tiles, statistics of 64 rows. */
typedef struct buffers {
    uint32_t own, stage, stats;
    const float *stats_here; /* the same as `stats` */
    shared_state *s;
} buffers;

template <int DIM> static constexpr int shared_bytes(int stats) {
    return 1024 + sizes<DIM>::OWN + sizes<DIM>::STAGES * sizes<DIM>::STAGE + stats * STATS_BYTES +
           (int)sizeof(shared_state);
}

/* fills: the threads that fill a stage. All but the first read the item, and arrive at own_empty when they have. */
template <int DIM> IV_DEVICE buffers begin(char *memory, const backward_maps &maps, int stats, int fills) {
    typedef sizes<DIM> z;
    buffers b;
    b.own = (iv_shared(memory) + 1023) & ~1023u, b.stage = b.own + z::OWN, b.stats = b.stage + z::STAGES * z::STAGE;
    b.stats_here = (const float *)(memory + (b.stats - iv_shared(memory)));
    b.s = (shared_state *)(memory + (b.stats - iv_shared(memory)) + stats * STATS_BYTES);
    if (threadIdx.x == 0) {
        iv_mbar_init(iv_shared(&b.s->own_full), 1), iv_mbar_init(iv_shared(&b.s->own_empty), WARPS + fills - 1);
        for (int i = 0; i < z::STAGES; i++)
            iv_mbar_init(iv_shared(&b.s->full[i]), fills), iv_mbar_init(iv_shared(&b.s->empty[i]), WARPS);
        iv_mbar_init_fence();
        iv_tma_prefetch_map(&maps.q), iv_tma_prefetch_map(&maps.dout), iv_tma_prefetch_map(&maps.pages);
    }
    __syncthreads();
    return b;
}

/* A stage of the ring and the parity of its fill. */
template <int STAGES> struct ring {
    uint32_t at, phase;
    __device__ __forceinline__ void next(void) {
        at++;
        if (at == STAGES) at = 0, phase ^= 1;
    }
};

IV_DEVICE void release(uint64_t *empty) {
    __syncwarp(); /* one lane arrives for the reads of all */
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(iv_shared(empty));
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

/* Bytes at a multiple of 16 to shared memory; a multiple of 16. */
IV_DEVICE void load_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3],"
        " %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar), "l"(IV_L2_NORMAL)
        : "memory");
}

/* 64 rows of a head, from `row` on. */
template <int DIM> IV_DEVICE void load_rows(uint32_t to, const CUtensorMap *map, uint32_t bar, int head, int row) {
#pragma unroll
    for (int c = 0; c < sizes<DIM>::CHUNKS; c++)
        iv_tma_load_3d(to + c * IV_CHUNK_BYTES, map, bar, c * IV_CHUNK_ELEMENTS, head, row, IV_L2_NORMAL);
}

/* lse2 and delta of 64 rows of a head. */
IV_DEVICE void load_stats(const iv_backward_params &p, uint32_t to, uint32_t bar, int head, int row) {
    size_t from = (size_t)head * p.row_stride + row;
    load_bytes(to, p.row_lse2 + from, BLOCK * 4, bar);
    load_bytes(to + BLOCK * 4, p.row_delta + from, BLOCK * 4, bar);
}

/* A page's keys. */
template <int DIM>
IV_DEVICE void load_keys(const iv_backward_params &p, uint32_t to, const CUtensorMap *map, uint32_t bar, int at,
                         int kv_head) {
    int row = (int)((__ldg(p.tables + at) * (uint32_t)p.kv_heads + (uint32_t)kv_head) * 2 * BLOCK);
#pragma unroll
    for (int c = 0; c < sizes<DIM>::CHUNKS; c++)
        iv_tma_load_2d(to + c * IV_CHUNK_BYTES, map, bar, c * IV_CHUNK_ELEMENTS, row, IV_L2_NORMAL);
}

/* A page's keys, then its values. */
template <int DIM>
IV_DEVICE void load_page(const iv_backward_params &p, uint32_t to, const CUtensorMap *map, uint32_t bar, int at,
                         int kv_head) {
    int row = (int)((__ldg(p.tables + at) * (uint32_t)p.kv_heads + (uint32_t)kv_head) * 2 * BLOCK);
#pragma unroll
    for (int i = 0; i < 2 * sizes<DIM>::CHUNKS; i++)
        iv_tma_load_2d(to + i * IV_CHUNK_BYTES, map, bar, i % sizes<DIM>::CHUNKS * IV_CHUNK_ELEMENTS,
                       row + i / sizes<DIM>::CHUNKS * BLOCK, IV_L2_NORMAL);
}

/* The next item of a queue, for the producer's one thread, when the previous one is done. False: none. */
IV_DEVICE bool next_item(const iv_backward_params &p, int side, const buffers &b, uint32_t n, iv_backward_work *work,
                         int *kv_head) {
    int index = atomicAdd(&p.queue[side].next, 1);
    bool more = index < __ldcg(&p.queue[side].count) * p.kv_count;
    if (more) {
        const iv_backward_work *from = &p.work[side][index / p.kv_count];
        int4 w = __ldcg((const int4 *)from);
        *work = {w.x, w.y, w.z, w.w, __ldcg(&from->tile), {0, 0, 0}}, *kv_head = p.kv_first + index % p.kv_count;
    }
    iv_mbar_wait_idle(iv_shared(&b.s->own_empty), (n & 1) ^ 1);
    if (more)
        b.s->now = {work->first_row, work->rows, work->unit, *kv_head, work->tile};
    else {
        b.s->now = {0, 0, 0, 0, 0};
        iv_mbar_arrive(iv_shared(&b.s->own_full));
    }
    return more;
}

/* The item, known to the compiler as the same in all threads of a warp. */
IV_DEVICE item item_now(const buffers &b) {
    item it = b.s->now;
    return {__shfl_sync(~0u, it.first_row, 0), __shfl_sync(~0u, it.rows, 0), __shfl_sync(~0u, it.unit, 0),
            __shfl_sync(~0u, it.kv_head, 0), __shfl_sync(~0u, it.tile, 0)};
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* A descriptor of an operand in rows of 128 swizzled bytes (iv_wgmma_desc), from its low word: arithmetic of 32 bits.
 */
IV_DEVICE uint64_t descriptor(uint32_t low) { return (uint64_t)0x40000040u << 32 | low; }
/* The k-th step of 16 of head_dim of a tile. */
IV_DEVICE uint64_t by_rows(uint32_t tile, int k) {
    return descriptor((tile >> 4) + (1 << 16) + (uint32_t)(k / 4 * (IV_CHUNK_BYTES >> 4) + k % 4 * 2));
}
/* The k-th step of 16 rows of a tile. */
IV_DEVICE uint64_t by_columns(uint32_t tile, int k) {
    return descriptor((tile >> 4) + (IV_CHUNK_BYTES >> 4 << 16) + (uint32_t)(k * 128));
}

/* d += x times the tile's rows: x is 64 rows of 64, as operands. */
template <iv_dtype TYPE, int COUNT>
IV_DEVICE void issue_chain(float (&d)[COUNT], const uint32_t (&x)[4][4], uint32_t tile) {
    asm volatile("" : "+r"(tile)); /* descriptors are made here, not kept */
    iv_wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) iv_wgmma_a<TYPE, true>(d, x[k], by_columns(tile, k), 1);
    iv_wgmma_commit();
}

/* Eight numbers of a warpgroup's 64 x 64 accumulator, from `at` on, as the operand of 16 columns. */
template <iv_dtype TYPE> IV_DEVICE void round_to(uint32_t (&x)[4], const float (&from)[32], int at) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = iv_pack16(TYPE, from[at + 2 * i], from[at + 2 * i + 1]);
}

template <iv_dtype TYPE> IV_DEVICE void round_to(uint32_t (&x)[4][4], const float (&from)[32]) {
#pragma unroll
    for (int k = 0; k < 4; k++) round_to<TYPE>(x[k], from, 8 * k);
}

/* ---- host ------------------------------------------------------------------------------------------------------- */

/* [rows][heads][head_dim]; a box is 64 rows of a head, 64 of head_dim. */
static inline int map_rows(CUtensorMap *map, const iv_gpu_attention_shape *s, const void *data, size_t rows) {
    uint64_t head = s->head_dim * 2, size[3] = {s->head_dim, s->heads, rows}, stride[2] = {head, head * s->heads};
    uint32_t box[3] = {IV_CHUNK_ELEMENTS, 1, BLOCK};
    return iv_map_make(map, s->type, data, 3, size, stride, box);
}

/* All pages as rows of head_dim; a box is one block's keys or values, 64 of head_dim. */
static inline int map_pages(CUtensorMap *map, const iv_gpu_kv *kv) {
    uint64_t row = kv->head_dim * 2, size[2] = {kv->head_dim, (uint64_t)kv->page_count * kv->heads * 2 * BLOCK};
    uint32_t box[2] = {IV_CHUNK_ELEMENTS, BLOCK};
    if (size[1] > INT32_MAX) return cudaErrorInvalidValue;
    return iv_map_make(map, kv->type, kv->pages, 2, size, &row, box);
}

static inline int make_maps(backward_maps *m, const iv_gpu_attention_backward_args *a) {
    int failed = map_rows(&m->q, &a->shape, a->q, a->rows);
    if (!failed) failed = map_rows(&m->dout, &a->shape, a->dout, a->rows);
    return failed ? failed : map_pages(&m->pages, &a->kv);
}

#endif
