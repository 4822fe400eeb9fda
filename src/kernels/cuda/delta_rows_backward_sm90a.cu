/* delta_rows_backward_sm90a.cu: what rows of a layer of linear attention do by themselves, backward, for heads of 128
 * keys and 128 values, four taps, 16 bits. A lane has four neighbors; what is read for several rows is on its way
 * before the first value is used. The law's sums are those of delta_rows_backward.cu. */
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/launch.cuh"

enum { DIM = 128, TAPS = 4, BEFORE = TAPS - 1, UNIT_WARPS = 4, LEAF_WARPS = IV_LEAVES_MAX, ROWS = 8 };

typedef iv_gpu_delta_backward_args backward_args;

/* Four neighbors. */
struct four {
    float x[4];
};

IV_DEVICE four four_of(float4 v) { return {v.x, v.y, v.z, v.w}; }
IV_DEVICE float4 float4_of(const four &v) { return make_float4(v.x[0], v.x[1], v.x[2], v.x[3]); }
template <iv_dtype T> IV_DEVICE four widened_four(uint2 v) {
    return {iv_widen16(T, (uint16_t)v.x), iv_widen16(T, (uint16_t)(v.x >> 16)), iv_widen16(T, (uint16_t)v.y),
            iv_widen16(T, (uint16_t)(v.y >> 16))};
}
template <iv_dtype T> IV_DEVICE uint2 rounded_four(const four &v) {
    return make_uint2(iv_pack16(T, v.x[0], v.x[1]), iv_pack16(T, v.x[2], v.x[3]));
}

/* The sum of the products of a warp's 128 elements in the law's lanes: strides 64 to 4, then 2 and 1. */
IV_DEVICE float dot_of(const four &a, const four &b) {
    float l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) l[i] = fold_warp(__fmaf_rn(a.x[i], b.x[i], 0.0f) + 0.0f);
    return (l[0] + l[2]) + (l[1] + l[3]);
}

/* act' of silu. */
IV_DEVICE void silu_backward_of(float gate, float up, float d, float *dgate, float *dup) {
    v_activate_backward(IV_ACTIVATION_SILU, iv_activation_floats{}, gate, up, d, dgate, dup);
    *dgate = iv_canon(*dgate), *dup = iv_canon(*dup);
}

/* ---- the gated norm ---------------------------------------------------------------------------------------------- */

/* A head's values, loaded. */
struct norm_head_values {
    uint2 o, z;
    float4 d;
};

IV_DEVICE norm_head_values load_norm_head(const backward_args &a, size_t head) { /* of all rows */
    size_t at = head * (DIM / 4) + threadIdx.x % 32;
    return {((const uint2 *)a.forward.kept.o)[at], ((const uint2 *)a.forward.kept.z)[at],
            ((const float4 *)a.dattended)[at]};
}

template <iv_dtype T>
IV_DEVICE void norm_head_backward(const backward_args &a, size_t row, unsigned head, const norm_head_values &v,
                                  const four &w, four &h) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    four o = widened_four<T>(v.o), z = widened_four<T>(v.z), d = four_of(v.d), dz, g;
    float r = norm_scale(dot_of(o, o), DIM, a.forward.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float dnormed;
        silu_backward_of(z.x[i], iv_canon((o.x[i] * r) * w.x[i]), d.x[i], &dz.x[i], &dnormed);
        o.x[i] = o.x[i] * r;
        h.x[i] = iv_canon(__fmaf_rn(dnormed, o.x[i], h.x[i]));
        g.x[i] = dnormed * w.x[i];
    }
    float c = __fdiv_rn(dot_of(g, o), (float)DIM);
#pragma unroll
    for (int i = 0; i < 4; i++) g.x[i] = iv_canon(__fmaf_rn(-o.x[i], c, g.x[i]) * r);
    size_t at = (row * s.value_heads + head) * (DIM / 4) + threadIdx.x % 32;
    ((uint2 *)a.dout)[at] = rounded_four<T>(g);
    ((float4 *)(a.dx + row * s.width + s.channels + head * DIM))[threadIdx.x % 32] = float4_of(dz);
}

