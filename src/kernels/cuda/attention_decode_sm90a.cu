/* attention_decode_sm90a.cu: attention of a few rows over long contexts: tiles of at most 16 packed rows, one CTA a
 * multiprocessor. A producer warp streams blocks of keys and values through a ring in shared memory; eight warps take a
 * split at a time: its four blocks' dot products side by side, then the running maxima, then each warp a share of
 * head_dim for the chain over the values, and a share of the (row, lane) sums. */
#include "kernels/cuda/attention_hopper.cuh"

enum {
    ROWS = 16,
    WARPS = 8,
    CONSUMERS = WARPS * 32,
    THREADS = CONSUMERS + 32,
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    RING_BYTES = 192 * 1024,
    P_STRIDE = IV_ATTENTION_SPLIT + 4, /* floats: no bank conflicts */
    W_STRIDE = IV_ATTENTION_SPLIT + 8,
    JOIN_SLOTS = 96 /* states merged at a time */
};

typedef struct shared_state {
    uint64_t full[24], empty[24];
    float block_max[WARPS][ROWS]; /* of half a block */
    float alpha[EACH][ROWS];
    float split_max[ROWS], total_sum[ROWS];
    int flag;
    union alignas(16) {
        struct {
            float p[ROWS * P_STRIDE];
            uint16_t w[ROWS * W_STRIDE];
        };
        struct { /* of a state and a row: arguments of exp2 (or codes), then how it joins; its sum */
            iv_attention_join join[JOIN_SLOTS][ROWS];
            float sum[JOIN_SLOTS][ROWS];
        };
    };
} shared_state;

/* Codes among joins: an exponent is never above 0. */
#define JOIN_FIRST 1.0f
#define JOIN_NONE 2.0f

template <int DIM> struct sizes {
    static constexpr int STAGE = BLOCK * DIM * 2, STAGES = RING_BYTES / STAGE;
    static constexpr int STEPS = DIM / 16;       /* of a dot product */
    static constexpr int TILES = DIM / 8 / WARPS; /* eights of head_dim a warp has */
};

template <iv_dtype TYPE>
IV_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
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

/* ---- the producer ------------------------------------------------------------------------------------------------- */

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
#pragma unroll
        for (int c = 0; c < DIM / IV_CHUNK_ELEMENTS; c++)
            iv_tma_load_2d(to + c * IV_CHUNK_BYTES, map, full, c * IV_CHUNK_ELEMENTS, row, IV_L2_FIRST);
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

/* ---- the consumers ------------------------------------------------------------------------------------------------ */

