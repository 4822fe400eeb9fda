/* delta_generic.cu: the delta rule for any sizes and types, in both arithmetics. A CTA has 16 columns of a value head,
 * whose state is in shared memory, and takes a span row by row. It is the plain form that the other kernels are
 * compared with; not fast. */
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/launch.cuh"

enum { THREADS = 128, COLUMNS = 16 };

typedef struct state { /* in shared memory */
    float *s;          /* [COLUMNS][padded key_dim] at the border of the block at work */
    void *query, *key; /* [padded key_dim]: of the row */
    void *updates;     /* [COLUMNS][BLOCK] */
    float *score;      /* [2][BLOCK]: products of the key, of the query with the block's keys */
    void *weights;     /* the same decayed and rounded */
    float *total;      /* [BLOCK] */
    float *factor;     /* [BLOCK]: decays to the border */
    float *w, *o;      /* [COLUMNS]; o follows w */
} state;

static size_t shared_floats(size_t key_dim) {
    size_t padded = (key_dim + STEP - 1) / STEP * STEP;
    return (COLUMNS + 2) * padded + COLUMNS * BLOCK + 6 * BLOCK + 2 * COLUMNS;
}

IV_DEVICE state carve(float *base, int padded) {
    state s;
    s.s = base, base += COLUMNS * padded;
    s.query = base, base += padded;
    s.key = base, base += padded;
    s.updates = base, base += COLUMNS * BLOCK;
    s.score = base, base += 2 * BLOCK;
    s.weights = base, base += 2 * BLOCK;
    s.total = base, base += BLOCK;
    s.factor = base, base += BLOCK;
    s.w = base, s.o = base + COLUMNS;
    return s;
}

/* What a CTA has, and the block at work. */
typedef struct job {
    delta_span span;
    unsigned head, key_head, column; /* value head; the first of the columns */
    int dim, padded, value_dim;
    int block;
} job;

/* ---- chains --------------------------------------------------------------------------------------------------- */

/* acc[r] and acc[apart + r], r < 16, continued over k elements of row r of a matrix, with two vectors; by one warp.
 * apart 0: with one vector, given twice. at(r, i): bits of element i of row r. */
template <bool TC16, iv_dtype T, class At>
IV_DEVICE void chains(const At &at, const void *x0, const void *x1, int k, float *acc, int apart) {
    int lane = threadIdx.x % 32;
    if constexpr (TC16) {
        int g = lane / 4, t = lane % 4;
        const uint16_t *x = (const uint16_t *)(g == 0 ? x0 : x1);
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (t == 0) d[0] = acc[g], d[1] = acc[apart + g], d[2] = acc[g + 8], d[3] = acc[apart + g + 8];
        for (int i = 2 * t; i < k; i += STEP) {
            uint32_t a[4] = {at(g, i) | at(g, i + 1) << 16, at(g + 8, i) | at(g + 8, i + 1) << 16,
                             at(g, i + 8) | at(g, i + 9) << 16, at(g + 8, i + 8) | at(g + 8, i + 9) << 16};
            uint32_t b0 = g < 2 ? x[i] | (uint32_t)x[i + 1] << 16 : 0,
                     b1 = g < 2 ? x[i + 8] | (uint32_t)x[i + 9] << 16 : 0;
            delta_mma<T>(d, a, b0, b1);
        }
        __syncwarp();
        if (t == 0) acc[g] = d[0], acc[apart + g] = d[1], acc[g + 8] = d[2], acc[apart + g + 8] = d[3];
    } else {
        int r = lane % 16;
        const void *x = lane < 16 ? x0 : x1;
        float *to = acc + lane / 16 * apart + r, y = *to;
        __syncwarp();
        for (int i = 0; i < k; i += 2) {
            y = iv_fma_flush(widened<T>(at(r, i + 1)), get<T>(x, i + 1), y);
            y = iv_fma_flush(widened<T>(at(r, i)), get<T>(x, i), y);
        }
        *to = y;
    }
    __syncwarp();
}

/* Element i of the key of row r of the block. */
template <iv_dtype T> IV_DEVICE uint32_t key_at(const iv_gpu_delta_args &a, const job &j, int r, int i) {
    if (i >= j.dim) return 0;
    int position = j.block * BLOCK + r;
    if (position >= j.span.end) return 0;
    if (position < j.span.position)
        return get_bits<T>(j.span.now + j.key_head * a.shape.key_bytes, (size_t)(r * j.padded + i));
    size_t row = (size_t)(j.span.row + position - j.span.position), keys = a.shape.key_heads * j.dim;
    return get_bits<T>(a.qk, row * 2 * keys + keys + j.key_head * j.dim + i);
}

