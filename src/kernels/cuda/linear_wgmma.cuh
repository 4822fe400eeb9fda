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
 * A leaf that is no multiple of 64 long ends in zeros (its own dimension of the tensor maps): a step of zeros changes
 * no accumulator. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_CUH

#include "kernels/cuda/linear_wgmma_emit.cuh"

/* ---- the consumers ------------------------------------------------------------------------------------------ */

/* Places of waiting nodes outside of registers: each thread has its own, 16 bytes beside its neighbour's. */
template <int COUNT, int THREADS> IV_DEVICE void iv_wgmma_park(float4 *place, const float (&d)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++)
        place[j * THREADS] = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
}
template <int COUNT, int THREADS> IV_DEVICE void iv_wgmma_join_parked(const float4 *place, float (&d)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        float4 v = place[j * THREADS];
        d[4 * j] = __fadd_rn(v.x, d[4 * j]), d[4 * j + 1] = __fadd_rn(v.y, d[4 * j + 1]);
        d[4 * j + 2] = __fadd_rn(v.z, d[4 * j + 2]), d[4 * j + 3] = __fadd_rn(v.w, d[4 * j + 3]);
    }
}
template <int COUNT> IV_DEVICE void iv_wgmma_add(float (&d)[COUNT], const float (&left)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) d[i] = __fadd_rn(left[i], d[i]);
}