/* A block has a row, a warp a leaf of its heads, in order. */
template <iv_dtype T>
static __global__ void __launch_bounds__(LEAF_WARPS * 32) norm_backward_128(const __grid_constant__ backward_args a) {
    __shared__ __align__(16) float leaf[LEAF_WARPS][DIM];
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, leaves = (unsigned)a.leaves,
             each = s.value_heads / leaves;
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    if (a.forward.row_spans[row] < 0) return;
    four w = four_of(((const float4 *)a.forward.norm)[lane]), h = {};
    if (warp < leaves) {
        size_t first = row * s.value_heads + warp * each;
        norm_head_values now = load_norm_head(a, first), next = now;
        for (unsigned i = 0; i < each; i++, now = next) {
            if (i + 1 < each) next = load_norm_head(a, first + i + 1);
            norm_head_backward<T>(a, row, warp * each + i, now, w, h);
        }
    }
    *(float4 *)&leaf[warp][4 * lane] = float4_of(h);
    __syncthreads();
    unsigned e = threadIdx.x;
    if (e >= DIM) return;
    float t[LEAF_WARPS];
#pragma unroll
    for (unsigned i = 0; i < LEAF_WARPS; i++) t[i] = i < leaves ? leaf[i][e] : 0.0f;
#pragma unroll
    for (unsigned stride = 1; stride < LEAF_WARPS; stride *= 2)
#pragma unroll
        for (unsigned i = 0; i < LEAF_WARPS; i += 2 * stride)
            if (stride < leaves) t[i] = t[i] + t[i + stride];
    a.terms[row * DIM + e] = t[0];
}

/* ---- up to the sums of the convolution --------------------------------------------------------------------------- */

/* The taps of four channels from c on: by channel. */
struct four_taps {
    float4 of[4];
};
IV_DEVICE four_taps load_taps(const iv_gpu_delta_args &f, unsigned c) {
    const float4 *from = (const float4 *)f.conv + c;
    return {{from[0], from[1], from[2], from[3]}};
}

IV_DEVICE float tap(const float4 &w, int j) { return j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w; }

/* The gradient behind the norm of a head of queries or keys, of a row: x are its activated sums. */
IV_DEVICE four head_gradient(const backward_args &a, size_t row, unsigned head, const four &x) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned heads = s.key_heads, own = head % heads;
    const float4 *from =
        (const float4 *)(a.dkeys + ((row * 2 + head / heads) * s.value_heads + own * s.group) * DIM) + threadIdx.x % 32;
    four g = four_of(from[0]), y;
    for (unsigned v = 1; v < s.group; v++) {
        four more = four_of(from[v * (DIM / 4)]);
#pragma unroll
        for (int i = 0; i < 4; i++) g.x[i] = iv_canon(g.x[i] + more.x[i]);
    }
    if (head < heads)
#pragma unroll
        for (int i = 0; i < 4; i++) g.x[i] = g.x[i] * s.query_scale;
    float r = __fdiv_rn(1.0f, __fsqrt_rn(dot_of(x, x) + 1e-6f));
#pragma unroll
    for (int i = 0; i < 4; i++) y.x[i] = x.x[i] * r;
    float c = dot_of(g, y);
#pragma unroll
    for (int i = 0; i < 4; i++) g.x[i] = iv_canon(__fmaf_rn(-y.x[i], c, g.x[i]) * r);
    return g;
}

/* Decays' gradients to those of a and of a_log. */
IV_DEVICE void gate_gradients(const backward_args &a, size_t row) {
    const iv_gpu_delta_args &f = a.forward;
    unsigned heads = f.shape.value_heads;
    float *da = a.dx + (row + 1) * f.shape.width - heads;
    for (unsigned h = threadIdx.x % 32; h < heads; h += 32) {
        float d = da[h], decay = f.gates[row * 2 * heads + h], of_a = f.kept.logits[row * heads + h];
        a.d_log[row * heads + h] = iv_canon(d * decay);
        da[h] = iv_canon((d * (0.0f - v_exp(f.a_log[h]))) * iv_sigmoid(of_a + f.dt_bias[h]));
    }
}

