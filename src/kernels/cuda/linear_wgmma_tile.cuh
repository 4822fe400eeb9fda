/* linear_wgmma_tile.cuh: the shape of the wgmma kernel (linear_wgmma.cuh), its parameters, tiles and shared memory;
 * and the producer, which fills the ring. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_TILE_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_TILE_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packed_units.cuh"

enum { IV_BLOCK_K = 64, IV_ROW_BYTES = 128 }; /* of a stage; bytes of a row */
enum { IV_PART = 4 };                         /* chunks of eight Q rows in a part of a wide tile's epilogue */

/* The parameters of a launch. */
struct iv_wgmma_plan {
    int leaf_length, blocks;       /* length in k, and in blocks of 64 */
    int split_k;                   /* CTAs that divide a tile's leaves */
    int stages;                    /* of the ring */
    int weight_tiles, token_tiles; /* of the whole problem; with groups, each expert has its own token tiles */
    int raster;                    /* P tiles (pairs of tiles, with peers) per Q tile in the order of tiles */
    int tiles;                     /* or pairs; with groups computed on the device */
    int whole;                     /* tiles of one CTA; two CTAs of a cluster divide each later one */
    int rows, n;
    iv_gpu_epilogue epilogue;
    const float *bias;
    void *out;
    size_t out_stride;
    const uint16_t *x; /* read directly if gathered */
    size_t x_stride;
    iv_gpu_groups groups;    /* none if count is 0 */
    uint64_t weights_l2;     /* cache policy of weights */
    iv_unit_form units;      /* of a packed shape's weights */
    int units_bytes, stage;  /* of a packed shape: of a stage's units, of a stage */
    bool weighted, gathered; /* gathered: an entry reads its token's row of x */
    iv_gpu_fused fused;
};

struct iv_wgmma_entry { /* of a wide, weighted tile: a row's slot in the output (-1: none) and its weight */
    int slot;
    float weight;
};

/* The kernel's shape: TYPE of the operands, warpgroups of 64 P rows, Q rows, leaves of a CTA. WIDE: tokens are P.
 * PEERS: CTAs of a cluster that multicast their Q rows; each loads a half for both. FUSES: with the epilogues of a
 * training step. PACKED: weights are units of codes (kernels/packed_units.h), which WIDENERS, warps of their own, write
 * as the stage's P rows. */
template <iv_dtype TYPE_, int GROUPS_, int QN_, int LEAVES_, bool WIDE_, int PEERS_ = 1, bool FUSES_ = false,
          bool PACKED_ = false>
