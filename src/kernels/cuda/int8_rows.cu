/* int8_rows.cu: rows become int8 codes and scales, also behind the norm that makes them; the sums of ranks become
 * outputs. Law: NUMERICS.md section 20. */
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

/* ---- magnitudes ---------------------------------------------------------------------------------------------- */

IV_DEVICE uint32_t size_of(float x) { return __float_as_uint(x) & 0x7fffffffu; }

/* The largest of the block, in every thread. */
IV_DEVICE uint32_t int8_block_max(uint32_t most, uint32_t *of_warps) {
    for (int d = 16; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = max(most, of_warps[w]);
    return most;
}

/* Eight elements, a multiple of eight. */
template <iv_dtype T> IV_DEVICE void int8_load8(const void *row, size_t i, float (&x)[8]) {
    uint4 words[T == IV_F32 ? 2 : 1];
    words[0] = *(const uint4 *)((const char *)row + i * (T == IV_F32 ? 4 : 2));
    if (T == IV_F32) words[1] = *(const uint4 *)((const char *)row + i * 4 + 16);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = get<T>(words, j);
}

/* V numbers of a row from i on; zeros from k on. */
template <iv_dtype T, int V> IV_DEVICE void int8_load(const void *row, size_t i, size_t k, float (&x)[8]) {
    if (V == 8) {
        if (i < k) return int8_load8<T>(row, i, x);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = 0.0f;
    } else {
        for (int j = 0; j < 8; j++) x[j] = i + j < k ? get<T>(row, i + j) : 0.0f;
    }
}

template <int TERMS>
IV_DEVICE void int8_store8(int8_t *codes, size_t term, size_t i, const float (&x)[8], float inverse) {
    uint32_t word[2][2] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t c = iv_int8_codes_of<TERMS>(x[j], inverse);
        word[0][j / 4] |= (c & 0xff) << j % 4 * 8, word[1][j / 4] |= (c >> 8) << j % 4 * 8;
    }
#pragma unroll
    for (int t = 0; t < TERMS; t++) *(uint2 *)(codes + t * term + i) = make_uint2(word[t][0], word[t][1]);
}

template <iv_dtype T>
static __global__ void __launch_bounds__(LANES)
    int8_magnitudes(const void *x, size_t stride, size_t k, size_t rows, uint32_t *out) {
    __shared__ uint32_t of_warps[2][WARPS];
    iv_let_next();
    iv_wait();
    int turn = 0;
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        const char *from = (const char *)x + row * stride * (T == IV_F32 ? 4 : 2);
        uint32_t most = 0;
        for (size_t i = threadIdx.x; i < k; i += LANES) most = max(most, size_of(get<T>(from, i)));
        most = int8_block_max(most, of_warps[turn]);
        if (threadIdx.x == 0) out[row] = most;
    }
}

static __global__ void __launch_bounds__(LANES) int8_batch_magnitude(uint32_t *m, size_t rows) {
    __shared__ uint32_t of_warps[WARPS];
    iv_let_next();
    iv_wait();
    uint32_t most = 0;
    for (size_t i = threadIdx.x; i < rows; i += LANES) most = max(most, m[i]);
    most = int8_block_max(most, of_warps);
    for (size_t i = threadIdx.x; i < rows; i += LANES) m[i] = most;
}

static unsigned row_blocks(size_t rows, int on_each) {
    size_t most = (size_t)iv_multiprocessors() * on_each;
    return (unsigned)(rows < most ? rows : most);
}

int iv_gpu_int8_magnitudes(iv_dtype type, const void *x, size_t x_stride, size_t k, size_t rows, uint32_t *out,
                           iv_gpu_stream stream) {
    if (type > IV_F32) return (int)cudaErrorInvalidValue;
    auto *kernel = type == IV_BF16  ? int8_magnitudes<IV_BF16>
                   : type == IV_F16 ? int8_magnitudes<IV_F16>
                                    : int8_magnitudes<IV_F32>;
    return rows ? iv_launch(kernel, dim3(row_blocks(rows, 8)), LANES, stream, x, x_stride, k, rows, out) : 0;
}

int iv_gpu_int8_batch_magnitude(uint32_t *magnitudes, size_t rows, iv_gpu_stream stream) {
    return rows ? iv_launch(int8_batch_magnitude, dim3(1), LANES, stream, magnitudes, rows) : 0;
}

/* ---- codes ----------------------------------------------------------------------------------------------------- */

IV_DEVICE uint32_t int8_given_magnitude(const iv_gpu_int8_rows &a, size_t row) {
    uint32_t most = 0;
    for (int i = 0; i < a.parts; i++) most = max(most, a.part[i][row]);
    return most;
}

/* A block takes row after row. HELD: of a thread's eights of numbers, those that stay in registers; 0: the row is read
 * twice. V: 8, or 1 where rows are not aligned. */
