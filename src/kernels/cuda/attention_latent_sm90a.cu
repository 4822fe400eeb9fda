/* attention_latent_sm90a.cu: latent attention on tensor cores: all heads read one latent, so the packed rows of a tile
 * are heads of a few tokens, and a block of 64 keys, read once, serves as keys and as values.
 *
 * A CTA has 16 MT packed rows. The next block is on its way while one is computed. For scores a warp has 16 rows and a
 * part of the keys, for outputs all rows and an eighth of the values, whose sums stay in its registers. Short tiles are
 * walked as a worker's splits (attention_plan.h), tall ones whole, longest first. The two kernels have the same body.
 */
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/launch.cuh"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    BLOCK = IV_ATTENTION_BLOCK,
    PAD = 8,
    WEIGHTS = BLOCK + PAD,
    SCORES = BLOCK + 4
};

/* KD: elements of a key; VD: of a value, which begin the key. */
template <int MT, int KD, int VD> struct layout {
    static constexpr int ROWS = 16 * MT, PITCH = KD + PAD, PARTS = THREADS / ROWS, TILES = VD / 8 / WARPS;
    static constexpr int KEYS = BLOCK / (WARPS / MT); /* of a warp's scores */
    static constexpr int AT_BLOCKS = ROWS * PITCH * 2, AT_SCORES = AT_BLOCKS + 2 * BLOCK * PITCH * 2,
                         AT_WEIGHTS = AT_SCORES + ROWS * SCORES * 4, AT_ALPHA = AT_WEIGHTS + ROWS * WEIGHTS * 2,
                         AT_SUM = AT_ALPHA + ROWS * 4, AT_FACTORS = AT_SUM + ROWS * 4, AT_FLAG = AT_FACTORS + ROWS * 8,
                         BYTES = AT_FLAG + 16;
    static_assert(BYTES <= 227 * 1024 && KD % 32 == 0 && VD % (8 * WARPS) == 0 && KEYS % 8 == 0, "");
};

typedef struct latent_params {
    iv_attention_params p;
    int tall_width, tall_slices;
} latent_params;

/* A thread's packed row in the softmax. */
typedef struct row_state {
    int row, part, position;
    bool here, started;
    float max, total_max, total_sum;
} row_state;

