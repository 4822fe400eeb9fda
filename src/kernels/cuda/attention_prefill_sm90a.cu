/* attention_prefill_sm90a.cu: attention of many rows: tiles of 128 packed rows, whole, longest first. A CTA has one producer
 * warp, which brings queries, keys and values by TMA, and two warpgroups of 64 rows each. Scores and outputs stand in
 * registers; while a warpgroup weighs block i, its products with the values of block i - 1 still run. Each split of four
 * blocks has an output of its own, which joins the total when the split is over. */
#include "kernels/cuda/attention_hopper.cuh"

enum {
    ROWS = IV_ATTENTION_TALL_ROWS,
    GROUPS = 2,
    WARPS = 4 * GROUPS,
    THREADS = 128 + 128 * GROUPS,
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    STAGES = 4,
    QUERY_CHUNK_BYTES = ROWS * 128
};

typedef struct shared_state {
    uint64_t q_full[2], q_empty[2];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
} shared_state;

template <int DIM> struct sizes {
    static constexpr int CHUNKS = DIM / IV_CHUNK_ELEMENTS;
    static constexpr int QUERY = CHUNKS * QUERY_CHUNK_BYTES;
    static constexpr int STAGE = CHUNKS * IV_CHUNK_BYTES;
    static constexpr int SHARED = 1024 + 2 * QUERY + 2 * STAGES * STAGE + sizeof(shared_state);
};

typedef struct places { /* in shared memory */
    uint32_t q, k, v;
    shared_state *s;
} places;

/* The CTA's j-th item: tile and KV head. There and back over the CTAs, so that long and short ones mix. */
typedef struct item {
    iv_attention_tile tile;
    int kv_head;
} item;

IV_DEVICE bool next_item(const iv_attention_params &p, int j, item *to) {
    const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
    int grid = gridDim.x, place = j % 2 ? grid - 1 - (int)blockIdx.x : (int)blockIdx.x, index = j * grid + place;
    if (index >= head->tall_tiles * p.kv_heads) return false;
    const int4 *t = (const int4 *)(p.plan + head->tall_at) + 2 * (index / p.kv_heads);
    int4 a = __ldg(t), b = __ldg(t + 1);
    to->tile = {a.x, a.y, a.z, a.w, b.x, b.y, {0, 0}};
    to->kv_head = index % p.kv_heads;
    return true;
}

/* ---- the producer ------------------------------------------------------------------------------------------------- */

template <int DIM> struct producer {
    typedef sizes<DIM> z;
    const iv_attention_params &p;
    const CUtensorMap *pages, *queries;
    places at;
    int lane, query_bytes;
    int first, last, known; /* blocks of the item; those whose pages are at hand */
    uint32_t page;

    __device__ __forceinline__ void fill(uint32_t to, uint64_t *full, uint64_t *empty, int n, int row) {
        int stage = n % STAGES;
        uint32_t bar = iv_shared(full + stage);
        iv_mbar_wait(iv_shared(empty + stage), (n / STAGES & 1) ^ 1);
        iv_mbar_expect(bar, z::STAGE);
#pragma unroll
        for (int c = 0; c < z::CHUNKS; c++)
            iv_tma_load_2d(to + stage * z::STAGE + c * IV_CHUNK_BYTES, pages, bar, c * IV_CHUNK_ELEMENTS, row, IV_L2_NORMAL);
    }

    __device__ __forceinline__ void block(const item &i, int b, int n, int values) {
        if (b >= known + 32) {
            known = b;
            page = b + lane <= last ? __ldg(p.tables + i.tile.table + b + lane) : 0;
        }
        int row = iv_page_row(p, __shfl_sync(~0u, page, b - known), i.kv_head, values);
        if (lane != 0) return;
        if (values)
            fill(at.v, at.s->v_full, at.s->v_empty, n, row);
        else
            fill(at.k, at.s->k_full, at.s->k_empty, n, row);
    }

    __device__ __forceinline__ void run(void) {
        item i;
        for (int j = 0, n = 0; next_item(p, j, &i); j++) {
            int buffer = j % 2;
            if (lane == 0) {
                uint32_t bar = iv_shared(&at.s->q_full[buffer]);
                iv_mbar_wait(iv_shared(&at.s->q_empty[buffer]), (j / 2 & 1) ^ 1);
                iv_mbar_expect(bar, query_bytes);
                for (int c = 0; c < z::CHUNKS; c++)
                    iv_tma_load_3d(at.q + buffer * z::QUERY + c * QUERY_CHUNK_BYTES, queries, bar, c * IV_CHUNK_ELEMENTS,
                                   i.kv_head * p.group - p.group_first, i.tile.first_row, IV_L2_FIRST);
            }
            first = i.tile.first_block, last = i.tile.last_block, known = first - 32;
            for (int b = first; b <= last; b++, n++) {
                block(i, b, n, 0);
                if (b > first) {
                    int keep_known = known;
                    if (b - 1 < keep_known) { /* the stretch of pages went on with this block */
                        uint32_t before = __ldg(p.tables + i.tile.table + b - 1);
                        if (lane == 0) fill(at.v, at.s->v_full, at.s->v_empty, n - 1, iv_page_row(p, before, i.kv_head, 1));
                    } else
                        block(i, b - 1, n - 1, 1);
                }
            }
            block(i, last, n - 1, 1);
        }
    }
};

