/* attention_decode_sm90a.cu: attention of a few rows over long contexts: tiles of at most 16 packed rows, one CTA a
 * multiprocessor. A producer warp streams blocks of keys and values through a ring in shared memory; eight warps take a
 * split at a time: its four blocks' dot products side by side, then the running maxima, then each warp a share of
 * head_dim for the chain over the values, and all of them the rows' sums. */
#include "kernels/cuda/attention_hopper.cuh"

enum {
    ROWS = 16,
    WARPS = 8,
    CONSUMERS = WARPS * 32,
    THREADS = CONSUMERS + 128, /* a warpgroup gives its registers to the others; one warp of it works */
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    RING_BYTES = 192 * 1024,
    W_STRIDE = IV_ATTENTION_SPLIT + 8, /* no bank conflicts */
    JOIN_SLOTS = 128 /* states merged at a time */
};

typedef struct shared_state {
    uint64_t full[24], empty[24];
    float block_max[WARPS][ROWS]; /* of half a block */
    float alpha[EACH][ROWS];
    float split_max[ROWS], total_sum[ROWS];
    int flag;
    union alignas(16) {
        uint16_t w[ROWS * W_STRIDE];
        struct { /* of a row and a state: how it joins, before that its maximum; its sum */
            iv_attention_join join[ROWS][JOIN_SLOTS];
            float sum[ROWS][JOIN_SLOTS];
        };
    };
} shared_state;

template <int DIM> struct sizes {
    static constexpr int STAGE = BLOCK * DIM * 2, STAGES = RING_BYTES / STAGE;
    static constexpr int STEPS = DIM / 16;        /* of a dot product */
    static constexpr int TILES = DIM / 8 / WARPS; /* eights of head_dim a warp has */
};

template <iv_dtype TYPE> IV_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

