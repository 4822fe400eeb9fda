/* delta_rows.cu: what the rows of a layer with a state do by themselves: the convolution and its inputs, q and k,
 * decays and betas, the gated norm; short convolutions between gates; the output gate of attention. */
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/launch.cuh"

enum { MIX_WARPS = 4, CHUNK = 128 }; /* CHUNK: channels of v that a warp has */

/* ---- inputs of the convolution ------------------------------------------------------------------------------- */

/* What a row of the batch gives: R(x), or between gates R(b x). */
template <iv_dtype T, bool GATED> IV_DEVICE uint32_t own_input(const iv_gpu_delta_args &a, size_t row, unsigned c) {
    const float *x = a.x + row * a.shape.width + c;
    return rounded<T>(GATED ? __fmul_rn(x[0], x[2 * (size_t)a.shape.channels]) : x[0]);
}

/* That of a position: of the span's rows, or as its first block's buffer or the slot before has it. */
template <iv_dtype T, bool GATED>
IV_DEVICE uint32_t input_at(const iv_gpu_delta_args &a, const delta_span &s, int position, unsigned c) {
    if (position >= s.position) return own_input<T, GATED>(a, (size_t)(s.row + position - s.position), c);
    int before = (int)a.shape.taps - 1;
    size_t at = (size_t)(position - s.first * BLOCK + before) * a.shape.channels + c;
    if (s.position % BLOCK) return get_bits<T>(s.now + a.shape.tail_inputs, at);
    return s.from ? get_bits<T>(s.from + a.shape.slot_inputs, at) : 0;
}

/* Keeps it wherever later rows will look for it. */
template <iv_dtype T>
IV_DEVICE void keep_input(const iv_gpu_delta_args &a, const delta_span &s, int position, unsigned c, uint32_t bits) {
    int before = (int)a.shape.taps - 1, first = s.first * BLOCK, last = s.last * BLOCK;
    size_t channels = a.shape.channels;
    if (IV_GPU_DELTA_KEEPS(a)) {
        if (position >= 0) put_bits<T>(a.kept.inputs, (size_t)(s.row + position) * channels + c, bits);
        return;
    }
    if (position < first + BLOCK && (position >= s.position || s.position == first))
        put_bits<T>(s.now + a.shape.tail_inputs, (size_t)(position - first + before) * channels + c, bits);
    if (last > first && position >= last - before)
        put_bits<T>(s.next + a.shape.tail_inputs, (size_t)(position - last + before) * channels + c, bits);
    for (uint32_t w = 0; w < s.at->write_count; w++) {
        int border = (int)s.at->writes[w].block * BLOCK, at = position - border + before;
        if (at < 0 || position >= border) continue;
        put_bits<T>(a.slots + s.at->writes[w].slot * a.slot_bytes + a.shape.slot_inputs, (size_t)at * channels + c,
                    bits);
    }
}

/* The sum of taps and inputs of one channel at a row. Its input is kept, and at the span's first row those before. */
template <iv_dtype T, bool GATED>
IV_DEVICE float convolve(const iv_gpu_delta_args &a, const delta_span &s, int position, unsigned c, bool *finite) {
    int before = (int)a.shape.taps - 1;
    float y = 0.0f;
    for (int j = 0; j <= before; j++) {
        uint32_t bits = input_at<T, GATED>(a, s, position - before + j, c);
        if (j == before || position == s.position) keep_input<T>(a, s, position - before + j, c, bits);
        if (j == before && !delta_finite<T>(bits)) *finite = false;
        y = __fmaf_rn(a.conv[(size_t)c * a.shape.taps + j], widened<T>(bits), y);
    }
    return y;
}

/* ---- delta layers ---------------------------------------------------------------------------------------------- */

/* A head of q or k from its convolution, of which lane has x[j], element lane + 32 j. */
template <iv_dtype T, int PER>
IV_DEVICE void put_head(const iv_gpu_delta_args &a, size_t row, unsigned head, const float x[PER]) {
    unsigned lane = threadIdx.x % 32, d = a.shape.key_dim, heads = a.shape.key_heads;
    float l[WARPS] = {0};
    bool finite = true;
#pragma unroll
    for (int j = 0; j < PER; j++) l[j % WARPS] = __fmaf_rn(x[j], x[j], l[j % WARPS]);
    float sum = fold_warp(fold_far(l)), r = __fdiv_rn(1.0f, __fsqrt_rn(sum + 1e-6f));
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        float y = x[j] * r;
        uint32_t bits = rounded<T>(head < heads ? y * a.shape.query_scale : y);
        if (i >= d) continue;
        put_bits<T>(a.qk, row * 2 * heads * d + head * d + i, bits);
        finite = finite && (head < heads || delta_finite<T>(bits));
    }
    if (!finite) delta_bad(a, row);
}