/* ---- the consumers ------------------------------------------------------------------------------------------------ */

/* exp2(-y) of the law for y in [0, 125.5], given sum = y + WEIGHT_MAGIC: its last bits are 2 + n for y = n + a fraction, and
 * those above them are 0x4b400000's, which they are for no other y. 2^(2 - fraction) by the law's polynomial times 4 (its
 * roundings are the same), and an exponent less by 2 + n. */
#define WEIGHT_MAGIC (0x1.8p23f + 2.0f)
IV_DEVICE float near_weight(float y, float sum) {
    float f = v_sub(v_sub(sum, WEIGHT_MAGIC), y), w = 4 * 0x1.5ec86ap-10f;
    w = __fmaf_rn(w, f, 4 * 0x1.3cbf6p-7f);
    w = __fmaf_rn(w, f, 4 * 0x1.c6afeep-5f);
    w = __fmaf_rn(w, f, 4 * 0x1.ebfa4cp-3f);
    w = __fmaf_rn(w, f, 4 * 0x1.62e43p-1f);
    w = __fmaf_rn(w, f, 4 * 1.0f);
    return __uint_as_float(__float_as_uint(w) - (__float_as_uint(sum) << 23));
}

template <int DIM, iv_dtype TYPE> struct consumer {
    typedef sizes<DIM> z;
    static constexpr int OUT = DIM / 2; /* a thread's elements of the output */
    const iv_attention_params &p;
    places at;
    int group, warp, g, t; /* of the warpgroups; of the group; of the warp */

    float score[32], out[OUT], total[OUT];
    uint32_t weights[4][4];
    int low[2], high[2]; /* the keys that rows g and g + 8 see */
    float max[2], lanes[2][2];
    float total_max[2], total_sum[2];
    bool started[2];

    __device__ __forceinline__ int row_of(int h) { return group * 64 + warp * 16 + g + 8 * h; }

    /* score = Q K^T of one block, under way. */
    __device__ __forceinline__ void ask_scores(uint32_t q, int n) {
        uint32_t k = at.k + n % STAGES * z::STAGE;
        iv_mbar_wait(iv_shared(&at.s->k_full[n % STAGES]), n / STAGES & 1);
        iv_wgmma_fence();
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            iv_wgmma<TYPE>(score, iv_wgmma_desc(q + group * 64 * 128 + i / 4 * QUERY_CHUNK_BYTES) + i % 4 * 2,
                           iv_wgmma_desc(k + i / 4 * IV_CHUNK_BYTES) + i % 4 * 2, i > 0);
        iv_wgmma_commit();
    }

    /* out (or nothing, at a split's start) + weights V, under way. */
    __device__ __forceinline__ void ask_values(int n, bool fresh) {
        uint32_t v = at.v + n % STAGES * z::STAGE;
        iv_wgmma_fence();
#pragma unroll
        for (int i = 0; i < BLOCK / 16; i++)
            iv_wgmma_a<TYPE, true>(out, weights[i], iv_wgmma_desc_mn(v, IV_CHUNK_BYTES) + i * 128, i > 0 || !fresh);
        iv_wgmma_commit();
    }

    __device__ __forceinline__ void give(uint64_t *empty) {
        if (threadIdx.x % 32 == 0) iv_mbar_arrive(iv_shared(empty));
    }

    /* Steps 1 to 5 of the law for block b: scores become weights; returns alpha of both rows. A row that sees nothing of the
     * block stays as it is. */
    __device__ __forceinline__ void weigh(int b, bool masked, float (&alpha)[2]) {
        bool see[2] = {high[0] >= b * BLOCK && low[0] < (b + 1) * BLOCK, high[1] >= b * BLOCK && low[1] < (b + 1) * BLOCK};
#pragma unroll
        for (int i = 0; i < 32; i++) score[i] = __fmul_rn(score[i], p.scale);
        if (masked) {
            int key = b * BLOCK + 2 * t;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int k = key + i / 4 * 8 + i % 2, h = i / 2 % 2;
                score[i] = (k > high[h]) | (k < low[h]) ? -INFINITY : score[i];
            }
        }
        float m[2] = {max[0], max[1]};
#pragma unroll
        for (int i = 0; i < 32; i++) m[i / 2 % 2] = fmaxf(m[i / 2 % 2], score[i]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            m[h] = fmaxf(m[h], __shfl_xor_sync(~0u, m[h], 1));
            m[h] = fmaxf(m[h], __shfl_xor_sync(~0u, m[h], 2));
            m[h] = __fadd_rn(m[h], 0.0f);
            alpha[h] = v_exp2(v_sub(max[h], m[h]));
            alpha[h] = see[h] ? alpha[h] : 1.0f;
            max[h] = m[h];
            m[h] = see[h] ? m[h] : 0.0f; /* -inf less 0, not less -inf */
            lanes[h][0] = __fmul_rn(lanes[h][0], alpha[h]), lanes[h][1] = __fmul_rn(lanes[h][1], alpha[h]);
        }
#pragma unroll
        for (int part = 0; part < 32; part += 8) {
            float *y = score + part, sum[8];
            uint32_t all = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                y[i] = v_sub(m[i / 2 % 2], y[i]);
                sum[i] = v_add(y[i], WEIGHT_MAGIC);
                all |= __float_as_uint(sum[i]);
            }
            if (__any_sync(~0u, (all & ~127u) != 0x4b400000u)) {
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] = iv_attention_weight(-y[i]);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] = near_weight(y[i], sum[i]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) lanes[i / 2 % 2][i % 2] = __fadd_rn(lanes[i / 2 % 2][i % 2], y[i]);
        }
    }

    __device__ __forceinline__ void round_weights(void) {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) weights[i][j] = iv_pack16(TYPE, score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
    }

    /* What a split's end leaves, and the start of the next. */
    typedef struct split_end {
        float max[2], sum[2];
    } split_end;

    __device__ __forceinline__ split_end end_split(void) {
        split_end e;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float l[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                l[c] = __fadd_rn(lanes[h][c], __shfl_xor_sync(~0u, lanes[h][c], 2));
                l[c] = __fadd_rn(l[c], __shfl_xor_sync(~0u, l[c], 1));
                lanes[h][c] = 0.0f;
            }
            e.max[h] = max[h], e.sum[h] = __fadd_rn(l[0], l[1]);
            max[h] = -INFINITY;
        }
        return e;
    }

    /* out, of the split whose end is e, joins the total. */
    __device__ __forceinline__ void join(int split, const split_end &e) {
        bool saw[2];
        iv_attention_join j[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            saw[h] = high[h] >= split * IV_ATTENTION_SPLIT && low[h] < (split + 1) * IV_ATTENTION_SPLIT;
            float both = total_max[h];
            j[h] = iv_attention_merge(&both, e.max[h]);
            float joined = iv_attention_joined(total_sum[h], e.sum[h], j[h]);
            if (saw[h]) total_sum[h] = started[h] ? joined : e.sum[h], total_max[h] = started[h] ? both : e.max[h];
        }
        if (__all_sync(~0u, saw[0] && saw[1] && started[0] && started[1])) {
#pragma unroll
            for (int i = 0; i < OUT; i++) total[i] = iv_attention_joined(total[i], out[i], j[i / 2 % 2]);
        } else {
#pragma unroll
            for (int i = 0; i < OUT; i++) {
                int h = i / 2 % 2;
                float joined = iv_attention_joined(total[i], out[i], j[h]);
                total[i] = !saw[h] ? total[i] : started[h] ? joined : out[i];
            }
        }
        started[0] |= saw[0], started[1] |= saw[1];
    }

    __device__ __forceinline__ void write_out(const item &it) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row_of(h), token = row / p.group, place = row - token * p.group;
            int head = it.kv_head * p.group + place - p.group_first;
            if (token >= it.tile.tokens || head < 0 || head >= p.heads) continue;
            uint16_t *to = (uint16_t *)p.out + ((size_t)(it.tile.first_row + token) * p.heads + head) * DIM + 2 * t;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                float a = iv_canon(__fdiv_rn(total[4 * i + 2 * h], total_sum[h]));
                float b = iv_canon(__fdiv_rn(total[4 * i + 2 * h + 1], total_sum[h]));
                *(uint32_t *)(to + 8 * i) = iv_pack16(TYPE, a, b);
            }
        }
    }

    __device__ __forceinline__ void begin(const item &it) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int token = row_of(h) / p.group;
            high[h] = it.tile.position + (token < it.tile.tokens ? token : 0);
            low[h] = iv_attention_low(high[h], p.window);
            max[h] = -INFINITY, lanes[h][0] = lanes[h][1] = 0.0f;
            total_max[h] = -INFINITY, total_sum[h] = 0.0f, started[h] = false;
        }
