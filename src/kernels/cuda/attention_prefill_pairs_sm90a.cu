/* attention_prefill_pairs_sm90a.cu: attention of many rows with heads of 256 or capped scores, on mma.sync: tiles of 64
 * packed rows, longest first. A CTA has four pairs of warps, each with 16 rows, and a warp that loads blocks of keys
 * and values by TMA. A warp has half of a block's keys in the scores and half of head_dim in the outputs, so the output
 * of the split and the total fit its registers. Maxima and weights pass from one half to the other through shared
 * memory. */
#include "kernels/cuda/attention_mma.cuh"

enum {
    ROWS = IV_ATTENTION_PAIR_ROWS,
    EACH_ROWS = 16, /* of a pair */
    WARPS = ROWS / EACH_ROWS * 2,
    CONSUMERS = WARPS * 32,
    THREADS = CONSUMERS + 128, /* the last warpgroup gives its registers to the others; one of its warps works */
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    HALF = BLOCK / 2,
    RING_BYTES = 160 * 1024,
    STAGES_MAX = 16,
    W_STRIDE = BLOCK + 8 /* avoids bank conflicts */
};

template <int DIM> struct pair_sizes {
    static constexpr int STAGE = BLOCK * DIM * 2;
    static constexpr int STAGES = RING_BYTES / STAGE < STAGES_MAX ? RING_BYTES / STAGE : STAGES_MAX;
    static constexpr int STEPS = DIM / 16;    /* of a dot product */
    static constexpr int TILES = DIM / 8 / 2; /* groups of eight of head_dim in a warp */
    static constexpr int Q_STRIDE = DIM + 8;
    static constexpr int Q_BYTES = ROWS * Q_STRIDE * 2;
};

typedef struct shared_state {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    float block_max[WARPS][EACH_ROWS]; /* of half a block */
    alignas(16) uint16_t w[ROWS * W_STRIDE];
} shared_state;

/* ---- the producer ----------------------------------------------------------------------------------------------- */

template <int DIM> struct pair_producer {
    typedef pair_sizes<DIM> z;
    const iv_attention_params &p;
    const CUtensorMap *map;
    shared_state *s;
    uint32_t ring;
    ring_position at;

    __device__ __forceinline__ void fill(int row) {
        uint32_t full = iv_shared(&s->full[at.stage]);
        iv_mbar_wait_idle(iv_shared(&s->empty[at.stage]), at.phase ^ 1);
        iv_mbar_expect(full, z::STAGE);
        iv_tma_load_4d(ring + at.stage * z::STAGE, map, full, 0, 0, 0, row / 8, IV_L2_NORMAL);
        at = ahead<z::STAGES>(at, 1);
    }

    __device__ __forceinline__ void run(int lane) {
        iv_tall_item i;
        for (int j = 0; iv_next_tall(p, j, &i); j++) {
            int last = i.tile.last_block;
            uint32_t page = 0; /* of 32 blocks, one per thread */
            for (int b = i.tile.first_block, known = b - 32; b <= last; b++) {
                if (b >= known + 32) {
                    known = b;
                    page = b + lane <= last ? __ldg(p.tables + i.tile.table + b + lane) : 0;
                }
                int row = iv_page_row(p, __shfl_sync(~0u, page, b - known), i.kv_head, 0);
                if (lane != 0) continue;
                fill(row);
                fill(row + BLOCK);
            }
        }
    }
};

/* ---- the consumers ---------------------------------------------------------------------------------------------- */

