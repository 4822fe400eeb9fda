/* linear_mma.cuh: linear layers of few tokens on mma.sync.m16n8k16, whose bits are those of wgmma (NUMERICS.md 3.2).
 * Weights are the 16-row operand, tokens the 8-column operand. Weights stream once, and a tile has so few outputs that
 * all multiprocessors load.
 *
 * A CTA iterates over tiles of 16 * OUTPUTS outputs and all tokens, with LEAVES * OUTPUTS consumer warps: each has one
 * leaf of 16 outputs. The leaves of a tile are added through shared memory in the order of the tree. One thread copies
 * weights and tokens into a ring by TMA. A stage has BLOCKS blocks of 64 k of every leaf: weights [block][leaf][row],
 * then tokens [block][leaf][row], with rows of 128 bytes. Beyond the end of a leaf TMA writes zeros. Packed weights are
 * units of codes (kernels/packed_units.h), [eight rows][leaf][block], which a warp widens to its registers. */
#ifndef IV_KERNELS_CUDA_LINEAR_MMA_CUH
#define IV_KERNELS_CUDA_LINEAR_MMA_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_swiglu.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packed_units.cuh"

enum { IV_MMA_ROW = 128, IV_MMA_ROWS_MAX = 32 /* tokens */, IV_MMA_RING_MAX = 32 };

typedef struct iv_mma_plan {
    int n, rows;
    int x_rows; /* of a stage: 1 (not swizzled, every column is this token) or a column each (128-byte swizzle) */
    int rounds; /* stages of a tile */
    int tiles, stages;
    iv_gpu_epilogue epilogue;
    const float *bias;
    void *out;
    size_t out_stride;
    iv_unit_form units;            /* of packed weights */
    int units_bytes, weight_bytes; /* packed: of a stage, as copied and with what aligns the tokens behind it */
} iv_mma_plan;

/* Sizes of an instance. STEPS: steps of 16 k whose fragments are loaded at once, while the previous ones are
 * multiplied. */
template <iv_dtype TYPE_, int LEAVES_, int OUTPUTS_, int GROUPS_, int BLOCKS_, bool PACKED_ = false>
struct iv_mma_shape {
    static constexpr iv_dtype TYPE = TYPE_;
    static constexpr bool PACKED = PACKED_;
    static constexpr int LEAVES = LEAVES_, OUTPUTS = OUTPUTS_, GROUPS = GROUPS_, BLOCKS = BLOCKS_;
    static constexpr int WARPS = LEAVES * OUTPUTS, THREADS = (WARPS + 1) * 32, TOKENS = GROUPS * 8;
    /* On an SM; of packed weights as many as registers allow without spills, because other warps hide the time to widen
     * a block. */
    static constexpr int PACKED_CTAS = WARPS > 8 ? 1
                                                 : (WARPS <= 4 ? 7 - 2 * GROUPS : 4 - GROUPS) -
                                                       (LEAVES <= 2 && (GROUPS == 1 || WARPS == 8));
    static constexpr int CTAS = PACKED                                        ? PACKED_CTAS
                                : LEAVES == 1                                 ? 3
                                : WARPS <= 4 || (LEAVES == 8 && OUTPUTS == 1) ? 2
                                                                              : 1;
    static constexpr int STEPS = GROUPS >= 4 || BLOCKS == 1 ? 2 : 4;
    static_assert(!PACKED || STEPS == 4, "units have four steps");
    static constexpr int CHUNKS = BLOCKS * 4 / STEPS; /* of a stage */
    static constexpr int LEAF_BYTES = OUTPUTS * 16 * IV_MMA_ROW, WEIGHT_BYTES = BLOCKS * LEAVES * LEAF_BYTES;
    static constexpr int VALUES = GROUPS * 4; /* sums of a lane */
    static constexpr int SUM_BYTES = LEAVES == 1 ? 0 : WARPS * 32 * VALUES * 4;
    /* values, and pairs of gate and up, that a lane completes */
    static constexpr int MINE = (VALUES + LEAVES - 1) / LEAVES, PAIRS = (VALUES / 2 + LEAVES - 1) / LEAVES;
    static_assert(CHUNKS % 2 == 0, "fragments have two buffers");
};