template <iv_dtype T, int TERMS, int HELD, int V>
static __global__ void __launch_bounds__(LANES) int8_quantize(const __grid_constant__ iv_gpu_int8_rows a) {
    __shared__ uint32_t of_warps[2][WARPS];
    constexpr int KEPT = HELD ? HELD : 1;
    float x[KEPT][8];
    iv_let_next();
    iv_wait();
    int turn = 0;
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
        const char *from = (const char *)a.x + row * a.x_stride * (T == IV_F32 ? 4 : 2);
        uint32_t most = 0;
#pragma unroll
        for (int h = 0; h < HELD; h++) int8_load<T, V>(from, (threadIdx.x + h * LANES) * 8, a.k, x[h]);
        if (a.parts) {
            most = int8_given_magnitude(a, row);
        } else {
#pragma unroll
            for (int h = 0; h < HELD; h++)
#pragma unroll
                for (int j = 0; j < 8; j++) most = max(most, size_of(x[h][j]));
            for (size_t i = threadIdx.x * 8; HELD == 0 && i < a.k; i += LANES * 8) {
                int8_load<T, V>(from, i, a.k, x[0]);
                for (int j = 0; j < 8; j++) most = max(most, size_of(x[0][j]));
            }
            most = int8_block_max(most, of_warps[turn]);
        }
        float inverse, scale;
        iv_int8_scale_of(most, TERMS, &inverse, &scale);
        if (threadIdx.x == 0) a.scales[row] = scale;
        int8_t *to = a.codes + row * TERMS * a.code_stride;
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if ((threadIdx.x + h * LANES) * 8 < a.code_stride)
                int8_store8<TERMS>(to, a.code_stride, (threadIdx.x + h * LANES) * 8, x[h], inverse);
        for (size_t i = threadIdx.x * 8; HELD == 0 && i < a.code_stride; i += LANES * 8) {
            int8_load<T, V>(from, i, a.k, x[0]);
            int8_store8<TERMS>(to, a.code_stride, i, x[0], inverse);
        }
    }
}

typedef void (*int8_rows_kernel)(iv_gpu_int8_rows);

template <iv_dtype T, int TERMS> static int8_rows_kernel int8_kernel_for(const iv_gpu_int8_rows *a) {
    size_t width = T == IV_F32 ? 4 : 2;
    bool eights = (uintptr_t)a->x % 16 == 0 && a->x_stride * width % 16 == 0 && a->k % 8 == 0;
    if (!eights) return int8_quantize<T, TERMS, 0, 1>;
    return a->code_stride <= 2 * LANES * 8   ? int8_quantize<T, TERMS, 2, 8>
           : a->code_stride <= 6 * LANES * 8 ? int8_quantize<T, TERMS, 6, 8>
                                             : int8_quantize<T, TERMS, 0, 8>;
}

static bool int8_rows_fit(const iv_gpu_int8_rows *a) {
    return a->type <= IV_F32 && (a->terms == 1 || a->terms == 2) && a->code_stride % 16 == 0 &&
           a->k <= a->code_stride && (uintptr_t)a->codes % 16 == 0 && a->parts >= 0 && a->parts <= IV_RANKS_MAX;
}

int iv_gpu_int8_quantize(const iv_gpu_int8_rows *a, iv_gpu_stream stream) {
    static int8_rows_kernel (*const kernels[3][2])(const iv_gpu_int8_rows *) = {
        {int8_kernel_for<IV_BF16, 1>, int8_kernel_for<IV_BF16, 2>},
        {int8_kernel_for<IV_F16, 1>, int8_kernel_for<IV_F16, 2>},
        {int8_kernel_for<IV_F32, 1>, int8_kernel_for<IV_F32, 2>}};
    if (!int8_rows_fit(a)) return (int)cudaErrorInvalidValue;
    if (a->rows == 0) return 0;
    return iv_launch(kernels[a->type][a->terms - 1](a), dim3(row_blocks(a->rows, 8)), LANES, stream, *a);
}

/* ---- behind a norm ------------------------------------------------------------------------------------------------
 */

struct int8_norm {
    const float *x, *weight;
    void *normed;
    size_t stride;
    float eps;
    iv_gpu_int8_rows a;
};

/* Thread t has the elements t + 256 j, as the law's lane t. The row stays in shared memory, where codes take eight
 * neighbors. */
