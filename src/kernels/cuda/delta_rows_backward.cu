/* delta_rows_backward.cu: what the rows of a layer with a state do by themselves, backward: the gated norm, the norms
 * of queries and keys, decays, the convolution; short convolutions between gates. */
#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/launch.cuh"

enum { LEAF_WARPS = IV_LEAVES_MAX, UNIT_WARPS = 4, CHUNK = 128, COLUMN_THREADS = 256 };

typedef iv_gpu_delta_backward_args backward_args;

IV_DEVICE const iv_activation_floats no_floats(void) { return iv_activation_floats{}; }

/* act' of silu. */
IV_DEVICE void silu_backward(float gate, float up, float d, float *dgate, float *dup) {
    v_activate_backward(IV_ACTIVATION_SILU, no_floats(), gate, up, d, dgate, dup);
    *dgate = iv_canon(*dgate), *dup = iv_canon(*dup);
}

/* d behind the silu of a sum y becomes that of y. */
IV_DEVICE float sum_backward(float y, float d) {
    float of_y, unused;
    silu_backward(y, 1.0f, d, &of_y, &unused);
    return of_y;
}

/* ---- the gated norm ------------------------------------------------------------------------------------------- */

/* A head; h gains the terms of the weights. */
template <iv_dtype T, int PER>
IV_DEVICE void norm_head(const backward_args &a, size_t row, unsigned head, const float w[PER], float h[PER]) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned lane = threadIdx.x % 32, d = s.value_dim;
    size_t at = (row * s.value_heads + head) * d;
    float *dz = a.dx + row * s.width + s.channels + head * d;
    float o[PER], g[PER], l[WARPS] = {0};
#pragma unroll
    for (int j = 0; j < PER; j++) {
        o[j] = lane + 32 * j < d ? get<T>(a.forward.kept.o, at + lane + 32 * j) : 0.0f;
        l[j % WARPS] = __fmaf_rn(o[j], o[j], l[j % WARPS]);
    }
    float r = norm_scale(fold_warp(fold_far(l)), d, a.forward.eps);
#pragma unroll
    for (int j = 0; j < WARPS; j++) l[j] = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        g[j] = 0.0f;
        if (i >= d) continue;
        float dgate, dnormed;
        silu_backward(get<T>(a.forward.kept.z, at + i), iv_canon((o[j] * r) * w[j]), a.dattended[at + i], &dgate,
                      &dnormed);
        dz[i] = dgate;
        o[j] = o[j] * r;
        h[j] = iv_canon(__fmaf_rn(dnormed, o[j], h[j]));
        g[j] = dnormed * w[j];
        l[j % WARPS] = __fmaf_rn(g[j], o[j], l[j % WARPS]);
    }
    float c = __fdiv_rn(fold_warp(fold_far(l)), (float)d);
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (lane + 32 * j < d) put<T>(a.dout, at + lane + 32 * j, iv_canon(__fmaf_rn(-o[j], c, g[j]) * r));
}

