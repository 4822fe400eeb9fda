/* attention_decode_sm90a.cu: attention of a few rows over long contexts: tiles of at most 16 packed rows, one CTA
 * per multiprocessor. A producer warp streams blocks of keys and values through a ring in shared memory. Eight warps
 * process a split at a time: the dot products of its four blocks in parallel, the running maxima, then the chain
 * over the values, with a range of head_dim for each warp, and the rows' sums in all warps. */
#include "kernels/cuda/attention_decode.cuh"

/* ---- the producer -------------------------------------------------------------------------------------------------
 */

template <int DIM> struct producer {
    const iv_attention_params &p;
    const CUtensorMap *map;
    shared_state *s;
    uint32_t ring;
    ring_position at;
    bool waited;

    __device__ __forceinline__ void fill(int row) {
        typedef sizes<DIM> z;
        uint32_t full = iv_shared(&s->full[at.stage]), to = ring + at.stage * z::STAGE;
        iv_mbar_wait(iv_shared(&s->empty[at.stage]), at.phase ^ 1);
        iv_mbar_expect(full, z::STAGE);
        iv_tma_load_4d(to, map, full, 0, 0, 0, row / 8, IV_L2_FIRST);
        at = ahead<z::STAGES>(at, 1);
    }

    /* Streams the run's splits. Blocks that this step writes are read only after the preceding kernels have ended. */
    __device__ __forceinline__ void run(const iv_attention_run &r, int lane) {
        int first = max((r.first_split + r.begin) * EACH, r.tile.first_block);
        int last = min((r.first_split + r.end) * EACH - 1, r.tile.last_block), known = first - 32;
        uint32_t pages = 0;
        for (int b = first; b <= last;) {
            int end = min(b / EACH * EACH + EACH - 1, last);
            if (end >= known + 32) {
                known = b;
                pages = b + lane <= last ? __ldg(p.tables + r.tile.table + b + lane) : 0;
            }
            if (!waited && (end + 1) * BLOCK > r.tile.position) {
                iv_dependency_wait();
                waited = true;
            }
            for (int values = 0; values < 2; values++)
                for (int i = b; i <= end; i++) {
                    uint32_t page = __shfl_sync(~0u, pages, i - known);
                    if (lane == 0) fill(iv_page_row(p, page, r.kv_head, values));
                }
            b = end + 1;
        }
    }
};

/* ---- the consumers ------------------------------------------------------------------------------------------------
 */

