/* linear_generic.cu: linear layers of any shape: fma32 on the CUDA cores of any GPU; tc16 on compute capability 9.0
 * for problems that linear_wgmma does not take. A tile's sums pass through shared memory as y[row][output], where a
 * gate finds its up. */
#include "kernels/cuda/linear_tile.cuh"

enum { VARIANT_TILE, VARIANT_ROWS, VARIANT_MMA }; /* of a configuration */
enum { STEP = 16 };                               /* k per step; divides every leaf */

/* A grid has at most 65,535 blocks in y and in z, so row tiles use both. */
enum { GRID_SIDE_MAX = 65535 };
IV_DEVICE int row_tile(void) { return (int)(blockIdx.y + blockIdx.z * gridDim.y); }

/* ---- epilogue --------------------------------------------------------------------------------------------------- */

static __device__ void put_tile(const iv_linear_problem &p, const iv_linear_rows &r, const float *y, int stride, int n0,
                                int tile_n) {
    if (p.epilogue == IV_GPU_SWIGLU) {
        for (int i = threadIdx.x; i < r.count * (tile_n / 2); i += blockDim.x) {
            int j = i / (tile_n / 2), pair = i % (tile_n / 2), c = pair / 8 * 16 + pair % 8;
            if (n0 + c >= p.n) continue;
            float weight;
            size_t row = iv_linear_out_row(p, r, j, &weight);
            iv_linear_finish_pair(p, y[j * stride + c], y[j * stride + c + 8], row, n0 + c);
        }
        return;
    }
    for (int i = threadIdx.x; i < r.count * tile_n; i += blockDim.x) {
        int j = i / tile_n, c = i % tile_n;
        if (n0 + c >= p.n) continue;
        float weight;
        size_t row = iv_linear_out_row(p, r, j, &weight);
        iv_linear_finish(p, y[j * stride + c], row, n0 + c, weight);
    }
}

/* ---- fma32 ------------------------------------------------------------------------------------------------------ */

template <typename T> IV_DEVICE float widen(iv_dtype type, T v) { return iv_widen16(type, (uint16_t)v); }
template <> __device__ __forceinline__ float widen<float>(iv_dtype, float v) { return v; }

/* Four elements, widened. */
template <typename T> IV_DEVICE void load4(iv_dtype type, const T *from, float *to) {
    for (int i = 0; i < 4; i++) to[i] = widen<T>(type, from[i]);
}

/* 64 outputs of 64 rows; a thread has 4 x 4. */
template <typename TW, typename TX> static __global__ void __launch_bounds__(256) fma32_tile(iv_linear_problem p) {
    constexpr int N = 64, PAD = N + 4;
    __shared__ float s[N * PAD]; /* [2][STEP][PAD] in the loop, then y */
    float *ws = s, *xs = s + STEP * PAD;
    iv_linear_rows r = iv_linear_find_rows(p, row_tile(), N);
    if (r.count == 0) return;
    int n0 = blockIdx.x * N, lane_n = threadIdx.x % 16, lane_m = threadIdx.x / 16;
    int load = threadIdx.x / 4, load_k = threadIdx.x % 4 * 4; /* loads row `load`, four k of a step */
    bool has_w = n0 + load < p.n, has_x = load < r.count;
    const TW *w = (const TW *)((const char *)p.w + r.expert * p.expert_bytes);
    w += has_w ? (size_t)(n0 + load) * p.k_padded + load_k : 0;
    const TX *x = (const TX *)p.x + (has_x ? iv_linear_x_row(p, r, load) * p.x_stride + load_k : 0);
    float acc[16], node[3][16], next_w[4] = {}, next_x[4] = {};
    if (has_w) load4(p.w_type, w, next_w);
    if (has_x) load4(p.type, x, next_x);
    int leaf_k = p.k_padded / p.leaves, k = 0;
    for (int leaf = 0; leaf < p.leaves; leaf++) {
        for (int i = 0; i < 16; i++) acc[i] = 0;
        for (int end = k + leaf_k; k < end; k += STEP) {
            __syncthreads();
            for (int i = 0; i < 4; i++) {
                ws[(load_k + i) * PAD + load] = next_w[i];
                xs[(load_k + i) * PAD + load] = next_x[i];
            }
            __syncthreads();
            if (has_w && k + STEP < p.k_padded) load4(p.w_type, w + k + STEP, next_w);
            if (has_x && k + STEP < p.k_padded) load4(p.type, x + k + STEP, next_x);
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                float4 a = *(const float4 *)&ws[(i ^ 1) * PAD + lane_n * 4]; /* the odd k first */
                float4 b = *(const float4 *)&xs[(i ^ 1) * PAD + lane_m * 4];
                const float *af = (const float *)&a, *bf = (const float *)&b;
#pragma unroll
                for (int j = 0; j < 16; j++) acc[j] = iv_fma_flush(af[j % 4], bf[j / 4], acc[j]);
            }
        }
        iv_linear_leaf_ends<true, 16>(leaf, p.leaves, acc, node);
    }
    __syncthreads();
    for (int j = 0; j < 16; j++) s[(lane_m * 4 + j / 4) * PAD + lane_n * 4 + j % 4] = acc[j];
    __syncthreads();
    put_tile(p, r, s, PAD, n0, N);
}

