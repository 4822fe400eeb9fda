/* tree_allreduce.cu: synchronization of the ranks of one process: barriers over flags in peer memory, and the tree
 * all-reduce that ends a row-parallel layer. Law: NUMERICS.md sections 3.3 and 4.
 *
 * Block b of a rank synchronizes with block b of every other rank: it writes a sequence number into its word of
 * their flags, and waits until theirs arrive in its own. The number is kept in device memory, so replayed graphs
 * continue the sequence. All ranks launch the same all-reduces and barriers in the same order. A thread that times
 * out records in host memory which rank it waited for and continues: the results are undefined, but no kernel hangs. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "numerics/rows.h"

#include <string.h>

enum {
    BLOCKS_MAX = 256, /* of an all-reduce: enough to fill the links */
    THREADS = IV_ROW_LANES,
    RANKS = IV_RANKS_MAX,
    COUNTS = BLOCKS_MAX * RANKS, /* offset in the flags of the blocks' sequence numbers */
    POLLS = 1024,                /* between two readings of the clock */
    LOOKS = 16,                  /* minimum readings of the clock before a thread times out */
    SHARED_MAX = 200 << 10,
    TWO_SHOT_BYTES = 1 << 18 /* over the links: what a second barrier costs */
};

static_assert(COUNTS + BLOCKS_MAX <= IV_GPU_FLAG_WORDS, "flags");

/* ---- barriers ------------------------------------------------------------------------------------------------ */

IV_DEVICE void put_flag(uint32_t *flag, uint32_t value) {
#if __CUDA_ARCH__ >= 700
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#endif
}

IV_DEVICE uint32_t get_flag(const uint32_t *flag) {
    uint32_t value = 0;
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
#endif
    return value;
}

