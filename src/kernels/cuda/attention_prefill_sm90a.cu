/* attention_prefill_sm90a.cu: attention of many rows: whole tiles of 192 packed rows, longest first. A CTA has one
 * producer warp, which loads queries, keys and values by TMA, and three warpgroups of 64 rows each, with scores and
 * outputs in registers. The softmax of block i overlaps with the products of values of block i - 1 and with the
 * other warpgroups. Each split of four blocks has its own output, which is merged into the total at the end of the
 * split. With head_dim 128 the total is in shared memory. */
#include "kernels/cuda/attention_hopper.cuh"

enum {
    ROWS = IV_ATTENTION_TALL_ROWS,
    GROUPS = ROWS / 64,
    WARPS = 4 * GROUPS,
    THREADS = 128 + 128 * GROUPS,
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    STAGES_MAX = 6,
    QUERY_CHUNK_BYTES = ROWS * 128,
    ONES_BYTES = 1024 /* an operand of eight columns of ones for each key of a block */
};

typedef struct shared_state {
    uint64_t q_full[2], q_empty[2];
    uint64_t k_full[STAGES_MAX], k_empty[STAGES_MAX], v_full[STAGES_MAX], v_empty[STAGES_MAX];
} shared_state;

template <int DIM> struct sizes {
    static constexpr int CHUNKS = DIM / IV_CHUNK_ELEMENTS;
    static constexpr int QUERY = CHUNKS * QUERY_CHUNK_BYTES;
    static constexpr int STAGE = CHUNKS * IV_CHUNK_BYTES;
    static constexpr bool TOTAL_SHARED = DIM == 128;
    static constexpr int QUERIES = TOTAL_SHARED ? 1 : 2; /* tiles in flight */
    static constexpr int K_STAGES = TOTAL_SHARED ? 2 : 6, V_STAGES = TOTAL_SHARED ? 3 : 6;
    static constexpr int TOTAL = TOTAL_SHARED ? 128 * GROUPS * DIM / 2 * 4 : 0;
    static constexpr int SHARED =
        1024 + QUERIES * QUERY + (K_STAGES + V_STAGES) * STAGE + ONES_BYTES + TOTAL + sizeof(shared_state);
};

typedef struct buffers { /* in shared memory */
    uint32_t q, k, v, ones;
    float4 *total; /* this thread's groups of four, 128 * GROUPS apart */
    shared_state *s;
} buffers;

/* A stage of a ring and the parity of its fill. */
template <int STAGES> struct stage {
    uint32_t at, phase;
    __device__ __forceinline__ void next() {
        at++;
        if (at == STAGES) at = 0, phase ^= 1;
    }
};

/* ---- the producer -------------------------------------------------------------------------------------------------
 */

template <int DIM> struct producer {
    typedef sizes<DIM> z;
    const iv_attention_params &p;
    const CUtensorMap *pages, *queries;
    buffers at;
    int lane, query_bytes;
    stage<z::K_STAGES> k;
    stage<z::V_STAGES> v;

    template <int STAGES>
    __device__ __forceinline__ void fill(uint32_t to, uint64_t *full, uint64_t *empty, stage<STAGES> &n, int row) {
        uint32_t bar = iv_shared(full + n.at);
        iv_mbar_wait_idle(iv_shared(empty + n.at), n.phase ^ 1);
        iv_mbar_expect(bar, z::STAGE);
#pragma unroll
        for (int c = 0; c < z::CHUNKS; c++)
            iv_tma_load_2d(to + n.at * z::STAGE + c * IV_CHUNK_BYTES, pages, bar, c * IV_CHUNK_ELEMENTS, row,
                           IV_L2_NORMAL);
        n.next();
    }

    __device__ __forceinline__ void load_queries(const iv_tall_item &i, int j) {
        int buffer = j % z::QUERIES;
        uint32_t bar = iv_shared(&at.s->q_full[buffer]);
        iv_mbar_wait_idle(iv_shared(&at.s->q_empty[buffer]), (j / z::QUERIES & 1) ^ 1);
        iv_mbar_expect(bar, query_bytes);
        for (int c = 0; c < z::CHUNKS; c++)
            iv_tma_load_3d(at.q + buffer * z::QUERY + c * QUERY_CHUNK_BYTES, queries, bar, c * IV_CHUNK_ELEMENTS,
                           i.kv_head * p.group - p.group_first, i.tile.first_row, IV_L2_FIRST);
    }

    __device__ __forceinline__ void run(void) {
        iv_tall_item i;
        for (int j = 0; iv_next_tall(p, j, &i); j++) {
            if (lane == 0) load_queries(i, j);
            int last = i.tile.last_block;
            uint32_t page = 0; /* of 32 blocks, one per thread */
            for (int b = i.tile.first_block, known = b - 32; b <= last; b++) {
                if (b >= known + 32) {
                    known = b;
                    page = b + lane <= last ? __ldg(p.tables + i.tile.table + b + lane) : 0;
                }
                int row = iv_page_row(p, __shfl_sync(~0u, page, b - known), i.kv_head, 0);
                if (lane != 0) continue;
                fill(at.k, at.s->k_full, at.s->k_empty, k, row);
                fill(at.v, at.s->v_full, at.s->v_empty, v, row + BLOCK);
            }
        }
    }
};

