/* attention_backward_generic.cu: attention's backward pass for any head_dim, group, window and type, in both
 * arithmetics. It is the plain form that the Hopper kernels are compared with.
 *
 * A CTA owns 16 rows, or 4 if they are long, `mine`: queries of a head, or keys of a KV head. It meets blocks of 64
 * `other` rows. Of both sides there is an a (q or K) and a b (dO or V): scores are a a', their gradients come from b
 * b', and the result is dS times the other a, for keys also P times the other b. */
#include "kernels/cuda/attention_backward.cuh"
#include "numerics/tree.h"

enum { BLOCK = IV_ATTENTION_BLOCK, THREADS = 128, CHUNK = 32, TALL = 16, SHORT = 4 /* MINE: rows of a CTA */ };

typedef struct state { /* in shared memory */
    void *mine[2];     /* [MINE][padded]: a, b; widened in fma32 */
    void *weights[2];  /* [MINE][BLOCK]: dS, P, rounded; in fma32 widened again */
    float *product[2]; /* [MINE][BLOCK]: scores, dp */
    float *sum[2];     /* [MINE][dim]: from dS, from P */
    float *chunk;      /* [BLOCK][CHUNK + 1] widened (fma32) */
    int *found;
} state;

typedef struct others { /* a block of the other rows */
    const void *row[2]; /* a, b: the first row; rows are `stride` elements apart */
    size_t stride;
    int first, count; /* position; rows that exist */
    int head;         /* of the queries */
} others;

static size_t shared_bytes(bool keys, bool tc16, size_t mine, size_t dim) {
    size_t element = tc16 ? 2 : 4, padded = iv_padded_k(dim);
    size_t rows =
        mine * (2 * padded * element + 2 * BLOCK * (element + sizeof(float)) + (keys ? 2 : 1) * dim * sizeof(float));
    return 16 + rows + (tc16 ? 0 : BLOCK * (CHUNK + 1) * sizeof(float));
}

template <bool KEYS, bool TC16, int MINE> IV_DEVICE state carve(char *at, int dim) {
    state s = {};
    int element = TC16 ? 2 : 4, padded = (dim + 15) / 16 * 16;
    s.found = (int *)at, at += 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s.mine[i] = at, at += MINE * padded * element;
        s.weights[i] = at, at += MINE * BLOCK * element;
        s.product[i] = (float *)at, at += MINE * BLOCK * 4;
        if (i == 0 || KEYS) s.sum[i] = (float *)at, at += MINE * dim * 4;
    }
    s.chunk = (float *)at;
    return s;
}

template <iv_dtype TYPE> IV_DEVICE float load(const void *p, size_t i) {
    if constexpr (TYPE == IV_F32)
        return ((const float *)p)[i];
    else
        return iv_widen16(TYPE, ((const uint16_t *)p)[i]);
}

template <bool TC16, iv_dtype TYPE> IV_DEVICE void store_weight(void *p, int i, float x) {
    if constexpr (TC16)
        ((uint16_t *)p)[i] = iv_round16(TYPE, x);
    else if constexpr (TYPE == IV_F32)
        ((float *)p)[i] = iv_canon(x);
    else
        ((float *)p)[i] = iv_widen16(TYPE, iv_round16(TYPE, x));
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

/* A fragment of 16 rows in shared memory, k from `low` and from low + 8 on. */
IV_DEVICE void fragment(uint32_t (&a)[4], const void *rows, int stride, int g, int low) {
    const uint16_t *r = (const uint16_t *)rows + g * stride + low;
    a[0] = *(const uint32_t *)r, a[1] = *(const uint32_t *)(r + 8 * stride);
    a[2] = *(const uint32_t *)(r + 8), a[3] = *(const uint32_t *)(r + 8 * stride + 8);
}

template <iv_dtype TYPE> IV_DEVICE void products_tc16(const state &s, const others &o, int side, int dim) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, padded = (dim + 15) / 16 * 16;
    for (int tile = threadIdx.x / 32; tile < BLOCK / 8; tile += THREADS / 32) {
        int other = tile * 8 + g;
        const uint16_t *row = (const uint16_t *)o.row[side] + (size_t)other * o.stride;
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int i = 0; i < padded; i += 16) {
            int low = i + 2 * t;
            uint32_t a[4], b[2] = {0, 0};
            fragment(a, s.mine[side], padded, g, low);
            if (other < o.count && low < dim) b[0] = *(const uint32_t *)(row + low);
            if (other < o.count && low + 8 < dim) b[1] = *(const uint32_t *)(row + low + 8);
            mma<TYPE>(d, a, b);
        }
        float *to = s.product[side] + g * BLOCK + tile * 8 + 2 * t;
        to[0] = d[0], to[1] = d[1], to[8 * BLOCK] = d[2], to[8 * BLOCK + 1] = d[3];
    }
}

