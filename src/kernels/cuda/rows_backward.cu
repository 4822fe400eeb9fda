/* rows_backward.cu: row ops of a training step: rounding, clearing and gathering of rows, the backward ops of RMSNorm
 * and activations (of the rotation: rotate_backward.cu). Law: NUMERICS.md 15.6 and 15.7.
 *
 * All are bound by memory: every value is read and written once. Elementwise ops take eight elements a thread; rows
 * with sums stay in registers, thread t of 256 being lane t of the law. Weights are read after iv_wait: a training step
 * writes them. */
#include "kernels/cuda/eights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"

/* ---- copies -------------------------------------------------------------------------------------------------- */

template <iv_dtype T, int V>
static __global__ void __launch_bounds__(EIGHTS_THREADS)
    round_rows(const float *x, size_t x_stride, size_t n, void *out, size_t out_stride) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = first_column<V>();
    if (i >= out_stride) return;
    float y[V];
    load_some<IV_F32, V>(x + row * x_stride, i, n, y);
    store_whole<T, V>(out, row * out_stride + i, y);
}

template <iv_dtype T>
static int launch_round(const float *x, size_t x_stride, size_t n, size_t rows, void *out, size_t out_stride,
                        cudaStream_t stream) {
    bool fits = iv_fits_eights(IV_F32, x, x_stride) && iv_fits_eights(T, out, out_stride) && out_stride % 8 == 0;
    return iv_launch(fits ? round_rows<T, 8> : round_rows<T, 1>, iv_eights_grid(rows, out_stride, fits ? 8 : 1),
                     EIGHTS_THREADS, stream, x, x_stride, n, out, out_stride);
}

