/* linear_wgmma.cuh: the kernel of linear layers on Hopper, launched by linear_wgmma_sm90a.cu. One producer fills a
 * ring of shared-memory stages by TMA; consumer warpgroups multiply the stages with wgmma. A tile is P rows on
 * wgmma's 64-row side times Q rows on the other side. P is weights in swapped tiles (few tokens) and tokens in wide
 * tiles.
 *
 * Law (NUMERICS.md, 3.3): a leaf is a chain from +0 in ascending k; leaves are added in a fixed tree. Leaves are
 * computed in order, four at a time, in three accumulators a, b, c: the fourth leaf uses a again, and b += a and c
 * += a are the nodes of level 1. With three accumulators a leaf can begin while the previous one drains. A node of
 * level 2 is spilled, to registers if there are enough and otherwise to shared memory. With split-K, each CTA of a
 * cluster computes a subtree, and the roots are reduced through distributed shared memory. The same may be done with
 * the tiles of the last round alone, if at most half of the CTAs have one (halves).
 *
 * A CTA of wide tiles processes tile after tile. Its consumers run the epilogue of a tile between the first blocks
 * of the next one, which are issued ahead. Two CTAs may multicast their weights to each other. A tile of 256 outputs
 * (one chain: experts) leaves no registers for the overlap; its second warpgroup is staggered by some blocks
 * instead, so that one multiplies while the other runs its epilogue.
 *
 * The main loop runs at tensor-core speed. The remaining time of a tile is its epilogue and its leaf ends; in long
 * runs their cost is energy per instruction (docs/HOPPER.md).
 *
 * Code must be short: other kernels run between two launches, and code that left the instruction cache must be
 * reloaded. So there is one copy of the leaves and one of the epilogue for all parts of a tile. The exception is the
 * overlapped SwiGLU epilogue, which is frequent (linear_wgmma_swiglu.cuh).
 *
 * All registers are in use. A spill to local memory is expensive because shared memory leaves hardly any L1: -Xptxas
 * -v must report 0 spills for wide shapes and no serialized wgmma.
 *
 * A leaf whose length is not a multiple of 64 is padded with zeros (a separate dimension in the tensor maps). A
 * step of zeros changes no accumulator. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_CUH

#include "kernels/cuda/linear_tile.cuh"
#include "kernels/cuda/linear_wgmma_swiglu.cuh"

/* ---- the consumers ------------------------------------------------------------------------------------------ */

/* Nodes outside registers: the pieces of neighboring threads are 16 bytes apart. */
template <int COUNT, int THREADS> IV_DEVICE void iv_wgmma_write_node(float4 *at, const float (&d)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++)
        at[j * THREADS] = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
}
template <int COUNT, int THREADS> IV_DEVICE void iv_wgmma_add_node(const float4 *at, float (&d)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        float4 v = iv_load_shared4(iv_shared(at) + j * THREADS * 16);
        d[4 * j] = __fadd_rn(v.x, d[4 * j]), d[4 * j + 1] = __fadd_rn(v.y, d[4 * j + 1]);
        d[4 * j + 2] = __fadd_rn(v.z, d[4 * j + 2]), d[4 * j + 3] = __fadd_rn(v.w, d[4 * j + 3]);
    }
}
template <int COUNT> IV_DEVICE void iv_wgmma_add(float (&d)[COUNT], const float (&left)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) d[i] = __fadd_rn(left[i], d[i]);
}

/* The largest divisor of n that is at most `most`: the batch size for n equal items. */
IV_DEVICE constexpr int iv_largest_part(int n, int most) {
    int part = n < most ? n : most;
    while (n % part) part--;
    return part;
}