static __host__ __device__ inline int iv_mma_stage_bytes(int weight_bytes, int x_rows, int blocks, int leaves) {
    return weight_bytes + (leaves * blocks * x_rows * IV_MMA_ROW + 1023) / 1024 * 1024;
}

typedef void (*iv_mma_function)(CUtensorMap, CUtensorMap, iv_mma_plan);

/* A compiled shape, described for the host. */
struct iv_mma_instance {
    int tile_n, tile_m, leaves, blocks, threads, weight_bytes, sum_bytes, ctas;
    iv_mma_function kernel;
    bool packed;
};
const iv_mma_instance *iv_mma_bf16(size_t *count);
const iv_mma_instance *iv_mma_f16(size_t *count);
const iv_mma_instance *iv_mma_bf16_packed(size_t *count);

template <class S> IV_DEVICE int iv_mma_weight_bytes(const iv_mma_plan &p) {
    if constexpr (S::PACKED) return p.weight_bytes;
    return S::WEIGHT_BYTES;
}

/* ---- fragments and products ---------------------------------------------------------------------------------------
 */

#define IV_MMA_STEP(type)                                                                                           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <iv_dtype TYPE> IV_DEVICE void iv_mma_step(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (TYPE == IV_BF16)
        IV_MMA_STEP("bf16");
    else
        IV_MMA_STEP("f16");
}
#undef IV_MMA_STEP

IV_DEVICE void iv_mma_matrices(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(address)
                 : "memory");
}

template <class S> struct iv_mma_fragments { uint32_t w[S::STEPS][4], x[S::STEPS][S::GROUPS][2]; };

/* Where a lane reads: offsets in a stage of its row of the leaf's first block, with the lane's 16 bytes. */
struct iv_mma_lane {
    uint32_t w, x; /* packed: w is the first of its units, the next eight rows' is w_next further */
    uint32_t w_next;
    uint32_t x_row_bytes; /* from a token to the next: 0 if x_rows is 1 */
    uint32_t x_block;
};

template <class S> IV_DEVICE iv_mma_lane iv_mma_lane_of(const iv_mma_plan &p, int leaf, int output) {
    int lane = threadIdx.x % 32, w_row = output * 16 + lane % 16;
    bool one = p.x_rows == 1;
    int token = one ? 0 : lane % 8 + (S::GROUPS > 1 ? lane / 16 * 8 : 0);
    uint32_t quarter = S::GROUPS == 1 ? lane / 8 : lane / 8 % 2; /* 16 bytes of x within two steps or one */
    iv_mma_lane l;
    l.x_row_bytes = one ? 0 : IV_MMA_ROW, l.x_block = S::LEAVES * p.x_rows * IV_MMA_ROW;
    l.w = leaf * S::LEAF_BYTES + w_row * IV_MMA_ROW + ((lane / 16 ^ w_row % 8) * 16);
    l.w_next = S::LEAVES * S::BLOCKS * p.units.bytes;
    if constexpr (S::PACKED) l.w = output * 2 * l.w_next + leaf * S::BLOCKS * p.units.bytes;
    l.x = iv_mma_weight_bytes<S>(p) + (leaf * p.x_rows + token) * IV_MMA_ROW + ((quarter ^ (uint32_t)token % 8) * 16);
    return l;
}

/* Fragments of chunk c of the stage at `stage`, without packed weights. Rows are 128 bytes, so a step changes address
 * bits 5 and 6 only, which the swizzle combines by XOR. */