/* ---- the consumers ------------------------------------------------------------------------------------------------
 */

/* A descriptor of an operand in rows of 128 swizzled bytes, from its low word. */
IV_DEVICE uint64_t descriptor(uint32_t low) { return (uint64_t)0x40000040u << 32 | low; }
IV_DEVICE uint32_t keys_word(uint32_t address) { return (address >> 4) + (1 << 16); }
IV_DEVICE uint32_t values_word(uint32_t address) { return (address >> 4) + (IV_CHUNK_BYTES >> 4 << 16); }

template <int DIM, iv_dtype TYPE> struct consumer {
    typedef sizes<DIM> z;
    static constexpr int OUT = DIM / 2; /* a thread's elements of the output */
    const iv_attention_params &p;
    buffers at;
    int group, warp, g, t; /* in the CTA; in the group; in the warp */

    float score[32], out[OUT], total[z::TOTAL_SHARED ? 1 : OUT];
    uint32_t weights[4][4];
    int low[2], high[2];  /* range of keys visible to rows g and g + 8 */
    float max[2], sum[4]; /* row g's sum twice, row g + 8's twice */
    float total_max[2], total_sum[2];

    __device__ __forceinline__ int row_of(int h) { return group * 64 + warp * 16 + g + 8 * h; }

    /* Issues score = Q K^T of the block at k. q and k are low words of descriptors, in units of 16 bytes. */
    __device__ __forceinline__ void issue_scores(uint32_t q, uint32_t k) {
        asm volatile("" : "+r"(q), "+r"(k)); /* recomputed here, not kept in registers */
        iv_wgmma_fence();
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            iv_wgmma<TYPE>(score, descriptor(q + i / 4 * (QUERY_CHUNK_BYTES >> 4) + i % 4 * 2),
                           descriptor(k + i / 4 * (IV_CHUNK_BYTES >> 4) + i % 4 * 2), i > 0);
        iv_wgmma_commit();
    }

    /* Issues out += weights V (out = at a split's start), and the sum, with a column of ones. */
    __device__ __forceinline__ void issue_values(uint32_t v, bool fresh) {
        asm volatile("" : "+r"(v));
        iv_wgmma_fence();
#pragma unroll
        for (int i = 0; i < BLOCK / 16; i++)
            iv_wgmma_a<TYPE, true>(out, weights[i], descriptor(v + i * 128), i > 0 || !fresh);
#pragma unroll
        for (int i = 0; i < BLOCK / 16; i++)
            iv_wgmma_a<TYPE, false>(sum, weights[i], descriptor(keys_word(at.ones)), i > 0 || !fresh);
        iv_wgmma_commit();
    }

    __device__ __forceinline__ void release(uint64_t *empty) {
        if (threadIdx.x % 32 == 0) iv_mbar_arrive(iv_shared(empty));
    }

    /* Steps 1 to 4 of the law for block b: scores become weights. Returns alpha of both rows. A row that sees no key
     * of the block is unchanged. Not MASKED: every row sees every key. */
    template <bool MASKED> __device__ __forceinline__ void weigh_block(int b, float (&alpha)[2]) {
        bool see[2] = {true, true};
        if (MASKED) {
            int key = b * BLOCK + 2 * t;
#pragma unroll
            for (int h = 0; h < 2; h++) see[h] = high[h] >= b * BLOCK && low[h] < (b + 1) * BLOCK;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int k = key + i / 4 * 8 + i % 2, h = i / 2 % 2;
                score[i] = (k > high[h]) | (k < low[h]) ? -INFINITY : score[i];
            }
        }
        float high_of[4]; /* of a row's even and odd keys; NaN is ignored */
#pragma unroll
        for (int i = 0; i < 4; i++) high_of[i] = score[i];
#pragma unroll
        for (int i = 4; i < 32; i++) high_of[i % 4] = fmaxf(high_of[i % 4], score[i]);
        float less[2]; /* the negated maximum */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = fmaxf(high_of[2 * h], high_of[2 * h + 1]);
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            m = iv_next_max(max[h], __fmul_rn(m, p.scale));
            alpha[h] = v_ex2(v_sub(max[h], m));
            max[h] = m;
            if (MASKED) {
                alpha[h] = see[h] ? alpha[h] : 1.0f;
                m = see[h] ? m : 0.0f; /* -inf minus 0, not minus -inf */
            }
            less[h] = -m;
        }
