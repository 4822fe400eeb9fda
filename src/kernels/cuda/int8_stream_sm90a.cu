/* int8_stream_sm90a.cu: int8 layers of few rows on Hopper: weights stream once through a ring of shared-memory stages,
 * filled by TMA, to mma.sync. K is divided among eight warps, whose sums are added through shared memory: they are
 * exact, so no order is kept.
 *
 * A CTA iterates over tiles of 16 OUT outputs and all rows. A stage has 128 k of every warp's part of K: weights
 * [part][output][128], then codes of rows [part][row][128], both with TMA's 128-byte swizzle; beyond the end of a part
 * TMA writes zeros. Codes h and l of a row are neighboring columns of mma.sync's 8-column side. */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    INT8_PARTS = 8,
    INT8_BLOCK = 128, /* k of a part in a stage, as bytes */
    INT8_RING_MAX = 24,
    INT8_SHARED_MAX = 227 * 1024,
    INT8_STREAM_THREADS = (INT8_PARTS + 1) * 32
};

typedef struct int8_stream_plan {
    iv_int8_problem p;
    int x_rows; /* of codes in a stage: a power of two */
    int rounds; /* stages of a tile */
    int tiles, stages;
} int8_stream_plan;

template <int TERMS_, int OUT_, int GROUPS_> struct int8_stream_shape {
    static constexpr int TERMS = TERMS_, OUT = OUT_, GROUPS = GROUPS_;
    static constexpr int N = 16 * OUT, COLUMNS = 8 * GROUPS, UNITS = OUT * GROUPS; /* units: fragments of a warp */
    static constexpr int WEIGHT_BYTES = INT8_PARTS * N * INT8_BLOCK;
    static constexpr int SUM_BYTES = 2 * INT8_PARTS * UNITS * 32 * 16; /* of two tiles */
};

typedef void (*int8_stream_function)(CUtensorMap, CUtensorMap, int8_stream_plan);
struct int8_stream_instance {
    int terms, n, columns, weight_bytes, sum_bytes;
    int8_stream_function kernel;
};

static __host__ __device__ inline int int8_stage_bytes(int weight_bytes, int x_rows) {
    return weight_bytes + (INT8_PARTS * x_rows * INT8_BLOCK + 1023) / 1024 * 1024;
}

IV_DEVICE void int8_matrices(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(address)
                 : "memory");
}
/* Of an offset from 1024-byte alignment. */
IV_DEVICE uint32_t int8_swizzled(uint32_t offset) { return offset ^ ((offset >> 3) & 0x70); }