/* ---- a row ---------------------------------------------------------------------------------------------------- */

template <iv_dtype T> IV_DEVICE void load_row(const iv_gpu_delta_args &a, const job &j, const state &s, size_t row) {
    size_t keys = a.shape.key_heads * j.dim;
    for (int i = threadIdx.x; i < 2 * j.padded; i += THREADS) {
        int at = i % j.padded;
        size_t from = row * 2 * keys + (i < j.padded ? 0 : keys) + j.key_head * j.dim + at;
        put_bits<T>(i < j.padded ? s.query : s.key, at, at < j.dim ? get_bits<T>(a.qk, from) : 0);
    }
}

/* Scores of row t against the keys of its block, decayed and rounded. */
template <bool TC16, iv_dtype T> IV_DEVICE void weigh(const iv_gpu_delta_args &a, const job &j, const state &s, int t) {
    int first = threadIdx.x / 32 * 16, i = threadIdx.x % BLOCK, query = threadIdx.x / BLOCK;
    s.score[threadIdx.x] = 0.0f;
    __syncthreads();
    if (first <= t)
        chains<TC16, T>([&](int r, int e) { return key_at<T>(a, j, first + r, e); }, s.key, s.query, j.padded,
                        s.score + first, BLOCK);
    __syncthreads();
    bool sees = i < t + query;
    put<T>(s.weights, threadIdx.x, sees ? delta_factor(s.total[t], s.total[i]) * s.score[threadIdx.x] : 0.0f);
    __syncthreads();
}

/* w, the update and o of row t, by one warp. */
template <bool TC16, iv_dtype T>
IV_DEVICE void finish_row(const iv_gpu_delta_args &a, const job &j, const state &s, int t, size_t row) {
    int lane = threadIdx.x, end = t / STEP * STEP + STEP, column = (int)j.column + lane;
    float factor = delta_factor(s.total[t], 0.0f);
    s.w[lane] = 0.0f;
    __syncwarp();
    chains<TC16, T>([&](int r, int e) { return rounded<T>(s.s[r * j.padded + e]); }, s.key, s.query, j.padded, s.w,
                    COLUMNS);
    s.w[lane] = s.w[lane] * factor;
    __syncwarp();
    auto update_at = [&](int r, int e) { return get_bits<T>(s.updates, (size_t)(r * BLOCK + e)); };
    const char *weights = (const char *)s.weights;
    chains<TC16, T>(update_at, weights, weights, end, s.w, 0);
    bool there = lane < COLUMNS && column < j.value_dim;
    float *value = a.values + (row * a.shape.value_heads + j.head) * j.value_dim + column;
    if (lane < COLUMNS) {
        uint32_t bits = 0;
        if (there) {
            float beta = a.gates[row * 2 * a.shape.value_heads + a.shape.value_heads + j.head];
            bits = rounded<T>(beta * (*value - (s.w[lane] + 0.0f)));
            if (!delta_finite<T>(bits)) delta_bad(a, row), bits = 0;
        }
        put_bits<T>(s.updates, lane * BLOCK + t, bits);
    }
    __syncwarp();
    const void *of_query = weights + BLOCK * (T == IV_F32 ? 4 : 2);
    chains<TC16, T>(update_at, of_query, of_query, end, s.o, 0);
    if (there) *value = iv_canon(s.o[lane] + 0.0f);
}

/* ---- borders --------------------------------------------------------------------------------------------------- */