IV_DEVICE uint64_t clock_ns(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* This block's sequence number. */
IV_DEVICE uint32_t count_of(const iv_gpu_peers &p) {
    return *(volatile uint32_t *)&p.flags[p.rank][COUNTS + blockIdx.x];
}

IV_DEVICE void keep_count(const iv_gpu_peers &p, uint32_t count) {
    if (threadIdx.x == 0) *(volatile uint32_t *)&p.flags[p.rank][COUNTS + blockIdx.x] = count;
}

/* Thread t signals rank t. Writes of the block before a __syncthreads() come first. */
IV_DEVICE void announce(const iv_gpu_peers &p, uint32_t count) {
    if (threadIdx.x < p.ranks && threadIdx.x != p.rank)
        put_flag(&p.flags[threadIdx.x][blockIdx.x * RANKS + p.rank], count);
}

IV_DEVICE void report_timeout(const iv_gpu_peers &p, int32_t behind) {
    uint64_t word = (uint64_t)(uint32_t)behind << 32 | (uint64_t)blockIdx.x << 8 | (threadIdx.x + 1);
    *(volatile uint64_t *)&p.timeouts->rank[p.rank] = word;
    *(volatile uint32_t *)&p.timeouts->any = 1;
}

/* Has the thread timed out that last read the clock at *last? Time between two readings counts only up to a limit:
 * the GPU may be taken away from this thread for a while, and clocks may be set. */
IV_DEVICE bool is_over(const iv_gpu_peers &p, uint64_t *last, uint64_t *waited) {
    uint64_t now = clock_ns(), passed = *last ? now - *last : 0, most = p.timeout_ns / LOOKS;
    *waited += passed < most ? passed : most;
    *last = now;
    return *waited >= p.timeout_ns;
}

/* Must be followed by a __syncthreads(). */
IV_DEVICE void await(const iv_gpu_peers &p, uint32_t count) {
    if (threadIdx.x >= p.ranks || threadIdx.x == p.rank) return;
    const uint32_t *flag = &p.flags[p.rank][blockIdx.x * RANKS + threadIdx.x];
    uint64_t last = 0, waited = 0;
    int32_t behind;
    for (uint32_t polls = 1; (behind = (int32_t)(count - get_flag(flag))) > 0; polls++) {
        if (polls % POLLS) continue;
        if (*(volatile uint32_t *)&p.timeouts->any) return;
        if (!is_over(p, &last, &waited)) continue;
        report_timeout(p, behind);
        return;
    }
}

static __global__ void __launch_bounds__(32) barrier_kernel(const __grid_constant__ iv_gpu_peers p) {
    iv_let_next();
    iv_wait();
    uint32_t count = count_of(p) + 1;
    announce(p, count);
    await(p, count);
    __syncwarp();
    keep_count(p, count);
}

int iv_gpu_barrier(const iv_gpu_peers *p, iv_gpu_stream stream) {
    if (p->ranks < 1 || p->ranks > RANKS || p->rank < 0 || p->rank >= p->ranks) return (int)cudaErrorInvalidValue;
    return p->ranks == 1 ? 0 : iv_launch(barrier_kernel, dim3(1), 32, stream, *p);
}

/* ---- tree all-reduce ------------------------------------------------------------------------------------------- */

typedef struct reduction {
    iv_gpu_peers peers;
    const float *node[IV_LEAVES_MAX];
    const uint16_t *sum; /* N = 1: the only node, in 16 bits */
    iv_tree_order order;
    const float *bias, *weight;
    float *x;
    void *normed[RANKS];                /* [targets] */
    size_t hidden, stride, first, last; /* this rank reduces rows [first, last) */
    float eps;
    iv_dtype type;
    int targets;
    bool flush, second_barrier;
} reduction;

template <int V> IV_DEVICE void add_to(elements<V> *a, const elements<V> &b, bool flush) {
#pragma unroll
    for (int i = 0; i < V; i++) a->at[i] = flush ? iv_add_flush(a->at[i], b.at[i]) : a->at[i] + b.at[i];
}

/* The root over N nodes of the complete binary tree, or for N = 0 of the tree in `join`. Left in v[0]. */
template <int N, int V> IV_DEVICE void add_nodes(const reduction &a, elements<V> *v) {
    if (N == 0)
        for (size_t i = 0; i < a.order.count; i++) add_to<V>(&v[a.order.to[i]], v[a.order.from[i]], a.flush);
#pragma unroll
    for (int apart = 1; apart < (N ? N : 1); apart *= 2)
#pragma unroll
        for (int i = 0; i < (N ? N : 1); i += 2 * apart)
            if (i + apart < N) add_to<V>(&v[i], v[i + apart], a.flush);
}

template <int N, int V> IV_DEVICE elements<V> load_node(const reduction &a, int i, size_t at) {
    if (N != 1) return load<V>(a.node[i] + at);
    elements<V> e;
    if (V == 4) {
        uint2 h = *(const uint2 *)(a.sum + at);
#pragma unroll
        for (int j = 0; j < V; j++) e.at[j] = iv_widen16(a.type, (uint16_t)((j < 2 ? h.x : h.y) >> (j % 2 * 16)));
    } else
        e.at[0] = iv_widen16(a.type, a.sum[at]);
    return e;
}

/* x += the root, from column `column` on, U vectors per thread at once; also into xs. */
template <int N, int V, int U>
IV_DEVICE void add_columns(const reduction &a, size_t row, size_t column, bool staged, float *xs) {
    enum { HELD = N ? N : IV_LEAVES_MAX };
    elements<V> v[U][HELD], x[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        size_t c = column + u * THREADS * V;
        if (c >= a.hidden) continue;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (N || i <= a.order.count) v[u][i] = load_node<N, V>(a, i, row * a.hidden + c);
        x[u] = load<V>(staged ? xs + c : a.x + row * a.hidden + c);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        size_t c = column + u * THREADS * V;
        if (c >= a.hidden) continue;
        add_nodes<N, V>(a, v[u]);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float y = iv_canon(v[u][0].at[i]);
            if (a.bias) y = iv_canon(y + a.bias[c + i]);
            x[u].at[i] = iv_canon(x[u].at[i] + y);
        }
        store<V>(a.x + row * a.hidden + c, x[u]);
        if (a.weight) store<V>(xs + c, x[u]);
    }
}

/* 1 / sqrt(mean + eps) of the row in xs; thread t sums the law's lane t. */
IV_DEVICE float scale_of(const reduction &a, const float *xs, float *lanes) {
    float lane = 0.0f, l[THREADS / 32];
#pragma unroll 4
    for (size_t i = threadIdx.x; i < a.hidden; i += THREADS) lane = __fmaf_rn(xs[i], xs[i], lane);
    lanes[threadIdx.x] = lane;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < THREADS / 32; j++) l[j] = lanes[threadIdx.x % 32 + 32 * j];
    float s = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    for (int stride = 16; stride > 0; stride /= 2) s = s + __shfl_xor_sync(0xffffffffu, s, stride);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(s, (float)a.hidden) + a.eps));
}

