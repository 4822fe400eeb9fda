/* predictions.cu: the head's row ops of a training step: statistics of logits, their gradients, sums of nodes, and the
 * gradients of the embedding's rows. Law: NUMERICS.md 15.5 and 15.6. */
#include "kernels/cuda/eights.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/predictions.cuh"

#define WHOLE_WARP 0xffffffffu
#define MINUS_INFINITY 0xff800000u

/* ---- statistics ------------------------------------------------------------------------------------------------ */

enum {
    LOGITS_AHEAD = 16, /* loaded by a thread before any is used */
    LOGIT_BLOCKS = 4 /* of a multiprocessor; the more, the less of a row is still in the cache when it is read again */
};

/* The largest value of a block, in all threads. */
IV_DEVICE float max_block(float m, float *warps) {
    for (int stride = 16; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = m;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) m = iv_max(m, warps[w]);
    return m;
}

/* A thread is a lane of the law, and the only one that reads and divides its elements. The maximum is found from the
 * end to the beginning, where the sum starts. */
template <bool DIVIDE>
static __global__ void __launch_bounds__(LANES, LOGIT_BLOCKS)
    logit_statistics(const __grid_constant__ iv_statistics_args a) {
    enum { STEP = LANES * LOGITS_AHEAD };
    __shared__ float warps[WARPS], lanes[LANES];
    iv_let_next();
    iv_wait();
    size_t vocab = a.vocab;
    float *x = a.logits + blockIdx.x * a.stride, m = __uint_as_float(MINUS_INFINITY), lane = 0.0f, v[LOGITS_AHEAD];
    for (size_t end = (vocab + STEP - 1) / STEP * STEP; end > 0; end -= STEP) {
        size_t i = end - STEP + threadIdx.x;
#pragma unroll
        for (int j = 0; j < LOGITS_AHEAD; j++) v[j] = i + j * LANES < vocab ? x[i + j * LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < LOGITS_AHEAD; j++) {
            if (DIVIDE) v[j] = __fdiv_rn(v[j], a.temperature);
            if (DIVIDE && i + j * LANES < vocab) x[i + j * LANES] = v[j];
            if (i + j * LANES < vocab) m = iv_max(m, v[j]);
        }
    }
    m = max_block(m, warps) + 0.0f;
    for (size_t i = threadIdx.x; i < vocab; i += STEP) {
#pragma unroll
        for (int j = 0; j < LOGITS_AHEAD; j++) v[j] = i + j * LANES < vocab ? x[i + j * LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < LOGITS_AHEAD; j++) v[j] = v_exp(v[j] - m);
#pragma unroll
        for (int j = 0; j < LOGITS_AHEAD; j++)
            if (i + j * LANES < vocab) lane = lane + v[j];
    }
    float s = fold_block(lane, lanes);
    if (threadIdx.x > 0) return;
    int32_t target = a.targets[blockIdx.x];
    a.max[blockIdx.x] = m, a.sum[blockIdx.x] = s;
    a.logprobs[blockIdx.x] = target >= 0 && (size_t)target < vocab ? (x[target] - m) - v_log(s) : 0.0f;
}

/* ---- gradients of logits ----------------------------------------------------------------------------------------- */

typedef struct logit_rows {
    const float *x;
    size_t x_stride, first, n;
    float temperature;
    const int32_t *targets;
    const float *coefficients, *max, *sum;
    void *out;
    size_t out_stride;
    iv_logit_shape shape;
} logit_rows;

/* See iv_ref_shape_gradient. */
IV_DEVICE float shape_gradient(iv_logit_shape s, float y, float d) {
    if (s.cap != 0.0f && y > -INFINITY) {
        float t = __fmul_rn(y, __fdiv_rn(1.0f, s.cap));
        d = __fmul_rn(d, __fmaf_rn(-t, t, 1.0f));
    }
    return s.divisor == 1.0f ? d : __fdiv_rn(d, s.divisor);
}