template <bool TC16, iv_dtype T> IV_DEVICE void move_border(const iv_gpu_delta_args &a, const job &j, const state &s) {
    int lane = threadIdx.x % 32;
    float last = delta_factor(s.total[BLOCK - 1], 0.0f);
    if (threadIdx.x < BLOCK) s.factor[threadIdx.x] = delta_factor(s.total[BLOCK - 1], s.total[threadIdx.x]);
    __syncthreads();
    auto decayed = [&](int i, int c) { return rounded<T>(s.factor[i] * widened<T>(key_at<T>(a, j, i, c))); };
    auto update = [&](int r, int i) { return get_bits<T>(s.updates, (size_t)(r * BLOCK + i)); };
    if constexpr (TC16) {
        int g = lane / 4, t = lane % 4;
        for (int c = threadIdx.x / 32 * 8; c < j.padded; c += THREADS / 32 * 8) {
            float *low = s.s + g * j.padded + c + 2 * t, *high = low + 8 * j.padded;
            float d[4] = {low[0] * last, low[1] * last, high[0] * last, high[1] * last};
            for (int i = 2 * t; i < BLOCK; i += STEP) {
                uint32_t u[4] = {update(g, i) | update(g, i + 1) << 16, update(g + 8, i) | update(g + 8, i + 1) << 16,
                                 update(g, i + 8) | update(g, i + 9) << 16,
                                 update(g + 8, i + 8) | update(g + 8, i + 9) << 16};
                delta_mma<T>(d, u, decayed(i, c + g) | decayed(i + 1, c + g) << 16,
                             decayed(i + 8, c + g) | decayed(i + 9, c + g) << 16);
            }
            low[0] = d[0], low[1] = d[1], high[0] = d[2], high[1] = d[3];
        }
    } else {
        for (int e = threadIdx.x; e < COLUMNS * j.padded; e += THREADS) {
            float y = s.s[e] * last;
            int r = e / j.padded, c = e % j.padded;
            for (int i = 0; i < BLOCK; i += 2) {
                y = iv_fma_flush(widened<T>(decayed(i + 1, c)), widened<T>(update(r, i + 1)), y);
                y = iv_fma_flush(widened<T>(decayed(i, c)), widened<T>(update(r, i)), y);
            }
            s.s[e] = y;
        }
    }
    __syncthreads();
}

IV_DEVICE size_t state_index(const job &j, int e) {
    return IV_GPU_DELTA_AT(j.column + e / j.padded, e % j.padded, j.padded / STEP);
}

IV_DEVICE void load_state(const iv_gpu_delta_args &a, const job &j, const state &s) {
    const float *from = (const float *)(j.span.from + j.head * a.shape.state_bytes);
    for (int e = threadIdx.x; e < COLUMNS * j.padded; e += THREADS)
        s.s[e] = j.span.from && e % j.padded < j.dim ? from[state_index(j, e)] : 0.0f;
}

IV_DEVICE void store_state(const iv_gpu_delta_args &a, const job &j, const state &s, unsigned char *slot) {
    float *to = (float *)(slot + j.head * a.shape.state_bytes);
    for (int e = threadIdx.x; e < COLUMNS * j.padded; e += THREADS) to[state_index(j, e)] = s.s[e];
}

/* ---- a span ----------------------------------------------------------------------------------------------------- */

template <iv_dtype T> IV_DEVICE void load_block(const iv_gpu_delta_args &a, const job &j, const state &s, int begin) {
    const unsigned char *updates = j.span.now + a.shape.tail_updates + j.head * a.shape.update_bytes;
    const float *totals = (const float *)(j.span.now + a.shape.tail_totals) + j.head * BLOCK;
    for (int e = threadIdx.x; e < COLUMNS * BLOCK; e += THREADS) {
        size_t at = IV_GPU_DELTA_AT(j.column + e / BLOCK, e % BLOCK, BLOCK / STEP);
        put_bits<T>(s.updates, e, e % BLOCK < begin ? get_bits<T>(updates, at) : 0);
    }
    if (threadIdx.x < BLOCK) s.total[threadIdx.x] = (int)threadIdx.x < begin ? totals[threadIdx.x] : 0.0f;
}

/* The rows' updates, for a backward pass. */
template <iv_dtype T> IV_DEVICE void keep_updates(const iv_gpu_delta_args &a, const job &j, const state &s, int end) {
    size_t first = (size_t)(j.span.row + j.block * BLOCK), values = (size_t)a.shape.value_heads * j.value_dim;
    for (int e = threadIdx.x; e < COLUMNS * end; e += THREADS) {
        int t = e / COLUMNS, r = e % COLUMNS, column = (int)j.column + r;
        if (column >= j.value_dim) continue;
        put_bits<T>(a.kept.updates, (first + t) * values + j.head * j.value_dim + column,
                    get_bits<T>(s.updates, (size_t)(r * BLOCK + t)));
    }
}

/* The rounded state behind the block. */
template <iv_dtype T> IV_DEVICE void keep_border(const iv_gpu_delta_args &a, const job &j, const state &s) {
    size_t at = delta_border_at(a.shape, j.span, j.block, j.head) * j.dim * j.value_dim;
    for (int e = threadIdx.x; e < COLUMNS * j.dim; e += THREADS) {
        int r = e / j.dim, c = e % j.dim, column = (int)j.column + r;
        if (column < j.value_dim) put<T>(a.kept.borders, at + (size_t)column * j.dim + c, s.s[r * j.padded + c]);
    }
}

