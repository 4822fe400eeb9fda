/* attention_generic.cu: attention for any head_dim, group, window and type, in both arithmetics, and latent attention
 * of any widths. A CTA processes a worker's runs in order: eight packed rows, one block of keys at a time, in shared
 * memory. It is the plain form that the other kernels are compared with; not fast. In tc16 keys and values of heads of
 * up to 256 are copied to shared memory a step ahead. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/latent.h"
#include "numerics/tree.h"

enum {
    ROWS = 8,
    THREADS = 128,
    BLOCK = IV_ATTENTION_BLOCK,
    CHUNK = 32,
    STAGED_MAX = 256,
    PAD = 8 /* of rows in shared memory, so that lanes read different banks */
};

typedef struct state {  /* in shared memory */
    float *q;           /* [ROWS][padded] widened; in tc16 [ROWS][padded + PAD] as stored, 16 bits each */
    float *keys;        /* [BLOCK][CHUNK + 1] widened (fma32) */
    uint32_t staged;    /* shared address of keys [BLOCK][head_dim + PAD], then values: 16 bits each (tc16) */
    float *score;       /* [ROWS][BLOCK]: dot products */
    void *weights;      /* [ROWS][BLOCK] rounded; in fma32 widened again */
    float *out, *total; /* [ROWS][head_dim] */
    float *alpha, *sum; /* [ROWS]; sum: of tc16's weights */
    iv_attention_factors *factors;
    int *flag;
} state;

template <iv_dtype TYPE> IV_DEVICE float load(const void *p, size_t i) {
    if constexpr (TYPE == IV_F32)
        return ((const float *)p)[i];
    else
        return iv_widen16(TYPE, ((const uint16_t *)p)[i]);
}

template <iv_dtype TYPE> IV_DEVICE void store(void *p, size_t i, float x) {
    if constexpr (TYPE == IV_F32)
        ((float *)p)[i] = iv_canon(x);
    else
        ((uint16_t *)p)[i] = iv_round16(TYPE, x);
}

/* Are keys and values copied to shared memory? */
static __host__ __device__ bool is_staged(int head_dim) { return head_dim % 16 == 0 && head_dim <= STAGED_MAX; }
static __host__ __device__ size_t staged_bytes(int head_dim) { return (size_t)BLOCK * (head_dim + PAD) * 2; }

static size_t shared_floats(size_t key_dim, size_t head_dim) {
    size_t padded = iv_padded_k(key_dim);
    return ROWS * (padded + PAD) + BLOCK * (CHUNK + 1) + 2 * ROWS * BLOCK + 2 * ROWS * head_dim + 5 * ROWS + 8;
}

/* turns: elements of keys behind those that are their values, in latent attention; 0: values are apart. */
typedef struct generic_params : iv_attention_params {
    int turns;
} generic_params;

IV_DEVICE state carve(float *base, int key_dim, int head_dim) {
    state s;
    int padded = (key_dim + 15) / 16 * 16;
    s.q = base, base += ROWS * (padded + PAD);
    s.weights = base, base += ROWS * BLOCK;
    s.keys = base, base += BLOCK * (CHUNK + 1);
    s.score = base, base += ROWS * BLOCK;
    s.out = base, base += ROWS * head_dim;
    s.total = base, base += ROWS * head_dim;
    s.alpha = base, base += ROWS;
    s.sum = base, base += ROWS;
    s.factors = (iv_attention_factors *)base, base += 2 * ROWS;
    s.flag = (int *)base, base += 4;
    s.staged = (iv_shared(base) + 15) & ~15u;
    return s;
}

/* ---- tc16 ------------------------------------------------------------------------------------------------------- */

template <iv_dtype TYPE> IV_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

template <iv_dtype TYPE> IV_DEVICE void mma_of(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    uint32_t b[2] = {b0, b1};
    mma<TYPE>(d, a, b);
}

