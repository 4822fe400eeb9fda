/* linear_wgmma.cuh: the kernel of linear layers for many rows (linear_wgmma_sm90a.cu launches it). One producer fills a
 * ring of shared-memory stages through TMA; consumer warpgroups multiply them with wgmma. A tile is P rows on wgmma's
 * 64-row side times Q rows on its other side: weights are P where tokens are few (swapped), else tokens are.
 *
 * Law (NUMERICS.md, 3.3): a leaf is a chain from +0 in ascending k; leaves are added in the fixed tree. Leaves are
 * computed in order, in pairs: the even one into `a`, the odd one into `b`, b += a is a node of level 1; nodes wait for
 * their siblings in registers, the last level in shared memory where registers do not suffice. Where CTAs of a cluster
 * share the leaves of a tile, each has a subtree, and the roots are joined through the cluster's shared memory.
 * A wide CTA computes tile after tile; its roots go through shared memory to warps that make outputs of them while the
 * next tile is multiplied.
 *
 * A leaf that is no multiple of 64 long ends in zeros (its own dimension of the tensor maps): a step of zeros changes no
 * accumulator. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/ops.h"

enum { IV_BLOCK_K = 64, IV_ROW_BYTES = 128 }; /* of one stage, one row */

/* What a launch tells its kernel. */
struct iv_wgmma_plan {
    int leaf_length, blocks; /* of k, and blocks of 64 */
    int split;                 /* CTAs that share a tile's leaves */
    int stages, asked_bytes; /* of shared memory: the ring's, and for what emitters add to */
    int weight_tiles, token_tiles; /* of the whole problem; with groups, the tokens of each expert have their own */
    int raster;                    /* P tiles (of a cluster) walked before the next Q tile */
    int tiles;                     /* of clusters; with groups found on the device */
    int rows, n;
    iv_gpu_epilogue epilogue;
    const float *bias;
    void *out;
    size_t out_stride;
    const uint16_t *x; /* for gathered rows */
    size_t x_stride;
    iv_gpu_groups groups; /* count 0: none */
    bool weighted;
};

/* The kernel's shape: TYPE of the operands, warpgroups of 64 P rows, Q rows, leaves of a CTA; wide: tokens are P. Of a
 * cluster's CTAs, QMATES share their Q rows, and with other ones PMATES their P rows: each loads a part for all. Rank in
 * the cluster: (part of P, or of a split of the leaves) * QMATES + part of Q. */
template <iv_dtype TYPE_, int GROUPS_, int QN_, int LEAVES_, bool WIDE_, int QMATES_, int PMATES_ = 1> struct iv_wgmma_shape {
    static constexpr iv_dtype TYPE = TYPE_;
    static constexpr bool WIDE = WIDE_, SWAP = !WIDE_;
    static constexpr int WARPGROUPS = GROUPS_, PN = 64 * GROUPS_, QN = QN_, LEAVES = LEAVES_;
    static constexpr int QMATES = QMATES_, PMATES = PMATES_, MATES = QMATES_ + PMATES_ - 1;
    static constexpr int COUNT = QN / 2, CONSUMERS = 128 * GROUPS_, EMITTERS = WIDE ? 96 : 0;
    static constexpr bool KEEP2 = !WIDE && QN <= 64; /* nodes of level 2 wait in registers */
    /* registers of a consumer, about; where they are too many, the others give some of theirs, in warpgroups */
    static constexpr int NODES = LEAVES == 1 ? 1 : LEAVES == 2 ? 2 : LEAVES == 4 || !KEEP2 ? 3 : 4;
    static constexpr int NEED = NODES * COUNT + 40;
    static constexpr bool MOVED = WIDE || (GROUPS_ == 2 && NEED > 168);
    static constexpr int THREADS = CONSUMERS + (MOVED ? 128 : 32);
    /* CTAs that fit on an SM: each of its four parts has 16384 registers and every fourth warp */
    static constexpr int CTAS = MOVED || NEED > 168                 ? 1
                                : GROUPS_ == 2                      ? NEED > 96 ? 1 : 2
                                : NEED <= 96 ? 4 : NEED <= 128 ? 3 : 2;
    static constexpr int P_BYTES = PN * IV_ROW_BYTES, Q_BYTES = QN * IV_ROW_BYTES, STAGE = P_BYTES + Q_BYTES;
    static constexpr int NODE_BYTES = PN * QN * 4;
    static constexpr int PARK = WIDE || (LEAVES == 8 && !KEEP2) ? NODE_BYTES : 0;
    static constexpr int TOKENS = SWAP ? QN : PN, WEIGHTS = SWAP ? PN : QN;
    static constexpr int BARS = WIDE ? 2 * GROUPS_ : 0; /* beside the ring's */
};

typedef void (*iv_wgmma_function)(const CUtensorMap, const CUtensorMap, const iv_wgmma_plan);

/* A compiled shape, for the host. */
struct iv_wgmma_instance {
    int tile_n, tile_m, leaves, qmates, pmates;
    bool wide;
    iv_wgmma_function kernel;
    int stage, threads, fixed, asked, node, ctas; /* bytes of a stage, beside the ring, with a residual, of a root */
};
const iv_wgmma_instance *iv_wgmma_bf16(size_t *count);
const iv_wgmma_instance *iv_wgmma_f16(size_t *count);

struct iv_wgmma_tile {
    int p, q;        /* first P and Q row, in their own counts */
    int expert;      /* of the weight's third dimension */
    int first, rows; /* tokens of the expert: the first entry and how many; without groups 0 and all */
};

/* prefix[e]: tiles before expert e; only with groups. */
template <class S>
static __device__ __forceinline__ iv_wgmma_tile iv_wgmma_tile_at(const iv_wgmma_plan &plan, const int *prefix, int at, int rank) {
    iv_wgmma_tile t = {0, 0, 0, 0, plan.rows};
    int token_tiles = plan.token_tiles;
    if (plan.groups.count) {
        int low = 0, high = (int)plan.groups.count;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (prefix[middle] <= at)
                low = middle;
            else
                high = middle;
        }
        const int32_t *o = plan.groups.offsets + plan.groups.first + low;
        t.expert = low, t.first = o[0], t.rows = o[1] - o[0];
        at -= prefix[low];
        token_tiles = (t.rows + S::TOKENS - 1) / S::TOKENS;
    }
    int p_tiles = ((S::SWAP ? plan.weight_tiles : token_tiles) + S::QMATES - 1) / S::QMATES;
    int q_tiles = ((S::SWAP ? token_tiles : plan.weight_tiles) + S::PMATES - 1) / S::PMATES;
    int band = at / (plan.raster * q_tiles), rest = at - band * plan.raster * q_tiles;
    int height = min(plan.raster, p_tiles - band * plan.raster);
    t.q = (rest / height * S::PMATES + (S::PMATES > 1 ? rank / S::QMATES : 0)) * S::QN;
    t.p = ((band * plan.raster + rest % height) * S::QMATES + rank % S::QMATES) * S::PN;
    return t;
}

