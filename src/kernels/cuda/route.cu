/* route.cu: routing of a mixture of experts: the experts of each token and their weights, and the sum of their
 * outputs. Law: NUMERICS.md section 9.
 *
 * A warp routes a row: lane t holds the logits congruent to t modulo 32, so the law's 256 lanes are folded within a
 * lane. Slots are counted, not assigned by atomics: every run makes the same lists. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sum_exp.cuh"
#include "numerics/rows.h"

enum {
    EXPERTS_MAX = IV_GPU_EXPERTS_MAX,
    SMALL_ROWS = 32,     /* routed and grouped by one block */
    SMALL_THREADS = 128, /* minimum threads of that block */
    ROUTE_WARPS = 4,
    GROUP_THREADS = 512,
    PACK_WARPS = 8,
    PACK_AHEAD = 8, /* pieces of 16 bytes that a lane loads at once */
    COMBINE_THREADS = 128,
    COMBINE_AHEAD = 8, /* terms that a thread loads at once */
    LEVELS = 10        /* of a tree over EXPERTS_MAX ids: two differ in bit 8 at most, which is level 9 */
};

IV_DEVICE uint32_t warp_max(uint32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(WHOLE_WARP, x);
#else
    for (int stride = 16; stride > 0; stride /= 2) x = max(x, __shfl_xor_sync(WHOLE_WARP, x, stride));
    return x;
#endif
}

IV_DEVICE uint32_t warp_min(uint32_t x) { return ~warp_max(~x); }

IV_DEVICE uint32_t warp_sum(uint32_t x) {
    for (int stride = 16; stride > 0; stride /= 2) x += __shfl_xor_sync(WHOLE_WARP, x, stride);
    return x;
}

/* Logits as integers in the same order: equal zeros are equal, NaN is below all numbers, taken logits are below NaN. */
enum { TAKEN = 0, NAN_KEY = 1 };
IV_DEVICE uint32_t key_of(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return x != x ? NAN_KEY : (u >> 31) ? ~u : u | 0x80000000u;
}
IV_DEVICE float logit_of(uint32_t key) {
    return __uint_as_float(key == NAN_KEY ? IV_NAN_F32_BITS : (key >> 31) ? key ^ 0x80000000u : ~key);
}

/* ---- one row ----------------------------------------------------------------------------------------------- */

/* A row's choices in order of selection, shared by its warp. */
typedef struct choices {
    uint32_t key[IV_EXPERTS_PER_TOKEN_MAX];
    int32_t id[IV_EXPERTS_PER_TOKEN_MAX];
    float weight[IV_EXPERTS_PER_TOKEN_MAX];
} choices;

/* The first of a lane's largest keys. */
template <int PER> IV_DEVICE uint32_t largest_of(const uint32_t key[PER], uint32_t *at) {
    uint32_t best = TAKEN;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (key[j] > best) best = key[j], *at = threadIdx.x % 32 + 32 * j;
    return best;
}

/* With NaN the law's scan starts at the lowest id that is not taken, and a NaN there is not replaced. Returns that
 * id, or UINT32_MAX if it is a number. */
template <int PER> IV_DEVICE uint32_t leading_nan(const uint32_t key[PER]) {
    uint32_t first = UINT32_MAX;
    bool first_is_nan = false;
#pragma unroll
    for (int j = PER - 1; j >= 0; j--)
        if (key[j] != TAKEN) first = threadIdx.x % 32 + 32 * j, first_is_nan = key[j] == NAN_KEY;
    uint32_t least = warp_min(first);
    return __any_sync(WHOLE_WARP, first == least && first_is_nan) ? least : UINT32_MAX;
}

/* Choice i: its lane stores it and marks it as taken. */
template <int PER>
IV_DEVICE void choose(uint32_t key[PER], bool nan, size_t i, uint32_t *best, uint32_t *at, choices *c) {
    uint32_t top = warp_max(*best), leading = nan ? leading_nan<PER>(key) : UINT32_MAX;
    bool mine = *best == top;
    if (leading != UINT32_MAX)
        mine = leading % 32 == threadIdx.x % 32;
    else if (__popc(__ballot_sync(WHOLE_WARP, mine)) > 1) { /* ties: the lowest id */
        uint32_t least = warp_min(mine ? *at : UINT32_MAX);
        mine = mine && *at == least;
    }
    if (!mine) return;
    uint32_t id = leading != UINT32_MAX ? leading : *at;
    c->key[i] = leading != UINT32_MAX ? NAN_KEY : top, c->id[i] = (int32_t)id;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (threadIdx.x % 32 + 32 * j == id) key[j] = TAKEN;
    *best = largest_of<PER>(key, at);
}

