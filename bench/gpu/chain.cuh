/* chain.cuh: streaming linear layers for few tokens on mma.sync.m16n8k16: y = x W^T with W [n][k] and x [tokens][k]
 * bf16, y [tokens][n] float32. Weights are the 16-row operand, tokens the 8-column operand. K is `LEAVES` chains, one
 * for each of as many warps, added in the tree of NUMERICS.md 3.3; one leaf is one chain over K.
 *
 * A CTA computes tiles of 16 * OUTPUTS outputs with LEAVES * OUTPUTS * SPLIT consumer warps; SPLIT warps divide the
 * tokens, GROUPS * 8 for each. One thread copies weights and tokens into a ring by TMA. A stage has BLOCKS blocks of 64
 * k of every leaf: [leaf][block][row][64], weights then tokens. */
#ifndef IV_BENCH_CHAIN_CUH
#define IV_BENCH_CHAIN_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"

enum { CHAIN_STAGES_MAX = 32, CHAIN_BAR_BYTES = CHAIN_STAGES_MAX * 16, CHAIN_ROW = 128 };

typedef struct chain_plan {
    float *out;
    int n, tokens; /* tokens to write */
    int x_rows;    /* of a stage: 1 (not swizzled, every column is this token) or all columns (128-byte swizzle) */
    int rounds;    /* stages of a tile */
    int tiles, stages;
} chain_plan;

/* Sizes of an instance. STEPS: steps of 16 k whose fragments are loaded at once, before the products of the last. */
template <int LEAVES_, int OUTPUTS_, int SPLIT_, int GROUPS_, int BLOCKS_> struct chain_shape {
    static constexpr int LEAVES = LEAVES_, OUTPUTS = OUTPUTS_, SPLIT = SPLIT_, GROUPS = GROUPS_, BLOCKS = BLOCKS_;
    static constexpr int WARPS = LEAVES * OUTPUTS * SPLIT, THREADS = (WARPS + 1) * 32, TOKENS = SPLIT * GROUPS * 8;
    static constexpr int STEPS = GROUPS >= 8 ? 1 : GROUPS >= 4 || BLOCKS == 1 ? 2 : 4;
    static constexpr int CHUNKS = BLOCKS * 4 / STEPS; /* of a stage */
    static constexpr int WEIGHT_BYTES = LEAVES * BLOCKS * OUTPUTS * 16 * CHAIN_ROW;
    static constexpr int SUM_BYTES = LEAVES == 1 ? 0 : WARPS * 32 * GROUPS * 4 * 4;
    static_assert(CHUNKS % 2 == 0, "fragments have two buffers");
    static_assert(THREADS <= 1024, "a CTA");
};

static __host__ __device__ inline int chain_stage_bytes(int weight_bytes, int x_rows, int blocks, int leaves) {
    return weight_bytes + (leaves * blocks * x_rows * CHAIN_ROW + 1023) / 1024 * 1024;
}

IV_DEVICE void chain_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

IV_DEVICE void chain_ldmatrix(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(address)
                 : "memory");
}

template <class S> struct chain_fragments { uint32_t w[S::STEPS][4], x[S::STEPS][S::GROUPS][2]; };

/* Where a lane reads: offsets of its row within a block, and its 16 bytes of the row before a step is chosen. */
typedef struct chain_lane {
    uint32_t w, x;        /* of the first block of the stage, with the lane's 16 bytes */
    uint32_t x_row_bytes; /* from a token to the next: 0 if x_rows is 1 */
    uint32_t x_block;
} chain_lane;

/* Fragments of chunk c of the stage at `stage`. Rows are 128 bytes, so a step changes address bits 5 and 6 only, which
 * the swizzle combines by XOR. */
template <class S> IV_DEVICE void chain_load(chain_fragments<S> &f, uint32_t stage, const chain_lane &l, int c) {
    int block = c * S::STEPS / 4;
    uint32_t w = stage + l.w + block * (S::OUTPUTS * 16 * CHAIN_ROW), x = stage + l.x + block * l.x_block;
#pragma unroll
    for (int s = 0; s < S::STEPS; s++) {
        uint32_t step = (uint32_t)(c * S::STEPS + s) % 4 * 32;
        chain_ldmatrix(f.w[s][0], f.w[s][1], f.w[s][2], f.w[s][3], w ^ step);
        if constexpr (S::GROUPS == 1) { /* two steps at once */
            if (s % 2 == 0) chain_ldmatrix(f.x[s][0][0], f.x[s][0][1], f.x[s + 1][0][0], f.x[s + 1][0][1], x ^ step);
        } else {
#pragma unroll
            for (int g = 0; g < S::GROUPS; g += 2)
                chain_ldmatrix(f.x[s][g][0], f.x[s][g][1], f.x[s][g + 1][0], f.x[s][g + 1][1],
                               (x ^ step) + g * 8 * l.x_row_bytes);
        }
    }
}

/* Releases a stage for this warp. The fence ends the reads: an arrival alone may pass ldmatrix in flight. */
IV_DEVICE void chain_release(uint32_t empty) {
    iv_fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(empty);
}

