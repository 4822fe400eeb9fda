/* attention_backward_keys_sm90a.cu: dK and dV. A CTA has two blocks of 64 keys of a KV head, one for each consumer
 * warpgroup, and meets the group's query heads in order, of each the blocks of queries that see the keys in order,
 * which a producer thread loads. A warpgroup computes scores and dP transposed, keys by queries, so that the rounded
 * weights and score gradients are operands in registers, as they are. While one warpgroup weighs, the other
 * multiplies. */
#include "kernels/cuda/attention_backward_hopper.cuh"

template <int DIM> IV_DEVICE void produce(const iv_backward_params &p, const backward_maps &maps, const buffers &b) {
    typedef sizes<DIM> z;
    ring<z::STAGES> r = {0, 0};
    iv_backward_work w;
    int kv_head;
    for (uint32_t n = 0; next_item(p, 0, b, n, &w, &kv_head); n++) {
        int blocks = (w.rows + BLOCK - 1) / BLOCK, first = 2 * w.unit, end = min(first + 2, blocks);
        uint32_t bar = iv_shared(&b.s->own_full);
        iv_mbar_expect(bar, (end - first) * 2 * z::TILE);
        for (int j = first; j < end; j++)
            load_page<DIM>(p, b.own + (j - first) * 2 * z::TILE, &maps.pages, bar, w.table + j, kv_head);
        int last = iv_backward_last_block(end - 1, blocks, p.window);
        for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; head++)
            for (int i = first; i <= last; i++, r.next()) {
                uint32_t full = iv_shared(&b.s->full[r.at]), to = b.stage + r.at * z::STAGE;
                int row = w.first_row + i * BLOCK;
                iv_mbar_wait_idle(iv_shared(&b.s->empty[r.at]), r.phase ^ 1);
                iv_mbar_expect(full, z::STAGE);
                load_rows<DIM>(to, &maps.q, full, head, row);
                load_rows<DIM>(to + z::TILE, &maps.dout, full, head, row);
            }
    }
}

/* By another thread, which then needs few registers: the statistics of each stage's queries. */
template <int DIM> IV_DEVICE void produce_stats(const iv_backward_params &p, const buffers &b) {
    ring<sizes<DIM>::STAGES> r = {0, 0};
    for (uint32_t n = 0;; n++) {
        iv_mbar_wait_idle(iv_shared(&b.s->own_full), n & 1);
        item it = b.s->now;
        if (it.rows == 0) return;
        iv_mbar_arrive(iv_shared(&b.s->own_empty));
        int blocks = (it.rows + BLOCK - 1) / BLOCK, first = 2 * it.unit;
        int last = iv_backward_last_block(min(first + 1, blocks - 1), blocks, p.window);
        for (int head = it.kv_head * p.group; head < (it.kv_head + 1) * p.group; head++)
            for (int i = first; i <= last; i++, r.next()) {
                uint32_t full = iv_shared(&b.s->full[r.at]);
                iv_mbar_wait_idle(iv_shared(&b.s->empty[r.at]), r.phase ^ 1);
                iv_mbar_expect(full, STATS_BYTES);
                load_stats(p, b.stats + r.at * STATS_BYTES, full, head, it.first_row + i * BLOCK);
            }
    }
}

