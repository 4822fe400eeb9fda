/* attention_backward.cu: attention's backward pass: delta of every row, the work lists of the Hopper kernels, and the
 * choice of the kernels. */
#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_backward.cuh"

enum { BLOCK = IV_ATTENTION_BLOCK, THREADS = 256, WARPS = THREADS / 32, LANES = 256 /* of the law */ };

/* ---- delta ------------------------------------------------------------------------------------------------------ */

template <iv_dtype TYPE> IV_DEVICE float load(const void *p, size_t i) {
    if constexpr (TYPE == IV_F32)
        return ((const float *)p)[i];
    else
        return iv_widen16(TYPE, ((const uint16_t *)p)[i]);
}

IV_DEVICE float other_half(float x, int lanes) { return __fadd_rn(x, __shfl_xor_sync(~0u, x, lanes)); }

/* The product of two rows of n elements, in the lanes of section 4, by a warp. The result is in its first lane. */
template <iv_dtype TYPE> IV_DEVICE float row_dot(const void *a, const void *b, size_t at, int n) {
    int lane = threadIdx.x % 32;
    float l[LANES / 32];
#pragma unroll
    for (int k = 0; k < LANES / 32; k++) l[k] = 0.0f;
    for (int base = 0; base < n; base += LANES)
#pragma unroll
        for (int k = 0; k < LANES / 32; k++) {
            int i = base + k * 32 + lane;
            if (i < n) l[k] = __fmaf_rn(load<TYPE>(a, at + i), load<TYPE>(b, at + i), l[k]);
        }
#pragma unroll
    for (int half = LANES / 64; half; half /= 2)
#pragma unroll
        for (int k = 0; k < half; k++) l[k] = __fadd_rn(l[k], l[k + half]);
#pragma unroll
    for (int i = 16; i; i /= 2) l[0] = other_half(l[0], i);
    return l[0];
}

/* The same for 32 E elements of 16 bits, E a thread: the law's lanes E * lane and on. The lanes from 32 E on are +0. */
template <iv_dtype TYPE, int E> IV_DEVICE float short_row_dot(const void *a, const void *b, size_t at) {
    union words {
        uint16_t half[E];
        uint2 two;
        uint32_t one;
    } x, y;
    float l[E];
    const uint16_t *from = (const uint16_t *)a + at, *with = (const uint16_t *)b + at;
    int i = threadIdx.x % 32 * E;
    if constexpr (E == 4)
        x.two = *(const uint2 *)(from + i), y.two = *(const uint2 *)(with + i);
    else
        x.one = *(const uint32_t *)(from + i), y.one = *(const uint32_t *)(with + i);
#pragma unroll
    for (int k = 0; k < E; k++)
        l[k] = __fadd_rn(__fmaf_rn(iv_widen16(TYPE, x.half[k]), iv_widen16(TYPE, y.half[k]), 0.0f), 0.0f);
#pragma unroll
    for (int i = 16; i; i /= 2)
#pragma unroll
        for (int k = 0; k < E; k++) l[k] = other_half(l[k], i);
#pragma unroll
    for (int half = E / 2; half; half /= 2)
#pragma unroll
        for (int k = 0; k < half; k++) l[k] = __fadd_rn(l[k], l[k + half]);
    return l[0];
}

template <iv_dtype TYPE> IV_DEVICE float delta_of(const iv_backward_params &p, size_t at) {
    if constexpr (TYPE != IV_F32) {
        if (p.head_dim == 128) return short_row_dot<TYPE, 4>(p.dout, p.out, at);
        if (p.head_dim == 64) return short_row_dot<TYPE, 2>(p.dout, p.out, at);
    }
    return row_dot<TYPE>(p.dout, p.out, at, p.head_dim);
}

/* ---- the work lists -----------------------------------------------------------------------------------------------
 */

enum { BINS = THREADS };

/* The cost of a unit, in blocks. */
IV_DEVICE int cost_of(const iv_backward_params &p, int side, int blocks, int unit) {
    if (side == 0) { /* two blocks of keys */
        int last = min(2 * unit + 1, blocks - 1);
        return iv_backward_last_block(last, blocks, p.window) - 2 * unit + 1;
    }
    int n = p.numbers, first = n * unit / p.group, last = min(n * unit + n - 1, blocks * p.group - 1) / p.group;
    return last - iv_backward_first_block(first, p.window) + 1;
}