template <int DIM, iv_dtype TYPE> struct consumer {
    typedef sizes<DIM> z;
    const iv_attention_params &p;
    shared_state *s;
    uint32_t ring;
    ring_position at;
    int warp, lane, g, t;

    /* per run */
    uint32_t q[z::STEPS][4];
    int low[2], high[2]; /* range of keys visible to rows g and g + 8 */
    bool tall;           /* there are rows from 8 on */
    float total[z::TILES][4], total_max[2], total_sum[2];
    bool started[2];
    /* per split */
    float out[z::TILES][4], sum[4]; /* row g's sum twice, row g + 8's twice */

    /* Loads the queries through shared memory: one load per thread instead of many small ones. */
    __device__ __forceinline__ void load_queries(const iv_attention_run &r) {
        constexpr int PIECES = DIM / 8;
        int piece = (int)threadIdx.x % PIECES;
#pragma unroll
        for (int row = (int)threadIdx.x / PIECES; row < ROWS; row += CONSUMERS / PIECES) {
            size_t from;
            uint4 v = {0, 0, 0, 0};
            if (element_of(p, r, row, &from)) v = *(const uint4 *)((const uint16_t *)p.q + from + piece * 8);
            *(uint4 *)&s->q[row * z::Q_STRIDE + piece * 8] = v;
        }
        sync_consumers();
        uint32_t at = iv_shared(s->q) + (uint32_t)(lane % 16 * z::Q_STRIDE + lane / 16 * 8) * 2;
#pragma unroll
        for (int k = 0; k < z::STEPS; k++) load_matrices(q[k], at + k * 32);
    }

    __device__ __forceinline__ void begin(const iv_attention_run &r) {
        load_queries(r);
        high[0] = position_of(p, r, g), high[1] = position_of(p, r, g + 8);
        low[0] = iv_attention_low(high[0], p.window), low[1] = iv_attention_low(high[1], p.window);
        tall = r.tile.tokens * r.width > 8;
        started[0] = started[1] = false;
        total_max[0] = total_max[1] = -INFINITY, total_sum[0] = total_sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[i][j] = 0.0f;
    }

    /* Dot products of 32 keys of a block with the 16 rows. */
    __device__ __forceinline__ void scores(float (&x)[4][4], uint32_t block) {
#pragma unroll
        for (int i = 0; i < 4; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
        int row = warp % 2 * 32 + lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
        uint32_t b[2][2][4];
        load_matrices(b[0][0], block_address<DIM>(block, row, half));
        load_matrices(b[0][1], block_address<DIM>(block, row + 16, half));
#pragma unroll
        for (int k = 0; k < z::STEPS; k++) {
            if (k + 1 < z::STEPS) {
                load_matrices(b[(k + 1) % 2][0], block_address<DIM>(block, row, k * 2 + 2 + half));
                load_matrices(b[(k + 1) % 2][1], block_address<DIM>(block, row + 16, k * 2 + 2 + half));
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma<TYPE>(x[i], q[k], b[k % 2][i / 2][i % 2 * 2], b[k % 2][i / 2][i % 2 * 2 + 1]);
        }
    }

    __device__ __forceinline__ bool sees(int h, int b) { return high[h] >= b * BLOCK && low[h] < (b + 1) * BLOCK; }

    /* Caps and masks, and stores each row's maximum of the warp's half block, scaled: the larger of two products is the
     * product of the larger factor. */
    __device__ __forceinline__ void hide(float (&x)[4][4], int b, bool masked) {
        float m[2] = {-INFINITY, -INFINITY};
        if (p.score_inner != 0.0f)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) x[i][j] = v_tanh(__fmul_rn(x[i][j], p.score_inner));
        if (masked) {
            int key = b * BLOCK + warp % 2 * 32 + 2 * t;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    bool hidden = (key + i * 8 + j % 2 > high[j / 2]) | (key + i * 8 + j % 2 < low[j / 2]);
                    x[i][j] = hidden ? -INFINITY : x[i][j];
                }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) m[j / 2] = fmaxf(m[j / 2], x[i][j]);
#pragma unroll
        for (int i = 1; i <= 2; i *= 2) {
            m[0] = fmaxf(m[0], __shfl_xor_sync(~0u, m[0], i));
            m[1] = fmaxf(m[1], __shfl_xor_sync(~0u, m[1], i));
        }
        if (t == 0)
            s->block_max[warp][g] = __fmul_rn(m[0], p.scale), s->block_max[warp][g + 8] = __fmul_rn(m[1], p.scale);
    }

    /* For rows g + 8 h: the running maxima, alpha, and the weights of the warp's half block. */
    template <int H> __device__ __forceinline__ void weigh_rows(const float (&x)[4][4], int b, bool here) {
        float m = -INFINITY, before = m, now = m;
        int row = g + 8 * H;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            before = i == warp / 2 ? m : before;
            m = iv_next_max(m, fmaxf(s->block_max[2 * i][row], s->block_max[2 * i + 1][row]));
            now = i == warp / 2 ? m : now;
        }
        if (warp == 0 && t == 0) s->split_max[row] = m;
        if (!here) return;
        bool see = sees(H, b);
        float alpha = v_ex2(v_sub(before, now));
        alpha = see ? alpha : 1.0f;
        if (warp % 2 == 0 && t == 0) s->alpha[warp / 2][row] = alpha;
        uint16_t *rounded = &s->w[row * W_STRIDE + warp * 32 + 2 * t];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float w0 = v_ex2(__fmaf_rn(x[i][2 * H], p.scale, -now)),
                  w1 = v_ex2(__fmaf_rn(x[i][2 * H + 1], p.scale, -now));
            w0 = see ? w0 : 0.0f, w1 = see ? w1 : 0.0f;
            *(uint32_t *)(rounded + i * 8) = iv_pack16(TYPE, w0, w1);
        }
    }

    /* out = the chain over one block's values; the sum is the same chain over values of one. */
    __device__ __forceinline__ void values(uint32_t block, int in_split, bool first) {
        float alpha[2] = {s->alpha[in_split][g], s->alpha[in_split][g + 8]};
        uint32_t weights =
            iv_shared(s->w) + (uint32_t)(((lane % 16) * W_STRIDE + in_split * BLOCK + lane / 16 * 8) * 2);
        constexpr int PAIRS = z::TILES / 2; /* of tiles; 0: one tile, of which one load has two steps */
        uint32_t a[BLOCK / 16][4], b[PAIRS ? BLOCK / 16 * PAIRS : BLOCK / 32][4];
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            load_matrices(a[k], weights + k * 32);
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                load_matrices_transposed(b[k * PAIRS + i], block_address<DIM>(block, k * 16 + lane % 16,
                                                                              warp * z::TILES + 2 * i + lane / 16));
            if (PAIRS == 0 && k % 2 == 0)
                load_matrices_transposed(b[k / 2], block_address<DIM>(block, k * 16 + lane, warp));
        }
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) out[i][j] = first ? 0.0f : __fmul_rn(out[i][j], alpha[j / 2]);
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = first ? 0.0f : __fmul_rn(sum[j], alpha[j / 2]);
        const uint32_t ones = iv_pack16(TYPE, 1.0f, 1.0f);
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            mma<TYPE>(sum, a[k], ones, ones);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                mma<TYPE>(out[2 * i], a[k], b[k * PAIRS + i][0], b[k * PAIRS + i][1]);
                mma<TYPE>(out[2 * i + 1], a[k], b[k * PAIRS + i][2], b[k * PAIRS + i][3]);
            }
            if (PAIRS == 0) mma<TYPE>(out[0], a[k], b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
        }
    }

    __device__ __forceinline__ void one_split(const iv_attention_run &r, int split) {
        int first = max(split * EACH, r.tile.first_block), last = min(split * EACH + EACH - 1, r.tile.last_block);
        int n = last - first + 1, b = split * EACH + warp / 2, last_position = r.tile.position + r.tile.tokens - 1;
        bool here = b >= first && b <= last;
        float x[4][4];
        if (here) {
            ring_position from = ahead<z::STAGES>(at, b - first);
            iv_mbar_wait(iv_shared(&s->full[from.stage]), from.phase);
            scores(x, ring + from.stage * z::STAGE);
            bool masked =
                b * BLOCK + BLOCK - 1 > r.tile.position || iv_attention_low(last_position, p.window) > b * BLOCK;
            hide(x, b, masked);
        } else if (t == 0)
            s->block_max[warp][g] = s->block_max[warp][g + 8] = -INFINITY;
        /* A warp also releases keys that it does not wait for. In a short ring the same stage may still have values of
         * the split before, which another warp reads. */
        if (z::STAGES < 2 * EACH) sync_consumers();
        iv_fence_async();
        __syncwarp();
        if (lane < n) iv_mbar_arrive(iv_shared(&s->empty[ahead<z::STAGES>(at, lane).stage]));
        at = ahead<z::STAGES>(at, n);
        sync_consumers();
        weigh_rows<0>(x, b, here);
        if (tall) weigh_rows<1>(x, b, here);
        sync_consumers();
        for (int i = first; i <= last; i++) {
            iv_mbar_wait(iv_shared(&s->full[at.stage]), at.phase);
            values(ring + at.stage * z::STAGE, i - split * EACH, i == first);
            iv_fence_async(); /* ends this lane's reads of the block, which an arrival may pass */
            __syncwarp();
            if (lane == 0) iv_mbar_arrive(iv_shared(&s->empty[at.stage]));
            at = ahead<z::STAGES>(at, 1);
        }
    }

    /* Merges the split into the total. */
    template <int H> __device__ __forceinline__ void merge_rows(int split) {
        bool saw = high[H] >= split * IV_KV_SPLIT && low[H] < (split + 1) * IV_KV_SPLIT;
        bool merges = started[H] && saw;
        float m = s->split_max[g + 8 * H], both = total_max[H];
        iv_attention_factors j = iv_attention_factors_of<true>(&both, m);
        float merged_sum = iv_attention_merged(total_sum[H], sum[2 * H], j);
        total_sum[H] = merges ? merged_sum : saw ? sum[2 * H] : total_sum[H];
        total_max[H] = merges ? both : saw ? m : total_max[H];
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int k = 2 * H; k < 2 * H + 2; k++) {
                float merged = iv_attention_merged(total[i][k], out[i][k], j);
                total[i][k] = merges ? merged : saw ? out[i][k] : total[i][k];
            }
        started[H] |= saw;
    }

    __device__ __forceinline__ void merge_split(int split) {
        merge_rows<0>(split);
        if (tall) merge_rows<1>(split);
    }

    /* Stores a state in the scratch. */
    __device__ __forceinline__ void store_state(const iv_attention_run &r, const float (&o)[z::TILES][4], size_t row,
                                                float2 m, float2 l) {
        int rows = r.tile.tokens * r.width;
        float *to = p.partial + row * p.stride;
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (g + 8 * h < rows)
                    store_ready2(to + (g + 8 * h) * p.stride + (warp * z::TILES + i) * 8 + 2 * t, o[i][2 * h],
                                 o[i][2 * h + 1]);
        int mine = g + 8 * warp;
        if (warp < 2 && t == 0 && mine < rows)
            store_ready2(to + mine * p.stride + p.stride - 2, warp ? m.y : m.x, warp ? l.y : l.x);
    }

    __device__ __forceinline__ void write_out(const iv_attention_run &r) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            size_t to;
            if (!element_of(p, r, g + 8 * h, &to)) continue;
            float keep = iv_attention_sink<true>(p, head_of(p, r, g + 8 * h), &total_max[h], &total_sum[h]);
            float l = total_sum[h];