/* The scan of the law over a group's scores, by one lane: the best but `but`. */
IV_DEVICE int best_in_group(const float *score, int first, int end, int but) {
    int best = -1;
    for (int e = first; e < end; e++)
        if (e != but && (best < 0 || score[e] > score[best])) best = e;
    return best;
}

/* Lane g has group g: bits of the groups that are chosen, on every lane. score: the row's, shared by the warp. */
IV_DEVICE uint32_t choose_groups(const iv_router &r, const float *score) {
    int lane = threadIdx.x % 32, each = (int)(r.experts / r.groups), groups = (int)r.groups;
    float own = 0.0f;
    if (lane < groups) {
        int first = best_in_group(score, lane * each, (lane + 1) * each, -1),
            second = best_in_group(score, lane * each, (lane + 1) * each, first);
        own = second < 0 ? score[first] : score[first] + score[second];
    }
    uint32_t open = 0;
    for (size_t i = 0; i < r.chosen_groups; i++) {
        int best = -1;
        float of_best = 0.0f;
        for (int g = 0; g < groups; g++) {
            float of_group = __shfl_sync(WHOLE_WARP, own, g);
            if (!(open >> g & 1) && (best < 0 || of_group > of_best)) best = g, of_best = of_group;
        }
        open |= 1u << best;
    }
    return open;
}

/* What is chosen by: logits, or sigmoids with their correction; those of groups that are not chosen are taken. score:
 * memory of the warp, or NULL without groups. */
template <int PER, bool SIGMOID>
IV_DEVICE void keys_of(const iv_gpu_route_args &a, float x[PER], float *score, uint32_t key[PER]) {
    unsigned lane = threadIdx.x % 32;
    size_t experts = a.router.experts;
    if (SIGMOID) {
#pragma unroll
        for (int j = 0; j < PER; j++) {
            x[j] = iv_sigmoid(x[j]);
            if (a.correction && lane + 32 * j < experts) x[j] = x[j] + a.correction[lane + 32 * j];
        }
    }
    uint32_t open = UINT32_MAX;
    bool grouped = SIGMOID && a.router.groups > 1;
    if (grouped) {
        for (int j = 0; j < PER; j++)
            if (lane + 32 * j < experts) score[lane + 32 * j] = x[j];
        __syncwarp();
        open = choose_groups(a.router, score);
    }
#pragma unroll
    for (int j = 0; j < PER; j++) {
        size_t e = lane + 32 * j;
        bool barred = e >= experts || (grouped && !(open >> (e / (experts / a.router.groups)) & 1));
        key[j] = barred ? TAKEN : key_of(x[j]);
    }
}

template <int PER, bool SIGMOID>
IV_DEVICE void select_experts(const iv_gpu_route_args &a, size_t row, float *score, choices *c) {
    const float *logits = a.logits + row * a.stride;
    unsigned lane = threadIdx.x % 32;
    size_t experts = a.router.experts, k = a.router.k;
    float x[PER], max = 0.0f, sum = 1.0f, selected = 0.0f;
    uint32_t key[PER];
    bool nan = false;
#pragma unroll
    for (int j = 0; j < PER; j++) x[j] = lane + 32 * j < experts ? logits[lane + 32 * j] : 0.0f;
    if (!SIGMOID) sum_exp<PER>(x, experts, &max, &sum);
    keys_of<PER, SIGMOID>(a, x, score, key);
#pragma unroll
    for (int j = 0; j < PER; j++) nan |= key[j] == NAN_KEY;
    nan = __any_sync(WHOLE_WARP, nan);
    uint32_t at = 0, best = largest_of<PER>(key, &at);
    for (size_t i = 0; i < k; i++) choose<PER>(key, nan, i, &best, &at, c);
    __syncwarp();
#pragma unroll 1
    for (size_t i = lane; i < k; i += 32)
        c->weight[i] = SIGMOID ? iv_sigmoid(logits[c->id[i]]) : __fdiv_rn(v_exp(logit_of(c->key[i]) - max), sum);
    __syncwarp();
    float scale = a.router.scale;
    if (!a.router.normalise && scale == 1.0f) return;
    for (size_t i = 0; i < k; i++) selected = selected + c->weight[i];
    if (SIGMOID) selected = selected + (a.router.least != 0.0f ? a.router.least : 1e-20f);
    __syncwarp();
#pragma unroll 1
    for (size_t i = lane; i < k; i += 32) {
        float w = a.router.normalise ? __fdiv_rn(c->weight[i], selected) : c->weight[i];
        c->weight[i] = scale == 1.0f ? w : w * scale;
    }
    __syncwarp();
}