template <class S> IV_DEVICE void chain_multiply(float (&acc)[S::GROUPS][4], const chain_fragments<S> &f) {
#pragma unroll
    for (int s = 0; s < S::STEPS; s++)
#pragma unroll
        for (int g = 0; g < S::GROUPS; g++) chain_mma(acc[g], f.w[s], f.x[s][g][0], f.x[s][g][1]);
}

/* One thread. The first copies of weights do not wait for the preceding kernel. */
template <class S>
static __device__ void chain_produce(const CUtensorMap *w, const CUtensorMap *x, const chain_plan &p, uint32_t ring,
                                     uint32_t full, uint32_t empty, int bytes) {
    int mine = ((int)p.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, total = mine * p.rounds;
    int first = min(p.stages, total), tile = blockIdx.x, round = 0, stage = 0, phase = 0;
    uint32_t expected = S::WEIGHT_BYTES + S::LEAVES * S::BLOCKS * p.x_rows * CHAIN_ROW;
    for (int i = 0; i < total; i++) {
        uint32_t to = ring + stage * bytes, bar = full + 8 * stage;
        if (i >= first) iv_mbar_wait(empty + 8 * stage, phase ^ 1);
        iv_mbar_expect(bar, expected);
        iv_tma_load_4d(to, w, bar, 0, tile * S::OUTPUTS * 16, round * S::BLOCKS, 0, IV_L2_FIRST);
        if (i >= first) iv_tma_load_4d(to + S::WEIGHT_BYTES, x, bar, 0, 0, round * S::BLOCKS, 0, IV_L2_NORMAL);
        if (++round == p.rounds) round = 0, tile += gridDim.x;
        if (++stage == p.stages) stage = 0, phase ^= 1;
        if (i != first - 1) continue;
        iv_wait();
        for (int j = 0; j < first; j++)
            iv_tma_load_4d(ring + j * bytes + S::WEIGHT_BYTES, x, full + 8 * j, 0, 0, j % p.rounds * S::BLOCKS, 0,
                           IV_L2_NORMAL);
    }
}

/* Outputs of value i of group g of a lane: token 2 (lane % 4) + i % 2, output lane / 4 + 8 (i / 2). */
template <class S>
IV_DEVICE void chain_store(const chain_plan &p, float v, int g, int i, int tile, int output, int split) {
    int lane = threadIdx.x % 32;
    int token = (split * S::GROUPS + g) * 8 + lane % 4 * 2 + i % 2;
    int n = (tile * S::OUTPUTS + output) * 16 + lane / 4 + i / 2 * 8;
    if (token < p.tokens && n < p.n) p.out[(size_t)token * p.n + n] = iv_canon(v);
}

/* The tree over the warps' leaves. sums: [leaf][output, split][value][lane]. */
template <class S>
static __device__ void chain_finish(const chain_plan &p, float (&acc)[S::GROUPS][4], float *sums, int tile, int leaf,
                                    int output, int split) {
    constexpr int VALUES = S::GROUPS * 4, FAMILY = S::OUTPUTS * S::SPLIT;
    int lane = threadIdx.x % 32, kin = output * S::SPLIT + split;
    if constexpr (S::LEAVES == 1) {
#pragma unroll
        for (int v = 0; v < VALUES; v++) chain_store<S>(p, acc[v / 4][v % 4], v / 4, v % 4, tile, output, split);
    } else {
#pragma unroll
        for (int v = 0; v < VALUES; v++) sums[((leaf * FAMILY + kin) * VALUES + v) * 32 + lane] = acc[v / 4][v % 4];
        iv_named_sync(1, S::WARPS * 32);
        for (int v = leaf; v < VALUES; v += S::LEAVES) {
            float node[S::LEAVES];
#pragma unroll
            for (int l = 0; l < S::LEAVES; l++) node[l] = sums[((l * FAMILY + kin) * VALUES + v) * 32 + lane];
#pragma unroll
            for (int width = S::LEAVES / 2; width > 0; width /= 2)
#pragma unroll
                for (int l = 0; l < width; l++) node[l] = __fadd_rn(node[2 * l], node[2 * l + 1]);
            chain_store<S>(p, node[0], v / 4, v % 4, tile, output, split);
        }
        iv_named_sync(1, S::WARPS * 32);
    }
}

template <class S>
static __device__ void chain_consume(const chain_plan &p, uint32_t ring, uint32_t full, uint32_t empty, float *sums,
                                     int bytes) {
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    int leaf = warp % S::LEAVES, output = warp / S::LEAVES % S::OUTPUTS, split = warp / S::LEAVES / S::OUTPUTS;
    bool one = p.x_rows == 1;
    int w_row = output * 16 + lane % 16, token = one ? 0 : split * S::GROUPS * 8 + lane % 8;
    uint32_t quarter = S::GROUPS == 1 ? lane / 8 : lane / 8 % 2; /* 16 bytes of x within two steps or one */
    chain_lane l;
    l.x_row_bytes = one ? 0 : CHAIN_ROW, l.x_block = p.x_rows * CHAIN_ROW;
    l.w = leaf * S::BLOCKS * S::OUTPUTS * 16 * CHAIN_ROW + w_row * CHAIN_ROW + ((lane / 16 ^ w_row % 8) * 16);
    if (S::GROUPS > 1 && !one) token += lane / 16 * 8;
    l.x = S::WEIGHT_BYTES + leaf * S::BLOCKS * l.x_block + token * CHAIN_ROW +
          ((quarter ^ (one ? 0u : (uint32_t)token % 8)) * 16);
    float acc[S::GROUPS][4];
    chain_fragments<S> f[2];
    int mine = ((int)p.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, left = mine * p.rounds;
    int stage = 0, phase = 0, tile = blockIdx.x;
    iv_mbar_wait(full, 0);
    chain_load<S>(f[0], ring, l, 0);
    for (; left > 0; tile += gridDim.x) {
#pragma unroll
        for (int v = 0; v < S::GROUPS * 4; v++) acc[v / 4][v % 4] = 0.0f;
        for (int round = 0; round < p.rounds; round++, left--) {
#pragma unroll
            for (int c = 0; c < S::CHUNKS; c++) {
                if (c + 1 < S::CHUNKS) {
                    chain_load<S>(f[(c + 1) % 2], ring + stage * bytes, l, c + 1);
                } else {
                    chain_release(empty + 8 * stage);
                    if (++stage == p.stages) stage = 0, phase ^= 1;
                    if (left > 1) {
                        iv_mbar_wait(full + 8 * stage, phase);
                        chain_load<S>(f[0], ring + stage * bytes, l, 0);
                    }
                }
                chain_multiply<S>(acc, f[c % 2]);
            }
        }
        iv_wait();
        chain_finish<S>(p, acc, sums, tile, leaf, output, split);
    }
}

/* Shared memory: ring, sums, mbarriers. */
template <class S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    chain_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ chain_plan p) {
    extern __shared__ __align__(1024) char shared[];
    int bytes = chain_stage_bytes(S::WEIGHT_BYTES, p.x_rows, S::BLOCKS, S::LEAVES);
    float *sums = (float *)(shared + p.stages * bytes);
    uint32_t ring = iv_shared(shared), full = ring + p.stages * bytes + S::SUM_BYTES, empty = full + 8 * p.stages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; s++) iv_mbar_init(full + 8 * s, 1), iv_mbar_init(empty + 8 * s, S::WARPS);
        iv_mbar_init_fence();
    }
    iv_let_next();
    __syncthreads();
    if (threadIdx.x / 32 < S::WARPS)
        chain_consume<S>(p, ring, full, empty, sums, bytes);
    else if (threadIdx.x % 32 == 0)
        chain_produce<S>(&w, &x, p, ring, full, empty, bytes);
}

