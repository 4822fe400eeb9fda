/* predictions_sm90a.cu: statistics of logits, a row in the shared memory of a cluster of eight CTAs, so that memory is
 * read once. A CTA has 32 lanes of the law: 32 of every 256 logits. Clusters walk over the rows. In a CTA
 *   - a thread loads rows by TMA, as soon as a buffer is free;
 *   - workers find the largest logit of a row, replace logits by exponentials and, if gradients are wanted, make them
 *     from the exponentials;
 *   - a warp adds the exponentials of each lane in order.
 * With three buffers, the workers have the exponentials of the next row before they use the sums of a row: the chains
 * take as long as the exponentials. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/predictions.cuh"
#include "kernels/cuda/rows.cuh"

enum {
    CTAS = LANES / 32,
    WORKERS = 512,
    WORKER_WARPS = WORKERS / 32,
    ADDER = WORKER_WARPS, /* the warp that adds; the next one loads */
    THREADS = WORKERS + 64,
    BUFFERS_MAX = 3,
    PLACE_BYTES = 32 * sizeof(float), /* of a CTA */
    BATCH = 16,                       /* exponentials that a lane adds without a branch */
    WAITING = 8,                      /* of them in registers */
    NONE = -1                         /* no gradients */
};

#define WHOLE_WARP 0xffffffffu

/* A CTA's shared memory behind its buffers. Whatever is shared by two rows has two places. */
typedef struct shared_state {
    uint64_t full[BUFFERS_MAX], empty[BUFFERS_MAX];
    uint64_t maxima_came[2], lanes_came[2], sum_came[2];
    float4 maxima[2][CTAS * WORKER_WARPS / 4]; /* of all workers' warps of the cluster */
    float4 lanes[2][CTAS][8]; /* of every CTA, 32 each */
    float4 own_lanes[8];
    float sum[2];
} shared_state;
static_assert(CTAS * WORKER_WARPS / 4 == 32, "a lane reads four of them");

enum { BUFFERS_BYTES = 227 * 1024 - sizeof(shared_state) };

/* The maps read logits as pairs of 16-bit elements. */
typedef struct cluster_args {
    iv_statistics_args a;
    CUtensorMap places, rest; /* whole places of 256 logits, in boxes; the others of a row */
    uint32_t whole, boxes, height, buffers;
    uint32_t step_columns; /* from a worker's place to its next one, in a leaf's row and from leaf to leaf */
    size_t step_leaves;
} cluster_args;

/* A thread has V neighboring lanes of every PLACES-th place. */
template <int V> struct share {
    static constexpr uint32_t PLACES = WORKERS * V / 32;
    uint32_t place, lane, first; /* its first place, its first lane in a buffer, its first logit of a place */
};
template <int V> IV_DEVICE share<V> share_of(uint32_t rank) {
    uint32_t lane = threadIdx.x % (32 / V) * V;
    return {threadIdx.x / (32 / V), lane, rank * 32 + lane};
}

IV_DEVICE uint32_t places_of(const cluster_args &p) { return ((uint32_t)p.a.vocab + LANES - 1) / LANES; }

/* Exponentials are made and added in two parts, so that the chains begin early. */
template <int V> IV_DEVICE uint32_t first_part(uint32_t places) {
    return places / 2 / share<V>::PLACES * share<V>::PLACES;
}

/* What a thread's rows of a cluster have in common: the n-th is in buffer n % buffers. */
typedef struct walk {
    float *e;
    size_t row, step;
    uint32_t count, rank;
} walk;

IV_DEVICE walk walk_of(const cluster_args &p, float *e) {
    uint32_t cluster = blockIdx.x / CTAS, clusters = gridDim.x / CTAS;
    return {e, cluster, clusters, ((uint32_t)p.a.rows - cluster + clusters - 1) / clusters, iv_cluster_rank()};
}

IV_DEVICE float *buffer_of(const cluster_args &p, const walk &w, uint32_t n) {
    return w.e + (size_t)(n % p.buffers) * places_of(p) * 32;
}