/* The rows [begin, end) of the block, for later steps. */
template <iv_dtype T>
IV_DEVICE void keep_block(const iv_gpu_delta_args &a, const job &j, const state &s, unsigned char *tail, int begin,
                          int end) {
    unsigned char *updates = tail + a.shape.tail_updates + j.head * a.shape.update_bytes;
    float *totals = (float *)(tail + a.shape.tail_totals) + j.head * BLOCK;
    for (int e = threadIdx.x; e < COLUMNS * BLOCK; e += THREADS)
        put_bits<T>(updates, IV_GPU_DELTA_AT(j.column + e / BLOCK, e % BLOCK, BLOCK / STEP), get_bits<T>(s.updates, e));
    if (j.column) return;
    if ((int)threadIdx.x >= begin && (int)threadIdx.x < end) totals[threadIdx.x] = s.total[threadIdx.x];
    if (!delta_first_of_key(a.shape, j.head)) return;
    for (int e = threadIdx.x; e < (end - begin) * j.padded; e += THREADS)
        put_bits<T>(tail + j.key_head * a.shape.key_bytes, (size_t)(begin * j.padded + e),
                    key_at<T>(a, j, begin + e / j.padded, e % j.padded));
}

template <bool TC16, iv_dtype T>
static __global__ void __launch_bounds__(THREADS) rule(const __grid_constant__ iv_gpu_delta_args a) {
    extern __shared__ float memory[];
    iv_let_next();
    iv_wait();
    job j;
    if (a.spans[blockIdx.x].rows == 0) return;
    j.span = delta_span_of(a, blockIdx.x);
    j.head = blockIdx.y, j.key_head = delta_key_head(a.shape, j.head), j.column = blockIdx.z * COLUMNS;
    j.dim = (int)a.shape.key_dim, j.padded = (j.dim + STEP - 1) / STEP * STEP, j.value_dim = (int)a.shape.value_dim;
    state s = carve(memory, j.padded);
    load_state(a, j, s);
    for (j.block = j.span.first; j.block <= j.span.last; j.block++) {
        int start = j.block * BLOCK, begin = max(j.span.position - start, 0), end = min(j.span.end - start, BLOCK);
        load_block<T>(a, j, s, begin);
        __syncthreads();
        for (int t = begin; t < end; t++) {
            size_t row = (size_t)(j.span.row + start + t - j.span.position);
            if (threadIdx.x == 0)
                s.total[t] = (t ? s.total[t - 1] : 0.0f) + a.gates[row * 2 * a.shape.value_heads + j.head];
            load_row<T>(a, j, s, row);
            weigh<TC16, T>(a, j, s, t);
            if (threadIdx.x < 32) finish_row<TC16, T>(a, j, s, t, row);
            __syncthreads();
        }
        bool keeps = IV_GPU_DELTA_KEEPS(a);
        if (keeps) keep_updates<T>(a, j, s, end);
        if (!keeps && j.block == j.span.first) keep_block<T>(a, j, s, j.span.now, begin, end);
        if (!keeps && j.block == j.span.last && j.block > j.span.first) keep_block<T>(a, j, s, j.span.next, begin, end);
        if (end < BLOCK || (j.block == j.span.last && !delta_writes_behind(j.span, j.block))) return;
        move_border<TC16, T>(a, j, s);
        if (keeps) keep_border<T>(a, j, s);
        unsigned char *slot = delta_slot_for(a, j.span, j.block + 1);
        if (slot) store_state(a, j, s, slot);
    }
}

template <bool TC16, iv_dtype T> static int launch(const iv_gpu_delta_args *a, cudaStream_t stream) {
    dim3 grid((unsigned)a->span_count, a->shape.value_heads, (a->shape.value_dim + COLUMNS - 1) / COLUMNS);
    return iv_launch_shared(rule<TC16, T>, grid, THREADS, shared_floats(a->shape.key_dim) * sizeof(float), stream, *a);
}

int iv_gpu_delta_generic(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    bool tc16 = a->shape.arithmetic == IV_TC16;
    switch (a->shape.type) {
    case IV_BF16: return tc16 ? launch<true, IV_BF16>(a, stream) : launch<false, IV_BF16>(a, stream);
    case IV_F16: return tc16 ? launch<true, IV_F16>(a, stream) : launch<false, IV_F16>(a, stream);
    case IV_F32: return tc16 ? (int)cudaErrorInvalidValue : launch<false, IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}
