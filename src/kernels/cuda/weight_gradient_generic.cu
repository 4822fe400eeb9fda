/* weight_gradient_generic.cu: weight gradients of any shape: fma32 on the CUDA cores of any GPU, tc16 by mma.sync on
 * compute capability 9.0. A tile is 64 outputs by 64 inputs; a CTA runs the ranges of the pass for one tile after
 * another. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_gradient.cuh"

#include <cuda_runtime.h>

enum { TILE = 64, STEP = 16, CHUNK = 64, TILE_FLOATS = TILE * TILE };

struct tile_of {
    int output, input, group; /* the first ones */
    int64_t base;             /* of the group */
};
IV_DEVICE tile_of find_tile(const iv_gradient_problem &p, int tile) {
    int group = p.bounds ? tile / p.group_tiles : 0;
    tile -= group * p.group_tiles;
    return {tile / p.tiles_k * TILE, tile % p.tiles_k * TILE, group, p.bounds ? p.bases[group] : 0};
}

/* A range's tokens, for either kind of problem. */
IV_DEVICE iv_gradient_span tokens_of(const iv_gradient_problem &p, const tile_of &t, int index) {
    const iv_sum_range &range = p.plan.range[index];
    return p.bounds ? iv_gradient_span_of(p, t.group, index) : iv_gradient_span{(int)range.begin, (int)range.end};
}

/* ---- fma32 ------------------------------------------------------------------------------------------------------ */

template <typename T> IV_DEVICE float widen(iv_dtype type, T v) { return iv_widen16(type, (uint16_t)v); }
template <> __device__ __forceinline__ float widen<float>(iv_dtype, float v) { return v; }

/* Four neighbors of a row, widened; zeros from column `end` on. */
template <typename T> IV_DEVICE void load4(iv_dtype type, const T *row, int column, int end, bool vectors, float *to) {
    struct alignas(4 * sizeof(T)) four {
        T v[4];
    } f;
    if (vectors && column < end) {
        f = *(const four *)(row + column);
    } else {
        for (int i = 0; i < 4; i++) f.v[i] = column + i < end ? row[column + i] : T(0);
    }
    for (int i = 0; i < 4; i++) to[i] = widen<T>(type, f.v[i]);
}

/* A thread has 4 outputs by 4 inputs. */
template <typename T>
static __global__ void __launch_bounds__(256) fma32_gradient(const __grid_constant__ iv_gradient_problem p) {
    constexpr int PAD = TILE + 4;
    __shared__ __align__(16) float ys[STEP * PAD], xs[STEP * PAD];
    iv_let_next();
    iv_wait();
    int token = threadIdx.x / 16, column = threadIdx.x % 16 * 4; /* that this thread loads of a step */
    int mine_y = threadIdx.x / 16 * 4, mine_x = threadIdx.x % 16 * 4;
    const T *dy = (const T *)p.dy, *x = (const T *)p.x;
    float *waiting = p.scratch + blockIdx.x * p.scratch_floats + threadIdx.x;
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        tile_of t = find_tile(p, tile);
        auto at = [&](int i) {
            int output = t.output + mine_y + i / 4, input = t.input + mine_x + i % 4;
            int64_t offset = output < p.n ? p.offsets[output] : -1;
            return iv_gradient_place{offset >= 0 && input < p.k, (size_t)(t.base + offset + input)};
        };
        for (int index = 0; index < p.plan.ranges; index++) {
            const iv_sum_range &range = p.plan.range[index];
            iv_gradient_span tokens = tokens_of(p, t, index);
            float acc[16], next_y[4] = {}, next_x[4] = {};
            auto load = [&](int first) {
                load4(p.type, dy + (size_t)(first + token) * p.dy_stride, t.output + column, p.n, p.vectors, next_y);
                load4(p.type, x + (size_t)(first + token) * p.x_stride, t.input + column, p.k, p.vectors, next_x);
            };
            iv_gradient_begin(p, range, at, acc);
            if (tokens.begin < tokens.end) load(tokens.begin);
            for (int first = tokens.begin; first < tokens.end; first += STEP) {
                __syncthreads();
                for (int i = 0; i < 4; i++)
                    ys[token * PAD + column + i] = next_y[i], xs[token * PAD + column + i] = next_x[i];
                __syncthreads();
                if (first + STEP < tokens.end) load(first + STEP);
#pragma unroll
                for (int i = 0; i < STEP; i++) {
                    float4 a = *(const float4 *)&ys[(i ^ 1) * PAD + mine_y]; /* the odd token first */
                    float4 b = *(const float4 *)&xs[(i ^ 1) * PAD + mine_x];
                    const float *af = (const float *)&a, *bf = (const float *)&b;
#pragma unroll
                    for (int j = 0; j < 16; j++) acc[j] = iv_fma_flush(af[j / 4], bf[j % 4], acc[j]);
                }
            }
            iv_gradient_end<16, 256>(p, range, at, waiting, acc);
        }
    }
}