/* ---- loads ------------------------------------------------------------------------------------------------------ */

/* By one thread. The last box begins where it ends with the last whole place; what two boxes have is the same. */
IV_DEVICE void load_rows(const cluster_args &p, shared_state *s, const walk &w) {
    uint32_t rest = p.whole < places_of(p) ? PLACE_BYTES : 0, column = w.rank * 64;
    for (uint32_t n = 0; n < w.count; n++) {
        uint32_t b = n % p.buffers, to = iv_shared(buffer_of(p, w, n)), full = iv_shared(&s->full[b]);
        int row = (int)(w.row + n * w.step);
        if (n >= p.buffers) iv_mbar_wait(iv_shared(&s->empty[b]), (n / p.buffers - 1) & 1);
        iv_mbar_expect(full, p.boxes * p.height * PLACE_BYTES + rest);
        for (uint32_t i = 0; i < p.boxes; i++) {
            uint32_t place = i + 1 < p.boxes ? i * p.height : p.whole - p.height;
            iv_tma_load_3d(to + place * PLACE_BYTES, &p.places, full, (int)column, (int)place, row, IV_L2_FIRST);
        }
        if (rest) iv_tma_load_2d(to + p.whole * PLACE_BYTES, &p.rest, full, (int)column, row, IV_L2_FIRST);
    }
}

/* ---- maxima ----------------------------------------------------------------------------------------------------- */

/* The thread's largest logit, if the final sign of a zero does not matter. With one lane a thread, logits come from
 * memory; those beyond the row are 0. Divided logits replace those in memory. */
template <bool DIVIDE, int V>
IV_DEVICE float largest_of(const iv_statistics_args &a, float *x, const share<V> &t, float *e) {
    uint32_t vocab = (uint32_t)a.vocab, place = t.place, i = place * LANES + t.first;
    float m = __uint_as_float(0xff800000u);
#pragma unroll 4
    for (; i < vocab; place += t.PLACES, i += t.PLACES * LANES) {
        elements<V> v = load<V>(V == 1 ? x + i : e + place * 32 + t.lane);
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (DIVIDE) v.at[k] = __fdiv_rn(v.at[k], a.temperature);
            m = fmaxf(m, v.at[k]); /* ignores NaN */
        }
        if (DIVIDE) store<V>(x + i, v);
        if (DIVIDE || V == 1) store<V>(e + place * 32 + t.lane, v);
    }
    if (V == 1 && place * LANES < vocab) e[place * 32 + t.lane] = 0.0f;
    return m;
}

/* Each warp gives its maximum to all CTAs of the cluster, and each counts those of row n. A slot is written again for
 * row n + 2, by a thread that has waited for the sum of row n, so all lanes' sums of that row, each from a warp that
 * waited for all workers of its CTA after they had read the slots of row n. */