/* KEEPS: score gradients go to tiles. */
template <int DIM, iv_dtype TYPE, bool KEEPS> struct keys_consumer {
    typedef sizes<DIM> z;
    const iv_backward_params &p;
    buffers b;
    int group;
    ring<z::STAGES> r;
    float dk[DIM / 2], dv[DIM / 2], score[32], dp[32];
    uint32_t weights[4][4], gradients[4][4], at; /* the tile of the score gradients */

    /* Positions of a thread: of its two keys in a block, and of the first of its queries. */
    __device__ __forceinline__ int key_in_block(int h) {
        int thread = iv_thread_here();
        return thread % 128 / 32 * 16 + thread % 32 / 4 + 8 * h;
    }
    __device__ __forceinline__ int query_in_block(void) { return iv_thread_here() % 4 * 2; }

    /* to = A B^T of two tiles. */
    __device__ __forceinline__ void issue_product(float (&to)[32], uint32_t own, uint32_t other) {
        asm volatile("" : "+r"(own), "+r"(other)); /* descriptors are made here, not kept */
        iv_wgmma_fence();
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) iv_wgmma<TYPE>(to, by_rows(own, k), by_rows(other, k), k > 0);
        iv_wgmma_commit();
    }

    /* The queries of the block that see a key: [low, high], counted from the thread's first. */
    __device__ __forceinline__ void range_of(int key, int query_block, int rows, int *low, int *high) {
        int64_t last = p.window > 0 ? key + p.window - 1 : rows - 1;
        int first = query_block * BLOCK + query_in_block();
        *low = key - first;
        *high = (last < rows - 1 ? (int)last : rows - 1) - first;
    }

    __device__ __forceinline__ void release_previous(void) { release(&b.s->empty[r.at ? r.at - 1 : z::STAGES - 1]); }
    __device__ __forceinline__ void finish_previous(void) {
        iv_wgmma_wait<0>();
        release_previous();
    }

    /* Rounds once more, in the other order: the compiler would copy registers that are an operand and stored too, and
     * has none left. */
    __device__ __forceinline__ void keep_tile(void) {
        int thread = iv_thread_here() % 128;
        uint32_t *to = (uint32_t *)(p.tiles + (size_t)at * IV_TILE_BYTES) + thread / 32 * 512 + thread % 32;
#pragma unroll
        for (int i = 0; i < 16; i++) to[32 * i] = iv_pack16(TYPE, dp[2 * i + 1], dp[2 * i]);
    }

    /* Blocks `own` of keys and `i` of queries of a sequence of `rows`. The last product is still on its way at the end.
     * `pending`: it is so of the previous step, whose stage is given back here. */
    template <bool MASKED> __device__ __forceinline__ void step(int own, int i, int rows, bool pending) {
        uint32_t tile = b.own + group * 2 * z::TILE, other = b.stage + r.at * z::STAGE;
        const float2 *stats = (const float2 *)(b.stats_here + r.at * (STATS_BYTES / 4) + query_in_block());
        int low[2] = {0, 0}, high[2] = {0, 0};
        if (MASKED)
            for (int h = 0; h < 2; h++) range_of(own * BLOCK + key_in_block(h), i, rows, &low[h], &high[h]);
        issue_product(score, tile, other);
        iv_wgmma_wait<1>(); /* the previous step is complete */
        if (pending) release_previous();
        issue_product(dp, tile + z::TILE, other + z::TILE);
        iv_wgmma_wait<1>();
        iv_wgmma_hold(score);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float2 lse2 = stats[k * 4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &w = score[4 * k + e];
                w = v_ex2(__fmaf_rn(w, p.scale_log2e, -(e % 2 ? lse2.y : lse2.x)));
                int query = 8 * k + e % 2;
                if (MASKED) w = query >= low[e / 2] && query <= high[e / 2] ? w : 0.0f;
            }
        }
        round_to<TYPE>(weights, score);
        issue_chain<TYPE>(dv, weights, other + z::TILE);
        iv_wgmma_wait<1>();
        iv_wgmma_hold(dp);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float2 delta = stats[BLOCK / 2 + k * 4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &d = dp[4 * k + e];
                d = __fmul_rn(score[4 * k + e], __fsub_rn(d, e % 2 ? delta.y : delta.x));
                int query = 8 * k + e % 2;
                if (MASKED) d = query >= low[e / 2] && query <= high[e / 2] ? d : 0.0f;
            }
        }
        if constexpr (KEEPS) keep_tile();
        round_to<TYPE>(gradients, dp);
        issue_chain<TYPE>(dk, gradients, other);
    }

    /* Does every query of block i see every key of block `own`? */
    __device__ __forceinline__ bool is_whole(int own, int i, int rows) {
        bool inside = p.window <= 0 || (int64_t)own * BLOCK + p.window > (int64_t)i * BLOCK + BLOCK - 1;
        return i > own && (i + 1) * BLOCK <= rows && inside;
    }

    __device__ __forceinline__ void write_out(const item &it, int own) {
        size_t width = iv_backward_width(p);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int key = own * BLOCK + key_in_block(h);
            if (key >= it.rows) continue;
            float *to =
                p.dqkv + (size_t)(it.first_row + key) * width + (size_t)(p.heads + it.kv_head) * DIM + query_in_block();
            float *values = to + (size_t)p.kv_heads * DIM;
#pragma unroll
            for (int k = 0; k < DIM / 8; k++) {
                int e = 4 * k + 2 * h;
                *(float2 *)(to + 8 * k) =
                    make_float2(iv_canon(__fmul_rn(dk[e], p.scale)), iv_canon(__fmul_rn(dk[e + 1], p.scale)));
                *(float2 *)(values + 8 * k) = make_float2(iv_canon(dv[e]), iv_canon(dv[e + 1]));
            }
        }
    }

    /* What is left of the item is read again where it is needed, so that it occupies no registers meanwhile. */
    __device__ __forceinline__ void run(int rows, int unit) {
        int blocks = (rows + BLOCK - 1) / BLOCK, first = 2 * unit, own = first + group;
        int last = iv_backward_last_block(min(first + 1, blocks - 1), blocks, p.window);
        int last_own = own < blocks ? iv_backward_last_block(own, blocks, p.window) : -1;
        bool pending = false;
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) dk[i] = dv[i] = 0.0f;
        for (int h = 0; h < p.group; h++) {
            if (KEEPS) {
                item it = item_now(b);
                at = iv_backward_tile(p, it.tile, it.kv_head * p.group + h, first, own);
            }
            for (int i = first; i <= last; i++, r.next()) {
                iv_mbar_wait(iv_shared(&b.s->full[r.at]), r.phase);
                bool meets = i >= own && i <= last_own;
                if (!meets) {
                    if (pending) finish_previous();
                    release(&b.s->empty[r.at]);
                } else if (is_whole(own, i, rows))
                    step<false>(own, i, rows, pending);
                else
                    step<true>(own, i, rows, pending);
                pending = meets;
                if (KEEPS) at += (uint32_t)i + 1;
            }
        }
        iv_wgmma_wait<0>();
        iv_wgmma_hold(dk), iv_wgmma_hold(dv);
        if (pending) release_previous();
        item it = item_now(b);
        release(&b.s->own_empty);
        if (own < blocks) write_out(it, own);
    }
};