IV_DEVICE int int8_stream_stages(const int8_stream_plan &p) {
    return (p.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * p.rounds;
}

/* One thread. The first copies of weights do not wait for the preceding kernel. */
template <class S>
IV_DEVICE void int8_stream_produce(const CUtensorMap *w, const CUtensorMap *x, const int8_stream_plan &p, uint32_t ring,
                                   uint32_t full, uint32_t empty, int bytes) {
    int total = int8_stream_stages(p), first = min(p.stages, total), tile = blockIdx.x, round = 0, stage = 0, phase = 0;
    uint32_t expected = S::WEIGHT_BYTES + INT8_PARTS * p.x_rows * INT8_BLOCK;
    for (int i = 0; i < total; i++) {
        uint32_t to = ring + stage * bytes, bar = full + 8 * stage;
        if (i >= first) iv_mbar_wait(empty + 8 * stage, phase ^ 1);
        iv_mbar_expect(bar, expected);
        iv_tma_load_3d(to, w, bar, round * INT8_BLOCK, tile * S::N, 0, IV_L2_FIRST);
        if (i >= first) iv_tma_load_3d(to + S::WEIGHT_BYTES, x, bar, round * INT8_BLOCK, 0, 0, IV_L2_NORMAL);
        if (++round == p.rounds) round = 0, tile += gridDim.x;
        if (++stage == p.stages) stage = 0, phase ^= 1;
        if (i != first - 1) continue;
        iv_wait();
        for (int j = 0; j < first; j++)
            iv_tma_load_3d(ring + j * bytes + S::WEIGHT_BYTES, x, full + 8 * j, j % p.rounds * INT8_BLOCK, 0, 0,
                           IV_L2_NORMAL);
    }
}

/* A warp's 128 k of a stage. */
template <class S>
IV_DEVICE void int8_stream_multiply(const int8_stream_plan &p, uint32_t stage, int part, int (&acc)[S::UNITS][4]) {
    int lane = threadIdx.x % 32;
    uint32_t w_at = (part * S::N + lane % 16) * INT8_BLOCK + lane / 16 * 16;
    int column = lane % 8 + (S::GROUPS > 1 ? lane / 16 * 8 : 0);
    uint32_t quarter = S::GROUPS == 1 ? lane / 8 : lane / 8 % 2; /* 16 bytes of codes within two steps or one */
#pragma unroll
    for (int s = 0; s < 4; s += 2) {
        uint32_t a[S::OUT][2][4], b[2][S::GROUPS][2];
#pragma unroll
        for (int o = 0; o < S::OUT; o++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                int8_matrices(a[o][i][0], a[o][i][1], a[o][i][2], a[o][i][3],
                              stage + int8_swizzled(w_at + o * 16 * INT8_BLOCK + (s + i) * 32));
#pragma unroll
        for (int g = 0; g < S::GROUPS; g += 2) {
            int row = (column + 8 * g) & (p.x_rows - 1); /* columns beyond the last repeat others */
            uint32_t at = S::WEIGHT_BYTES + (part * p.x_rows + row) * INT8_BLOCK + quarter * 16;
            if constexpr (S::GROUPS == 1) { /* two steps at once */
                int8_matrices(b[0][0][0], b[0][0][1], b[1][0][0], b[1][0][1], stage + int8_swizzled(at + s * 32));
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    int8_matrices(b[i][g][0], b[i][g][1], b[i][g + 1][0], b[i][g + 1][1],
                                  stage + int8_swizzled(at + (s + i) * 32));
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int o = 0; o < S::OUT; o++)
#pragma unroll
                for (int g = 0; g < S::GROUPS; g++)
                    iv_int8_step<false>(acc[o * S::GROUPS + g], a[o][i], b[i][g][0], b[i][g][1]);
    }
}

/* What the end of a unit reads besides its sums, loaded before the tile's products. */
struct int8_stream_end {
    float scale[2], bias[2], row_scale[2], old[4];
};

/* Of a lane: outputs n and n + 8; rows of the two columns. */
template <class S> IV_DEVICE int int8_unit_n(int unit, int tile) {
    return tile * S::N + unit / S::GROUPS * 16 + threadIdx.x % 32 / 4;
}
template <class S> IV_DEVICE int int8_unit_row(int unit, int v) {
    return (unit % S::GROUPS * 8 + threadIdx.x % 4 * 2 + v) / S::TERMS;
}

template <class S>
IV_DEVICE void int8_stream_load_end(const int8_stream_plan &plan, int unit, int tile, int8_stream_end &e) {
    const iv_linear_problem &l = plan.p.l;
    int n = int8_unit_n<S>(unit, tile);
    const float *scales = iv_int8_scales_of(l, 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool there = n + 8 * i < l.n && !plan.p.sums;
        int row = int8_unit_row<S>(unit, i);
        e.scale[i] = iv_load_if(scales + n + 8 * i, there);
        e.bias[i] = iv_load_if(l.bias + n + 8 * i, there && l.bias);
        e.row_scale[i] = iv_load_if(plan.p.scales + row, row < l.rows && !plan.p.sums);
#pragma unroll
        for (int v = 0; v < 2; v++) { /* [output][column] */
            int of = int8_unit_row<S>(unit, v);
            e.old[2 * i + v] = iv_load_if((const float *)l.out + (size_t)of * l.out_stride + n + 8 * i,
                                          there && l.epilogue == IV_GPU_RESIDUAL && of < l.rows);
        }
    }
}

/* sum: of the unit's four values, of all parts. Missing addends are -0, which changes no sum; NaN sums are canonical on
 * this hardware. */
template <class S>
IV_DEVICE void int8_stream_finish(const int8_stream_plan &plan, int unit, int tile, const int (&sum)[4],
                                  const int8_stream_end &e) {
    const iv_linear_problem &l = plan.p.l;
    int n = int8_unit_n<S>(unit, tile);
    if (plan.p.sums) {
#pragma unroll
        for (int v = 0; v < 4; v++) {
            int row = int8_unit_row<S>(unit, v % 2), term = S::TERMS == 2 ? v % 2 : 0, at = n + v / 2 * 8;
            if (row < l.rows && at < l.n) plan.p.sums[((size_t)row * S::TERMS + term) * l.n + at] = sum[v];
        }
        return;
    }
#pragma unroll
    for (int v = 0; v < 2 / S::TERMS; v++) {
        constexpr int L = S::TERMS - 1;
        int row = int8_unit_row<S>(unit, v);
        float y0 = iv_int8_result<S::TERMS>(sum[v], sum[v + L], e.row_scale[v], e.scale[0]),
              y1 = iv_int8_result<S::TERMS>(sum[2 + v], sum[2 + v + L], e.row_scale[v], e.scale[1]);
        if (l.epilogue == IV_GPU_SWIGLU) {
            if (row < l.rows && n < l.n) iv_linear_finish_pair(l, y0, y1, (size_t)row, n);
            continue;
        }
        float *out = (float *)l.out + (size_t)row * l.out_stride + n;
        y0 = __fadd_rn(e.old[v], __fadd_rn(y0, e.bias[0])), y1 = __fadd_rn(e.old[2 + v], __fadd_rn(y1, e.bias[1]));
        iv_store_if(out, y0, row < l.rows && n < l.n);
        iv_store_if(out + 8, y1, row < l.rows && n + 8 < l.n);
    }
}

/* sums: [tile modulo 2][part][unit][lane] of four. */
template <class S>
IV_DEVICE void int8_stream_consume(const int8_stream_plan &p, uint32_t ring, uint32_t full, uint32_t empty, int4 *sums,
                                   int bytes) {
    int part = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, stage = 0, phase = 0, turn = 0;
    int8_stream_end e = {};
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn ^= 1) {
        int acc[S::UNITS][4] = {};
        if (part < S::UNITS) int8_stream_load_end<S>(p, part, tile, e);
        for (int round = 0; round < p.rounds; round++) {
            iv_mbar_wait(full + 8 * stage, phase);
            int8_stream_multiply<S>(p, ring + stage * bytes, part, acc);
            iv_fence_async(); /* of every lane, then one arrives for all: reads end before the next copy */
            __syncwarp();
            if (lane == 0) iv_mbar_arrive(empty + 8 * stage);
            if (++stage == p.stages) stage = 0, phase ^= 1;
        }
        int4 *of_tile = sums + turn * INT8_PARTS * S::UNITS * 32;
#pragma unroll
        for (int u = 0; u < S::UNITS; u++)
            of_tile[(part * S::UNITS + u) * 32 + lane] = make_int4(acc[u][0], acc[u][1], acc[u][2], acc[u][3]);
        iv_named_sync(1, INT8_PARTS * 32); /* a tile later those of this one are read */
        if (part >= S::UNITS) continue;
        int sum[4] = {};
#pragma unroll
        for (int i = 0; i < INT8_PARTS; i++) {
            int4 v = of_tile[(i * S::UNITS + part) * 32 + lane];
            sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
        int8_stream_finish<S>(p, part, tile, sum, e);
    }
}

/* Shared memory: ring, sums, mbarriers. */
template <class S>
static __global__ void __launch_bounds__(INT8_STREAM_THREADS, 2)
    int8_stream(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ int8_stream_plan p) {
    extern __shared__ __align__(1024) char shared[];
    static_assert(S::UNITS <= INT8_PARTS, "a warp finishes at most one unit");
    int bytes = int8_stage_bytes(S::WEIGHT_BYTES, p.x_rows);
    int4 *sums = (int4 *)(shared + p.stages * bytes);
    uint32_t ring = iv_shared(shared), full = ring + p.stages * bytes + S::SUM_BYTES, empty = full + 8 * p.stages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; s++) iv_mbar_init(full + 8 * s, 1), iv_mbar_init(empty + 8 * s, INT8_PARTS);
        iv_mbar_init_fence();
    }
    iv_let_next();
    __syncthreads();
    if (threadIdx.x / 32 < INT8_PARTS) {
        iv_wait();
        int8_stream_consume<S>(p, ring, full, empty, sums, bytes);
    } else if (threadIdx.x % 32 == 0) {
        int8_stream_produce<S>(&w, &x, p, ring, full, empty, bytes);
    }
}

template <class S> static int8_stream_instance int8_stream_make(void) {
    return {S::TERMS, S::N, S::COLUMNS, S::WEIGHT_BYTES, S::SUM_BYTES, int8_stream<S>};
}

/* In ascending order of columns. */
static const int8_stream_instance *int8_stream_instances(size_t *count) {
    static const int8_stream_instance all[] = {
        int8_stream_make<int8_stream_shape<1, 1, 1>>(), int8_stream_make<int8_stream_shape<1, 1, 2>>(),
        int8_stream_make<int8_stream_shape<1, 2, 2>>(), int8_stream_make<int8_stream_shape<1, 2, 4>>(),
        int8_stream_make<int8_stream_shape<2, 1, 1>>(), int8_stream_make<int8_stream_shape<2, 1, 2>>(),
        int8_stream_make<int8_stream_shape<2, 2, 2>>(), int8_stream_make<int8_stream_shape<2, 2, 4>>()};
    *count = sizeof all / sizeof *all;
    return all;
}

/* ---- configurations --------------------------------------------------------------------------------------------- */

static int int8_columns(const iv_gpu_int8_args *a) { return (int)a->l.rows * a->l.w.terms; }

static int int8_x_rows(const iv_gpu_int8_args *a) {
    int rows = 1;
    while (rows < int8_columns(a)) rows *= 2;
    return rows;
}

static int int8_stream_shared(const iv_gpu_int8_args *a, const int8_stream_instance *i, int stages) {
    return stages * (int8_stage_bytes(i->weight_bytes, int8_x_rows(a)) + 16) + i->sum_bytes;
}

static int int8_stream_stages_of(const iv_gpu_int8_args *a, const int8_stream_instance *i, int ctas) {
    int stages = 0;
    while (stages < INT8_RING_MAX && int8_stream_shared(a, i, stages + 1) <= (INT8_SHARED_MAX + 1024) / ctas - 1024)
        stages++;
    return stages;
}

static bool int8_stream_possible(const iv_gpu_int8_args *a) {
    const iv_gpu_linear_args *l = &a->l;
    return !l->groups && l->rows > 0 && l->rows <= 32 && l->w.n > 0 && l->w.k_padded % (INT8_PARTS * 16) == 0;
}

static bool int8_stream_fits(const iv_gpu_int8_args *a, const int8_stream_instance *i) {
    return i->terms == a->l.w.terms && int8_columns(a) <= i->columns;
}

size_t iv_gpu_int8_stream_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count) {
    size_t all, found = 0;
    const int8_stream_instance *w = int8_stream_instances(&all);
    if (!int8_stream_possible(a)) return 0;
    for (size_t i = 0; i < all; i++)
        for (int ctas = 1; int8_stream_fits(a, &w[i]) && ctas <= 2; ctas++) {
            int stages = int8_stream_stages_of(a, &w[i], ctas);
            if (stages < 2) continue;
            if (found < count) out[found] = {IV_GPU_INT8_STREAM, w[i].n, w[i].columns, 1, stages, ctas};
            found++;
        }
    return found;
}

