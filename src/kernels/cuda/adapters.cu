/* adapters.cu: the terms of adapters in fma32, the embedding's rows, and the ops around them, on any GPU; and which
 * kernels compute. */
#include "kernels/cuda/adapters.cuh"

#include <string.h>

enum { THREADS = 128, PACKED_ROWS = 32 /* of a factor in fma32 */, HALVES = 8 /* rows of one in tc16 */ };

/* ---- fma32: a lane has a row of A, a warp a leaf ----------------------------------------------------------------- */

/* d[i] += k, k + 1 of row i of x, odd k first. */
template <iv_dtype T>
IV_DEVICE void two_of(float (&d)[ADAPTER_ROWS], const void *w, size_t at, const void *x, const size_t *rows, int k,
                      unsigned mask) {
    float even = get<T>(w, at), odd = get<T>(w, at + 1);
#pragma unroll
    for (int i = 0; i < ADAPTER_ROWS; i++) {
        if (!(mask >> i & 1)) continue;
        d[i] = iv_fma_flush(odd, get<T>(x, rows[i] + k + 1), d[i]);
        d[i] = iv_fma_flush(even, get<T>(x, rows[i] + k), d[i]);
    }
}

template <iv_dtype T>
static __global__ void __launch_bounds__(256) inner_fma32(const __grid_constant__ adapter_problem p) {
    __shared__ float sums[IV_LEAVES_MAX][ADAPTER_ROWS][32];
    iv_let_next();
    iv_wait();
    int leaf = threadIdx.x / 32, lane = threadIdx.x % 32, length = p.k_padded / p.a.leaves;
    int each = (int)p.a.pieces * p.blocks, items = adapter_tile_count(p) * each;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        adapter_tile tile = adapter_tile_at(p, item / each);
        int piece = item % each / p.blocks, block = item % p.blocks, j = block * 32 + lane;
        size_t rows[ADAPTER_ROWS];
        for (int i = 0; i < ADAPTER_ROWS; i++) rows[i] = (size_t)__shfl_sync(~0u, tile.x, i) * p.a.x_stride;
        for (unsigned mask, left = adapter_rows_of(tile); left;) {
            iv_gpu_adapted_part part = adapter_next(p, tile, piece, left, mask);
            if (!part.a || !part.b || block * 32 >= adapter_padded(part.rank)) continue;
            float d[ADAPTER_ROWS] = {};
            for (int k = leaf * length; k < (leaf + 1) * length; k += 2)
                two_of<T>(d, part.a, ((size_t)block * (p.k_padded / 2) + k / 2) * 64 + lane * 2, p.a.x, rows, k, mask);
            for (int i = 0; i < ADAPTER_ROWS; i++) sums[leaf][i][lane] = d[i];
            __syncthreads();
            for (int i = leaf; i < ADAPTER_ROWS; i += p.a.leaves) {
                float node[IV_LEAVES_MAX];
                int to = __shfl_sync(~0u, tile.t, i);
#pragma unroll
                for (int l = 0; l < IV_LEAVES_MAX; l++) node[l] = l < p.a.leaves ? sums[l][i][lane] : 0.0f;
#pragma unroll
                for (int width = IV_LEAVES_MAX / 2; width > 0; width /= 2)
#pragma unroll
                    for (int l = 0; l < width; l++)
                        if (2 * width <= p.a.leaves) node[l] = iv_add_flush(node[2 * l], node[2 * l + 1]);
                if ((mask >> i & 1) && j < adapter_padded(part.rank))
                    adapter_put_inner<T>(p, to, part.first + j, j < part.rank ? node[0] : 0.0f);
            }
            __syncthreads();
        }
    }
}