/* Reduces the roots of the cluster's CTAs in the order of the tree; each CTA writes a slice of the outputs. */
template <class S, int SPLIT>
IV_DEVICE void iv_wgmma_reduce_roots(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, uint32_t ring, int rank) {
    constexpr int ITEMS = S::CONSUMERS * S::COUNT / 4, EACH = ITEMS / SPLIT;
    constexpr int MINE = EACH > S::CONSUMERS ? EACH / S::CONSUMERS : 1;
    constexpr int BATCH = iv_largest_part(MINE, (S::MOVED ? 16 : 10) / SPLIT);
    static_assert(EACH <= S::CONSUMERS || (EACH % S::CONSUMERS == 0 && MINE % BATCH == 0), "every item once");
    static_assert(EACH % 32 == 0, "warps stay whole: they turn activations together");
    if (EACH < S::CONSUMERS && threadIdx.x >= EACH) return;
#pragma unroll 1
    for (int i = 0; i < MINE; i += BATCH) {
        int item = rank * EACH + i * S::CONSUMERS + threadIdx.x, thread = item % S::CONSUMERS, j = item / S::CONSUMERS;
        float4 v[BATCH][SPLIT], sum[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int c = 0; c < SPLIT; c++)
                v[b][c] = iv_load_cluster4(iv_shared_of(ring + (item + b * S::CONSUMERS) * 16, c));
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
        iv_wgmma_epilogue_swapped<S, BATCH>(plan, t, row, token, sum);
    }
}

/* Of a swapped tile. Called inside the consumers' branch: after it, a thread has only the producer's registers. */
template <class S>
IV_DEVICE void iv_wgmma_reduce(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int at, int rank) {
    iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m, at);
    if constexpr (S::LEAVES <= 4 || S::DIVIDES)
        if (plan.split_k == 2 || iv_wgmma_is_half<S>(plan, at)) iv_wgmma_reduce_roots<S, 2>(plan, t, m.ring, rank);
    if constexpr (S::LEAVES <= 2)
        if (plan.split_k == 4) iv_wgmma_reduce_roots<S, 4>(plan, t, m.ring, rank);
    if constexpr (S::LEAVES == 1)
        if (plan.split_k == 8) iv_wgmma_reduce_roots<S, 8>(plan, t, m.ring, rank);
}

/* Issues the wgmmas of the next stage as one commit group. FIRST: the first block of a leaf. */
template <class S, bool FIRST>
IV_DEVICE void iv_wgmma_issue(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_ring &r,
                              float (&d)[S::COUNT]) {
    iv_mbar_wait(m.full + 8 * r.stage, r.phase);
    if constexpr (S::PACKED) iv_mbar_wait(m.wide + 8 * r.stage, r.phase);
    uint32_t stage = m.ring + r.stage * iv_wgmma_stage_bytes<S>(plan);
    uint64_t p = iv_wgmma_desc(stage + iv_wgmma_p_offset<S>(plan) + m.mine);
    uint64_t q = iv_wgmma_desc(stage + iv_wgmma_q_offset<S>(plan));
    iv_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++) iv_wgmma<S::TYPE>(d, p + 2 * s, q + 2 * s, s > 0 || !FIRST);
    iv_wgmma_commit();
}

/* Releases a stage for this warp, to every CTA that writes into it. */
template <class S> IV_DEVICE void iv_wgmma_release(const iv_wgmma_shared &m, int stage) {
    int lane = threadIdx.x % 32;
    if constexpr (S::PEERS == 1) {
        if (lane == 0) iv_mbar_arrive(m.empty + 8 * stage);
    } else {
        if (lane < S::PEERS) iv_mbar_release_cluster(iv_shared_of(m.empty + 8 * stage, (uint32_t)lane));
    }
}

/* A consumer's pipeline state. One block is issued ahead of the block that is awaited. */
struct iv_wgmma_pipeline {
    iv_wgmma_ring next; /* stage of the next block */
    int last;           /* stage of the last issued block, which is still in use */
    int block;          /* index of the next block in its leaf */
};

/* Issues the next block of a leaf. `last` becomes its stage; returns the stage of the previous block. */
template <class S, bool FIRST>
IV_DEVICE int iv_wgmma_issue_next(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                  float (&d)[S::COUNT]) {
    int before = f.last;
    iv_wgmma_issue<S, FIRST>(plan, m, f.next, d);
    f.last = f.next.stage, f.block = FIRST ? 1 : f.block + 1;
    f.next.next(plan.stages);
    return before;
}

/* Waits for all blocks but the last issued one, and releases the stage of the previous one. */
template <class S> IV_DEVICE void iv_wgmma_wait_release(const iv_wgmma_shared &m, int before) {
    iv_wgmma_wait<1>();
    iv_wgmma_release<S>(m, before);
}