template <int DIM, iv_dtype TYPE> struct consumer {
    typedef sizes<DIM> z;
    const iv_attention_params &p;
    shared_state *s;
    uint32_t ring;
    ring_place at;
    int warp, lane, g, t;

    /* of a run */
    uint32_t q[z::STEPS][4];
    int position[2]; /* of rows g and g + 8 */
    int sum_row, sum_lane, sum_position;
    float total[z::TILES][4], total_max[2];
    float sums_max, sums_total; /* of sum_row */
    bool started[2], sums_started;
    /* of a split */
    float out[z::TILES][4], sum;

    __device__ __forceinline__ void sync() { iv_named_sync(1, CONSUMERS); }

    __device__ __forceinline__ int position_of(const iv_attention_run &r, int row) {
        int token = row / r.width;
        return r.tile.position + (token < r.tile.tokens ? token : 0);
    }

    /* Where packed row `row` lies in q and out, in elements; false where there is none. */
    __device__ __forceinline__ bool place(const iv_attention_run &r, int row, size_t *element) {
        int token = row / r.width, in = row - token * r.width, head = r.head + in;
        *element = ((size_t)(r.tile.first_row + token) * p.heads + head) * DIM;
        return token < r.tile.tokens && in < r.present && head >= 0 && head < p.heads;
    }

    __device__ __forceinline__ void begin(const iv_attention_run &r) {
        size_t from[2];
        bool there[2] = {place(r, g, &from[0]), place(r, g + 8, &from[1])};
        const uint16_t *base = (const uint16_t *)p.q;
#pragma unroll
        for (int k = 0; k < z::STEPS; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[k][i] = there[i & 1]
                              ? *(const uint32_t *)(base + from[i & 1] + k * 16 + 2 * t + (i & 2 ? 8 : 0))
                              : 0;
        position[0] = position_of(r, g), position[1] = position_of(r, g + 8);
        sum_row = warp * 2 + lane / 8 % 2, sum_lane = lane % 8, sum_position = position_of(r, sum_row);
        started[0] = started[1] = sums_started = false;
        total_max[0] = total_max[1] = sums_max = -INFINITY, sums_total = 0.0f;
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
#pragma unroll
        for (int k = 0; k < z::STEPS; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t b[4];
                load_matrices(b, iv_block_address(block, row + i * 16, k * 2 + half));
                mma<TYPE>(x[2 * i], q[k], b[0], b[1]);
                mma<TYPE>(x[2 * i + 1], q[k], b[2], b[3]);
            }
    }

    __device__ __forceinline__ bool sees(int at_position, int b) {
        return iv_attention_sees(at_position, p.window, b * BLOCK, BLOCK);
    }

    /* Scales, hides, and leaves each row's maximum of the warp's half block. */
    __device__ __forceinline__ void scale(float (&x)[4][4], int b, bool masked) {
        float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int key = b * BLOCK + warp % 2 * 32 + i * 8 + 2 * t + (j & 1), at_position = position[j / 2];
                bool hidden = masked && (key > at_position || key < iv_attention_low(at_position, p.window));
                x[i][j] = hidden ? -INFINITY : __fmul_rn(x[i][j], p.scale);
                m[j / 2] = iv_max(m[j / 2], x[i][j]);
            }
#pragma unroll
        for (int i = 1; i <= 2; i *= 2) {
            m[0] = iv_max(m[0], __shfl_xor_sync(~0u, m[0], i));
            m[1] = iv_max(m[1], __shfl_xor_sync(~0u, m[1], i));
        }
        if (t == 0) s->block_max[warp][g] = m[0], s->block_max[warp][g + 8] = m[1];
    }

    /* The running maxima, alpha, and the weights of the warp's half block. */
    __device__ __forceinline__ void weigh(const float (&x)[4][4], int b, bool here) {
        float before[2], now[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = -INFINITY;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (i == warp / 2) before[h] = m;
                m = iv_max(iv_max(m, s->block_max[2 * i][g + 8 * h]), s->block_max[2 * i + 1][g + 8 * h]);
                m = __fadd_rn(m, 0.0f);
                if (i == warp / 2) now[h] = m;
            }
            if (warp == 0 && t == 0) s->split_max[g + 8 * h] = m;
        }
        if (!here) return;
        bool see[2] = {sees(position[0], b), sees(position[1], b)};
        if (warp % 2 == 0 && t < 2)
            s->alpha[warp / 2][g + 8 * t] = see[t] ? v_exp2(v_sub(before[t], now[t])) : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int key = warp * 32 + i * 8 + 2 * t, row = g + 8 * h;
                float w0 = see[h] ? v_exp2(v_sub(x[i][2 * h], now[h])) : 0.0f;
                float w1 = see[h] ? v_exp2(v_sub(x[i][2 * h + 1], now[h])) : 0.0f;
                *(float2 *)&s->p[row * P_STRIDE + key] = make_float2(w0, w1);
                *(uint32_t *)&s->w[row * W_STRIDE + key] = iv_pack16(TYPE, w0, w1);
            }
    }

    /* out = the chain over one block's values. */
    __device__ __forceinline__ void values(uint32_t block, int in_split, bool first) {
        float alpha[2] = {s->alpha[in_split][g], s->alpha[in_split][g + 8]};
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) out[i][j] = first ? 0.0f : __fmul_rn(out[i][j], alpha[j / 2]);
        uint32_t weights = iv_shared(s->w) + (uint32_t)(((lane % 16) * W_STRIDE + in_split * BLOCK + lane / 16 * 8) * 2);
        uint32_t b[4];
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            uint32_t a[4];
            load_matrices(a, weights + k * 32);
            if constexpr (z::TILES == 2) {
                load_matrices_turned(b, iv_block_address(block, k * 16 + lane % 16, warp * 2 + lane / 16));
                mma<TYPE>(out[0], a, b[0], b[1]);
                mma<TYPE>(out[1], a, b[2], b[3]);
            } else {
                if (k % 2 == 0) load_matrices_turned(b, iv_block_address(block, k * 16 + lane, warp));
                mma<TYPE>(out[0], a, b[k % 2 * 2], b[k % 2 * 2 + 1]);
            }
        }
    }

    /* The lane sums of the split, folded. */
    __device__ __forceinline__ void add_lanes(int first, int last) {
        float l = 0.0f;
        for (int i = first; i <= last; i++) {
            const float *w = &s->p[sum_row * P_STRIDE + i * BLOCK + sum_lane];
            l = __fmul_rn(l, s->alpha[i][sum_row]);
#pragma unroll
            for (int j = 0; j < BLOCK / 8; j++) l = __fadd_rn(l, w[j * 8]);
        }
#pragma unroll
        for (int i = 4; i; i /= 2) l = __fadd_rn(l, __shfl_xor_sync(~0u, l, i));
        sum = l;
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
            bool masked = b * BLOCK + BLOCK - 1 > r.tile.position || iv_attention_low(last_position, p.window) > b * BLOCK;
            scale(x, b, masked);
        } else if (t == 0)
            s->block_max[warp][g] = s->block_max[warp][g + 8] = -INFINITY;
        __syncwarp();
        if (lane < n) iv_mbar_arrive(iv_shared(&s->empty[ahead<z::STAGES>(at, lane).stage]));
        at = ahead<z::STAGES>(at, n);
        sync();
        weigh(x, b, here);
        sync();
        for (int i = first; i <= last; i++) {
            iv_mbar_wait(iv_shared(&s->full[at.stage]), at.phase);
            values(ring + at.stage * z::STAGE, i - split * EACH, i == first);
            __syncwarp();
            if (lane == 0) iv_mbar_arrive(iv_shared(&s->empty[at.stage]));
            at = ahead<z::STAGES>(at, 1);
        }
        add_lanes(first - split * EACH, last - split * EACH);
    }

    __device__ __forceinline__ bool saw(int at_position, int split) {
        return iv_attention_sees(at_position, p.window, split * IV_ATTENTION_SPLIT, IV_ATTENTION_SPLIT);
    }

    /* The split joins the total. */
    __device__ __forceinline__ void join(int split) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (!saw(position[h], split)) continue;
            float m = s->split_max[g + 8 * h];
            iv_attention_join j = {0.0f, 1.0f};
            if (started[h])
                j = iv_attention_merge(&total_max[h], m);
            else
                total_max[h] = m;
