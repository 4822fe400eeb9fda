/* attention_backward_queries_sm90a.cu: dQ. A consumer warpgroup has a block of 64 queries of a head, with q and dO as
 * operands in registers, and meets the blocks of keys that they see in order, which a producer thread loads for both
 * warpgroups of the CTA. The heads of a KV head's group times the blocks of queries of a sequence are numbered head by
 * head: number n is head n % group and block n / group. A unit of work is numbers 2 u and 2 u + 1. */
#include "kernels/cuda/attention_backward_hopper.cuh"

typedef iv_backward_number numbered;

template <int DIM> IV_DEVICE void produce(const iv_backward_params &p, const backward_maps &maps, const buffers &b) {
    typedef sizes<DIM> z;
    ring<z::STAGES> r = {0, 0};
    iv_backward_work w;
    int kv_head;
    for (uint32_t n = 0; next_item(p, 1, b, n, &w, &kv_head); n++) {
        numbered first = iv_backward_number_of(p, w.rows, kv_head, 2 * w.unit), last = first;
        uint32_t bar = iv_shared(&b.s->own_full);
        numbered second = iv_backward_number_of(p, w.rows, kv_head, 2 * w.unit + 1);
        iv_mbar_expect(bar, (second.here ? 2 : 1) * (2 * z::TILE + STATS_BYTES));
        for (int k = 0; k < 2; k++) {
            numbered one = k ? second : first;
            int row = w.first_row + one.block * BLOCK;
            if (!one.here) continue;
            load_rows<DIM>(b.own + k * 2 * z::TILE, &maps.q, bar, one.head, row);
            load_rows<DIM>(b.own + k * 2 * z::TILE + z::TILE, &maps.dout, bar, one.head, row);
            load_stats(p, b.stats + k * STATS_BYTES, bar, one.head, row);
            last = one;
        }
        for (int j = first.first; j <= last.block; j++, r.next()) {
            uint32_t full = iv_shared(&b.s->full[r.at]);
            iv_mbar_wait_idle(iv_shared(&b.s->empty[r.at]), r.phase ^ 1);
            iv_mbar_expect(full, z::STAGE);
            load_page<DIM>(p, b.stage + r.at * z::STAGE, &maps.pages, full, w.table + j, kv_head);
        }
    }
}

IV_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