IV_DEVICE float activated(float y) { return iv_canon(v_silu(y)); }

/* A warp has a head of q or k. */
template <iv_dtype T, int PER>
IV_DEVICE void mix_head(const iv_gpu_delta_args &a, const delta_span &s, size_t row, int position, unsigned head) {
    unsigned lane = threadIdx.x % 32, d = a.shape.key_dim;
    float x[PER];
    bool unused;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        x[j] = i < d ? activated(convolve<T, false>(a, s, position, head * d + i, &unused)) : 0.0f;
    }
    put_head<T, PER>(a, row, head, x);
}

/* A block has a row, or a part of its heads and channels. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(MIX_WARPS * 32) mix(const __grid_constant__ iv_gpu_delta_args a) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    int index = a.row_spans[row];
    if (index < 0) return;
    delta_span s = delta_span_of(a, (size_t)index);
    int position = s.position + (int)row - s.row;
    unsigned heads = 2 * a.shape.key_heads, values = a.shape.value_heads * a.shape.value_dim;
    unsigned unit = blockIdx.y * MIX_WARPS + threadIdx.x / 32, chunks = (values + CHUNK - 1) / CHUNK;
    if (unit < heads) {
        mix_head<T, PER>(a, s, row, position, unit);
    } else if (unit < heads + chunks) {
        bool finite;
        unsigned from = (unit - heads) * CHUNK;
        for (unsigned i = from + threadIdx.x % 32; i < min(from + CHUNK, values); i += 32)
            a.values[row * values + i] =
                activated(convolve<T, false>(a, s, position, heads * a.shape.key_dim + i, &finite));
    } else if (unit == heads + chunks) {
        delta_gates(a, row);
    }
}

template <iv_dtype T> static int launch_mix(const iv_gpu_delta_args *a, cudaStream_t stream) {
    const iv_gpu_delta_shape *s = &a->shape;
    size_t units = 2 * s->key_heads + (s->value_heads * s->value_dim + CHUNK - 1) / CHUNK + 1;
    dim3 grid((unsigned)a->rows, (unsigned)((units + MIX_WARPS - 1) / MIX_WARPS));
    return iv_launch(s->key_dim <= 128 ? mix<T, 4> : mix<T, 16>, grid, MIX_WARPS * 32, stream, *a);
}

/* Does delta_mix_sm90a.cu take the shape? */
static bool is_usual(const iv_gpu_delta_shape *s) {
    return s->arithmetic == IV_TC16 && s->key_dim == 128 && s->value_dim == 128 && s->taps == 4 && s->width % 4 == 0;
}

int iv_gpu_delta_mix(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    if (a->rows == 0 || a->shape.channels == 0) return 0;
    if (a->shape.key_dim > 512) return (int)cudaErrorInvalidValue;
    if (is_usual(&a->shape)) return iv_gpu_delta_mix_128(a, stream);
    switch (a->shape.type) {
    case IV_BF16: return launch_mix<IV_BF16>(a, stream);
    case IV_F16: return launch_mix<IV_F16>(a, stream);
    case IV_F32: return launch_mix<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* A warp has a head of a row. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(MIX_WARPS * 32)
    norm(const __grid_constant__ iv_gpu_delta_args a, bool longer) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    unsigned head = blockIdx.y * MIX_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, d = a.shape.value_dim;
    if (head >= a.shape.value_heads || a.row_spans[row] < 0) return;
    if (longer && delta_is_short(a.spans[a.row_spans[row]])) return;
    size_t at = (row * a.shape.value_heads + head) * d;
    const float *z = a.x + row * a.shape.width + a.shape.channels + head * d;
    float o[PER], l[WARPS] = {0};
#pragma unroll
    for (int j = 0; j < PER; j++) {
        o[j] = lane + 32 * j < d ? a.values[at + lane + 32 * j] : 0.0f;
        l[j % WARPS] = __fmaf_rn(o[j], o[j], l[j % WARPS]);
    }
    float r = norm_scale(fold_warp(fold_far(l)), d, a.eps);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        unsigned i = lane + 32 * j;
        if (i < d && IV_GPU_DELTA_KEEPS(a)) put<T>(a.kept.o, at + i, o[j]), put<T>(a.kept.z, at + i, z[i]);
        if (i < d) put<T>(a.out, at + i, v_silu(z[i]) * iv_canon((o[j] * r) * a.norm[i]));
    }
}