/* Counts the units of each cost, or places them: a warp takes a sequence. */
template <bool PLACE> IV_DEVICE void each_unit(const iv_backward_params &p, int side, int *bins, int shift) {
    for (int i = threadIdx.x / 32; i < p.span_count; i += WARPS) {
        iv_gpu_span span = p.spans[i];
        int blocks = (span.rows + BLOCK - 1) / BLOCK, tile = p.tiles ? p.first_tile[i] : 0;
        int units = side ? (blocks * p.group + p.numbers - 1) / p.numbers : (blocks + 1) / 2;
        for (int u = threadIdx.x % 32; u < units; u += 32) {
            int at = atomicAdd(&bins[min(cost_of(p, side, blocks, u) >> shift, BINS - 1)], 1);
            if (PLACE) p.work[side][at] = {span.first_row, span.rows, span.table, u, tile, {0, 0, 0}};
        }
    }
}

/* Where the tiles of each sequence begin. By one warp. */
IV_DEVICE void place_tiles(const iv_backward_params &p) {
    int lane = threadIdx.x % 32, first = 0;
    for (int base = 0; base < p.span_count; base += 32) {
        int blocks = base + lane < p.span_count ? (p.spans[base + lane].rows + BLOCK - 1) / BLOCK : 0;
        int own = blocks * (blocks + 1) / 2, sum = own;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            int before = __shfl_up_sync(~0u, sum, by);
            if (lane >= by) sum += before;
        }
        if (base + lane < p.span_count) p.first_tile[base + lane] = first + sum - own;
        first += __shfl_sync(~0u, sum, 31);
    }
}

/* All units by descending cost. The order of equal ones decides no bits. */
IV_DEVICE void make_queues(const iv_backward_params &p) {
    __shared__ int bins[BINS], sums[BINS];
    int thread = threadIdx.x, shift = 0;
    while ((p.rows / BLOCK + 1) >> shift >= BINS) shift++;
    if (p.tiles && thread < 32) place_tiles(p); /* the next barriers order it before its readers */
    for (int side = 0; side < 2; side++) {
        bins[thread] = 0;
        __syncthreads();
        each_unit<false>(p, side, bins, shift);
        __syncthreads();
        int own = bins[BINS - 1 - thread], sum = own;
        sums[thread] = own;
        for (int by = 1; by < BINS; by *= 2) {
            __syncthreads();
            int before = thread >= by ? sums[thread - by] : 0;
            __syncthreads();
            sums[thread] = sum += before;
        }
        bins[BINS - 1 - thread] = sum - own;
        if (thread == BINS - 1)
            for (int part = 0; part < p.parts; part++) p.queue[2 * part + side] = {0, sum, {0, 0}};
        __syncthreads();
        each_unit<true>(p, side, bins, shift);
        __syncthreads();
    }
}

/* A row's part of the gradient of its head's sink. */
IV_DEVICE float sink_term(const iv_backward_params &p, int head, float lse2, float delta) {
    float x = v_sub(iv_sink_in_log2(p.sinks[head]), lse2);
    return iv_canon(-__fmul_rn(p.tc16 ? v_ex2(x) : v_exp2(x), delta));
}

/* Block 0 makes the work lists, if wanted; the others take a row per warp. */
template <iv_dtype TYPE> static __global__ void __launch_bounds__(THREADS) prepare_kernel(const iv_backward_params p) {
    iv_let_next();
    iv_wait();
    int block = (int)blockIdx.x;
    if (p.queue && block-- == 0) {
        make_queues(p);
        return;
    }
    int row = block * WARPS + (int)threadIdx.x / 32;
    if (row >= p.rows) return;
    for (int head = 0; head < p.heads; head++) {
        size_t from = (size_t)row * p.heads + head, to = (size_t)head * p.row_stride + row;
        float delta = delta_of<TYPE>(p, from * p.head_dim);
        if (threadIdx.x % 32 != 0) continue;
        p.row_delta[to] = delta;
        if (p.sinks) p.sink_terms[from] = sink_term(p, head, p.lse2[from], delta);
        if (p.queue) p.row_lse2[to] = p.lse2[from];
    }
}