/* A thread has a column of each part: z of the tile's rows, and with it their scales. */
template <iv_dtype T, int PARTS>
static __global__ void __launch_bounds__(THREADS) outer_fma32(const __grid_constant__ adapter_problem p) {
    iv_let_next();
    iv_wait();
    int items = adapter_tile_count(p) * p.blocks;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        adapter_tile tile = adapter_tile_at(p, item / p.blocks);
        int first = item % p.blocks * THREADS,
            piece = PARTS == 1 ? adapter_piece_of(p, item % p.blocks, THREADS, first) : 0;
        int n = PARTS == 2 ? (int)p.a.n / 2 : (int)p.a.piece[piece].n, column = first + (int)threadIdx.x;
        float y[PARTS][ADAPTER_ROWS];
        unsigned adapted[PARTS] = {};
        size_t of[PARTS], rows[ADAPTER_ROWS];
        for (int k = 0; k < PARTS; k++) {
            of[k] = PARTS == 2 ? (size_t)(column / 8 * 16 + column % 8 + 8 * k)
                               : adapter_column(p, p.a.piece[piece].first + column);
            for (int i = 0; i < ADAPTER_ROWS; i++) {
                int at = __shfl_sync(~0u, tile.y, i);
                y[k][i] = i < tile.count && column < n ? p.a.y[(size_t)at * p.a.y_stride + of[k]] : 0.0f;
            }
        }
        for (unsigned mask, left = adapter_rows_of(tile), again; left;) {
#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                again = left;
                iv_gpu_adapted_part part = adapter_next(p, tile, piece + k, again, mask);
                for (int i = 0; i < ADAPTER_ROWS; i++)
                    rows[i] = (size_t)__shfl_sync(~0u, tile.t, i) * p.a.t_stride + part.first;
                if (!part.b || column >= n) continue;
                float z[ADAPTER_ROWS] = {};
                int length = adapter_padded(part.rank);
                for (int r = 0; r < length; r += 2)
                    two_of<T>(z, part.b, ((size_t)(column / 32) * (length / 2) + r / 2) * 64 + column % 32 * 2, p.a.t,
                              rows, r, mask);
                adapted[k] |= mask;
#pragma unroll
                for (int i = 0; i < ADAPTER_ROWS; i++)
                    if (mask >> i & 1) y[k][i] = iv_canon(__fmaf_rn(part.scale, iv_canon(z[i]), y[k][i]));
            }
            left = again;
        }
        for (int i = 0; i < ADAPTER_ROWS; i++) {
            int at = __shfl_sync(~0u, tile.y, i);
            if (i >= tile.count || column >= n) continue;
            if constexpr (PARTS == 2)
                adapter_activate<T>(p, at, column, y[0][i], y[1][i]);
            else
                adapter_finish(p, at, of[0], y[0][i], adapter_addend(p, at, of[0]), adapted[0] >> i & 1);
        }
    }
}

template <iv_dtype T> static int inner_of(const iv_gpu_adapter_args *a, cudaStream_t stream) {
    adapter_problem p = adapter_problem_of(a);
    p.blocks = (int)((a->rank_max + 31) / 32);
    dim3 grid = adapter_grid(a, adapter_tiles(a) * a->pieces * (size_t)p.blocks);
    return iv_launch(inner_fma32<T>, grid, 32 * a->leaves, stream, p);
}

template <iv_dtype T> static int outer_of(const iv_gpu_adapter_args *a, cudaStream_t stream) {
    adapter_problem p = adapter_problem_of(a);
    p.blocks = (int)adapter_column_blocks(a, THREADS), p.all = a->residual || a->act;
    dim3 grid = adapter_grid(a, adapter_tiles(a) * (size_t)p.blocks);
    return iv_launch(a->act ? outer_fma32<T, 2> : outer_fma32<T, 1>, grid, THREADS, stream, p);
}

/* ---- the embedding: a block copies the rows of a tile --------------------------------------------------------------
 */

template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS) look_up(const __grid_constant__ adapter_problem p) {
    iv_let_next();
    iv_wait();
    for (int item = blockIdx.x; item < adapter_tile_count(p); item += gridDim.x) {
        adapter_tile tile = adapter_tile_at(p, item);
        for (unsigned mask, left = adapter_rows_of(tile); left;) {
            iv_gpu_adapted_part part = adapter_next(p, tile, 0, left, mask);
            int rank = adapter_padded(part.rank);
            for (int i = 0; i < ADAPTER_ROWS; i++) {
                int row = __shfl_sync(~0u, tile.t, i);
                if (!part.a || !(mask >> i & 1)) continue;
                size_t from = (size_t)p.a.ids[row] * rank, to = (size_t)row * p.a.t_stride + part.first;
                for (int j = threadIdx.x; j < rank; j += THREADS) put<T>(p.a.t, to + j, get<T>(part.a, from + j));
            }
        }
    }
}