template <iv_dtype T> static int launch_norm(const iv_gpu_delta_args *a, bool longer, cudaStream_t stream) {
    dim3 grid((unsigned)a->rows, (a->shape.value_heads + MIX_WARPS - 1) / MIX_WARPS);
    return iv_launch(a->shape.value_dim <= 128 ? norm<T, 4> : norm<T, 16>, grid, MIX_WARPS * 32, stream, *a, longer);
}

int iv_gpu_delta_norm(const iv_gpu_delta_args *a, bool longer, iv_gpu_stream stream) {
    if (a->rows == 0 || a->shape.value_heads == 0) return 0;
    if (a->shape.value_dim > 512) return (int)cudaErrorInvalidValue;
    if (is_usual(&a->shape)) return iv_gpu_delta_norm_128(a, longer, stream);
    switch (a->shape.type) {
    case IV_BF16: return launch_norm<IV_BF16>(a, longer, stream);
    case IV_F16: return launch_norm<IV_F16>(a, longer, stream);
    case IV_F32: return launch_norm<IV_F32>(a, longer, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- short convolutions ---------------------------------------------------------------------------------------- */

template <iv_dtype T>
static __global__ void __launch_bounds__(CHUNK) gated_conv(const __grid_constant__ iv_gpu_delta_args a) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, channels = a.shape.channels;
    unsigned c = blockIdx.y * CHUNK + threadIdx.x;
    int index = a.row_spans[row];
    if (index < 0 || c >= channels) return;
    delta_span s = delta_span_of(a, (size_t)index);
    bool finite = true;
    float y = convolve<T, true>(a, s, s.position + (int)row - s.row, c, &finite);
    put<T>(a.out, row * channels + c, __fmul_rn(a.x[row * a.shape.width + channels + c], y));
    for (size_t part = 0; part < 3 && IV_GPU_DELTA_KEEPS(a); part++) {
        size_t at = row * a.shape.width + part * channels + c;
        put<T>(a.kept.z, at, a.x[at]);
    }
    if (!finite) delta_bad(a, row);
}

int iv_gpu_conv(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    if (a->rows == 0 || a->shape.channels == 0) return 0;
    dim3 grid((unsigned)a->rows, (a->shape.channels + CHUNK - 1) / CHUNK);
    switch (a->shape.type) {
    case IV_BF16: return iv_launch(gated_conv<IV_BF16>, grid, CHUNK, (cudaStream_t)stream, *a);
    case IV_F16: return iv_launch(gated_conv<IV_F16>, grid, CHUNK, (cudaStream_t)stream, *a);
    case IV_F32: return iv_launch(gated_conv<IV_F32>, grid, CHUNK, (cudaStream_t)stream, *a);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- the output gate of attention ------------------------------------------------------------------------------ */

template <iv_dtype T> static __global__ void gate_rows(const float *gate, size_t stride, size_t n, void *attended) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, i = (size_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (i < n) put<T>(attended, row * n + i, get<T>(attended, row * n + i) * iv_sigmoid(gate[row * stride + i]));
}

int iv_gpu_attention_gate(const float *gate, size_t gate_stride, size_t rows, size_t n, iv_dtype type, void *attended,
                          iv_gpu_stream stream) {
    if (rows == 0 || n == 0) return 0;
    dim3 grid((unsigned)rows, (unsigned)((n + 255) / 256));
    switch (type) {
    case IV_BF16: return iv_launch(gate_rows<IV_BF16>, grid, 256, (cudaStream_t)stream, gate, gate_stride, n, attended);
    case IV_F16: return iv_launch(gate_rows<IV_F16>, grid, 256, (cudaStream_t)stream, gate, gate_stride, n, attended);
    case IV_F32: return iv_launch(gate_rows<IV_F32>, grid, 256, (cudaStream_t)stream, gate, gate_stride, n, attended);
    default: return (int)cudaErrorInvalidValue;
    }
}
