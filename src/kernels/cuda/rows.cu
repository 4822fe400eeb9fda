/* rows.cu: row ops other than linear layers and attention: embedding, RMSNorm, head norms and rotation with the KV
 * write, activations. Law: NUMERICS.md sections 4 and 8.2.
 *
 * Thread t of 256 is lane t of the law, or lane t % 32 of a warp holds the lanes congruent to it, so the order of
 * every sum is fixed. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/single_ops.h"

enum { HEAD_WARPS = 4, NORM_WARPS = 4 };

/* Four elements from i on, which is a multiple of four. */
template <iv_dtype T> IV_DEVICE void put_four(void *p, size_t i, float4 x) {
    uint32_t y[4] = {rounded<T>(x.x), rounded<T>(x.y), rounded<T>(x.z), rounded<T>(x.w)};
    if (T == IV_F32)
        *(uint4 *)((float *)p + i) = make_uint4(y[0], y[1], y[2], y[3]);
    else
        *(uint2 *)((uint16_t *)p + i) = make_uint2(y[0] | y[1] << 16, y[2] | y[3] << 16);
}

/* ---- embedding ------------------------------------------------------------------------------------------ */

/* V elements per thread. An id outside the vocabulary (padding, or an unknown draft token) takes row 0. */
template <iv_dtype T, int V>
static __global__ void embed(const void *table, size_t stride, size_t vocab, const int32_t *ids, size_t hidden,
                             float scale, float *x) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (i >= hidden) return;
    int32_t id = ids[row];
    const char *from = (const char *)table + ((id >= 0 && id < vocab ? id : 0) * stride + i) * (T == IV_F32 ? 4 : 2);
    float *to = x + row * hidden + i;
    if (V == 1) {
        *to = get<T>(from, 0) * scale;
    } else {
        uint4 words[T == IV_F32 ? 2 : 1];
        words[0] = *(const uint4 *)from;
        if (T == IV_F32) words[1] = ((const uint4 *)from)[1];
        float4 y[2];
        for (int j = 0; j < 2; j++)
            y[j] = make_float4(get<T>(words, 4 * j) * scale, get<T>(words, 4 * j + 1) * scale,
                               get<T>(words, 4 * j + 2) * scale, get<T>(words, 4 * j + 3) * scale);
        ((float4 *)to)[0] = y[0], ((float4 *)to)[1] = y[1];
    }
}

template <iv_dtype T>
static int launch_embed(const iv_gpu_matrix *m, const int32_t *ids, size_t rows, size_t hidden, float scale, float *x,
                        cudaStream_t stream) {
    int wide = hidden % 8 == 0;
    dim3 grid((unsigned)rows, (unsigned)((hidden + (wide ? 1024 : 128) - 1) / (wide ? 1024 : 128)));
    return iv_launch(wide ? embed<T, 8> : embed<T, 1>, grid, 128, stream, m->data, m->k_padded, m->n, ids, hidden,
                     scale, x);
}