/* Index of choice i among the ascending ids. */
IV_DEVICE size_t index_of(const choices *c, size_t k, size_t i) {
    size_t index = 0;
    for (size_t j = 0; j < k; j++) index += c->id[j] < c->id[i];
    return index;
}

IV_DEVICE void put_choices(const choices *c, size_t row, size_t k, int32_t *ids, float *weights) {
#pragma unroll 1
    for (size_t i = threadIdx.x % 32; i < k; i += 32) {
        size_t index = index_of(c, k, i);
        ids[row * k + index] = c->id[i], weights[row * k + index] = c->weight[i];
    }
}

template <int PER, bool SIGMOID>
static __global__ void __launch_bounds__(ROUTE_WARPS * 32) route_rows(const __grid_constant__ iv_gpu_route_args a) {
    __shared__ choices c[ROUTE_WARPS];
    __shared__ float score[SIGMOID ? ROUTE_WARPS : 1][SIGMOID ? PER * 32 : 1];
    size_t warp = threadIdx.x / 32, row = (size_t)blockIdx.x * ROUTE_WARPS + warp;
    iv_let_next();
    iv_wait();
    if (row >= a.rows) return;
    select_experts<PER, SIGMOID>(a, row, score[SIGMOID ? warp : 0], &c[warp]);
    put_choices(&c[warp], row, a.router.k, a.ids, a.weights);
}

/* ---- groups --------------------------------------------------------------------------------------------- */

IV_DEVICE size_t counted_rows(size_t rows, const int32_t *true_rows) {
    return !true_rows ? rows : *true_rows < 0 ? 0 : (size_t)*true_rows < rows ? (size_t)*true_rows : rows;
}

/* One block per expert: counts the entries of earlier experts and lists its own in order. A row has an expert at
 * most once, so the order of entries is the order of rows. */
static __global__ void __launch_bounds__(GROUP_THREADS)
    group_rows(const int32_t *ids, size_t rows, const int32_t *true_rows, size_t experts, size_t k, int32_t *offsets,
               int32_t *slots) {
    enum { WARPS = GROUP_THREADS / 32 };
    __shared__ uint32_t before[WARPS], matches[WARPS];
    iv_let_next();
    iv_wait();
    int32_t expert = (int32_t)blockIdx.x;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = (uint32_t)(counted_rows(rows, true_rows) * k);
    uint32_t part = (n + WARPS * 32 - 1) / (WARPS * 32) * 32, from = warp * part, to = min(n, from + part);
    uint32_t less = 0, equal = 0;
#pragma unroll 8
    for (uint32_t i = from + lane; i < to; i += 32) less += ids[i] < expert, equal += ids[i] == expert;
    less = warp_sum(less), equal = warp_sum(equal);
    if (lane == 0) before[warp] = less, matches[warp] = equal;
    __syncthreads();
    uint32_t start = 0, at = 0;
    for (uint32_t w = 0; w < WARPS; w++) start += before[w], at += w < warp ? matches[w] : 0;
    if (threadIdx.x == 0) offsets[expert] = (int32_t)start;
    if (threadIdx.x == 0 && expert == 0) offsets[experts] = (int32_t)n;
    if (equal == 0) return;
    for (uint32_t i = from; i < to; i += 32) {
        bool match = i + lane < to && ids[i + lane] == expert;
        uint32_t mask = __ballot_sync(WHOLE_WARP, match);
        if (match) slots[start + at + __popc(mask & ((1u << lane) - 1))] = (int32_t)(i + lane);
        at += __popc(mask);
    }
}