template <iv_dtype T, int V>
static __global__ void __launch_bounds__(EIGHTS_THREADS) logits_backward(const __grid_constant__ logit_rows a) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = first_column<V>();
    if (i >= a.out_stride) return;
    int32_t target = a.targets[row];
    float y[V] = {0};
    if (target >= 0 && i < a.n) {
        load_some<IV_F32, V>(a.x + row * a.x_stride, i, a.n, y);
        float m = a.max[row], q = __fdiv_rn(1.0f, a.sum[row]), c = a.coefficients[row];
#pragma unroll
        for (int j = 0; j < V; j++) {
            float x = a.temperature == 1.0f ? y[j] : __fdiv_rn(y[j], a.temperature), p = v_exp(x - m) * q;
            float d = c * (a.first + i + j == (size_t)target ? p - 1.0f : p);
            y[j] = i + j < a.n ? shape_gradient(a.shape, y[j], d) : 0.0f;
        }
    }
    store_whole<T, V>(a.out, row * a.out_stride + i, y);
}

template <iv_dtype T> static int launch_logits(const logit_rows *a, size_t rows, cudaStream_t stream) {
    bool fits =
        a->out_stride % 8 == 0 && iv_fits_eights(IV_F32, a->x, a->x_stride) && iv_fits_eights(T, a->out, a->out_stride);
    return iv_launch(fits ? logits_backward<T, 8> : logits_backward<T, 1>,
                     iv_eights_grid(rows, a->out_stride, fits ? 8 : 1), EIGHTS_THREADS, stream, *a);
}