template <iv_dtype T> static int look_up_of(const iv_gpu_adapter_args *a, cudaStream_t stream) {
    return iv_launch(look_up<T>, adapter_grid(a, adapter_tiles(a)), THREADS, stream, adapter_problem_of(a));
}

/* ---- which ---------------------------------------------------------------------------------------------------------
 */

typedef int (*launcher)(const iv_gpu_adapter_args *, cudaStream_t);

static int launch_typed(const iv_gpu_adapter_args *a, launcher bf16, launcher f16, launcher f32, cudaStream_t stream) {
    bool known = a->type == IV_BF16 || a->type == IV_F16 || a->type == IV_F32;
    if (!known || a->pieces > IV_GPU_PIECES_MAX) return (int)cudaErrorInvalidValue;
    return (a->type == IV_BF16 ? bf16 : a->type == IV_F16 ? f16 : f32)(a, stream);
}

static bool nothing(const iv_gpu_adapter_args *a) { return a->pieces == 0 || adapter_tiles(a) == 0; }

int iv_gpu_adapter_inner(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    if (nothing(a) || a->rank_max == 0) return 0;
    if (a->leaves < 1 || a->leaves > IV_LEAVES_MAX || iv_padded_k(a->k) % (ADAPTER_STEP * (size_t)a->leaves))
        return (int)cudaErrorInvalidValue;
    if (a->arithmetic == IV_TC16)
        return launch_typed(a, iv_gpu_adapter_inner_tc16, iv_gpu_adapter_inner_tc16, NULL, stream);
    return launch_typed(a, inner_of<IV_BF16>, inner_of<IV_F16>, inner_of<IV_F32>, stream);
}

int iv_gpu_adapter_look_up(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    if (nothing(a)) return 0;
    return launch_typed(a, look_up_of<IV_BF16>, look_up_of<IV_F16>, look_up_of<IV_F32>, stream);
}

int iv_gpu_adapter_outer(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    if (nothing(a)) return 0;
    if ((a->act && (!a->paired || a->pieces != 2 || a->n % 16)) || (a->residual && a->pieces != 1))
        return (int)cudaErrorInvalidValue;
    if (iv_gpu_adapter_plain_takes(a))
        return launch_typed(a, iv_gpu_adapter_outer_plain, iv_gpu_adapter_outer_plain, NULL, stream);
    if (a->arithmetic == IV_TC16)
        return launch_typed(a, iv_gpu_adapter_outer_tc16, iv_gpu_adapter_outer_tc16, NULL, stream);
    return launch_typed(a, outer_of<IV_BF16>, outer_of<IV_F16>, outer_of<IV_F32>, stream);
}

/* ---- factors as the kernels read them ------------------------------------------------------------------------------
 */

static size_t rows_padded(iv_arithmetic arithmetic, size_t n) {
    size_t each = arithmetic == IV_TC16 ? HALVES : PACKED_ROWS;
    return (n + each - 1) / each * each;
}

/* k of a row with what completes the last pair of steps of each leaf. */
static size_t row_elements(iv_arithmetic arithmetic, size_t k, int leaves) {
    size_t padded = iv_padded_k(k), steps = padded / ADAPTER_STEP / (size_t)leaves;
    return arithmetic == IV_TC16 ? (steps + 1) / 2 * 2 * ADAPTER_STEP * (size_t)leaves : padded;
}

size_t iv_gpu_factor_bytes(iv_arithmetic arithmetic, iv_dtype type, size_t n, size_t k, int leaves) {
    return rows_padded(arithmetic, n) * row_elements(arithmetic, k, leaves) * iv_dtype_bytes(type);
}

/* Where element (i, k) is. */
static size_t place_of(iv_arithmetic arithmetic, size_t i, size_t k, size_t padded, int leaves) {
    if (arithmetic != IV_TC16)
        return (i / PACKED_ROWS * (padded / 2) + k / 2) * 2 * PACKED_ROWS + i % PACKED_ROWS * 2 + k % 2;
    size_t length = padded / (size_t)leaves, leaf = k / length, step = k % length / ADAPTER_STEP,
           pairs = (length / ADAPTER_STEP + 1) / 2, lane = i % HALVES * 4 + k % ADAPTER_STEP / 4;
    return (((i / HALVES * (size_t)leaves + leaf) * pairs + step / 2) * 32 + lane) * 8 + step % 2 * 4 + k % 4;
}