IV_DEVICE void load_matrices(uint32_t (&b)[4], uint32_t address, bool turned) {
#if __CUDA_ARCH__ >= 900
    if (turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(address)
                     : "memory");
#endif
}

/* A block's keys or values on their way to shared memory. */
IV_DEVICE void stage_block(uint32_t to, const char *from, int dim) {
#if __CUDA_ARCH__ >= 900
    int pieces = dim / 8;
    for (int i = threadIdx.x; i < BLOCK * pieces; i += THREADS)
        iv_copy16(to + i / pieces * (dim + PAD) * 2 + i % pieces * 16, from + (size_t)i * 16, true);
#endif
}
template <int PENDING> IV_DEVICE void wait_staged() {
#if __CUDA_ARCH__ >= 900
    iv_copies_wait<PENDING>();
#endif
    __syncthreads();
}
IV_DEVICE void commit_staged() {
#if __CUDA_ARCH__ >= 900
    iv_copies_commit();
#endif
}

/* Two elements, p[i] low and p[i + step] high; zero from n on. */
IV_DEVICE uint32_t pair(const uint16_t *p, int i, int step, int n) {
    uint32_t low = i < n ? p[i] : 0, high = i + step < n ? p[i + step] : 0;
    return low | high << 16;
}

template <iv_dtype TYPE> IV_DEVICE void scores_tc16(const state &s, const void *keys, int dim) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, padded = (dim + 15) / 16 * 16;
    const uint16_t *q = (const uint16_t *)s.q, *k = (const uint16_t *)keys;
    for (int tile = threadIdx.x / 32; tile < BLOCK / 8; tile += THREADS / 32) {
        const uint16_t *row = k + (size_t)(tile * 8 + g) * dim;
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int i = 0; i < padded; i += 16) {
            int low = i + 2 * t;
            uint32_t a[4] = {pair(q + g * (padded + PAD), low, 1, padded), 0,
                             pair(q + g * (padded + PAD), low + 8, 1, padded), 0};
            uint32_t b[2] = {pair(row, low, 1, dim), pair(row, low + 8, 1, dim)};
            mma<TYPE>(d, a, b);
        }
        s.score[g * BLOCK + tile * 8 + 2 * t] = d[0], s.score[g * BLOCK + tile * 8 + 2 * t + 1] = d[1];
    }
}

/* The same from staged keys: a warp has 16 of them. */
template <iv_dtype TYPE> IV_DEVICE void scores_staged(const state &s, int dim) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t row = warp * 16 + lane / 16 * 8 + lane % 8, at = s.staged + row * (dim + PAD) * 2 + lane / 8 % 2 * 16;
    const uint32_t *q = (const uint32_t *)s.q + g * (dim + PAD) / 2 + t;
    float d[2][4] = {};