template <iv_dtype T, int MT, int KD, int VD> struct tile {
    using L = layout<MT, KD, VD>;
    typedef float outputs[MT][L::TILES][4];

    const iv_attention_params &p;
    const iv_attention_run &r;
    char *memory;
    uint32_t base;
    row_state t;
    outputs out, total; /* of a split; of the splits so far */
    float sums[MT][4];  /* of weights, in warp 0 */

    __device__ __forceinline__ float *floats(int at) const { return (float *)(memory + at); }
    __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
    __device__ __forceinline__ int warp() const { return threadIdx.x / 32; }
    /* Column of elements 0 and 1 of a fragment of outputs. */
    __device__ __forceinline__ int column(int tile) const { return (warp() * L::TILES + tile) * 8 + lane() % 4 * 2; }
    __device__ __forceinline__ int head_of(int row) const { return r.head + row % r.width; }
    __device__ __forceinline__ bool owns(int row) const {
        int head = head_of(row);
        return row / r.width < r.tile.tokens && row % r.width < r.present && head >= 0 && head < p.heads;
    }
    __device__ __forceinline__ size_t place_of(int row) const {
        return (size_t)(r.tile.first_row + row / r.width) * p.heads + head_of(row);
    }

    __device__ __forceinline__ void stage(int block) const {
        uint32_t to = base + L::AT_BLOCKS + block % 2 * (BLOCK * L::PITCH * 2);
        const char *from = p.pages + (size_t)p.tables[r.tile.table + block] * (BLOCK * KD * 2);
        for (int i = threadIdx.x; i < BLOCK * (KD / 8); i += THREADS)
            iv_copy16(to + (i / (KD / 8) * L::PITCH + i % (KD / 8) * 8) * 2, from + (size_t)i * 16, true);
    }

    __device__ __forceinline__ void load_queries() const {
        for (int i = threadIdx.x; i < L::ROWS * (KD / 8); i += THREADS) {
            int row = i / (KD / 8), d = i % (KD / 8) * 8;
            bool there = owns(row);
            iv_copy16(base + (row * L::PITCH + d) * 2, there ? p.q + (place_of(row) * KD + d) * 2 : p.q, there);
        }
    }

    /* Dot products: of rows 16 m of a warp with KEYS keys, one chain over KD each. */
    __device__ __forceinline__ void scores(int block) const {
        constexpr int N = L::KEYS / 8;
        int m = warp() % MT, first = warp() / MT * L::KEYS, g = lane() / 4, c = lane() % 4;
        uint32_t a_at = base + ((m * 16 + lane() % 16) * L::PITCH + lane() / 16 * 8) * 2;
        uint32_t keys = base + L::AT_BLOCKS + block % 2 * (BLOCK * L::PITCH * 2);
        /* Two tiles of eight keys and a step, or one tile and two steps. */
        int key = N == 1 ? lane() % 8 : lane() / 16 * 8 + lane() % 8, k = N == 1 ? lane() / 8 * 8 : lane() / 8 % 2 * 8;
        uint32_t b_at = keys + ((first + key) * L::PITCH + k) * 2;
        float d[N][4] = {};
#pragma unroll 6
        for (int s = 0; s < KD / 16; s += 2) {
            uint32_t a[2][4], b[2][4];
            load_matrices(a[0], a_at + s * 32), load_matrices(a[1], a_at + s * 32 + 32);
            load_matrices(b[0], b_at + s * 32);
            if constexpr (N == 1) {
                mma<T>(d[0], a[0], b[0][0], b[0][1]), mma<T>(d[0], a[1], b[0][2], b[0][3]);
            } else {
                load_matrices(b[1], b_at + s * 32 + 32);
                mma<T>(d[0], a[0], b[0][0], b[0][1]), mma<T>(d[N - 1], a[0], b[0][2], b[0][3]);
                mma<T>(d[0], a[1], b[1][0], b[1][1]), mma<T>(d[N - 1], a[1], b[1][2], b[1][3]);
            }
        }
        float *to = floats(L::AT_SCORES) + (m * 16 + g) * SCORES + first + 2 * c;
#pragma unroll
        for (int n = 0; n < N; n++) {
            *(float2 *)(to + n * 8) = make_float2(d[n][0], d[n][1]);
            *(float2 *)(to + 8 * SCORES + n * 8) = make_float2(d[n][2], d[n][3]);
        }
    }

    /* Steps 1 to 4 of the law (section 7). */
    __device__ __forceinline__ void softmax(int first_key) {
        constexpr int EACH = BLOCK / L::PARTS;
        int low = iv_attention_low(t.position, p.window) - first_key, high = t.position - first_key;
        bool sees = t.here && high >= 0 && low < BLOCK;
        const float *score = floats(L::AT_SCORES) + t.row * SCORES;
        uint16_t *weights = (uint16_t *)(memory + L::AT_WEIGHTS) + t.row * WEIGHTS;
        float x[EACH], m = -INFINITY;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int j = t.part + L::PARTS * i;
            x[i] = j >= low && j <= high ? score[j] : -INFINITY;
            if (p.score_inner != 0.0f && j >= low && j <= high) x[i] = v_tanh(__fmul_rn(x[i], p.score_inner));
            m = iv_max(m, x[i]);
        }
#pragma unroll
        for (int i = L::PARTS / 2; i; i /= 2) m = iv_max(m, __shfl_xor_sync(~0u, m, i));
        m = iv_next_max(t.max, __fmul_rn(m, p.scale));
        float alpha = sees ? iv_attention_exp2<true>(v_sub(t.max, m)) : 1.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            weights[t.part + L::PARTS * i] =
                iv_round16(T, sees ? iv_attention_exp2<true>(__fmaf_rn(x[i], p.scale, -m)) : 0.0f);
        if (t.part == 0) floats(L::AT_ALPHA)[t.row] = alpha;
        if (sees) t.max = m;
    }

    /* Steps 5 and 6: outputs, and in warp 0 the sums, as outputs for a value of one. */
    __device__ __forceinline__ void values(int block) {
        const float *alpha = floats(L::AT_ALPHA) + lane() / 4;
        uint32_t a_at = base + L::AT_WEIGHTS + (lane() % 16 * WEIGHTS + lane() / 16 * 8) * 2;
        uint32_t b_at = base + L::AT_BLOCKS + block % 2 * (BLOCK * L::PITCH * 2) +
                        (lane() % 16 * L::PITCH + warp() * L::TILES * 8 + lane() / 16 * 8) * 2;
        uint32_t one = iv_round16(T, 1.0f) * 0x10001u;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            float low = alpha[m * 16], high = alpha[m * 16 + 8];
#pragma unroll
            for (int n = 0; n < L::TILES; n++) {
                out[m][n][0] = __fmul_rn(out[m][n][0], low), out[m][n][1] = __fmul_rn(out[m][n][1], low);
                out[m][n][2] = __fmul_rn(out[m][n][2], high), out[m][n][3] = __fmul_rn(out[m][n][3], high);
            }
            sums[m][0] = __fmul_rn(sums[m][0], low), sums[m][1] = __fmul_rn(sums[m][1], low);
            sums[m][2] = __fmul_rn(sums[m][2], high), sums[m][3] = __fmul_rn(sums[m][3], high);
        }