/* The tiles before each expert, by one warp; prefix[count] is their number. */
template <class S> static __device__ void iv_wgmma_count_tiles(const iv_wgmma_plan &plan, int *prefix) {
    int lane = threadIdx.x % 32, sum = 0, count = (int)plan.groups.count;
    for (int base = 0; base < count; base += 32) {
        int e = base + lane, tiles = 0;
        if (e < count) {
            const int32_t *o = plan.groups.offsets + plan.groups.first + e;
            int tokens = (o[1] - o[0] + S::TOKENS - 1) / S::TOKENS;
            int p = S::SWAP ? plan.weight_tiles : tokens, q = S::SWAP ? tokens : plan.weight_tiles;
            tiles = (p + S::QMATES - 1) / S::QMATES * ((q + S::PMATES - 1) / S::PMATES);
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

/* Where the producer or a consumer is: tile, leaf and block, and the stage that holds it. */
struct iv_wgmma_ring {
    int stage, phase;
    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
};

struct iv_wgmma_shared { /* addresses */
    uint32_t ring, full, empty;
    uint32_t mate;         /* whom this lane tells of a stage that is free */
    uint32_t ready, taken; /* of each warpgroup's root in `park` */
    float4 *root, *park;
    uint32_t asked; /* what emitters add to */
    const char *asked_place;
    int *rows; /* of gathered tokens */
    const int *prefix;
};

/* What one block of one tile is: the operands of a stage. */
struct iv_wgmma_block {
    int leaf, k; /* of the matrix; k within the leaf */
    uint32_t stage, bar;
};

/* One operand: the part that is this CTA's to load, for all that share it. */
template <class S, bool P>
static __device__ __forceinline__ void iv_wgmma_load(const CUtensorMap *map, const iv_wgmma_block &b, int row, int expert,
                                                     int rank, uint64_t l2) {
    constexpr int MATES = P ? S::PMATES : S::QMATES, PART = (P ? S::PN : S::QN) / MATES;
    int part = P ? rank / S::QMATES : rank % S::QMATES;
    uint32_t to = b.stage + (P ? 0 : S::P_BYTES) + (MATES > 1 ? part * PART * IV_ROW_BYTES : 0);
    if constexpr (MATES == 1) {
        iv_tma_load_4d(to, map, b.bar, b.k, b.leaf, row, expert, l2);
    } else {
        uint32_t mask = 0;
#pragma unroll
        for (int i = 0; i < MATES; i++) mask |= P ? 1u << (i * S::QMATES) : 1u << i;
        mask <<= P ? rank % S::QMATES : rank / S::QMATES * S::QMATES;
        iv_tma_load_4d_multicast(to, map, b.bar, b.k, b.leaf, row + part * PART, expert, (uint16_t)mask, l2);
    }
}
template <class S>
static __device__ __forceinline__ void iv_wgmma_load_weights(const CUtensorMap *map, const iv_wgmma_block &b,
                                                             const iv_wgmma_tile &t, int rank) {
    iv_wgmma_load<S, S::SWAP>(map, b, S::SWAP ? t.p : t.q, t.expert, rank, S::SWAP ? IV_L2_FIRST : IV_L2_NORMAL);
}
template <class S>
static __device__ __forceinline__ void iv_wgmma_load_tokens(const CUtensorMap *map, const iv_wgmma_block &b,
                                                            const iv_wgmma_tile &t, int rank) {
    iv_wgmma_load<S, !S::SWAP>(map, b, t.first + (S::SWAP ? t.q : t.p), 0, rank, S::SWAP ? IV_L2_LAST : IV_L2_NORMAL);
}

/* Weights do not depend on the kernel before: a ring full of the first tile's is asked for while that one ends. Returns
 * how many blocks. */
template <class S>
static __device__ int iv_wgmma_produce_early(const CUtensorMap *weights, const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                             const iv_wgmma_tile &t, int rank, int first_leaf) {
    int early = min(plan.stages, S::LEAVES * plan.blocks), leaf = first_leaf, block = 0;
    for (int s = 0; s < early; s++) {
        iv_wgmma_block b = {leaf, block * IV_BLOCK_K, m.ring + s * S::STAGE, m.full + 8 * s};
        iv_mbar_expect(b.bar, S::STAGE);
        iv_wgmma_load_weights<S>(weights, b, t, rank);
        if (++block == plan.blocks) block = 0, leaf++;
    }
    return early;
}

template <class S>
static __device__ void iv_wgmma_produce(const CUtensorMap *weights, const CUtensorMap *tokens, const iv_wgmma_plan &plan,
                                        const iv_wgmma_shared &m, int tiles, int first, int step, int rank,
                                        int first_leaf) {
    int early = 0, round = 0, stages = plan.stages, blocks = plan.blocks;
    iv_wgmma_ring r = {0, 0};
    if (!plan.groups.count && first < tiles)
        early = iv_wgmma_produce_early<S>(weights, plan, m, iv_wgmma_tile_at<S>(plan, m.prefix, first, rank), rank, first_leaf);
    iv_dependency_wait();
    for (int at = first; at < tiles; at += step) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m.prefix, at, rank);
        for (int leaf = first_leaf; leaf < first_leaf + S::LEAVES; leaf++)
            for (int block = 0; block < blocks; block++, round++) {
                iv_wgmma_block b = {leaf, block * IV_BLOCK_K, m.ring + r.stage * S::STAGE, m.full + 8 * r.stage};
                if (round >= early) {
                    if (round >= stages) iv_mbar_wait(m.empty + 8 * r.stage, r.phase ^ 1);
                    iv_mbar_expect(b.bar, S::STAGE);
                    iv_wgmma_load_weights<S>(weights, b, t, rank);
                }
                iv_wgmma_load_tokens<S>(tokens, b, t, rank);
                r.next(stages);
            }
    }
}

enum { IV_LAG = 1 }; /* stages whose copies are still under way when a warp goes on; a ring has more */

/* The copies of a stage have landed: says so, and which stage is next. */
static __device__ __forceinline__ int iv_wgmma_landed(const iv_wgmma_shared &m, int stage, bool landed, int stages) {
    if (!landed) return stage;
    iv_fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(m.full + 8 * stage);
    return stage + 1 == stages ? 0 : stage + 1;
}

/* The gate and up layers of experts: tokens stand anywhere, so a warp fetches their rows piece by piece. */
/* The rows of the tile's tokens; -1 beyond them. By one warp. */
template <class S>
static __device__ void iv_wgmma_find_rows(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t) {
    __syncwarp();
    for (int i = threadIdx.x % 32; i < S::TOKENS; i += 32) {
        int row = (S::SWAP ? t.q : t.p) + i;
        m.rows[i] = row < t.rows ? plan.groups.slots[t.first + row] / (int)plan.groups.experts_per_token : -1;
    }
    __syncwarp();
}

template <class S>
static __device__ void iv_wgmma_produce_gathered(const CUtensorMap *weights, const iv_wgmma_plan &plan,
                                                 const iv_wgmma_shared &m, int tiles, int first, int step, int rank) {
    int lane = threadIdx.x % 32, piece = lane % 8, round = 0, late = 0; /* the first stage not known to have landed */
    iv_wgmma_ring r = {0, 0};
    for (int at = first; at < tiles; at += step) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m.prefix, at, rank);
        iv_wgmma_find_rows<S>(plan, m, t);
        for (int leaf = 0; leaf < S::LEAVES; leaf++)
            for (int block = 0; block < plan.blocks; block++, round++) {
                iv_wgmma_block b = {leaf, block * IV_BLOCK_K, m.ring + r.stage * S::STAGE, m.full + 8 * r.stage};
                if (round >= plan.stages) iv_mbar_wait(m.empty + 8 * r.stage, r.phase ^ 1);
                if (lane == 0) {
                    iv_mbar_expect(b.bar, S::SWAP ? S::P_BYTES : S::Q_BYTES);
                    iv_wgmma_load_weights<S>(weights, b, t, rank);
                }
                __syncwarp();
                int k = b.k + piece * 8;
                uint32_t to = b.stage + (S::SWAP ? S::P_BYTES : 0);
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

/* ---- the epilogue ------------------------------------------------------------------------------------------- */

template <iv_dtype TYPE> static __device__ __forceinline__ uint16_t iv_swiglu16(float gate, float up) {
    return iv_round16(TYPE, iv_canon(__fmul_rn(v_silu(gate), up)));
}

/* x / d, rounded to nearest, where nothing on the way overflows or is subnormal: an approximate reciprocal, improved, and
 * two corrections by exact remainders. No branch, so that many are under way at once. */
static __device__ __forceinline__ float iv_divide_plain(float x, float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
    float q = __fmul_rn(x, r);
    q = __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
    return __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
}

template <iv_dtype TYPE, int COUNT>
static __device__ __forceinline__ void iv_swiglu_many(const float (&gate)[COUNT], const float (&up)[COUNT], uint16_t (&y)[COUNT]) {
    bool plain = true;
    float silu[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float x = gate[i], d = __fadd_rn(1.0f, v_exp(__fsub_rn(0.0f, x))), size = fabsf(x);
        plain = plain && size > 0x1p-60f && size < 0x1p60f && d < 0x1p60f;
        silu[i] = iv_divide_plain(x, d);
    }
    if (!plain) {
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (i == j) silu[j] = v_silu(gate[j]);
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) y[i] = iv_round16(TYPE, iv_canon(__fmul_rn(silu[i], up[i])));
}

/* y of an output: bias added. */
static __device__ __forceinline__ float iv_wgmma_y(const iv_wgmma_plan &plan, float y, int n) {
    y = iv_canon(y);
    return plan.bias ? iv_canon(__fadd_rn(y, plan.bias[n])) : y;
}

/* The row of `out` of a token, and with weighted experts its weight; NULL beyond the last. */
struct iv_wgmma_place {
    size_t row;
    float weight;
    bool there;
};
static __device__ __forceinline__ iv_wgmma_place iv_wgmma_place_of(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int token) {
    iv_wgmma_place p = {(size_t)(t.first + token), 1.0f, token < t.rows};
    if (plan.weighted && p.there) {
        p.row = (size_t)plan.groups.slots[p.row];
        p.weight = plan.groups.weights[p.row];
    }
    return p;
}

static __device__ __forceinline__ void iv_wgmma_put(const iv_wgmma_plan &plan, const iv_wgmma_place &p, int n, float y) {
    if (!p.there || n >= plan.n) return;
    float *out = (float *)plan.out + p.row * plan.out_stride + n;
    y = iv_wgmma_y(plan, y, n);
    if (plan.epilogue == IV_GPU_RESIDUAL) y = iv_canon(__fadd_rn(*out, y));
    if (plan.weighted) y = iv_canon(__fmul_rn(p.weight, y));
    *out = y;
}

template <int CHUNKS>
static __device__ __forceinline__ void iv_wgmma_emit_weighted(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                                              const float4 (&v)[CHUNKS]) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        iv_wgmma_place p0 = iv_wgmma_place_of(plan, t, token + 8 * c), p1 = iv_wgmma_place_of(plan, t, token + 8 * c + 1);
        iv_wgmma_put(plan, p0, row, v[c].x), iv_wgmma_put(plan, p1, row, v[c].y);
        iv_wgmma_put(plan, p0, row + 8, v[c].z), iv_wgmma_put(plan, p1, row + 8, v[c].w);
    }
}