/* 32 outputs of up to 8 rows: a warp has a leaf, a lane has an output. */
template <typename TW, typename TX> static __global__ void __launch_bounds__(256) fma32_rows(iv_linear_problem p) {
    constexpr int N = 32, M = 8, PAD = STEP + 1;
    __shared__ float ws[IV_LEAVES_MAX][N * PAD], xs[IV_LEAVES_MAX][M * STEP], sums[IV_LEAVES_MAX][M * N], y[M * N];
    iv_linear_rows r = iv_linear_find_rows(p, row_tile(), M);
    if (r.count == 0) return;
    int n0 = blockIdx.x * N, warp = threadIdx.x / 32, lane = threadIdx.x % 32, leaf_k = p.k_padded / p.leaves;
    const TW *w = (const TW *)((const char *)p.w + r.expert * p.expert_bytes) + (size_t)warp * leaf_k;
    const TX *x = (const TX *)p.x + (size_t)warp * leaf_k;
    int at = lane / 4, at_k = lane % 4 * 4; /* loads row `at` of eight, four k of a step */
    size_t x_at = (at < r.count ? iv_linear_x_row(p, r, at) : 0) * p.x_stride + at_k;
    float acc[M] = {}, next_w[4][4] = {}, next_x[4] = {};
    for (int k = -STEP; k < leaf_k; k += STEP) {
        if (k >= 0) {
            __syncwarp();
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++) ws[warp][(at + 8 * j) * PAD + at_k + i] = next_w[j][i];
                xs[warp][at * STEP + at_k + i] = next_x[i];
            }
            __syncwarp();
        }
        if (k + STEP < leaf_k) {
            for (int j = 0; j < 4; j++)
                if (n0 + at + 8 * j < p.n)
                    load4(p.w_type, w + (size_t)(n0 + at + 8 * j) * p.k_padded + at_k + k + STEP, next_w[j]);
            if (at < r.count) load4(p.type, x + x_at + k + STEP, next_x);
        }
        if (k < 0) continue;
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            float a = ws[warp][lane * PAD + (i ^ 1)];
#pragma unroll
            for (int j = 0; j < M; j++) acc[j] = iv_fma_flush(a, xs[warp][j * STEP + (i ^ 1)], acc[j]);
        }
    }
    for (int j = 0; j < M; j++) sums[warp][j * N + lane] = acc[j];
    __syncthreads();
    for (int i = threadIdx.x; i < M * N; i += blockDim.x) {
        float leaf[1], node[3][1];
        for (int l = 0; l < p.leaves; l++) {
            leaf[0] = sums[l][i];
            iv_linear_leaf_ends<true, 1>(l, p.leaves, leaf, node);
        }
        y[i] = leaf[0];
    }
    __syncthreads();
    put_tile(p, r, y, N, n0, N);
}

/* ---- tc16 ------------------------------------------------------------------------------------------------------- */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
template <iv_dtype TYPE> IV_DEVICE void mma(float *c, uint2 top, uint2 bottom, uint2 b) {
    if (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(top.x), "r"(bottom.x), "r"(top.y), "r"(bottom.y), "r"(b.x), "r"(b.y));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(top.x), "r"(bottom.x), "r"(top.y), "r"(bottom.y), "r"(b.x), "r"(b.y));
}
#endif

/* 64 outputs of 32 rows; a warp has 16 outputs. The order of k within a step is free: lane t of four takes k 4 t to
 * 4 t + 3 on both sides, eight bytes of a row. */