/* ---- tc16 ------------------------------------------------------------------------------------------------------- */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
template <iv_dtype TYPE> IV_DEVICE void mma(float *c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of shared rows, transposed: their columns become rows of a fragment. */
IV_DEVICE void matrices(uint32_t (&r)[4], const uint16_t *row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Eight neighbors of a row; zeros from column `end` on. */
IV_DEVICE uint4 load8(const uint16_t *row, int column, int end, bool vectors) {
    if (vectors) return column < end ? *(const uint4 *)(row + column) : uint4{0, 0, 0, 0};
    uint32_t w[4];
    for (int i = 0; i < 4; i++) {
        int c = column + 2 * i;
        w[i] = (c < end ? row[c] : 0u) | (c + 1 < end ? (uint32_t)row[c + 1] << 16 : 0u);
    }
    return {w[0], w[1], w[2], w[3]};
}
#endif

/* A warp has 16 outputs by 64 inputs. Steps of 16 tokens, up to CHUNK / STEP of them in shared memory. */
template <iv_dtype TYPE>
static __global__ void __launch_bounds__(128) tc16_gradient(const __grid_constant__ iv_gradient_problem p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    constexpr int PAD = TILE + 8, STEPS = CHUNK / STEP;
    __shared__ __align__(16) uint16_t ys[CHUNK * PAD], xs[CHUNK * PAD];
    iv_let_next();
    iv_wait();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
    const uint16_t *dy = (const uint16_t *)p.dy, *x = (const uint16_t *)p.x;
    const uint16_t *from_y = ys + (lane % 8 + lane / 16 * 8) * PAD + warp * 16 + lane / 8 % 2 * 8;
    const uint16_t *from_x = xs + (lane % 8 + lane / 8 % 2 * 8) * PAD + lane / 16 * 8;
    float *waiting = p.scratch + blockIdx.x * p.scratch_floats + threadIdx.x;
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        tile_of t = find_tile(p, tile);
        auto at = [&](int i) {
            int output = t.output + warp * 16 + lane / 4 + i / 2 % 2 * 8,
                input = t.input + i / 4 * 8 + lane % 4 * 2 + i % 2;
            int64_t offset = output < p.n ? p.offsets[output] : -1;
            return iv_gradient_place{offset >= 0 && input < p.k, (size_t)(t.base + offset + input)};
        };
        for (int index = 0; index < p.plan.ranges; index++) {
            const iv_sum_range &range = p.plan.range[index];
            iv_gradient_span tokens = tokens_of(p, t, index);
            float acc[32];
            uint4 next_y[STEPS], next_x[STEPS];
            auto load = [&](int first) {
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    size_t row = (size_t)(first + s * STEP + token);
                    if (first + s * STEP >= tokens.end) continue;
                    next_y[s] = load8(dy + row * p.dy_stride, t.output + column, p.n, p.vectors);
                    next_x[s] = load8(x + row * p.x_stride, t.input + column, p.k, p.vectors);
                }
            };
            iv_gradient_begin(p, range, at, acc);
            if (tokens.begin < tokens.end) load(tokens.begin);
            for (int first = tokens.begin; first < tokens.end; first += CHUNK) {
                __syncthreads();
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    *(uint4 *)&ys[(s * STEP + token) * PAD + column] = next_y[s];
                    *(uint4 *)&xs[(s * STEP + token) * PAD + column] = next_x[s];
                }
                __syncthreads();
                if (first + CHUNK < tokens.end) load(first + CHUNK);
                for (int s = 0; s < STEPS && first + s * STEP < tokens.end; s++) {
                    uint32_t a[4], b[4];
                    matrices(a, from_y + s * STEP * PAD);
#pragma unroll
                    for (int j = 0; j < TILE / 16; j++) {
                        matrices(b, from_x + s * STEP * PAD + j * 16);
                        mma<TYPE>(acc + 8 * j, a, b[0], b[1]);
                        mma<TYPE>(acc + 8 * j + 4, a, b[2], b[3]);
                    }
                }
            }
            iv_gradient_end<32, 128>(p, range, at, waiting, acc);
        }
    }