template <int DIM, iv_dtype TYPE> struct queries_consumer {
    typedef sizes<DIM> z;
    static constexpr int STEPS = DIM / 16;
    const iv_backward_params &p;
    buffers b;
    int group, warp, g, t; /* in the CTA; in the group; in the warp */
    ring<z::STAGES> r;
    float dq[DIM / 2], score[32], dp[32], lse2[2], delta[2]; /* of rows g and g + 8 */
    uint32_t q[STEPS][4], dout[STEPS][4], gradients[4][4];

    /* The warp's 16 rows of a tile as operands. */
    __device__ __forceinline__ void load_operand(uint32_t (&to)[STEPS][4], uint32_t tile) {
        int lane = threadIdx.x % 32, row = warp * 16 + lane % 16;
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            load_matrices(to[k], tile + (uint32_t)(k / 4 * IV_CHUNK_BYTES + row * 128 +
                                                   ((k % 4 * 2 + lane / 16) ^ row % 8) * 16));
    }

    __device__ __forceinline__ void load_own(void) {
        const float *stats = b.stats_here + group * (STATS_BYTES / 4) + warp * 16 + g;
        uint32_t tile = b.own + group * 2 * z::TILE;
        load_operand(q, tile), load_operand(dout, tile + z::TILE);
#pragma unroll
        for (int h = 0; h < 2; h++) lse2[h] = stats[8 * h], delta[h] = stats[BLOCK + 8 * h];
        iv_fence_async(); /* ends this lane's reads, which an arrival may pass */
    }

    __device__ __forceinline__ void issue_products(uint32_t other) {
        asm volatile("" : "+r"(other));
        iv_wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++) iv_wgmma_a<TYPE, false>(score, q[k], by_rows(other, k), k > 0);
        iv_wgmma_commit();
#pragma unroll
        for (int k = 0; k < STEPS; k++) iv_wgmma_a<TYPE, false>(dp, dout[k], by_rows(other + z::TILE, k), k > 0);
        iv_wgmma_commit();
    }

    /* Gradients of the scores of a block of keys, 16 keys at a time, each followed by its part of dq's chain. low and
     * high: the keys of the block that rows g and g + 8 see. */
    template <bool MASKED>
    __device__ __forceinline__ void chain(uint32_t other, const int (&low)[2], const int (&high)[2]) {
#pragma unroll
        for (int i = 0; i < 32; i++) score[i] = v_ex2(__fmaf_rn(score[i], p.scale_log2e, -lse2[i / 2 % 2]));
        iv_wgmma_wait<0>();
        iv_wgmma_hold(dp);
        asm volatile("" : "+r"(other));
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
#pragma unroll
            for (int i = 8 * k; i < 8 * k + 8; i++) {
                int key = i / 4 * 8 + 2 * t + i % 2, h = i / 2 % 2;
                dp[i] = __fmul_rn(score[i], __fsub_rn(dp[i], delta[h]));
                if (MASKED) dp[i] = key >= low[h] && key <= high[h] ? dp[i] : 0.0f;
            }
            round_to<TYPE>(gradients[k], dp, 8 * k);
            iv_wgmma_fence();
            iv_wgmma_a<TYPE, true>(dq, gradients[k], by_columns(other, k), 1);
        }
        iv_wgmma_commit();
    }

    /* Block j of keys, block `own` of queries; `waiting`: a stage whose products were issued, or -1. */
    __device__ __forceinline__ void step(int own, int j, int rows, int *waiting) {
        uint32_t other = b.stage + r.at * z::STAGE;
        int low[2], high[2];
        issue_products(other);
        iv_wgmma_wait<1>(); /* also for the last block's chain */
        iv_wgmma_hold(score), iv_wgmma_hold(dq);
        if (*waiting >= 0) release(&b.s->empty[*waiting]);
        *waiting = (int)r.at;
        bool inside = p.window <= 0 || (int64_t)j * BLOCK + p.window > (int64_t)own * BLOCK + BLOCK - 1;
        if (j < own && (own + 1) * BLOCK <= rows && inside)
            chain<false>(other, low, high);
        else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int query = own * BLOCK + warp * 16 + g + 8 * h;
                low[h] = iv_attention_low(query, p.window) - j * BLOCK;
                high[h] = query < rows ? query - j * BLOCK : -1;
            }
            chain<true>(other, low, high);
        }
    }

    __device__ __forceinline__ void write_out(const item &it, const numbered &own) {
        size_t width = iv_backward_width(p);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = own.block * BLOCK + warp * 16 + g + 8 * h;
            if (query >= it.rows) continue;
            float *to = p.dqkv + (size_t)(it.first_row + query) * width + (size_t)own.head * DIM + 2 * t;
#pragma unroll
            for (int k = 0; k < DIM / 8; k++) {
                int e = 4 * k + 2 * h;
                *(float2 *)(to + 8 * k) =
                    make_float2(iv_canon(__fmul_rn(dq[e], p.scale)), iv_canon(__fmul_rn(dq[e + 1], p.scale)));
            }
        }
    }

    __device__ __forceinline__ void run(const item &it) {
        numbered a = iv_backward_number_of(p, it.rows, it.kv_head, 2 * it.unit);
        numbered z = iv_backward_number_of(p, it.rows, it.kv_head, 2 * it.unit + 1), own = group ? z : a;
        int first = a.first, last = z.here ? z.block : a.block, waiting = -1;
        if (own.here) load_own();
        __syncwarp();
        release(&b.s->own_empty);
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) dq[i] = 0.0f;
        for (int j = first; j <= last; j++, r.next()) {
            iv_mbar_wait(iv_shared(&b.s->full[r.at]), r.phase);
            if (own.here && j >= own.first && j <= own.block)
                step(own.block, j, it.rows, &waiting);
            else
                release(&b.s->empty[r.at]);
        }
        iv_wgmma_wait<0>();
        iv_wgmma_hold(dq);
        if (waiting >= 0) release(&b.s->empty[waiting]);
        if (own.here) write_out(it, own);
    }
};

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    queries_kernel(const __grid_constant__ iv_backward_params p, const __grid_constant__ backward_maps maps) {
    extern __shared__ char memory[];
    buffers b = begin<DIM>(memory, maps, GROUPS, 1);
    iv_dependency_release();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < 4) {
        iv_registers_give<24>();
        if (threadIdx.x == 0) produce<DIM>(p, maps, b);
    } else {
        iv_registers_take<240>();
        queries_consumer<DIM, TYPE> c = {p, b, __shfl_sync(~0u, warp / 4 - 1, 0), warp % 4, lane / 4, lane % 4, {0, 0}};
        for (uint32_t n = 0;; n++) {
            iv_mbar_wait(iv_shared(&b.s->own_full), n & 1);
            item it = item_now(b);
            if (it.rows == 0) break;
            c.run(it);
        }
    }
    iv_dependency_wait();
}

template <int DIM, iv_dtype TYPE>
static int launch(const iv_gpu_attention_backward_args *a, const iv_backward_params &p, cudaStream_t stream) {
    backward_maps maps;
    int failed = make_maps(&maps, a);
    if (failed) return failed;
    return iv_launch_with_shared(queries_kernel<DIM, TYPE>, a->sms, THREADS, shared_bytes<DIM>(GROUPS), stream,
                                 (const iv_backward_params)p, (const backward_maps)maps);
}

/* Its CTAs begin where those of the keys' kernel end: they need what that one waited for, nothing of its own. */
int iv_attention_backward_queries(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                                  cudaStream_t stream) {
    bool bf16 = a->shape.type == IV_BF16;
    if (a->shape.head_dim == 128) return bf16 ? launch<128, IV_BF16>(a, p, stream) : launch<128, IV_F16>(a, p, stream);
    return bf16 ? launch<64, IV_BF16>(a, p, stream) : launch<64, IV_F16>(a, p, stream);
}