template <int DIM, iv_dtype TYPE, bool KEEPS>
static __global__ void __launch_bounds__(THREADS, 1)
    keys_kernel(const __grid_constant__ iv_backward_params p, const __grid_constant__ backward_maps maps) {
    extern __shared__ char memory[];
    buffers b = begin<DIM>(memory, maps, sizes<DIM>::STAGES, 2);
    /* The kernel of the queries, which waits for nothing at its start, needs this order. */
    iv_dependency_wait();
    iv_dependency_release();
    int warp = threadIdx.x / 32;
    if (warp < 4) {
        iv_registers_give<24>();
        if (threadIdx.x == 0) produce<DIM>(p, maps, b);
        if (threadIdx.x == 32) produce_stats<DIM>(p, b);
    } else {
        iv_registers_take<240>();
        keys_consumer<DIM, TYPE, KEEPS> c = {p, b, __shfl_sync(~0u, warp / 4 - 1, 0), {0, 0}};
        for (uint32_t n = 0;; n++) {
            iv_mbar_wait(iv_shared(&b.s->own_full), n & 1);
            item it = item_now(b);
            if (it.rows == 0) break;
            c.run(it.rows, it.unit);
        }
    }
}

template <int DIM, iv_dtype TYPE>
static int launch(const iv_gpu_attention_backward_args *a, const iv_backward_params &p, cudaStream_t stream) {
    backward_maps maps;
    int failed = make_maps(&maps, a);
    if (failed) return failed;
    auto *kernel = p.tiles ? keys_kernel<DIM, TYPE, true> : keys_kernel<DIM, TYPE, false>;
    return iv_launch_with_shared(kernel, a->sms, THREADS, shared_bytes<DIM>(sizes<DIM>::STAGES), stream,
                                 (const iv_backward_params)p, (const backward_maps)maps);
}

int iv_attention_backward_keys(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                               cudaStream_t stream) {
    bool bf16 = a->shape.type == IV_BF16;
    if (a->shape.head_dim == 128) return bf16 ? launch<128, IV_BF16>(a, p, stream) : launch<128, IV_F16>(a, p, stream);
    return bf16 ? launch<64, IV_BF16>(a, p, stream) : launch<64, IV_F16>(a, p, stream);
}