/* offset[e]: entries of experts before e; the bits of mask[e] are e's rows. By a block of SMALL_THREADS or more. */
IV_DEVICE void offsets_of(const uint32_t *mask, size_t experts, uint32_t *offset, int32_t *offsets) {
    enum { EACH = EXPERTS_MAX / SMALL_THREADS, WARPS = SMALL_THREADS / 32 };
    __shared__ uint32_t part[WARPS];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * EACH, count[EACH], own = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        count[i] = warp < WARPS && first + i < experts ? __popc(mask[first + i]) : 0;
        own += count[i];
    }
    uint32_t end = own;
    for (int stride = 1; stride < 32; stride *= 2) {
        uint32_t lower = __shfl_up_sync(WHOLE_WARP, end, stride);
        if (lane >= stride) end += lower;
    }
    if (lane == 31 && warp < WARPS) part[warp] = end;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) end += w < warp ? part[w] : 0;
    uint32_t at = end - own;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (warp < WARPS && first + i < experts) offset[first + i] = at, offsets[first + i] = (int32_t)at;
        at += count[i];
    }
    if (threadIdx.x == SMALL_THREADS - 1) offsets[experts] = (int32_t)end;
}

/* Few rows: all in one block, one warp per row. */
template <int PER>
static __global__ void __launch_bounds__(SMALL_ROWS * 32) route_small(const __grid_constant__ iv_gpu_route_args a) {
    __shared__ choices c[SMALL_ROWS];
    __shared__ uint32_t mask[EXPERTS_MAX], offset[EXPERTS_MAX]; /* mask: the rows of each expert */
    size_t lane = threadIdx.x % 32, row = threadIdx.x / 32, k = a.router.k, experts = a.router.experts;
    for (size_t e = threadIdx.x; e < experts; e += blockDim.x) mask[e] = 0;
    iv_let_next();
    iv_wait();
    size_t counted = counted_rows(a.rows, a.true_rows);
    __syncthreads();
    if (row < a.rows) select_experts<PER, false>(a, row, NULL, &c[row]);
#pragma unroll 1
    for (size_t i = lane; i < k && row < counted; i += 32) atomicOr(&mask[c[row].id[i]], 1u << row);
    __syncthreads();
    offsets_of(mask, experts, offset, a.offsets);
    __syncthreads();
#pragma unroll 1
    for (size_t i = lane; i < k && row < a.rows; i += 32) {
        size_t index = index_of(&c[row], k, i), slot = row * k + index;
        int32_t id = c[row].id[i];
        a.ids[slot] = id, a.weights[slot] = c[row].weight[i];
        if (row < counted) a.slots[offset[id] + __popc(mask[id] & ((1u << row) - 1))] = (int32_t)slot;
    }
}

template <bool SIGMOID> static int launch_rows(const iv_gpu_route_args *a, cudaStream_t stream) {
    size_t experts = a->router.experts;
    auto *kernel = experts <= 128   ? route_rows<4, SIGMOID>
                   : experts <= 256 ? route_rows<8, SIGMOID>
                                    : route_rows<16, SIGMOID>;
    int error =
        iv_launch(kernel, dim3((unsigned)((a->rows + ROUTE_WARPS - 1) / ROUTE_WARPS)), ROUTE_WARPS * 32, stream, *a);
    if (error) return error;
    return iv_launch(group_rows, dim3((unsigned)experts), GROUP_THREADS, stream, (const int32_t *)a->ids, a->rows,
                     a->true_rows, experts, a->router.k, a->offsets, a->slots);
}

int iv_gpu_route(const iv_gpu_route_args *a, iv_gpu_stream stream) {
    const iv_router *r = &a->router;
    if (r->experts < 1 || r->experts > EXPERTS_MAX || r->k < 1 || r->k > r->experts ||
        r->k > IV_EXPERTS_PER_TOKEN_MAX || a->stride < r->experts)
        return (int)cudaErrorInvalidValue;
    if (r->groups > 1 && (r->groups > 32 || r->experts % r->groups || r->score != IV_SCORE_SIGMOID ||
                          r->chosen_groups * (r->experts / r->groups) < r->k || r->chosen_groups > r->groups))
        return (int)cudaErrorInvalidValue;
    if (a->rows == 0 || a->rows > (size_t)INT32_MAX / r->k) return a->rows == 0 ? 0 : (int)cudaErrorInvalidValue;
    if (r->score == IV_SCORE_SIGMOID) return launch_rows<true>(a, stream);
    if (a->rows > SMALL_ROWS) return launch_rows<false>(a, stream);
    auto *kernel = r->experts <= 128 ? route_small<4> : r->experts <= 256 ? route_small<8> : route_small<16>;
    int threads = a->rows * 32 < SMALL_THREADS ? SMALL_THREADS : (int)a->rows * 32;
    return iv_launch(kernel, dim3(1), threads, stream, *a);
}