struct iv_wgmma_shape {
    static constexpr iv_dtype TYPE = TYPE_;
    static constexpr bool WIDE = WIDE_, SWAP = !WIDE_;
    static constexpr int WARPGROUPS = GROUPS_, PN = 64 * GROUPS_, QN = QN_, LEAVES = LEAVES_;
    static constexpr int PEERS = PEERS_;
    static constexpr bool FUSES = FUSES_, PACKED = PACKED_;
    static_assert(!PACKED || !WIDE, "weights are the P rows");
    static_assert(PEERS == 1 || WIDE, "others have no use for it");
    static constexpr int COUNT = QN / 2, CONSUMERS = 128 * GROUPS_;
    static constexpr bool KEEP2 = QN <= 96; /* nodes of level 2 are spilled to registers */
    /* approximate registers of a consumer; if too many, the producer's warpgroup gives some of its registers */
    static constexpr int NODES = LEAVES == 1 ? 1 : LEAVES == 2 ? 2 : LEAVES == 4 || !KEEP2 ? 3 : 4;
    static constexpr int NEED = NODES * COUNT + (COUNT < 128 ? 40 : 56);
    static constexpr bool MOVED = WIDE || (GROUPS_ == 2 && NEED > (PACKED ? 120 : 168));
    static constexpr int WIDENERS = PACKED ? 4 * GROUPS_ - 1 : 0, ITEMS = PN / 16; /* of a stage, each for one warp */
    static constexpr int THREADS = CONSUMERS + (PACKED ? 32 * (WIDENERS + 1) : MOVED ? 128 : 32);
    /* registers of a producer's or widener's thread, and of a consumer's */
    static constexpr int GIVEN = PACKED ? 88 : WIDE ? 40 : 56, TAKEN = PACKED ? 168 : WIDE ? 232 : 224;
    static_assert(!MOVED || CONSUMERS * TAKEN + (THREADS - CONSUMERS) * GIVEN <= THREADS * (65536 / THREADS / 8 * 8),
                  "a launch has no more registers, and setmaxnreg would wait for them forever");
    /* CTAs that fit on an SM: each of its four partitions has 16384 registers and every fourth warp */
    static constexpr int CTAS = PACKED                ? GROUPS_ == 2 || NEED > 120 ? 1
                                                        : NEED > 68                ? 2
                                                        : NEED > 56                ? 3
                                                                                   : 4
                                : MOVED || NEED > 168 ? 1
                                : GROUPS_ == 2        ? NEED > 96 ? 1 : 2
                                : NEED <= 96          ? 4
                                : NEED <= 128         ? 3
                                                      : 2;
    static constexpr int P_BYTES = PN * IV_ROW_BYTES, Q_BYTES = QN * IV_ROW_BYTES, STAGE = P_BYTES + Q_BYTES;
    static constexpr int NODE_BYTES = PN * QN * 4;
    static constexpr bool SINGLE_ACC = WIDE && QN > 128 && LEAVES == 1; /* registers hold a single accumulator */
    static constexpr bool DENSE = (WIDE && LEAVES > 1) || PEERS > 1; /* not for experts, whose layers are one chain */
    /* overlapped SwiGLU writes rows of PITCH bytes (linear_wgmma_swiglu.cuh) */
    static constexpr int PITCH = QN + 16;
    /* spilled nodes, or outputs in the epilogue */
    static constexpr int SCRATCH = LEAVES == 8 && !KEEP2 ? NODE_BYTES
                                   : !WIDE               ? 0
                                   : QN == 128           ? (FUSES ? 3 : 1) * PN * PITCH
                                                         : CONSUMERS * IV_PART * 16;
    static constexpr int TOKENS = SWAP ? QN : PN, WEIGHTS = SWAP ? PN : QN;
    /* two CTAs may divide the leaves of a tile of the last round */
    static constexpr bool DIVIDES = LEAVES >= 4 && GROUPS_ == 2 && PEERS == 1 && !FUSES && !PACKED;
    /* output rows may be scattered (experts, which have one chain); other shapes have shorter code */
    static constexpr bool SCATTERED = WIDE && LEAVES == 1;
    static constexpr int ROWS_BYTES = TOKENS * (SCATTERED ? (int)sizeof(iv_wgmma_entry) : 4);
};

typedef void (*iv_wgmma_function)(const CUtensorMap, const CUtensorMap, const iv_wgmma_plan);

/* A compiled shape, described for the host. */
struct iv_wgmma_instance {
    int tile_n, tile_m, leaves, peers;
    bool wide;
    iv_wgmma_function kernel;
    int stage, threads, fixed, node, ctas; /* bytes: of a stage; fixed: next to the ring; node: of a root */
    bool dense, fuses, divides, packed;    /* dense: not for experts */
};
const iv_wgmma_instance *iv_wgmma_bf16_small(size_t *count);
const iv_wgmma_instance *iv_wgmma_bf16_large(size_t *count);
const iv_wgmma_instance *iv_wgmma_bf16_other(size_t *count);
const iv_wgmma_instance *iv_wgmma_bf16_fused(size_t *count);
const iv_wgmma_instance *iv_wgmma_bf16_packed(size_t *count);
const iv_wgmma_instance *iv_wgmma_f16_small(size_t *count);
const iv_wgmma_instance *iv_wgmma_f16_large(size_t *count);
const iv_wgmma_instance *iv_wgmma_f16_other(size_t *count);
const iv_wgmma_instance *iv_wgmma_f16_fused(size_t *count);

struct iv_wgmma_tile {
    int p, q;        /* first P and Q row */
    int expert;      /* index in the weights' third dimension */
    int first, rows; /* the expert's first entry and number of entries; without groups 0 and all rows */
};