template <class S> IV_DEVICE void iv_mma_load(iv_mma_fragments<S> &f, uint32_t stage, const iv_mma_lane &l, int c) {
    int block = c * S::STEPS / 4;
    uint32_t w = stage + l.w + block * (S::LEAVES * S::LEAF_BYTES), x = stage + l.x + block * l.x_block;
#pragma unroll
    for (int s = 0; s < S::STEPS; s++) {
        uint32_t step = (uint32_t)(c * S::STEPS + s) % 4 * 32;
        if constexpr (!S::PACKED) iv_mma_matrices(f.w[s][0], f.w[s][1], f.w[s][2], f.w[s][3], w ^ step);
        if constexpr (S::GROUPS == 1) { /* two steps at once */
            if (s % 2 == 0) iv_mma_matrices(f.x[s][0][0], f.x[s][0][1], f.x[s + 1][0][0], f.x[s + 1][0][1], x ^ step);
        } else {
#pragma unroll
            for (int g = 0; g < S::GROUPS; g += 2)
                iv_mma_matrices(f.x[s][g][0], f.x[s][g][1], f.x[s][g + 1][0], f.x[s][g + 1][1],
                                (x ^ step) + g * 8 * l.x_row_bytes);
        }
    }
}

template <class S> IV_DEVICE void iv_mma_multiply(float (&acc)[S::VALUES / 4][4], const iv_mma_fragments<S> &f) {
#pragma unroll
    for (int s = 0; s < S::STEPS; s++)
#pragma unroll
        for (int g = 0; g < S::GROUPS; g++) iv_mma_step<S::TYPE>(acc[g], f.w[s], f.x[s][g][0], f.x[s][g][1]);
}

/* ---- the producer -------------------------------------------------------------------------------------------------
 */

template <class S>
IV_DEVICE void iv_mma_copy_weights(const CUtensorMap *w, uint32_t to, uint32_t bar, int tile, int round) {
    if constexpr (S::PACKED) {
        iv_tma_load_4d(to, w, bar, 0, round * S::BLOCKS, 0, tile * S::OUTPUTS * 2, IV_L2_FIRST);
    } else {
#pragma unroll
        for (int b = 0; b < S::BLOCKS; b++)
            iv_tma_load_3d(to + b * S::LEAVES * S::LEAF_BYTES, w, bar, (round * S::BLOCKS + b) * 64,
                           tile * S::OUTPUTS * 16, 0, IV_L2_FIRST);
    }
}
template <class S>
IV_DEVICE void iv_mma_copy_tokens(const CUtensorMap *x, const iv_mma_plan &p, uint32_t to, uint32_t bar, int round) {
#pragma unroll
    for (int b = 0; b < S::BLOCKS; b++)
        iv_tma_load_3d(to + iv_mma_weight_bytes<S>(p) + b * S::LEAVES * p.x_rows * IV_MMA_ROW, x, bar,
                       (round * S::BLOCKS + b) * 64, 0, 0, IV_L2_NORMAL);
}