#pragma unroll
        for (int s = 0; s < BLOCK / 16; s++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++) load_matrices(a[m], a_at + (m * 16 * WEIGHTS + s * 16) * 2);
#pragma unroll
            for (int n = 0; n < L::TILES; n += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, b_at + (s * 16 * L::PITCH + n * 8) * 2);
#pragma unroll
                for (int m = 0; m < MT; m++)
                    mma<T>(out[m][n], a[m], b[0], b[1]), mma<T>(out[m][n + 1], a[m], b[2], b[3]);
            }
            if (warp() == 0)
#pragma unroll
                for (int m = 0; m < MT; m++) mma<T>(sums[m], a[m], one, one);
        }
    }

    /* Merges a split into the total, as the general kernel does. load(row, column): two elements of the split. */
    template <class LOAD> __device__ __forceinline__ void merge(bool seen, float max, float sum, LOAD load) {
        iv_attention_factors j = {1.0f, -1.0f}, *factors = (iv_attention_factors *)(memory + L::AT_FACTORS);
        if (seen && t.started) {
            j = iv_attention_factors_of<true>(&t.total_max, max);
            t.total_sum = iv_attention_merged(t.total_sum, sum, j);
        } else if (seen) {
            j.keep = -1.0f; /* take the split */
            t.total_max = max, t.total_sum = sum;
        }
        t.started |= seen;
        if (t.part == 0) factors[t.row] = j;
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = m * 16 + half * 8 + lane() / 4;
                iv_attention_factors k = factors[row];
                if (k.keep >= 0.0f && k.add < 0.0f) continue;
#pragma unroll
                for (int n = 0; n < L::TILES; n++) {
                    float2 x = load(m, n, half);
                    float *to = &total[m][n][2 * half];
                    to[0] = k.keep < 0.0f ? x.x : iv_attention_merged(to[0], x.x, k);
                    to[1] = k.keep < 0.0f ? x.y : iv_attention_merged(to[1], x.y, k);
                }
            }
        __syncthreads();
    }

    __device__ __forceinline__ void clear(outputs &x) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < L::TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) x[m][n][i] = 0.0f;
    }

    /* The split's maximum is in t.max; returns its sum. The first block is on its way. */
    __device__ __forceinline__ float run_split(int first, int last, int next) {
        clear(out);
#pragma unroll
        for (int m = 0; m < MT; m++) sums[m][0] = sums[m][1] = sums[m][2] = sums[m][3] = 0.0f;
        t.max = -INFINITY;
        for (int b = first; b <= last; b++) {
            iv_copies_wait<0>();
            __syncthreads(); /* the block is here, and the one before is used up */
            if (b < last || next >= 0) stage(b < last ? b + 1 : next);
            iv_copies_commit();
            scores(b);
            __syncthreads();
            softmax(b * BLOCK);
            __syncthreads();
            values(b);
        }
        float *sum = floats(L::AT_SUM);
        if (warp() == 0 && lane() % 4 == 0)
#pragma unroll
            for (int m = 0; m < MT; m++)
                sum[m * 16 + lane() / 4] = sums[m][0], sum[m * 16 + 8 + lane() / 4] = sums[m][2];
        __syncthreads();
        return sum[t.row];
    }

    /* Stores a state in the scratch, from packed row `at` on. */
    __device__ __forceinline__ void store_state(const outputs &x, size_t at, int rows, float max, float sum) const {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = m * 16 + half * 8 + lane() / 4;
                if (row >= rows) continue;
                float *to = p.partial + (at + row) * p.stride;
#pragma unroll
                for (int n = 0; n < L::TILES; n++)
                    *(float2 *)(to + column(n)) = make_float2(x[m][n][2 * half], x[m][n][2 * half + 1]);
            }
        if (t.part == 0 && t.row < rows) {
            float *end = p.partial + (at + t.row) * p.stride + p.stride - 2;
            end[0] = max, end[1] = sum;
        }
    }

    __device__ __forceinline__ void merge_parts(const iv_attention_kv_split &kv_split, int rows) {
        t.started = false;
        for (int i = 0; i <= r.splits - kv_split.split; i++) {
            const float *from = p.partial + (size_t)(kv_split.partial + i * rows) * p.stride;
            int split = r.first_split + (i ? kv_split.split + i - 1 : 0), count = i ? 1 : kv_split.split;
            bool seen = t.here && iv_attention_sees(t.position, p.window, split * IV_KV_SPLIT, count * IV_KV_SPLIT);
            const float *end = from + t.row * p.stride + p.stride - 2;
            float max = seen ? __ldcg(end) : 0.0f, sum = seen ? __ldcg(end + 1) : 0.0f;
            merge(seen, max, sum, [&](int m, int n, int half) {
                return __ldcg((const float2 *)(from + (m * 16 + half * 8 + lane() / 4) * p.stride + column(n)));
            });
        }
    }

    __device__ __forceinline__ void write_out() {
        float keep = 1.0f, *sum = floats(L::AT_ALPHA), *kept = floats(L::AT_SUM);
        bool own = owns(t.row);
        if (own) keep = iv_attention_sink<true>(p, head_of(t.row), &t.total_max, &t.total_sum);
        if (t.part == 0) sum[t.row] = t.total_sum, kept[t.row] = keep;
        if (t.part == 0 && own && p.lse2) p.lse2[place_of(t.row)] = iv_attention_lse2(t.total_max, t.total_sum);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = m * 16 + half * 8 + lane() / 4;
                if (!owns(row)) continue;
                uint32_t *to = (uint32_t *)(p.out + place_of(row) * VD * 2);
#pragma unroll
                for (int n = 0; n < L::TILES; n++)
                    to[column(n) / 2] = iv_pack16(T, __fdiv_rn(__fmul_rn(total[m][n][2 * half], kept[row]), sum[row]),
                                                  __fdiv_rn(__fmul_rn(total[m][n][2 * half + 1], kept[row]), sum[row]));
            }
        __syncthreads();
    }

    __device__ __forceinline__ int first_block(int split) const {
        return max(split * IV_ATTENTION_BLOCKS_PER_SPLIT, r.tile.first_block);
    }

    __device__ __forceinline__ void run() {
        t = {};
        t.row = threadIdx.x / L::PARTS, t.part = threadIdx.x % L::PARTS;
        int token = t.row / r.width, rows = r.tile.tokens * r.width;
        t.here = token < r.tile.tokens;
        t.position = r.tile.position + (t.here ? token : 0);
        bool whole = r.begin == 0 && r.end == r.splits;
        iv_attention_kv_split kv_split = {};
        if (!whole) {
            const iv_attention_plan *head = (const iv_attention_plan *)p.plan;
            kv_split = ((const iv_attention_kv_split *)(p.plan + head->kv_splits_at))[r.kv_split];
        }
        load_queries();
        stage(first_block(r.first_split + r.begin));
        iv_copies_commit();
        clear(total);
        for (int i = r.begin; i < r.end; i++) {
            int split = r.first_split + i, each = IV_ATTENTION_BLOCKS_PER_SPLIT;
            int last = min(split * each + each - 1, r.tile.last_block);
            float sum = run_split(first_block(split), last, i + 1 < r.end ? last + 1 : -1);
            bool seen = t.here && iv_attention_sees(t.position, p.window, split * IV_KV_SPLIT, IV_KV_SPLIT);
            if (r.begin == 0)
                merge(seen, t.max, sum, [&](int m, int n, int half) {
                    return make_float2(out[m][n][2 * half], out[m][n][2 * half + 1]);
                });
            else
                store_state(out, kv_split.partial + (size_t)(i - kv_split.split + 1) * rows, rows, t.max, sum);
        }
        if (!whole) {
            if (r.begin == 0) store_state(total, kv_split.partial, rows, t.total_max, t.total_sum);
            if (!iv_attention_arrive(p, r.kv_split, kv_split.parts, (int *)(memory + L::AT_FLAG), THREADS,
                                     threadIdx.x == 0))
                return;
            merge_parts(kv_split, rows);
        }
        write_out();
    }
};

