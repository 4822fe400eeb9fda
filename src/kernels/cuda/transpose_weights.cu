/* transpose_weights.cu: weights, rounded if they are float32, and transposed: the weights of the layer that gives the
 * gradient of a linear layer's input. */
#include "kernels/cuda/eights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"

#include <cuda_runtime.h>

enum { TILE = 64, THREADS = 256, ROWS = THREADS / TILE };

/* FROM: what the weights are, float32 or TYPE. */
template <iv_dtype FROM, iv_dtype TYPE, typename T>
static __global__ void __launch_bounds__(THREADS) transpose(const void *weights, const int64_t *offsets, size_t n,
                                                            size_t k, const int64_t *bases, T *out, size_t out_stride) {
    constexpr int PITCH = TILE + (TYPE == IV_F32 ? 1 : 2); /* an odd number of words */
    __shared__ T tile[TILE][PITCH];                        /* [column][input] */
    iv_let_next();
    iv_wait();
    size_t first_c = (size_t)blockIdx.y * TILE, first_j = (size_t)blockIdx.x * TILE;
    int x = threadIdx.x % TILE;
    int64_t base = bases ? bases[blockIdx.z] : 0;
    out += blockIdx.z * k * out_stride;
#pragma unroll 4
    for (int c = threadIdx.x / TILE; c < TILE; c += ROWS) {
        int64_t offset = first_c + c < n ? offsets[first_c + c] : -1;
        bool there = offset >= 0 && first_j + x < k;
        offset += base;
        if (FROM != IV_F32) {
            tile[c][x] = there ? ((const T *)weights)[offset + first_j + x] : (T)0;
            continue;
        }
        float v = there ? ((const float *)weights)[offset + first_j + x] : 0.0f;
        tile[c][x] = TYPE == IV_F32 ? (T)__float_as_uint(iv_canon(v)) : (T)iv_round16(TYPE, v);
    }
    __syncthreads();
    if (first_c + x >= out_stride) return;
#pragma unroll 4
    for (int j = threadIdx.x / TILE; j < TILE; j += ROWS)
        if (first_j + j < k) out[(first_j + j) * out_stride + first_c + x] = tile[x][j];
}

/* ---- to 16 bits, 16 bytes at a time ------------------------------------------------------------------------------ */

/* A word of the tile has a pair of columns. The words of an input are in an order that depends on its group of GROUP
 * inputs, so that neither stores nor loads have bank conflicts. */
enum { PAIRS = TILE / 2 };

IV_DEVICE int word_of(int pair, int group) { return pair ^ group % 8 * 4; }

/* Four inputs of a pair of columns. */
struct quads {
    float4 low, high;
};