#pragma unroll
        for (int i = 0; i < OUT; i++) total[i] = 0.0f;
    }

    /* n: blocks taken so far; moves on over the item's. */
    __device__ __forceinline__ void run(const item &it, int buffer, uint32_t phase, int &n) {
        int first = it.tile.first_block, last = it.tile.last_block;
        int hidden_from = (it.tile.position + 1) / BLOCK; /* the first block that not every row sees all of */
        int seen_from = (iv_attention_low(it.tile.position + it.tile.tokens - 1, p.window) + BLOCK - 1) / BLOCK;
        uint32_t q = at.q + buffer * z::QUERY;
        begin(it);
        iv_mbar_wait(iv_shared(&at.s->q_full[buffer]), phase);
        ask_scores(q, n);
        iv_wgmma_wait<0>();
        iv_wgmma_hold(score);
        give(&at.s->k_empty[n % STAGES]);
        float alpha[2];
        weigh(first, first >= hidden_from || first < seen_from, alpha);
        iv_mbar_wait(iv_shared(&at.s->v_full[n % STAGES]), n / STAGES & 1);
        round_weights();
        for (int b = first + 1; b <= last; b++, n++) {
            iv_named_sync(2 + group, 128 * GROUPS); /* the warpgroups' products take turns: while one's run, the other weighs */
            ask_scores(q, n + 1);
            ask_values(n, b - 1 == first || b % EACH == 1);
            iv_named_arrive(2 + (group ^ 1), 128 * GROUPS);
            iv_wgmma_wait<1>();
            iv_wgmma_hold(score);
            give(&at.s->k_empty[(n + 1) % STAGES]);
            split_end e;
            if (b % EACH == 0) e = end_split();
            weigh(b, b >= hidden_from || b < seen_from, alpha);
            iv_wgmma_hold(score); /* weighed before the wait, not after */
            iv_mbar_wait(iv_shared(&at.s->v_full[(n + 1) % STAGES]), (n + 1) / STAGES & 1);
            iv_wgmma_wait<0>();
            iv_wgmma_hold(out);
            give(&at.s->v_empty[n % STAGES]);
            if (b % EACH == 0)
                join(b / EACH - 1, e);
            else {
#pragma unroll
                for (int i = 0; i < OUT; i++) out[i] = __fmul_rn(out[i], alpha[i / 2 % 2]);
            }
            round_weights();
        }
        give(&at.s->q_empty[buffer]);
        ask_values(n, last == first || last % EACH == 0);
        split_end e = end_split();
        iv_wgmma_wait<0>();
        iv_wgmma_hold(out);
        give(&at.s->v_empty[n % STAGES]);
        n++;
        join(last / EACH, e);
        write_out(it);
    }
};

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    prefill_kernel(const __grid_constant__ iv_attention_params p, const __grid_constant__ CUtensorMap pages,
                   const __grid_constant__ CUtensorMap queries, int query_bytes) {
    typedef sizes<DIM> z;
    extern __shared__ char memory[];
    places at;
    at.q = (iv_shared(memory) + 1023) & ~1023u;
    at.k = at.q + 2 * z::QUERY, at.v = at.k + STAGES * z::STAGE;
    at.s = (shared_state *)(memory + (at.v + STAGES * z::STAGE - iv_shared(memory)));
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) iv_mbar_init(iv_shared(&at.s->q_full[i]), 1), iv_mbar_init(iv_shared(&at.s->q_empty[i]), WARPS);
        for (int i = 0; i < STAGES; i++) {
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
        iv_registers_take<240>();
        consumer<DIM, TYPE> c = {p, at, warp / 4 - 1, warp % 4, lane / 4, lane % 4};
        item i;
        if (c.group == 1) iv_named_arrive(2, 128 * GROUPS); /* the first turn is the first one's */
        for (int j = 0, n = 0; next_item(p, j, &i); j++) c.run(i, j % 2, j / 2 & 1, n);
    }
}

template <int DIM, iv_dtype TYPE> static int launch(const iv_gpu_attention_args *a, cudaStream_t stream) {
    CUtensorMap pages, queries;
    int failed = iv_map_pages(&pages, &a->kv), tokens = ROWS / (int)a->shape.group;
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