/* The remaining blocks of a leaf; the last one stays in flight. */
template <class S>
IV_DEVICE void iv_wgmma_run_leaf(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                 float (&d)[S::COUNT]) {
    while (f.block < plan.blocks) iv_wgmma_wait_release<S>(m, iv_wgmma_issue_next<S, false>(plan, m, f, d));
}

/* Starts the next leaf, in d, while the previous one, in `done`, drains; `done` is then complete. */
template <class S>
IV_DEVICE void iv_wgmma_begin_leaf(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                   float (&d)[S::COUNT], float (&done)[S::COUNT]) {
    iv_wgmma_wait_release<S>(m, iv_wgmma_issue_next<S, true>(plan, m, f, d));
    iv_wgmma_hold(done);
}

/* Waits for all blocks. */
template <class S>
IV_DEVICE void iv_wgmma_drain(const iv_wgmma_shared &m, const iv_wgmma_pipeline &f, float (&done)[S::COUNT]) {
    iv_wgmma_wait<0>();
    iv_wgmma_hold(done);
    iv_wgmma_release<S>(m, f.last);
}

template <class S> struct iv_wgmma_nodes { /* accumulators and nodes, all in registers */
    float a[S::COUNT], b[S::COUNT], c[S::COUNT], spilled[S::KEEP2 ? S::COUNT : 1];
};

/* A thread's pieces of the node that is spilled to shared memory, in its warp's part of `scratch`. */
template <class S> IV_DEVICE float4 *iv_wgmma_spill_of(const iv_wgmma_shared &m) {
    return (float4 *)iv_wgmma_rows_of<S>(m, threadIdx.x) + threadIdx.x % 32;
}

/* Spills a node, to registers or to shared memory. */
template <class S>
IV_DEVICE void iv_wgmma_spill(const iv_wgmma_shared &m, iv_wgmma_nodes<S> &v, const float (&d)[S::COUNT]) {
    if constexpr (S::KEEP2) {
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) v.spilled[i] = d[i];
    } else {
        if constexpr (S::WIDE) iv_wgmma_wait_stores();
        iv_wgmma_write_node<S::COUNT, 32>(iv_wgmma_spill_of<S>(m), d);
    }
}
template <class S>
IV_DEVICE void iv_wgmma_add_spilled(const iv_wgmma_shared &m, const iv_wgmma_nodes<S> &v, float (&d)[S::COUNT]) {
    if constexpr (S::KEEP2)
        iv_wgmma_add(d, v.spilled);
    else
        iv_wgmma_add_node<S::COUNT, 32>(iv_wgmma_spill_of<S>(m), d);
}

/* Four leaves; the first block is in flight in a. Leaves their nodes of level 1 in b and c. With three accumulators
 * the tensor cores idle only after the fourth leaf. */
template <class S>
IV_DEVICE void iv_wgmma_four_leaves(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                    iv_wgmma_nodes<S> &v) {
    iv_wgmma_run_leaf<S>(plan, m, f, v.a);
    iv_wgmma_begin_leaf<S>(plan, m, f, v.b, v.a);
    iv_wgmma_run_leaf<S>(plan, m, f, v.b);
    iv_wgmma_begin_leaf<S>(plan, m, f, v.c, v.b);
    iv_wgmma_add(v.b, v.a);
    iv_wgmma_run_leaf<S>(plan, m, f, v.c);
    iv_wgmma_begin_leaf<S>(plan, m, f, v.a, v.c);
    iv_wgmma_run_leaf<S>(plan, m, f, v.a);
    iv_wgmma_drain<S>(m, f, v.a);
    iv_wgmma_add(v.c, v.a);
}

/* Two leaves, half of a tile of four; the first block is in flight in a. Their node is then in c. */
template <class S>
IV_DEVICE void iv_wgmma_two_leaves(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                   iv_wgmma_nodes<S> &v) {
    iv_wgmma_run_leaf<S>(plan, m, f, v.a);
    iv_wgmma_begin_leaf<S>(plan, m, f, v.c, v.a);
    iv_wgmma_run_leaf<S>(plan, m, f, v.c);
    iv_wgmma_drain<S>(m, f, v.c);
    iv_wgmma_add(v.c, v.a);
}