/* A warp has 128 channels of ROWS rows, or the gates of all. */
template <iv_dtype T>
static __global__ void __launch_bounds__(UNIT_WARPS * 32) mix_backward_128(const __grid_constant__ backward_args a) {
    const iv_gpu_delta_args &f = a.forward;
    unsigned unit = blockIdx.y * UNIT_WARPS + threadIdx.x / 32, units = f.shape.channels / DIM,
             heads = 2 * f.shape.key_heads, c = unit * DIM + threadIdx.x % 32 * 4;
    size_t first = (size_t)blockIdx.x * ROWS;
    iv_let_next();
    iv_wait();
    if (unit > units) return;
    if (unit == units) {
        for (size_t row = first; row < first + ROWS && row < f.rows; row++)
            if (f.row_spans[row] >= 0) gate_gradients(a, row);
        return;
    }
    four_taps w = load_taps(f, c);
    uint2 in[ROWS + BEFORE];
    const uint2 *inputs = (const uint2 *)((const uint16_t *)f.kept.inputs + c);
    size_t stride = f.shape.channels / 4;
#pragma unroll
    for (int i = 0; i < ROWS + BEFORE; i++) {
        bool there = first + i >= BEFORE && first + i - BEFORE < f.rows;
        in[i] = there ? inputs[(first + i - BEFORE) * stride] : make_uint2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        size_t row = first + i;
        int index = row < f.rows ? f.row_spans[row] : -1;
        if (index < 0) continue;
        int before = (int)row - f.spans[index].first_row;
        four y = {}, x, d;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            four v = widened_four<T>(BEFORE - j <= before ? in[i + j] : make_uint2(0, 0));
#pragma unroll
            for (int e = 0; e < 4; e++) y.x[e] = __fmaf_rn(tap(w.of[e], j), v.x[e], y.x[e]);
        }
        float4 *to = (float4 *)(a.dx + row * f.shape.width + c);
        if (unit < heads) {
#pragma unroll
            for (int e = 0; e < 4; e++) x.x[e] = iv_canon(v_silu(y.x[e]));
            d = head_gradient(a, row, unit, x);
        } else {
            d = four_of(*to);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float unused;
            silu_backward_of(y.x[e], 1.0f, d.x[e], &d.x[e], &unused);
        }
        *to = float4_of(d);
    }
}

/* ---- through the convolution ------------------------------------------------------------------------------------- */

/* The column of dy of column c of the projection, of part `part` from `first` on. */
IV_DEVICE size_t column_in_dy(const backward_args &a, int part, unsigned first, unsigned c) {
    unsigned run = 0, at = 0, each = (unsigned)a.leaf_outputs[part];
#pragma unroll
    for (int i = 0; i < IV_GPU_DELTA_PARTS; i++) {
        if (i == part) at = run;
        run += ((unsigned)a.leaf_outputs[i] + 15) / 16 * 16;
    }
    unsigned leaf = (c - first) / each;
    return (size_t)leaf * run + at + (c - first) % each;
}

/* b and a, and zeros behind them in each leaf and behind all leaves: of a row, by a warp. */
template <iv_dtype T> IV_DEVICE void put_gates(const backward_args &a, size_t row, bool here) {
    const iv_gpu_delta_shape &s = a.forward.shape;
    unsigned each = (unsigned)a.leaf_outputs[4], padded = (each + 15) / 16 * 16, leaves = (unsigned)a.leaves;
    unsigned run = 2 * padded;
#pragma unroll
    for (int i = 0; i < 4; i++) run += (unsigned)a.leaf_outputs[i];
    for (unsigned i = threadIdx.x % 32; i < leaves * 2 * padded; i += 32) {
        unsigned leaf = i / (2 * padded), which = i % (2 * padded) / padded, e = i % padded;
        const float *from = a.dx + (row + 1) * s.width - (2 - which) * s.value_heads;
        put<T>(a.dy, row * a.dy_stride + leaf * run + run - (2 - which) * padded + e,
               here && e < each ? from[leaf * each + e] : 0.0f);
    }
    for (size_t i = leaves * run + threadIdx.x % 32; i < a.dy_stride; i += 32)
        put<T>(a.dy, row * a.dy_stride + i, 0.0f);
}

