/* attention_decode.cuh: parts of the decode kernel (attention_decode_sm90a.cu, its only user): its shape and shared
 * memory, the layout of its rows, and the merge of the states of workers that share a tile's slice. Each worker
 * merges a range of the elements. All of that is latency: everything that does not depend on the states is computed
 * before they arrive, and loops load ahead. */
#ifndef IV_KERNELS_CUDA_ATTENTION_DECODE_CUH
#define IV_KERNELS_CUDA_ATTENTION_DECODE_CUH

#include "kernels/cuda/attention_mma.cuh"

enum {
    ROWS = 16,
    WARPS = 8,
    CONSUMERS = WARPS * 32,
    THREADS = CONSUMERS + 128, /* the last warpgroup gives its registers to the others; one of its warps works */
    BLOCK = IV_ATTENTION_BLOCK,
    EACH = IV_ATTENTION_BLOCKS_PER_SPLIT,
    RING_BYTES = 192 * 1024,
    DIM_MAX = 256,
    W_STRIDE = IV_KV_SPLIT + 8, /* avoids bank conflicts */
    MERGE_SLOTS = 128,          /* states merged at a time */
    SLOTS_EACH = MERGE_SLOTS / 32,
    AHEAD = 4, /* states of a chain that are loaded together; two such groups in flight */
    AHEAD_GLOBAL = 8
};

template <int DIM> struct sizes {
    static constexpr int STAGE = BLOCK * DIM * 2, STAGES = RING_BYTES / STAGE;
    static constexpr int STEPS = DIM / 16;        /* of a dot product */
    static constexpr int TILES = DIM / 8 / WARPS; /* groups of eight of head_dim in a warp */
    static constexpr int Q_STRIDE = DIM + 8;
    static constexpr int FOURS = DIM / 4; /* of a row */
};

typedef struct open_kv_split { /* a shared slice whose part of this worker is in the scratch */
    iv_attention_run run;
    iv_attention_kv_split kv_split;
} open_kv_split;

typedef struct shared_state {
    uint64_t full[24], empty[24];
    float block_max[WARPS][ROWS]; /* of half a block */
    float alpha[EACH][ROWS];
    float split_max[ROWS], total_sum[ROWS];
    int flag;
    open_kv_split open[2]; /* of the first and the last run */
    alignas(16) uint16_t q[ROWS * (DIM_MAX + 8)];
    union alignas(16) {
        uint16_t w[ROWS * W_STRIDE];
        struct { /* of a row and a state: merge factors (before that its maximum, in `keep`), and its sum */
            iv_attention_factors factors[ROWS][MERGE_SLOTS];
            float sum[ROWS][MERGE_SLOTS];
        };
    };
} shared_state;

IV_DEVICE void sync_consumers() { iv_named_sync(1, CONSUMERS); }

/* ---- rows and results ------------------------------------------------------------------------------------------ */

IV_DEVICE int position_of(const iv_attention_params &p, const iv_attention_run &r, int row) {
    int token = row * p.short_inverse >> 8;
    return r.tile.position + (token < r.tile.tokens ? token : 0);
}

/* The query head of a packed row that exists. */
IV_DEVICE int head_of(const iv_attention_params &p, const iv_attention_run &r, int row) {
    return r.head + row - (row * p.short_inverse >> 8) * p.width;
}

/* The element in q and out where packed row `row` begins; false if there is no such row. */
IV_DEVICE bool element_of(const iv_attention_params &p, const iv_attention_run &r, int row, size_t *element) {
    int token = row * p.short_inverse >> 8, in = row - token * p.width, head = r.head + in;
    *element = ((size_t)(r.tile.first_row + token) * p.heads + head) * p.head_dim;
    return token < r.tile.tokens && in < r.present && head >= 0 && head < p.heads;
}