/* Writes V of a row's normed values to all targets, from `at` on: in 16 bytes if they are 8 values of 16 bits. */
template <int V> IV_DEVICE void put_normed(const reduction &a, size_t at, const float y[V]) {
    uint32_t bits[V];
#pragma unroll
    for (int i = 0; i < V; i++) bits[i] = a.type == IV_F32 ? __float_as_uint(iv_canon(y[i])) : iv_round16(a.type, y[i]);
    for (int t = 0; t < a.targets; t++) {
        uint32_t *words = (uint32_t *)a.normed[t] + at;
        uint16_t *halves = (uint16_t *)a.normed[t] + at;
        if (V == 8)
            *(uint4 *)halves = make_uint4(bits[0] | bits[1 % V] << 16, bits[2 % V] | bits[3 % V] << 16,
                                          bits[4 % V] | bits[5 % V] << 16, bits[6 % V] | bits[7 % V] << 16);
        else if (a.type == IV_F32)
            words[0] = bits[0];
        else
            halves[0] = (uint16_t)bits[0];
    }
}

template <int V> IV_DEVICE void put_row(const reduction &a, size_t row, float r, const float *xs, const float *ws) {
    for (size_t c = threadIdx.x * V; c < a.stride; c += THREADS * V) {
        float y[V] = {0};
        elements<V % 4 ? 1 : 4> x, w;
#pragma unroll
        for (int i = 0; i < V; i++) {
            constexpr int E = V % 4 ? 1 : 4;
            if (i % E == 0 && c < a.hidden) x = load<E>(xs + c + i), w = load<E>(ws + c + i);
            if (c < a.hidden) y[i] = (x.at[i % E] * r) * w.at[i % E];
        }
        put_normed<V>(a, row * a.stride + c, y);
    }
}

/* staged: xs already holds the row's x. */
template <int N, int V>
IV_DEVICE void reduce_row(const reduction &a, size_t row, bool staged, float *xs, const float *ws, float *lanes) {
    enum { U = N == 2 && V == 4 ? 4 : N == 4 && V == 4 ? 2 : 1 };
    for (size_t c = threadIdx.x * V; c < a.hidden; c += U * THREADS * V) add_columns<N, V, U>(a, row, c, staged, xs);
    if (!a.weight) return;
    __syncthreads();
    float r = scale_of(a, xs, lanes);
    if (a.type != IV_F32 && a.hidden % 8 == 0 && a.stride % 8 == 0)
        put_row<8>(a, row, r, xs, ws);
    else
        put_row<1>(a, row, r, xs, ws);
    __syncthreads(); /* xs and lanes are free again */
}

template <int N, int V>
static __global__ void __launch_bounds__(THREADS) reduce_rows(const __grid_constant__ reduction a) {
    extern __shared__ float4 shared[];
    __shared__ float lanes[THREADS];
    float *xs = (float *)shared, *ws = xs + a.hidden;
    iv_let_next();
    if (a.weight)
        for (size_t c = threadIdx.x * V; c < a.hidden; c += THREADS * V) store<V>(ws + c, load<V>(a.weight + c));
    iv_wait();
    uint32_t count = count_of(a.peers);
    size_t row = a.first + blockIdx.x;
    bool staged = a.weight && row < a.last;
    announce(a.peers, count + 1);
    for (size_t c = threadIdx.x * V; staged && c < a.hidden; c += THREADS * V)
        store<V>(xs + c, load<V>(a.x + row * a.hidden + c));
    await(a.peers, count + 1);
    __syncthreads(); /* and all threads have read the count */
    for (; row < a.last; row += gridDim.x, staged = false) reduce_row<N, V>(a, row, staged, xs, ws, lanes);
    if (a.second_barrier) {
        __syncthreads();
        announce(a.peers, count + 2);
        await(a.peers, count + 2);
    }
    keep_count(a.peers, count + 1 + a.second_barrier);
}

/* ---- one-shot or two-shot ------------------------------------------------------------------------------------ */

static size_t shared_bytes(size_t hidden) { return 2 * hidden * sizeof(float); }

static bool two_shot(const iv_gpu_allreduce_args *a, int ranks) {
    if (a->whole || ranks == 1 || shared_bytes(a->hidden) > SHARED_MAX) return false;
    if (a->way != IV_GPU_ALLREDUCE_BY_SIZE) return a->way == IV_GPU_ALLREDUCE_TWO_SHOT;
    /* The extra traffic of one-shot, per rank: nodes of all rows, against nodes of the own rows and normed rows of
     * the others. */
    size_t n = (size_t)ranks, one = a->rows * a->hidden * 4 * (n - 1), two = a->rows * a->hidden * 6 * (n - 1) / n;
    return one - two >= TWO_SHOT_BYTES;
}