IV_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
IV_DEVICE void load_matrices_turned(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* The address of 8 elements: row of a block, eighth of head_dim. A block lies as eights of rows, an eight of rows as
 * chunks: one after the other in memory, too, which streams faster than chunks of all the block's rows. */
template <int DIM> IV_DEVICE uint32_t block_address(uint32_t block, int row, int eighth) {
    return block + (uint32_t)(row / 8 * (DIM * 16) + eighth / 8 * 1024 + row % 8 * 128 + ((eighth ^ row) % 8 << 4));
}

/* All pages as chunks of head_dim by eights of rows; a box is one block's keys or values. */
static int make_map(CUtensorMap *map, const iv_gpu_kv *kv) {
    uint64_t row = kv->head_dim * iv_dtype_bytes(kv->type), chunks = kv->head_dim / IV_CHUNK_ELEMENTS;
    uint64_t eights = (uint64_t)kv->page_count * kv->heads * 2 * BLOCK / 8;
    uint64_t size[4] = {IV_CHUNK_ELEMENTS, 8, chunks, eights}, stride[3] = {row, 128, 8 * row};
    uint32_t box[4] = {IV_CHUNK_ELEMENTS, 8, (uint32_t)chunks, BLOCK / 8};
    if (eights > INT32_MAX / 8) return cudaErrorInvalidValue;
    return iv_map_make(map, kv->type, kv->pages, 4, size, stride, box);
}

/* A place in the ring: fills and uses follow one order. */
typedef struct ring_place {
    int stage;
    uint32_t phase;
} ring_place;

template <int STAGES> IV_DEVICE ring_place ahead(ring_place r, int by) {
    r.stage += by;
    if (r.stage >= STAGES) r.stage -= STAGES, r.phase ^= 1;
    return r;
}

/* ---- the producer -------------------------------------------------------------------------------------------------
 */

template <int DIM> struct producer {
    const iv_attention_params &p;
    const CUtensorMap *map;
    shared_state *s;
    uint32_t ring;
    ring_place at;
    bool waited;

    __device__ __forceinline__ void fill(int row) {
        typedef sizes<DIM> z;
        uint32_t full = iv_shared(&s->full[at.stage]), to = ring + at.stage * z::STAGE;
        iv_mbar_wait(iv_shared(&s->empty[at.stage]), at.phase ^ 1);
        iv_mbar_expect(full, z::STAGE);
        iv_tma_load_4d(to, map, full, 0, 0, 0, row / 8, IV_L2_FIRST);
        at = ahead<z::STAGES>(at, 1);
    }

    /* All the run's splits. Blocks that this step writes to are not read before the kernels before have ended. */
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

/* ---- rows and results -----------------------------------------------------------------------------------------------
 */

IV_DEVICE int position_of(const iv_attention_run &r, int row) {
    int token = row / r.width;
    return r.tile.position + (token < r.tile.tokens ? token : 0);
}

/* Where packed row `row` lies in q and out, in elements; false where there is none. */
IV_DEVICE bool place(const iv_attention_params &p, const iv_attention_run &r, int row, size_t *element) {
    int token = row / r.width, in = row - token * r.width, head = r.head + in;
    *element = ((size_t)(r.tile.first_row + token) * p.heads + head) * p.head_dim;
    return token < r.tile.tokens && in < r.present && head >= 0 && head < p.heads;
}

/* Two elements of the result. */
template <iv_dtype TYPE> IV_DEVICE void put(const iv_attention_params &p, size_t element, float a, float b, float l) {
    *(uint32_t *)((uint16_t *)p.out + element) = iv_pack16(TYPE, iv_canon(__fdiv_rn(a, l)), iv_canon(__fdiv_rn(b, l)));
}

/* ---- merging what several workers left
 * ------------------------------------------------------------------------------- */

IV_DEVICE void meet() { iv_named_sync(1, CONSUMERS); }

IV_DEVICE bool part_seen(const iv_attention_params &p, const iv_attention_run &r, int split0, int position, int i) {
    int split = r.first_split + (i ? split0 + i - 1 : 0), count = i ? 1 : split0;
    return iv_attention_sees(position, p.window, split * IV_ATTENTION_SPLIT, count * IV_ATTENTION_SPLIT);
}

/* How states [from, from + n) join, row by row: a warp takes a row, a thread a few states that follow one another.
 * max: the rows' maxima so far. An absent state (of a row that sees none of it) is +0 and joins with 1 and -0, the
 * first one with 0 and 1 to a total of -0: no bit changes. */
IV_DEVICE void make_joins(const iv_attention_params &p, shared_state *s, const iv_attention_run &r,
                          const iv_attention_share &share, int rows, int from, int n, float (&max)[2]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = (n + 31) / 32, begin = min(lane * each, n);
    int end = min(begin + each, n);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = warp + 8 * h, position = position_of(r, row);
        if (row >= rows) continue;
        float m = -INFINITY;
        for (int i = begin; i < end; i++)
            if (part_seen(p, r, share.split, position, from + i)) m = iv_max(m, s->join[row][i].keep);
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            float other = __shfl_up_sync(~0u, m, k);
            m = lane >= k ? iv_max(m, other) : m;
        }
        float before = __shfl_up_sync(~0u, m, 1), all = __shfl_sync(~0u, m, 31);
        m = lane ? iv_max(max[h], before) : max[h];
        for (int i = begin; i < end; i++) {
            bool seen = part_seen(p, r, share.split, position, from + i);
            iv_attention_join j = iv_attention_merge<true>(&m, seen ? s->join[row][i].keep : -INFINITY);
            s->join[row][i] = seen ? j : iv_attention_join{1.0f, -0.0f};
        }
        max[h] = iv_max(max[h], all);
    }
}