struct iv_wgmma_shared { /* addresses in shared memory */
    uint32_t ring, full, empty, stagger;
    uint32_t wide; /* of packed shapes: stages whose weights are widened */
    uint32_t mine; /* offset of this warpgroup's P rows in a stage; uniform in a warp, visibly to the compiler */
    int peer;      /* this CTA's rank among the peers */
    float4 *root, *scratch;
    int *rows;               /* of gathered tokens */
    iv_wgmma_entry *entries; /* the same memory; of a weighted tile, written and read by one warp */
    const int *prefix;       /* [e]: tiles before expert e; only with groups */
    iv_wgmma_tile *tiles;    /* active tiles by index modulo IV_TILES, written by the producer for the consumers */
};

/* Bytes of a stage, of its P rows as copied, and where its P and Q rows begin. A packed stage has units, Q rows, P
 * rows. */
template <class S> IV_DEVICE int iv_wgmma_stage_bytes(const iv_wgmma_plan &plan) {
    if constexpr (S::PACKED) return plan.stage;
    return S::STAGE;
}
template <class S> IV_DEVICE int iv_wgmma_p_bytes(const iv_wgmma_plan &plan) {
    if constexpr (S::PACKED) return plan.units_bytes;
    return S::P_BYTES;
}
template <class S> IV_DEVICE int iv_wgmma_q_offset(const iv_wgmma_plan &plan) {
    if constexpr (S::PACKED) return plan.stage - S::STAGE;
    return S::P_BYTES;
}
template <class S> IV_DEVICE int iv_wgmma_p_offset(const iv_wgmma_plan &plan) {
    if constexpr (S::PACKED) return plan.stage - S::P_BYTES;
    return 0;
}

/* The work of a launch is a list of pieces: whole tiles, then halves of tiles. Piece `at`: is it a half? */
template <class S> IV_DEVICE bool iv_wgmma_is_half(const iv_wgmma_plan &plan, int at) {
    return S::DIVIDES && at >= plan.whole;
}

/* The tile of a piece. */
template <class S>
IV_DEVICE iv_wgmma_tile iv_wgmma_tile_at(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int at) {
    iv_wgmma_tile t = {0, 0, 0, 0, plan.rows};
    if (iv_wgmma_is_half<S>(plan, at)) at = plan.whole + (at - plan.whole) / 2;
    int token_tiles = plan.token_tiles;
    if (!S::DENSE && plan.groups.count) {
        int low = 0, high = (int)plan.groups.count;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (m.prefix[middle] <= at)
                low = middle;
            else
                high = middle;
        }
        const int32_t *o = plan.groups.offsets + plan.groups.first + low;
        t.expert = low, t.first = o[0], t.rows = o[1] - o[0];
        at -= m.prefix[low];
        token_tiles = (t.rows + S::TOKENS - 1) / S::TOKENS;
    }
    int p_tiles = ((S::SWAP ? plan.weight_tiles : token_tiles) + S::PEERS - 1) / S::PEERS;
    int q_tiles = S::SWAP ? token_tiles : plan.weight_tiles;
    int band = at / (plan.raster * q_tiles), rest = at - band * plan.raster * q_tiles;
    int height = min(plan.raster, p_tiles - band * plan.raster);
    t.q = rest / height * S::QN;
    t.p = ((band * plan.raster + rest % height) * S::PEERS + m.peer) * S::PN;
    return t;
}

/* Prefix sums of tiles over experts, by one warp; prefix[count] is the total. */
template <class S> IV_DEVICE void iv_wgmma_count_tiles(const iv_wgmma_plan &plan, int *prefix) {
    int lane = threadIdx.x % 32, sum = 0, count = (int)plan.groups.count;
    for (int base = 0; base < count; base += 32) {
        int e = base + lane, tiles = 0;
        if (e < count) {
            const int32_t *o = plan.groups.offsets + plan.groups.first + e;
            tiles = (o[1] - o[0] + S::TOKENS - 1) / S::TOKENS * plan.weight_tiles;
        }
        int inclusive = tiles;
        for (int d = 1; d < 32; d *= 2) {
            int before = __shfl_up_sync(~0u, inclusive, d);
            if (lane >= d) inclusive += before;
        }
        if (e < count) prefix[e] = sum + inclusive - tiles;
        sum += __shfl_sync(~0u, inclusive, 31);
    }
    if (lane == 0) prefix[count] = sum;
}

