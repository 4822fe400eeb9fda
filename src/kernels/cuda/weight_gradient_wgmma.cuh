/* weight_gradient_wgmma.cuh: weight gradients on Hopper: dW = dY^T X. One producer fills a ring of shared-memory stages
 * by TMA; two consumer warpgroups multiply them with wgmma. A tile is 128 outputs (64 of a warpgroup) by QN inputs, and
 * a stage is 64 tokens. Both operands lie in memory as [token][column], so both are MN-major.
 *
 * A chain runs in one accumulator. At its end the second warpgroup, which is some blocks behind, multiplies while the
 * first adds what waits and begins the next chain. Tiles of 128 inputs keep the subtrees of one and of two virtual
 * ranks in registers (KEPT); others wait in the CTA's scratch. Tiles of 256 inputs have no registers for that: they
 * suit passes with few ends of chains.
 *
 * The tokens of a range are a multiple of 16. A copy always takes 64 rows; in a range's last block only the steps that
 * belong to it are issued.
 *
 * Two CTAs of a cluster (PEERS) have tiles with the same inputs; each copies half of those rows' columns for both. */
#ifndef IV_KERNELS_CUDA_WEIGHT_GRADIENT_WGMMA_CUH
#define IV_KERNELS_CUDA_WEIGHT_GRADIENT_WGMMA_CUH

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/weight_gradient.cuh"

enum {
    IV_GRADIENT_BLOCK = 64,         /* tokens of a stage */
    IV_GRADIENT_BOX = 64 * 128,     /* bytes of 64 tokens of 64 columns */
    IV_GRADIENT_CONSUMERS = 256,    /* threads */
    IV_GRADIENT_OUTPUTS = 128,      /* of a tile */
    IV_GRADIENT_ZEROS = 2048 + 128, /* bytes: an operand of a step, whose chunks are 16 bytes apart */
    IV_GRADIENT_HEAD = 3072,        /* bytes of zeros and barriers, before the ring: its stages are aligned to 1024 */
    IV_GRADIENT_RASTER = 8,         /* rows of tiles of a band */
    IV_GRADIENT_SHARED = 227 * 1024 /* bytes */
};

/* GROUPED: the problem has groups. Dense layers have code without them. */
template <iv_dtype TYPE_, int QN_, int KEPT_, int PEERS_, bool GROUPED_> struct iv_gradient_shape {
    static constexpr iv_dtype TYPE = TYPE_;
    static constexpr bool GROUPED = GROUPED_;
    static constexpr int QN = QN_, KEPT = KEPT_, PEERS = PEERS_, COUNT = QN / 2;
    static constexpr int P_BYTES = IV_GRADIENT_OUTPUTS / 64 * IV_GRADIENT_BOX,
                         STAGE = P_BYTES + QN / 64 * IV_GRADIENT_BOX;
    static constexpr int STAGES = (IV_GRADIENT_SHARED - IV_GRADIENT_HEAD) / STAGE,
                         SHARED = IV_GRADIENT_HEAD + STAGES * STAGE;
    static_assert((QN / 64 - 1) * 16 + 2048 <= IV_GRADIENT_ZEROS, "wgmma would read beyond the zeros");
    static_assert(IV_GRADIENT_ZEROS % 8 == 0 && IV_GRADIENT_ZEROS + 16 * STAGES + 8 <= IV_GRADIENT_HEAD,
                  "the ring begins behind the barriers");
    static_assert(IV_GRADIENT_HEAD % 1024 == 0 && SHARED >= QN * 32,
                  "aligned stages; compute-sanitizer's memcheck takes "
                  "the zeros for QN * 32 contiguous bytes");
    static constexpr int THREADS = IV_GRADIENT_CONSUMERS + 128, GIVEN = 40, TAKEN = 232; /* registers */
    static_assert(IV_GRADIENT_CONSUMERS * TAKEN + 128 * GIVEN <= THREADS * (65536 / THREADS / 8 * 8),
                  "a launch has no more registers, and setmaxnreg would wait for them forever");
    static constexpr int LEVEL_FLOATS = COUNT * IV_GRADIENT_CONSUMERS; /* of scratch; level KEPT is the first */
    static constexpr int LEVELS = KEPT + IV_WEIGHT_GRADIENT_SCRATCH / (LEVEL_FLOATS * 4); /* that may wait in a pass */
};

