/* experts_backward.cu: row ops of a mixture's backward pass: the gradients that enter each expert, those of the routing
 * weights, and those of the router's logits. Law: NUMERICS.md 15.9. */
#include "kernels/cuda/eights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"
#include "kernels/cuda/sum_exp.cuh"

/* ---- entries of experts ---------------------------------------------------------------------------------------- */

typedef iv_gpu_expert_rows_args expert_rows;

/* dy = R(dx). */
template <iv_dtype T, int V>
static __global__ void __launch_bounds__(EIGHTS_THREADS) gradient_in(const __grid_constant__ expert_rows a) {
    iv_let_next();
    iv_wait();
    size_t entry = blockIdx.x, i = first_column<V>();
    if (i >= a.dy_stride) return;
    int32_t slot = a.slot[entry];
    float y[V] = {0};
    if (slot >= 0) load_some<IV_F32, V>(a.dx + (size_t)((uint32_t)slot / (uint32_t)a.k) * a.hidden, i, a.hidden, y);
    store_whole<T, V>(a.dy, entry * a.dy_stride + i, y);
}

enum { WEIGH_AHEAD = 4 };

/* A block has an entry; thread t is lane t of the law. */
template <iv_dtype T, int V>
static __global__ void __launch_bounds__(LANES) weigh(const __grid_constant__ expert_rows a) {
    __shared__ float lanes[LANES];
    iv_let_next();
    iv_wait();
    size_t entry = blockIdx.x;
    int32_t slot = a.slot[entry];
    float w = slot >= 0 ? a.weights[slot] : 0.0f, lane = 0.0f, y[V];
    const float *dx = a.dx + (size_t)((uint32_t)(slot < 0 ? 0 : slot) / (uint32_t)a.k) * a.hidden;
    float *da = a.da + entry * a.n;
    const float *bias = a.bias && slot >= 0 ? a.bias + (size_t)(a.ids[slot] - a.first) * a.bias_stride : NULL;
    for (size_t base = threadIdx.x; base < a.n && slot >= 0; base += LANES * WEIGH_AHEAD) {
        float d[WEIGH_AHEAD], g[WEIGH_AHEAD];
#pragma unroll
        for (int j = 0; j < WEIGH_AHEAD; j++) {
            size_t i = base + j * LANES;
            d[j] = i < a.n ? da[i] : 0.0f, g[j] = i < a.n ? get<T>(a.act, entry * a.n + i) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < WEIGH_AHEAD; j++) {
            size_t i = base + j * LANES;
            lane = __fmaf_rn(d[j], g[j], lane); /* a zero changes no lane */
            if (i < a.n) da[i] = d[j] * w;
        }
    }
    for (size_t i = threadIdx.x * V; i < a.dy_stride; i += LANES * V) {
        load_some<IV_F32, V>(dx, i, slot >= 0 ? a.hidden : 0, y);
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = slot >= 0 && i + j < a.hidden ? y[j] * w : 0.0f;
        store_whole<T, V>(a.dy, entry * a.dy_stride + i, y);
    }
    if (slot < 0) return; /* the whole block */
    float sum = fold_block(lane, lanes);
    if (bias) { /* a part of what the weight scales */
        lane = 0.0f;
        for (size_t i = threadIdx.x; i < a.hidden; i += LANES) {
            lane = __fmaf_rn(dx[i], bias[i], lane);
            a.weighed[entry * a.hidden + i] = dx[i] * w;
        }
        __syncthreads(); /* the lanes were read */
        sum = sum + fold_block(lane, lanes);
    }
    if (threadIdx.x == 0) a.dw[slot] = sum;
}

template <iv_dtype T> static int launch_rows(const expert_rows *a, bool weighs, cudaStream_t stream) {
    bool fits =
        a->dy_stride % 8 == 0 && iv_fits_eights(IV_F32, a->dx, a->hidden) && iv_fits_eights(T, a->dy, a->dy_stride);
    if (weighs) return iv_launch(fits ? weigh<T, 8> : weigh<T, 1>, dim3((unsigned)a->entries), LANES, stream, *a);
    return iv_launch(fits ? gradient_in<T, 8> : gradient_in<T, 1>,
                     iv_eights_grid(a->entries, a->dy_stride, fits ? 8 : 1), EIGHTS_THREADS, stream, *a);
}