/* A warp has 128 channels or values of z of ROWS rows, or the gates of all. */
template <iv_dtype T>
static __global__ void __launch_bounds__(UNIT_WARPS * 32) inputs_backward_128(const __grid_constant__ backward_args a) {
    const iv_gpu_delta_args &f = a.forward;
    unsigned unit = blockIdx.y * UNIT_WARPS + threadIdx.x / 32, mixed = f.shape.channels / DIM,
             units = mixed + f.shape.value_heads, keys = f.shape.key_heads * DIM, c = unit * DIM + threadIdx.x % 32 * 4;
    size_t first = (size_t)blockIdx.x * ROWS, last = min(first + ROWS, f.rows);
    iv_let_next();
    iv_wait();
    if (unit > units) return;
    if (unit == units) {
        for (size_t row = first; row < last; row++) put_gates<T>(a, row, f.row_spans[row] >= 0);
        return;
    }
    int part = unit < f.shape.key_heads ? 0 : unit < 2 * f.shape.key_heads ? 1 : unit < mixed ? 2 : 3;
    unsigned part_first = part < 2 ? part * keys : part == 2 ? 2 * keys : f.shape.channels;
    uint2 *to = (uint2 *)((uint16_t *)a.dy + column_in_dy(a, part, part_first, c));
    const float4 *dx = (const float4 *)(a.dx + c);
    size_t stride = f.shape.width / 4;
    float4 d[ROWS + BEFORE];
#pragma unroll
    for (int i = 0; i < ROWS + BEFORE; i++) {
        bool there = first + i < f.rows && (i < ROWS || part < 3);
        d[i] = there ? dx[(first + i) * stride] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    four_taps w = {};
    if (part < 3) w = load_taps(f, c);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        size_t row = first + i;
        if (row >= last) break;
        int index = f.row_spans[row];
        four sum = {};
        if (index >= 0) {
            int behind = f.spans[index].first_row + f.spans[index].rows - 1 - (int)row;
#pragma unroll
            for (int j = 0; j < TAPS && part < 3; j++) {
                if (BEFORE - j > behind) continue;
                four v = four_of(d[i + BEFORE - j]);
#pragma unroll
                for (int e = 0; e < 4; e++) sum.x[e] = __fmaf_rn(tap(w.of[e], j), v.x[e], sum.x[e]);
            }
            if (part == 3) sum = four_of(d[i]);
        }
        to[row * (a.dy_stride / 4)] = rounded_four<T>(sum);
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

bool iv_gpu_delta_rows_backward_takes(const iv_gpu_delta_backward_args *a) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    bool heads = s->value_heads && s->key_dim == DIM && s->value_dim == DIM && s->taps == TAPS && s->type != IV_F32;
    for (int i = 0; i < 4 && heads; i++) heads = a->leaf_outputs[i] % DIM == 0;
    return heads && s->width % 4 == 0 && a->dy_stride % 4 == 0;
}

int iv_gpu_delta_norm_backward_128(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    auto *kernel = a->forward.shape.type == IV_BF16 ? norm_backward_128<IV_BF16> : norm_backward_128<IV_F16>;
    return iv_launch(kernel, dim3((unsigned)a->forward.rows), LEAF_WARPS * 32, (cudaStream_t)stream, *a);
}

static dim3 units_grid(const iv_gpu_delta_backward_args *a, unsigned units) {
    return dim3((unsigned)((a->forward.rows + ROWS - 1) / ROWS), (units + UNIT_WARPS - 1) / UNIT_WARPS);
}

int iv_gpu_delta_mix_backward_128(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    auto *kernel = a->forward.shape.type == IV_BF16 ? mix_backward_128<IV_BF16> : mix_backward_128<IV_F16>;
    return iv_launch(kernel, units_grid(a, a->forward.shape.channels / DIM + 1), UNIT_WARPS * 32, (cudaStream_t)stream,
                     *a);
}

int iv_gpu_delta_inputs_backward_128(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    auto *kernel = s->type == IV_BF16 ? inputs_backward_128<IV_BF16> : inputs_backward_128<IV_F16>;
    return iv_launch(kernel, units_grid(a, s->channels / DIM + s->value_heads + 1), UNIT_WARPS * 32,
                     (cudaStream_t)stream, *a);
}