static int prepare(iv_dtype type, const iv_backward_params &p, cudaStream_t stream) {
    dim3 grid((unsigned)((p.rows + WARPS - 1) / WARPS + (p.queue ? 1 : 0)));
    switch (type) {
    case IV_BF16: return iv_launch(prepare_kernel<IV_BF16>, grid, THREADS, stream, p);
    case IV_F16: return iv_launch(prepare_kernel<IV_F16>, grid, THREADS, stream, p);
    case IV_F32: return iv_launch(prepare_kernel<IV_F32>, grid, THREADS, stream, p);
    default: return cudaErrorInvalidValue;
    }
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

bool iv_attention_backward_is_hopper(const iv_gpu_attention_shape *s) {
    return s->arithmetic == IV_TC16 && s->type != IV_F32 && !s->capped && (s->head_dim == 64 || s->head_dim == 128);
}

enum { PARTS_MAX = 8, QUEUE_BYTES = 2 * PARTS_MAX * sizeof(iv_backward_queue) };
static_assert(QUEUE_BYTES % 16 == 0 && sizeof(iv_backward_work) == 32, "both are read in 16 bytes");

/* Lists of two units of 64 rows: of keys, and of queries of each head of a group. */
static size_t units_of(const iv_gpu_attention_shape *s, int side, size_t rows, size_t spans) {
    size_t blocks = (rows + BLOCK - 1) / BLOCK + spans;
    return side ? blocks * s->group : blocks;
}

size_t iv_gpu_attention_backward_scratch(const iv_gpu_attention_shape *s, size_t rows_max, size_t spans_max) {
    size_t bytes = QUEUE_BYTES + 2 * s->heads * iv_backward_row_stride(rows_max) * sizeof(float);
    for (int side = 0; side < 2; side++) bytes += units_of(s, side, rows_max, spans_max) * sizeof(iv_backward_work);
    return bytes + spans_max * sizeof(int32_t);
}

size_t iv_gpu_attention_backward_tiles(const iv_gpu_attention_shape *s, size_t rows_max) {
    const size_t most = (size_t)5 << 28;
    size_t blocks = (rows_max + BLOCK - 1) / BLOCK, tiles = blocks * (blocks + 1) / 2;
    if (!iv_attention_backward_is_hopper(s)) return 0;
    return tiles > most / IV_TILE_BYTES / s->heads ? most : tiles * s->heads * IV_TILE_BYTES;
}

/* How many KV heads have room at a time, in parts of about one size. */
static void divide(const iv_gpu_attention_backward_args *a, iv_backward_params *p) {
    size_t tiles = 0, fit, parts;
    for (size_t i = 0; i < a->span_count; i++) {
        size_t blocks = ((size_t)a->host_spans[i].rows + BLOCK - 1) / BLOCK;
        tiles += blocks * (blocks + 1) / 2;
    }
    p->parts = 1, p->kv_first = 0, p->kv_count = p->kv_heads, p->numbers = 2;
    if (!a->tiles || tiles == 0 || tiles > INT32_MAX / 2 / a->shape.heads) return;
    fit = a->tiles_bytes / IV_TILE_BYTES / tiles / a->shape.group;
    if (fit == 0) return;
    parts = (a->shape.kv_heads + fit - 1) / fit;
    if (parts > PARTS_MAX) return;
    p->tiles = (char *)a->tiles, p->tile_count = (int32_t)tiles, p->numbers = 4;
    p->kv_count = (int32_t)((a->shape.kv_heads + parts - 1) / parts);
    p->parts = (p->kv_heads + p->kv_count - 1) / p->kv_count;
}

static iv_backward_params params_of(const iv_gpu_attention_backward_args *a, bool hopper) {
    const iv_gpu_attention_shape *s = &a->shape;
    iv_backward_params p = {};
    size_t stride = iv_backward_row_stride(a->rows);
    p.spans = a->spans, p.tables = a->tables;
    p.q = (const char *)a->q, p.out = (const char *)a->out, p.dout = (const char *)a->dout;
    p.pages = (const char *)a->kv.pages, p.lse2 = a->lse2, p.dqkv = a->dqkv;
    p.row_lse2 = (float *)((char *)a->scratch + QUEUE_BYTES), p.row_delta = p.row_lse2 + s->heads * stride;
    p.work[0] = (iv_backward_work *)(p.row_delta + s->heads * stride);
    p.work[1] = p.work[0] + units_of(s, 0, a->rows, a->span_count);
    p.first_tile = (int32_t *)(p.work[1] + units_of(s, 1, a->rows, a->span_count));
    p.queue = hopper ? (iv_backward_queue *)a->scratch : NULL;
    p.span_count = (int32_t)a->span_count, p.rows = (int32_t)a->rows, p.row_stride = (int32_t)stride;
    p.heads = (int32_t)s->heads, p.kv_heads = (int32_t)s->kv_heads, p.head_dim = (int32_t)s->head_dim;
    p.group = (int32_t)s->group, p.window = s->window;
    p.scale_log2e = a->scale_log2e, p.scale = a->scale, p.score_inner = s->capped ? a->score_inner : 0.0f;
    p.sinks = a->sinks, p.sink_terms = a->sink_terms, p.tc16 = s->arithmetic == IV_TC16;
    p.parts = 1, p.kv_count = p.kv_heads, p.numbers = 2;
    if (hopper) divide(a, &p);
    return p;
}

/* A part of the KV heads. */
static int launch_of(const iv_gpu_attention_backward_args *a, const iv_backward_params &all, int part, bool queries,
                     cudaStream_t stream) {
    iv_backward_params p = all;
    p.queue += 2 * part, p.kv_first = part * all.kv_count;
    p.kv_count = all.kv_heads - p.kv_first < all.kv_count ? all.kv_heads - p.kv_first : all.kv_count;
    if (!queries) return iv_attention_backward_keys(a, p, stream);
    return p.tiles ? iv_attention_backward_tiles(a, p, stream) : iv_attention_backward_queries(a, p, stream);
}

static bool is_wrong(const iv_gpu_attention_backward_args *a) {
    const iv_gpu_attention_shape *s = &a->shape;
    return s->type != a->kv.type || s->kv_heads != a->kv.heads || s->head_dim != a->kv.head_dim || s->head_dim % 2 ||
           s->heads != s->kv_heads * s->group || s->group_first || a->rows > INT32_MAX / 2;
}

int iv_attention_backward_launch(const iv_gpu_attention_backward_args *a, iv_attention_backward_part part,
                                 iv_gpu_stream stream) {
    if (is_wrong(a) || !iv_attention_backward_is_hopper(&a->shape)) return cudaErrorInvalidValue;
    iv_backward_params p = params_of(a, true);
    int failed = 0;
    if (part == IV_BACKWARD_PREPARE) return prepare(a->shape.type, p, stream);
    for (int i = 0; i < p.parts && !failed; i++) failed = launch_of(a, p, i, part == IV_BACKWARD_QUERIES, stream);
    return failed;
}

int iv_attention_backward_as(const iv_gpu_attention_backward_args *a, bool generic, iv_gpu_stream stream) {
    if (is_wrong(a)) return cudaErrorInvalidValue;
    if (a->rows == 0 || a->span_count == 0) return 0;
    int failed = 0;
    bool hopper = !generic && iv_attention_backward_is_hopper(&a->shape);
    iv_backward_params p = params_of(a, hopper);
    failed = prepare(a->shape.type, p, stream);
    if (hopper) {
        for (int i = 0; i < 2 * p.parts && !failed; i++) failed = launch_of(a, p, i / 2, i % 2, stream);
        return failed;
    }
    return failed ? failed : iv_attention_backward_generic(a, p, stream);
}

int iv_gpu_attention_backward(const iv_gpu_attention_backward_args *a, iv_gpu_stream stream) {
    return iv_attention_backward_as(a, false, stream);
}