/* Half of a tile; the first block is in flight in a. Its root is then in c. */
template <class S>
IV_DEVICE void iv_wgmma_half(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                             iv_wgmma_nodes<S> &v) {
    if constexpr (S::LEAVES == 4) {
        iv_wgmma_two_leaves<S>(plan, m, f, v);
    } else {
        iv_wgmma_four_leaves<S>(plan, m, f, v);
        iv_wgmma_add(v.c, v.b);
    }
}

/* The CTA's leaves of one tile; the first block is in flight in a. iv_wgmma_finish makes the remaining additions; a
 * is free. */
template <class S>
IV_DEVICE void iv_wgmma_subtree(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                iv_wgmma_nodes<S> &v) {
    if constexpr (S::LEAVES == 1) {
        iv_wgmma_run_leaf<S>(plan, m, f, v.a);
        iv_wgmma_drain<S>(m, f, v.a);
    } else if constexpr (S::LEAVES == 2) {
        iv_wgmma_run_leaf<S>(plan, m, f, v.a);
        iv_wgmma_begin_leaf<S>(plan, m, f, v.b, v.a);
        iv_wgmma_run_leaf<S>(plan, m, f, v.b);
        iv_wgmma_drain<S>(m, f, v.b);
        iv_wgmma_add(v.b, v.a);
    } else {
#pragma unroll 1
        for (int half = 0;; half++) {
            iv_wgmma_four_leaves<S>(plan, m, f, v);
            if (4 * (half + 1) == S::LEAVES) break;
            iv_wgmma_issue_next<S, true>(plan, m, f, v.a);
            iv_wgmma_add(v.c, v.b);
            iv_wgmma_spill<S>(m, v, v.c);
        }
    }
}

/* Completes the root: in c, or in b for two leaves, or in a for one. */
template <class S> IV_DEVICE void iv_wgmma_finish(const iv_wgmma_shared &m, iv_wgmma_nodes<S> &v) {
    if constexpr (S::LEAVES >= 4) iv_wgmma_add(v.c, v.b);
    if constexpr (S::LEAVES == 8) iv_wgmma_add_spilled<S>(m, v, v.c);
}

/* The epilogue of a wide tile, chunks `first` to `last` - 1, with no block in flight. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_chunks(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int index, int first,
                                        int last, const float (&root)[S::COUNT]) {
    iv_wgmma_output s = iv_wgmma_output_of<S>(plan, m.tiles[index % IV_TILES]);
    iv_wgmma_wait_stores();
#pragma unroll 1
    for (; first < last; first += IV_PART) iv_wgmma_epilogue_part<S>(plan, m, index, s, first, root);
}

/* Publishes the root of half a tile in the ring. */
template <class S> IV_DEVICE void iv_wgmma_publish(const iv_wgmma_shared &m, const float (&root)[S::COUNT]) {
    iv_named_sync(1, S::CONSUMERS); /* then the ring is free */
    iv_wgmma_write_node<S::COUNT, S::CONSUMERS>(m.root + threadIdx.x, root);
}

/* The end of a divided wide tile: the two roots are added, and each CTA writes half of the outputs. */
template <class S>
IV_DEVICE void iv_wgmma_join_wide(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int index, int rank,
                                  float (&root)[S::COUNT]) {
    constexpr int CHUNKS = S::COUNT / 4, CUT = (CHUNKS / IV_PART + 1) / 2 * IV_PART;
    iv_wgmma_publish<S>(m, root);
    iv_cluster_sync();
    uint32_t theirs = iv_shared_of(m.ring + threadIdx.x * 16, (uint32_t)rank ^ 1);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (rank == half) {
#pragma unroll
            for (int j = half ? CUT : 0; j < (half ? CHUNKS : CUT); j++) {
                float4 v = iv_load_cluster4(theirs + j * S::CONSUMERS * 16);
                root[4 * j] = __fadd_rn(root[4 * j], v.x), root[4 * j + 1] = __fadd_rn(root[4 * j + 1], v.y);
                root[4 * j + 2] = __fadd_rn(root[4 * j + 2], v.z), root[4 * j + 3] = __fadd_rn(root[4 * j + 3], v.w);
            }
        }
    iv_wgmma_epilogue_chunks<S>(plan, m, index, rank ? CUT : 0, rank ? CHUNKS : CUT, root);
}

/* The same while the next tile runs in `next`: a block of it is issued before each part, and its entries are loaded
 * in between. */