int iv_gpu_embed(const iv_gpu_matrix *embedding, const int32_t *ids, size_t rows, size_t hidden, float scale, float *x,
                 iv_gpu_stream stream) {
    if (rows == 0) return 0;
    switch (embedding->type) {
    case IV_BF16: return launch_embed<IV_BF16>(embedding, ids, rows, hidden, scale, x, stream);
    case IV_F16: return launch_embed<IV_F16>(embedding, ids, rows, hidden, scale, x, stream);
    case IV_F32: return launch_embed<IV_F32>(embedding, ids, rows, hidden, scale, x, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- logits ---------------------------------------------------------------------------------------------- */

static __global__ void shape_logits(iv_logit_shape shape, float *x, size_t n, size_t stride) {
    iv_let_next();
    iv_wait();
    size_t i = (size_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *at = x + blockIdx.x * stride + i, y = *at;
    if (shape.divisor != 1.0f) y = iv_canon(__fdiv_rn(y, shape.divisor));
    if (shape.cap != 0.0f) y = iv_canon(v_tanh(y * __fdiv_rn(1.0f, shape.cap)) * shape.cap);
    *at = y;
}

int iv_gpu_shape_logits(iv_logit_shape shape, float *x, size_t rows, size_t n, size_t stride, iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    dim3 grid((unsigned)rows, (unsigned)((n + 255) / 256));
    return iv_launch(shape_logits, grid, 256, stream, shape, x, n, stride);
}

/* ---- RMSNorm -------------------------------------------------------------------------------------------- */

/* A block processes row after row. At most PER elements per thread stay in registers; PER = 0: rows of any length,
 * reread from memory. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(LANES)
    rmsnorm(const float *x, size_t n, const int32_t *pick, const float *weight, float eps, size_t rows, void *out,
            size_t stride) {
    __shared__ float lanes[2][LANES];
    constexpr int HELD = PER ? PER : 1;
    float w[HELD], v[HELD];
    iv_let_next();
#pragma unroll
    for (int j = 0; j < PER; j++) w[j] = threadIdx.x + j * LANES < n ? weight[threadIdx.x + j * LANES] : 0.0f;
    iv_wait();
    int turn = 0;
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        const float *from = x + (pick ? (size_t)pick[row] : row) * n;
        float lane = 0.0f;
#pragma unroll
        for (int j = 0; j < PER; j++) v[j] = threadIdx.x + j * LANES < n ? from[threadIdx.x + j * LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < PER; j++) lane = __fmaf_rn(v[j], v[j], lane); /* a zero changes no lane */
        if (PER == 0)
            for (size_t i = threadIdx.x; i < n; i += LANES) lane = __fmaf_rn(from[i], from[i], lane);
        float r = norm_scale(fold_block(lane, lanes[turn]), n, eps);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            size_t i = threadIdx.x + j * LANES;
            if (i < n) put<T>(out, row * stride + i, (v[j] * r) * w[j]);
        }
        if (PER == 0)
            for (size_t i = threadIdx.x; i < n; i += LANES) put<T>(out, row * stride + i, (from[i] * r) * weight[i]);
        for (size_t i = n + threadIdx.x; i < stride; i += LANES) put<T>(out, row * stride + i, 0.0f);
    }
}

/* Large steps: a warp has a row of 128 K elements in registers, all of its loads on their way at once, and no barrier.
 * v[k] is elements 128 k + 4 lane on, so l[4 h + j] is lane 128 h + 4 lane + j of the law. */
template <iv_dtype T, int K>
static __global__ void __launch_bounds__(32 * NORM_WARPS)
    rmsnorm_of_warp(const float *x, const int32_t *pick, const float *__restrict__ weight, float eps, size_t rows,
                    void *__restrict__ out, size_t stride) {
    iv_let_next();
    iv_wait();
    size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    unsigned first = threadIdx.x % 32 * 4;
    if (row >= rows) return;
    const float *from = x + (pick ? (size_t)pick[row] : row) * (128 * K) + first;
    float4 v[K];
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = *(const float4 *)(from + 128 * k);
    float l[8] = {0};
#pragma unroll
    for (int k = 0; k < K; k++) {
        float *to = l + k % 2 * 4;
        to[0] = __fmaf_rn(v[k].x, v[k].x, to[0]), to[1] = __fmaf_rn(v[k].y, v[k].y, to[1]);
        to[2] = __fmaf_rn(v[k].z, v[k].z, to[2]), to[3] = __fmaf_rn(v[k].w, v[k].w, to[3]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) l[j] = fold_warp(l[j] + l[4 + j]); /* strides 128; 64 ... 4 */
    float r = norm_scale((l[0] + l[2]) + (l[1] + l[3]), 128 * K, eps);
    char *to = (char *)out + (row * stride + first) * (T == IV_F32 ? 4 : 2);
#pragma unroll
    for (int k = 0; k < K; k++) {
        float4 w = *(const float4 *)(weight + first + 128 * k);
        put_four<T>(to, 128 * k,
                    make_float4((v[k].x * r) * w.x, (v[k].y * r) * w.y, (v[k].z * r) * w.z, (v[k].w * r) * w.w));
    }
    for (size_t i = 128 * K; i + first < stride; i += 128) put_four<T>(to, i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
}

/* NULL: no instance has rows of n. */
template <iv_dtype T> static auto kernel_of_warps(size_t n) {
    return n == 128 * 2    ? rmsnorm_of_warp<T, 2>
           : n == 128 * 8  ? rmsnorm_of_warp<T, 8>
           : n == 128 * 16 ? rmsnorm_of_warp<T, 16>
           : n == 128 * 20 ? rmsnorm_of_warp<T, 20>
           : n == 128 * 32 ? rmsnorm_of_warp<T, 32>
           : n == 128 * 40 ? rmsnorm_of_warp<T, 40>
                           : NULL;
}

template <iv_dtype T>
static int launch_rmsnorm(const float *x, size_t n, const int32_t *pick, const float *weight, float eps, size_t rows,
                          void *out, size_t stride, cudaStream_t stream) {
    enum { BLOCKS_MAX = 1024, WARPS_ROWS = 2048 }; /* in large steps weights are read once for several rows */
    auto *of_warp = kernel_of_warps<T>(n);
    bool aligned = ((uintptr_t)x | (uintptr_t)weight | (uintptr_t)out) % 16 == 0 && stride % 4 == 0;
    if (of_warp && aligned && rows >= WARPS_ROWS)
        return iv_launch(of_warp, dim3((unsigned)((rows + NORM_WARPS - 1) / NORM_WARPS)), 32 * NORM_WARPS, stream, x,
                         pick, weight, eps, rows, out, stride);
    size_t per = (n + LANES - 1) / LANES;
    auto *kernel = per <= 4    ? rmsnorm<T, 4>
                   : per <= 8  ? rmsnorm<T, 8>
                   : per <= 16 ? rmsnorm<T, 16>
                   : per <= 32 ? rmsnorm<T, 32>
                               : rmsnorm<T, 0>;
    dim3 grid((unsigned)(rows < BLOCKS_MAX ? rows : BLOCKS_MAX));
    return iv_launch(kernel, grid, LANES, stream, x, n, pick, weight, eps, rows, out, stride);
}

int iv_gpu_rmsnorm(const float *x, size_t n, const int32_t *pick, const float *weight, float eps, size_t rows,
                   iv_dtype type, void *out, size_t out_stride, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    switch (type) {
    case IV_BF16: return launch_rmsnorm<IV_BF16>(x, n, pick, weight, eps, rows, out, out_stride, stream);
    case IV_F16: return launch_rmsnorm<IV_F16>(x, n, pick, weight, eps, rows, out, out_stride, stream);
    case IV_F32: return launch_rmsnorm<IV_F32>(x, n, pick, weight, eps, rows, out, out_stride, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

static __global__ void __launch_bounds__(LANES) center(const float *x, size_t n, size_t rows, float *to) {
    __shared__ float lanes[2][LANES];
    iv_let_next();
    iv_wait();
    int turn = 0;
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        const float *from = x + row * n;
        float lane = 0.0f;
        for (size_t i = threadIdx.x; i < n; i += LANES) lane = lane + from[i];
        float mean = __fdiv_rn(fold_block(lane, lanes[turn]), (float)n);
        for (size_t i = threadIdx.x; i < n; i += LANES) to[row * n + i] = iv_canon(from[i] - mean);
    }
}

int iv_gpu_center(const float *x, size_t n, size_t rows, float *to, iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    return iv_launch(center, dim3((unsigned)(rows < 1024 ? rows : 1024)), LANES, (cudaStream_t)stream, x, n, rows, to);
}

/* ---- norms over all heads -------------------------------------------------------------------------------------- */

/* A block has a row, a warp one head after another; one thread adds the heads of q in order, one those of k. */
static __global__ void __launch_bounds__(LANES)
    head_factors(const float *qkv, unsigned heads, unsigned kv_heads, unsigned d, float eps, float *factors) {
    extern __shared__ float squares[];
    iv_let_next();
    iv_wait();
    unsigned lane = threadIdx.x % 32;
    const float *from = qkv + (size_t)blockIdx.x * (heads + 2 * kv_heads) * d;
    for (unsigned h = threadIdx.x / 32; h < heads + kv_heads; h += WARPS) {
        float l[WARPS] = {0};
        for (unsigned i = lane; i < d; i += 32) {
            float x = from[h * d + i];
            l[i / 32 % WARPS] = __fmaf_rn(x, x, l[i / 32 % WARPS]);
        }
        float sum = fold_warp(fold_far(l));
        if (lane == 0) squares[h] = sum;
    }
    __syncthreads();
    if (threadIdx.x > 1) return;
    unsigned first = threadIdx.x ? heads : 0, n = threadIdx.x ? kv_heads : heads;
    float sum = 0.0f;
    for (unsigned h = 0; h < n; h++) sum = sum + squares[first + h];
    factors[2 * (size_t)blockIdx.x + threadIdx.x] = norm_scale(sum, (size_t)n * d, eps);
}

int iv_gpu_head_factors(const float *qkv, size_t rows, size_t heads, size_t kv_heads, size_t head_dim, float eps,
                        float *factors, iv_gpu_stream stream) {
    if (rows == 0 || heads == 0) return 0;
    size_t shared = (heads + kv_heads) * sizeof(float);
    if (shared > 48 * 1024) return (int)cudaErrorInvalidValue;
    return iv_launch_shared(head_factors, dim3((unsigned)rows), LANES, shared, (cudaStream_t)stream, qkv,
                            (unsigned)heads, (unsigned)kv_heads, (unsigned)head_dim, eps, factors);
}

/* ---- head norms, rotation, keys and values ------------------------------------------------------------------- */

template <int PER> IV_DEVICE void head_norm(float x[PER], const float w[PER], unsigned n, float eps) {
    float l[WARPS] = {0};
#pragma unroll
    for (int j = 0; j < PER; j++) l[j % WARPS] = __fmaf_rn(x[j], x[j], l[j % WARPS]);
    float r = norm_scale(fold_warp(fold_far(l)), n, eps);
#pragma unroll
    for (int j = 0; j < PER; j++) x[j] = (x[j] * r) * w[j];
}

template <iv_dtype T> IV_DEVICE bool is_finite(uint32_t bits) {
    constexpr uint32_t exponent = T == IV_BF16 ? 0x7f80u : T == IV_F16 ? 0x7c00u : 0x7f800000u;
    return (bits & exponent) != exponent;
}

/* Rows of keys and values; NULL: pages. */
typedef struct kv_rows {
    void *k, *v;
} kv_rows;

/* Writes a token's key and value of one head to its rows, or to its page, or sets *bad. */
template <iv_dtype T, int PER, bool EXACT>
IV_DEVICE void write_kv(const iv_gpu_rotate_args &a, const kv_rows &to, size_t row, unsigned head, int64_t slot,
                        const float key[PER], const float value[PER]) {
    unsigned d = EXACT ? 32 * PER : (unsigned)a.kv.head_dim, lane = threadIdx.x % 32;
    if (to.k) {
        size_t at = (row * a.kv.heads + head) * d + lane;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (EXACT || lane + 32 * j < d) put<T>(to.k, at + 32 * j, key[j]), put<T>(to.v, at + 32 * j, value[j]);
        return;
    }
    if (slot < 0) return;
    uint32_t k[PER], v[PER];
    bool finite = true;
#pragma unroll
    for (int j = 0; j < PER; j++) { /* zero beyond the head */
        k[j] = rounded<T>(key[j]), v[j] = rounded<T>(value[j]);
        finite = finite && is_finite<T>(k[j]) && is_finite<T>(v[j]);
    }
    if (!__all_sync(0xffffffffu, finite)) {
        if (lane == 0) atomicMin((unsigned long long *)a.bad, (unsigned long long)a.layer << 32 | row);
        return;
    }
    constexpr size_t element = T == IV_F32 ? 4 : 2;
    size_t block = IV_ATTENTION_BLOCK * d, page = (size_t)slot / IV_ATTENTION_BLOCK;
    size_t at = (page * (a.kv.page_heads ? a.kv.page_heads : a.kv.heads) + head) * 2 * block +
                (size_t)slot % IV_ATTENTION_BLOCK * d;
    char *keys = (char *)a.kv.pages + (at + lane) * element, *values = keys + block * element;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (EXACT || lane + 32 * j < d) put_bits<T>(keys, 32 * j, k[j]), put_bits<T>(values, 32 * j, v[j]);
}

/* A block has a row or a part of its heads. A warp processes head after head: query heads, then key heads with their
 * values. The next head is loaded ahead. */
template <iv_dtype T, int PER, bool EXACT>
static __global__ void __launch_bounds__(HEAD_WARPS * 32)
    rotate(const __grid_constant__ iv_gpu_rotate_args a, const __grid_constant__ kv_rows kv) {
    __shared__ float swap[EXACT ? 1 : HEAD_WARPS][EXACT ? 1 : PER * 32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = EXACT ? 32 * PER : (unsigned)a.kv.head_dim;
    unsigned queries = (unsigned)a.heads, keys = (unsigned)a.kv.heads, heads = queries + keys;
    unsigned values = a.values_are_keys ? 0 : keys; /* heads from a key to its values */
    unsigned head = blockIdx.y * HEAD_WARPS + warp, step = gridDim.y * HEAD_WARPS;
    size_t row = blockIdx.x;
    const float *norm = head < queries ? a.q_norm : a.k_norm,
                *from = a.qkv + row * (a.qkv_stride ? a.qkv_stride : (heads + values) * d);
    constexpr size_t element = T == IV_F32 ? 4 : 2;
    char *to = (char *)a.q + (row * queries * d + lane) * element;
    char *q_raw = (char *)a.q_raw + (row * queries * d + lane) * element,
         *k_raw = (char *)a.k_raw + (row * keys * d + lane) * element;
    float x[PER], next[PER], v[PER], w[PER], c[PER], s[PER];
    iv_let_next();
    if (norm) load_head<PER, EXACT>(norm, d, w);
    iv_wait();
    if (head >= heads) return;
    int64_t slot = kv.k ? -1 : a.slots[row];
    size_t angles = (size_t)a.positions[row] * (d / 2);
    load_head<PER, EXACT>(from + head * d, d, x);
    if (head >= queries) load_head<PER, EXACT>(from + (head + values) * d, d, v);
    load_angles<PER, EXACT>(a.cosine + angles, d, c);
    load_angles<PER, EXACT>(a.sine + angles, d, s);
    float ones[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) ones[j] = 1.0f;
    float of_queries = a.query ? a.query[a.positions[row]] : 1.0f;
    for (;;) {
        unsigned after = head + step;
        bool query = head < queries;
        if (after < heads) load_head<PER, EXACT>(from + after * d, d, next);
        if (a.norms_behind) rotate_head<PER, EXACT>(x, c, s, d, swap[EXACT ? 0 : warp]);
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (a.q_raw && (EXACT || lane + 32 * j < d))
                put<T>(query ? q_raw : k_raw, (query ? head : head - queries) * d + 32 * j, x[j]);
        if (a.factors) {
            float r = a.factors[2 * row + !query];
            load_head<PER, EXACT>(query ? a.q_norm + head * d : a.k_norm + (head - queries) * d, d, w);
#pragma unroll
            for (int j = 0; j < PER; j++) x[j] = iv_canon((x[j] * r) * w[j]);
        } else if (norm)
            head_norm<PER>(x, w, d, a.eps);
        if (!a.norms_behind) rotate_head<PER, EXACT>(x, c, s, d, swap[EXACT ? 0 : warp]);
        if (!query && a.value_norm) head_norm<PER>(v, ones, d, a.eps);
        if (!query) write_kv<T, PER, EXACT>(a, kv, row, head - queries, slot, x, v);
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (query && (EXACT || lane + 32 * j < d)) put<T>(to, head * d + 32 * j, x[j] * of_queries);
        if (after >= heads) return;
        if (query && after >= queries) { /* from queries to keys */
            norm = a.k_norm;
            if (norm) load_head<PER, EXACT>(norm, d, w);
        }
        if (after >= queries) load_head<PER, EXACT>(from + (after + values) * d, d, v);
        head = after;
#pragma unroll
        for (int j = 0; j < PER; j++) x[j] = next[j];
    }
}

template <iv_dtype T, bool EXACT>
static int launch_rotate(const iv_gpu_rotate_args *a, kv_rows kv, cudaStream_t stream) {
    enum { BUSY_WARPS = 8192 }; /* with more, a warp takes several heads */
    size_t d = a->kv.head_dim, heads = a->heads + a->kv.heads, most = (heads + HEAD_WARPS - 1) / HEAD_WARPS;
    size_t each = a->rows * heads / BUSY_WARPS, parts = each < 2 ? most : (most + each - 1) / each;
    auto *kernel = d <= 64    ? rotate<T, 2, EXACT>
                   : d <= 128 ? rotate<T, 4, EXACT>
                   : d <= 256 ? rotate<T, 8, EXACT>
                              : rotate<T, 16, EXACT>;
    return iv_launch(kernel, dim3((unsigned)a->rows, (unsigned)parts), HEAD_WARPS * 32, stream, *a, kv);
}

template <iv_dtype T> static int launch_rotate_of(const iv_gpu_rotate_args *a, kv_rows kv, cudaStream_t stream) {
    size_t d = a->kv.head_dim;
    if (d < 2 || d % 2 != 0 || d > 512) return (int)cudaErrorInvalidValue;
    return d == 64 || d == 128 || d == 256 || d == 512 ? launch_rotate<T, true>(a, kv, stream)
                                                       : launch_rotate<T, false>(a, kv, stream);
}

static int rotate_to(const iv_gpu_rotate_args *a, kv_rows kv, cudaStream_t stream) {
    if (a->rows == 0) return 0;
    if (!a->q_raw != !a->k_raw) return (int)cudaErrorInvalidValue;
    switch (a->kv.type) {
    case IV_BF16: return launch_rotate_of<IV_BF16>(a, kv, stream);
    case IV_F16: return launch_rotate_of<IV_F16>(a, kv, stream);
    case IV_F32: return launch_rotate_of<IV_F32>(a, kv, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

int iv_gpu_rotate(const iv_gpu_rotate_args *a, iv_gpu_stream stream) { return rotate_to(a, {NULL, NULL}, stream); }

int iv_gpu_rotate_rows(const iv_gpu_rotate_args *a, void *k, void *v, iv_gpu_stream stream) {
    return k && v ? rotate_to(a, {k, v}, stream) : (int)cudaErrorInvalidValue;
}

/* ---- activations ----------------------------------------------------------------------------------------- */

template <iv_activation_kind KIND, iv_dtype T, int V>
static __global__ void activate(iv_activation_floats f, iv_gpu_row_scales scales, const float *wide, size_t n,
                                void *act, size_t stride) {
    constexpr bool GATED = IV_ACTIVATION_HAS_GATE(KIND);
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (i >= stride) return;
    float gate[V] = {0}, up[V] = {0};
    const float *from = wide + row * (GATED ? 2 : 1) * n + i, *ups = GATED ? from + n : from;
    if (i < n && V == 4) {
        if (GATED) *(float4 *)gate = *(const float4 *)from;
        *(float4 *)up = *(const float4 *)ups;
    } else if (i < n) {
        if (GATED) gate[0] = from[0];
        up[0] = ups[0];
    }
    uint32_t y[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        y[j] = i < n ? rounded<T>(iv_scaled(scales, row, v_activate(KIND, f, gate[j], up[j]))) : 0;
    if (V == 1)
        put_bits<T>(act, row * stride + i, y[0]);
    else if (T == IV_F32)
        *(uint4 *)((float *)act + row * stride + i) = make_uint4(y[0], y[1 % V], y[2 % V], y[3 % V]);
    else
        *(uint2 *)((uint16_t *)act + row * stride + i) = make_uint2(y[0] | y[1 % V] << 16, y[2 % V] | y[3 % V] << 16);
}

template <iv_activation_kind KIND, iv_dtype T>
static int launch_activation(const iv_activation *a, const float *wide, size_t rows, size_t n, void *act, size_t stride,
                             iv_gpu_row_scales scales, cudaStream_t stream) {
    int fours = n % 4 == 0 && stride % 4 == 0;
    size_t columns = fours ? 512 : 128;
    dim3 grid((unsigned)rows, (unsigned)((stride + columns - 1) / columns));
    auto *kernel = fours ? activate<KIND, T, 4> : activate<KIND, T, 1>;
    iv_activation_floats f = IV_ACTIVATION_FLOATS(a);
    return iv_launch(kernel, grid, 128, stream, f, scales, wide, n, act, stride);
}

template <iv_dtype T>
static int launch_activation_of(const iv_activation *a, const float *wide, size_t rows, size_t n, void *act,
                                size_t stride, iv_gpu_row_scales scales, cudaStream_t s) {
    switch (a->kind) {
    case IV_ACTIVATION_SILU: return launch_activation<IV_ACTIVATION_SILU, T>(a, wide, rows, n, act, stride, scales, s);
    case IV_ACTIVATION_GELU_TANH:
        return launch_activation<IV_ACTIVATION_GELU_TANH, T>(a, wide, rows, n, act, stride, scales, s);
    case IV_ACTIVATION_SILU_CLAMPED:
        return launch_activation<IV_ACTIVATION_SILU_CLAMPED, T>(a, wide, rows, n, act, stride, scales, s);
    case IV_ACTIVATION_RELU2:
        return launch_activation<IV_ACTIVATION_RELU2, T>(a, wide, rows, n, act, stride, scales, s);
    case IV_ACTIVATION_XIELU:
        return launch_activation<IV_ACTIVATION_XIELU, T>(a, wide, rows, n, act, stride, scales, s);
    }
    return (int)cudaErrorInvalidValue;
}

int iv_gpu_activate(const iv_activation *a, const float *wide, size_t rows, size_t n, iv_dtype type, void *act,
                    size_t act_stride, iv_gpu_row_scales scales, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    switch (type) {
    case IV_BF16: return launch_activation_of<IV_BF16>(a, wide, rows, n, act, act_stride, scales, stream);
    case IV_F16: return launch_activation_of<IV_F16>(a, wide, rows, n, act, act_stride, scales, stream);
    case IV_F32: return launch_activation_of<IV_F32>(a, wide, rows, n, act, act_stride, scales, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}