/* ---- reference ---------------------------------------------------------------------------------------------- */

/* The same sums with plain loads: a warp for each 16 outputs and 8 tokens; leaves in order, then the tree. x has all
 * rows of the grid. Threads: 32 for each group of tokens. */
static __global__ void chain_reference(const uint16_t *w, const uint16_t *x, float *out, int n, int k, int leaves,
                                       int tokens) {
    int lane = threadIdx.x % 32, group = threadIdx.x / 32;
    int leaf_k = k / leaves;
    const uint16_t *upper = w + (size_t)(blockIdx.x * 16 + lane / 4) * k + lane % 4 * 2, *lower = upper + (size_t)8 * k;
    const uint16_t *row = x + (size_t)(group * 8 + lane / 4) * k + lane % 4 * 2;
    float node[3][4], acc[4];
    for (int leaf = 0; leaf < leaves; leaf++) {
        for (int i = 0; i < 4; i++) acc[i] = 0.0f;
        for (int at = leaf * leaf_k; at < (leaf + 1) * leaf_k; at += 16) {
            uint32_t a[4] = {*(const uint32_t *)(upper + at), *(const uint32_t *)(lower + at),
                             *(const uint32_t *)(upper + at + 8), *(const uint32_t *)(lower + at + 8)};
            chain_mma(acc, a, *(const uint32_t *)(row + at), *(const uint32_t *)(row + at + 8));
        }
#pragma unroll
        for (int level = 0; level < 3; level++) {
            bool complete = ((leaf + 1) & ((1 << level) - 1)) == 0, right = (leaf >> level & 1) != 0;
            if (!complete) break;
            if (!right) {
                for (int i = 0; i < 4; i++) node[level][i] = acc[i];
                break;
            }
            for (int i = 0; i < 4; i++) acc[i] = __fadd_rn(node[level][i], acc[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        int token = group * 8 + lane % 4 * 2 + i % 2, at = blockIdx.x * 16 + lane / 4 + i / 2 * 8;
        if (token < tokens) out[(size_t)token * n + at] = iv_canon(acc[i]);
    }
}

#endif