#pragma unroll
            for (int i = 0; i < z::TILES; i++)
#pragma unroll
                for (int k = 2 * h; k < 2 * h + 2; k++)
                    total[i][k] = started[h] ? iv_attention_joined(total[i][k], out[i][k], j) : out[i][k];
            started[h] = true;
        }
        if (!saw(sum_position, split)) return;
        float m = s->split_max[sum_row];
        if (sums_started)
            sums_total = iv_attention_joined(sums_total, sum, iv_attention_merge(&sums_max, m));
        else
            sums_max = m, sums_total = sum;
        sums_started = true;
    }

    /* A state into the scratch. */
    __device__ __forceinline__ void leave(const iv_attention_run &r, const float (&o)[z::TILES][4], size_t row, float m, float l) {
        int rows = r.tile.tokens * r.width;
        float *to = p.partial + row * p.stride;
#pragma unroll
        for (int i = 0; i < z::TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (g + 8 * h < rows)
                    *(float2 *)(to + (g + 8 * h) * p.stride + (warp * z::TILES + i) * 8 + 2 * t) =
                        make_float2(o[i][2 * h], o[i][2 * h + 1]);
        if (lane < 16 && sum_lane == 0 && sum_row < rows)
            *(float2 *)(to + sum_row * p.stride + p.stride - 2) = make_float2(m, l);
    }

    /* Two elements of the result. */
    __device__ __forceinline__ void put(size_t element, float a, float b, float l) {
        *(uint32_t *)((uint16_t *)p.out + element) = iv_pack16(TYPE, iv_canon(__fdiv_rn(a, l)), iv_canon(__fdiv_rn(b, l)));
    }

    __device__ __forceinline__ void write_out(const iv_attention_run &r) {
        if (lane < 16 && sum_lane == 0) s->total_sum[sum_row] = sums_total;
        sync();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            size_t to;
            if (!place(r, g + 8 * h, &to)) continue;
            float l = s->total_sum[g + 8 * h];
#pragma unroll
            for (int i = 0; i < z::TILES; i++)
                put(to + (warp * z::TILES + i) * 8 + 2 * t, total[i][2 * h], total[i][2 * h + 1], l);
        }
    }

    /* ---- merging what several workers left: how states [from, from + n) join, then the rows, element by element ---- */

    __device__ __forceinline__ bool part_seen(const iv_attention_run &r, const iv_attention_share &share, int row, int i) {
        int split = r.first_split + (i ? share.split + i - 1 : 0), count = i ? 1 : share.split;
        return iv_attention_sees(position_of(r, row), p.window, split * IV_ATTENTION_SPLIT, count * IV_ATTENTION_SPLIT);
    }

    __device__ __forceinline__ void make_joins(const iv_attention_run &r, const iv_attention_share &share, int rows, int from,
                                     int n, float *carried_max, float *carried_sum, bool *carried) {
        for (int i = threadIdx.x; i < n * rows; i += CONSUMERS) {
            int slot = i / rows, row = i - slot * rows;
            float2 e = __ldcg((const float2 *)(p.partial + (size_t)(share.partial + (from + slot) * rows + row) * p.stride +
                                               p.stride - 2));
            s->join[slot][row].add = e.x, s->sum[slot][row] = e.y;
        }
        sync();
        int row = threadIdx.x;
        if (row < rows) {
            float m = *carried_max;
            bool any = *carried;
#pragma unroll 4
            for (int i = 0; i < n; i++) {
                float part = s->join[i][row].add;
                bool seen = part_seen(r, share, row, from + i);
                float now = any ? iv_max(m, part) : part;
                s->join[i][row].keep = !seen ? JOIN_NONE : !any ? JOIN_FIRST : v_sub(m, now);
                s->join[i][row].add = v_sub(part, now);
                if (seen) m = now, any = true;
            }
            *carried_max = m, *carried = any;
        }
        sync();
        for (int i = threadIdx.x; i < n * rows; i += CONSUMERS) {
            iv_attention_join *j = &s->join[i / rows][i % rows];
            if (j->keep > 0.0f)
                j->add = j->keep == JOIN_FIRST ? 1.0f : -1.0f, j->keep = j->keep == JOIN_FIRST ? -1.0f : 1.0f;
            else
                j->keep = v_exp2(j->keep), j->add = v_exp2(j->add);
        }
        sync();
        if (row < rows) {
            float l = *carried_sum;
#pragma unroll 4
            for (int i = 0; i < n; i++) {
                iv_attention_join j = s->join[i][row];
                float part = s->sum[i][row];
                if (j.keep < 0.0f)
                    l = part;
                else if (!(j.add < 0.0f))
                    l = iv_attention_joined(l, part, j);
            }
            *carried_sum = l;
        }
    }

    __device__ __forceinline__ void merge_parts(const iv_attention_run &r, const iv_attention_share &share) {
        constexpr int PAIRS = ROWS * DIM / 2 / CONSUMERS, AHEAD = 8;
        int rows = r.tile.tokens * r.width, count = r.splits - share.split + 1;
        float2 sum_of[PAIRS];
        float carried_max = -INFINITY, carried_sum = 0.0f;
        bool carried = false;
#pragma unroll
        for (int k = 0; k < PAIRS; k++) sum_of[k] = make_float2(0.0f, 0.0f);
        for (int from = 0; from < count; from += JOIN_SLOTS) {
            int n = min((int)JOIN_SLOTS, count - from);
            make_joins(r, share, rows, from, n, &carried_max, &carried_sum, &carried);
#pragma unroll
            for (int k = 0; k < PAIRS; k++) {
                int pair = threadIdx.x + k * CONSUMERS, row = pair / (DIM / 2), d = pair % (DIM / 2) * 2;
                if (row >= rows) continue;
                const float *at_row = p.partial + (size_t)(share.partial + from * rows + row) * p.stride + d;
                for (int i = 0; i < n; i += AHEAD) {
                    float2 o[AHEAD];
#pragma unroll
                    for (int u = 0; u < AHEAD; u++)
                        if (i + u < n) o[u] = __ldcg((const float2 *)(at_row + (size_t)(i + u) * rows * p.stride));
#pragma unroll
                    for (int u = 0; u < AHEAD; u++) {
                        if (i + u >= n) continue;
                        iv_attention_join j = s->join[i + u][row];
                        if (j.keep < 0.0f)
                            sum_of[k] = o[u];
                        else if (!(j.add < 0.0f))
                            sum_of[k].x = iv_attention_joined(sum_of[k].x, o[u].x, j),
                            sum_of[k].y = iv_attention_joined(sum_of[k].y, o[u].y, j);
                    }
                }
            }
            if (threadIdx.x < ROWS) s->total_sum[threadIdx.x] = carried_sum;
            sync();
        }
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
            int pair = threadIdx.x + k * CONSUMERS, row = pair / (DIM / 2), d = pair % (DIM / 2) * 2;
            size_t to;
            if (row < rows && place(r, row, &to)) put(to + d, sum_of[k].x, sum_of[k].y, s->total_sum[row]);
        }
    }

    __device__ __forceinline__ void run(const iv_attention_run &r) {
        begin(r);
        bool whole = r.begin == 0 && r.end == r.splits;
        int rows = r.tile.tokens * r.width;
        iv_attention_share share = {};
        if (!whole) {
            const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
            share = ((const iv_attention_share *)(p.plan + head->shares_at))[r.share];
        }
        for (int i = r.begin; i < r.end; i++) {
            one_split(r, r.first_split + i);
            if (r.begin == 0)
                join(r.first_split + i);
            else
                leave(r, out, share.partial + (size_t)(i - share.split + 1) * rows, s->split_max[sum_row], sum);
        }
        if (whole) {
            write_out(r);
            return;
        }
        if (r.begin == 0) leave(r, total, share.partial, sums_max, sums_total);
        if (iv_attention_arrive(p, r.share, share.parts, &s->flag, CONSUMERS, threadIdx.x == 0)) merge_parts(r, share);
        sync();
    }
};

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    decode_kernel(const iv_attention_params p, const __grid_constant__ CUtensorMap map) {
    typedef sizes<DIM> z;
    extern __shared__ char memory[];
    uint32_t ring = (iv_shared(memory) + 1023) & ~1023u;
    shared_state *s = (shared_state *)(memory + (ring - iv_shared(memory)) + RING_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < z::STAGES; i++) iv_mbar_init(iv_shared(&s->full[i]), 1), iv_mbar_init(iv_shared(&s->empty[i]), WARPS);
        iv_mbar_init_fence();
    }
    if (threadIdx.x == CONSUMERS) iv_tma_prefetch_map(&map);
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    iv_attention_run r;
    if (warp == WARPS) {
        producer<DIM> c = {p, &map, s, ring, {0, 0}, false};
        for (int worker = blockIdx.x, n = iv_walk_workers(p); worker < n; worker += gridDim.x)
            for (iv_attention_walk w = iv_walk_start(p, worker); iv_walk_next(p, w, r);) c.run(r, lane);
        return;
    }
    consumer<DIM, TYPE> c = {p, s, ring, {0, 0}, warp, lane, lane / 4, lane % 4};
    iv_dependency_wait();
    iv_dependency_release();
    for (int worker = blockIdx.x, n = iv_walk_workers(p); worker < n; worker += gridDim.x)
        for (iv_attention_walk w = iv_walk_start(p, worker); iv_walk_next(p, w, r);) c.run(r);
}

template <int DIM, iv_dtype TYPE>
static int launch(const iv_gpu_attention_args *a, int workers, cudaStream_t stream) {
    CUtensorMap map;
    int failed = iv_map_pages(&map, &a->kv);
    if (failed) return failed;
    size_t bytes = 1024 + RING_BYTES + sizeof(shared_state);
    return iv_launch_with_shared(decode_kernel<DIM, TYPE>, workers, THREADS, bytes, stream,
                                 (const iv_attention_params)iv_attention_params_of(a, false), (const CUtensorMap)map);
}

int iv_attention_decode(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream) {
    bool bf16 = a->shape.type == IV_BF16;
    if (a->shape.head_dim == 128)
        return bf16 ? launch<128, IV_BF16>(a, workers, stream) : launch<128, IV_F16>(a, workers, stream);
    return bf16 ? launch<64, IV_BF16>(a, workers, stream) : launch<64, IV_F16>(a, workers, stream);
}