int iv_gpu_round_rows(const float *x, size_t x_stride, size_t column, size_t n, size_t rows, iv_dtype type, void *out,
                      size_t out_stride, iv_gpu_stream stream) {
    if (rows == 0 || out_stride == 0) return 0;
    if (n > out_stride || column > x_stride || n > x_stride - column) return (int)cudaErrorInvalidValue;
    switch (type) {
    case IV_BF16: return launch_round<IV_BF16>(x + column, x_stride, n, rows, out, out_stride, stream);
    case IV_F16: return launch_round<IV_F16>(x + column, x_stride, n, rows, out, out_stride, stream);
    case IV_F32: return launch_round<IV_F32>(x + column, x_stride, n, rows, out, out_stride, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* Of 4 or 16 bytes. A thread has AHEAD words, all loaded before any is stored. */
enum { WORD_THREADS = 128, WORDS_AHEAD = 4 };

static dim3 words_grid(size_t rows, size_t words) {
    size_t each = (size_t)WORD_THREADS * WORDS_AHEAD;
    return dim3((unsigned)rows, (unsigned)((words + each - 1) / each));
}

template <class word>
static __global__ void __launch_bounds__(WORD_THREADS)
    clear_rows(const int32_t *list, word *out, size_t words, size_t stride) {
    iv_let_next();
    iv_wait();
    word *to = out + (size_t)list[blockIdx.x] * stride, zero = {};
    size_t first = (size_t)blockIdx.y * WORD_THREADS * WORDS_AHEAD + threadIdx.x;
#pragma unroll
    for (int j = 0; j < WORDS_AHEAD; j++)
        if (first + j * WORD_THREADS < words) to[first + j * WORD_THREADS] = zero;
}

int iv_gpu_clear_rows(const int32_t *list, size_t count, void *out, size_t row_bytes, size_t stride_bytes,
                      iv_gpu_stream stream) {
    if (count == 0 || row_bytes == 0) return 0;
    if (row_bytes % 4 != 0 || stride_bytes % 4 != 0) return (int)cudaErrorInvalidValue;
    if (((uintptr_t)out | row_bytes | stride_bytes) % 16 == 0)
        return iv_launch(clear_rows<uint4>, words_grid(count, row_bytes / 16), WORD_THREADS, stream, list, (uint4 *)out,
                         row_bytes / 16, stride_bytes / 16);
    return iv_launch(clear_rows<uint32_t>, words_grid(count, row_bytes / 4), WORD_THREADS, stream, list,
                     (uint32_t *)out, row_bytes / 4, stride_bytes / 4);
}

/* Gathers: row i of `out` is row at[i] of x, or zeros. Scatters: row at[i] of `out` is row i of x, if any. */
template <bool GATHERS, class word>
static __global__ void __launch_bounds__(WORD_THREADS)
    move_rows(const word *x, const int32_t *at, size_t words, word *out) {
    iv_let_next();
    iv_wait();
    int32_t row = at[blockIdx.x];
    size_t first = (size_t)blockIdx.y * WORD_THREADS * WORDS_AHEAD + threadIdx.x, other = row < 0 ? 0 : (size_t)row;
    if (!GATHERS && row < 0) return;
    const word *from = x + (GATHERS ? other : blockIdx.x) * words;
    word *to = out + (GATHERS ? blockIdx.x : other) * words, v[WORDS_AHEAD] = {};
#pragma unroll
    for (int j = 0; j < WORDS_AHEAD; j++)
        if (row >= 0 && first + j * WORD_THREADS < words) v[j] = from[first + j * WORD_THREADS];
#pragma unroll
    for (int j = 0; j < WORDS_AHEAD; j++)
        if (first + j * WORD_THREADS < words) to[first + j * WORD_THREADS] = v[j];
}

template <bool GATHERS>
static int launch_move(const void *x, const int32_t *at, size_t rows, size_t row_bytes, void *out,
                       cudaStream_t stream) {
    if (rows == 0 || row_bytes == 0) return 0;
    if (row_bytes % 4 != 0) return (int)cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out | row_bytes) % 16 == 0)
        return iv_launch(move_rows<GATHERS, uint4>, words_grid(rows, row_bytes / 16), WORD_THREADS, stream,
                         (const uint4 *)x, at, row_bytes / 16, (uint4 *)out);
    return iv_launch(move_rows<GATHERS, uint32_t>, words_grid(rows, row_bytes / 4), WORD_THREADS, stream,
                     (const uint32_t *)x, at, row_bytes / 4, (uint32_t *)out);
}

int iv_gpu_gather_rows(const void *x, const int32_t *pick, size_t rows, size_t row_bytes, void *out,
                       iv_gpu_stream stream) {
    return launch_move<true>(x, pick, rows, row_bytes, out, stream);
}

int iv_gpu_scatter_rows(const void *x, const int32_t *to, size_t rows, size_t row_bytes, void *out,
                        iv_gpu_stream stream) {
    return launch_move<false>(x, to, rows, row_bytes, out, stream);
}

/* ---- RMSNorm --------------------------------------------------------------------------------------------------- */

/* Blocks of a multiprocessor: registers for three values of each element. */
static constexpr int norm_blocks(int per) { return per == 0 || per <= 8 ? 4 : per <= 16 ? 3 : per <= 32 ? 2 : 1; }

/* A block processes row after row. At most PER elements per thread stay in registers; PER = 0: rows of any length,
 * reread from memory. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(LANES, norm_blocks(PER))
    norm_backward(const __grid_constant__ iv_gpu_norm_backward_args a) {
    __shared__ float lanes[2][LANES]; /* the barrier of one sum is behind all reads of the other */
    constexpr int HELD = PER ? PER : 1, AHEAD = PER <= 32 ? PER : 0; /* of dx */
    float v[HELD], d[HELD], e[AHEAD ? AHEAD : 1];
    size_t n = a.n;
    iv_let_next();
    iv_wait();
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t at = a.pick ? a.pick[row] : (int64_t)row;
        if (at < 0) continue;
        const float *x = a.x + at * n, *dy = a.dy + row * n;
        float *dx = a.dx + at * n, lane = 0.0f;
#pragma unroll
        for (int j = 0; j < PER; j++) v[j] = threadIdx.x + j * LANES < n ? x[threadIdx.x + j * LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < PER; j++) d[j] = threadIdx.x + j * LANES < n ? dy[threadIdx.x + j * LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) e[j] = threadIdx.x + j * LANES < n ? dx[threadIdx.x + j * LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < PER; j++) lane = __fmaf_rn(v[j], v[j], lane); /* a zero changes no lane */
        if (PER == 0)
            for (size_t i = threadIdx.x; i < n; i += LANES) lane = __fmaf_rn(x[i], x[i], lane);
        float r = norm_scale(fold_block(lane, lanes[0]), n, a.eps);
        lane = 0.0f;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            size_t i = threadIdx.x + j * LANES;
            if (i >= n) continue; /* r may be infinite */
            d[j] = d[j] * a.weight[i], v[j] = v[j] * r;
            lane = __fmaf_rn(d[j], v[j], lane);
        }
        if (PER == 0)
            for (size_t i = threadIdx.x; i < n; i += LANES) lane = __fmaf_rn(dy[i] * a.weight[i], x[i] * r, lane);
        float c = __fdiv_rn(fold_block(lane, lanes[1]), (float)n);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            size_t i = threadIdx.x + j * LANES;
            if (i >= n) continue;
            float y = iv_canon(__fmaf_rn(__fmaf_rn(-v[j], c, d[j]), r, AHEAD ? e[AHEAD ? j : 0] : dx[i]));
            dx[i] = y;
            if (a.rounded) put<T>(a.rounded, at * a.rounded_stride + i, y);
        }
        if (PER == 0)
            for (size_t i = threadIdx.x; i < n; i += LANES) {
                float y = iv_canon(__fmaf_rn(__fmaf_rn(-(x[i] * r), c, dy[i] * a.weight[i]), r, dx[i]));
                dx[i] = y;
                if (a.rounded) put<T>(a.rounded, at * a.rounded_stride + i, y);
            }
        if (a.rounded)
            for (size_t i = n + threadIdx.x; i < a.rounded_stride; i += LANES)
                put<T>(a.rounded, at * a.rounded_stride + i, 0.0f);
        if (threadIdx.x == 0) a.factors[row] = r;
    }
}