/* Writes elements of the result: two, one, four. */
template <iv_dtype TYPE> IV_DEVICE void put(const iv_attention_params &p, size_t element, float a, float b, float l) {
    *(uint32_t *)((uint16_t *)p.out + element) = iv_pack16(TYPE, iv_canon(__fdiv_rn(a, l)), iv_canon(__fdiv_rn(b, l)));
}

template <iv_dtype TYPE> IV_DEVICE void put(const iv_attention_params &p, size_t element, float a, float l) {
    ((uint16_t *)p.out)[element] = iv_round16(TYPE, iv_canon(__fdiv_rn(a, l)));
}
template <iv_dtype TYPE> IV_DEVICE void put(const iv_attention_params &p, size_t element, const float4 &v, float l) {
    put<TYPE>(p, element, v.x, v.y, l), put<TYPE>(p, element + 2, v.z, v.w, l);
}

/* ---- words with a ready flag ------------------------------------------------------------------------------------- */

/* Partial results carry their own ready flag, which saves a fence and a counter: a word of the scratch is zero until
 * it holds the inverse of the value, and is zeroed again after it was read. (No state has a word of all ones: NaN is
 * 0x7fffffff on this hardware.) */
IV_DEVICE float inverse(float x) { return __uint_as_float(~__float_as_uint(x)); }
IV_DEVICE void store_ready2(float *to, float x, float y) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(inverse(x)), "f"(inverse(y)) : "memory");
}
IV_DEVICE float4 load_relaxed4(const float4 *at) {
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}
IV_DEVICE float2 load_relaxed2(const float2 *at) {
    float2 v;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at) : "memory");
    return v;
}
IV_DEVICE bool ready(float x) { return __float_as_uint(x) != 0; }
IV_DEVICE bool ready(float2 v) { return ready(v.x) && ready(v.y); }
IV_DEVICE bool ready(float4 v) { return ready(v.x) && ready(v.y) && ready(v.z) && ready(v.w); }

IV_DEVICE float4 inverse(float4 v) { return make_float4(inverse(v.x), inverse(v.y), inverse(v.z), inverse(v.w)); }

IV_DEVICE float times(float v, float by) { return __fmul_rn(v, by); }
IV_DEVICE float4 times(const float4 &v, float by) {
    return make_float4(__fmul_rn(v.x, by), __fmul_rn(v.y, by), __fmul_rn(v.z, by), __fmul_rn(v.w, by));
}

/* Four words that were already loaded once: polls until they are ready, and clears them. */
IV_DEVICE float4 take4(float4 *at, float4 v) {
    while (!ready(v)) v = load_relaxed4(at);
    *at = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return inverse(v);
}

/* ---- merging the states of several workers
 * --------------------------------------------------------------------------- */

/* A worker's part of a shared slice: of all states, the groups of four elements [begin, begin + fours). */
typedef struct merge_part {
    int rows, states;
    int begin, fours;
    int slot, four, slot_step, four_step; /* of this thread's first item, and the step to its next ones */
    int rows_inverse;
} merge_part;

IV_DEVICE merge_part part_of(const iv_attention_params &p, const iv_attention_run &r,
                             const iv_attention_kv_split &kv_split, int fours_of_row, int part, int parts) {
    merge_part m;
    m.rows = r.tile.tokens * p.width, m.states = r.splits - kv_split.split + 1;
    int all = m.rows * fours_of_row, t = (int)threadIdx.x;
    m.begin = part * all / parts, m.fours = (part + 1) * all / parts - m.begin;
    int each = max(m.fours, 1);
    m.slot = t / each, m.four = t - m.slot * each;
    m.slot_step = CONSUMERS / each, m.four_step = CONSUMERS - m.slot_step * each;
    m.rows_inverse = (65535 + m.rows) / m.rows; /* i / rows = i * this >> 16 for i < ROWS * MERGE_SLOTS */
    return m;
}

/* The number of states is padded to a multiple of 2 * AHEAD; padding is +0 and changes nothing. */
IV_DEVICE int padded(int n) { return (n + 2 * AHEAD - 1) / (2 * AHEAD) * (2 * AHEAD); }