#else
    (void)p;
    __trap();
#endif
}

/* ---- the launch ------------------------------------------------------------------------------------------------- */

static int ceil_div(size_t a, size_t b) { return (int)((a + b - 1) / b); }

/* Levels of a CTA's scratch. */
static int levels_of(const iv_sum_plan &plan) {
    int levels = 0;
    for (int i = 0; i < plan.ranges; i++)
        if (plan.range[i].to == IV_SUM_WAITS && plan.range[i].joins >= levels) levels = plan.range[i].joins + 1;
    return levels;
}

static bool aligned(const void *p, size_t stride, size_t element, size_t bytes) {
    return (uintptr_t)p % bytes == 0 && stride * element % bytes == 0;
}

int iv_gpu_weight_gradient_generic(const iv_gpu_weight_gradient_args *a, const iv_sum_plan *plan,
                                   iv_gpu_stream stream) {
    enum { CTAS_MAX = 8 }; /* of a multiprocessor */
    int levels = levels_of(*plan), fit = IV_WEIGHT_GRADIENT_SCRATCH / (int)sizeof(float[TILE_FLOATS]);
    int ctas = levels && fit / levels < CTAS_MAX ? fit / levels : CTAS_MAX;
    size_t element = a->type == IV_F32 ? 4 : 2, vector = a->arithmetic == IV_TC16 ? 16 : 4 * element;
    iv_gradient_problem p = {};
    p.plan = *plan, p.dy = a->dy, p.x = a->x, p.dy_stride = a->dy_stride, p.x_stride = a->x_stride;
    p.offsets = a->offsets, p.n = (int)a->n, p.k = (int)a->k, p.type = a->type;
    p.vectors = aligned(a->dy, a->dy_stride, element, vector) && aligned(a->x, a->x_stride, element, vector);
    p.scratch = (float *)a->scratch, p.scratch_floats = (size_t)levels * TILE_FLOATS;
    p.tiles_k = ceil_div(a->k, TILE);
    size_t tiles = (size_t)p.tiles_k * (size_t)ceil_div(a->n, TILE), most = (size_t)a->sms * (size_t)ctas;
    if (!iv_gradient_set_groups(a, tiles, &p)) return (int)cudaErrorInvalidValue;
    tiles = (size_t)p.tiles;
    dim3 grid((unsigned)(tiles < most ? tiles : most));
    cudaStream_t s = (cudaStream_t)stream;
    if (a->arithmetic == IV_TC16)
        return iv_launch(a->type == IV_BF16 ? tc16_gradient<IV_BF16> : tc16_gradient<IV_F16>, grid, 128, s, p);
    return a->type == IV_F32 ? iv_launch(fma32_gradient<float>, grid, 256, s, p)
                             : iv_launch(fma32_gradient<uint16_t>, grid, 256, s, p);
}