/* n states of four elements, step apart, join t. FAR: they are in the scratch. */
template <bool FAR>
IV_DEVICE void fold(float4 &t, const iv_attention_join *join, const float4 *states, size_t step, int n) {
    constexpr int AHEAD = 8;
    float4 o[AHEAD];
    for (int i = 0; i < n; i += AHEAD) {
        iv_attention_join j[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            bool there = i + u < n;
            const float4 *at = states + (size_t)(there ? i + u : n - 1) * step;
            o[u] = FAR ? __ldcg(at) : *at;
            j[u] = join[there ? i + u : n - 1];
            if (!there) j[u] = {1.0f, -0.0f}, o[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f); /* joins nothing */
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            t.x = iv_attention_joined(t.x, o[u].x, j[u]), t.y = iv_attention_joined(t.y, o[u].y, j[u]);
            t.z = iv_attention_joined(t.z, o[u].z, j[u]), t.w = iv_attention_joined(t.w, o[u].w, j[u]);
        }
    }
}

/* This CTA's part of the result of a shared tile's slice: of its elements, in fours, part `part` of `parts`. All states
 * are in the scratch; `stage` is shared memory that nothing else uses now, or NULL. */
template <int DIM, iv_dtype TYPE>
static __device__ __noinline__ void merge_parts(const iv_attention_params &p, shared_state *s, float4 *stage,
                                                const iv_attention_run r, const iv_attention_share share, int part,
                                                int parts) {
    constexpr int FOURS = DIM / 4, EACH_THREAD = ROWS * FOURS / CONSUMERS;
    int rows = r.tile.tokens * r.width, count = r.splits - share.split + 1, all = rows * FOURS;
    int begin = part * all / parts, fours = (part + 1) * all / parts - begin;
    if (fours == 0) return;
    int stretch = stage ? min((int)JOIN_SLOTS, RING_BYTES / 16 / fours) : JOIN_SLOTS;
    float4 result[EACH_THREAD];
    float max[2] = {-INFINITY, -INFINITY}, sum = -0.0f;
    int sum_row = CONSUMERS - 1 - (int)threadIdx.x; /* if there is such a row: of a warp that has little else to do */
#pragma unroll
    for (int k = 0; k < EACH_THREAD; k++) result[k] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
    for (int from = 0; from < count; from += stretch) {
        int n = min(stretch, count - from);
        const float *states = p.partial + (size_t)(share.partial + from * rows) * p.stride;
        if (stage)
            for (int i = threadIdx.x; i < n * fours; i += CONSUMERS) {
                int slot = i / fours, four = begin + i - slot * fours;
                iv_copy16(iv_shared(stage + i),
                          states + (size_t)(slot * rows + four / FOURS) * p.stride + four % FOURS * 4, true);
            }
#pragma unroll 2
        for (int i = threadIdx.x; i < n * rows; i += CONSUMERS) {
            float2 e = __ldcg((const float2 *)(states + (size_t)(i + 1) * p.stride - 2));
            s->join[i % rows][i / rows].keep = e.x, s->sum[i % rows][i / rows] = e.y;
        }
        meet();
        make_joins(p, s, r, share, rows, from, n, max);
        asm volatile("cp.async.wait_all;" ::: "memory");
        meet();
#pragma unroll
        for (int k = 0; k < EACH_THREAD; k++) {
            int four = threadIdx.x + k * CONSUMERS, row = (begin + four) / FOURS;
            if (four >= fours) continue;
            if (stage)
                fold<false>(result[k], s->join[row], stage + four, fours, n);
            else
                fold<true>(result[k], s->join[row],
                           (const float4 *)(states + (size_t)row * p.stride) + four % FOURS,
                           (size_t)rows * p.stride / 4, n);
        }
        if (sum_row < rows) {
#pragma unroll 8
            for (int i = 0; i < n; i++) sum = iv_attention_joined(sum, s->sum[sum_row][i], s->join[sum_row][i]);
            s->total_sum[sum_row] = sum;
        }
        meet();
    }
#pragma unroll
    for (int k = 0; k < EACH_THREAD; k++) {
        int four = threadIdx.x + k * CONSUMERS, row = (begin + four) / FOURS;
        size_t to;
        if (four >= fours || !place(p, r, row, &to)) continue;
        to += (begin + four) % FOURS * 4;
        put<TYPE>(p, to, result[k].x, result[k].y, s->total_sum[row]);
        put<TYPE>(p, to + 2, result[k].z, result[k].w, s->total_sum[row]);
    }
    meet();
}