#pragma unroll 4
    for (int k = 0; k < dim / 16; k++) {
        uint32_t a[4] = {q[8 * k], 0, q[8 * k + 4], 0}, b[4];
        load_matrices(b, at + k * 32, false);
        mma_of<TYPE>(d[0], a, b[0], b[1]);
        mma_of<TYPE>(d[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
        *(float2 *)(s.score + g * BLOCK + warp * 16 + n * 8 + 2 * t) = make_float2(d[n][0], d[n][1]);
}

/* The sum, as the output for a value of one; by one warp. */
template <iv_dtype TYPE> IV_DEVICE void sums_tc16(const state &s) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint16_t *w = (const uint16_t *)s.weights;
    float x = __fmul_rn(s.sum[g], s.alpha[g]), d[4] = {x, x, 0.0f, 0.0f};
    uint32_t one = iv_round16(TYPE, 1.0f), b[2] = {one << 16 | one, one << 16 | one};
    for (int i = 0; i < BLOCK; i += 16) {
        int low = i + 2 * t;
        uint32_t a[4] = {pair(w + g * BLOCK, low, 1, BLOCK), 0, pair(w + g * BLOCK, low + 8, 1, BLOCK), 0};
        mma<TYPE>(d, a, b);
    }
    __syncwarp();
    if (t == 0) s.sum[g] = d[0];
}

template <iv_dtype TYPE> IV_DEVICE void values_tc16(const state &s, const void *values, int dim, int stride) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint16_t *w = (const uint16_t *)s.weights, *v = (const uint16_t *)values;
    for (int tile = threadIdx.x / 32; tile * 8 < dim; tile += THREADS / 32) {
        int from = tile * 8 + g, to = tile * 8 + 2 * t;
        float *o = s.out + g * dim + to, alpha = s.alpha[g], d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (to < dim) d[0] = __fmul_rn(o[0], alpha);
        if (to + 1 < dim) d[1] = __fmul_rn(o[1], alpha);
        for (int i = 0; i < BLOCK; i += 16) {
            int low = i + 2 * t;
            uint32_t a[4] = {pair(w + g * BLOCK, low, 1, BLOCK), 0, pair(w + g * BLOCK, low + 8, 1, BLOCK), 0};
            uint32_t b[2] = {0, 0};
            if (from < dim) {
                b[0] = pair(v + from, low * stride, stride, BLOCK * stride);
                b[1] = pair(v + from, (low + 8) * stride, stride, BLOCK * stride);
            }
            mma<TYPE>(d, a, b);
        }
        if (to < dim) o[0] = __fadd_rn(d[0], 0.0f);
        if (to + 1 < dim) o[1] = __fadd_rn(d[1], 0.0f);
    }
}

/* The same from staged values: a warp takes 16 of head_dim at a time. */
template <iv_dtype TYPE> IV_DEVICE void values_staged(const state &s, int dim) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t at = s.staged + (uint32_t)staged_bytes(dim) + lane % 16 * (dim + PAD) * 2 + lane / 16 * 16;
    const uint32_t *w = (const uint32_t *)s.weights + g * BLOCK / 2 + t;
    float alpha = s.alpha[g];
    uint32_t a[BLOCK / 16][4];
#pragma unroll
    for (int k = 0; k < BLOCK / 16; k++) a[k][0] = w[8 * k], a[k][1] = 0, a[k][2] = w[8 * k + 4], a[k][3] = 0;
    for (int tile = threadIdx.x / 32; tile * 16 < dim; tile += THREADS / 32) {
        float2 *o = (float2 *)(s.out + g * dim + tile * 16 + 2 * t), low = o[0], high = o[4];
        float d[2][4] = {{__fmul_rn(low.x, alpha), __fmul_rn(low.y, alpha), 0.0f, 0.0f},
                         {__fmul_rn(high.x, alpha), __fmul_rn(high.y, alpha), 0.0f, 0.0f}};
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            uint32_t b[4];
            load_matrices(b, at + k * 16 * (dim + PAD) * 2 + tile * 32, true);
            mma_of<TYPE>(d[0], a[k], b[0], b[1]);
            mma_of<TYPE>(d[1], a[k], b[2], b[3]);
        }
        o[0] = make_float2(__fadd_rn(d[0][0], 0.0f), __fadd_rn(d[0][1], 0.0f));
        o[4] = make_float2(__fadd_rn(d[1][0], 0.0f), __fadd_rn(d[1][1], 0.0f));
    }
}

/* ---- fma32 ------------------------------------------------------------------------------------------------------ */