/* A block has a row, a warp a leaf of its heads, in order. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(LEAF_WARPS * 32) norm_backward(const __grid_constant__ backward_args a) {
    __shared__ float leaf[LEAF_WARPS][PER * 32];
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, leaves = (unsigned)a.leaves,
             each = s.value_heads / leaves;
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    if (a.forward.row_spans[row] < 0) return;
    float w[PER], h[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        w[j] = lane + 32 * j < s.value_dim ? a.forward.norm[lane + 32 * j] : 0.0f;
        h[j] = 0.0f;
    }
    for (unsigned head = warp * each; head < (warp + 1) * each && warp < leaves; head++)
        norm_head<T, PER>(a, row, head, w, h);
#pragma unroll
    for (int j = 0; j < PER; j++) leaf[warp][lane + 32 * j] = h[j];
    __syncthreads();
    for (unsigned e = threadIdx.x; e < s.value_dim; e += LEAF_WARPS * 32) {
        float t[LEAF_WARPS];
#pragma unroll
        for (unsigned i = 0; i < LEAF_WARPS; i++) t[i] = i < leaves ? leaf[i][e] : 0.0f;
#pragma unroll
        for (unsigned stride = 1; stride < LEAF_WARPS; stride *= 2)
#pragma unroll
            for (unsigned i = 0; i < LEAF_WARPS; i += 2 * stride)
                if (stride < leaves) t[i] = t[i] + t[i + stride];
        a.terms[row * s.value_dim + e] = t[0];
    }
}

template <iv_dtype T> static int launch_norm(const backward_args *a, cudaStream_t stream) {
    size_t d = a->forward.shape.value_dim;
    auto *kernel = d <= 128 ? norm_backward<T, 4> : norm_backward<T, 16>;
    return iv_launch(kernel, dim3((unsigned)a->forward.rows), LEAF_WARPS * 32, stream, *a);
}

int iv_gpu_delta_norm_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    if (a->forward.rows == 0 || s->value_heads == 0) return 0;
    if (s->value_dim > 512 || a->leaves < 1 || a->leaves > LEAF_WARPS || s->value_heads % a->leaves)
        return (int)cudaErrorInvalidValue;
    if (iv_gpu_delta_rows_backward_takes(a)) return iv_gpu_delta_norm_backward_128(a, stream);
    switch (s->type) {
    case IV_BF16: return launch_norm<IV_BF16>(a, stream);
    case IV_F16: return launch_norm<IV_F16>(a, stream);
    case IV_F32: return launch_norm<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- up to the sums of the convolution ------------------------------------------------------------------------- */

/* The sum of taps and inputs of a channel at a row, of which `before` rows of its sequence come before. */
template <iv_dtype T> IV_DEVICE float convolve(const iv_gpu_delta_args &a, size_t row, int before, unsigned c) {
    int taps = (int)a.shape.taps;
    float y = 0.0f;
    for (int j = 0; j < taps; j++) {
        int back = taps - 1 - j;
        float x = back <= before ? get<T>(a.kept.inputs, (row - back) * a.shape.channels + c) : 0.0f;
        y = __fmaf_rn(a.conv[(size_t)c * a.shape.taps + j], x, y);
    }
    return y;
}

/* A head of queries or keys, by a warp. */
template <iv_dtype T, int PER>
IV_DEVICE void head_backward(const backward_args &a, size_t row, int before, unsigned head) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned lane = threadIdx.x % 32, d = s.key_dim, heads = s.key_heads, own = head % heads;
    const float *from = a.dkeys + ((row * 2 + head / heads) * s.value_heads + own * s.group) * d;
    float y[PER], x[PER], g[PER], l[WARPS] = {0};
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        y[j] = x[j] = g[j] = 0.0f;
        if (i >= d) continue;
        y[j] = convolve<T>(a.forward, row, before, head * d + i), x[j] = iv_canon(v_silu(y[j]));
        g[j] = from[i];
        for (unsigned v = 1; v < s.group; v++) g[j] = iv_canon(g[j] + from[v * d + i]);
        if (head < heads) g[j] = g[j] * s.query_scale;
        l[j % WARPS] = __fmaf_rn(x[j], x[j], l[j % WARPS]);
    }
    float r = __fdiv_rn(1.0f, __fsqrt_rn(fold_warp(fold_far(l)) + 1e-6f));
#pragma unroll
    for (int j = 0; j < WARPS; j++) l[j] = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        x[j] = x[j] * r;
        if (lane + 32 * j < d) l[j % WARPS] = __fmaf_rn(g[j], x[j], l[j % WARPS]);
    }
    float c = fold_warp(fold_far(l)), *to = a.dx + row * s.width + head * d;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (lane + 32 * j < d) to[lane + 32 * j] = sum_backward(y[j], iv_canon(__fmaf_rn(-x[j], c, g[j]) * r));
}