void iv_gpu_pack_factor(iv_arithmetic arithmetic, iv_dtype type, const void *rows, size_t stride, size_t n, size_t k,
                        int leaves, void *out) {
    size_t width = iv_dtype_bytes(type), padded = iv_padded_k(k);
    memset(out, 0, iv_gpu_factor_bytes(arithmetic, type, n, k, leaves));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++)
            memcpy((char *)out + place_of(arithmetic, i, j, padded, leaves) * width,
                   (const char *)rows + (i * stride + j) * width, width);
}

/* ---- ops around them ------------------------------------------------------------------------------------------------
 */

static __global__ void add_bias(float *x, size_t stride, const float *bias, size_t n) {
    iv_let_next();
    iv_wait();
    float *row = x + (size_t)blockIdx.x * stride;
    for (size_t i = (size_t)blockIdx.y * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.y * THREADS)
        row[i] = iv_canon(row[i] + bias[i]);
}

int iv_gpu_add_bias(float *x, size_t stride, size_t rows, const float *bias, size_t n, iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    size_t across = (n + 4 * THREADS - 1) / (4 * THREADS);
    return iv_launch(add_bias, dim3((unsigned)rows, (unsigned)(across < 64 ? across : 64)), THREADS, stream, x, stride,
                     bias, n);
}

static __global__ void fill(float *x, size_t n, float value) {
    iv_let_next();
    iv_wait();
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) x[i] = value;
}

int iv_gpu_fill(float *x, size_t n, float value, iv_gpu_stream stream) {
    size_t blocks = (n + THREADS - 1) / THREADS;
    if (n == 0) return 0;
    return iv_launch(fill, dim3((unsigned)(blocks < 4096 ? blocks : 4096)), THREADS, stream, x, n, value);
}

template <iv_dtype T> static __global__ void swiglu_grouped(const float *wide, size_t n, void *act, size_t stride) {
    iv_let_next();
    iv_wait();
    const float *row = wide + (size_t)blockIdx.x * 2 * n;
    for (size_t i = (size_t)blockIdx.y * THREADS + threadIdx.x; i < stride; i += (size_t)gridDim.y * THREADS) {
        const float *from = row + i / 8 * 16 + i % 8;
        put<T>(act, (size_t)blockIdx.x * stride + i, i < n ? iv_canon(v_mul(v_silu(from[0]), from[8])) : 0.0f);
    }
}

int iv_gpu_swiglu_grouped(const float *wide, size_t rows, size_t n, iv_dtype type, void *act, size_t act_stride,
                          iv_gpu_stream stream) {
    if (rows == 0 || act_stride == 0) return 0;
    size_t across = (act_stride + THREADS - 1) / THREADS;
    dim3 grid((unsigned)rows, (unsigned)(across < 64 ? across : 64));
    if (n % 8) return (int)cudaErrorInvalidValue;
    if (type == IV_F32) return iv_launch(swiglu_grouped<IV_F32>, grid, THREADS, stream, wide, n, act, act_stride);
    if (type == IV_F16) return iv_launch(swiglu_grouped<IV_F16>, grid, THREADS, stream, wide, n, act, act_stride);
    return iv_launch(swiglu_grouped<IV_BF16>, grid, THREADS, stream, wide, n, act, act_stride);
}

static __global__ void weigh_terms(const int32_t *offsets, const int32_t *slots, int experts, const float *weights,
                                   float *x, size_t n) {
    iv_let_next();
    iv_wait();
    int entry = (int)blockIdx.x;
    if (entry < offsets[0] || entry >= offsets[experts]) return;
    int slot = slots[entry];
    float w = weights[slot], *row = x + (size_t)slot * n;
    for (size_t i = threadIdx.x; i < n; i += THREADS) row[i] = iv_canon(__fmul_rn(w, row[i]));
}

int iv_gpu_weigh_terms(const iv_gpu_groups *groups, size_t entries, const float *weights, float *x, size_t n,
                       iv_gpu_stream stream) {
    if (entries == 0 || groups->count == 0) return 0;
    return iv_launch(weigh_terms, dim3((unsigned)entries), THREADS, stream, groups->offsets + groups->first,
                     groups->slots, (int)groups->count, weights, x, n);
}