/* Stages of all tiles of this CTA. */
IV_DEVICE int iv_mma_stages(const iv_mma_plan &p) {
    return (p.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * p.rounds;
}

/* One thread. The first copies of weights do not wait for the preceding kernel. */
template <class S>
IV_DEVICE void iv_mma_produce(const CUtensorMap *w, const CUtensorMap *x, const iv_mma_plan &p, uint32_t ring,
                              uint32_t full, uint32_t empty, int bytes) {
    int total = iv_mma_stages(p), first = min(p.stages, total);
    int tile = blockIdx.x, round = 0, stage = 0, phase = 0;
    uint32_t expected = (S::PACKED ? p.units_bytes : S::WEIGHT_BYTES) + S::LEAVES * S::BLOCKS * p.x_rows * IV_MMA_ROW;
    for (int i = 0; i < total; i++) {
        uint32_t to = ring + stage * bytes, bar = full + 8 * stage;
        if (i >= first) iv_mbar_wait(empty + 8 * stage, phase ^ 1);
        iv_mbar_expect(bar, expected);
        iv_mma_copy_weights<S>(w, to, bar, tile, round);
        if (i >= first) iv_mma_copy_tokens<S>(x, p, to, bar, round);
        if (++round == p.rounds) round = 0, tile += gridDim.x;
        if (++stage == p.stages) stage = 0, phase ^= 1;
        if (i != first - 1) continue;
        iv_wait();
        for (int j = 0; j < first; j++) iv_mma_copy_tokens<S>(x, p, ring + j * bytes, full + 8 * j, j % p.rounds);
    }
}

/* ---- the epilogue -------------------------------------------------------------------------------------------------
 */

/* A consumer warp: its leaf and its 16 outputs of a tile. */
struct iv_mma_warp {
    int leaf, output;
};

/* Value v of a lane: token (v / 4) * 8 + 2 (lane % 4) + v % 2, output lane / 4 + 8 (v / 2 % 2). */
IV_DEVICE int iv_mma_token(int v) { return v / 4 * 8 + threadIdx.x % 4 * 2 + v % 2; }
template <class S> IV_DEVICE int iv_mma_n(const iv_mma_warp &w, int tile, int v) {
    return (tile * S::OUTPUTS + w.output) * 16 + threadIdx.x % 32 / 4 + v / 2 % 2 * 8;
}

/* The i-th value that this lane completes, and gate i. Others may be beyond VALUES. */
template <class S> IV_DEVICE int iv_mma_value(const iv_mma_warp &w, int i) { return w.leaf + i * S::LEAVES; }
template <class S> IV_DEVICE int iv_mma_gate(const iv_mma_warp &w, int i) {
    int pair = w.leaf + i * S::LEAVES;
    return pair / 2 * 4 + pair % 2;
}

/* The addends of a tile, loaded before its products. Missing ones are -0, which changes no sum. */
template <class S>
IV_DEVICE void iv_mma_load_old(const iv_mma_plan &p, const iv_mma_warp &w, int tile, float (&old)[S::MINE]) {
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
        int v = iv_mma_value<S>(w, i), token = iv_mma_token(v), n = iv_mma_n<S>(w, tile, v);
        bool there = p.epilogue == IV_GPU_RESIDUAL && v < S::VALUES && token < p.rows && n < p.n;
        old[i] = iv_load_if((const float *)p.out + (size_t)token * p.out_stride + n, there);
    }
}

/* The root of value v. sums: [leaf][output][value][lane]. NaN sums are canonical on this hardware. */
template <class S>
IV_DEVICE float iv_mma_root(const float (&acc)[S::VALUES / 4][4], const float *sums, const iv_mma_warp &w, int v) {
    if constexpr (S::LEAVES == 1) {
        return acc[v / 4][v % 4];
    } else {
        float node[S::LEAVES];
        if (v >= S::VALUES) return 0.0f;
#pragma unroll
        for (int l = 0; l < S::LEAVES; l++)
            node[l] = sums[((l * S::OUTPUTS + w.output) * S::VALUES + v) * 32 + threadIdx.x % 32];
#pragma unroll
        for (int width = S::LEAVES / 2; width > 0; width /= 2)
#pragma unroll
            for (int l = 0; l < width; l++) node[l] = __fadd_rn(node[2 * l], node[2 * l + 1]);
        return node[0];
    }
}

template <class S>
IV_DEVICE void iv_mma_store_values(const iv_mma_plan &p, const float (&acc)[S::VALUES / 4][4], const float *sums,
                                   const iv_mma_warp &w, int tile, const float (&old)[S::MINE]) {
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
        int v = iv_mma_value<S>(w, i), token = iv_mma_token(v), n = iv_mma_n<S>(w, tile, v);
        bool there = v < S::VALUES && token < p.rows && n < p.n;
        float bias = iv_load_if(p.bias + n, p.bias && there);
        float y = __fadd_rn(iv_mma_root<S>(acc, sums, w, v), bias);
        iv_store_if((float *)p.out + (size_t)token * p.out_stride + n, __fadd_rn(old[i], y), there);
    }
}