/* One of the share's parts is in the scratch (of all threads, once they met). Where CTAs wait for one another, each
 * counts a second time once it has seen that all are there, and the counter is 0 again after the last. */
IV_DEVICE int count_part(const iv_attention_params &p, int share) {
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(p.counters + share) : "memory");
    return before;
}
IV_DEVICE void count_part_around(const iv_attention_params &p, int share, int parts) {
    asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(p.counters + share), "r"(2 * parts - 1) : "memory");
}

/* May CTAs wait for one another: do they all run at once, one worker each? */
IV_DEVICE bool resident(const iv_attention_params &p) {
    const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
    return p.resident && head->workers <= (int)gridDim.x;
}

/* A share that this CTA had a part in. Where CTAs may wait, each does for the others', and merges its part of the
 * elements; else the last one that comes merges everything. */
template <int DIM, iv_dtype TYPE>
IV_DEVICE void finish_share(const iv_attention_params &p, shared_state *s, float4 *stage, const iv_attention_run &r,
                            const iv_attention_share &share, bool wait) {
    if (wait) {
        if (threadIdx.x == 0) {
            int there;
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(p.counters + r.share) : "memory");
            while (there < share.parts);
            count_part_around(p, r.share, share.parts);
        }
        meet();
        merge_parts<DIM, TYPE>(p, s, stage, r, share, r.part, share.parts);
        return;
    }
    if (threadIdx.x == 0) {
        s->flag = count_part(p, r.share) == share.parts - 1;
        if (s->flag) p.counters[r.share] = 0;
    }
    meet();
    if (s->flag) merge_parts<DIM, TYPE>(p, s, NULL, r, share, 0, 1);
    meet();
}

/* ---- the consumers ------------------------------------------------------------------------------------------------
 */