/* Loads the maxima and sums of n states, which all parts need. NEAR: also this part's elements, to `stage`. Words
 * that are not ready are polled together. */
template <int DIM, bool NEAR>
IV_DEVICE void take_states(const iv_attention_params &p, shared_state *s, const merge_part &m, float4 *stage,
                           float *states, int n) {
    constexpr int FOURS = sizes<DIM>::FOURS, ITEMS = NEAR ? 4 : 0, SUMS = 2;
    int t = (int)threadIdx.x, slot = m.slot, four = m.four, left = NEAR ? n * m.fours - t : 0, pair = t;
    float4 *all_items = stage;
    stage += t;
    do {
        float4 v[ITEMS + 1], *at[ITEMS + 1];
        float2 e[SUMS];
        const float *sums = states + (size_t)(pair + 1) * p.stride - 2;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int in = m.begin + four;
            at[k] = (float4 *)(states + (size_t)(slot * m.rows + in / FOURS) * p.stride) + in % FOURS;
            v[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            slot += m.slot_step, four += m.four_step;
            if (four >= m.fours) four -= m.fours, slot++;
        }
        e[0] = e[1] = make_float2(0.0f, 0.0f);
        for (bool all = false; !all;) {
#pragma unroll
            for (int k = 0; k < SUMS; k++)
                if (pair + k * CONSUMERS < n * m.rows && !ready(e[k]))
                    e[k] = load_relaxed2((const float2 *)(sums + (size_t)(k * CONSUMERS) * p.stride));
#pragma unroll
            for (int k = 0; k < ITEMS; k++)
                if (k * CONSUMERS < left && !ready(v[k])) v[k] = load_relaxed4(at[k]);
            all = true;
#pragma unroll
            for (int k = 0; k < SUMS; k++) all = all && (pair + k * CONSUMERS >= n * m.rows || ready(e[k]));
#pragma unroll
            for (int k = 0; k < ITEMS; k++) all = all && (k * CONSUMERS >= left || ready(v[k]));
        }
#pragma unroll
        for (int k = 0; k < SUMS; k++) {
            int i = pair + k * CONSUMERS, of = i * m.rows_inverse >> 16, row = i - of * m.rows;
            if (i < n * m.rows) s->factors[row][of].keep = inverse(e[k].x), s->sum[row][of] = inverse(e[k].y);
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++)
            if (k * CONSUMERS < left) stage[k * CONSUMERS] = inverse(v[k]);
        left -= ITEMS * CONSUMERS, stage += ITEMS * CONSUMERS, pair += SUMS * CONSUMERS;
    } while (left > 0 || pair < n * m.rows);
    if (NEAR)
#pragma unroll 1
        for (int i = n * m.fours + t; i < padded(n) * m.fours; i += CONSUMERS)
            all_items[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* Clears the part's elements. This happens last, because earlier stores would queue ahead of pending loads. */
template <int DIM> IV_DEVICE void clear_states(const iv_attention_params &p, const merge_part &m, float *states) {
    constexpr int FOURS = sizes<DIM>::FOURS;
    int slot = m.slot, four = m.four;
#pragma unroll 1
    for (int left = m.states * m.fours - (int)threadIdx.x; left > 0; left -= CONSUMERS) {
        int in = m.begin + four;
        float *at = states + (size_t)(slot * m.rows + in / FOURS) * p.stride + in % FOURS * 4;
        *(float4 *)at = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        slot += m.slot_step, four += m.four_step;
        if (four >= m.fours) four -= m.fours, slot++;
    }
}

/* The states that a row sees, of all: the first holds `split0` splits, the others one each. */
typedef struct seen_states {
    int from, to; /* to: the last one */
} seen_states;
IV_DEVICE seen_states seen_of(const iv_attention_params &p, const iv_attention_run &r, int split0, int row) {
    int position = position_of(p, r, row), low = iv_attention_low(position, p.window);
    int before = r.first_split + split0 - 1; /* splits before the second state, minus one */
    return {max(low / IV_KV_SPLIT - before, 0), max(position / IV_KV_SPLIT - before, 0)};
}

/* Merge factors of states [from, from + n), row by row: a warp takes a row, a thread takes a few consecutive states.
 * max: the rows' maxima so far. A state that the row does not see is +0 and gets the factors 1 and -0; the first
 * visible one gets 0 and 1, with a total of -0. Neither changes a bit. */
IV_DEVICE void make_factors(shared_state *s, const seen_states (&seen)[2], int rows, int from, int n, float (&max)[2]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = (n + 31) / 32, begin = lane * each;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = warp + 8 * h;
        if (row >= rows) continue;
        float of[SLOTS_EACH], m = -INFINITY;
        bool sees[SLOTS_EACH];
#pragma unroll
        for (int k = 0; k < SLOTS_EACH; k++) {
            int i = begin + k;
            sees[k] = k < each && i < n && from + i >= seen[h].from && from + i <= seen[h].to;
            of[k] = -INFINITY;
            if (sees[k]) of[k] = s->factors[row][i].keep;
        }
#pragma unroll
        for (int k = 0; k < SLOTS_EACH; k++)
            if (k < each) m = iv_max(m, of[k]);
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            float other = __shfl_up_sync(~0u, m, k);
            m = lane >= k ? iv_max(m, other) : m;
        }
        float before = __shfl_up_sync(~0u, m, 1), all = __shfl_sync(~0u, m, 31);
        m = lane ? iv_max(max[h], before) : max[h];
#pragma unroll
        for (int k = 0; k < SLOTS_EACH; k++) {
            if (k >= each) continue;
            iv_attention_factors j = iv_attention_factors_of<true>(&m, of[k]);
            if (begin + k < padded(n)) s->factors[row][begin + k] = sees[k] ? j : iv_attention_factors{1.0f, -0.0f};
            if (begin + k >= n && begin + k < padded(n)) s->sum[row][begin + k] = 0.0f;
        }
        max[h] = iv_max(max[h], all);
    }
}