/* Outputs 0 to 7 of a warp are gates, 8 to 15 their ups. */
template <class S>
IV_DEVICE void iv_mma_store_activations(const iv_mma_plan &p, const float (&acc)[S::VALUES / 4][4], const float *sums,
                                        const iv_mma_warp &w, int tile) {
    float gate[S::PAIRS], up[S::PAIRS], y[S::PAIRS];
    if (w.leaf >= S::VALUES / 2) return;
    int n = iv_mma_n<S>(w, tile, 0);
    bool inside = n < p.n;
    float gate_bias = iv_load_if(p.bias + n, p.bias && inside), up_bias = iv_load_if(p.bias + n + 8, p.bias && inside);
#pragma unroll
    for (int i = 0; i < S::PAIRS; i++) {
        int v = iv_mma_gate<S>(w, i);
        gate[i] = iv_gate(__fadd_rn(iv_mma_root<S>(acc, sums, w, v), gate_bias),
                          inside && v < S::VALUES && iv_mma_token(v) < p.rows);
        up[i] = __fadd_rn(iv_mma_root<S>(acc, sums, w, v + 2), up_bias);
    }
    iv_swiglu_many(gate, up, y);
    uint16_t *out = (uint16_t *)p.out + n / 16 * 8 + n % 8;
#pragma unroll
    for (int i = 0; i < S::PAIRS; i++) {
        int v = iv_mma_gate<S>(w, i), token = iv_mma_token(v);
        if (inside && v < S::VALUES && token < p.rows) out[(size_t)token * p.out_stride] = iv_round16(S::TYPE, y[i]);
    }
}

/* Adds the leaves of a tile and writes its outputs. */
template <class S>
IV_DEVICE void iv_mma_finish(const iv_mma_plan &p, const float (&acc)[S::VALUES / 4][4], float *sums,
                             const iv_mma_warp &w, int tile, const float (&old)[S::MINE]) {
    if constexpr (S::LEAVES > 1) {
#pragma unroll
        for (int v = 0; v < S::VALUES; v++)
            sums[((w.leaf * S::OUTPUTS + w.output) * S::VALUES + v) * 32 + threadIdx.x % 32] = acc[v / 4][v % 4];
        iv_named_sync(1, S::WARPS * 32);
    }
    if (p.epilogue == IV_GPU_SWIGLU)
        iv_mma_store_activations<S>(p, acc, sums, w, tile);
    else
        iv_mma_store_values<S>(p, acc, sums, w, tile, old);
    if constexpr (S::LEAVES > 1) iv_named_sync(1, S::WARPS * 32);
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------
 */

/* Releases a stage for this warp: the next copy may overwrite it. An arrival alone may pass ldmatrix whose values have
 * not come yet, which would then read the next stage's. The fence of every lane ends its reads; __syncwarp precedes the
 * arrival of one lane for all. */
IV_DEVICE void iv_mma_release(uint32_t empty) {
    iv_fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(empty);
}

template <class S>
IV_DEVICE void iv_mma_consume(const iv_mma_plan &p, uint32_t ring, uint32_t full, uint32_t empty, float *sums,
                              int bytes) {
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), stage = 0, phase = 0, tile = blockIdx.x;
    iv_mma_warp w = {warp % S::LEAVES, warp / S::LEAVES};
    iv_mma_lane l = iv_mma_lane_of<S>(p, w.leaf, w.output);
    float acc[S::VALUES / 4][4], old[S::MINE];
    iv_mma_fragments<S> f[2];
    iv_mbar_wait(full, 0);
    iv_mma_load<S>(f[0], ring, l, 0);
    for (int left = iv_mma_stages(p); left > 0; tile += gridDim.x) {
        iv_mma_load_old<S>(p, w, tile, old);
#pragma unroll
        for (int v = 0; v < S::VALUES; v++) acc[v / 4][v % 4] = 0.0f;
        for (int round = 0; round < p.rounds; round++, left--) {
#pragma unroll
            for (int c = 0; c < S::CHUNKS; c++) {
                if (c + 1 < S::CHUNKS) {
                    iv_mma_load<S>(f[(c + 1) % 2], ring + stage * bytes, l, c + 1);
                } else {
                    iv_mma_release(empty + 8 * stage);
                    if (++stage == p.stages) stage = 0, phase ^= 1;
                    if (left > 1) {
                        iv_mbar_wait(full + 8 * stage, phase);
                        iv_mma_load<S>(f[0], ring + stage * bytes, l, 0);
                    }
                }
                iv_mma_multiply<S>(acc, f[c % 2]);
            }
        }
        iv_mma_finish<S>(p, acc, sums, w, tile, old);
    }
}