/* Swapped: v[c] are (row, token), (row, token + 1), (row + 8, token), (row + 8, token + 1) of the weights' rows, with token
 * 8 c further on. All that is read is asked for before any of it is used. */
template <class S, int CHUNKS>
static __device__ __forceinline__ void iv_wgmma_emit_swapped(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                                             const float4 (&v)[CHUNKS]) {
    if (plan.epilogue == IV_GPU_SWIGLU) {
        if (row >= plan.n) return;
        uint16_t *act = (uint16_t *)plan.out + row / 16 * 8 + row % 8;
        float gate[2 * CHUNKS], up[2 * CHUNKS];
        uint16_t y[2 * CHUNKS];
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; i++) {
            gate[i] = iv_wgmma_y(plan, i % 2 ? v[i / 2].y : v[i / 2].x, row);
            up[i] = iv_wgmma_y(plan, i % 2 ? v[i / 2].w : v[i / 2].z, row + 8);
        }
        iv_swiglu_many<S::TYPE>(gate, up, y);
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; i++) {
            iv_wgmma_place p = iv_wgmma_place_of(plan, t, token + i / 2 * 8 + i % 2);
            if (p.there) act[p.row * plan.out_stride] = y[i];
        }
        return;
    }
    if (plan.weighted) return iv_wgmma_emit_weighted<CHUNKS>(plan, t, row, token, v);
    size_t stride = plan.out_stride;
    float *out = (float *)plan.out + (size_t)(t.first + token) * stride + row;
    bool there0 = row < plan.n, there1 = row + 8 < plan.n, add = plan.epilogue == IV_GPU_RESIDUAL;
    float bias0 = iv_load_if(plan.bias + row, plan.bias && there0), bias1 = iv_load_if(plan.bias + row + 8, plan.bias && there1);
    float old[4 * CHUNKS];
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
        const float *p = out + (i / 2 * 8 + i % 2) * stride;
        bool there = add && token + i / 2 * 8 + i % 2 < t.rows;
        old[2 * i] = iv_load_if(p, there && there0), old[2 * i + 1] = iv_load_if(p + 8, there && there1);
    }
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
        float *p = out + (i / 2 * 8 + i % 2) * stride;
        bool there = token + i / 2 * 8 + i % 2 < t.rows;
        float y0 = iv_canon(i % 2 ? v[i / 2].y : v[i / 2].x), y1 = iv_canon(i % 2 ? v[i / 2].w : v[i / 2].z);
        y0 = plan.bias ? iv_canon(__fadd_rn(y0, bias0)) : y0, y1 = plan.bias ? iv_canon(__fadd_rn(y1, bias1)) : y1;
        y0 = add ? iv_canon(__fadd_rn(old[2 * i], y0)) : y0, y1 = add ? iv_canon(__fadd_rn(old[2 * i + 1], y1)) : y1;
        iv_store_if(p, y0, there && there0), iv_store_if(p + 8, y1, there && there1);
    }
}