template <iv_dtype TYPE> IV_DEVICE void scores_fma32(const state &s, const void *keys, int dim) {
    int padded = (dim + 15) / 16 * 16, key = threadIdx.x % BLOCK, row = threadIdx.x / BLOCK * (ROWS / 2);
    float acc[ROWS / 2] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int base = 0; base < padded; base += CHUNK) {
        int here = min(CHUNK, padded - base);
        for (int i = threadIdx.x; i < BLOCK * CHUNK; i += THREADS) {
            int j = i / CHUNK, c = i % CHUNK;
            s.keys[j * (CHUNK + 1) + c] = base + c < dim ? load<TYPE>(keys, (size_t)j * dim + base + c) : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < here; c += 2) {
            float k0 = s.keys[key * (CHUNK + 1) + c], k1 = s.keys[key * (CHUNK + 1) + c + 1];
#pragma unroll
            for (int r = 0; r < ROWS / 2; r++) {
                const float *q = s.q + (row + r) * padded + base + c;
                acc[r] = iv_fma_flush(q[0], k0, iv_fma_flush(q[1], k1, acc[r]));
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < ROWS / 2; r++) s.score[(row + r) * BLOCK + key] = acc[r];
}

template <iv_dtype TYPE> IV_DEVICE void values_fma32(const state &s, const void *values, int dim, int stride) {
    const float *w = (const float *)s.weights;
    for (int d = threadIdx.x; d < dim; d += THREADS) {
        float acc[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[r] = __fmul_rn(s.out[r * dim + d], s.alpha[r]);
        for (int j = 0; j < BLOCK; j += 2) {
            float v0 = load<TYPE>(values, (size_t)j * stride + d),
                  v1 = load<TYPE>(values, (size_t)(j + 1) * stride + d);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                acc[r] = iv_fma_flush(w[r * BLOCK + j], v0, iv_fma_flush(w[r * BLOCK + j + 1], v1, acc[r]));
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) s.out[r * dim + d] = __fadd_rn(acc[r], 0.0f);
    }
}

/* ---- the parts of a run ------------------------------------------------------------------------------------------ */

/* A thread's packed row in the softmax: 16 threads per row. */
typedef struct row_state {
    int row, part, position;
    bool here, started;
    float max, lane, sum; /* of the current split; `lane`: the sum of the thread's lane, part < 8, in fma32 */
    float total_max, total_sum;
} row_state;

template <bool TC16, iv_dtype TYPE>
IV_DEVICE void load_queries(const generic_params &p, const iv_attention_run &r, const state &s) {
    int dim = p.head_dim + p.turns, padded = (dim + 15) / 16 * 16;
    for (int i = threadIdx.x; i < ROWS * padded; i += THREADS) {
        int row = i / padded, d = i % padded, token = row / r.width, in_group = row % r.width, head = r.head + in_group;
        bool there = token < r.tile.tokens && in_group < r.present && head >= 0 && head < p.heads && d < dim;
        size_t at = ((size_t)(r.tile.first_row + token) * p.heads + head) * dim + d;
        if constexpr (TC16)
            ((uint16_t *)s.q)[row * (padded + PAD) + d] = there ? ((const uint16_t *)p.q)[at] : 0;
        else
            s.q[i] = there ? load<TYPE>(p.q, at) : 0.0f;
    }
}

/* Steps 1 to 4 of the law for one block, and fma32's sums, from the dot products in `score`. */
template <bool TC16, iv_dtype TYPE>
IV_DEVICE void softmax(const iv_attention_params &p, const state &s, row_state &t, int first_key) {
    int low = iv_attention_low(t.position, p.window) - first_key, high = t.position - first_key;
    bool sees = t.here && high >= 0 && low < BLOCK;
    float *score = s.score + t.row * BLOCK, x[4], m = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int j = t.part + 16 * i;
        x[i] = j >= low && j <= high ? score[j] : -INFINITY;
        if (p.score_inner != 0.0f && j >= low && j <= high) x[i] = v_tanh(__fmul_rn(x[i], p.score_inner));
        m = iv_max(m, x[i]);
    }
#pragma unroll
    for (int i = 8; i; i /= 2) m = iv_max(m, __shfl_xor_sync(~0u, m, i));
    m = iv_next_max(t.max, __fmul_rn(m, p.scale));
    float alpha = sees ? iv_attention_exp2<TC16>(v_sub(t.max, m)) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int j = t.part + 16 * i;
        float w = sees ? iv_attention_exp2<TC16>(__fmaf_rn(x[i], p.scale, -m)) : 0.0f;
        if constexpr (TC16)
            ((uint16_t *)s.weights)[t.row * BLOCK + j] = iv_round16(TYPE, w);
        else if constexpr (TYPE == IV_F32)
            ((float *)s.weights)[t.row * BLOCK + j] = w;
        else
            ((float *)s.weights)[t.row * BLOCK + j] = iv_widen16(TYPE, iv_round16(TYPE, w));
    }
    if (t.part == 0) s.alpha[t.row] = alpha;
    __syncwarp();
    if (!sees) return;
    t.max = m;
    if (TC16) return;
    const float *weight = (const float *)s.weights + t.row * BLOCK;
    t.lane = __fmul_rn(t.lane, alpha);
    for (int j = t.part % 8; j < BLOCK; j += 8) t.lane = __fadd_rn(t.lane, weight[j]);
}