#pragma unroll
        for (int i = 0; i < 32; i++) score[i] = v_ex2(__fmaf_rn(score[i], p.scale, less[i / 2 % 2]));
    }

    __device__ __forceinline__ void round_weights(void) {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) weights[i][j] = iv_pack16(TYPE, score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
    }

    /* Merges out and sum, of a split with these maxima, into the total. The first split gets the factors 0 and 1,
     * with a total of -0; a split that the row does not see is +0 and gets 1 and -0. Neither changes a bit. */
    __device__ __forceinline__ void merge_split(int split, const float (&most)[2]) {
        float both[2] = {iv_max(total_max[0], most[0]), iv_max(total_max[1], most[1])};
        iv_attention_factors j[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bool saw = high[h] >= split * IV_KV_SPLIT && low[h] < (split + 1) * IV_KV_SPLIT;
            bool first = low[h] >= split * IV_KV_SPLIT;
            j[h].keep = v_ex2(v_sub(total_max[h], both[h])), j[h].add = v_ex2(v_sub(most[h], both[h]));
            if (first) j[h].keep = 0.0f, j[h].add = 1.0f;
            if (!saw) j[h].keep = 1.0f, j[h].add = -0.0f;
            total_sum[h] = iv_attention_merged(total_sum[h], sum[2 * h], j[h]), total_max[h] = both[h];
        }
#pragma unroll
        for (int k = 0; k < OUT; k += 4) {
            float4 *there = at.total + k / 4 * 128 * GROUPS, four;
            if (z::TOTAL_SHARED) four = *there;
            float *to = z::TOTAL_SHARED ? &four.x : total + (z::TOTAL_SHARED ? 0 : k);
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = iv_attention_merged(to[i], out[k + i], j[i / 2]);
            if (z::TOTAL_SHARED) *there = four;
        }
    }

    __device__ __forceinline__ void write_out(const iv_tall_item &it) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row_of(h), token = row / p.group, in_group = row - token * p.group;
            int head = it.kv_head * p.group + in_group - p.group_first;
            if (token >= it.tile.tokens || head < 0 || head >= p.heads) continue;
            float keep = iv_attention_sink<true>(p, head, &total_max[h], &total_sum[h]);
            uint16_t *to = (uint16_t *)p.out + ((size_t)(it.tile.first_row + token) * p.heads + head) * DIM + 2 * t;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                int own = z::TOTAL_SHARED ? 0 : 4 * i + 2 * h;
                float2 o = z::TOTAL_SHARED ? ((float2 *)(at.total + i * 128 * GROUPS))[h]
                                           : make_float2(total[own], total[z::TOTAL_SHARED ? 0 : own + 1]);
                o.x = iv_canon(__fdiv_rn(__fmul_rn(o.x, keep), total_sum[h]));
                o.y = iv_canon(__fdiv_rn(__fmul_rn(o.y, keep), total_sum[h]));
                *(uint32_t *)(to + 8 * i) = iv_pack16(TYPE, o.x, o.y);
            }
            if (p.lse2 && t == 0)
                p.lse2[(size_t)(it.tile.first_row + token) * p.heads + head] =
                    iv_attention_lse2(total_max[h], total_sum[h]);
        }
    }

    __device__ __forceinline__ void begin(const iv_tall_item &it) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int token = row_of(h) / p.group;
            high[h] = it.tile.position + (token < it.tile.tokens ? token : 0);
            low[h] = iv_attention_low(high[h], p.window);
            max[h] = -INFINITY;
            total_max[h] = -INFINITY, total_sum[h] = -0.0f;
        }