template <iv_dtype T, int TERMS>
static __global__ void __launch_bounds__(LANES) int8_rmsnorm(const __grid_constant__ int8_norm p) {
    extern __shared__ float4 int8_row[]; /* [k]: x, then R of its norm; then the weights */
    __shared__ float lanes[2][LANES];
    __shared__ uint32_t of_warps[2][WARPS];
    float *xs = (float *)int8_row;
    const iv_gpu_int8_rows &a = p.a;
    float *ws = xs + a.k;
    iv_let_next();
#pragma unroll 8
    for (size_t i = threadIdx.x; i < a.k; i += LANES) ws[i] = p.weight[i]; /* a thread reads its own */
    iv_wait();
    int turn = 0;
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
        const float *from = p.x + row * a.k;
        float lane = 0.0f;
#pragma unroll 8
        for (size_t i = threadIdx.x; i < a.k; i += LANES) {
            float v = from[i];
            xs[i] = v, lane = __fmaf_rn(v, v, lane);
        }
        float r = norm_scale(fold_block(lane, lanes[turn]), a.k, p.eps);
        uint32_t most = 0;
#pragma unroll 8
        for (size_t i = threadIdx.x; i < a.k; i += LANES) {
            uint32_t bits = rounded<T>((xs[i] * r) * ws[i]);
            float y = T == IV_F32 ? __uint_as_float(bits) : iv_widen16(T, (uint16_t)bits);
            if (p.normed) put_bits<T>(p.normed, row * p.stride + i, bits);
            xs[i] = y, most = max(most, size_of(y));
        }
        for (size_t i = a.k + threadIdx.x; p.normed && i < p.stride; i += LANES)
            put_bits<T>(p.normed, row * p.stride + i, 0);
        most = int8_block_max(most, of_warps[turn]); /* and the row is complete */
        float inverse, scale, x[8];
        iv_int8_scale_of(most, TERMS, &inverse, &scale);
        if (threadIdx.x == 0) a.scales[row] = scale;
        for (size_t i = threadIdx.x * 8; i < a.code_stride; i += LANES * 8) {
            if (a.k % 8 == 0)
                int8_load<IV_F32, 8>(xs, i, a.k, x);
            else
                int8_load<IV_F32, 1>(xs, i, a.k, x);
            int8_store8<TERMS>(a.codes + row * TERMS * a.code_stride, a.code_stride, i, x, inverse);
        }
        __syncthreads();
    }
}

template <iv_dtype T> static void (*int8_norm_for(int terms))(int8_norm) {
    return terms == 1 ? int8_rmsnorm<T, 1> : int8_rmsnorm<T, 2>;
}

int iv_gpu_int8_rmsnorm(const float *x, const float *weight, float eps, void *normed, size_t stride,
                        const iv_gpu_int8_rows *a, iv_gpu_stream stream) {
    enum { SHARED = 200 << 10 };
    size_t shared = 2 * a->k * sizeof(float);
    if (!int8_rows_fit(a) || shared > SHARED) return (int)cudaErrorInvalidValue;
    if (a->rows == 0) return 0;
    auto *kernel = a->type == IV_BF16  ? int8_norm_for<IV_BF16>(a->terms)
                   : a->type == IV_F16 ? int8_norm_for<IV_F16>(a->terms)
                                       : int8_norm_for<IV_F32>(a->terms);
    if (shared > 40 << 10) {
        int error = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
    }
    int8_norm p = {x, weight, normed, stride, eps, *a};
    return iv_launch_shared(kernel, dim3(row_blocks(a->rows, 8)), LANES, shared, stream, p);
}

/* ---- sums of ranks ------------------------------------------------------------------------------------------------
 */

template <int TERMS>
static __global__ void __launch_bounds__(LANES) int8_reduce(const __grid_constant__ iv_gpu_int8_reduction a) {
    iv_let_next();
    iv_wait();
    size_t total = a.rows * a.n;
    for (size_t i = (size_t)blockIdx.x * LANES + threadIdx.x; i < total; i += (size_t)gridDim.x * LANES) {
        size_t row = i / a.n, column = i % a.n;
        uint32_t sum[2] = {0, 0};
        for (int r = 0; r < a.parts; r++)
#pragma unroll
            for (int t = 0; t < TERMS; t++) sum[t] += (uint32_t)a.part[r][(row * TERMS + t) * a.n + column];
        float y = iv_canon(iv_int8_result<TERMS>((int)sum[0], (int)sum[1], a.row_scales[row], a.scales[column]));
        if (a.bias) y = iv_canon(__fadd_rn(y, a.bias[column]));
        a.x[i] = iv_canon(__fadd_rn(a.x[i], y));
    }
}

int iv_gpu_int8_reduce(const iv_gpu_int8_reduction *a, iv_gpu_stream stream) {
    if (a->parts < 0 || a->parts > IV_RANKS_MAX || (a->terms != 1 && a->terms != 2)) return (int)cudaErrorInvalidValue;
    size_t blocks = (a->rows * a->n + LANES - 1) / LANES;
    if (blocks == 0) return 0;
    return iv_launch(a->terms == 1 ? int8_reduce<1> : int8_reduce<2>, dim3(row_blocks(blocks, 8)), LANES, stream, *a);
}