/* The smallest tile. Products of more columns take longer than their weights. */
bool iv_gpu_int8_stream_prefer(const iv_gpu_int8_args *a, iv_gpu_int8_config *c) {
    enum { COLUMNS = 16, CONFIGS = 16 };
    iv_gpu_int8_config all[CONFIGS];
    if (int8_columns(a) > COLUMNS) return false;
    size_t n = iv_gpu_int8_stream_configs(a, all, CONFIGS);
    for (size_t i = 0; i < n && i < CONFIGS; i++) {
        if (all[i].ctas != 2) continue;
        *c = all[i];
        return true;
    }
    return false;
}

/* ---- the launch ---------------------------------------------------------------------------------------------------
 */

/* k within a part, row, part. Boxes are 128 k of `box` rows of all parts. */
static int int8_encode(CUtensorMap *map, const iv_gpu_int8_args *a, const void *data, size_t rows, size_t row_bytes,
                       int box, bool weights) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    size_t part = a->l.w.k_padded / INT8_PARTS;
    cuuint64_t dims[3] = {part, rows, INT8_PARTS}, strides[2] = {row_bytes, part};
    cuuint32_t boxes[3] = {INT8_BLOCK, (cuuint32_t)box, INT8_PARTS}, ones[3] = {1, 1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)data, dims, strides, boxes, ones,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   weights ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static int int8_multiprocessors(void) {
    static int known;
    int device = 0;
    if (!known && cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&known, cudaDevAttrMultiProcessorCount, device);
    return known ? known : 132;
}