#pragma unroll
        for (int i = 0; i < OUT; i++) {
            if (!z::TOTAL_SHARED)
                total[z::TOTAL_SHARED ? 0 : i] = -0.0f;
            else if (i % 4 == 0)
                at.total[i / 4 * 128 * GROUPS] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
        }
    }

    stage<z::K_STAGES> k; /* of the next block's keys and values */
    stage<z::V_STAGES> v;

    bool keys_here, values_here; /* results of the last poll */

    __device__ __forceinline__ uint32_t keys_bar(void) { return iv_shared(&at.s->k_full[k.at]); }
    __device__ __forceinline__ uint32_t values_bar(void) { return iv_shared(&at.s->v_full[v.at]); }
    __device__ __forceinline__ void poll(void) {
        keys_here = iv_mbar_peek(keys_bar(), k.phase), values_here = iv_mbar_peek(values_bar(), v.phase);
    }
    __device__ __forceinline__ void wait_keys(void) {
        if (!keys_here) iv_mbar_wait(keys_bar(), k.phase);
    }
    __device__ __forceinline__ void wait_values(void) {
        if (!values_here) iv_mbar_wait(values_bar(), v.phase);
    }
    __device__ __forceinline__ uint32_t keys(void) { return keys_word(at.k) + k.at * (z::STAGE >> 4); }
    __device__ __forceinline__ uint32_t values(void) { return values_word(at.v) + v.at * (z::STAGE >> 4); }

    __device__ __forceinline__ void run(const iv_tall_item &it, int buffer, uint32_t phase) {
        int first = it.tile.first_block, last = it.tile.last_block;
        int hidden_from = (it.tile.position + 1) / BLOCK; /* the first block that some row does not see entirely */
        int seen_from = (iv_attention_low(it.tile.position + it.tile.tokens - 1, p.window) + BLOCK - 1) / BLOCK;
        uint32_t q = keys_word(at.q + buffer * z::QUERY + group * 64 * 128);
        begin(it);
        iv_mbar_wait(iv_shared(&at.s->q_full[buffer]), phase);
        poll();
        wait_keys();
        issue_scores(q, keys());
        iv_wgmma_wait<0>();
        iv_wgmma_hold(score);
        release(&at.s->k_empty[k.at]), k.next();
        float alpha[2];
        bool fresh = true;
        weigh_block<true>(first, alpha);
        poll();
        wait_values();
        round_weights();
        for (int b = first + 1; b <= last; b++) {
            bool end = b % EACH == 0;
            wait_keys();
            issue_scores(q, keys());
            issue_values(values(), fresh);
            iv_wgmma_wait<1>();
            iv_wgmma_hold(score);
            release(&at.s->k_empty[k.at]), k.next();
            float ended[2] = {max[0], max[1]};
            if (end) max[0] = max[1] = -INFINITY;
            if (b >= hidden_from || b < seen_from)
                weigh_block<true>(b, alpha);
            else
                weigh_block<false>(b, alpha);
            iv_wgmma_hold(score); /* keeps the softmax before the wait */
            uint64_t *values_given = &at.s->v_empty[v.at];
            v.next();
            poll();
            iv_wgmma_wait<0>();
            iv_wgmma_hold(out), iv_wgmma_hold(sum);
            wait_values();
            release(values_given);
            if (end)
                merge_split(b / EACH - 1, ended);
            else if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < OUT; i++) out[i] = __fmul_rn(out[i], alpha[i / 2 % 2]);
#pragma unroll
                for (int i = 0; i < 4; i++) sum[i] = __fmul_rn(sum[i], alpha[i / 2]);
            }
            fresh = end;
            round_weights();
        }
        release(&at.s->q_empty[buffer]);
        issue_values(values(), fresh);
        iv_wgmma_wait<0>();
        iv_wgmma_hold(out), iv_wgmma_hold(sum);
        release(&at.s->v_empty[v.at]), v.next();
        merge_split(last / EACH, max);
        write_out(it);
    }
};

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    prefill_kernel(const __grid_constant__ iv_attention_params p, const __grid_constant__ CUtensorMap pages,
                   const __grid_constant__ CUtensorMap queries, int query_bytes) {
    typedef sizes<DIM> z;
    extern __shared__ char memory[];
    buffers at;
    at.q = (iv_shared(memory) + 1023) & ~1023u;
    at.k = at.q + z::QUERIES * z::QUERY, at.v = at.k + z::K_STAGES * z::STAGE;
    char *rest = memory + (at.v + z::V_STAGES * z::STAGE - iv_shared(memory));
    at.ones = at.v + z::V_STAGES * z::STAGE;
    for (int i = threadIdx.x; i < ONES_BYTES / 4; i += THREADS) ((uint32_t *)rest)[i] = iv_pack16(TYPE, 1.0f, 1.0f);
    iv_fence_async();
    rest += ONES_BYTES;
    at.total = (float4 *)rest + threadIdx.x - 128, at.s = (shared_state *)(rest + z::TOTAL);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++)
            iv_mbar_init(iv_shared(&at.s->q_full[i]), 1), iv_mbar_init(iv_shared(&at.s->q_empty[i]), WARPS);
        for (int i = 0; i < STAGES_MAX; i++) {
            iv_mbar_init(iv_shared(&at.s->k_full[i]), 1), iv_mbar_init(iv_shared(&at.s->k_empty[i]), WARPS);
            iv_mbar_init(iv_shared(&at.s->v_full[i]), 1), iv_mbar_init(iv_shared(&at.s->v_empty[i]), WARPS);
        }
        iv_mbar_init_fence();
        iv_tma_prefetch_map(&pages), iv_tma_prefetch_map(&queries);
    }
    __syncthreads();
    iv_dependency_wait();
    iv_dependency_release();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < 4) {
        iv_registers_give<24>();
        if (warp == 0) {
            producer<DIM> c = {p, &pages, &queries, at, lane, query_bytes};
            c.run();
        }
    } else {
        iv_registers_take<GROUPS == 3 ? 160 : 240>();
        consumer<DIM, TYPE> c = {p, at, __shfl_sync(~0u, warp / 4 - 1, 0), warp % 4, lane / 4, lane % 4};
        iv_tall_item i;
        for (int j = 0; iv_next_tall(p, j, &i); j++) c.run(i, j % z::QUERIES, j / z::QUERIES & 1);
    }
}