template <class S>
IV_DEVICE void iv_wgmma_values_overlapped(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                          int index, float (&next)[S::COUNT], const float (&root)[S::COUNT],
                                          iv_wgmma_entry &e) {
    iv_wgmma_output s = iv_wgmma_output_of<S>(plan, m.tiles[index % IV_TILES]);
#pragma unroll 1
    for (int first = 0; first < S::COUNT / 4; first += IV_PART) {
        int before = iv_wgmma_issue_next<S, false>(plan, m, f, next);
        if (S::SCATTERED && first == IV_PART) iv_wgmma_load_weight(plan, e);
        iv_wgmma_epilogue_values<S>(plan, m, s, first, root);
        iv_wgmma_wait_release<S>(m, before);
    }
}

/* SwiGLU: unrolled over the parts, because these tiles are the most frequent. */
template <class S>
IV_DEVICE void iv_wgmma_activations_overlapped(const iv_wgmma_plan &plan, const iv_wgmma_shared &m,
                                               iv_wgmma_pipeline &f, int index, float (&next)[S::COUNT],
                                               const float (&root)[S::COUNT]) {
    iv_wgmma_tile t = m.tiles[index % IV_TILES];
#pragma unroll
    for (int first = 0; first < S::COUNT / 4; first += IV_PART) {
        int before = iv_wgmma_issue_next<S, false>(plan, m, f, next);
        iv_wgmma_put_activations<S>(plan, m, t, first, root);
        iv_wgmma_wait_release<S>(m, before);
    }
    iv_wgmma_store_activations<S>(plan, m, t);
}

template <class S>
IV_DEVICE void iv_wgmma_epilogue_overlapped(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                            int index, iv_wgmma_nodes<S> &v, float (&next)[S::COUNT],
                                            const float (&root)[S::COUNT]) {
    int before = iv_wgmma_issue_next<S, false>(plan, m, f, next);
    iv_wgmma_finish<S>(m, v);
    iv_wgmma_wait_stores();
    const iv_wgmma_tile &after = m.tiles[(index + 1) % IV_TILES];
    iv_wgmma_entry e = {-1, 0.0f};
    iv_wgmma_prefetch_addend<S>(plan, after);
    if constexpr (S::SCATTERED) iv_wgmma_load_slot(plan, after, e);
    iv_wgmma_wait_release<S>(m, before);
    if (plan.epilogue == IV_GPU_SWIGLU)
        iv_wgmma_activations_overlapped<S>(plan, m, f, index, next, root);
    else
        iv_wgmma_values_overlapped<S>(plan, m, f, index, next, root, e);
    if constexpr (S::SCATTERED) iv_wgmma_store_entry(plan, m, e);
}

/* For tiles whose epilogue does not overlap: loads the tile's entries while its first blocks run. The two dependent
 * loads are two blocks apart. */
template <class S>
IV_DEVICE void iv_wgmma_load_entries(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                     int index, float (&d)[S::COUNT]) {
    if (!S::SCATTERED || !plan.weighted) return;
    iv_wgmma_entry e;
    iv_wgmma_load_slot(plan, m.tiles[index % IV_TILES], e);
    if (f.block < plan.blocks) iv_wgmma_wait_release<S>(m, iv_wgmma_issue_next<S, false>(plan, m, f, d));
    iv_wgmma_load_weight(plan, e);
    if (f.block < plan.blocks) iv_wgmma_wait_release<S>(m, iv_wgmma_issue_next<S, false>(plan, m, f, d));
    iv_wgmma_store_entry(plan, m, e);
}

/* The epilogue of a swapped tile, by its own consumers, which no longer need the root. The root moves through the
 * registers so that one loop, which fits the instruction cache, handles all outputs; without that a short launch
 * spends a fifth of its time on instruction fetches. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_tile(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, float (&root)[S::COUNT]) {
    constexpr int BATCH = iv_largest_part(S::COUNT / 4, 7);
    int row = t.p + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, token = t.q + threadIdx.x % 4 * 2;
#pragma unroll 1
    for (int j = 0; j < S::COUNT / 4 && t.q + 8 * j < t.rows; j += BATCH) {
        float4 part[BATCH];
#pragma unroll
        for (int c = 0; c < BATCH; c++)
            part[c] = make_float4(root[4 * c], root[4 * c + 1], root[4 * c + 2], root[4 * c + 3]);
        iv_wgmma_epilogue_swapped<S, BATCH>(plan, t, row, token + 8 * j, part);
#pragma unroll
        for (int i = 0; i + 4 * BATCH < S::COUNT; i++) root[i] = root[i + 4 * BATCH];
    }
}

/* Moves the root of a single leaf to the registers that hold it otherwise. */
template <class S> IV_DEVICE void iv_wgmma_root_of_one(iv_wgmma_nodes<S> &v) {
    if constexpr (S::LEAVES == 1) {
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) v.c[i] = v.a[i];
        iv_wgmma_hold(v.c);
    }
}