/* The item that a thread merges at a time. */
template <bool NEAR> struct merge_item { typedef float type; };
template <> struct merge_item<false> { typedef float4 type; };
IV_DEVICE void set_item(float &t, float x) { t = x; }
IV_DEVICE void set_item(float4 &t, float x) { t = make_float4(x, x, x, x); }

/* A few states, `step` apart, and their merge factors. */
struct few_states {
    float of[AHEAD];
    float4 factors[AHEAD / 2];
};
IV_DEVICE void load_few(few_states &f, const float4 *pairs, const float *states, int step) {
#pragma unroll
    for (int u = 0; u < AHEAD; u++) f.of[u] = states[u * step];
#pragma unroll
    for (int u = 0; u < AHEAD / 2; u++) f.factors[u] = pairs[u];
}
IV_DEVICE void merge_few(float &t, const few_states &f) {
#pragma unroll
    for (int u = 0; u < AHEAD; u += 2) {
        const float4 &two = f.factors[u / 2];
        t = iv_attention_merged(t, f.of[u], {two.x, two.y});
        t = iv_attention_merged(t, f.of[u + 1], {two.z, two.w});
    }
}

/* Merges n states in shared memory, plus padding, into t. The next states are loaded before the current ones are
 * used. */
IV_DEVICE void fold(float &t, const iv_attention_factors *factors, const float *states, int step, int n) {
    const float4 *pairs = (const float4 *)factors;
    few_states f[2];
    load_few(f[0], pairs, states, step);
#pragma unroll 1
    for (int left = padded(n);;) {
        load_few(f[1], pairs + AHEAD / 2, states + AHEAD * step, step);
        merge_few(t, f[0]);
        left -= 2 * AHEAD, pairs += AHEAD, states += 2 * AHEAD * step;
        if (left > 0) load_few(f[0], pairs, states, step);
        merge_few(t, f[1]);
        if (left <= 0) break;
    }
}