template <iv_dtype T, int MT, int KD, int VD>
static __global__ void __launch_bounds__(THREADS, 1) short_tiles(const __grid_constant__ latent_params l) {
    extern __shared__ __align__(16) char memory[];
    const iv_attention_params &p = l.p;
    for (int worker = blockIdx.x, n = iv_walk_workers(p); worker < n; worker += gridDim.x) {
        iv_attention_walk w = iv_walk_start(p, worker);
        iv_attention_run r;
        while (iv_walk_next(p, w, r)) {
            tile<T, MT, KD, VD> one = {p, r, memory, iv_shared(memory)};
            one.run();
            __syncthreads();
        }
    }
}

/* CTAs take slices of tiles to and fro, so that each has long and short ones. */
template <iv_dtype T, int MT, int KD, int VD>
static __global__ void __launch_bounds__(THREADS, 1) tall_tiles(const __grid_constant__ latent_params l) {
    extern __shared__ __align__(16) char memory[];
    const iv_attention_params &p = l.p;
    const iv_attention_plan *plan = (const iv_attention_plan *)p.plan;
    const iv_attention_tile *tiles = (const iv_attention_tile *)(p.plan + plan->tall_at);
    int count = plan->tall_tiles * l.tall_slices;
    for (int turn = 0; turn * (int)gridDim.x < count; turn++) {
        int item = turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (item >= count) continue;
        int head = item % l.tall_slices * l.tall_width;
        iv_attention_run r = {};
        r.tile = tiles[item / l.tall_slices];
        r.head = head, r.width = l.tall_width, r.present = min(l.tall_width, p.group - head);
        r.first_split = r.tile.first_block / IV_ATTENTION_BLOCKS_PER_SPLIT;
        r.splits = r.end = r.tile.last_block / IV_ATTENTION_BLOCKS_PER_SPLIT - r.first_split + 1;
        tile<T, MT, KD, VD> one = {p, r, memory, iv_shared(memory)};
        one.run();
        __syncthreads();
    }
}