/* Tile after tile. With enough blocks in a leaf, the epilogue of a tile overlaps with the next tile. */
template <class S>
IV_DEVICE void iv_wgmma_consume_wide(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles, bool halved,
                                     int rank) {
    iv_wgmma_nodes<S> v;
    iv_wgmma_pipeline f = {{0, 0}, 0, 0};
    bool overlaps = plan.blocks >= S::COUNT / 4 / IV_PART + 2 && iv_wgmma_can_overlap<S>(plan);
    float(&root)[S::COUNT] = S::LEAVES == 2 ? v.b : v.c;
    if (tiles == 0) return;
    if (threadIdx.x >= 128 && overlaps) iv_mbar_wait(m.full + 8, 0); /* staggers the warpgroups */
    iv_wgmma_issue_next<S, true>(plan, m, f, v.a);
    iv_wgmma_load_entries<S>(plan, m, f, 0, v.a);
#pragma unroll 1
    for (int at = 0;; at++) {
        if constexpr (S::DIVIDES)
            if (halved && at + 1 == tiles) {
                iv_wgmma_half<S>(plan, m, f, v);
                iv_wgmma_join_wide<S>(plan, m, at, rank, v.c);
                break;
            }
        iv_wgmma_subtree<S>(plan, m, f, v);
        iv_wgmma_root_of_one<S>(v);
        if (overlaps && at + 1 < tiles) {
            iv_wgmma_issue_next<S, true>(plan, m, f, v.a);
            iv_wgmma_epilogue_overlapped<S>(plan, m, f, at, v, v.a, root);
            continue;
        }
        iv_wgmma_finish<S>(m, v);
        iv_wgmma_epilogue_chunks<S>(plan, m, at, 0, S::COUNT / 4, root);
        if (at + 1 == tiles) break;
        iv_wgmma_issue_next<S, true>(plan, m, f, v.a);
        iv_wgmma_load_entries<S>(plan, m, f, at + 1, v.a);
    }
    iv_bulk_wait();
}

/* ---- wide tiles with a single accumulator ------------------------------------------------------------------------ */

/* The first tile: the second warpgroup starts some blocks after the first, so that one multiplies while the other
 * runs its epilogue. */
template <class S>
IV_DEVICE void iv_wgmma_stagger(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, iv_wgmma_pipeline &f,
                                float (&a)[S::COUNT]) {
    if (threadIdx.x >= 128) iv_mbar_wait(m.stagger, 0);
    iv_wgmma_issue_next<S, true>(plan, m, f, a);
    if (threadIdx.x >= 128) return;
    while (f.block < plan.blocks && f.block < plan.stages / 2)
        iv_wgmma_wait_release<S>(m, iv_wgmma_issue_next<S, false>(plan, m, f, a));
    if (threadIdx.x % 32 == 0) iv_mbar_arrive(m.stagger);
}

/* Tile after tile in a single accumulator. */
template <class S>
IV_DEVICE void iv_wgmma_consume_single(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles) {
    iv_wgmma_nodes<S> v;
    iv_wgmma_pipeline f = {{0, 0}, 0, 0};
    for (int at = 0; at < tiles; at++) {
        if (at == 0)
            iv_wgmma_stagger<S>(plan, m, f, v.a);
        else
            iv_wgmma_issue_next<S, true>(plan, m, f, v.a);
        iv_wgmma_load_entries<S>(plan, m, f, at, v.a);
        iv_wgmma_subtree<S>(plan, m, f, v);
        iv_wgmma_epilogue_chunks<S>(plan, m, at, 0, S::COUNT / 4, v.a);
    }
}

/* ---- swapped tiles -------------------------------------------------------------------------------------------- */