/* ---- packing ---------------------------------------------------------------------------------------------- */

/* One warp per row. */
static __global__ void __launch_bounds__(PACK_WARPS * 32)
    pack_rows(const int32_t *ends, size_t count, const int32_t *slots, uint32_t k, const uint4 *x, uint32_t pieces,
              uint4 *out) {
    uint32_t lane = threadIdx.x % 32, step = gridDim.x * PACK_WARPS;
    iv_let_next();
    iv_wait();
    uint32_t end = (uint32_t)ends[count];
    for (uint32_t i = (uint32_t)ends[0] + blockIdx.x * PACK_WARPS + threadIdx.x / 32; i < end; i += step) {
        const uint4 *from = x + (size_t)((uint32_t)slots[i] / k) * pieces;
        uint4 *to = out + (size_t)i * pieces, v[PACK_AHEAD];
        for (uint32_t at = lane; at < pieces; at += 32 * PACK_AHEAD) {
#pragma unroll
            for (int j = 0; j < PACK_AHEAD; j++)
                if (at + 32 * j < pieces) v[j] = from[at + 32 * j];
#pragma unroll
            for (int j = 0; j < PACK_AHEAD; j++)
                if (at + 32 * j < pieces) to[at + 32 * j] = v[j];
        }
    }
}

int iv_gpu_pack_rows(const iv_gpu_groups *groups, size_t rows, const void *x, size_t row_bytes, void *out,
                     iv_gpu_stream stream) {
    enum { BLOCKS_MAX = 132 * 8 };
    size_t k = groups->experts_per_token;
    if (row_bytes % 16 || (uintptr_t)x % 16 || (uintptr_t)out % 16 || row_bytes > UINT32_MAX / 2 || k < 1 ||
        rows > (size_t)INT32_MAX / k)
        return (int)cudaErrorInvalidValue;
    if (rows == 0 || groups->count == 0) return 0;
    size_t blocks = (rows * k + PACK_WARPS - 1) / PACK_WARPS;
    return iv_launch(pack_rows, dim3((unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX)), PACK_WARPS * 32, stream,
                     groups->offsets + groups->first, groups->count, groups->slots, (uint32_t)k, (const uint4 *)x,
                     (uint32_t)(row_bytes / 16), (uint4 *)out);
}

/* One warp per entry. */
template <iv_dtype T>
static __global__ void __launch_bounds__(PACK_WARPS * 32)
    pack_scaled(const int32_t *ends, size_t count, const int32_t *slots, const float *weights, uint32_t k,
                const void *x, size_t n, size_t stride, void *out, float *ones) {
    uint32_t lane = threadIdx.x % 32, step = gridDim.x * PACK_WARPS;
    iv_let_next();
    iv_wait();
    uint32_t end = (uint32_t)ends[count];
    for (uint32_t i = (uint32_t)ends[0] + blockIdx.x * PACK_WARPS + threadIdx.x / 32; i < end; i += step) {
        uint32_t slot = (uint32_t)slots[i];
        float w = weights[slot];
        for (size_t e = lane; e < stride; e += 32)
            put<T>(out, i * stride + e, e < n ? get<T>(x, slot / k * stride + e) * w : 0.0f);
        if (lane == 0) ones[slot] = 1.0f;
    }
}

int iv_gpu_pack_scaled(const iv_gpu_groups *groups, size_t rows, iv_dtype type, const void *x, size_t n, size_t stride,
                       void *out, float *ones, iv_gpu_stream stream) {
    enum { BLOCKS_MAX = 132 * 8 };
    size_t k = groups->experts_per_token;
    if (n > stride || k < 1 || rows > (size_t)INT32_MAX / k) return (int)cudaErrorInvalidValue;
    if (rows == 0 || groups->count == 0) return 0;
    size_t blocks = (rows * k + PACK_WARPS - 1) / PACK_WARPS;
    auto *kernel = type == IV_BF16 ? pack_scaled<IV_BF16> : type == IV_F16 ? pack_scaled<IV_F16> : pack_scaled<IV_F32>;
    return iv_launch(kernel, dim3((unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX)), PACK_WARPS * 32,
                     (cudaStream_t)stream, groups->offsets + groups->first, groups->count, groups->slots,
                     groups->weights, (uint32_t)k, x, n, stride, out, ones);
}