/* ---- wgmma with both operands MN-major --------------------------------------------------------------------------- */

#define IV_WG_MN(N, KIND, LIST, OPS, A, B, S)                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" LIST "}, %" #A ", %" #B \
                 ", p, 1, 1, 1, 1;\n}\n"                                                                      \
                 : OPS                                                                                        \
                 : "l"(a), "l"(b), "r"(add))

/* d = (add ? d : 0) + A B^T, one step of 16 tokens; a and b are from iv_wgmma_desc_mn. */
template <iv_dtype TYPE, int COUNT> IV_DEVICE void iv_wgmma_mn(float (&d)[COUNT], uint64_t a, uint64_t b, int add) {
    constexpr bool BF = TYPE == IV_BF16;
    static_assert(COUNT == 64 || COUNT == 128, "no wgmma of this size here");
    if constexpr (COUNT == 64 && BF)
        IV_WG_MN(128, "bf16", IV_WG_L8, IV_WG_O8(d), 64, 65, 66);
    else if constexpr (COUNT == 64)
        IV_WG_MN(128, "f16", IV_WG_L8, IV_WG_O8(d), 64, 65, 66);
    else if constexpr (BF)
        IV_WG_MN(256, "bf16", IV_WG_L16, IV_WG_O16(d), 128, 129, 130);
    else
        IV_WG_MN(256, "f16", IV_WG_L16, IV_WG_O16(d), 128, 129, 130);
}

/* ---- tiles --------------------------------------------------------------------------------------------------------
 */

struct iv_gradient_shared { /* addresses in shared memory */
    uint32_t ring, zeros, full, empty, stagger;
};

struct iv_gradient_ring {
    int stage, phase;
    template <int STAGES> __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

struct iv_gradient_tile {
    int p, q, group; /* first output and input */
};

/* Bands of rows of tiles: the columns of a band's outputs stay in L2. */
template <class S> IV_DEVICE iv_gradient_tile iv_gradient_tile_at(const iv_gradient_problem &p, int at, int peer) {
    int rows = (p.n + S::PEERS * IV_GRADIENT_OUTPUTS - 1) / (S::PEERS * IV_GRADIENT_OUTPUTS); /* of pairs of tiles */
    int group = S::GROUPED ? at / p.group_tiles : 0;
    at -= group * p.group_tiles;
    int band = at / (IV_GRADIENT_RASTER * p.tiles_k), rest = at - band * IV_GRADIENT_RASTER * p.tiles_k;
    int height = min(IV_GRADIENT_RASTER, rows - band * IV_GRADIENT_RASTER);
    int row = band * IV_GRADIENT_RASTER + rest % height;
    return {(row * S::PEERS + peer) * IV_GRADIENT_OUTPUTS, rest / height * S::QN, group};
}

template <class S>
IV_DEVICE iv_gradient_span iv_gradient_tokens(const iv_gradient_problem &p, const iv_gradient_tile &t, int range) {
    if constexpr (S::GROUPED)
        return iv_gradient_span_of(p, t.group, range);
    else
        return {(int)p.plan.range[range].begin, (int)p.plan.range[range].end};
}

/* The element of the sums from which the tile's offsets count. */
template <class S> IV_DEVICE int64_t iv_gradient_base(const iv_gradient_problem &p, const iv_gradient_tile &t) {
    return S::GROUPED ? p.bases[t.group] : 0;
}

/* ---- the producer: one warp ----------------------------------------------------------------------------------------
 */

/* The sums from which a chain continues come to L2 while the previous tile runs. */
template <class S> IV_DEVICE void iv_gradient_prefetch(const iv_gradient_problem &p, const iv_gradient_tile &t) {
#pragma unroll
    for (int i = 0; i < IV_GRADIENT_OUTPUTS; i += 32) {
        int output = t.p + i + threadIdx.x % 32;
        int64_t offset = output < p.n ? p.offsets[output] : -1;
        if (offset < 0) continue;
        offset += iv_gradient_base<S>(p, t);
        uintptr_t from = (uintptr_t)(p.plan.sums.sum + offset + t.q), to = from + 4 * (size_t)min(S::QN, p.k - t.q);
        from = (from + 15) & ~(uintptr_t)15, to &= ~(uintptr_t)15;
        if (from < to)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"((uint32_t)(to - from))
                         : "memory");
    }
}