/* The same for states in the scratch, which are cleared. */
IV_DEVICE void fold_global(float4 &t, const iv_attention_factors *factors, float4 *states, size_t step, int n) {
    for (int i = 0; i < n; i += AHEAD_GLOBAL) {
        float4 o[AHEAD_GLOBAL];
#pragma unroll
        for (int u = 0; u < AHEAD_GLOBAL; u++)
            if (i + u < n) o[u] = load_relaxed4(states + (size_t)(i + u) * step);
#pragma unroll
        for (int u = 0; u < AHEAD_GLOBAL; u++)
            if (i + u < n) {
                float4 v = take4(states + (size_t)(i + u) * step, o[u]);
                t.x = iv_attention_merged(t.x, v.x, factors[i + u]),
                t.y = iv_attention_merged(t.y, v.y, factors[i + u]);
                t.z = iv_attention_merged(t.z, v.z, factors[i + u]),
                t.w = iv_attention_merged(t.w, v.w, factors[i + u]);
            }
    }
}

/* This part has read all maxima and sums: true for the last part. The loads have completed, so nothing needs to
 * order them before the words are cleared. */
IV_DEVICE bool seen_by_all(const iv_attention_params &p, int kv_split, int parts) {
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(p.counters + kv_split), "r"(parts - 1)
                 : "memory");
    return (int)before == parts - 1;
}

/* Merges sinks into the totals: a warp has rows `warp` and `warp + 8`, with these maxima. The factors of the outputs go
 * to split_max, which no run uses any more. */
IV_DEVICE void merge_sinks(const iv_attention_params &p, shared_state *s, const iv_attention_run &r, int rows,
                           float (&max)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = (int)threadIdx.x / 32 + 8 * h;
        size_t element;
        if (row >= rows || !element_of(p, r, row, &element)) continue;
        float sum = s->total_sum[row], keep = iv_attention_sink<true>(p, head_of(p, r, row), &max[h], &sum);
        __syncwarp(); /* all lanes have read it */
        if (threadIdx.x % 32 == 0) s->total_sum[row] = sum, s->split_max[row] = keep;
    }
    sync_consumers();
}

template <int DIM>
IV_DEVICE void put_lse2(const iv_attention_params &p, const shared_state *s, const iv_attention_run &r, int rows,
                        const float (&max)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = (int)threadIdx.x / 32 + 8 * h;
        size_t element;
        if (row < rows && element_of(p, r, row, &element))
            p.lse2[element / DIM] = iv_attention_lse2(max[h], s->total_sum[row]);
    }
}

/* This CTA's part of a shared slice's result. NEAR: through `stage`, shared memory that is otherwise unused by now,
 * one element per thread; else four elements per thread. */