IV_DEVICE float largest_of_cluster(shared_state *s, uint32_t n, uint32_t rank, float m) {
    uint32_t lane = threadIdx.x % 32, came = iv_shared(&s->maxima_came[n % 2]);
    uint32_t slot = iv_shared((float *)s->maxima[n % 2] + rank * WORKER_WARPS + threadIdx.x / 32);
    for (int stride = 16; stride > 0; stride /= 2) m = fmaxf(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    if (threadIdx.x == 0) iv_mbar_expect(came, sizeof s->maxima[0]);
    if (lane < CTAS) iv_store_async(iv_shared_of(slot, lane), m, iv_shared_of(came, lane));
    __syncwarp();
    iv_mbar_wait_cluster(came, n / 2 & 1);
    float4 all = s->maxima[n % 2][lane];
    m = fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
    for (int stride = 16; stride > 0; stride /= 2) m = fmaxf(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    return m + 0.0f;
}

/* ---- exponentials and their sums --------------------------------------------------------------------------------- */

/* v_exp of what is no larger than 0, or NaN. */
IV_DEVICE float exp_down(float x) {
    float y = v_exp_inside(x);
    y = x < -0x1.5d589ep+6f ? 0.0f : y;
    return x == x ? y : __uint_as_float(IV_NAN_F32_BITS);
}

/* Replaces the thread's logits at places [begin, end) by exponentials; beyond the row stays +0, which changes no
 * lane. `begin` is a multiple of PLACES. */
template <int V>
IV_DEVICE void exponentials(uint32_t vocab, const share<V> &t, float m, float *e, uint32_t begin, uint32_t end) {
    uint32_t place = begin + t.place, i = place * LANES + t.first;
#pragma unroll 2
    for (; place < end && i < vocab; place += t.PLACES, i += t.PLACES * LANES) {
        elements<V> y = load<V>(e + place * 32 + t.lane);
#pragma unroll
        for (int k = 0; k < V; k++) y.at[k] = exp_down(y.at[k] - m);
        store<V>(e + place * 32 + t.lane, y);
    }
}

/* A lane's sum and the next places, in order. A load from shared memory takes as long as several additions, so each
 * comes that much earlier; +0 changes no sum. */
IV_DEVICE float lane_sum(const float *e, uint32_t places, float sum) {
    float w[WAITING];
    uint32_t first = 0;
#pragma unroll
    for (uint32_t i = 0; i + 1 < WAITING; i++) w[i] = i < places ? e[i * 32] : 0.0f;
#pragma unroll 1
    for (; first + BATCH + WAITING <= places; first += BATCH, e += BATCH * 32) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            w[(i + WAITING - 1) % WAITING] = e[(i + WAITING - 1) * 32];
            sum = sum + w[i % WAITING];
        }
    }
    float rest[BATCH + WAITING];
#pragma unroll
    for (int i = 0; i < BATCH + WAITING; i++) rest[i] = first + i < places ? e[i * 32] : 0.0f;
#pragma unroll
    for (int i = 0; i < BATCH + WAITING; i++) sum = sum + rest[i];
    return sum;
}

/* The barrier of a part of row n, between the workers and the warp that adds. */
IV_DEVICE int part_barrier(uint32_t n, int part) { return 1 + (int)(n % 2) * 2 + part; }

/* To another CTA, by one thread, whose arrival is behind its own stores. */
IV_DEVICE void give_lanes(const float4 *from, uint32_t slot, uint32_t came) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) iv_store_cluster4(slot + i * (uint32_t)sizeof(float4), from[i]);
    iv_mbar_arrive_cluster(came);
}

/* By the warp that adds: it gives the lanes' sums to all CTAs and has the sum of all. Slots are written again for row
 * n + 2, after the sums of row n + 1 came from warps that had read those of row n. */