static size_t first_row(size_t rows, int ranks, int rank) { return rows * (size_t)rank / (size_t)ranks; }

int iv_gpu_allreduce_owner(const iv_gpu_allreduce_args *a, int ranks, size_t row) {
    if (!two_shot(a, ranks)) return -1;
    int rank = 0;
    while (row >= first_row(a->rows, ranks, rank + 1)) rank++;
    return rank;
}

/* Is `join` the complete tree over `nodes`? */
static bool complete(const iv_tree_order *order, size_t nodes) {
    iv_tree_order want = {};
    for (size_t i = 1; i < nodes; i++) /* node i is followed by the additions that it completes */
        for (size_t apart = 1; (i & apart) && apart < nodes; apart *= 2) {
            size_t left = i + 1 - 2 * apart;
            want.to[want.count] = (uint8_t)left, want.from[want.count] = (uint8_t)(left + apart);
            want.count++;
            if (!(i & (2 * apart))) break;
        }
    return order->count == want.count && memcmp(order->to, want.to, want.count) == 0 &&
           memcmp(order->from, want.from, want.count) == 0;
}

static int launch(const reduction *a, size_t blocks, cudaStream_t stream) {
    bool fours = a->hidden % 4 == 0 && a->stride % 4 == 0;
    auto *kernel = a->sum                                        ? (fours ? reduce_rows<1, 4> : reduce_rows<1, 1>)
                   : !fours                                      ? reduce_rows<0, 1>
                   : a->order.count == 1 && complete(&a->order, 2) ? reduce_rows<2, 4>
                   : a->order.count == 3 && complete(&a->order, 4) ? reduce_rows<4, 4>
                   : a->order.count == 7 && complete(&a->order, 8) ? reduce_rows<8, 4>
                                                                 : reduce_rows<0, 4>;
    size_t shared = a->weight ? shared_bytes(a->hidden) : 0;
    if (shared > 40 << 10) {
        int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
    }
    return iv_launch_shared(kernel, dim3((unsigned)blocks), THREADS, shared, stream, *a);
}

int iv_gpu_tree_allreduce(const iv_gpu_peers *p, const iv_gpu_allreduce_args *a, iv_gpu_stream stream) {
    if (p->ranks < 1 || p->ranks > RANKS || p->rank < 0 || p->rank >= p->ranks || a->rows == 0 ||
        a->order.count >= IV_LEAVES_MAX || (a->sum && a->type == IV_F32))
        return (int)cudaErrorInvalidValue;
    if (a->sum && p->ranks > 1) {
        iv_gpu_peers alone = {};
        iv_gpu_allreduce_args own = *a;
        alone.ranks = 1, alone.flags[0] = p->flags[p->rank], own.normed[0] = a->normed[p->rank];
        return iv_gpu_tree_allreduce(&alone, &own, stream);
    }
    bool two = two_shot(a, p->ranks), fits = shared_bytes(a->hidden) <= SHARED_MAX;
    reduction j = {};
    j.peers = *p, j.order = a->order, j.bias = a->bias, j.x = a->x, j.hidden = a->hidden, j.stride = a->normed_stride;
    memcpy(j.node, a->node, sizeof j.node), j.sum = (const uint16_t *)a->sum;
    j.weight = fits ? a->norm_weight : NULL, j.eps = a->eps, j.type = a->type, j.flush = a->arithmetic == IV_FMA32;
    j.first = two ? first_row(a->rows, p->ranks, p->rank) : 0;
    j.last = two ? first_row(a->rows, p->ranks, p->rank + 1) : a->rows;
    j.second_barrier = two && a->norm_weight;
    j.targets = two ? p->ranks : 1;
    for (int i = 0; i < j.targets;
         i++) /* own rank first, then the following ones: no two ranks write to one at a time */
        j.normed[i] = a->normed[(p->rank + i) % p->ranks];
    size_t most = two ? (a->rows + (size_t)p->ranks - 1) / (size_t)p->ranks : a->rows;
    size_t blocks = a->blocks && a->blocks < BLOCKS_MAX ? a->blocks : BLOCKS_MAX;
    int error = launch(&j, most < blocks ? most : blocks, stream);
    if (error || fits || !a->norm_weight) return error;
    return iv_gpu_rmsnorm(a->x, a->hidden, NULL, a->norm_weight, a->eps, a->rows, a->type, a->normed[p->rank],
                          a->normed_stride, stream);
}