template <class S>
IV_DEVICE void iv_gradient_copy(const CUtensorMap *dy, const CUtensorMap *x, const iv_gradient_tile &t, uint32_t stage,
                                uint32_t bar, int token, int peer) {
    constexpr int MINE = S::QN / 64 / S::PEERS; /* boxes of x that this CTA copies */
    iv_mbar_expect(bar, S::STAGE);
#pragma unroll
    for (int i = 0; i < IV_GRADIENT_OUTPUTS / 64; i++)
        iv_tma_load_4d(stage + i * IV_GRADIENT_BOX, dy, bar, t.p + i * 64, token, 0, 0, IV_L2_NORMAL);
#pragma unroll
    for (int i = peer * MINE; i < (peer + 1) * MINE; i++) {
        uint32_t to = stage + S::P_BYTES + i * IV_GRADIENT_BOX;
        if constexpr (S::PEERS == 1)
            iv_tma_load_4d(to, x, bar, t.q + i * 64, token, 0, 0, IV_L2_NORMAL);
        else
            iv_tma_load_4d_multicast(to, x, bar, t.q + i * 64, token, 0, 0, (uint16_t)((1u << S::PEERS) - 1),
                                     IV_L2_NORMAL);
    }
}

template <class S>
IV_DEVICE void iv_gradient_produce(const CUtensorMap *dy, const CUtensorMap *x, const iv_gradient_problem &p,
                                   const iv_gradient_shared &m, int first, int step, int peer) {
    iv_gradient_ring r = {0, 1}; /* the first waits return at once */
    for (int at = first; at < p.tiles; at += step) {
        iv_gradient_tile t = iv_gradient_tile_at<S>(p, at, peer);
        if (p.plan.range[0].continues) iv_gradient_prefetch<S>(p, t);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            for (int index = 0; index < p.plan.ranges; index++) {
                iv_gradient_span span = iv_gradient_tokens<S>(p, t, index);
                for (int token = span.begin; token < span.end; token += IV_GRADIENT_BLOCK) {
                    iv_mbar_wait(m.empty + 8 * r.stage, r.phase);
                    iv_gradient_copy<S>(dy, x, t, m.ring + r.stage * S::STAGE, m.full + 8 * r.stage, token, peer);
                    r.next<S::STAGES>();
                }
            }
        __syncwarp();
    }
}

/* ---- sums of a thread's values: value 4 j + 2 h + i is row h, column 8 j + i from its first -------------------------
 */

struct iv_gradient_rows {
    int64_t at[2]; /* in the sums */
    bool there[2];
    int left;   /* columns from the first one to k */
    bool pairs; /* two neighbors may be one access; equal in a warp */
};

template <class S>
IV_DEVICE iv_gradient_rows iv_gradient_rows_of(const iv_gradient_problem &p, const iv_gradient_tile &t) {
    iv_gradient_rows rows;
    int column = t.q + threadIdx.x % 4 * 2;
    int64_t base = iv_gradient_base<S>(p, t);
    bool even = p.k % 2 == 0 && base % 2 == 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int output = t.p + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
        int64_t offset = output < p.n ? p.offsets[output] : -1;
        rows.there[h] = offset >= 0, rows.at[h] = base + offset + column;
        even = even && (offset < 0 || offset % 2 == 0);
    }
    rows.left = p.k - column, rows.pairs = __all_sync(~0u, even);
    return rows;
}

/* d = the sums, or with ADD d = sums + d. Missing ones are -0, which changes no sum. */
template <bool ADD> IV_DEVICE void iv_gradient_take(float &d, float v) { d = ADD ? __fadd_rn(v, d) : v; }

IV_DEVICE float2 iv_gradient_load2(const float *p, bool there) {
    float2 v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.f32 %0, 0f80000000;\nmov.f32 %1, 0f80000000;\n"
                 "@p ld.global.v2.f32 {%0, %1}, [%2];\n}\n"
                 : "=f"(v.x), "=f"(v.y)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}

