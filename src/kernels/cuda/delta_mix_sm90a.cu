/* delta_mix_sm90a.cu: rows of a layer of linear attention before and behind the delta rule, for heads of 128 keys and
 * 128 values, four taps, 16 bits, in tc16. A warp has 128 channels, a lane four neighbors; what it reads is on its way
 * before the first value is used. */
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/launch.cuh"

enum { MIX_WARPS = 4, DIM = 128, TAPS = 4, BEFORE = TAPS - 1, MANY = 8, NORMS = 4 };

/* ---- inputs of the convolution: four channels from c on ---------------------------------------------------------- */

template <iv_dtype T> IV_DEVICE uint2 own_inputs(const iv_gpu_delta_args &a, size_t row, unsigned c) {
    float4 x = *(const float4 *)(a.x + row * a.shape.width + c);
    return make_uint2(iv_pack16(T, x.x, x.y), iv_pack16(T, x.z, x.w));
}

IV_DEVICE uint2 *inputs_in(const iv_gpu_delta_args &a, unsigned char *inputs, int at, unsigned c) {
    return (uint2 *)(inputs + ((size_t)at * a.shape.channels + c) * 2);
}

/* Of a position: of the span's rows, or as its first block's buffer or the slot before has it. */
template <iv_dtype T>
IV_DEVICE uint2 inputs_at(const iv_gpu_delta_args &a, const delta_span &s, int position, unsigned c) {
    int at = position - s.first * BLOCK + BEFORE;
    if (position >= s.position) return own_inputs<T>(a, (size_t)(s.row + position - s.position), c);
    if (s.position % BLOCK) return *inputs_in(a, s.now + a.shape.tail_inputs, at, c);
    return s.from ? *inputs_in(a, (unsigned char *)s.from + a.shape.slot_inputs, at, c) : make_uint2(0, 0);
}

/* Keeps them wherever later rows will look for them. */
IV_DEVICE void keep_inputs(const iv_gpu_delta_args &a, const delta_span &s, int position, unsigned c, uint2 x) {
    int first = s.first * BLOCK, last = s.last * BLOCK;
    if (IV_GPU_DELTA_KEEPS(a)) {
        if (position >= 0) *inputs_in(a, (unsigned char *)a.kept.inputs, s.row + position, c) = x;
        return;
    }
    if (position < first + BLOCK && (position >= s.position || s.position == first))
        *inputs_in(a, s.now + a.shape.tail_inputs, position - first + BEFORE, c) = x;
    if (last > first && position >= last - BEFORE)
        *inputs_in(a, s.next + a.shape.tail_inputs, position - last + BEFORE, c) = x;
    for (uint32_t w = 0; w < s.at->write_count; w++) {
        int at = position - (int)s.at->writes[w].block * BLOCK + BEFORE;
        if (at < 0 || at >= BEFORE) continue;
        *inputs_in(a, a.slots + s.at->writes[w].slot * a.slot_bytes + a.shape.slot_inputs, at, c) = x;
    }
}

/* ---- four neighbors of a head of 128 ------------------------------------------------------------------------------
 */

/* The sum of squares in the law's lanes, in every lane of the warp: strides 64 to 4, then 2 and 1. */
IV_DEVICE float sum_of_squares(const float x[4]) {
    float l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) l[i] = fold_warp(__fmul_rn(x[i], x[i]));
    return (l[0] + l[2]) + (l[1] + l[3]);
}

/* A head of q or k. */
template <iv_dtype T> IV_DEVICE void put_head(const iv_gpu_delta_args &a, size_t row, unsigned head, const float x[4]) {
    unsigned heads = a.shape.key_heads;
    float r = __fdiv_rn(1.0f, __fsqrt_rn(sum_of_squares(x) + 1e-6f)), y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = head < heads ? (x[i] * r) * a.shape.query_scale : x[i] * r;
    uint2 bits = make_uint2(iv_pack16(T, y[0], y[1]), iv_pack16(T, y[2], y[3]));
    ((uint2 *)a.qk)[(row * 2 * heads + head) * (DIM / 4) + threadIdx.x % 32] = bits;
    bool finite = delta_finite<T>(bits.x & 0xffffu) && delta_finite<T>(bits.x >> 16) &&
                  delta_finite<T>(bits.y & 0xffffu) && delta_finite<T>(bits.y >> 16);
    if (head >= heads && !finite) delta_bad(a, row);
}

/* ---- the convolution -------------------------------------------------------------------------------------------- */

/* n rows of one span. w: of each channel, by tap. */
template <iv_dtype T, int ROWS>
IV_DEVICE void mix_span(const iv_gpu_delta_args &a, const delta_span &s, size_t row, int n, unsigned unit,
                        const float4 (&w)[4]) {
    unsigned c = unit * DIM + threadIdx.x % 32 * 4, heads = 2 * a.shape.key_heads;
    int position = s.position + (int)row - s.row;
    uint2 x[ROWS + BEFORE];
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[BEFORE + r] = r < n ? own_inputs<T>(a, row + r, c) : make_uint2(0, 0);
#pragma unroll
    for (int e = 0; e < BEFORE; e++) x[e] = inputs_at<T>(a, s, position - BEFORE + e, c);
    if (position == s.position)
#pragma unroll
        for (int e = 0; e < BEFORE; e++) keep_inputs(a, s, position - BEFORE + e, c, x[e]);
    bool border = s.first == position / BLOCK || position + n > s.last * BLOCK - BEFORE ||
                  position % BLOCK + n > BLOCK - BEFORE || IV_GPU_DELTA_KEEPS(a); /* of some rows inputs are kept */
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (border && r < n) keep_inputs(a, s, position + r, c, x[BEFORE + r]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= n) break;
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float t[TAPS];
#pragma unroll
            for (int e = 0; e < TAPS; e++) {
                uint32_t pair = i < 2 ? x[r + e].x : x[r + e].y;
                t[e] = iv_widen16(T, (uint16_t)(i % 2 ? pair >> 16 : pair));
            }
            float sum = __fmaf_rn(w[i].y, t[1], __fmaf_rn(w[i].x, t[0], 0.0f));
            y[i] = iv_canon(v_silu(__fmaf_rn(w[i].w, t[3], __fmaf_rn(w[i].z, t[2], sum))));
        }
        if (unit < heads)
            put_head<T>(a, row + r, unit, y);
        else
            *(float4 *)(a.values + (row + r) * (a.shape.channels - heads * DIM) + c - heads * DIM) =
                make_float4(y[0], y[1], y[2], y[3]);
    }
}