/* Tokens on P: the outputs of some warp's fragments, which lie in shared memory as iv_wgmma_park left them: chunk j has
 * (token, n), (token, n + 1), (token + 8, n), (token + 8, n + 1) of 8 outputs. Four chunks at once: two of gates, two of
 * their ups. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_emit_swiglu(const iv_wgmma_plan &plan, const iv_wgmma_tile &t,
                                                            const float4 (&v)[4], int token, int n) {
    uint16_t *act = (uint16_t *)plan.out + n / 16 * 8 + n % 8;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const float4 &g = v[2 * pair], &u = v[2 * pair + 1];
        int at = n + 16 * pair;
        if (at >= plan.n) return;
        float gate[4] = {iv_canon(g.x), iv_canon(g.y), iv_canon(g.z), iv_canon(g.w)};
        float up[4] = {iv_canon(u.x), iv_canon(u.y), iv_canon(u.z), iv_canon(u.w)};
        if (plan.bias) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                gate[i] = iv_wgmma_y(plan, gate[i], at + i % 2), up[i] = iv_wgmma_y(plan, up[i], at + 8 + i % 2);
        }
        uint16_t y[4];
        iv_swiglu_many<S::TYPE>(gate, up, y);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            iv_wgmma_place p = iv_wgmma_place_of(plan, t, token + 8 * half);
            if (!p.there) continue;
            uint16_t *to = act + p.row * plan.out_stride + 8 * pair;
            if (plan.out_stride % 2 == 0 && (uintptr_t)plan.out % 4 == 0)
                *(uint32_t *)to = (uint32_t)y[2 * half + 1] << 16 | y[2 * half];
            else
                to[0] = y[2 * half], to[1] = y[2 * half + 1];
        }
    }
}

/* A warp's part of a tile: fragments of 16 tokens by 32 outputs. */
struct iv_wgmma_part {
    int token, n, place; /* of the thread; where its fragments lie */
};
template <class S>
static __device__ __forceinline__ iv_wgmma_part iv_wgmma_part_of(const iv_wgmma_tile &t, int warpgroup, int item) {
    int lane = threadIdx.x % 32, from = warpgroup * 4 + item % 4, j = item / 4 * 4;
    return {t.p + from * 16 + lane / 4, t.q + 8 * j + lane % 4 * 2, j * S::CONSUMERS + from * 32 + lane};
}

/* Any tile. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_emit_any(const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                                         const iv_wgmma_tile &t, const iv_wgmma_part &part) {
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = m.park[part.place + i * S::CONSUMERS];
    if (plan.epilogue == IV_GPU_SWIGLU) return iv_wgmma_emit_swiglu<S>(plan, t, v, part.token, part.n);
    iv_wgmma_place p[2] = {iv_wgmma_place_of(plan, t, part.token), iv_wgmma_place_of(plan, t, part.token + 8)};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        iv_wgmma_put(plan, p[0], part.n + 8 * j, v[j].x), iv_wgmma_put(plan, p[0], part.n + 8 * j + 1, v[j].y);
        iv_wgmma_put(plan, p[1], part.n + 8 * j, v[j].z), iv_wgmma_put(plan, p[1], part.n + 8 * j + 1, v[j].w);
    }
}

/* What a warp adds to lies in a ring of its own: of each part 16 rows of 32 outputs, pieces of 16 bytes swizzled. */
enum { IV_ASKED = 4, IV_PART_BYTES = 2048 }; /* parts under way */