template <bool ADD, int COUNT>
IV_DEVICE void iv_gradient_load(const float *sums, const iv_gradient_rows &rows, float (&d)[COUNT]) {
    if (rows.pairs) {
#pragma unroll
        for (int v = 0; v < COUNT; v += 2) {
            int h = v / 2 % 2, column = v / 4 * 8;
            float2 two = iv_gradient_load2(sums + rows.at[h] + column, rows.there[h] && column < rows.left);
            iv_gradient_take<ADD>(d[v], two.x), iv_gradient_take<ADD>(d[v + 1], two.y);
        }
    } else {
#pragma unroll
        for (int v = 0; v < COUNT; v++) {
            int h = v / 2 % 2, column = v / 4 * 8 + v % 2;
            iv_gradient_take<ADD>(d[v], iv_load_if(sums + rows.at[h] + column, rows.there[h] && column < rows.left));
        }
    }
}

template <int COUNT>
IV_DEVICE void iv_gradient_store(float *sums, const iv_gradient_rows &rows, const float (&d)[COUNT]) {
    if (rows.pairs) {
#pragma unroll
        for (int v = 0; v < COUNT; v += 2) {
            int h = v / 2 % 2, column = v / 4 * 8;
            iv_store2_if(sums + rows.at[h] + column, make_float2(d[v], d[v + 1]), rows.there[h] && column < rows.left);
        }
    } else {
#pragma unroll
        for (int v = 0; v < COUNT; v++) {
            int h = v / 2 % 2, column = v / 4 * 8 + v % 2;
            iv_store_if(sums + rows.at[h] + column, d[v], rows.there[h] && column < rows.left);
        }
    }
}

/* ---- the consumers --------------------------------------------------------------------------------------------------
 */

template <class S> struct iv_gradient_state {
    float acc[S::COUNT], kept[S::KEPT ? S::KEPT : 1][S::KEPT ? S::COUNT : 1];
    iv_gradient_ring next; /* the stage of the next block */
    uint32_t mine;         /* the offset of this warpgroup's outputs in a stage */
    int behind;            /* blocks after which the second warpgroup may begin; 0: it has */
};

/* A thread's first value of a level that waits in scratch; the j-th four are CONSUMERS float4 on. */
template <class S> IV_DEVICE float4 *iv_gradient_waiting(const iv_gradient_problem &p, int level) {
    float *cta = p.scratch + blockIdx.x * p.scratch_floats + (size_t)(level - S::KEPT) * S::LEVEL_FLOATS;
    return (float4 *)cta + threadIdx.x;
}

template <class S> IV_DEVICE void iv_gradient_add_waiting(const float4 *from, float (&d)[S::COUNT]) {
#pragma unroll
    for (int j = 0; j < S::COUNT / 4; j++) {
        float4 v = iv_load4_if((const float *)(from + j * IV_GRADIENT_CONSUMERS), true);
        d[4 * j] = __fadd_rn(v.x, d[4 * j]), d[4 * j + 1] = __fadd_rn(v.y, d[4 * j + 1]);
        d[4 * j + 2] = __fadd_rn(v.z, d[4 * j + 2]), d[4 * j + 3] = __fadd_rn(v.w, d[4 * j + 3]);
    }
}

/* Adds level `level` of this pass. */
template <class S> IV_DEVICE void iv_gradient_join(const iv_gradient_problem &p, iv_gradient_state<S> &s, int level) {
    if (level >= S::KEPT) {
        iv_gradient_add_waiting<S>(iv_gradient_waiting<S>(p, level), s.acc);
        return;
    }
    if constexpr (S::KEPT > 0) {
#pragma unroll
        for (int k = 0; k < S::KEPT; k++)
            if (level == k) {
#pragma unroll
                for (int i = 0; i < S::COUNT; i++) s.acc[i] = __fadd_rn(s.kept[k][i], s.acc[i]);
            }
    }
}