template <iv_dtype TYPE> static __global__ void __launch_bounds__(128) tc16_mma(iv_linear_problem p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    constexpr int N = 64, M = 32, PAD = N + 1;
    __shared__ float y[M * PAD];
    iv_linear_rows r = iv_linear_find_rows(p, row_tile(), M);
    if (r.count == 0) return;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, n0 = blockIdx.x * N;
    const char *w = (const char *)p.w + r.expert * p.expert_bytes;
    const char *row[2], *x[4];
    for (int i = 0; i < 2; i++) /* rows and columns outside are computed from valid ones and dropped */
        row[i] = w + ((size_t)min(n0 + warp * 16 + g + 8 * i, p.n - 1) * p.k_padded + 4 * t) * 2;
    for (int i = 0; i < 4; i++)
        x[i] = (const char *)p.x + (iv_linear_x_row(p, r, min(g + 8 * i, r.count - 1)) * p.x_stride + 4 * t) * 2;
    float acc[16], node[3][16];
    int leaf_k = p.k_padded / p.leaves, k = 0;
    for (int leaf = 0; leaf < p.leaves; leaf++) {
        for (int i = 0; i < 16; i++) acc[i] = 0;
#pragma unroll 4
        for (int end = k + leaf_k; k < end; k += STEP) {
            uint2 top = *(const uint2 *)(row[0] + k * 2), bottom = *(const uint2 *)(row[1] + k * 2);
            for (int i = 0; i < 4; i++) mma<TYPE>(acc + 4 * i, top, bottom, *(const uint2 *)(x[i] + k * 2));
        }
        iv_linear_leaf_ends<false, 16>(leaf, p.leaves, acc, node);
    }
    for (int i = 0; i < 16; i++) y[(i / 4 * 8 + t * 2 + i % 2) * PAD + warp * 16 + g + i / 2 % 2 * 8] = acc[i];
    __syncthreads();
    put_tile(p, r, y, PAD, n0, N);
#else
    (void)p;
    __trap();
#endif
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

size_t iv_gpu_generic_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    static const iv_gpu_linear_config fma32[] = {
        {IV_GPU_GENERIC, 64, 64, 1, 1, VARIANT_TILE},
        {IV_GPU_GENERIC, 32, 8, 1, 1, VARIANT_ROWS},
    };
    static const iv_gpu_linear_config tc16[] = {{IV_GPU_GENERIC, 64, 32, 1, 1, VARIANT_MMA}};
    const iv_gpu_linear_config *all = a->arithmetic == IV_TC16 ? tc16 : fma32;
    size_t n = a->arithmetic == IV_TC16 ? 1 : 2;
    for (size_t i = 0; i < n && i < count; i++) out[i] = all[i];
    return n;
}

template <typename TW, typename TX>
static void launch_fma32(const iv_linear_problem &p, int variant, dim3 grid, cudaStream_t s) {
    if (variant == VARIANT_ROWS)
        fma32_rows<TW, TX><<<grid, 32 * p.leaves, 0, s>>>(p);
    else
        fma32_tile<TW, TX><<<grid, 256, 0, s>>>(p);
}

int iv_gpu_generic_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s) {
    iv_linear_problem p = iv_linear_problem_of(a);
    size_t tiles = iv_linear_row_tiles(a, (size_t)c->tile_m);
    if (tiles == 0 || a->w.n == 0) return 0;
    size_t deep = (tiles + GRID_SIDE_MAX - 1) / GRID_SIDE_MAX, high = (tiles + deep - 1) / deep;
    if (deep > GRID_SIDE_MAX) return cudaErrorInvalidValue;
    dim3 grid((unsigned)((a->w.n + (size_t)c->tile_n - 1) / (size_t)c->tile_n), (unsigned)high, (unsigned)deep);
    if (c->variant == VARIANT_MMA)
        a->type == IV_BF16 ? tc16_mma<IV_BF16><<<grid, 128, 0, s>>>(p) : tc16_mma<IV_F16><<<grid, 128, 0, s>>>(p);
    else if (a->w.type == IV_F32)
        launch_fma32<float, float>(p, c->variant, grid, s);
    else if (a->type == IV_F32)
        launch_fma32<uint16_t, float>(p, c->variant, grid, s);
    else
        launch_fma32<uint16_t, uint16_t>(p, c->variant, grid, s);
    return cudaGetLastError();
}