/* ---- the producer ------------------------------------------------------------------------------------------- */

/* A position in the ring of stages. */
struct iv_wgmma_ring {
    int stage, phase;
    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
};

enum { IV_TILES = 32 }; /* more tiles than stages can hold, plus two */

/* A block of a tile and its stage. */
struct iv_wgmma_block {
    int leaf, k; /* leaf of the matrix; k within the leaf */
    uint32_t stage, bar;
};

template <class S>
IV_DEVICE void iv_wgmma_load_weights(const CUtensorMap *map, const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                     const iv_wgmma_block &b, const iv_wgmma_tile &t) {
    if constexpr (S::PACKED) {
        iv_tma_load_4d(b.stage, map, b.bar, 0, b.leaf * plan.blocks + b.k / IV_BLOCK_K, t.p / IV_UNIT_ROWS, t.expert,
                       plan.weights_l2);
    } else if constexpr (S::PEERS == 1) {
        iv_tma_load_4d(b.stage + (S::SWAP ? 0 : S::P_BYTES), map, b.bar, b.k, b.leaf, S::SWAP ? t.p : t.q, t.expert,
                       plan.weights_l2);
    } else { /* this CTA's part, multicast to all peers */
        int row = m.peer * (S::QN / S::PEERS);
        iv_tma_load_4d_multicast(b.stage + S::P_BYTES + row * IV_ROW_BYTES, map, b.bar, b.k, b.leaf, t.q + row,
                                 t.expert, (uint16_t)((1u << S::PEERS) - 1), plan.weights_l2);
    }
}
template <class S>
IV_DEVICE void iv_wgmma_load_tokens(const CUtensorMap *map, const iv_wgmma_plan &plan, const iv_wgmma_block &b,
                                    const iv_wgmma_tile &t) {
    iv_tma_load_4d(b.stage + (S::SWAP ? iv_wgmma_q_offset<S>(plan) : 0), map, b.bar, b.k, b.leaf,
                   t.first + (S::SWAP ? t.q : t.p), 0, S::SWAP ? IV_L2_LAST : IV_L2_NORMAL);
}

/* Weights do not depend on the preceding kernel: while that one finishes, the ring is filled with the first tile's.
 * Returns the number of blocks. */
template <class S>
IV_DEVICE int iv_wgmma_produce_early(const CUtensorMap *weights, const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                     const iv_wgmma_tile &t, int first_leaf, int leaves) {
    int early = min(plan.stages, leaves * plan.blocks), leaf = first_leaf, block = 0;
    for (int s = 0; s < early; s++) {
        iv_wgmma_block b = {leaf, block * IV_BLOCK_K, m.ring + s * iv_wgmma_stage_bytes<S>(plan), m.full + 8 * s};
        iv_mbar_expect(b.bar, iv_wgmma_p_bytes<S>(plan) + S::Q_BYTES);
        iv_wgmma_load_weights<S>(weights, plan, m, b, t);
        if (++block == plan.blocks) block = 0, leaf++;
    }
    return early;
}

template <class S>
IV_DEVICE void iv_wgmma_produce(const CUtensorMap *weights, const CUtensorMap *tokens, const iv_wgmma_plan &plan,
                                const iv_wgmma_shared &m, int tiles, int first, int step, int first_leaf) {
    int early = 0, round = 0, stages = plan.stages, blocks = plan.blocks;
    int index = 0, half_leaf = (first & 1) * S::LEAVES / 2;
    iv_wgmma_ring r = {0, 0};
    if ((S::DENSE || !plan.groups.count) && first < tiles) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m, first);
        m.tiles[0] = t;
        bool half = iv_wgmma_is_half<S>(plan, first);
        early = iv_wgmma_produce_early<S>(weights, plan, m, t, first_leaf + (half ? half_leaf : 0),
                                          half ? S::LEAVES / 2 : S::LEAVES);
    }
    iv_dependency_wait();
    for (int at = first; at < tiles; at += step, index++) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m, at);
        bool half = iv_wgmma_is_half<S>(plan, at);
        int from = first_leaf + (half ? half_leaf : 0), to = from + (half ? S::LEAVES / 2 : S::LEAVES);
        if (!early || index) m.tiles[index % IV_TILES] = t;
        for (int leaf = from; leaf < to; leaf++)
            for (int block = 0; block < blocks; block++, round++) {
                iv_wgmma_block b = {leaf, block * IV_BLOCK_K, m.ring + r.stage * iv_wgmma_stage_bytes<S>(plan),
                                    m.full + 8 * r.stage};
                if (round >= early) {
                    if (round >= stages) iv_mbar_wait(m.empty + 8 * r.stage, r.phase ^ 1);
                    iv_mbar_expect(b.bar, iv_wgmma_p_bytes<S>(plan) + S::Q_BYTES);
                    iv_wgmma_load_weights<S>(weights, plan, m, b, t);
                }
                iv_wgmma_load_tokens<S>(tokens, plan, b, t);
                r.next(stages);
            }
    }
}