template <class S>
static __device__ __forceinline__ void iv_wgmma_ask(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t,
                                                    int warp, int lane, int index) {
    constexpr int STEP = S::EMITTERS / 32;
    int each = (S::COUNT / 4 - warp + STEP - 1) / STEP, w = index >= each, item = warp + (index - (w ? each : 0)) * STEP;
    if (index < each * S::WARPGROUPS) {
        size_t stride = plan.out_stride;
        const float *out = (const float *)plan.out + (size_t)(t.first + t.p + w * 64 + item % 4 * 16 + lane / 8) * stride + t.q +
                           item / 4 * 32 + lane % 8 * 4;
        uint32_t to = m.asked + (warp * IV_ASKED + index % IV_ASKED) * IV_PART_BYTES + lane / 8 * 128;
#pragma unroll
        for (int i = 0; i < 4; i++)
            iv_copy16(to + i * 512 + ((lane % 8 ^ (lane / 8 + 4 * i % 8)) << 4), out + 4 * i * stride, true);
    }
    iv_copies_commit();
}

/* A tile that is all there, in pairs of float32. A sum that is NaN is the canonical one on this machine. */
template <class S, bool RESIDUAL, bool BIAS>
static __device__ __forceinline__ void iv_wgmma_emit_whole(const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                                           const iv_wgmma_tile &t, int w, int warp, int lane, int &index) {
    constexpr int ITEMS = S::COUNT / 4, STEP = S::EMITTERS / 32;
    size_t stride = plan.out_stride;
    float *corner = (float *)plan.out + (size_t)(t.first + t.p + w * 64 + lane / 4) * stride + t.q + lane % 4 * 2;
    const float *bias = plan.bias + t.q + lane % 4 * 2;
    uint32_t park = iv_shared(m.park) + (w * 128 + lane) * 16;
    uint32_t asked = m.asked + warp * IV_ASKED * IV_PART_BYTES + lane / 4 * 128 + lane % 2 * 8;
#pragma unroll 1
    for (int item = warp; item < ITEMS; item += STEP, index++) {
        uint32_t from = park + (item / 4 * 4 * S::CONSUMERS + item % 4 * 32) * 16;
        float *out = corner + item % 4 * 16 * stride + item / 4 * 32;
        if constexpr (RESIDUAL) {
            iv_copies_wait<IV_ASKED - 1>();
            __syncwarp();
        }
        float4 v[4];
        float2 old[8];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = iv_load_shared4(from + i * S::CONSUMERS * 16);
        if constexpr (RESIDUAL) {
            uint32_t base = asked + index % IV_ASKED * IV_PART_BYTES;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t place = base + ((2 * i + lane % 4 / 2) ^ lane / 4) * 16;
                old[i] = iv_load_shared2(place), old[4 + i] = iv_load_shared2(place + 8 * 128);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (BIAS) {
                float2 b = iv_load2(bias + item / 4 * 32 + 8 * i);
                v[i].x = __fadd_rn(v[i].x, b.x), v[i].y = __fadd_rn(v[i].y, b.y);
                v[i].z = __fadd_rn(v[i].z, b.x), v[i].w = __fadd_rn(v[i].w, b.y);
            }
            if constexpr (RESIDUAL) {
                v[i].x = __fadd_rn(old[i].x, v[i].x), v[i].y = __fadd_rn(old[i].y, v[i].y);
                v[i].z = __fadd_rn(old[4 + i].x, v[i].z), v[i].w = __fadd_rn(old[4 + i].y, v[i].w);
            }
        }
        float *below = out + 8 * stride;
#pragma unroll
        for (int i = 0; i < 4; i++) iv_store2(out + 8 * i, make_float2(v[i].x, v[i].y));
#pragma unroll
        for (int i = 0; i < 4; i++) iv_store2(below + 8 * i, make_float2(v[i].z, v[i].w));
        if constexpr (RESIDUAL) {
            __syncwarp();
            iv_wgmma_ask<S>(plan, m, t, warp, lane, index + IV_ASKED);
        }
    }
}

/* The same for SWIGLU without a bias: of each part 16 tokens by 16 activations. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_emit_whole_swiglu(const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                                                  const iv_wgmma_tile &t, int w, int warp, int lane) {
    constexpr int ITEMS = S::COUNT / 4, STEP = S::EMITTERS / 32;
    size_t stride = plan.out_stride;
    uint16_t *corner = (uint16_t *)plan.out + (size_t)(t.first + t.p + w * 64 + lane / 4) * stride + t.q / 2 + lane % 4 * 2;
    uint32_t park = iv_shared(m.park) + (w * 128 + lane) * 16;
#pragma unroll 1
    for (int item = warp; item < ITEMS; item += STEP) {
        uint32_t from = park + (item / 4 * 4 * S::CONSUMERS + item % 4 * 32) * 16;
        uint16_t *act = corner + item % 4 * 16 * stride + item / 4 * 16;
#pragma unroll 1
        for (int pair = 0; pair < 2; pair++, from += 2 * S::CONSUMERS * 16, act += 8) {
            float4 g = iv_load_shared4(from), u = iv_load_shared4(from + S::CONSUMERS * 16);
            float gate[4] = {g.x, g.y, g.z, g.w}, up[4] = {u.x, u.y, u.z, u.w};
            uint16_t y[4];
            iv_swiglu_many<S::TYPE>(gate, up, y);
            *(uint32_t *)act = (uint32_t)y[1] << 16 | y[0];
            *(uint32_t *)(act + 8 * stride) = (uint32_t)y[3] << 16 | y[2];
        }
    }
}

/* Brings the part of the residual stream that a tile adds to into L2. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_expect_residual(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int thread) {
    for (int i = thread; i < S::PN * (S::QN / 32); i += S::EMITTERS) {
        int token = t.p + i / (S::QN / 32), n = t.q + i % (S::QN / 32) * 32;
        if (token < t.rows && n < plan.n)
            iv_prefetch_l2((const float *)plan.out + (size_t)(t.first + token) * plan.out_stride + n);
    }
}

/* The warps that make outputs of a wide CTA's roots. */
template <class S>
static __device__ void iv_wgmma_emit_tiles(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles, int first,
                                           int step, int rank) {
    int thread = threadIdx.x - S::CONSUMERS - 32, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0), phase = 0;
    bool add = plan.epilogue == IV_GPU_RESIDUAL, swiglu = plan.epilogue == IV_GPU_SWIGLU;
    bool fast = !plan.weighted && plan.out_stride % (add ? 4 : 2) == 0 && (uintptr_t)plan.out % (add ? 16 : 8) == 0;
    fast = fast && (swiglu ? !plan.bias : (uintptr_t)plan.bias % 8 == 0);
    for (int at = first; at < tiles; at += step, phase ^= 1) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m.prefix, at, rank);
        bool whole = fast && t.q + S::QN <= plan.n && t.p + S::PN <= t.rows;
        int index = 0; /* of the warp's parts of this tile */
        if (add) iv_wgmma_expect_residual<S>(plan, t, thread);
        for (int i = 0; add && whole && i < IV_ASKED; i++) iv_wgmma_ask<S>(plan, m, t, warp, lane, i);