/* ---- combining -------------------------------------------------------------------------------------------- */

typedef struct combine_args {
    const float *terms[IV_RANKS_MAX];
    int32_t first[IV_RANKS_MAX + 1];
    int ranks;
    const int32_t *ids;
    size_t k, hidden;
    float *x;
} combine_args;

template <int V> IV_DEVICE elements<V> sum(const elements<V> &a, const elements<V> &b) {
    elements<V> c;
#pragma unroll
    for (int j = 0; j < V; j++) c.at[j] = a.at[j] + b.at[j];
    return c;
}

/* Neighboring terms are added at the level of the highest bit in which their ids differ. A finished node waits at
 * the level where it is added to what follows. Nodes that wait below the newest level are complete and are added
 * first. */
template <int V> static __global__ void __launch_bounds__(COMBINE_THREADS) combine(const combine_args a) {
    __shared__ const float *term[IV_EXPERTS_PER_TOKEN_MAX];
    __shared__ uint32_t level[IV_EXPERTS_PER_TOKEN_MAX];
    __shared__ __align__(16) elements<V> waiting[LEVELS][COMBINE_THREADS];
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, t = threadIdx.x, column = ((size_t)blockIdx.y * COMBINE_THREADS + t) * V;
    if (t < a.k) {
        int32_t id = a.ids[row * a.k + t], next = t + 1 < a.k ? a.ids[row * a.k + t + 1] : id;
        int rank = 0;
        while (rank + 1 < a.ranks && id >= a.first[rank + 1]) rank++;
        term[t] = a.terms[rank] + (row * a.k + t) * a.hidden;
        level[t] = t + 1 < a.k ? 32 - __clz(id ^ next) : LEVELS;
    }
    __syncthreads();
    if (column >= a.hidden) return;
    elements<V> x = load<V>(a.x + row * a.hidden + column), c = {}, ahead[COMBINE_AHEAD];
    uint32_t held = 0; /* bit l: a node waits at level l */
    for (size_t base = 0; base < a.k; base += COMBINE_AHEAD) {
#pragma unroll
        for (int i = 0; i < COMBINE_AHEAD; i++)
            if (base + i < a.k) ahead[i] = load<V>(term[base + i] + column);
#pragma unroll
        for (int i = 0; i < COMBINE_AHEAD; i++) {
            if (base + i >= a.k) continue;
            c = ahead[i];
            for (uint32_t l = level[base + i]; held & ((1u << l) - 1); held &= held - 1)
                c = sum(waiting[__ffs(held) - 1][t], c);
            if (level[base + i] < LEVELS) waiting[level[base + i]][t] = c, held |= 1u << level[base + i];
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) x.at[j] = iv_canon(x.at[j] + c.at[j]);
    store(a.x + row * a.hidden + column, x);
}

int iv_gpu_combine(const float *const *terms, const int32_t *first, size_t ranks, const int32_t *ids, size_t rows,
                   size_t k, size_t hidden, float *x, iv_gpu_stream stream) {
    if (ranks < 1 || ranks > IV_RANKS_MAX || k < 1 || k > IV_EXPERTS_PER_TOKEN_MAX || first[ranks] > EXPERTS_MAX)
        return (int)cudaErrorInvalidValue;
    if (rows == 0) return 0;
    combine_args a = {};
    a.ranks = (int)ranks, a.ids = ids, a.k = k, a.hidden = hidden, a.x = x;
    for (size_t r = 0; r < ranks; r++) a.terms[r] = terms[r], a.first[r] = first[r];
    a.first[ranks] = first[ranks];
    size_t columns = COMBINE_THREADS * (hidden % 4 == 0 ? 4 : 1);
    dim3 grid((unsigned)rows, (unsigned)((hidden + columns - 1) / columns));
    return iv_launch(hidden % 4 == 0 ? combine<4> : combine<1>, grid, COMBINE_THREADS, stream, a);
}