/* sum = the chain over one block that continues from sum: weights [side] times the other rows. */
template <iv_dtype TYPE> IV_DEVICE void chain_tc16(const state &s, const others &o, int side, int dim) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int tile = threadIdx.x / 32; tile * 8 < dim; tile += THREADS / 32) {
        int from = tile * 8 + g, to = tile * 8 + 2 * t;
        const uint16_t *x = (const uint16_t *)o.row[side] + from;
        float *sum = s.sum[side] + g * dim + to, d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (to < dim) d[0] = sum[0], d[1] = sum[1], d[2] = sum[8 * dim], d[3] = sum[8 * dim + 1];
        for (int i = 0; i < BLOCK; i += 16) {
            uint32_t a[4], b[2] = {0, 0};
            fragment(a, s.weights[side], BLOCK, g, i + 2 * t);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int row = i + 2 * t + k / 2 * 8 + k % 2;
                if (from < dim && row < o.count) b[k / 2] |= (uint32_t)x[(size_t)row * o.stride] << k % 2 * 16;
            }
            mma<TYPE>(d, a, b);
        }
        if (to < dim) sum[0] = d[0], sum[1] = d[1], sum[8 * dim] = d[2], sum[8 * dim + 1] = d[3];
    }
}

/* ---- fma32 ------------------------------------------------------------------------------------------------------ */