/* A block has ROWS rows, or a part of their channels. */
template <iv_dtype T, int ROWS>
static __global__ void __launch_bounds__(MIX_WARPS * 32) mix(const __grid_constant__ iv_gpu_delta_args a) {
    unsigned unit = blockIdx.y * MIX_WARPS + threadIdx.x / 32, units = a.shape.channels / DIM;
    size_t row = (size_t)blockIdx.x * ROWS, end = min(row + ROWS, a.rows);
    iv_let_next();
    float4 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (unit < units) w[i] = ((const float4 *)a.conv)[unit * DIM + threadIdx.x % 32 * 4 + i];
    iv_wait();
    if (unit > units) return;
    for (int n; row < end; row += n) {
        int index = a.row_spans[row];
        if (index < 0) return;
        delta_span s = delta_span_of(a, (size_t)index);
        n = min((int)(end - row), s.row + s.rows - (int)row);
        if (unit < units)
            mix_span<T, ROWS>(a, s, row, n, unit, w);
        else
            for (int r = 0; r < n; r++) delta_gates(a, row + r);
    }
}

template <iv_dtype T> static int launch_mix(const iv_gpu_delta_args *a, cudaStream_t stream) {
    unsigned units = a->shape.channels / DIM + 1;
    dim3 grid((unsigned)((a->rows + MANY - 1) / MANY), (units + MIX_WARPS - 1) / MIX_WARPS);
    if (!a->decode) return iv_launch(mix<T, MANY>, grid, MIX_WARPS * 32, stream, *a);
    grid.x = (unsigned)a->rows;
    return iv_launch(mix<T, 1>, grid, MIX_WARPS * 32, stream, *a);
}

int iv_gpu_delta_mix_128(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    switch (a->shape.type) {
    case IV_BF16: return launch_mix<IV_BF16>(a, stream);
    case IV_F16: return launch_mix<IV_F16>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- the gated norm -----------------------------------------------------------------------------------------------
 */

/* A warp has NORMS heads of a row. */
template <iv_dtype T>
static __global__ void __launch_bounds__(MIX_WARPS * 32)
    norm(const __grid_constant__ iv_gpu_delta_args a, bool longer) {
    size_t row = blockIdx.x;
    unsigned lane = threadIdx.x % 32, heads = a.shape.value_heads,
             first = (blockIdx.y * MIX_WARPS + threadIdx.x / 32) * NORMS;
    iv_let_next();
    float4 weight = ((const float4 *)a.norm)[lane], o[NORMS], z[NORMS];
    iv_wait();
    int index = a.row_spans[row];
    if (first >= heads || index < 0 || (longer && delta_is_short(a.spans[index]))) return;
    const float4 *values = (const float4 *)(a.values + row * heads * DIM),
                 *gate = (const float4 *)(a.x + row * a.shape.width + a.shape.channels);
#pragma unroll
    for (int h = 0; h < NORMS; h++)
        if (first + h < heads)
            o[h] = values[(first + h) * (DIM / 4) + lane], z[h] = gate[(first + h) * (DIM / 4) + lane];
#pragma unroll
    for (int h = 0; h < NORMS; h++) {
        if (first + h >= heads) return;
        float x[4] = {o[h].x, o[h].y, o[h].z, o[h].w}, g[4] = {z[h].x, z[h].y, z[h].z, z[h].w};
        float w[4] = {weight.x, weight.y, weight.z, weight.w}, r = norm_scale(sum_of_squares(x), DIM, a.eps);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = v_silu(g[i]) * iv_canon((x[i] * r) * w[i]);
        size_t at = (row * heads + first + h) * (DIM / 4) + lane;
        ((uint2 *)a.out)[at] = make_uint2(iv_pack16(T, x[0], x[1]), iv_pack16(T, x[2], x[3]));
        if (!IV_GPU_DELTA_KEEPS(a)) continue;
        ((uint2 *)a.kept.o)[at] = make_uint2(iv_pack16(T, o[h].x, o[h].y), iv_pack16(T, o[h].z, o[h].w));
        ((uint2 *)a.kept.z)[at] = make_uint2(iv_pack16(T, z[h].x, z[h].y), iv_pack16(T, z[h].z, z[h].w));
    }
}

int iv_gpu_delta_norm_128(const iv_gpu_delta_args *a, bool longer, iv_gpu_stream stream) {
    unsigned each = MIX_WARPS * NORMS;
    dim3 grid((unsigned)a->rows, (a->shape.value_heads + each - 1) / each);
    switch (a->shape.type) {
    case IV_BF16: return iv_launch(norm<IV_BF16>, grid, MIX_WARPS * 32, (cudaStream_t)stream, *a, longer);
    case IV_F16: return iv_launch(norm<IV_F16>, grid, MIX_WARPS * 32, (cudaStream_t)stream, *a, longer);
    default: return (int)cudaErrorInvalidValue;
    }
}