int iv_gpu_logits_backward(const float *x, size_t x_stride, size_t first, size_t n, size_t rows, float temperature,
                           const int32_t *targets, const float *coefficients, const float *max, const float *sum,
                           iv_logit_shape shape, iv_dtype type, void *out, size_t out_stride, iv_gpu_stream stream) {
    if (rows == 0 || out_stride == 0) return 0;
    if (n > x_stride || n > out_stride || !(temperature > 0.0f)) return (int)cudaErrorInvalidValue;
    logit_rows a = {x, x_stride, first, n, temperature, targets, coefficients, max, sum, out, out_stride, shape};
    switch (type) {
    case IV_BF16: return launch_logits<IV_BF16>(&a, rows, stream);
    case IV_F16: return launch_logits<IV_F16>(&a, rows, stream);
    case IV_F32: return launch_logits<IV_F32>(&a, rows, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* From the divided logits of statistics. */
static int gradients_of_leaves(const iv_statistics_args *a, iv_gpu_stream stream) {
    const iv_gpu_logit_leaves *l = &a->leaves;
    size_t width = l->type == IV_F32 ? 4 : 2;
    int error = 0;
    for (size_t at = 0, i = 0; at < a->vocab && !error; at += l->each, i++)
        error = iv_gpu_logits_backward(a->logits + at, a->stride, at, l->each < a->vocab - at ? l->each : a->vocab - at,
                                       a->rows, 1.0f, a->targets, l->coefficients, a->max, a->sum,
                                       iv_logit_shape{1.0f, 0.0f}, l->type, (char *)l->out + i * l->leaf * width,
                                       l->stride, stream);
    return error;
}

int iv_gpu_logit_statistics(float *logits, size_t rows, size_t vocab, size_t stride, float temperature,
                            const int32_t *targets, float *max, float *sum, float *logprobs,
                            const iv_gpu_logit_leaves *leaves, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    if (vocab == 0 || stride < vocab || !(temperature > 0.0f)) return (int)cudaErrorInvalidValue;
    if (leaves && (leaves->each == 0 || leaves->stride < leaves->each)) return (int)cudaErrorInvalidValue;
    iv_statistics_args a = {logits, rows, vocab, stride, temperature, targets, max, sum, logprobs, {}};
    if (leaves) a.leaves = *leaves;
    if (vocab >= IV_CLUSTER_VOCAB_MIN && vocab <= IV_CLUSTER_VOCAB_MAX && iv_overlaps() &&
        !(leaves && leaves->type == IV_F32))
        return iv_statistics_in_clusters(&a, stream);
    int error = iv_launch(temperature == 1.0f ? logit_statistics<false> : logit_statistics<true>, dim3((unsigned)rows),
                          LANES, stream, a);
    return error || !leaves ? error : gradients_of_leaves(&a, stream);
}

static __global__ void __launch_bounds__(EIGHTS_THREADS)
    rows_of_logits(const int32_t *targets, const float *coefficients, const float *max, const float *sum, size_t rows,
                   iv_gpu_logit_row *out) {
    iv_let_next();
    iv_wait();
    size_t i = (size_t)blockIdx.x * EIGHTS_THREADS + threadIdx.x;
    if (i < rows) out[i] = {max[i], __fdiv_rn(1.0f, sum[i]), coefficients[i], targets[i]};
}

int iv_gpu_logit_rows(const int32_t *targets, const float *coefficients, const float *max, const float *sum,
                      size_t rows, iv_gpu_logit_row *out, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    dim3 grid((unsigned)((rows + EIGHTS_THREADS - 1) / EIGHTS_THREADS));
    return iv_launch(rows_of_logits, grid, EIGHTS_THREADS, stream, targets, coefficients, max, sum, rows, out);
}

/* ---- ids that are not allowed -------------------------------------------------------------------------------------
 */

typedef struct forbidden {
    const int32_t *ids;
    size_t count, first, rows, stride;
    void *out;
    const int32_t *targets; /* NULL: logits */
    const float *coefficients;
} forbidden;

enum { FORBID_THREADS = 128, FORBID_BLOCKS = 64 }; /* of a row */

/* Logits are -infinity; gradients the zero of c's sign, or of padding. */
template <class bits>
static __global__ void __launch_bounds__(FORBID_THREADS) forbid(const __grid_constant__ forbidden a) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    bool negative = a.targets && a.targets[row] >= 0 && (__float_as_uint(a.coefficients[row]) >> 31) != 0;
    bits zero = negative ? (bits)((bits)1 << (8 * sizeof(bits) - 1)) : (bits)0, *out = (bits *)a.out + row * a.stride;
    for (size_t i = blockIdx.y * FORBID_THREADS + threadIdx.x; i < a.count; i += gridDim.y * FORBID_THREADS)
        out[(size_t)a.ids[i] - a.first] = a.targets ? zero : (bits)MINUS_INFINITY;
}

static int launch_forbid(const forbidden &a, size_t width, iv_gpu_stream stream) {
    if (a.rows == 0 || a.count == 0) return 0;
    size_t blocks = (a.count + FORBID_THREADS - 1) / FORBID_THREADS;
    dim3 grid((unsigned)a.rows, (unsigned)(blocks < FORBID_BLOCKS ? blocks : FORBID_BLOCKS));
    return iv_launch(width == 2 ? forbid<uint16_t> : forbid<uint32_t>, grid, FORBID_THREADS, stream, a);
}

int iv_gpu_forbid(const int32_t *ids, size_t count, size_t first, size_t rows, float *x, size_t stride,
                  iv_gpu_stream stream) {
    return launch_forbid({ids, count, first, rows, stride, x, NULL, NULL}, sizeof *x, stream);
}

int iv_gpu_forbid_gradients(const int32_t *ids, size_t count, size_t first, size_t rows, const int32_t *targets,
                            const float *coefficients, iv_dtype type, void *out, size_t stride, iv_gpu_stream stream) {
    return launch_forbid({ids, count, first, rows, stride, out, targets, coefficients}, type == IV_F32 ? 4 : 2, stream);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum { NODE_THREADS = 256 };

template <bool FLUSH, int V>
static __global__ void __launch_bounds__(NODE_THREADS)
    add_nodes(const float *earlier, float *acc, size_t n, bool result) {
    iv_let_next();
    iv_wait();
    size_t i = ((size_t)blockIdx.x * NODE_THREADS + threadIdx.x) * V;
    if (i >= n) return;
    elements<V> b = load<V>(acc + i), a = {};
    if (earlier) a = load<V>(earlier + i);
#pragma unroll
    for (int j = 0; j < V; j++) {
        float y = !earlier ? b.at[j] : FLUSH ? iv_add_flush(a.at[j], b.at[j]) : a.at[j] + b.at[j];
        b.at[j] = result ? iv_canon(y) : y;
    }
    store(acc + i, b);
}

int iv_gpu_add_nodes(iv_arithmetic arithmetic, const float *earlier, float *acc, size_t n, bool result,
                     iv_gpu_stream stream) {
    if (n == 0 || (!earlier && !result)) return 0;
    bool fours = n % 4 == 0 && ((uintptr_t)earlier | (uintptr_t)acc) % 16 == 0;
    size_t each = NODE_THREADS * (fours ? 4 : 1);
    auto *kernel = arithmetic == IV_FMA32 ? fours ? add_nodes<true, 4> : add_nodes<true, 1>
                   : fours ? add_nodes<false, 4>
                                          : add_nodes<false, 1>;
    return iv_launch(kernel, dim3((unsigned)((n + each - 1) / each)), NODE_THREADS, stream, earlier, acc, n, result);
}

/* ---- look-ups ---------------------------------------------------------------------------------------------------- */

/* A thread has V columns of an id. A warp reads the id's list 32 entries at a time: virtual rank after virtual rank, it
 * adds the entries of that one in order. Rows are loaded ahead of the chain. */
enum { LOOKUP_THREADS = 128, LOOKUPS_AHEAD = 4 };

/* The lane's entry of [begin, end): a row of dx and its virtual rank; -1 and no rank beyond the end. */
typedef struct lookup_entry {
    int32_t row;
    uint32_t rank;
} lookup_entry;

IV_DEVICE lookup_entry entry_at(const iv_gpu_lookups_args &a, int32_t begin, int32_t end) {
    int32_t i = begin + (int32_t)(threadIdx.x % 32);
    lookup_entry e = {-1, UINT32_MAX};
    if (i < end) e.row = a.order[i], e.rank = a.rank[e.row];
    return e;
}

/* s over the rows in the lanes of `mask`, in order. */
template <int V>
IV_DEVICE void add_rows(const iv_gpu_lookups_args &a, int32_t row, uint32_t mask, size_t column, elements<V> *s) {
    while (mask != 0) {
        elements<V> x[LOOKUPS_AHEAD] = {};
        int count = __popc(mask);
#pragma unroll
        for (int j = 0; j < LOOKUPS_AHEAD; j++) {
            int32_t at = __shfl_sync(WHOLE_WARP, row, mask ? __ffs(mask) - 1 : 0);
            if (mask != 0 && column < a.hidden) x[j] = load<V>(a.dx + (size_t)at * a.hidden + column);
            mask &= mask - 1;
        }
#pragma unroll
        for (int j = 0; j < LOOKUPS_AHEAD; j++)
#pragma unroll
            for (int k = 0; k < V; k++)
                if (j < count) s->at[k] = iv_canon(s->at[k] + x[j].at[k]);
    }
}

template <int V>
static __global__ void __launch_bounds__(LOOKUP_THREADS) lookups(const __grid_constant__ iv_gpu_lookups_args a) {
    iv_let_next();
    iv_wait();
    int32_t begin = a.first[blockIdx.x], end = a.first[blockIdx.x + 1];
    size_t column = ((size_t)blockIdx.y * LOOKUP_THREADS + threadIdx.x) * V;
    elements<V> waiting[IV_VIRTUAL_LEVELS_MAX] = {}, s = {};
    lookup_entry e = entry_at(a, begin, end);
    for (uint32_t v = 0; v < a.ranks; v++) {
        s = {};
        for (int32_t from = begin; from < end; from += 32) {
            if (end - begin > 32) e = entry_at(a, from, end);
            add_rows<V>(a, e.row, __ballot_sync(WHOLE_WARP, e.rank == v), column, &s);
        }
        bool joins = true; /* complete subtrees */
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (joins && (v >> level & 1) == 0) waiting[level] = s;
            joins = joins && (v >> level & 1) != 0;
#pragma unroll
            for (int k = 0; k < V; k++)
                if (joins) s.at[k] = waiting[level].at[k] + s.at[k];
        }
    }
    if (column < a.hidden) store(a.out + (size_t)a.ids[blockIdx.x] * a.hidden + column, s);
}

int iv_gpu_lookups(const iv_gpu_lookups_args *a, iv_gpu_stream stream) {
    if (a->count == 0 || a->hidden == 0) return 0;
    if (a->ranks < 1 || a->ranks > IV_VIRTUAL_RANKS_MAX || (a->ranks & (a->ranks - 1)) != 0)
        return (int)cudaErrorInvalidValue;
    bool fours = a->hidden % 4 == 0 && ((uintptr_t)a->dx | (uintptr_t)a->out) % 16 == 0;
    size_t each = LOOKUP_THREADS * (fours ? 4 : 1);
    dim3 grid((unsigned)a->count, (unsigned)((a->hidden + each - 1) / each));
    return iv_launch(fours ? lookups<4> : lookups<1>, grid, LOOKUP_THREADS, stream, *a);
}