IV_DEVICE float lanes_sum(float lane) {
#pragma unroll
    for (int i = 4; i; i /= 2) lane = __fadd_rn(lane, __shfl_xor_sync(~0u, lane, i));
    return lane;
}

/* Merges a split into the total; the split itself if there is no total, nothing if the row saw no key of it.
 * SCRATCH: written by other CTAs. */
template <bool TC16, bool SCRATCH>
IV_DEVICE void merge_rows(const state &s, row_state &t, bool seen, float max, float sum, const float *split,
                          size_t stride, int dim) {
    iv_attention_factors j = {1.0f, -1.0f}; /* leave the total */
    if (seen && t.started) {
        j = iv_attention_factors_of<TC16>(&t.total_max, max);
        t.total_sum = iv_attention_merged(t.total_sum, sum, j);
    } else if (seen) {
        j.keep = -1.0f; /* take the split */
        t.total_max = max, t.total_sum = sum;
    }
    t.started |= seen;
    if (t.part == 0) s.factors[t.row] = j;
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * dim; i += THREADS) {
        int row = i / dim;
        iv_attention_factors k = s.factors[row];
        if (k.keep >= 0.0f && k.add < 0.0f) continue;
        const float *from = split + row * stride + i % dim;
        float o = SCRATCH ? __ldcg(from) : *from;
        s.total[i] = k.keep < 0.0f ? o : iv_attention_merged(s.total[i], o, k);
    }
    __syncthreads();
}

template <bool TC16, iv_dtype TYPE>
IV_DEVICE void run_split(const generic_params &p, const iv_attention_run &r, const state &s, row_state &t, int split) {
    int dim = p.head_dim, key_dim = dim + p.turns;
    size_t element = TYPE == IV_F32 ? 4 : 2, half = (size_t)BLOCK * key_dim * element;
    size_t values = p.turns ? 0 : half, apart = values + half;
    for (int i = threadIdx.x; i < ROWS * dim; i += THREADS) s.out[i] = 0.0f;
    if (threadIdx.x < ROWS) s.sum[threadIdx.x] = 0.0f;
    t.max = -INFINITY, t.lane = 0.0f;
    int each = IV_ATTENTION_BLOCKS_PER_SPLIT, first = max(split * each, r.tile.first_block),
        last = min(split * each + each - 1, r.tile.last_block);
    auto page_of = [&](int b) {
        return p.pages + ((size_t)p.tables[r.tile.table + b] * p.page_heads + r.kv_head) * apart;
    };
    bool staged = TC16 && !p.turns && is_staged(dim);
    if (staged) stage_block(s.staged, page_of(first), dim), commit_staged();
    for (int b = first; b <= last; b++) {
        const char *page = page_of(b);
        if (staged) {
            stage_block(s.staged + (uint32_t)staged_bytes(dim), page + half, dim), commit_staged();
            wait_staged<1>();
        }
        if constexpr (TC16) {
            if (staged)
                scores_staged<TYPE>(s, dim);
            else
                scores_tc16<TYPE>(s, page, key_dim);
        } else
            scores_fma32<TYPE>(s, page, key_dim);
        __syncthreads();
        if (staged) {
            if (b < last) stage_block(s.staged, page_of(b + 1), dim);
            commit_staged();
        }
        softmax<TC16, TYPE>(p, s, t, b * BLOCK);
        if (staged)
            wait_staged<1>();
        else
            __syncthreads();
        if constexpr (TC16) {
            if (staged)
                values_staged<TYPE>(s, dim);
            else
                values_tc16<TYPE>(s, page + values, dim, key_dim);
            if (threadIdx.x / 32 == THREADS / 32 - 1) sums_tc16<TYPE>(s);
        } else
            values_fma32<TYPE>(s, page + values, dim, key_dim);
        __syncthreads();
    }
    t.sum = TC16 ? s.sum[t.row] : lanes_sum(t.lane);
    __syncthreads(); /* all threads have read s.sum */
}