static int launch(const expert_rows *a, bool weighs, cudaStream_t stream) {
    if (a->entries == 0) return 0;
    if (a->k < 1 || a->k > IV_EXPERTS_PER_TOKEN_MAX || a->hidden == 0 || a->dy_stride < a->hidden)
        return (int)cudaErrorInvalidValue;
    switch (a->type) {
    case IV_BF16: return launch_rows<IV_BF16>(a, weighs, stream);
    case IV_F16: return launch_rows<IV_F16>(a, weighs, stream);
    case IV_F32: return launch_rows<IV_F32>(a, weighs, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

int iv_gpu_expert_gradient_in(const iv_gpu_expert_rows_args *a, iv_gpu_stream stream) {
    return launch(a, false, stream);
}

int iv_gpu_expert_weigh(const iv_gpu_expert_rows_args *a, iv_gpu_stream stream) { return launch(a, true, stream); }

/* ---- the router -------------------------------------------------------------------------------------------------- */

enum { ROUTER_WARPS = 4 };

template <iv_dtype T>
IV_DEVICE void put_logit(const iv_gpu_router_backward_args &a, char *to, float *dl, size_t e, float y) {
    put<T>(to, e / a.leaf * a.apart + e % a.leaf, y);
    if (dl) dl[e] = iv_canon(y);
}

/* A warp has a row; PER logits a lane. Selected experts are written last. */
template <iv_dtype T, int PER>
static __global__ void __launch_bounds__(ROUTER_WARPS * 32)
    router_backward(const __grid_constant__ iv_gpu_router_backward_args a) {
    unsigned lane = threadIdx.x % 32;
    size_t row = (size_t)blockIdx.x * ROUTER_WARPS + threadIdx.x / 32, k = a.router.k, experts = a.router.experts;
    bool sigmoid = a.router.score == IV_SCORE_SIGMOID;
    iv_let_next();
    iv_wait();
    if (row >= a.rows) return;
    const int32_t *ids = a.ids + row * k;
    const float *w = a.weights + row * k, *dw = a.dw + row * k, *logits = a.logits + row * a.stride;
    char *to = (char *)a.dy + row * a.dy_stride * (T == IV_F32 ? 4 : 2);
    float *dl = a.dl ? a.dl + row * experts : NULL;
    bool live = ids[0] >= 0;
    float mean = 0.0f;
    for (size_t s = 0; s < k && live; s++) mean = __fmaf_rn(dw[s], w[s], mean);
    for (size_t c = lane; c < a.dy_stride; c += 32)
        put<T>(to, c, a.last && live && c == a.last_at ? a.last[row] : 0.0f);
    for (size_t e = lane; e < experts && dl; e += 32) dl[e] = 0.0f;
    __syncwarp();
    if (!a.router.normalise && !sigmoid && live) {
        float x[PER], max, sum;
#pragma unroll
        for (int j = 0; j < PER; j++) x[j] = lane + 32 * j < experts ? logits[lane + 32 * j] : 0.0f;
        sum_exp<PER>(x, experts, &max, &sum);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            size_t e = lane + 32 * j;
            if (e < experts) put_logit<T>(a, to, dl, e, __fdiv_rn(v_exp(x[j] - max), sum) * (0.0f - mean));
        }
        __syncwarp();
    }
    float share = a.router.scale == 1.0f ? mean : __fdiv_rn(mean, a.router.scale);
    for (size_t s = lane; s < k && live; s += 32) {
        size_t e = (size_t)ids[s];
        float slope = w[s], rest = dw[s];
        if (sigmoid) slope = slope * (1.0f - iv_sigmoid(logits[e]));
        if (!sigmoid || a.router.normalise) rest = rest - share;
        put_logit<T>(a, to, dl, e, slope * rest);
    }
}

template <iv_dtype T> static int launch_router(const iv_gpu_router_backward_args *a, cudaStream_t stream) {
    auto *kernel = a->router.experts <= 128   ? router_backward<T, 4>
                   : a->router.experts <= 256 ? router_backward<T, 8>
                                              : router_backward<T, 16>;
    return iv_launch(kernel, dim3((unsigned)((a->rows + ROUTER_WARPS - 1) / ROUTER_WARPS)), ROUTER_WARPS * 32, stream,
                     *a);
}

int iv_gpu_router_backward(const iv_gpu_router_backward_args *a, iv_gpu_stream stream) {
    const iv_router *r = &a->router;
    if (a->rows == 0) return 0;
    if (r->experts < 1 || r->experts > IV_GPU_EXPERTS_MAX || r->k < 1 || r->k > r->experts ||
        r->k > IV_EXPERTS_PER_TOKEN_MAX || a->stride < r->experts || a->leaf < 1 || a->leaf > a->apart ||
        a->dy_stride <= (r->experts - 1) / a->leaf * a->apart + (r->experts - 1) % a->leaf ||
        (a->last && a->last_at >= a->dy_stride))
        return (int)cudaErrorInvalidValue;
    switch (a->type) {
    case IV_BF16: return launch_router<IV_BF16>(a, stream);
    case IV_F16: return launch_router<IV_F16>(a, stream);
    case IV_F32: return launch_router<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* ---- the gate of a shared expert -----------------------------------------------------------------------------------
 */

/* A block has a row; thread t is lane t of the law, leaf by leaf. */
template <iv_dtype T>
static __global__ void __launch_bounds__(LANES) shared_gate(const __grid_constant__ iv_gpu_shared_gate_args a) {
    __shared__ float lanes[LANES], of[IV_LEAVES_MAX];
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    float p = iv_sigmoid(a.z[row * a.z_apart]), *da = a.da + row * a.n;
    for (size_t leaf = 0; leaf < a.leaves; leaf++) {
        size_t first = min(a.n, leaf * a.leaf), end = min(a.n, first + a.leaf);
        float lane = 0.0f;
        for (size_t i = first + threadIdx.x; i < end; i += LANES) {
            lane = __fmaf_rn(da[i], get<T>(a.act, row * a.act_stride + i), lane);
            da[i] = da[i] * p;
        }
        float sum = fold_block(lane, lanes);
        if (threadIdx.x == 0) of[leaf] = sum;
        __syncthreads();
    }
    if (threadIdx.x) return;
    for (size_t stride = 1; stride < a.leaves; stride *= 2)
        for (size_t i = 0; i < a.leaves; i += 2 * stride) of[i] = of[i] + of[i + stride];
    a.dz[row] = a.part ? of[0] : iv_canon(of[0] * (1.0f - p));
}

static __global__ void __launch_bounds__(LANES) finish_gate(const float *z, size_t z_apart, size_t rows, float *dz) {
    iv_let_next();
    iv_wait();
    size_t row = (size_t)blockIdx.x * LANES + threadIdx.x;
    if (row < rows) dz[row] = iv_canon(dz[row] * (1.0f - iv_sigmoid(z[row * z_apart])));
}

int iv_gpu_shared_gate_finish(const float *z, size_t z_apart, size_t rows, float *dz, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    return iv_launch(finish_gate, dim3((unsigned)((rows + LANES - 1) / LANES)), LANES, (cudaStream_t)stream, z, z_apart,
                     rows, dz);
}

int iv_gpu_shared_gate_backward(const iv_gpu_shared_gate_args *a, iv_gpu_stream stream) {
    if (a->rows == 0) return 0;
    if (a->leaves < 1 || a->leaves > IV_LEAVES_MAX || a->act_stride < a->n) return (int)cudaErrorInvalidValue;
    switch (a->type) {
    case IV_BF16: return iv_launch(shared_gate<IV_BF16>, dim3((unsigned)a->rows), LANES, stream, *a);
    case IV_F16: return iv_launch(shared_gate<IV_F16>, dim3((unsigned)a->rows), LANES, stream, *a);
    case IV_F32: return iv_launch(shared_gate<IV_F32>, dim3((unsigned)a->rows), LANES, stream, *a);
    default: return (int)cudaErrorInvalidValue;
    }
}