template <class S>
IV_DEVICE void iv_wgmma_consume(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles, int first, int step) {
    iv_wgmma_nodes<S> v;
    float(&root)[S::COUNT] = S::LEAVES == 1 ? v.a : S::LEAVES == 2 ? v.b : v.c;
    iv_wgmma_pipeline f = {{0, 0}, 0, 0};
    for (int at = first; at < tiles; at += step) {
        iv_wgmma_issue_next<S, true>(plan, m, f, v.a);
        if constexpr (S::DIVIDES)
            if (iv_wgmma_is_half<S>(plan, at)) { /* the last piece */
                iv_wgmma_half<S>(plan, m, f, v);
                return iv_wgmma_publish<S>(m, v.c);
            }
        iv_wgmma_subtree<S>(plan, m, f, v);
        iv_wgmma_finish<S>(m, v);
        if (plan.split_k > 1) return iv_wgmma_publish<S>(m, root); /* a single tile */
        iv_wgmma_epilogue_tile<S>(plan, iv_wgmma_tile_at<S>(plan, m, at), root);
    }
}

/* ---- packed weights ------------------------------------------------------------------------------------------- */

/* A widener's work: of the 16 rows in all stages every WIDENERS-th. Other warps widen while one waits. */
template <class S> struct iv_wgmma_widen {
    template <class U>
    IV_DEVICE void run(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int widener, int stages) {
        iv_wgmma_ring r = {0, 0};
        for (int item = widener; stages > 0; stages--, item -= S::ITEMS, r.next(plan.stages)) {
            uint32_t stage = m.ring + r.stage * plan.stage;
            iv_mbar_wait(m.full + 8 * r.stage, r.phase); /* of each stage: a barrier knows only parity */
#pragma unroll 1
            for (; item < S::ITEMS; item += S::WIDENERS) {
                uint32_t unit = stage + item * 2 * plan.units.bytes, a[4][4];
                iv_unit_lane codes;
                iv_load_unit<U>(codes, unit, unit + plan.units.bytes);
                iv_widen_unit<U>(a, codes, unit, unit + plan.units.bytes, plan.units);
                iv_unit_store(stage + iv_wgmma_p_offset<S>(plan) + item * 16 * IV_ROW_BYTES, a);
                iv_fence_async();
                __syncwarp();
                if (threadIdx.x % 32 == 0) iv_mbar_arrive(m.wide + 8 * r.stage);
            }
        }
    }
};