#pragma unroll
            for (int i = 0; i < z::TILES; i++)
                put<TYPE>(p, to + (warp * z::TILES + i) * 8 + 2 * t, __fmul_rn(total[i][2 * h], keep),
                          __fmul_rn(total[i][2 * h + 1], keep), l);
            if (p.lse2 && warp == 0 && t == 0) p.lse2[to / DIM] = iv_attention_lse2(total_max[h], l);
        }
    }

    __device__ __forceinline__ iv_attention_kv_split kv_split_of(const iv_attention_run &r) {
        const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
        bool whole = r.begin == 0 && r.end == r.splits;
        if (whole) return {0, 0, 0, 0};
        int4 a = __ldg((const int4 *)(p.plan + head->kv_splits_at) + r.kv_split);
        return {a.x, a.y, a.z, 0};
    }

    /* True if other workers have a part in the tile's slice: the result is not complete, and `open` describes the
     * merge. */
    __device__ __forceinline__ bool run(const iv_attention_run &r, const iv_attention_kv_split &kv_split,
                                        open_kv_split *open) {
        int rows = r.tile.tokens * r.width;
        begin(r);
        for (int i = r.begin; i < r.end; i++) {
            one_split(r, r.first_split + i);
            if (r.begin == 0)
                merge_split(r.first_split + i);
            else
                store_state(r, out, kv_split.partial + (size_t)(i - kv_split.split + 1) * rows,
                            make_float2(s->split_max[g], s->split_max[g + 8]), make_float2(sum[0], sum[2]));
        }
        if (r.begin == 0 && r.end == r.splits) {
            write_out(r);
            return false;
        }
        if (r.begin == 0)
            store_state(r, total, kv_split.partial, make_float2(total_max[0], total_max[1]),
                        make_float2(total_sum[0], total_sum[1]));
        if (threadIdx.x == 0) *open = {r, kv_split};
        sync_consumers();
        return true;
    }

    /* All runs of a worker, from r on; then the merges of the slices that its first and its last run are part of. */
    __device__ __forceinline__ void work(iv_attention_walk &w, iv_attention_run &r, iv_attention_kv_split kv_split,
                                         float4 *stage, bool wait) {
        int opened = 0;
        bool open = false;
        for (bool more = true; more;) {
            open = run(r, kv_split, &s->open[opened]);
            opened += open;
            more = iv_walk_next(p, w, r);
            if (more) kv_split = kv_split_of(r);
        }
        if (opened && !open) sync_consumers(); /* other warps may still be at a complete run */
#pragma unroll 1
        for (int k = 0; k < opened; k++) {
            open_kv_split o = s->open[k];
            if (wait)
                merge<DIM, TYPE, true>(p, s, stage, o.run, o.kv_split, o.run.part, o.kv_split.parts);
            else
                finish_if_last<DIM, TYPE>(p, s, o);
        }
    }
};

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    decode_kernel(const __grid_constant__ iv_attention_params p, const __grid_constant__ CUtensorMap map) {
    typedef sizes<DIM> z;
    extern __shared__ char memory[];
    uint32_t ring = (iv_shared(memory) + 1023) & ~1023u;
    char *start = memory + (ring - iv_shared(memory));
    shared_state *s = (shared_state *)(start + RING_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < z::STAGES; i++)
            iv_mbar_init(iv_shared(&s->full[i]), 1), iv_mbar_init(iv_shared(&s->empty[i]), WARPS);
        iv_mbar_init_fence();
    }
    if (threadIdx.x == CONSUMERS) iv_tma_prefetch_map(&map);
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp >= WARPS) {
        iv_registers_give<40>();
        if (warp > WARPS) return;
        producer<DIM> c = {p, &map, s, ring, {0, 0}, false};
        iv_attention_run r;
        for (int worker = blockIdx.x, n = iv_walk_workers(p); worker < n; worker += gridDim.x)
            for (iv_attention_walk w = iv_walk_start(p, worker); iv_walk_next(p, w, r);) c.run(r, lane);
        return;
    }
    iv_registers_take<232>();
    consumer<DIM, TYPE> c = {p, s, ring, {0, 0}, warp, lane, lane / 4, lane % 4};
    bool wait = resident(p), some = false;
    int n = iv_walk_workers(p), worker = blockIdx.x;
    iv_attention_walk w = {};
    iv_attention_run r = {};
    iv_attention_kv_split kv_split = {};
    for (bool first = true; first || worker < n; first = false) {
        if (worker < n) { /* not written by any kernel of the stream */
            w = iv_walk_start(p, worker);
            some = iv_walk_next(p, w, r);
            if (some) kv_split = c.kv_split_of(r);
        }
        if (first) iv_dependency_wait();
        if (first) iv_dependency_release();
        if (some) c.work(w, r, kv_split, (float4 *)start, wait);
        worker += gridDim.x;
    }
}