template <int DIM, iv_dtype TYPE> struct pair_consumer {
    typedef pair_sizes<DIM> z;
    const iv_attention_params &p;
    shared_state *s;
    uint16_t *queries;
    uint32_t ring;
    ring_position at; /* of the next block */
    int warp, lane, g, t;

    float out[z::TILES][4], total[z::TILES][4], sum[4]; /* sum: row g's twice, row g + 8's twice */
    int low[2], high[2];                                /* range of keys visible to rows g and g + 8 */
    float max[2], total_max[2], total_sum[2];

    __device__ __forceinline__ int first_row(void) { return warp / 2 * EACH_ROWS; }
    __device__ __forceinline__ int half(void) { return warp % 2; }
    __device__ __forceinline__ void sync_pair(void) { iv_named_sync(1 + warp / 2, 64); }

    /* The element in q and out where a packed row begins; false if there is no such row. */
    __device__ __forceinline__ bool element_of(const iv_tall_item &it, int row, size_t *element, int *head) {
        int token = row / p.group;
        *head = it.kv_head * p.group + row - token * p.group - p.group_first;
        *element = ((size_t)(it.tile.first_row + token) * p.heads + *head) * DIM;
        return token < it.tile.tokens && *head >= 0 && *head < p.heads;
    }

    __device__ __forceinline__ void begin(const iv_tall_item &it) {
        constexpr int PIECES = DIM / 8;
        for (int i = half() * 32 + lane; i < EACH_ROWS * PIECES; i += 64) {
            int row = first_row() + i / PIECES, piece = i % PIECES, head;
            size_t from;
            uint4 v = {0, 0, 0, 0};
            if (element_of(it, row, &from, &head)) v = *(const uint4 *)((const uint16_t *)p.q + from + piece * 8);
            *(uint4 *)&queries[row * z::Q_STRIDE + piece * 8] = v;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int token = (first_row() + g + 8 * h) / p.group;
            high[h] = it.tile.position + (token < it.tile.tokens ? token : 0);
            low[h] = iv_attention_low(high[h], p.window);
            total_max[h] = -INFINITY, total_sum[h] = -0.0f;
        }
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[i][j] = -0.0f;
        sync_pair();
    }

    __device__ __forceinline__ uint32_t wait(void) {
        iv_mbar_wait(iv_shared(&s->full[at.stage]), at.phase);
        return ring + at.stage * z::STAGE;
    }
    __device__ __forceinline__ void release(void) {
        iv_fence_async(); /* ends this lane's reads of the block, which an arrival may pass */
        __syncwarp();
        if (lane == 0) iv_mbar_arrive(iv_shared(&s->empty[at.stage]));
        at = ahead<z::STAGES>(at, 1);
    }

    /* Dot products of the warp's 32 keys of a block with the 16 rows. */
    __device__ __forceinline__ void scores(float (&x)[4][4], uint32_t block) {
        uint32_t from = iv_shared(queries) + (uint32_t)((first_row() + lane % 16) * z::Q_STRIDE + lane / 16 * 8) * 2;
        uint32_t a[2][4], b[2][2][4];
        int row = half() * HALF + lane / 16 * 8 + lane % 8, eighth = lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < 4; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
        load_matrices(a[0], from);
        load_matrices(b[0][0], block_address<DIM>(block, row, eighth));
        load_matrices(b[0][1], block_address<DIM>(block, row + 16, eighth));
#pragma unroll
        for (int k = 0; k < z::STEPS; k++) {
            if (k + 1 < z::STEPS) {
                load_matrices(a[(k + 1) % 2], from + (k + 1) * 32);
                load_matrices(b[(k + 1) % 2][0], block_address<DIM>(block, row, k * 2 + 2 + eighth));
                load_matrices(b[(k + 1) % 2][1], block_address<DIM>(block, row + 16, k * 2 + 2 + eighth));
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma<TYPE>(x[i], a[k % 2], b[k % 2][i / 2][i % 2 * 2], b[k % 2][i / 2][i % 2 * 2 + 1]);
        }
    }

    __device__ __forceinline__ bool sees(int h, int b) { return high[h] >= b * BLOCK && low[h] < (b + 1) * BLOCK; }

    __device__ __forceinline__ void cap(float (&x)[4][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) x[i][j] = v_tanh(__fmul_rn(x[i][j], p.score_inner));
    }

    __device__ __forceinline__ void hide(float (&x)[4][4], int b) {
        int key = b * BLOCK + half() * HALF + 2 * t;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int k = key + i * 8 + j % 2;
                x[i][j] = (k > high[j / 2]) | (k < low[j / 2]) ? -INFINITY : x[i][j];
            }
    }

    /* Steps 2 to 4 of the law for block b: scores become rounded weights in shared memory. A row that sees no key of
     * the block has weights of 0 and an alpha of 1. */
    __device__ __forceinline__ void weigh_block(float (&x)[4][4], int b, float (&alpha)[2]) {
        float m[2] = {-INFINITY, -INFINITY}; /* NaN is ignored */
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) m[j / 2] = fmaxf(m[j / 2], x[i][j]);
#pragma unroll
        for (int i = 1; i <= 2; i *= 2) {
            m[0] = fmaxf(m[0], __shfl_xor_sync(~0u, m[0], i));
            m[1] = fmaxf(m[1], __shfl_xor_sync(~0u, m[1], i));
        }
        if (t == 0) s->block_max[warp][g] = m[0], s->block_max[warp][g + 8] = m[1];
        sync_pair();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bool see = sees(h, b);
            float now = iv_next_max(max[h], __fmul_rn(fmaxf(m[h], s->block_max[warp ^ 1][g + 8 * h]), p.scale));
            alpha[h] = see ? v_ex2(v_sub(max[h], now)) : 1.0f;
            max[h] = now;
            uint16_t *to = &s->w[(first_row() + g + 8 * h) * W_STRIDE + half() * HALF + 2 * t];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float w0 = v_ex2(__fmaf_rn(x[i][2 * h], p.scale, -now));
                float w1 = v_ex2(__fmaf_rn(x[i][2 * h + 1], p.scale, -now));
                *(uint32_t *)(to + i * 8) = iv_pack16(TYPE, see ? w0 : 0.0f, see ? w1 : 0.0f);
            }
        }
        sync_pair();
    }

    /* Steps 5 and 6: the chains over the block's values, and over ones. */
    __device__ __forceinline__ void values(uint32_t block, const float (&alpha)[2], bool fresh) {
        constexpr int PAIRS = z::TILES / 2, LOADS = BLOCK / 16 * PAIRS;
        uint32_t weights = iv_shared(s->w) + (uint32_t)((first_row() + lane % 16) * W_STRIDE + lane / 16 * 8) * 2;
        uint32_t a[BLOCK / 16][4], b[2][4];
        int row = lane % 16, eighth = half() * z::TILES + lane / 16;
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) load_matrices(a[k], weights + k * 32);
        load_matrices_transposed(b[0], block_address<DIM>(block, row, eighth));
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) out[i][j] = fresh ? 0.0f : __fmul_rn(out[i][j], alpha[j / 2]);
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = fresh ? 0.0f : __fmul_rn(sum[j], alpha[j / 2]);
        const uint32_t ones = iv_pack16(TYPE, 1.0f, 1.0f);
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            int k = n / PAIRS, i = n % PAIRS, next = n + 1;
            if (next < LOADS)
                load_matrices_transposed(b[next % 2],
                                         block_address<DIM>(block, next / PAIRS * 16 + row, eighth + next % PAIRS * 2));
            if (i == 0) mma<TYPE>(sum, a[k], ones, ones);
            mma<TYPE>(out[2 * i], a[k], b[n % 2][0], b[n % 2][1]);
            mma<TYPE>(out[2 * i + 1], a[k], b[n % 2][2], b[n % 2][3]);
        }
    }

    /* Merges out and sum into the total. The first split gets the factors 0 and 1, with a total of -0; a split that
     * the row does not see is +0 and gets 1 and -0. Neither changes a bit. */
    __device__ __forceinline__ void merge_split(int split) {
        iv_attention_factors j[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bool saw = high[h] >= split * IV_KV_SPLIT && low[h] < (split + 1) * IV_KV_SPLIT;
            bool first = low[h] >= split * IV_KV_SPLIT;
            float both = total_max[h];
            j[h] = iv_attention_factors_of<true>(&both, max[h]);
            if (first) j[h] = {0.0f, 1.0f};
            if (!saw) j[h] = {1.0f, -0.0f};
            total_sum[h] = iv_attention_merged(total_sum[h], sum[2 * h], j[h]), total_max[h] = both;
        }
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) total[i][k] = iv_attention_merged(total[i][k], out[i][k], j[k / 2]);
    }

    __device__ __forceinline__ void write_out(const iv_tall_item &it) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            size_t to;
            int head;
            if (!element_of(it, first_row() + g + 8 * h, &to, &head)) continue;
            float keep = iv_attention_sink<true>(p, head, &total_max[h], &total_sum[h]), l = total_sum[h];
            uint16_t *row = (uint16_t *)p.out + to + half() * (DIM / 2) + 2 * t;