/* Lays out shared memory and initializes the barriers. */
template <class S> IV_DEVICE iv_wgmma_shared iv_wgmma_set_up(const iv_wgmma_plan &plan, char *shared) {
    int stages = plan.stages * iv_wgmma_stage_bytes<S>(plan);
    char *bars = shared + stages + S::SCRATCH;
    iv_wgmma_shared m;
    m.ring = iv_shared(shared), m.root = (float4 *)shared, m.scratch = (float4 *)(shared + stages);
    m.mine = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64 * IV_ROW_BYTES;
    m.full = iv_shared(bars), m.empty = m.full + 8 * plan.stages;
    m.stagger = m.empty + 8 * plan.stages, m.wide = m.stagger + 16;
    char *rows = bars + (S::PACKED ? 24 : 16) * plan.stages + 16;
    m.rows = (int *)rows, m.entries = (iv_wgmma_entry *)rows, m.tiles = (iv_wgmma_tile *)(rows + S::ROWS_BYTES);
    m.prefix = (int *)(m.tiles + IV_TILES);
    if (threadIdx.x == 0) {
        for (int s = 0; s < plan.stages; s++) {
            iv_mbar_init(m.full + 8 * s, plan.gathered ? 2 : 1);
            iv_mbar_init(m.empty + 8 * s, S::CONSUMERS / 32 * S::PEERS);
            if constexpr (S::PACKED) iv_mbar_init(m.wide + 8 * s, S::ITEMS);
        }
        iv_mbar_init(m.stagger, 4);
        iv_mbar_init_fence();
    }
    return m;
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::CTAS)
    iv_wgmma_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap tokens,
                    const __grid_constant__ iv_wgmma_plan plan) {
    extern __shared__ __align__(1024) char shared[];
    iv_wgmma_shared m = iv_wgmma_set_up<S>(plan, shared);
    int ctas = S::PEERS * plan.split_k, rank = ctas > 1 ? (int)iv_cluster_rank() : 0, tiles = plan.tiles;
    int first = blockIdx.x / ctas, step = gridDim.x / ctas, first_leaf = S::PEERS > 1 ? 0 : rank * S::LEAVES;
    if (S::DIVIDES && plan.whole < tiles) tiles += tiles - plan.whole, rank = first & 1; /* pieces */
    m.peer = S::PEERS > 1 ? rank : 0;
    iv_dependency_release();
    if (!S::DENSE && plan.groups.count) {
        iv_dependency_wait();
        if (threadIdx.x < 32) iv_wgmma_count_tiles<S>(plan, (int *)m.prefix);
    }
    if (ctas > 1)
        iv_cluster_sync();
    else
        __syncthreads();
    if (!S::DENSE && plan.groups.count) tiles = m.prefix[plan.groups.count];
    int mine = first < tiles ? (tiles - first + step - 1) / step : 0, last = first + (mine - 1) * step;
    bool halved = S::DIVIDES && mine > 0 && iv_wgmma_is_half<S>(plan, last);
    bool joins = S::PEERS == 1 && (plan.split_k > 1 || halved); /* the other CTAs of the cluster */
    if (threadIdx.x >= S::CONSUMERS) {
        if constexpr (S::MOVED) iv_registers_give<S::GIVEN>();
        int other = __shfl_sync(~0u, threadIdx.x / 32, 0) - S::CONSUMERS / 32;
        if (other > 0) {
            if constexpr (S::PACKED)
                iv_unit_choose<iv_wgmma_widen<S>, S::TYPE>(plan.units, plan, m, other - 1,
                                                           mine * S::LEAVES * plan.blocks);
            iv_dependency_wait();
        } else if (!S::DENSE && plan.gathered) {
            iv_wgmma_produce_gathered<S>(&weights, plan, m, tiles, first, step);
        } else if (iv_elect()) {
            iv_wgmma_produce<S>(&weights, &tokens, plan, m, tiles, first, step, first_leaf);
        }
        __syncwarp();
        if (joins) iv_cluster_sync();
    } else {
        if constexpr (S::MOVED) iv_registers_take<S::TAKEN>();
        iv_dependency_wait();
        if constexpr (S::SINGLE_ACC)
            iv_wgmma_consume_single<S>(plan, m, mine);
        else if constexpr (S::WIDE)
            iv_wgmma_consume_wide<S>(plan, m, mine, halved, rank);
        else
            iv_wgmma_consume<S>(plan, m, tiles, first, step);
        if (S::SWAP && joins) {
            iv_cluster_sync(); /* all roots are written */
            iv_wgmma_reduce<S>(plan, m, last, rank);
        }
    }
    if constexpr (S::PEERS > 1)
        iv_cluster_sync(); /* no peer still copies into this CTA or arrives at its barriers */
    else if (joins)
        iv_cluster_leave(); /* no peer still reads from it */
}

template <class S> static iv_wgmma_instance iv_wgmma_instance_of(void) {
    return {S::WEIGHTS,    S::TOKENS,  S::LEAVES,
            S::PEERS,      S::WIDE,    iv_wgmma_kernel<S>,
            S::STAGE,      S::THREADS, S::SCRATCH + 16 + S::ROWS_BYTES + IV_TILES * (int)sizeof(iv_wgmma_tile),
            S::NODE_BYTES, S::CTAS,    S::DENSE,
            S::FUSES,      S::DIVIDES, S::PACKED};
}

template <iv_dtype TYPE, int GROUPS, int QN, bool WIDE, int LEAVES, int PEERS = 1, bool FUSES = false,
          bool PACKED = false>
static iv_wgmma_instance iv_wgmma_make(void) {
    return iv_wgmma_instance_of<iv_wgmma_shape<TYPE, GROUPS, QN, LEAVES, WIDE, PEERS, FUSES, PACKED>>();
}
#define IV_WGMMA_ALL_LEAVES(...)                                                                       \
    iv_wgmma_make<__VA_ARGS__, 1>(), iv_wgmma_make<__VA_ARGS__, 2>(), iv_wgmma_make<__VA_ARGS__, 4>(), \
        iv_wgmma_make<__VA_ARGS__, 8>()

#endif