/* The roots of the cluster's CTAs, joined in the order of the tree; each CTA makes its share of the outputs. */
template <class S, int SPLIT>
IV_DEVICE void iv_wgmma_join_roots(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, uint32_t ring, int rank) {
    constexpr int ITEMS = S::CONSUMERS * S::COUNT / 4, EACH = ITEMS / SPLIT;
    constexpr int MINE = EACH > S::CONSUMERS ? EACH / S::CONSUMERS : 1, BATCH = MINE * SPLIT < 8 ? MINE : 8 / SPLIT;
    if (EACH < S::CONSUMERS && threadIdx.x >= EACH) return;
#pragma unroll 1
    for (int i = 0; i < MINE; i += BATCH) {
        int item = rank / S::QMATES * EACH + i * S::CONSUMERS + threadIdx.x, thread = item % S::CONSUMERS,
            j = item / S::CONSUMERS;
        float4 v[BATCH][SPLIT], sum[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int c = 0; c < SPLIT; c++)
                v[b][c] = iv_load_cluster4(
                    iv_shared_of(ring + (item + b * S::CONSUMERS) * 16, c * S::QMATES + rank % S::QMATES));
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
IV_DEVICE void iv_wgmma_issue(const iv_wgmma_shared &m, const iv_wgmma_ring &r, float (&d)[S::COUNT]) {
    iv_mbar_wait(m.full + 8 * r.stage, r.phase);
    uint32_t stage = m.ring + r.stage * S::STAGE;
    uint64_t p = iv_wgmma_desc(stage + threadIdx.x / 128 * 64 * IV_ROW_BYTES), q = iv_wgmma_desc(stage + S::P_BYTES);
    iv_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++) iv_wgmma<S::TYPE>(d, p + 2 * s, q + 2 * s, s > 0 || !FIRST);
    iv_wgmma_commit();
}

/* This warp has done with a stage: all that write into it are told. */
template <class S> IV_DEVICE void iv_wgmma_release(const iv_wgmma_shared &m, int stage) {
    int lane = threadIdx.x % 32;
    if constexpr (S::MATES == 1) {
        if (lane == 0) iv_mbar_arrive(m.empty + 8 * stage);
    } else {
        if (lane < S::MATES) iv_mbar_release_cluster(iv_shared_of(m.empty + 8 * stage, m.mate));
    }
}

/* The rest of a leaf; the block before is in flight, and the last one stays so. */
template <class S>
IV_DEVICE void iv_wgmma_leaf(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r, int &last,
                             float (&d)[S::COUNT]) {
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
IV_DEVICE int iv_wgmma_start(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
                             iv_wgmma_nodes<S> &v) {
    int stage = r.stage;
    iv_wgmma_issue<S, true>(m, r, S::LEAVES == 1 ? v.b : v.a);
    r.next(plan.stages);
    return stage;
}

/* The rest of a pair of leaves (or of the only one): their sum in `sum`. */
template <class S>
IV_DEVICE void iv_wgmma_pair(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
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
 * iv_wgmma_finish. While a pair begins, the node of the one before goes up. `phase` of the tile's turn to use `park`.
 */
template <class S>
IV_DEVICE void iv_wgmma_subtree(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_ring &r,
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
template <class S> IV_DEVICE void iv_wgmma_finish(const iv_wgmma_shared &m, iv_wgmma_nodes<S> &v) {
    if constexpr (S::LEAVES >= 4) iv_wgmma_add(v.c, v.b);
    if constexpr (S::LEAVES == 8) {
        if constexpr (S::KEEP2)
            iv_wgmma_add(v.c, v.two);
        else
            iv_wgmma_join_parked<S::COUNT, S::CONSUMERS>(m.park + threadIdx.x, v.c);
    }
}

/* ... which is given to the emitters. */
template <class S> IV_DEVICE void iv_wgmma_hand_over(const iv_wgmma_shared &m, iv_wgmma_nodes<S> &v, int phase) {
    int w = threadIdx.x / 128;
    iv_wgmma_finish<S>(m, v);
    if constexpr (S::LEAVES < 8) iv_mbar_wait(m.taken + 8 * w, phase ^ 1);
    iv_wgmma_park<S::COUNT, S::CONSUMERS>(m.park + threadIdx.x, S::LEAVES < 4 ? v.b : v.c);
    __syncwarp();
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(m.ready + 8 * w);
}

/* A swapped tile, by its own consumers. */
template <class S>
IV_DEVICE void iv_wgmma_emit_tile(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, const float (&root)[S::COUNT]) {
    constexpr int BATCH = S::COUNT / 4 < 4 ? S::COUNT / 4 : 4;
    int row = t.p + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < S::COUNT / 4; j += BATCH) {
        float4 part[BATCH];
#pragma unroll
        for (int c = 0; c < BATCH; c++)
            part[c] =
                make_float4(root[4 * (j + c)], root[4 * (j + c) + 1], root[4 * (j + c) + 2], root[4 * (j + c) + 3]);
        iv_wgmma_emit_swapped<S, BATCH>(plan, t, row, t.q + 8 * j + threadIdx.x % 4 * 2, part);
    }
}

template <class S>
IV_DEVICE void iv_wgmma_consume(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles, int first, int step,
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
template <class S> IV_DEVICE uint32_t iv_wgmma_mate(int rank) {
    int lane = threadIdx.x % 32, p = rank / S::QMATES, q = rank % S::QMATES, other = lane - S::QMATES;
    if (lane < S::QMATES) return (uint32_t)(p * S::QMATES + lane);
    return (uint32_t)((other < p ? other : other + 1) * S::QMATES + q);
}

/* Sets up shared memory's parts and barriers. */
template <class S> IV_DEVICE iv_wgmma_shared iv_wgmma_begin(const iv_wgmma_plan &plan, char *shared, bool gathered) {
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
    return {S::WEIGHTS,
            S::TOKENS,
            S::LEAVES,
            S::QMATES,
            S::PMATES,
            S::WIDE,
            iv_wgmma_kernel<S>,
            S::STAGE,
            S::THREADS,
            S::PARK + 8 * S::BARS + 4 * S::TOKENS,
            S::EMITTERS / 32 * IV_ASKED * IV_PART_BYTES,
            S::NODE_BYTES,
            S::CTAS};
}

template <iv_dtype TYPE, int GROUPS, int QN, bool WIDE, int QMATES, int PMATES, int LEAVES>
static iv_wgmma_instance iv_wgmma_make(void) {
    return iv_wgmma_instance_of<iv_wgmma_shape<TYPE, GROUPS, QN, LEAVES, WIDE, QMATES, PMATES>>();
}
#define IV_WGMMA_ALL_LEAVES(...)                                                                       \
    iv_wgmma_make<__VA_ARGS__, 1>(), iv_wgmma_make<__VA_ARGS__, 2>(), iv_wgmma_make<__VA_ARGS__, 4>(), \
        iv_wgmma_make<__VA_ARGS__, 8>()

#endif