/* The gradient of a decay to those of a and of a_log. */
IV_DEVICE void gates_backward(const backward_args &a, size_t row) {
    const iv_gpu_delta_args &f = a.forward;
    unsigned heads = f.shape.value_heads;
    float *da = a.dx + (row + 1) * f.shape.width - heads;
    for (unsigned h = threadIdx.x % 32; h < heads; h += 32) {
        float d = da[h], decay = f.gates[row * 2 * heads + h], of_a = f.kept.logits[row * heads + h];
        a.d_log[row * heads + h] = iv_canon(d * decay);
        da[h] = iv_canon((d * (0.0f - v_exp(f.a_log[h]))) * iv_sigmoid(of_a + f.dt_bias[h]));
    }
}

/* A block has a row, or a part of its heads and channels. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(UNIT_WARPS * 32) mix_backward(const __grid_constant__ backward_args a) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    int index = a.forward.row_spans[row];
    if (index < 0) return;
    int before = (int)row - a.forward.spans[index].first_row;
    unsigned heads = 2 * s.key_heads, values = s.value_heads * s.value_dim, chunks = (values + CHUNK - 1) / CHUNK;
    unsigned unit = blockIdx.y * UNIT_WARPS + threadIdx.x / 32;
    if (unit < heads) {
        head_backward<T, PER>(a, row, before, unit);
    } else if (unit < heads + chunks) {
        unsigned from = (unit - heads) * CHUNK;
        for (unsigned i = from + threadIdx.x % 32; i < min(from + CHUNK, values); i += 32) {
            unsigned c = heads * s.key_dim + i;
            float *d = a.dx + row * s.width + c;
            *d = sum_backward(convolve<T>(a.forward, row, before, c), *d);
        }
    } else if (unit == heads + chunks) {
        gates_backward(a, row);
    }
}

template <iv_dtype T> static int launch_mix(const backward_args *a, cudaStream_t stream) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    size_t units = 2 * s->key_heads + (s->value_heads * s->value_dim + CHUNK - 1) / CHUNK + 1;
    dim3 grid((unsigned)a->forward.rows, (unsigned)((units + UNIT_WARPS - 1) / UNIT_WARPS));
    return iv_launch(s->key_dim <= 128 ? mix_backward<T, 4> : mix_backward<T, 16>, grid, UNIT_WARPS * 32, stream, *a);
}

int iv_gpu_delta_mix_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    if (a->forward.rows == 0 || a->forward.shape.value_heads == 0) return 0;
    if (a->forward.shape.key_dim > 512 || a->forward.shape.group_first) return (int)cudaErrorInvalidValue;
    if (iv_gpu_delta_rows_backward_takes(a)) return iv_gpu_delta_mix_backward_128(a, stream);
    switch (a->forward.shape.type) {
    case IV_BF16: return launch_mix<IV_BF16>(a, stream);
    case IV_F16: return launch_mix<IV_F16>(a, stream);
    case IV_F32: return launch_mix<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- through the convolution ------------------------------------------------------------------------------------ */

/* The gradient of a channel's input at a row, behind which `behind` rows of its sequence come. */
IV_DEVICE float input_gradient(const backward_args &a, size_t row, int behind, unsigned c) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    int taps = (int)s.taps;
    float d = 0.0f;
    for (int j = 0; j < taps; j++) {
        int later = taps - 1 - j;
        if (later <= behind)
            d = __fmaf_rn(a.forward.conv[(size_t)c * s.taps + j], a.dx[(row + later) * s.width + c], d);
    }
    return iv_canon(d);
}

/* A part of the projection's row: its first column, and how many. */
typedef struct part {
    unsigned first, n;
} part;

/* q, k, v, z, b, a; or b, c, x. */
IV_DEVICE part part_at(const iv_gpu_delta_shape &s, int i) {
    unsigned keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim;
    if (s.value_heads == 0) return {i * s.channels, s.channels};
    if (i < 2) return {i * keys, keys};
    if (i < 4) return {2 * keys + (i - 2) * values, values};
    return {s.channels + values + (i - 4) * s.value_heads, s.value_heads};
}

/* The gradient in a column of the projection's row. */
template <iv_dtype T> IV_DEVICE float column_gradient(const backward_args &a, size_t row, int behind, unsigned column) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned c = s.channels;
    if (s.value_heads) return column < c ? input_gradient(a, row, behind, column) : a.dx[row * s.width + column];
    if (column >= c && column < 2 * c) return a.dx[row * s.width + column];
    unsigned channel = column % c;
    size_t other = row * s.width + (column < c ? 2 * c : 0) + channel;
    return iv_canon(input_gradient(a, row, behind, channel) * get<T>(a.forward.kept.z, other));
}