/* ---- launches ------------------------------------------------------------------------------------------------------
 */

static latent_params params_of(const iv_gpu_attention_args *a) {
    iv_latent_packing few = iv_latent_short_tiles(a->shape.group), tall = iv_latent_tall_tiles(a->shape.group);
    latent_params l = {};
    iv_attention_params &p = l.p;
    p.plan = (const char *)a->plan, p.tables = a->tables;
    p.q = (const char *)a->q, p.pages = (const char *)a->kv.pages, p.out = (char *)a->out, p.lse2 = a->lse2;
    p.counters = (int32_t *)a->scratch;
    p.partial = (float *)((char *)a->scratch + IV_ATTENTION_WORKERS_MAX * sizeof(int32_t));
    p.stride = (int32_t)iv_attention_partial_stride(a->shape.head_dim);
    p.heads = (int32_t)a->shape.heads, p.kv_heads = 1, p.head_dim = (int32_t)a->shape.head_dim;
    p.group = (int32_t)a->shape.group, p.slices = few.slices, p.width = few.width;
    p.window = a->shape.window, p.scale = a->scale_log2e;
    p.score_inner = a->shape.capped ? a->score_inner : 0.0f, p.sinks = a->sinks;
    l.tall_width = tall.width, l.tall_slices = tall.slices;
    return l;
}

static int launch(void (*kernel)(latent_params), int ctas, int bytes, const latent_params &l, cudaStream_t stream) {
    cudaError_t failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return failed ? failed : iv_launch_as(false, kernel, dim3((unsigned)ctas), THREADS, (size_t)bytes, stream, l);
}

template <iv_dtype T, int KD, int VD>
static int launch_of(const iv_gpu_attention_args *a, int workers, cudaStream_t stream) {
    latent_params l = params_of(a);
    constexpr int ONE = layout<1, KD, VD>::BYTES, TWO = layout<2, KD, VD>::BYTES;
    bool few = iv_latent_short_tiles(a->shape.group).rows == 16;
    int failed = few ? launch(short_tiles<T, 1, KD, VD>, workers, ONE, l, stream)
                     : launch(short_tiles<T, 2, KD, VD>, workers, TWO, l, stream);
    return failed || a->decode ? failed : launch(tall_tiles<T, 2, KD, VD>, a->sms < 1 ? 1 : a->sms, TWO, l, stream);
}

template <iv_dtype T>
static int launch_typed(const iv_gpu_attention_args *a, size_t turns, int workers, cudaStream_t stream) {
    if (a->shape.head_dim == 512 && turns == 64) return launch_of<T, 576, 512>(a, workers, stream);
    if (a->shape.head_dim == 256 && turns == 64) return launch_of<T, 320, 256>(a, workers, stream);
    return cudaErrorInvalidValue;
}

int iv_latent_tiles(const iv_gpu_attention_args *a, size_t turns, int workers, iv_gpu_stream stream) {
    switch (a->shape.type) {
    case IV_BF16: return launch_typed<IV_BF16>(a, turns, workers, stream);
    case IV_F16: return launch_typed<IV_F16>(a, turns, workers, stream);
    default: return cudaErrorInvalidValue;
    }
}