#pragma unroll 1
        for (int w = 0; w < S::WARPGROUPS; w++) {
            iv_mbar_wait(m.ready + 8 * w, phase);
            if (!whole) {
#pragma unroll 1
                for (int item = warp; item < S::COUNT / 4; item += S::EMITTERS / 32)
                    iv_wgmma_emit_any<S>(plan, m, t, iv_wgmma_part_of<S>(t, w, item));
            } else if (swiglu) {
                iv_wgmma_emit_whole_swiglu<S>(plan, m, t, w, warp, lane);
            } else if (add && plan.bias) {
                iv_wgmma_emit_whole<S, true, true>(plan, m, t, w, warp, lane, index);
            } else if (add) {
                iv_wgmma_emit_whole<S, true, false>(plan, m, t, w, warp, lane, index);
            } else if (plan.bias) {
                iv_wgmma_emit_whole<S, false, true>(plan, m, t, w, warp, lane, index);
            } else {
                iv_wgmma_emit_whole<S, false, false>(plan, m, t, w, warp, lane, index);
            }
            __syncwarp();
            if (lane == 0) iv_mbar_arrive(m.taken + 8 * w);
        }
    }
}

/* ---- the consumers ------------------------------------------------------------------------------------------ */

/* Places of waiting nodes outside of registers: each thread has its own, 16 bytes beside its neighbour's. */
template <int COUNT, int THREADS> static __device__ __forceinline__ void iv_wgmma_park(float4 *place, const float (&d)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++)
        place[j * THREADS] = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
}
template <int COUNT, int THREADS> static __device__ __forceinline__ void iv_wgmma_join_parked(const float4 *place, float (&d)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        float4 v = place[j * THREADS];
        d[4 * j] = __fadd_rn(v.x, d[4 * j]), d[4 * j + 1] = __fadd_rn(v.y, d[4 * j + 1]);
        d[4 * j + 2] = __fadd_rn(v.z, d[4 * j + 2]), d[4 * j + 3] = __fadd_rn(v.w, d[4 * j + 3]);
    }
}
template <int COUNT> static __device__ __forceinline__ void iv_wgmma_add(float (&d)[COUNT], const float (&left)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) d[i] = __fadd_rn(left[i], d[i]);
}

/* The roots of the cluster's CTAs, joined in the order of the tree; each CTA makes its share of the outputs. */
template <class S, int SPLIT>
static __device__ __forceinline__ void iv_wgmma_join_roots(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, uint32_t ring, int rank) {
    constexpr int ITEMS = S::CONSUMERS * S::COUNT / 4, EACH = ITEMS / SPLIT;
    constexpr int MINE = EACH > S::CONSUMERS ? EACH / S::CONSUMERS : 1, BATCH = MINE * SPLIT < 8 ? MINE : 8 / SPLIT;
    if (EACH < S::CONSUMERS && threadIdx.x >= EACH) return;
#pragma unroll 1
    for (int i = 0; i < MINE; i += BATCH) {
        int item = rank / S::QMATES * EACH + i * S::CONSUMERS + threadIdx.x, thread = item % S::CONSUMERS, j = item / S::CONSUMERS;
        float4 v[BATCH][SPLIT], sum[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int c = 0; c < SPLIT; c++)
                v[b][c] = iv_load_cluster4(iv_shared_of(ring + (item + b * S::CONSUMERS) * 16, c * S::QMATES + rank % S::QMATES));
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
#pragma unroll
            for (int width = 1; width < SPLIT; width *= 2)
#pragma unroll
                for (int c = 0; c < SPLIT; c += 2 * width) {
                    float4 &left = v[b][c], right = v[b][c + width];
                    left.x = __fadd_rn(left.x, right.x), left.y = __fadd_rn(left.y, right.y);
                    left.z = __fadd_rn(left.z, right.z), left.w = __fadd_rn(left.w, right.w);
                }
            sum[b] = v[b][0];
        }
        int row = t.p + thread / 32 * 16 + thread % 32 / 4, token = t.q + 8 * j + thread % 4 * 2;
        iv_wgmma_emit_swapped<S, BATCH>(plan, t, row, token, sum);
    }
}

/* Issues the wgmmas of the stage that comes next: one commit group. FIRST: of a leaf. */
template <class S, bool FIRST>
static __device__ __forceinline__ void iv_wgmma_issue(const iv_wgmma_shared &m, const iv_wgmma_ring &r, float (&d)[S::COUNT]) {
    iv_mbar_wait(m.full + 8 * r.stage, r.phase);
    uint32_t stage = m.ring + r.stage * S::STAGE;
    uint64_t p = iv_wgmma_desc(stage + threadIdx.x / 128 * 64 * IV_ROW_BYTES), q = iv_wgmma_desc(stage + S::P_BYTES);
    iv_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++) iv_wgmma<S::TYPE>(d, p + 2 * s, q + 2 * s, s > 0 || !FIRST);
    iv_wgmma_commit();
}

/* This warp has done with a stage: all that write into it are told. */
template <class S> static __device__ __forceinline__ void iv_wgmma_release(const iv_wgmma_shared &m, int stage) {
    int lane = threadIdx.x % 32;
    if constexpr (S::MATES == 1) {
        if (lane == 0) iv_mbar_arrive(m.empty + 8 * stage);
    } else {
        if (lane < S::MATES) iv_mbar_release_cluster(iv_shared_of(m.empty + 8 * stage, m.mate));
    }
}