template <int DIM, iv_dtype TYPE> struct consumer {
    typedef sizes<DIM> z;
    const iv_attention_params &p;
    shared_state *s;
    uint32_t ring;
    ring_place at;
    int warp, lane, g, t;

    /* of a run */
    uint32_t q[z::STEPS][4];
    int low[2], high[2]; /* the keys that rows g and g + 8 see */
    bool tall;           /* there are rows from 8 on */
    float total[z::TILES][4], total_max[2], total_sum[2];
    bool started[2];
    /* of a split */
    float out[z::TILES][4], sum[4]; /* row g's sum twice, row g + 8's twice */

    __device__ __forceinline__ void begin(const iv_attention_run &r) {
        size_t from[2];
        bool there[2] = {place(p, r, g, &from[0]), place(p, r, g + 8, &from[1])};
        const uint16_t *base = (const uint16_t *)p.q;
#pragma unroll
        for (int k = 0; k < z::STEPS; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[k][i] = there[i & 1] ? *(const uint32_t *)(base + from[i & 1] + k * 16 + 2 * t + (i & 2 ? 8 : 0)) : 0;
        high[0] = position_of(r, g), high[1] = position_of(r, g + 8);
        low[0] = iv_attention_low(high[0], p.window), low[1] = iv_attention_low(high[1], p.window);
        tall = r.tile.tokens * r.width > 8;
        started[0] = started[1] = false;
        total_max[0] = total_max[1] = -INFINITY, total_sum[0] = total_sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[i][j] = 0.0f;
    }

    /* 32 keys of a block against the 16 rows. */
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

    /* Hides, and leaves each row's maximum of the warp's half block, scaled: the larger of two products is the product
     * of the larger. */
    __device__ __forceinline__ void hide(float (&x)[4][4], int b, bool masked) {
        float m[2] = {-INFINITY, -INFINITY};
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

    /* out = the chain over one block's values; the sum likewise, of a value that is one. */
    __device__ __forceinline__ void values(uint32_t block, int in_split, bool first) {
        float alpha[2] = {s->alpha[in_split][g], s->alpha[in_split][g + 8]};
        uint32_t weights =
            iv_shared(s->w) + (uint32_t)(((lane % 16) * W_STRIDE + in_split * BLOCK + lane / 16 * 8) * 2);
        uint32_t a[BLOCK / 16][4], b[z::TILES * 2][4];
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            load_matrices(a[k], weights + k * 32);
            if constexpr (z::TILES == 2)
                load_matrices_turned(b[k], block_address<DIM>(block, k * 16 + lane % 16, warp * 2 + lane / 16));
            else if (k % 2 == 0)
                load_matrices_turned(b[k / 2], block_address<DIM>(block, k * 16 + lane, warp));
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
            if constexpr (z::TILES == 2) {
                mma<TYPE>(out[0], a[k], b[k][0], b[k][1]);
                mma<TYPE>(out[1], a[k], b[k][2], b[k][3]);
            } else
                mma<TYPE>(out[0], a[k], b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
        }
    }

    __device__ __forceinline__ void one_split(const iv_attention_run &r, int split) {
        int first = max(split * EACH, r.tile.first_block), last = min(split * EACH + EACH - 1, r.tile.last_block);
        int n = last - first + 1, b = split * EACH + warp / 2, last_position = r.tile.position + r.tile.tokens - 1;
        bool here = b >= first && b <= last;
        float x[4][4];
        if (here) {
            ring_place from = ahead<z::STAGES>(at, b - first);
            iv_mbar_wait(iv_shared(&s->full[from.stage]), from.phase);
            scores(x, ring + from.stage * z::STAGE);
            bool masked =
                b * BLOCK + BLOCK - 1 > r.tile.position || iv_attention_low(last_position, p.window) > b * BLOCK;
            hide(x, b, masked);
        } else if (t == 0)
            s->block_max[warp][g] = s->block_max[warp][g + 8] = -INFINITY;
        __syncwarp();
        if (lane < n) iv_mbar_arrive(iv_shared(&s->empty[ahead<z::STAGES>(at, lane).stage]));
        at = ahead<z::STAGES>(at, n);
        meet();
        weigh_rows<0>(x, b, here);
        if (tall) weigh_rows<1>(x, b, here);
        meet();
        for (int i = first; i <= last; i++) {
            iv_mbar_wait(iv_shared(&s->full[at.stage]), at.phase);
            values(ring + at.stage * z::STAGE, i - split * EACH, i == first);
            __syncwarp();
            if (lane == 0) iv_mbar_arrive(iv_shared(&s->empty[at.stage]));
            at = ahead<z::STAGES>(at, 1);
        }
    }

    /* The split joins the total. */
    template <int H> __device__ __forceinline__ void join_rows(int split) {
        bool saw = high[H] >= split * IV_ATTENTION_SPLIT && low[H] < (split + 1) * IV_ATTENTION_SPLIT;
        bool joins = started[H] && saw;
        float m = s->split_max[g + 8 * H], both = total_max[H];
        iv_attention_join j = iv_attention_merge<true>(&both, m);
        float joined_sum = iv_attention_joined(total_sum[H], sum[2 * H], j);
        total_sum[H] = joins ? joined_sum : saw ? sum[2 * H] : total_sum[H];
        total_max[H] = joins ? both : saw ? m : total_max[H];
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int k = 2 * H; k < 2 * H + 2; k++) {
                float joined = iv_attention_joined(total[i][k], out[i][k], j);
                total[i][k] = joins ? joined : saw ? out[i][k] : total[i][k];
            }
        started[H] |= saw;
    }

    __device__ __forceinline__ void join(int split) {
        join_rows<0>(split);
        if (tall) join_rows<1>(split);
    }

    /* A state into the scratch. */
    __device__ __forceinline__ void leave(const iv_attention_run &r, const float (&o)[z::TILES][4], size_t row,
                                          float2 m, float2 l) {
        int rows = r.tile.tokens * r.width;
        float *to = p.partial + row * p.stride;
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (g + 8 * h < rows)
                    *(float2 *)(to + (g + 8 * h) * p.stride + (warp * z::TILES + i) * 8 + 2 * t) =
                        make_float2(o[i][2 * h], o[i][2 * h + 1]);
        int mine = g + 8 * warp;
        if (warp < 2 && t == 0 && mine < rows)
            *(float2 *)(to + mine * p.stride + p.stride - 2) = warp ? make_float2(m.y, l.y) : make_float2(m.x, l.x);
    }

    __device__ __forceinline__ void write_out(const iv_attention_run &r) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            size_t to;
            if (!place(p, r, g + 8 * h, &to)) continue;
            float l = total_sum[h];
#pragma unroll
            for (int i = 0; i < z::TILES; i++)
                put<TYPE>(p, to + (warp * z::TILES + i) * 8 + 2 * t, total[i][2 * h], total[i][2 * h + 1], l);
        }
    }

    __device__ __forceinline__ iv_attention_share share_of(const iv_attention_run &r) {
        const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
        bool whole = r.begin == 0 && r.end == r.splits;
        if (whole) return {0, 0, 0, 0};
        int4 a = __ldg((const int4 *)(p.plan + head->shares_at) + r.share);
        return {a.x, a.y, a.z, 0};
    }

    /* True if others have a part in the tile's slice: the result is not there yet. */
    __device__ __forceinline__ bool run(const iv_attention_run &r, const iv_attention_share &share) {
        int rows = r.tile.tokens * r.width;
        begin(r);
        for (int i = r.begin; i < r.end; i++) {
            one_split(r, r.first_split + i);
            if (r.begin == 0)
                join(r.first_split + i);
            else
                leave(r, out, share.partial + (size_t)(i - share.split + 1) * rows,
                      make_float2(s->split_max[g], s->split_max[g + 8]), make_float2(sum[0], sum[2]));
        }
        if (r.begin == 0 && r.end == r.splits) {
            write_out(r);
            return false;
        }
        if (r.begin == 0) leave(r, total, share.partial, make_float2(total_max[0], total_max[1]),
                                    make_float2(total_sum[0], total_sum[1]));
        meet();
        return true;
    }

    /* All of a worker's runs. The shares that its first and its last one belong to are finished at the end if CTAs wait
     * for one another. */
    __device__ __forceinline__ void work(iv_attention_walk w, float4 *stage, bool wait) {
        iv_attention_run r, first;
        iv_attention_share share, first_share;
        bool have_first = false, open = false;
        while (iv_walk_next(p, w, r)) {
            share = share_of(r);
            open = run(r, share);
            if (!open) continue;
            if (!wait)
                finish_share<DIM, TYPE>(p, s, stage, r, share, false);
            else if (threadIdx.x == 0)
                count_part_around(p, r.share, share.parts);
            if (!have_first) first = r, first_share = share, have_first = true;
        }
        if (!wait || !have_first) return;
        finish_share<DIM, TYPE>(p, s, stage, first, first_share, true);
        if (open && r.share != first.share) finish_share<DIM, TYPE>(p, s, stage, r, share, true);
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
    int worker = blockIdx.x, n = iv_walk_workers(p);
    bool wait = resident(p);
    iv_attention_walk w = {};
    if (worker < n) w = iv_walk_start(p, worker); /* what no kernel of the stream writes */
    iv_dependency_wait();
    iv_dependency_release();
    while (worker < n) {
        c.work(w, (float4 *)start, wait);
        worker += gridDim.x;
        if (worker < n) w = iv_walk_start(p, worker);
    }
}

template <int DIM, iv_dtype TYPE> static int launch(const iv_gpu_attention_args *a, int workers, cudaStream_t stream) {
    CUtensorMap map;
    int failed = make_map(&map, &a->kv), device, sms;
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
    if (a->shape.head_dim == 128)
        return bf16 ? launch<128, IV_BF16>(a, workers, stream) : launch<128, IV_F16>(a, workers, stream);
    return bf16 ? launch<64, IV_BF16>(a, workers, stream) : launch<64, IV_F16>(a, workers, stream);
}