/* A thread has a column of dy. */
template <iv_dtype T>
static __global__ void __launch_bounds__(COLUMN_THREADS) inputs_backward(const __grid_constant__ backward_args a) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    unsigned column = blockIdx.y * COLUMN_THREADS + threadIdx.x;
    if (column >= a.dy_stride) return;
    int index = a.forward.row_spans[row], parts = a.forward.shape.value_heads ? IV_GPU_DELTA_PARTS : 3;
    unsigned run = 0;
    for (int i = 0; i < parts; i++) run += ((unsigned)a.leaf_outputs[i] + 15) / 16 * 16;
    unsigned leaf = column / run, at = column % run;
    float d = 0.0f;
    for (int i = 0; i < parts && leaf < a.leaves && index >= 0; i++) {
        unsigned outputs = (unsigned)a.leaf_outputs[i], padded = (outputs + 15) / 16 * 16;
        part p = part_at(a.forward.shape, i);
        if (at < padded) {
            unsigned output = leaf * outputs + at;
            iv_gpu_state_span span = a.forward.spans[index];
            if (at < outputs && output < p.n)
                d = column_gradient<T>(a, row, span.first_row + span.rows - 1 - (int)row, p.first + output);
            break;
        }
        at -= padded;
    }
    put<T>(a.dy, row * a.dy_stride + column, d);
}

int iv_gpu_delta_inputs_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    if (a->forward.rows == 0 || a->dy_stride == 0) return 0;
    if (iv_gpu_delta_rows_backward_takes(a)) return iv_gpu_delta_inputs_backward_128(a, stream);
    dim3 grid((unsigned)a->forward.rows, (unsigned)((a->dy_stride + COLUMN_THREADS - 1) / COLUMN_THREADS));
    cudaStream_t s = (cudaStream_t)stream;
    switch (a->forward.shape.type) {
    case IV_BF16: return iv_launch(inputs_backward<IV_BF16>, grid, COLUMN_THREADS, s, *a);
    case IV_F16: return iv_launch(inputs_backward<IV_F16>, grid, COLUMN_THREADS, s, *a);
    case IV_F32: return iv_launch(inputs_backward<IV_F32>, grid, COLUMN_THREADS, s, *a);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- short convolutions ------------------------------------------------------------------------------------------ */

template <iv_dtype T>
static __global__ void __launch_bounds__(COLUMN_THREADS) conv_backward(const __grid_constant__ backward_args a) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, channels = a.forward.shape.channels, width = a.forward.shape.width;
    unsigned c = blockIdx.y * COLUMN_THREADS + threadIdx.x;
    int index = a.forward.row_spans[row];
    if (index < 0 || c >= channels) return;
    float y = convolve<T>(a.forward, row, (int)row - a.forward.spans[index].first_row, c);
    float d = a.dattended[row * channels + c], gate = get<T>(a.forward.kept.z, row * width + channels + c);
    a.dx[row * width + c] = iv_canon(d * gate), a.dx[row * width + channels + c] = iv_canon(d * y);
}

int iv_gpu_conv_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    if (a->forward.rows == 0 || a->forward.shape.channels == 0) return 0;
    dim3 grid((unsigned)a->forward.rows, (a->forward.shape.channels + COLUMN_THREADS - 1) / COLUMN_THREADS);
    cudaStream_t s = (cudaStream_t)stream;
    switch (a->forward.shape.type) {
    case IV_BF16: return iv_launch(conv_backward<IV_BF16>, grid, COLUMN_THREADS, s, *a);
    case IV_F16: return iv_launch(conv_backward<IV_F16>, grid, COLUMN_THREADS, s, *a);
    case IV_F32: return iv_launch(conv_backward<IV_F32>, grid, COLUMN_THREADS, s, *a);
    default: return (int)cudaErrorInvalidValue;
    }
}