int iv_gpu_int8_stream_launch(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream s) {
    size_t all, i = 0;
    const int8_stream_instance *w = int8_stream_instances(&all);
    CUtensorMap weights, codes;
    if (!int8_stream_possible(a)) return cudaErrorInvalidValue;
    while (i < all && !(w[i].n == c->tile_n && w[i].columns == c->tile_m && int8_stream_fits(a, &w[i]))) i++;
    if (i == all || c->stages < 2 || c->ctas < 1 || int8_stream_shared(a, &w[i], c->stages) > INT8_SHARED_MAX)
        return cudaErrorInvalidValue;
    int8_stream_plan plan = {iv_int8_problem_of(a), int8_x_rows(a)};
    size_t part = a->l.w.k_padded / INT8_PARTS;
    plan.rounds = (int)((part + INT8_BLOCK - 1) / INT8_BLOCK), plan.stages = c->stages;
    plan.tiles = (int)((a->l.w.n + (size_t)w[i].n - 1) / (size_t)w[i].n);
    int e = int8_encode(&weights, a, a->l.w.data, a->l.w.n, a->l.w.k_padded, w[i].n, true);
    if (!e) e = int8_encode(&codes, a, a->codes, (size_t)int8_columns(a), a->code_stride, plan.x_rows, false);
    if (!e)
        e = cudaFuncSetAttribute((const void *)w[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 INT8_SHARED_MAX);
    if (e) return e;
    int shared = int8_stream_shared(a, &w[i], c->stages), resident = int8_multiprocessors() * c->ctas;
    return iv_launch_shared(w[i].kernel, dim3((unsigned)(plan.tiles < resident ? plan.tiles : resident)),
                            INT8_STREAM_THREADS, (size_t)shared, (cudaStream_t)s, weights, codes, plan);
}