template <int V> IV_DEVICE void add_rows(const cluster_args &p, shared_state *s, const walk &w) {
    uint32_t lane = threadIdx.x % 32, places = places_of(p), half = first_part<V>(places);
    for (uint32_t n = 0; n < w.count; n++) {
        const float *e = buffer_of(p, w, n) + lane;
        uint32_t came = iv_shared(&s->lanes_came[n % 2]), slot = iv_shared(s->lanes[n % 2][w.rank]);
        float sum = 0.0f, l[CTAS];
        iv_named_sync(part_barrier(n, 0), WORKERS + 32);
        sum = lane_sum(e, half, sum);
        iv_named_sync(part_barrier(n, 1), WORKERS + 32);
        sum = lane_sum(e + (size_t)half * 32, places - half, sum);
        ((float *)s->own_lanes)[lane] = sum;
        __syncwarp();
        if (lane < CTAS) give_lanes(s->own_lanes, iv_shared_of(slot, lane), iv_shared_of(came, lane));
        __syncwarp();
        iv_mbar_wait_cluster(came, n / 2 & 1);
#pragma unroll
        for (int j = 0; j < CTAS; j++) l[j] = ((const float *)s->lanes[n % 2][j])[lane];
        sum = fold_warp(fold_far(l));
        if (lane == 0) s->sum[n % 2] = sum, iv_mbar_arrive(iv_shared(&s->sum_came[n % 2]));
    }
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* One element, or four neighbors, at an even address; zeros if the mask is 0. */
template <int T, int V> IV_DEVICE void put_rounded(uint16_t *to, const float (&y)[V], uint32_t mask) {
    constexpr iv_dtype TYPE = T == IV_F16 ? IV_F16 : IV_BF16;
    if constexpr (V == 4)
        *(uint2 *)to = make_uint2(iv_pack16(TYPE, y[0], y[1]) & mask, iv_pack16(TYPE, y[2], y[3]) & mask);
    else
        *to = (uint16_t)(iv_round16(TYPE, y[0]) & mask);
}

/* Columns of the CTA's leaves beyond their outputs. */
IV_DEVICE void put_padding(const iv_statistics_args &a, uint16_t *out, uint32_t rank) {
    const iv_gpu_logit_leaves &l = a.leaves;
    for (size_t i = rank; i * l.each < a.vocab; i += CTAS) {
        size_t n = l.each < a.vocab - i * l.each ? l.each : a.vocab - i * l.each;
        for (size_t c = n + threadIdx.x; c < l.stride; c += WORKERS) out[i * l.leaf + c] = 0;
    }
}

/* A worker's row. has_target: the thread has the target's logit; it, or without one the cluster's first thread, writes
 * the results. */
typedef struct row_state {
    float *e;
    size_t row;
    int32_t target;
    float m, logit, coefficient;
    bool has_target;
} row_state;

/* dl of the thread's logits, whose exponentials are e. */
template <int T, int V>
IV_DEVICE void gradients(const cluster_args &p, const share<V> &t, const row_state &r, float sum) {
    const iv_gpu_logit_leaves &l = p.a.leaves;
    uint32_t vocab = (uint32_t)p.a.vocab, each = (uint32_t)l.each, mask = r.target < 0 ? 0 : UINT32_MAX;
    uint32_t i = t.place * LANES + t.first, column = i;
    uint16_t *row = (uint16_t *)l.out + r.row * l.stride, *out = row;
    const float *e = r.e + t.place * 32 + t.lane;
    float q = __fdiv_rn(1.0f, sum), c = r.coefficient;
    put_padding(p.a, row, t.first / 32);
    while (column >= each) column -= each, out += l.leaf;
    out += column;
#pragma unroll 2
    for (; i < vocab; i += t.PLACES * LANES, e += t.PLACES * 32) {
        elements<V> x = load<V>(e);
        float y[V];
#pragma unroll
        for (int k = 0; k < V; k++) y[k] = c * (x.at[k] * q);
        put_rounded<T, V>(out, y, mask);
        column += p.step_columns, out += p.step_leaves + p.step_columns;
        if (column >= each) column -= each, out += l.leaf - each;
    }
    if (!r.has_target) return;
    uint32_t target = (uint32_t)r.target;
    float y[1] = {c * (r.e[target / LANES * 32 + target % 32] * q - 1.0f)};
    put_rounded<T, 1>(row + target / each * l.leaf + target % each, y, mask);
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

/* From the logits of row n to its exponentials. */
template <bool DIVIDE, int V, int T>
IV_DEVICE void begin_row(const cluster_args &p, shared_state *s, const walk &w, const share<V> &t, uint32_t n,
                         row_state *r) {
    uint32_t vocab = (uint32_t)p.a.vocab, places = places_of(p), half = first_part<V>(places),
             target = (uint32_t)r->target;
    if (T != NONE) r->coefficient = p.a.leaves.coefficients[r->row];
    if (V > 1) iv_mbar_wait(iv_shared(&s->full[n % p.buffers]), n / p.buffers & 1);
    float m = largest_of<DIVIDE, V>(p.a, p.a.logits + r->row * p.a.stride, t, r->e);
    r->has_target = target < vocab && target % LANES - t.first < V && target / LANES % t.PLACES == t.place;
    if (r->has_target) r->logit = r->e[target / LANES * 32 + target % 32];
    r->m = largest_of_cluster(s, n, w.rank, m);
    exponentials<V>(vocab, t, r->m, r->e, 0, half);
    iv_named_arrive(part_barrier(n, 0), WORKERS + 32);
    exponentials<V>(vocab, t, r->m, r->e, half, places);
    iv_named_arrive(part_barrier(n, 1), WORKERS + 32);
    iv_fence_async(); /* what was written will be overwritten by TMA */
}

/* From the sum of row n to the results; then its buffer is free. */
template <int V, int T>
IV_DEVICE void end_row(const cluster_args &p, shared_state *s, const walk &w, const share<V> &t, uint32_t n,
                       const row_state &r) {
    const iv_statistics_args &a = p.a;
    iv_mbar_wait(iv_shared(&s->sum_came[n % 2]), n / 2 & 1);
    float sum = s->sum[n % 2];
    if constexpr (T != NONE) gradients<T, V>(p, t, r, sum);
    bool none = (uint32_t)r.target >= (uint32_t)a.vocab;
    if (none ? w.rank == 0 && threadIdx.x == 0 : r.has_target) {
        a.max[r.row] = r.m, a.sum[r.row] = sum;
        a.logprobs[r.row] = none ? 0.0f : (r.logit - r.m) - v_log(sum);
    }
    __syncwarp(); /* all values read were used */
    if (V > 1 && threadIdx.x % 32 == 0) iv_mbar_arrive(iv_shared(&s->empty[n % p.buffers]));
}

template <bool DIVIDE, int V, int T, bool LAGS>
IV_DEVICE void work(const cluster_args &p, shared_state *s, const walk &w) {
    share<V> t = share_of<V>(w.rank);
    row_state now = {};
    int32_t target = p.a.targets[w.row];
    for (uint32_t n = 0; n < w.count + LAGS; n++) {
        const row_state before = now;
        if (n < w.count) {
            now.row = w.row + n * w.step, now.target = target, now.e = buffer_of(p, w, n);
            if (n + 1 < w.count) target = p.a.targets[now.row + w.step];
            begin_row<DIVIDE, V, T>(p, s, w, t, n, &now);
        }
        if (!LAGS || n > 0) end_row<V, T>(p, s, w, t, n - LAGS, LAGS ? before : now);
    }
}

IV_DEVICE void make_barriers(shared_state *s) {
    for (int i = 0; i < BUFFERS_MAX; i++)
        iv_mbar_init(iv_shared(&s->full[i]), 1), iv_mbar_init(iv_shared(&s->empty[i]), WORKER_WARPS);
    for (int i = 0; i < 2; i++) {
        iv_mbar_init(iv_shared(&s->maxima_came[i]), 1), iv_mbar_init(iv_shared(&s->lanes_came[i]), CTAS);
        iv_mbar_init(iv_shared(&s->sum_came[i]), 1);
    }
    iv_mbar_init_fence();
}

template <bool DIVIDE, int V, int T, bool LAGS>
static __global__ void __launch_bounds__(THREADS, 1) statistics(const __grid_constant__ cluster_args p) {
    extern __shared__ __align__(1024) float e[];
    shared_state *s = (shared_state *)(e + (size_t)p.buffers * places_of(p) * 32);
    walk w = walk_of(p, e);
    iv_let_next();
    if (threadIdx.x == 0) make_barriers(s);
    iv_cluster_sync();
    iv_wait();
    if (threadIdx.x < WORKERS)
        work<DIVIDE, V, T, LAGS>(p, s, w);
    else if (threadIdx.x / 32 == ADDER)
        add_rows<V>(p, s, w);
    else if (V > 1 && threadIdx.x % 32 == 0)
        load_rows(p, s, w);
    __syncwarp();
    iv_cluster_leave();
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

typedef void statistics_kernel(cluster_args);

template <int V, int T, bool LAGS> static statistics_kernel *kernel_of(bool divides) {
    return divides ? statistics<true, V, T, LAGS> : statistics<false, V, T, LAGS>;
}

template <int T> static statistics_kernel *kernel_for(bool divides, bool fours, bool lags) {
    if (!fours) return kernel_of<1, T, false>(divides);
    return lags ? kernel_of<4, T, true>(divides) : kernel_of<4, T, false>(divides);
}

static statistics_kernel *choose(const iv_statistics_args *a, bool fours, bool lags) {
    bool divides = a->temperature != 1.0f;
    if (!a->leaves.out) return kernel_for<NONE>(divides, fours, lags);
    return a->leaves.type == IV_F16 ? kernel_for<IV_F16>(divides, fours, lags) : kernel_for<IV_BF16>(divides, fours, lags);
}

static bool has_fours(const iv_statistics_args *a) {
    const iv_gpu_logit_leaves *l = &a->leaves;
    bool fours = a->vocab % 4 == 0 && a->stride % 4 == 0 && (uintptr_t)a->logits % 16 == 0;
    return !l->out ? fours
                   : fours && l->each % 4 == 0 && l->stride % 4 == 0 && l->leaf % 4 == 0 && (uintptr_t)l->out % 8 == 0;
}

static int encode(CUtensorMap *map, void *base, const cuuint64_t (&dims)[3], const cuuint64_t (&strides)[2],
                  cuuint32_t sides, cuuint32_t height) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    cuuint32_t box[3] = {PLACE_BYTES / 2, height, 1}, ones[3] = {1, 1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, sides, base, dims, strides, box, ones,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Boxes of one height, as few as possible. */
static int encode_maps(cluster_args *p) {
    const iv_statistics_args *a = &p->a;
    size_t rest = a->vocab % LANES;
    cuuint64_t stride = a->stride * sizeof(float);
    p->whole = (uint32_t)(a->vocab / LANES);
    p->boxes = (p->whole + 255) / 256, p->height = (p->whole + p->boxes - 1) / p->boxes;
    int error = encode(&p->places, a->logits, {2 * LANES, p->whole, a->rows}, {LANES * sizeof(float), stride}, 3, p->height);
    if (error || rest == 0) return error;
    return encode(&p->rest, a->logits + (a->vocab - rest), {2 * rest, a->rows, 1}, {stride, stride}, 2, 1);
}

int iv_statistics_in_clusters(const iv_statistics_args *a, iv_gpu_stream stream) {
    cluster_args p = {*a, {}, {}, 0, 0, 0, 0, 0, 0};
    bool fours = has_fours(a);
    size_t bytes = (a->vocab + LANES - 1) / LANES * PLACE_BYTES;
    p.buffers = BUFFERS_MAX;
    while (p.buffers > 1 && p.buffers * bytes > BUFFERS_BYTES) p.buffers--;
    bytes = p.buffers * bytes + sizeof(shared_state);
    statistics_kernel *kernel = choose(a, fours, p.buffers == BUFFERS_MAX);
    if (a->leaves.out) {
        size_t step = LANES * (fours ? share<4>::PLACES : share<1>::PLACES);
        p.step_columns = (uint32_t)(step % a->leaves.each), p.step_leaves = step / a->leaves.each * a->leaves.leaf;
    }
    int error = fours ? encode_maps(&p) : 0, clusters = 0;
    if (!error)
        error = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error) return error;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = CTAS, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CTAS), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes, config.stream = (cudaStream_t)stream;
    config.attrs = attributes, config.numAttrs = 2;
    error = (int)cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error || clusters < 1) return error ? error : (int)cudaErrorInvalidConfiguration;
    config.gridDim.x = CTAS * (unsigned)((size_t)clusters < a->rows ? (size_t)clusters : a->rows);
    return (int)cudaLaunchKernelEx(&config, kernel, p);
}