/* A tensor map of all pages as rows of head_dim; a box is one block's keys or values, 64 of head_dim at a time. */
static int map_pages(CUtensorMap *map, const iv_gpu_kv *kv) {
    uint64_t row = kv->head_dim * iv_dtype_bytes(kv->type);
    uint64_t size[2] = {kv->head_dim, (uint64_t)kv->page_count * iv_gpu_kv_page_heads(kv) * 2 * IV_ATTENTION_BLOCK};
    uint32_t box[2] = {IV_CHUNK_ELEMENTS, IV_ATTENTION_BLOCK};
    if (size[1] > INT32_MAX) return cudaErrorInvalidValue;
    return iv_map_make(map, kv->type, kv->pages, 2, size, &row, box);
}

template <int DIM, iv_dtype TYPE> static int launch(const iv_gpu_attention_args *a, cudaStream_t stream) {
    CUtensorMap pages, queries;
    int failed = map_pages(&pages, &a->kv), tokens = ROWS / (int)a->shape.group;
    if (failed) return failed;
    uint64_t head = DIM * 2, size[3] = {DIM, a->shape.heads, a->rows}, stride[2] = {head, head * a->shape.heads};
    uint32_t box[3] = {IV_CHUNK_ELEMENTS, (uint32_t)a->shape.group, (uint32_t)tokens};
    failed = iv_map_make(&queries, a->shape.type, a->q, 3, size, stride, box);
    if (failed) return failed;
    int query_bytes = (int)a->shape.group * tokens * DIM * 2;
    return iv_launch_with_shared(prefill_kernel<DIM, TYPE>, a->sms, THREADS, sizes<DIM>::SHARED, stream,
                                 (const iv_attention_params)iv_attention_params_of(a, false), (const CUtensorMap)pages,
                                 (const CUtensorMap)queries, query_bytes);
}

int iv_attention_prefill(const iv_gpu_attention_args *a, iv_gpu_stream stream) {
    bool bf16 = a->shape.type == IV_BF16;
    if (a->shape.head_dim == 128) return bf16 ? launch<128, IV_BF16>(a, stream) : launch<128, IV_F16>(a, stream);
    return bf16 ? launch<64, IV_BF16>(a, stream) : launch<64, IV_F16>(a, stream);
}