enum { IV_LAG = 1 }; /* stages whose copies are in flight when a warp continues; a ring has more */

/* Signals a stage whose copies have landed, and returns the next one. */
IV_DEVICE int iv_wgmma_landed(const iv_wgmma_shared &m, int stage, bool landed, int stages) {
    if (!landed) return stage;
    iv_fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(m.full + 8 * stage);
    return stage + 1 == stages ? 0 : stage + 1;
}

/* Loads the rows of the tile's tokens, -1 beyond the last, by one warp. */
template <class S>
IV_DEVICE void iv_wgmma_find_rows(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t) {
    __syncwarp();
    for (int i = threadIdx.x % 32; i < S::TOKENS; i += 32) {
        int row = (S::SWAP ? t.q : t.p) + i;
        m.rows[i] = row < t.rows ? plan.groups.slots[t.first + row] / (int)plan.groups.experts_per_token : -1;
    }
    __syncwarp();
}

template <class S>
IV_DEVICE void iv_wgmma_produce_gathered(const CUtensorMap *weights, const iv_wgmma_plan &plan,
                                         const iv_wgmma_shared &m, int tiles, int first, int step) {
    int lane = threadIdx.x % 32, piece = lane % 8, round = 0, late = 0; /* first stage that may not have landed */
    int index = 0;
    iv_wgmma_ring r = {0, 0};
    for (int at = first; at < tiles; at += step, index++) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m, at);
        if (lane == 0) m.tiles[index % IV_TILES] = t;
        iv_wgmma_find_rows<S>(plan, m, t);
        for (int leaf = 0; leaf < S::LEAVES; leaf++)
            for (int block = 0; block < plan.blocks; block++, round++) {
                iv_wgmma_block b = {leaf, block * IV_BLOCK_K, m.ring + r.stage * iv_wgmma_stage_bytes<S>(plan),
                                    m.full + 8 * r.stage};
                if (round >= plan.stages) iv_mbar_wait(m.empty + 8 * r.stage, r.phase ^ 1);
                if (lane == 0) {
                    iv_mbar_expect(b.bar, S::SWAP ? iv_wgmma_p_bytes<S>(plan) : S::Q_BYTES);
                    iv_wgmma_load_weights<S>(weights, plan, m, b, t);
                }
                __syncwarp();
                int k = b.k + piece * 8;
                uint32_t to = b.stage + (S::SWAP ? iv_wgmma_q_offset<S>(plan) : 0);
                for (int row = lane / 8; row < S::TOKENS; row += 4) {
                    int from = m.rows[row];
                    bool there = from >= 0 && k < plan.leaf_length;
                    const uint16_t *x = plan.x + (size_t)from * plan.x_stride + leaf * plan.leaf_length + k;
                    iv_copy16(to + row * IV_ROW_BYTES + ((piece ^ (row & 7)) << 4), there ? x : plan.x, there);
                }
                iv_copies_commit();
                iv_copies_wait<IV_LAG>();
                late = iv_wgmma_landed(m, late, round >= IV_LAG, plan.stages);
                r.next(plan.stages);
            }
    }
    iv_copies_wait<0>();
    while (late != r.stage) late = iv_wgmma_landed(m, late, true, plan.stages);
}

#endif