template <int DIM, iv_dtype TYPE, bool NEAR>
IV_DEVICE void merge(const iv_attention_params &p, shared_state *s, float4 *stage, const iv_attention_run &r,
                     const iv_attention_kv_split &kv_split, int part, int parts) {
    typedef typename merge_item<NEAR>::type item;
    constexpr int FOURS = sizes<DIM>::FOURS, WIDTH = sizeof(item) / sizeof(float);
    constexpr int MINE =
        ROWS * DIM / WIDTH / CONSUMERS / (NEAR ? 2 : 1); /* of a thread: a shared slice has at least two parts */
    constexpr int STRETCH = 2 * AHEAD;
    merge_part m = part_of(p, r, kv_split, FOURS, part, parts);
    int room = RING_BYTES / 16 / max(m.fours, 1) / STRETCH * STRETCH;
    int stretch = NEAR ? min((int)MERGE_SLOTS, room) : MERGE_SLOTS;
    float *first = p.partial + (size_t)kv_split.partial * p.stride, max[2] = {-INFINITY, -INFINITY}, sum = -0.0f;
    seen_states seen[2] = {seen_of(p, r, kv_split.split, (int)threadIdx.x / 32),
                           seen_of(p, r, kv_split.split, (int)threadIdx.x / 32 + 8)};
    int sum_row = CONSUMERS - 1 - (int)threadIdx.x; /* if there is such a row; in a warp that has little else to do */
    item result[MINE];
    size_t to[MINE];
    bool mine[MINE], put_there[MINE];
#pragma unroll
    for (int k = 0; k < MINE; k++) {
        int element = m.begin * 4 + ((int)threadIdx.x + k * CONSUMERS) * WIDTH;
        mine[k] = element < (m.begin + m.fours) * 4, put_there[k] = mine[k] && element_of(p, r, element / DIM, &to[k]);
        set_item(result[k], -0.0f);
    }
    for (int from = 0; from < m.states; from += stretch) {
        int n = min(stretch, m.states - from);
        float *states = first + (size_t)from * m.rows * p.stride;
        if (m.fours) take_states<DIM, NEAR>(p, s, m, stage, states, n);
        sync_consumers();
        if (from + n == m.states && threadIdx.x == CONSUMERS - 32) s->flag = seen_by_all(p, r.kv_split, parts);
        make_factors(s, seen, m.rows, from, n, max);
        sync_consumers();
#pragma unroll
        for (int k = 0; k < MINE; k++) {
            int i = (int)threadIdx.x + k * CONSUMERS, row = (m.begin * 4 + i * WIDTH) / DIM;
            if (!mine[k]) continue;
            if constexpr (NEAR)
                fold(result[k], s->factors[row], (const float *)stage + i, m.fours * 4, n);
            else
                fold_global(result[k], s->factors[row],
                            (float4 *)(states + (size_t)row * p.stride) + (m.begin + i) % FOURS,
                            (size_t)m.rows * p.stride / 4, n);
        }
        if (sum_row < m.rows) {
            fold(sum, s->factors[sum_row], s->sum[sum_row], 1, n);
            s->total_sum[sum_row] = sum;
        }
        sync_consumers();
    }
    if (p.sinks) {
        merge_sinks(p, s, r, m.rows, max);
#pragma unroll
        for (int k = 0; k < MINE; k++) {
            int row = (m.begin * 4 + ((int)threadIdx.x + k * CONSUMERS) * WIDTH) / DIM;
            if (mine[k]) result[k] = times(result[k], s->split_max[row]);
        }
    }
#pragma unroll
    for (int k = 0; k < MINE; k++) {
        int element = m.begin * 4 + ((int)threadIdx.x + k * CONSUMERS) * WIDTH;
        if (put_there[k]) put<TYPE>(p, to[k] + element % DIM, result[k], s->total_sum[element / DIM]);
    }
    if (p.lse2 && part == 0 && threadIdx.x % 32 == 0) put_lse2<DIM>(p, s, r, m.rows, max);
    if (NEAR) clear_states<DIM>(p, m, first);
    if (s->flag)
        for (int i = threadIdx.x; i < m.states * m.rows; i += CONSUMERS)
            *(float2 *)(first + (size_t)(i + 1) * p.stride - 2) = make_float2(0.0f, 0.0f);
    sync_consumers();
}

/* May CTAs wait for one another? Only if all are resident, with one worker each. */
IV_DEVICE bool resident(const iv_attention_params &p) {
    const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
    return p.resident && head->workers <= (int)gridDim.x;
}

/* The part of a shared slice is in the scratch. For CTAs that must not wait for one another: the last one to arrive
 * merges everything. */
template <int DIM, iv_dtype TYPE>
static __device__ __noinline__ void finish_if_last(const iv_attention_params &p, shared_state *s,
                                                   const open_kv_split o) {
    if (threadIdx.x == 0) {
        int before;
        asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(p.counters + o.run.kv_split)
                     : "memory");
        s->flag = before == o.kv_split.parts - 1;
        if (s->flag) p.counters[o.run.kv_split] = 0;
    }
    sync_consumers();
    if (s->flag) merge<DIM, TYPE, false>(p, s, NULL, o.run, o.kv_split, 0, 1);
    sync_consumers();
}

#endif