/* A stage of packed weights. */
template <class S, class U>
IV_DEVICE void iv_mma_stage_packed(const iv_mma_plan &p, float (&acc)[S::VALUES / 4][4], uint32_t stage,
                                   const iv_mma_lane &l) {
    constexpr int AT_ONCE = U::SHORT ? 2 : 1;
    uint32_t unit = stage + l.w;
#pragma unroll 1
    for (int first = 0; first < S::CHUNKS; first += AT_ONCE) {
        iv_unit_lane codes[AT_ONCE];
#pragma unroll
        for (int c = 0; c < AT_ONCE; c++)
            iv_load_unit<U>(codes[c], unit + c * p.units.bytes, unit + c * p.units.bytes + l.w_next);
#pragma unroll
        for (int c = 0; c < AT_ONCE; c++, unit += p.units.bytes) {
            iv_mma_fragments<S> f;
            iv_mma_load<S>(f, stage, l, first + c);
            iv_widen_unit<U>(f.w, codes[c], unit, unit + l.w_next, p.units);
            iv_mma_multiply<S>(acc, f);
        }
    }
}

/* The same for packed weights, in the loop of their form. Other warps widen while one multiplies. */
template <class S> struct iv_mma_consume_packed {
    template <class U>
    IV_DEVICE void run(const iv_mma_plan &p, uint32_t ring, uint32_t full, uint32_t empty, float *sums, int bytes) {
        int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), stage = 0, phase = 0, tile = blockIdx.x;
        iv_mma_warp w = {warp % S::LEAVES, warp / S::LEAVES};
        iv_mma_lane l = iv_mma_lane_of<S>(p, w.leaf, w.output);
        float acc[S::VALUES / 4][4], old[S::MINE];
        for (int left = iv_mma_stages(p); left > 0; tile += gridDim.x) {
            iv_mma_load_old<S>(p, w, tile, old);
#pragma unroll
            for (int v = 0; v < S::VALUES; v++) acc[v / 4][v % 4] = 0.0f;
            for (int round = 0; round < p.rounds; round++, left--) {
                iv_mbar_wait(full + 8 * stage, phase);
                iv_mma_stage_packed<S, U>(p, acc, ring + stage * bytes, l);
                iv_mma_release(empty + 8 * stage);
                if (++stage == p.stages) stage = 0, phase ^= 1;
            }
            iv_mma_finish<S>(p, acc, sums, w, tile, old);
        }
    }
};