template <class S>
IV_DEVICE void iv_gradient_wait_in(const iv_gradient_problem &p, iv_gradient_state<S> &s, int level) {
    if (level >= S::KEPT) {
        float4 *to = iv_gradient_waiting<S>(p, level);
#pragma unroll
        for (int j = 0; j < S::COUNT / 4; j++)
            to[j * IV_GRADIENT_CONSUMERS] =
                make_float4(s.acc[4 * j], s.acc[4 * j + 1], s.acc[4 * j + 2], s.acc[4 * j + 3]);
        return;
    }
    if constexpr (S::KEPT > 0) {
#pragma unroll
        for (int k = 0; k < S::KEPT; k++)
            if (level == k) {
#pragma unroll
                for (int i = 0; i < S::COUNT; i++) s.kept[k][i] = s.acc[i];
            }
    }
}

/* Releases a stage for this warp, to every CTA that copies into it. */
template <class S> IV_DEVICE void iv_gradient_release(const iv_gradient_shared &m, int stage) {
    int lane = threadIdx.x % 32;
    if constexpr (S::PEERS == 1) {
        if (lane == 0) iv_mbar_arrive(m.empty + 8 * stage);
    } else {
        if (lane < S::PEERS) iv_mbar_release_cluster(iv_shared_of(m.empty + 8 * stage, (uint32_t)lane));
    }
}

/* Issues a block as one commit group; returns its stage. Steps from `steps` on are of zeros: they change no bit. */
template <class S>
IV_DEVICE int iv_gradient_issue(const iv_gradient_shared &m, iv_gradient_state<S> &s, int steps, int add) {
    constexpr int STEP = 2048 >> 4; /* of a descriptor: 16 tokens */
    int stage = s.next.stage;
    iv_mbar_wait(m.full + 8 * stage, s.next.phase);
    uint32_t at = m.ring + stage * S::STAGE;
    uint64_t a = iv_wgmma_desc_mn(at + s.mine, IV_GRADIENT_BOX), b = iv_wgmma_desc_mn(at + S::P_BYTES, IV_GRADIENT_BOX);
    uint64_t zeros = iv_wgmma_desc_mn(m.zeros, 16);
    iv_wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool there = i == 0 || i < steps;
        iv_wgmma_mn<S::TYPE>(s.acc, there ? a + STEP * i : zeros, there ? b + STEP * i : zeros, i > 0 || add);
    }
    iv_wgmma_commit();
    s.next.template next<S::STAGES>();
    return stage;
}

/* The first warpgroup lets the second one begin. */
template <class S> IV_DEVICE void iv_gradient_stagger(const iv_gradient_shared &m, iv_gradient_state<S> &s) {
    if (s.behind > 0 && --s.behind == 0 && threadIdx.x % 32 == 0) iv_mbar_arrive(m.stagger);
}

/* One chain: the blocks of a range that has some. One block is issued ahead of the one that is awaited. */
template <class S>
IV_DEVICE void iv_gradient_chain(const iv_gradient_shared &m, iv_gradient_state<S> &s, const iv_gradient_span &span,
                                 int continues) {
    int steps = (span.end - span.begin) / 16;
    int before = iv_gradient_issue<S>(m, s, steps, continues);
    iv_gradient_stagger<S>(m, s);
    for (steps -= 4; steps > 0; steps -= 4) {
        int stage = iv_gradient_issue<S>(m, s, steps, 1);
        iv_gradient_stagger<S>(m, s);
        iv_wgmma_wait<1>();
        iv_gradient_release<S>(m, before);
        before = stage;
    }
    iv_wgmma_wait<0>();
    iv_wgmma_hold(s.acc);
    iv_gradient_release<S>(m, before);
}

template <class S>
IV_DEVICE void iv_gradient_range(const iv_gradient_problem &p, const iv_gradient_shared &m, const iv_gradient_tile &t,
                                 iv_gradient_state<S> &s, int index) {
    const iv_sum_range &range = p.plan.range[index];
    iv_gradient_span span = iv_gradient_tokens<S>(p, t, index);
    if constexpr (S::GROUPED) /* known to the compiler as the same in all threads of a warp */
        span = {__shfl_sync(~0u, span.begin, 0), __shfl_sync(~0u, span.end, 0)};
    if (S::GROUPED && range.continues && span.begin == span.end && range.joins == 0 && range.to == IV_SUM_SUM)
        return; /* an open chain stays as it is */
    if (range.continues) {
        iv_gradient_load<false>(p.plan.sums.sum, iv_gradient_rows_of<S>(p, t), s.acc);
    } else {
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) s.acc[i] = 0.0f;
    }
    if (span.begin < span.end) iv_gradient_chain<S>(m, s, span, range.continues);