/* The rest of a leaf; the block before is in flight, and the last one stays so. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_leaf(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
                                                     int &last, float (&d)[S::COUNT]) {
    for (int block = 1; block < plan.blocks; block++) {
        iv_wgmma_issue<S, false>(m, r, d);
        iv_wgmma_wait<1>();
        iv_wgmma_release<S>(m, last);
        last = r.stage;
        r.next(plan.stages);
    }
}

template <class S> struct iv_wgmma_nodes { /* accumulators and nodes, each in registers of its own */
    float a[S::COUNT], b[S::COUNT], c[S::COUNT], two[S::KEEP2 ? S::COUNT : 1];
};

/* The first block of a pair of leaves is under way; returns its stage. */
template <class S>
static __device__ __forceinline__ int iv_wgmma_start(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
                                                     iv_wgmma_nodes<S> &v) {
    int stage = r.stage;
    iv_wgmma_issue<S, true>(m, r, S::LEAVES == 1 ? v.b : v.a);
    r.next(plan.stages);
    return stage;
}

/* The rest of a pair of leaves (or of the only one): their sum in `sum`. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_pair(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
                                                     float (&a)[S::COUNT], float (&sum)[S::COUNT], int last) {
    iv_wgmma_leaf<S>(plan, m, r, last, S::LEAVES == 1 ? sum : a);
    if constexpr (S::LEAVES > 1) {
        iv_wgmma_issue<S, true>(m, r, sum);
        iv_wgmma_wait<1>();
        iv_wgmma_release<S>(m, last);
        last = r.stage;
        r.next(plan.stages);
        iv_wgmma_leaf<S>(plan, m, r, last, sum);
    }
    iv_wgmma_wait<0>();
    iv_wgmma_hold(a);
    iv_wgmma_hold(sum);
    iv_wgmma_release<S>(m, last);
    if constexpr (S::LEAVES > 1) iv_wgmma_add(sum, a);
}

/* The CTA's leaves of one tile, of which the first block has the stage `last`. What is left to add is for
 * iv_wgmma_finish. While a pair begins, the node of the one before goes up. `phase` of the tile's turn to use `park`. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_subtree(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
                                                        iv_wgmma_nodes<S> &v, int phase, int last) {
    iv_wgmma_pair<S>(plan, m, r, v.a, v.b, last);
    if constexpr (S::LEAVES >= 4) {
        last = iv_wgmma_start<S>(plan, m, r, v);
        iv_wgmma_pair<S>(plan, m, r, v.a, v.c, last);
    }
    if constexpr (S::LEAVES == 8) {
        last = iv_wgmma_start<S>(plan, m, r, v);
        iv_wgmma_add(v.c, v.b);
        if constexpr (S::KEEP2) {
#pragma unroll
            for (int i = 0; i < S::COUNT; i++) v.two[i] = v.c[i];
        } else {
            if constexpr (S::WIDE) iv_mbar_wait(m.taken + threadIdx.x / 128 * 8, phase ^ 1);
            iv_wgmma_park<S::COUNT, S::CONSUMERS>(m.park + threadIdx.x, v.c);
        }
        iv_wgmma_pair<S>(plan, m, r, v.a, v.b, last);
        last = iv_wgmma_start<S>(plan, m, r, v);
        iv_wgmma_pair<S>(plan, m, r, v.a, v.c, last);
    }
}

/* The root: in c, of fewer than four leaves in b. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_finish(const iv_wgmma_shared &m, iv_wgmma_nodes<S> &v) {
    if constexpr (S::LEAVES >= 4) iv_wgmma_add(v.c, v.b);
    if constexpr (S::LEAVES == 8) {
        if constexpr (S::KEEP2)
            iv_wgmma_add(v.c, v.two);
        else
            iv_wgmma_join_parked<S::COUNT, S::CONSUMERS>(m.park + threadIdx.x, v.c);
    }
}

/* ... which is given to the emitters. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_hand_over(const iv_wgmma_shared &m, iv_wgmma_nodes<S> &v, int phase) {
    int w = threadIdx.x / 128;
    iv_wgmma_finish<S>(m, v);
    if constexpr (S::LEAVES < 8) iv_mbar_wait(m.taken + 8 * w, phase ^ 1);
    iv_wgmma_park<S::COUNT, S::CONSUMERS>(m.park + threadIdx.x, S::LEAVES < 4 ? v.b : v.c);
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(m.ready + 8 * w);
}

/* A swapped tile, by its own consumers. */
template <class S>
static __device__ __forceinline__ void iv_wgmma_emit_tile(const iv_wgmma_plan &plan, const iv_wgmma_tile &t,
                                                          const float (&root)[S::COUNT]) {
    constexpr int BATCH = S::COUNT / 4 < 4 ? S::COUNT / 4 : 4;
    int row = t.p + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < S::COUNT / 4; j += BATCH) {
        float4 part[BATCH];
#pragma unroll
        for (int c = 0; c < BATCH; c++)
            part[c] = make_float4(root[4 * (j + c)], root[4 * (j + c) + 1], root[4 * (j + c) + 2], root[4 * (j + c) + 3]);
        iv_wgmma_emit_swapped<S, BATCH>(plan, t, row, t.q + 8 * j + threadIdx.x % 4 * 2, part);
    }
}

template <class S>
static __device__ void iv_wgmma_consume(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles, int first, int step,
                                        int rank) {
    iv_wgmma_nodes<S> v;
    float(&root)[S::COUNT] = S::LEAVES < 4 ? v.b : v.c;
    iv_wgmma_ring r = {0, 0};
    if constexpr (S::WIDE) {
        if (first >= tiles) return;
        int last = iv_wgmma_start<S>(plan, m, r, v);
        for (int at = first + step, phase = 0;; at += step, phase ^= 1) {
            iv_wgmma_subtree<S>(plan, m, r, v, phase, last);
            if (at >= tiles) {
                iv_wgmma_hand_over<S>(m, v, phase);
                break;
            }
            if constexpr (S::LEAVES == 1) iv_wgmma_hand_over<S>(m, v, phase);
            last = iv_wgmma_start<S>(plan, m, r, v); /* of the next tile */
            if constexpr (S::LEAVES > 1) iv_wgmma_hand_over<S>(m, v, phase);
        }
    } else {
        for (int at = first; at < tiles; at += step) {
            iv_wgmma_subtree<S>(plan, m, r, v, 0, iv_wgmma_start<S>(plan, m, r, v));
            iv_wgmma_finish<S>(m, v);
            if (plan.split > 1) { /* one tile; the ring is free when all consumers are here */
                iv_named_sync(1, S::CONSUMERS);
                iv_wgmma_park<S::COUNT, S::CONSUMERS>(m.root + threadIdx.x, root);
                return;
            }
            iv_wgmma_emit_tile<S>(plan, iv_wgmma_tile_at<S>(plan, m.prefix, at, rank), root);
        }
    }
}