template <iv_dtype TYPE, int MINE> IV_DEVICE void products_fma32(const state &s, const others &o, int side, int dim) {
    int padded = (dim + 15) / 16 * 16, other = threadIdx.x % BLOCK, row = threadIdx.x / BLOCK * (MINE / 2);
    float acc[MINE / 2];
#pragma unroll
    for (int r = 0; r < MINE / 2; r++) acc[r] = 0.0f;
    for (int base = 0; base < padded; base += CHUNK) {
        int here = min((int)CHUNK, padded - base);
        for (int i = threadIdx.x; i < BLOCK * CHUNK; i += THREADS) {
            int j = i / CHUNK, c = i % CHUNK;
            bool there = j < o.count && base + c < dim;
            s.chunk[j * (CHUNK + 1) + c] = there ? load<TYPE>(o.row[side], (size_t)j * o.stride + base + c) : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < here; c += 2) {
            float x0 = s.chunk[other * (CHUNK + 1) + c], x1 = s.chunk[other * (CHUNK + 1) + c + 1];
#pragma unroll
            for (int r = 0; r < MINE / 2; r++) {
                const float *m = (const float *)s.mine[side] + (row + r) * padded + base + c;
                acc[r] = iv_fma_flush(m[0], x0, iv_fma_flush(m[1], x1, acc[r]));
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < MINE / 2; r++) s.product[side][(row + r) * BLOCK + other] = acc[r];
}

template <iv_dtype TYPE, int MINE> IV_DEVICE void chain_fma32(const state &s, const others &o, int side, int dim) {
    const float *w = (const float *)s.weights[side];
    for (int d = threadIdx.x; d < dim; d += THREADS) {
        float acc[MINE];
#pragma unroll
        for (int r = 0; r < MINE; r++) acc[r] = s.sum[side][r * dim + d];
        for (int j = 0; j < BLOCK; j += 2) {
            float x0 = j < o.count ? load<TYPE>(o.row[side], (size_t)j * o.stride + d) : 0.0f;
            float x1 = j + 1 < o.count ? load<TYPE>(o.row[side], (size_t)(j + 1) * o.stride + d) : 0.0f;
#pragma unroll
            for (int r = 0; r < MINE; r++)
                acc[r] = iv_fma_flush(w[r * BLOCK + j], x0, iv_fma_flush(w[r * BLOCK + j + 1], x1, acc[r]));
        }
#pragma unroll
        for (int r = 0; r < MINE; r++) s.sum[side][r * dim + d] = acc[r];
    }
}

/* ---- a pair of blocks ---------------------------------------------------------------------------------------------
 */

typedef struct owner { /* what a CTA owns */
    iv_gpu_span span;
    int first, head, kv_head; /* position of mine; head: of queries */
} owner;

/* Weights and score gradients, rounded, from the products. */
template <bool KEYS, bool TC16, iv_dtype TYPE, int MINE>
IV_DEVICE void weigh(const iv_backward_params &p, const state &s, const owner &w, const others &o) {
    for (int i = threadIdx.x; i < MINE * BLOCK; i += THREADS) {
        int mine = w.first + i / BLOCK, other = o.first + i % BLOCK;
        int query = KEYS ? other : mine, key = KEYS ? mine : other, row = w.span.first_row + query;
        float weight = 0.0f, gradient = 0.0f;
        if (query < w.span.rows && key <= query && key >= iv_attention_low(query, p.window)) {
            float lse2 = p.lse2[(size_t)row * p.heads + o.head];
            float delta = p.row_delta[(size_t)o.head * p.row_stride + row];
            float score = s.product[0][i];
            if (p.score_inner != 0.0f) score = v_tanh(__fmul_rn(score, p.score_inner));
            weight = iv_attention_exp2<TC16>(__fmaf_rn(score, p.scale_log2e, -lse2));
            gradient = __fmul_rn(weight, __fsub_rn(s.product[1][i], delta));
            if (p.score_inner != 0.0f) gradient = __fmul_rn(gradient, __fmaf_rn(-score, score, 1.0f));
        }
        store_weight<TC16, TYPE>(s.weights[0], i, gradient);
        if (KEYS) store_weight<TC16, TYPE>(s.weights[1], i, weight);
    }
}

template <bool KEYS, bool TC16, iv_dtype TYPE, int MINE>
IV_DEVICE void one_block(const iv_backward_params &p, const state &s, const owner &w, const others &o) {
#pragma unroll
    for (int side = 0; side < 2; side++)
        if constexpr (TC16)
            products_tc16<TYPE>(s, o, side, p.head_dim);
        else
            products_fma32<TYPE, MINE>(s, o, side, p.head_dim);
    __syncthreads();
    weigh<KEYS, TC16, TYPE, MINE>(p, s, w, o);
    __syncthreads();
#pragma unroll
    for (int side = 0; side < (KEYS ? 2 : 1); side++)
        if constexpr (TC16)
            chain_tc16<TYPE>(s, o, side, p.head_dim);
        else
            chain_fma32<TYPE, MINE>(s, o, side, p.head_dim);
    __syncthreads();
}

/* Block `block` of a sequence's keys (keys true) or of a head's queries. */
template <iv_dtype TYPE>
IV_DEVICE others block_of(const iv_backward_params &p, const owner &w, bool keys, int block, int head) {
    size_t element = TYPE == IV_F32 ? 4 : 2, dim = (size_t)p.head_dim;
    others o;
    o.first = block * BLOCK, o.count = min((int)BLOCK, w.span.rows - o.first), o.head = head;
    if (keys) {
        size_t page = p.tables[w.span.table + block];
        o.row[0] = p.pages + (page * p.kv_heads + w.kv_head) * 2 * BLOCK * dim * element;
        o.row[1] = (const char *)o.row[0] + BLOCK * dim * element;
        o.stride = dim;
    } else {
        size_t at = (((size_t)w.span.first_row + o.first) * p.heads + head) * dim * element;
        o.row[0] = p.q + at, o.row[1] = p.dout + at;
        o.stride = (size_t)p.heads * dim;
    }
    return o;
}

template <bool KEYS, bool TC16, iv_dtype TYPE, int MINE>
IV_DEVICE void load_mine(const iv_backward_params &p, const state &s, const owner &w) {
    int dim = p.head_dim, padded = (dim + 15) / 16 * 16, skip = w.first % BLOCK;
    others o = block_of<TYPE>(p, w, KEYS, w.first / BLOCK, w.head);
    for (int side = 0; side < 2; side++)
        for (int i = threadIdx.x; i < MINE * padded; i += THREADS) {
            int row = skip + i / padded, d = i % padded;
            bool there = row < o.count && d < dim;
            size_t at = (size_t)row * o.stride + d;
            if constexpr (TC16)
                ((uint16_t *)s.mine[side])[i] = there ? ((const uint16_t *)o.row[side])[at] : 0;
            else
                ((float *)s.mine[side])[i] = there ? load<TYPE>(o.row[side], at) : 0.0f;
        }
    for (int side = 0; side < (KEYS ? 2 : 1); side++)
        for (int i = threadIdx.x; i < MINE * dim; i += THREADS) s.sum[side][i] = 0.0f;
}

/* Writes dq, or dk (side 0) and dv. */
template <bool KEYS, int MINE>
IV_DEVICE void write_mine(const iv_backward_params &p, const state &s, const owner &w, int side) {
    int dim = p.head_dim, head = KEYS ? p.heads + side * p.kv_heads + w.kv_head : w.head;
    float scale = side == 0 ? p.scale : 1.0f;
    for (int i = threadIdx.x; i < MINE * dim; i += THREADS) {
        int position = w.first + i / dim;
        if (position >= w.span.rows) continue;
        size_t to = (size_t)(w.span.first_row + position) * iv_backward_width(p) + (size_t)head * dim + i % dim;
        p.dqkv[to] = iv_canon(__fmul_rn(s.sum[side][i], scale));
    }
}

/* The sequence of row `row`. */
IV_DEVICE bool find_span(const iv_backward_params &p, const state &s, int row, iv_gpu_span *span) {
    if (threadIdx.x == 0) *s.found = -1;
    __syncthreads();
    for (int i = threadIdx.x; i < p.span_count; i += THREADS)
        if (row >= p.spans[i].first_row && row - p.spans[i].first_row < p.spans[i].rows) *s.found = i;
    __syncthreads();
    if (*s.found < 0) return false;
    *span = p.spans[*s.found];
    return true;
}

/* Sequences begin at multiples of 16 rows: block x has rows of one sequence. */
template <bool KEYS, bool TC16, iv_dtype TYPE, int MINE>
static __global__ void __launch_bounds__(THREADS) backward_kernel(const iv_backward_params p) {
    extern __shared__ __align__(16) char memory[];
    iv_let_next();
    iv_wait();
    state s = carve<KEYS, TC16, MINE>(memory, p.head_dim);
    owner w;
    if (!find_span(p, s, blockIdx.x * MINE, &w.span)) return;
    w.first = blockIdx.x * MINE - w.span.first_row;
    int head = (int)blockIdx.y;
    w.head = KEYS ? -1 : head, w.kv_head = KEYS ? head : head / p.group;
    load_mine<KEYS, TC16, TYPE, MINE>(p, s, w);
    __syncthreads();
    int own = w.first / BLOCK;
    if constexpr (KEYS) {
        int last = iv_backward_last_block(own, (w.span.rows + BLOCK - 1) / BLOCK, p.window);
        for (int h = 0; h < p.group; h++)
            for (int i = own; i <= last; i++)
                one_block<KEYS, TC16, TYPE, MINE>(p, s, w, block_of<TYPE>(p, w, false, i, w.kv_head * p.group + h));
        write_mine<KEYS, MINE>(p, s, w, 0);
        write_mine<KEYS, MINE>(p, s, w, 1);
    } else {
        for (int j = iv_backward_first_block(own, p.window); j <= own; j++)
            one_block<KEYS, TC16, TYPE, MINE>(p, s, w, block_of<TYPE>(p, w, true, j, w.head));
        write_mine<KEYS, MINE>(p, s, w, 0);
    }
}

template <bool KEYS, bool TC16, iv_dtype TYPE, int MINE>
static int launch(const iv_backward_params &p, cudaStream_t stream) {
    size_t bytes = shared_bytes(KEYS, TC16, MINE, (size_t)p.head_dim);
    cudaError_t failed = cudaFuncSetAttribute(backward_kernel<KEYS, TC16, TYPE, MINE>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (failed) return failed;
    dim3 grid((unsigned)(p.rows + MINE - 1) / MINE, (unsigned)(KEYS ? p.kv_heads : p.heads));
    return iv_launch_shared(backward_kernel<KEYS, TC16, TYPE, MINE>, grid, THREADS, bytes, stream, p);
}

/* Tensor cores multiply 16 rows. Otherwise long rows need little memory, for any GPU. */
template <bool TC16, iv_dtype TYPE> static int launch_both(const iv_backward_params &p, cudaStream_t stream) {
    int failed;
    if (TC16 || p.head_dim <= 128) {
        failed = launch<true, TC16, TYPE, TALL>(p, stream);
        return failed ? failed : launch<false, TC16, TYPE, TALL>(p, stream);
    }
    if constexpr (!TC16) {
        failed = launch<true, TC16, TYPE, SHORT>(p, stream);
        return failed ? failed : launch<false, TC16, TYPE, SHORT>(p, stream);
    }
    return cudaErrorInvalidValue;
}

int iv_attention_backward_generic(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                                  cudaStream_t stream) {
    bool tc16 = a->shape.arithmetic == IV_TC16;
    switch (a->shape.type) {
    case IV_BF16: return tc16 ? launch_both<true, IV_BF16>(p, stream) : launch_both<false, IV_BF16>(p, stream);
    case IV_F16: return tc16 ? launch_both<true, IV_F16>(p, stream) : launch_both<false, IV_F16>(p, stream);
    case IV_F32: return tc16 ? cudaErrorInvalidValue : launch_both<false, IV_F32>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}