#pragma unroll 1
    for (int level = 0; level < range.joins; level++) {
        if (range.from_sums >> level & 1)
            iv_gradient_load<true>(p.plan.sums.level[level], iv_gradient_rows_of<S>(p, t), s.acc);
        else
            iv_gradient_join<S>(p, s, level);
    }
    if (range.to == IV_SUM_WAITS) {
        iv_gradient_wait_in<S>(p, s, range.joins);
    } else {
        float *to = range.to == IV_SUM_LEVEL ? p.plan.sums.level[range.joins] : p.plan.sums.sum;
        iv_gradient_store(to, iv_gradient_rows_of<S>(p, t), s.acc);
    }
}

template <class S>
IV_DEVICE void iv_gradient_consume(const iv_gradient_problem &p, const iv_gradient_shared &m, int first, int step,
                                   int peer) {
    iv_gradient_state<S> s;
    int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    s.next = {0, 0}, s.mine = warpgroup * IV_GRADIENT_BOX, s.behind = warpgroup == 0 ? S::STAGES / 2 : 0;
    if (first >= p.tiles) return;
    if (warpgroup == 1) iv_mbar_wait(m.stagger, 0);
    for (int at = first; at < p.tiles; at += step) {
        iv_gradient_tile t = iv_gradient_tile_at<S>(p, at, peer);
#pragma unroll 1
        for (int index = 0; index < p.plan.ranges; index++) iv_gradient_range<S>(p, m, t, s, index);
        if (s.behind > 0) s.behind = 1, iv_gradient_stagger<S>(m, s); /* a short tile */
    }
}

template <class S> IV_DEVICE iv_gradient_shared iv_gradient_set_up(char *shared) {
    iv_gradient_shared m;
    m.zeros = iv_shared(shared), m.full = m.zeros + IV_GRADIENT_ZEROS, m.ring = m.zeros + IV_GRADIENT_HEAD;
    m.empty = m.full + 8 * S::STAGES, m.stagger = m.empty + 8 * S::STAGES;
    for (int i = threadIdx.x; i < IV_GRADIENT_ZEROS / 4; i += S::THREADS) ((uint32_t *)shared)[i] = 0;
    iv_fence_async();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            iv_mbar_init(m.full + 8 * i, 1);
            iv_mbar_init(m.empty + 8 * i, IV_GRADIENT_CONSUMERS / 32 * S::PEERS);
        }
        iv_mbar_init(m.stagger, 4); /* the warps of the first warpgroup */
        iv_mbar_init_fence();
    }
    return m;
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    iv_gradient_kernel(const __grid_constant__ CUtensorMap dy, const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ iv_gradient_problem p) {
    extern __shared__ __align__(1024) char shared[];
    iv_gradient_shared m = iv_gradient_set_up<S>(shared);
    int peer = S::PEERS > 1 ? (int)iv_cluster_rank() : 0, first = blockIdx.x / S::PEERS, step = gridDim.x / S::PEERS;
    iv_dependency_release();
    if constexpr (S::PEERS > 1)
        iv_cluster_sync();
    else
        __syncthreads();
    if (threadIdx.x >= IV_GRADIENT_CONSUMERS) {
        iv_registers_give<S::GIVEN>();
        iv_dependency_wait();
        if (__shfl_sync(~0u, threadIdx.x / 32, 0) == IV_GRADIENT_CONSUMERS / 32)
            iv_gradient_produce<S>(&dy, &x, p, m, first, step, peer);
    } else {
        iv_registers_take<S::TAKEN>();
        iv_dependency_wait();
        iv_gradient_consume<S>(p, m, first, step, peer);
    }
    if constexpr (S::PEERS > 1) iv_cluster_sync(); /* no peer still copies into this CTA or arrives at its barriers */
}

#endif