template <iv_dtype T, int PER> static int launch_norm_of(const iv_gpu_norm_backward_args *a, cudaStream_t stream) {
    size_t blocks = (size_t)iv_multiprocessors() * norm_blocks(PER);
    return iv_launch(norm_backward<T, PER>, dim3((unsigned)(a->rows < blocks ? a->rows : blocks)), LANES, stream, *a);
}

template <iv_dtype T> static int launch_norm(const iv_gpu_norm_backward_args *a, cudaStream_t stream) {
    size_t per = (a->n + LANES - 1) / LANES;
    return per <= 4    ? launch_norm_of<T, 4>(a, stream)
           : per <= 8  ? launch_norm_of<T, 8>(a, stream)
           : per <= 16 ? launch_norm_of<T, 16>(a, stream)
           : per <= 32 ? launch_norm_of<T, 32>(a, stream)
           : per <= 64 ? launch_norm_of<T, 64>(a, stream)
                       : launch_norm_of<T, 0>(a, stream);
}

int iv_gpu_norm_backward(const iv_gpu_norm_backward_args *a, iv_gpu_stream stream) {
    if (a->rows == 0) return 0;
    if (a->n == 0 || (a->rounded && a->rounded_stride < a->n)) return (int)cudaErrorInvalidValue;
    switch (a->rounded ? a->type : IV_F32) {
    case IV_BF16: return launch_norm<IV_BF16>(a, stream);
    case IV_F16: return launch_norm<IV_F16>(a, stream);
    case IV_F32: return launch_norm<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

template <iv_activation_kind KIND, iv_dtype T, int V>
static __global__ void __launch_bounds__(EIGHTS_THREADS)
    activate_tape(iv_activation_floats f, iv_gpu_row_scales scales, const float *wide, bool grouped, size_t n,
                  void *gate, void *up, void *act, size_t act_stride) {
    constexpr bool GATED = IV_ACTIVATION_HAS_GATE(KIND);
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = first_column<V>();
    if (i >= act_stride && i >= n) return;
    float g[V] = {0}, u[V] = {0}, y[V];
    if (i < n) { /* with eights, n is a multiple of 8 */
        const float *from = wide + row * (GATED ? 2 : 1) * n;
        if (GATED) load_whole<IV_F32, V>(from, grouped ? i / 8 * 16 + i % 8 : i, g);
        load_whole<IV_F32, V>(from, !GATED ? i : grouped ? i / 8 * 16 + i % 8 + 8 : n + i, u);
        if (GATED) store_whole<T, V>(gate, row * n + i, g);
        store_whole<T, V>(up, row * n + i, u);
    }
#pragma unroll
    for (int j = 0; j < V; j++) y[j] = i < n ? iv_scaled(scales, row, v_activate(KIND, f, g[j], u[j])) : 0.0f;
    if (i < act_stride) store_whole<T, V>(act, row * act_stride + i, y);
}

typedef struct tape_args {
    iv_activation_floats f;
    iv_gpu_row_scales scales;
    const float *wide;
    bool grouped;
    size_t rows, n, act_stride;
    void *gate, *up, *act;
} tape_args;

template <iv_activation_kind KIND, iv_dtype T> static int launch_tape(const tape_args *a, cudaStream_t stream) {
    bool fits = a->n % 8 == 0 && a->act_stride % 8 == 0 && iv_fits_eights(IV_F32, a->wide, a->n) &&
                iv_fits_eights(T, a->gate, a->n) && iv_fits_eights(T, a->up, a->n) &&
                iv_fits_eights(T, a->act, a->act_stride);
    return iv_launch(fits ? activate_tape<KIND, T, 8> : activate_tape<KIND, T, 1>,
                     iv_eights_grid(a->rows, a->act_stride, fits ? 8 : 1), EIGHTS_THREADS, stream, a->f, a->scales,
                     a->wide, a->grouped, a->n, a->gate, a->up, a->act, a->act_stride);
}

template <iv_dtype T> static int launch_tape_of(iv_activation_kind kind, const tape_args *a, cudaStream_t stream) {
    switch (kind) {
    case IV_ACTIVATION_SILU: return launch_tape<IV_ACTIVATION_SILU, T>(a, stream);
    case IV_ACTIVATION_GELU_TANH: return launch_tape<IV_ACTIVATION_GELU_TANH, T>(a, stream);
    case IV_ACTIVATION_SILU_CLAMPED: return launch_tape<IV_ACTIVATION_SILU_CLAMPED, T>(a, stream);
    case IV_ACTIVATION_RELU2: return launch_tape<IV_ACTIVATION_RELU2, T>(a, stream);
    case IV_ACTIVATION_XIELU: return launch_tape<IV_ACTIVATION_XIELU, T>(a, stream);
    }
    return (int)cudaErrorInvalidValue;
}

int iv_gpu_activate_tape(const iv_activation *activation, const float *wide, bool grouped, size_t rows, size_t n,
                         iv_dtype type, void *gate, void *up, void *act, size_t act_stride, iv_gpu_row_scales scales,
                         iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    if (act_stride < n || (grouped && (n % 8 != 0 || !iv_activation_is_gated(activation))))
        return (int)cudaErrorInvalidValue;
    tape_args a = {IV_ACTIVATION_FLOATS(activation), scales, wide, grouped, rows, n, act_stride, gate, up, act};
    switch (type) {
    case IV_BF16: return launch_tape_of<IV_BF16>(activation->kind, &a, stream);
    case IV_F16: return launch_tape_of<IV_F16>(activation->kind, &a, stream);
    case IV_F32: return launch_tape_of<IV_F32>(activation->kind, &a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

typedef struct backward_args {
    iv_activation_floats f;
    const void *gate, *up;
    const float *da;
    size_t n, dy_stride;
    uint32_t leaf_slice;
    void *dy;
    float *wide;
} backward_args;

/* A column of the leaf slices of gate, and the same of up; without a gate one of up. Slices are whole eights. */
template <iv_activation_kind KIND, iv_dtype T, int V>
static __global__ void __launch_bounds__(EIGHTS_THREADS) activate_backward(const __grid_constant__ backward_args a) {
    constexpr bool GATED = IV_ACTIVATION_HAS_GATE(KIND);
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = first_column<V>(),
           column = GATED ? i + (size_t)((uint32_t)i / a.leaf_slice) * a.leaf_slice : i;
    if (column >= a.dy_stride) return;
    float dg[V] = {0}, du[V] = {0};
    if (i < a.n) {
        float g[V] = {0}, u[V], da[V];
        if (GATED) load_whole<T, V>(a.gate, row * a.n + i, g);
        load_whole<T, V>(a.up, row * a.n + i, u);
        load_whole<IV_F32, V>(a.da, row * a.n + i, da);
#pragma unroll
        for (int j = 0; j < V; j++) {
            v_activate_backward(KIND, a.f, g[j], u[j], da[j], &dg[j], &du[j]);
            du[j] = iv_canon(du[j]), dg[j] = iv_canon(dg[j]);
        }
        if (a.wide) {
            if (GATED) store_whole<IV_F32, V>(a.wide, row * 2 * a.n + i, dg);
            store_whole<IV_F32, V>(a.wide, GATED ? (row * 2 + 1) * a.n + i : row * a.n + i, du);
        }
    }
    if (!GATED) {
        store_whole<T, V>(a.dy, row * a.dy_stride + column, du);
        return;
    }
    store_whole<T, V>(a.dy, row * a.dy_stride + column, dg);
    if (column + a.leaf_slice < a.dy_stride) store_whole<T, V>(a.dy, row * a.dy_stride + column + a.leaf_slice, du);
}

template <iv_activation_kind KIND, iv_dtype T>
static int launch_backward(const backward_args *a, size_t rows, cudaStream_t stream) {
    bool fits = a->n % 8 == 0 && a->dy_stride % 8 == 0 && iv_fits_eights(T, a->gate, a->n) &&
                iv_fits_eights(T, a->up, a->n) && iv_fits_eights(IV_F32, a->da, a->n) &&
                iv_fits_eights(T, a->dy, a->dy_stride) && (uintptr_t)a->wide % 16 == 0;
    size_t leaves = (a->dy_stride + 2 * a->leaf_slice - 1) / (2 * (size_t)a->leaf_slice),
           columns = !IV_ACTIVATION_HAS_GATE(KIND) ? a->dy_stride : leaves * a->leaf_slice;
    return iv_launch(fits ? activate_backward<KIND, T, 8> : activate_backward<KIND, T, 1>,
                     iv_eights_grid(rows, columns, fits ? 8 : 1), EIGHTS_THREADS, stream, *a);
}

template <iv_dtype T>
static int launch_backward_of(iv_activation_kind kind, const backward_args *a, size_t rows, cudaStream_t stream) {
    switch (kind) {
    case IV_ACTIVATION_SILU: return launch_backward<IV_ACTIVATION_SILU, T>(a, rows, stream);
    case IV_ACTIVATION_GELU_TANH: return launch_backward<IV_ACTIVATION_GELU_TANH, T>(a, rows, stream);
    case IV_ACTIVATION_SILU_CLAMPED: return launch_backward<IV_ACTIVATION_SILU_CLAMPED, T>(a, rows, stream);
    case IV_ACTIVATION_RELU2: return launch_backward<IV_ACTIVATION_RELU2, T>(a, rows, stream);
    case IV_ACTIVATION_XIELU: return launch_backward<IV_ACTIVATION_XIELU, T>(a, rows, stream);
    }
    return (int)cudaErrorInvalidValue;
}

int iv_gpu_activate_backward(const iv_activation *activation, iv_dtype type, const void *gate, const void *up,
                             const float *da, size_t rows, size_t n, size_t leaf_slice, void *dy, size_t dy_stride,
                             float *wide, iv_gpu_stream stream) {
    size_t inputs = iv_activation_inputs(activation);
    if (rows == 0 || dy_stride == 0) return 0;
    if (leaf_slice == 0 || leaf_slice % 16 != 0 || leaf_slice > UINT32_MAX / 4 || dy_stride > UINT32_MAX / 4 ||
        (inputs == 2 ? (n + leaf_slice - 1) / leaf_slice * 2 * leaf_slice : n) > dy_stride)
        return (int)cudaErrorInvalidValue;
    backward_args a = {IV_ACTIVATION_FLOATS(activation), gate, up, da, n, dy_stride, (uint32_t)leaf_slice, dy, wide};
    switch (type) {
    case IV_BF16: return launch_backward_of<IV_BF16>(activation->kind, &a, rows, stream);
    case IV_F16: return launch_backward_of<IV_F16>(activation->kind, &a, rows, stream);
    case IV_F32: return launch_backward_of<IV_F32>(activation->kind, &a, rows, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}