/* The CTA of a lane among those that share an operand with this one, itself first among the sharers of Q. */
template <class S> static __device__ __forceinline__ uint32_t iv_wgmma_mate(int rank) {
    int lane = threadIdx.x % 32, p = rank / S::QMATES, q = rank % S::QMATES, other = lane - S::QMATES;
    if (lane < S::QMATES) return (uint32_t)(p * S::QMATES + lane);
    return (uint32_t)((other < p ? other : other + 1) * S::QMATES + q);
}

/* Sets up shared memory's parts and barriers. */
template <class S>
static __device__ __forceinline__ iv_wgmma_shared iv_wgmma_begin(const iv_wgmma_plan &plan, char *shared, bool gathered) {
    const char *asked = shared + plan.stages * S::STAGE + S::PARK;
    char *bars = (char *)asked + plan.asked_bytes;
    iv_wgmma_shared m;
    m.asked = iv_shared(asked), m.asked_place = asked;
    m.ring = iv_shared(shared), m.root = (float4 *)shared, m.park = (float4 *)(shared + plan.stages * S::STAGE);
    m.full = iv_shared(bars), m.empty = m.full + 8 * plan.stages, m.ready = m.empty + 8 * plan.stages;
    m.taken = m.ready + 8 * (S::BARS / 2);
    m.rows = (int *)(bars + 16 * plan.stages + 8 * S::BARS), m.prefix = m.rows + S::TOKENS;
    if (threadIdx.x == 0) {
        for (int s = 0; s < plan.stages; s++) {
            iv_mbar_init(m.full + 8 * s, gathered ? 2 : 1);
            iv_mbar_init(m.empty + 8 * s, S::CONSUMERS / 32 * S::MATES);
        }
        for (int w = 0; w < S::BARS / 2; w++) {
            iv_mbar_init(m.ready + 8 * w, 4);
            iv_mbar_init(m.taken + 8 * w, S::EMITTERS / 32);
        }
        iv_mbar_init_fence();
    }
    return m;
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::CTAS)
    iv_wgmma_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap tokens,
                    const __grid_constant__ iv_wgmma_plan plan) {
    extern __shared__ __align__(1024) char shared[];
    bool clustered = S::QMATES * S::PMATES > 1 || plan.split > 1, gathered = plan.groups.count && !plan.weighted;
    iv_wgmma_shared m = iv_wgmma_begin<S>(plan, shared, gathered);
    int rank = clustered ? (int)iv_cluster_rank() : 0, tiles = plan.tiles;
    int ctas = S::QMATES * S::PMATES * plan.split, first = blockIdx.x / ctas, step = gridDim.x / ctas;
    int first_leaf = plan.split > 1 ? rank / S::QMATES * S::LEAVES : 0;
    m.mate = iv_wgmma_mate<S>(rank);
    iv_dependency_release();
    if (plan.groups.count) {
        iv_dependency_wait();
        if (threadIdx.x < 32) iv_wgmma_count_tiles<S>(plan, (int *)m.prefix);
    }
    if (clustered)
        iv_cluster_sync();
    else
        __syncthreads();
    if (plan.groups.count) tiles = m.prefix[plan.groups.count];
    if (threadIdx.x >= S::CONSUMERS) {
        if constexpr (S::MOVED) iv_registers_give<56>();
        if (__shfl_sync(~0u, threadIdx.x / 32, 0) > S::CONSUMERS / 32) {
            iv_dependency_wait();
            if constexpr (S::WIDE) iv_wgmma_emit_tiles<S>(plan, m, tiles, first, step, rank);
        } else if (gathered) {
            iv_wgmma_produce_gathered<S>(&weights, plan, m, tiles, first, step, rank);
        } else if (iv_elect()) {
            iv_wgmma_produce<S>(&weights, &tokens, plan, m, tiles, first, step, rank, first_leaf);
        }
        __syncwarp();
    } else {
        if constexpr (S::MOVED) iv_registers_take<224>();
        iv_dependency_wait();
        iv_wgmma_consume<S>(plan, m, tiles, first, step, rank);
    }
    if (!clustered) return;
    iv_cluster_sync(); /* the roots of all are there; or nobody copies into this CTA any more */
    if constexpr (S::SWAP) {
        if (threadIdx.x < S::CONSUMERS) {
            iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m.prefix, first, rank);
            if (S::LEAVES <= 4 && plan.split == 2) iv_wgmma_join_roots<S, 2>(plan, t, m.ring, rank);
            if (S::LEAVES <= 2 && plan.split == 4) iv_wgmma_join_roots<S, 4>(plan, t, m.ring, rank);
            if (S::LEAVES == 1 && plan.split == 8) iv_wgmma_join_roots<S, 8>(plan, t, m.ring, rank);
        }
        iv_cluster_sync();
    }
}

template <class S> static iv_wgmma_instance iv_wgmma_instance_of(void) {
    return {S::WEIGHTS, S::TOKENS, S::LEAVES, S::QMATES, S::PMATES, S::WIDE, iv_wgmma_kernel<S>, S::STAGE, S::THREADS,
            S::PARK + 8 * S::BARS + 4 * S::TOKENS, S::EMITTERS / 32 * IV_ASKED * IV_PART_BYTES, S::NODE_BYTES, S::CTAS};
}

template <iv_dtype TYPE, int GROUPS, int QN, bool WIDE, int QMATES, int PMATES, int LEAVES>
static iv_wgmma_instance iv_wgmma_make(void) {
    return iv_wgmma_instance_of<iv_wgmma_shape<TYPE, GROUPS, QN, LEAVES, WIDE, QMATES, PMATES>>();
}
#define IV_WGMMA_ALL_LEAVES(...)                                                                                  \
    iv_wgmma_make<__VA_ARGS__, 1>(), iv_wgmma_make<__VA_ARGS__, 2>(), iv_wgmma_make<__VA_ARGS__, 4>(),            \
        iv_wgmma_make<__VA_ARGS__, 8>()

#endif