/* Shared memory: ring, sums, mbarriers. */
template <class S>
__global__ void __launch_bounds__(S::THREADS, S::CTAS)
    iv_mma_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ iv_mma_plan p) {
    extern __shared__ __align__(1024) char shared[];
    int bytes = iv_mma_stage_bytes(iv_mma_weight_bytes<S>(p), p.x_rows, S::BLOCKS, S::LEAVES);
    float *sums = (float *)(shared + p.stages * bytes);
    uint32_t ring = iv_shared(shared), full = ring + p.stages * bytes + S::SUM_BYTES, empty = full + 8 * p.stages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; s++) iv_mbar_init(full + 8 * s, 1), iv_mbar_init(empty + 8 * s, S::WARPS);
        iv_mbar_init_fence();
    }
    iv_let_next();
    __syncthreads();
    if (threadIdx.x / 32 < S::WARPS) {
        iv_wait();
        if constexpr (S::PACKED)
            iv_unit_choose<iv_mma_consume_packed<S>, S::TYPE>(p.units, p, ring, full, empty, sums, bytes);
        else
            iv_mma_consume<S>(p, ring, full, empty, sums, bytes);
    } else if (threadIdx.x % 32 == 0) {
        iv_mma_produce<S>(&w, &x, p, ring, full, empty, bytes);
    }
}

template <class S> static iv_mma_instance iv_mma_instance_of(void) {
    return {S::OUTPUTS * 16, S::TOKENS,    S::LEAVES, S::BLOCKS,        S::THREADS,
            S::WEIGHT_BYTES, S::SUM_BYTES, S::CTAS,   iv_mma_kernel<S>, S::PACKED};
}

#define IV_MMA_TOKENS(T, leaves, outputs, blocks)                          \
    iv_mma_instance_of<iv_mma_shape<T, leaves, outputs, 1, blocks>>(),     \
        iv_mma_instance_of<iv_mma_shape<T, leaves, outputs, 2, blocks>>(), \
        iv_mma_instance_of<iv_mma_shape<T, leaves, outputs, 4, blocks>>()
#define IV_MMA_INSTANCES(name, T)                                                                    \
    const iv_mma_instance *name(size_t *count) {                                                     \
        static const iv_mma_instance all[] = {IV_MMA_TOKENS(T, 8, 1, 1), IV_MMA_TOKENS(T, 8, 2, 1),  \
                                              IV_MMA_TOKENS(T, 4, 1, 2), IV_MMA_TOKENS(T, 4, 2, 2),  \
                                              IV_MMA_TOKENS(T, 2, 2, 2), IV_MMA_TOKENS(T, 2, 4, 2),  \
                                              IV_MMA_TOKENS(T, 1, 2, 2), IV_MMA_TOKENS(T, 1, 2, 4)}; \
        *count = sizeof all / sizeof *all;                                                           \
        return all;                                                                                  \
    }

#define IV_MMA_PACKED_TOKENS(T, leaves, outputs)                        \
    iv_mma_instance_of<iv_mma_shape<T, leaves, outputs, 1, 2, true>>(), \
        iv_mma_instance_of<iv_mma_shape<T, leaves, outputs, 2, 2, true>>()
#define IV_MMA_PACKED_LONG(T, leaves, outputs) iv_mma_instance_of<iv_mma_shape<T, leaves, outputs, 1, 4, true>>()
#define IV_MMA_PACKED_INSTANCES(name, T)                                                                    \
    const iv_mma_instance *name(size_t *count) {                                                            \
        static const iv_mma_instance all[] = {IV_MMA_PACKED_TOKENS(T, 8, 1), IV_MMA_PACKED_TOKENS(T, 8, 2), \
                                              IV_MMA_PACKED_TOKENS(T, 4, 1), IV_MMA_PACKED_TOKENS(T, 4, 2), \
                                              IV_MMA_PACKED_TOKENS(T, 2, 2), IV_MMA_PACKED_TOKENS(T, 2, 4), \
                                              IV_MMA_PACKED_TOKENS(T, 1, 4), IV_MMA_PACKED_LONG(T, 8, 1),   \
                                              IV_MMA_PACKED_LONG(T, 4, 1),   IV_MMA_PACKED_LONG(T, 4, 2)};  \
        *count = sizeof all / sizeof *all;                                                                  \
        return all;                                                                                         \
    }

#endif