#pragma unroll
            for (int i = 0; i < z::TILES; i++) {
                float x = iv_canon(__fdiv_rn(__fmul_rn(total[i][2 * h], keep), l));
                float y = iv_canon(__fdiv_rn(__fmul_rn(total[i][2 * h + 1], keep), l));
                *(uint32_t *)(row + i * 8) = iv_pack16(TYPE, x, y);
            }
            if (p.lse2 && half() == 0 && t == 0) p.lse2[to / DIM] = iv_attention_lse2(total_max[h], l);
        }
    }

    __device__ __forceinline__ void run(const iv_tall_item &it) {
        int first = it.tile.first_block, last = it.tile.last_block;
        int hidden_from = (it.tile.position + 1) / BLOCK; /* the first block that some row does not see entirely */
        int seen_from = (iv_attention_low(it.tile.position + it.tile.tokens - 1, p.window) + BLOCK - 1) / BLOCK;
        begin(it);
        for (int b = first; b <= last; b++) {
            bool fresh = b == first || b % EACH == 0;
            if (fresh) max[0] = max[1] = -INFINITY;
            float x[4][4], alpha[2];
            scores(x, wait());
            release();
            if (p.score_inner != 0.0f) cap(x);
            if (b >= hidden_from || b < seen_from) hide(x, b);
            weigh_block(x, b, alpha);
            values(wait(), alpha, fresh);
            release();
            if (b == last || (b + 1) % EACH == 0) merge_split(b / EACH);
        }
        write_out(it);
    }
};

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    pairs_kernel(const __grid_constant__ iv_attention_params p, const __grid_constant__ CUtensorMap map) {
    typedef pair_sizes<DIM> z;
    extern __shared__ char memory[];
    uint32_t ring = (iv_shared(memory) + 1023) & ~1023u;
    char *rest = memory + (ring - iv_shared(memory)) + z::STAGES * z::STAGE;
    uint16_t *queries = (uint16_t *)rest;
    shared_state *s = (shared_state *)(rest + z::Q_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < z::STAGES; i++)
            iv_mbar_init(iv_shared(&s->full[i]), 1), iv_mbar_init(iv_shared(&s->empty[i]), WARPS);
        iv_mbar_init_fence();
        iv_tma_prefetch_map(&map);
    }
    __syncthreads();
    iv_dependency_wait();
    iv_dependency_release();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp >= WARPS) {
        iv_registers_give<40>();
        if (warp > WARPS) return;
        pair_producer<DIM> c = {p, &map, s, ring, {0, 0}};
        c.run(lane);
        return;
    }
    iv_registers_take<232>();
    pair_consumer<DIM, TYPE> c = {p, s, queries, ring, {0, 0}, warp, lane, lane / 4, lane % 4};
    iv_tall_item i;
    for (int j = 0; iv_next_tall(p, j, &i); j++) c.run(i);
}

template <int DIM, iv_dtype TYPE> static int launch(const iv_gpu_attention_args *a, cudaStream_t stream) {
    CUtensorMap map;
    int failed = iv_blocks_map(&map, &a->kv);
    if (failed) return failed;
    size_t bytes =
        1024 + pair_sizes<DIM>::STAGES * pair_sizes<DIM>::STAGE + pair_sizes<DIM>::Q_BYTES + sizeof(shared_state);
    return iv_launch_with_shared(pairs_kernel<DIM, TYPE>, a->sms, THREADS, bytes, stream,
                                 (const iv_attention_params)iv_attention_params_of(a, false), (const CUtensorMap)map);
}

int iv_attention_prefill_pairs(const iv_gpu_attention_args *a, iv_gpu_stream stream) {
    bool bf16 = a->shape.type == IV_BF16;
    switch (a->shape.head_dim) {
    case 64: return bf16 ? launch<64, IV_BF16>(a, stream) : launch<64, IV_F16>(a, stream);
    case 128: return bf16 ? launch<128, IV_BF16>(a, stream) : launch<128, IV_F16>(a, stream);
    default: return bf16 ? launch<256, IV_BF16>(a, stream) : launch<256, IV_F16>(a, stream);
    }
}