template <int DIM, iv_dtype TYPE> static int launch(const iv_gpu_attention_args *a, int workers, cudaStream_t stream) {
    CUtensorMap map;
    int failed = iv_blocks_map(&map, &a->kv), device, sms;
    if (failed) return failed;
    if ((failed = cudaGetDevice(&device))) return failed;
    if ((failed = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device))) return failed;
    iv_attention_params p = iv_attention_params_of(a, false);
    p.resident = workers <= sms;
    size_t bytes = 1024 + RING_BYTES + sizeof(shared_state);
    return iv_launch_with_shared(decode_kernel<DIM, TYPE>, workers, THREADS, bytes, stream,
                                 (const iv_attention_params)p, (const CUtensorMap)map);
}

int iv_attention_decode(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream) {
    bool bf16 = a->shape.type == IV_BF16;
    if (a->shape.head_dim == 256)
        return bf16 ? launch<256, IV_BF16>(a, workers, stream) : launch<256, IV_F16>(a, workers, stream);
    if (a->shape.head_dim == 128)
        return bf16 ? launch<128, IV_BF16>(a, workers, stream) : launch<128, IV_F16>(a, workers, stream);
    return bf16 ? launch<64, IV_BF16>(a, workers, stream) : launch<64, IV_F16>(a, workers, stream);
}