/* Stores the state of packed rows in the scratch, from packed row `at` on. */
IV_DEVICE void store_state(const iv_attention_params &p, const float *out, const row_state &t, size_t at, int rows,
                           float max, float sum) {
    int dim = p.head_dim;
    for (int i = threadIdx.x; i < rows * dim; i += THREADS) p.partial[(at + i / dim) * p.stride + i % dim] = out[i];
    if (t.part == 0 && t.row < rows) {
        float *end = p.partial + (at + t.row) * p.stride + p.stride - 2;
        end[0] = max, end[1] = sum;
    }
}

template <bool TC16>
IV_DEVICE void merge_parts(const iv_attention_params &p, const iv_attention_run &r, const state &s, row_state &t,
                           const iv_attention_kv_split &kv_split, int rows) {
    t.started = false;
    for (int i = 0; i <= r.splits - kv_split.split; i++) {
        const float *from = p.partial + (size_t)(kv_split.partial + i * rows) * p.stride;
        int split = r.first_split + (i ? kv_split.split + i - 1 : 0), count = i ? 1 : kv_split.split;
        bool seen = t.here && iv_attention_sees(t.position, p.window, split * IV_KV_SPLIT, count * IV_KV_SPLIT);
        const float *end = from + t.row * p.stride + p.stride - 2;
        float max = seen ? __ldcg(end) : 0.0f, sum = seen ? __ldcg(end + 1) : 0.0f;
        merge_rows<TC16, true>(s, t, seen, max, sum, from, p.stride, p.head_dim);
    }
}

template <bool TC16, iv_dtype TYPE>
IV_DEVICE void write_out(const iv_attention_params &p, const iv_attention_run &r, const state &s, row_state &t) {
    int dim = p.head_dim, own = r.head + t.row % r.width;
    float keep = 1.0f;
    if (t.row % r.width < r.present && own >= 0 && own < p.heads)
        keep = iv_attention_sink<TC16>(p, own, &t.total_max, &t.total_sum);
    if (t.part == 0) s.alpha[t.row] = t.total_sum, s.sum[t.row] = keep;
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * dim; i += THREADS) {
        int row = i / dim, token = row / r.width, in_group = row % r.width, head = r.head + in_group;
        if (token >= r.tile.tokens || in_group >= r.present || head < 0 || head >= p.heads) continue;
        size_t at = ((size_t)(r.tile.first_row + token) * p.heads + head) * dim + i % dim;
        store<TYPE>(p.out, at, iv_canon(__fdiv_rn(__fmul_rn(s.total[i], s.sum[row]), s.alpha[row])));
    }
    if (p.lse2) {
        int token = t.row / r.width, in_group = t.row % r.width, head = r.head + in_group;
        if (t.part == 0 && token < r.tile.tokens && in_group < r.present && head >= 0 && head < p.heads)
            p.lse2[(size_t)(r.tile.first_row + token) * p.heads + head] = iv_attention_lse2(t.total_max, t.total_sum);
    }
    __syncthreads();
}