/* Inputs [j, j + 4) of a column; +0 where there is none. */
IV_DEVICE float4 load_four(const float *weights, int64_t offset, size_t j, size_t k) {
    float v[4] = {};
    const float *from = weights + offset + j;
    if (offset < 0 || j >= k) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (j + 4 <= k && (uintptr_t)from % 16 == 0) return *(const float4 *)from;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (j + i < k) v[i] = from[i];
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* The same of eight inputs of 16 bits. */
IV_DEVICE uint4 load_eight(const uint16_t *weights, int64_t offset, size_t j, size_t k) {
    uint32_t v[4] = {};
    const uint16_t *from = weights + offset + j;
    if (offset < 0 || j >= k) return make_uint4(0, 0, 0, 0);
    if (j + 8 <= k && (uintptr_t)from % 16 == 0) return *(const uint4 *)from;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (j + i < k) v[i / 2] |= (uint32_t)from[i] << i % 2 * 16;
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* Whole lines of GROUP inputs. */
template <int GROUP>
IV_DEVICE void store_tile(const uint32_t (*tile)[PAIRS], size_t first_j, size_t k, size_t first_c, uint16_t *out,
                          size_t out_stride) {
#pragma unroll
    for (int i = 0; i < TILE * TILE / 8 / THREADS; i++) {
        int j = (threadIdx.x + i * THREADS) / 8, c = threadIdx.x % 8;
        if (first_j + j >= k || first_c + 8 * c >= out_stride) continue;
        *(uint4 *)(out + (first_j + j) * out_stride + first_c + 8 * c) =
            *(const uint4 *)&tile[j][word_of(4 * c, j / GROUP)];
    }
}

/* As `transpose`. A warp loads lines of four pairs of columns. */
template <iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS)
    transpose_masters(const float *weights, const int64_t *offsets, size_t n, size_t k, const int64_t *bases,
                      uint16_t *out, size_t out_stride) {
    constexpr int LOADS = TILE / 4 * PAIRS / THREADS;
    __shared__ __align__(16) uint32_t tile[TILE][PAIRS]; /* [input][pair of columns] */
    iv_let_next();
    iv_wait();
    size_t first_c = (size_t)blockIdx.y * TILE, first_j = (size_t)blockIdx.x * TILE;
    int64_t base = bases ? bases[blockIdx.z] : 0;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, four = warp % 2 * 8 + lane % 8, pair = warp / 2 * 4 + lane / 8;
    quads held[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        size_t c = first_c + 2 * (pair + i * (PAIRS / LOADS));
        int64_t low = c < n ? offsets[c] : -1, high = c + 1 < n ? offsets[c + 1] : -1;
        held[i].low = load_four(weights, low < 0 ? low : low + base, first_j + 4 * four, k);
        held[i].high = load_four(weights, high < 0 ? high : high + base, first_j + 4 * four, k);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const quads &h = held[i];
        int at = word_of(pair + i * (PAIRS / LOADS), four);
        tile[4 * four][at] = rounded_pair<TYPE>(h.low.x, h.high.x);
        tile[4 * four + 1][at] = rounded_pair<TYPE>(h.low.y, h.high.y);
        tile[4 * four + 2][at] = rounded_pair<TYPE>(h.low.z, h.high.z);
        tile[4 * four + 3][at] = rounded_pair<TYPE>(h.low.w, h.high.w);
    }
    __syncthreads();
    store_tile<4>(tile, first_j, k, first_c, out + blockIdx.z * k * out_stride, out_stride);
}

/* The same of weights of 16 bits. A thread has eight inputs of a pair of columns. */
static __global__ void __launch_bounds__(THREADS)
    transpose_halves(const uint16_t *weights, const int64_t *offsets, size_t n, size_t k, const int64_t *bases,
                     uint16_t *out, size_t out_stride) {
    static_assert(TILE / 8 * PAIRS == THREADS, "a load of each column");
    __shared__ __align__(16) uint32_t tile[TILE][PAIRS]; /* [input][pair of columns] */
    iv_let_next();
    iv_wait();
    size_t first_c = (size_t)blockIdx.y * TILE, first_j = (size_t)blockIdx.x * TILE;
    int64_t base = bases ? bases[blockIdx.z] : 0;
    int eight = threadIdx.x % 8, pair = threadIdx.x / 8, at = word_of(pair, eight);
    size_t c = first_c + 2 * pair, j = first_j + 8 * eight;
    int64_t low = c < n ? offsets[c] : -1, high = c + 1 < n ? offsets[c + 1] : -1;
    uint4 x = load_eight(weights, low < 0 ? low : low + base, j, k);
    uint4 y = load_eight(weights, high < 0 ? high : high + base, j, k);
    const uint32_t lows[4] = {x.x, x.y, x.z, x.w}, highs[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        tile[8 * eight + 2 * i][at] = (lows[i] & 0xffffu) | highs[i] << 16;
        tile[8 * eight + 2 * i + 1][at] = lows[i] >> 16 | (highs[i] & 0xffff0000u);
    }
    __syncthreads();
    store_tile<8>(tile, first_j, k, first_c, out + blockIdx.z * k * out_stride, out_stride);
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

template <iv_dtype FROM, iv_dtype TYPE, typename T>
static int launch(const void *weights, const int64_t *offsets, size_t n, size_t k, const int64_t *bases, size_t count,
                  void *out, size_t out_stride, iv_gpu_stream stream) {
    size_t across = (k + TILE - 1) / TILE, down = (out_stride + TILE - 1) / TILE;
    if (n > out_stride || down > 65535 || across > INT32_MAX || count > 65535) return (int)cudaErrorInvalidValue;
    if (k == 0 || out_stride == 0 || count == 0) return 0;
    dim3 grid((unsigned)across, (unsigned)down, (unsigned)count);
    cudaStream_t s = (cudaStream_t)stream;
    if constexpr (TYPE != IV_F32)
        if (out_stride % 8 == 0 && (uintptr_t)out % 16 == 0) {
            if constexpr (FROM == IV_F32)
                return iv_launch(transpose_masters<TYPE>, grid, THREADS, s, (const float *)weights, offsets, n, k,
                                 bases, (uint16_t *)out, out_stride);
            else
                return iv_launch(transpose_halves, grid, THREADS, s, (const uint16_t *)weights, offsets, n, k, bases,
                                 (uint16_t *)out, out_stride);
        }
    return iv_launch(transpose<FROM, TYPE, T>, grid, THREADS, s, weights, offsets, n, k, bases, (T *)out, out_stride);
}

int iv_gpu_transpose_weights(iv_dtype from, iv_dtype type, const void *weights, const int64_t *offsets, size_t n,
                             size_t k, const int64_t *bases, size_t count, void *out, size_t out_stride,
                             iv_gpu_stream s) {
    if (type > IV_F32 || (from != type && from != IV_F32)) return (int)cudaErrorInvalidValue;
    if (!bases) count = 1;
    if (type == IV_F32)
        return launch<IV_F32, IV_F32, uint32_t>(weights, offsets, n, k, bases, count, out, out_stride, s);
    if (from == type) /* 16 bits of either type are copied */
        return launch<IV_BF16, IV_BF16, uint16_t>(weights, offsets, n, k, bases, count, out, out_stride, s);
    if (type == IV_BF16)
        return launch<IV_F32, IV_BF16, uint16_t>(weights, offsets, n, k, bases, count, out, out_stride, s);
    return launch<IV_F32, IV_F16, uint16_t>(weights, offsets, n, k, bases, count, out, out_stride, s);
}