template <bool TC16, iv_dtype TYPE>
IV_DEVICE void one_run(const generic_params &p, const iv_attention_run &r, const state &s) {
    row_state t = {};
    t.row = threadIdx.x / 16, t.part = threadIdx.x % 16;
    int token = t.row / r.width, rows = r.tile.tokens * r.width;
    t.here = token < r.tile.tokens;
    t.position = r.tile.position + (t.here ? token : 0);
    load_queries<TC16, TYPE>(p, r, s);
    for (int i = threadIdx.x; i < ROWS * p.head_dim; i += THREADS) s.total[i] = 0.0f;
    __syncthreads();
    bool whole = r.begin == 0 && r.end == r.splits;
    iv_attention_kv_split kv_split = {};
    if (!whole) {
        const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
        kv_split = ((const iv_attention_kv_split *)(p.plan + head->kv_splits_at))[r.kv_split];
    }
    for (int i = r.begin; i < r.end; i++) {
        int split = r.first_split + i;
        run_split<TC16, TYPE>(p, r, s, t, split);
        bool seen = t.here && iv_attention_sees(t.position, p.window, split * IV_KV_SPLIT, IV_KV_SPLIT);
        if (r.begin == 0)
            merge_rows<TC16, false>(s, t, seen, t.max, t.sum, s.out, p.head_dim, p.head_dim);
        else
            store_state(p, s.out, t, kv_split.partial + (size_t)(i - kv_split.split + 1) * rows, rows, t.max, t.sum);
    }
    if (!whole) {
        if (r.begin == 0) store_state(p, s.total, t, kv_split.partial, rows, t.total_max, t.total_sum);
        if (!iv_attention_arrive(p, r.kv_split, kv_split.parts, s.flag, THREADS, threadIdx.x == 0)) return;
        merge_parts<TC16>(p, r, s, t, kv_split, rows);
    }
    write_out<TC16, TYPE>(p, r, s, t);
}

template <bool TC16, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS) attention_kernel(const generic_params p) {
    extern __shared__ float memory[];
    state s = carve(memory, p.head_dim + p.turns, p.head_dim);
    for (int worker = blockIdx.x, n = iv_walk_workers(p); worker < n; worker += gridDim.x) {
        iv_attention_walk w = iv_walk_start(p, worker);
        iv_attention_run r;
        while (iv_walk_next(p, w, r)) {
            one_run<TC16, TYPE>(p, r, s);
            __syncthreads();
        }
    }
}

template <bool TC16, iv_dtype TYPE>
static int launch(const iv_gpu_attention_args *a, size_t turns, int workers, cudaStream_t stream) {
    size_t bytes = shared_floats(a->shape.head_dim + turns, a->shape.head_dim) * sizeof(float);
    if (TC16 && !turns && is_staged((int)a->shape.head_dim)) bytes += 16 + 2 * staged_bytes((int)a->shape.head_dim);
    cudaError_t failed =
        cudaFuncSetAttribute(attention_kernel<TC16, TYPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (failed) return failed;
    generic_params p = {iv_attention_params_of(a, true), (int)turns};
    attention_kernel<TC16, TYPE><<<workers, THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

int iv_latent_general(const iv_gpu_attention_args *a, size_t turns, int workers, iv_gpu_stream stream) {
    bool tc16 = a->shape.arithmetic == IV_TC16;
    switch (a->shape.type) {
    case IV_BF16:
        return tc16 ? launch<true, IV_BF16>(a, turns, workers, stream)
                    : launch<false, IV_BF16>(a, turns, workers, stream);
    case IV_F16:
        return tc16 ? launch<true, IV_F16>(a, turns, workers, stream)
                    : launch<false, IV_F16>(a, turns, workers, stream);
    case IV_F32: return tc16 ? cudaErrorInvalidValue : launch<false, IV_F32>(a, turns, workers, stream);
    default: return cudaErrorInvalidValue;
    }
}

int iv_attention_generic(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream) {
    return iv_latent_general(a, 0, workers, stream);
}
