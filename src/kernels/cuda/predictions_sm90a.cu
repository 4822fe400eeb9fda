/* predictions_sm90a.cu: statistics of logits, a row in the shared memory of a cluster of eight CTAs, so that memory is
 * read once. A CTA has 32 lanes of the law: 32 of every 256 logits. Its warps load them and compute exponentials; one
 * warp adds these in order. Gradients, if they are wanted, come from the same exponentials. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/predictions.cuh"
#include "kernels/cuda/rows.cuh"

enum {
    CTAS = LANES / 32,
    THREADS = 256,
    CTAS_OF_SM = 3, /* as many as have room for 152,000 logits a cluster; one loads while another computes */
    BATCH = 16,     /* exponentials that a lane adds without a branch */
    WAITING = 8,    /* of them in registers */
    AHEAD = 8,      /* loads of a thread before it uses any */
    NONE = -1       /* no gradients */
};

#define WHOLE_WARP 0xffffffffu

/* What a CTA publishes. */
typedef struct published {
    float4 largest; /* x: of its logits */
    float4 sums[8]; /* of its 32 lanes */
} published;

/* A thread has V neighboring lanes of every PLACES-th place, which are 256 logits apart. */
template <int V> struct share {
    static constexpr int PLACES = THREADS * V / 32;
    uint32_t place, lane, first; /* its first place, its first lane in e, its first logit of a place */
};
template <int V> IV_DEVICE share<V> share_of(uint32_t rank) {
    uint32_t lane = threadIdx.x % (32 / V) * V;
    return {threadIdx.x / (32 / V), lane, rank * 32 + lane};
}

/* Loads this CTA's logits into e[][32], divided, which also replace those in memory if they differ; 0 beyond the row.
 * Returns the thread's largest. */
template <bool DIVIDE, int V>
IV_DEVICE float load_logits(const iv_statistics_args &a, float *x, const share<V> &t, float *e) {
    uint32_t vocab = (uint32_t)a.vocab;
    float m = __uint_as_float(0xff800000u);
#pragma unroll 1
    for (uint32_t at = t.place; at * LANES < vocab; at += t.PLACES * AHEAD) {
        elements<V> v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            uint32_t i = (at + j * t.PLACES) * LANES + t.first;
#pragma unroll
            for (int k = 0; k < V; k++) v[j].at[k] = 0.0f;
            if (i < vocab) v[j] = load<V>(x + i); /* with V = 4, vocab is a multiple of 4 */
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            uint32_t place = at + j * t.PLACES, i = place * LANES + t.first;
            if (place * LANES >= vocab) break;
#pragma unroll
            for (int k = 0; k < V && DIVIDE; k++) v[j].at[k] = __fdiv_rn(v[j].at[k], a.temperature);
            if (DIVIDE && i < vocab) store<V>(x + i, v[j]);
#pragma unroll
            for (int k = 0; k < V; k++)
                if (i < vocab) m = iv_max(m, v[j].at[k]);
            store<V>(e + place * 32 + t.lane, v[j]);
        }
    }
    return m;
}

/* v_exp of what is no larger than 0, or NaN. */
IV_DEVICE float exp_down(float x) {
    float y = v_exp_inside(x);
    y = x < -0x1.5d589ep+6f ? 0.0f : y;
    return x == x ? y : __uint_as_float(IV_NAN_F32_BITS);
}

/* Replaces each thread's own logits by exponentials: +0, which changes no lane, beyond the row. */
template <int V> IV_DEVICE void exponentials(uint32_t vocab, const share<V> &t, float m, float *e) {
    uint32_t place = t.place;
#pragma unroll 2
    for (; (place + 1) * LANES <= vocab; place += t.PLACES) { /* without a branch for each */
        elements<V> y = load<V>(e + place * 32 + t.lane);
#pragma unroll
        for (int k = 0; k < V; k++) y.at[k] = exp_down(y.at[k] - m);
        store<V>(e + place * 32 + t.lane, y);
    }
    if (place * LANES >= vocab) return;
#pragma unroll
    for (int k = 0; k < V; k++) {
        float *y = e + place * 32 + t.lane + k;
        *y = place * LANES + t.first < vocab ? exp_down(*y - m) : 0.0f;
    }
}

/* The sum of a lane's places, in order. A load from shared memory takes as long as several additions, so each comes
 * that much earlier; +0 changes no sum. */
IV_DEVICE float lane_sum(const float *e, uint32_t places) {
    float w[WAITING], sum = 0.0f;
    uint32_t first = 0;
#pragma unroll
    for (uint32_t i = 0; i + 1 < WAITING; i++) w[i] = i < places ? e[i * 32] : 0.0f;
#pragma unroll 1
    for (; first + BATCH + WAITING <= places; first += BATCH, e += BATCH * 32) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            w[(i + WAITING - 1) % WAITING] = e[(i + WAITING - 1) * 32];
            sum = sum + w[i % WAITING];
        }
    }
    float rest[BATCH + WAITING];
#pragma unroll
    for (int i = 0; i < BATCH + WAITING; i++) rest[i] = first + i < places ? e[i * 32] : 0.0f;
#pragma unroll
    for (int i = 0; i < BATCH + WAITING; i++) sum = sum + rest[i];
    return sum;
}

/* The largest of all CTAs, in every thread. A CTA's own are in shared memory; a sync of the cluster was before. */
IV_DEVICE float largest_of_cluster(const published *p) {
    float m = iv_load_cluster4(iv_shared_of(iv_shared(&p->largest), threadIdx.x % CTAS)).x;
    for (int stride = CTAS / 2; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    return m + 0.0f;
}

IV_DEVICE float load_cluster(uint32_t address) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

/* By a warp: the fold of all lanes. */
IV_DEVICE float sum_of_cluster(const published *p) {
    uint32_t own = iv_shared((const float *)p->sums + threadIdx.x % 32);
    float l[CTAS];
#pragma unroll
    for (int j = 0; j < CTAS; j++) l[j] = load_cluster(iv_shared_of(own, j));
    return fold_warp(fold_far(l));
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* One element, or four neighbors, at an even address. */
template <int T, int V> IV_DEVICE void put_rounded(uint16_t *to, const float (&y)[V]) {
    constexpr iv_dtype TYPE = T == IV_F16 ? IV_F16 : IV_BF16;
    if constexpr (V == 4)
        *(uint2 *)to = make_uint2(iv_pack16(TYPE, y[0], y[1]), iv_pack16(TYPE, y[2], y[3]));
    else
        *to = iv_round16(TYPE, y[0]);
}

/* Columns of the CTA's leaves beyond their outputs. */
IV_DEVICE void put_padding(const iv_statistics_args &a, uint16_t *out, uint32_t rank) {
    const iv_gpu_logit_leaves &l = a.leaves;
    for (size_t i = rank; i * l.each < a.vocab; i += CTAS) {
        size_t n = l.each < a.vocab - i * l.each ? l.each : a.vocab - i * l.each;
        for (size_t c = n + threadIdx.x; c < l.stride; c += THREADS) out[i * l.leaf + c] = 0;
    }
}

/* dl of the CTA's logits, whose exponentials are e. */
template <int T, int V>
IV_DEVICE void gradients(const iv_statistics_args &a, size_t row, const share<V> &t, int32_t target, float sum,
                         const float *e) {
    const iv_gpu_logit_leaves &l = a.leaves;
    uint32_t vocab = (uint32_t)a.vocab, each = (uint32_t)l.each, column = t.place * LANES + t.first;
    uint16_t *out = (uint16_t *)l.out + row * l.stride;
    float q = __fdiv_rn(1.0f, sum), c = l.coefficients[row];
    put_padding(a, out, t.first / 32);
    for (uint32_t place = t.place, i = column; i < vocab; place += t.PLACES, i += t.PLACES * LANES) {
        elements<V> x = load<V>(e + place * 32 + t.lane);
        float y[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            float p = x.at[k] * q;
            y[k] = target < 0 ? 0.0f : c * (i + k == (uint32_t)target ? p - 1.0f : p);
        }
        while (column >= each) column -= each, out += l.leaf;
        put_rounded<T, V>(out + column, y);
        column += t.PLACES * LANES;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

template <bool DIVIDE, int V, int T>
static __global__ void __launch_bounds__(THREADS, CTAS_OF_SM) statistics(const __grid_constant__ iv_statistics_args a) {
    extern __shared__ __align__(16) float e[];
    __shared__ __align__(16) published own;
    __shared__ float warps[THREADS / 32];
    uint32_t rank = iv_cluster_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32, vocab = (uint32_t)a.vocab;
    size_t row = blockIdx.x / CTAS;
    iv_let_next();
    iv_wait();
    int32_t target = a.targets[row];
    share<V> mine = share_of<V>(rank);
    float *x = a.logits + row * a.stride, logit = 0.0f; /* of the target, for the thread that writes the results */
    if (rank == 0 && threadIdx.x == 0 && target >= 0 && (uint32_t)target < vocab) {
        logit = x[target];
        if (DIVIDE) logit = __fdiv_rn(logit, a.temperature);
    }
    if (DIVIDE) iv_cluster_sync(); /* before it is replaced */
    float m = load_logits<DIVIDE, V>(a, x, mine, e);
    for (int stride = 16; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    if (lane == 0) warps[warp] = m;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int w = 1; w < THREADS / 32; w++) m = iv_max(m, warps[w]);
        own.largest.x = m;
    }
    iv_cluster_sync();
    m = largest_of_cluster(&own);
    exponentials<V>(vocab, mine, m, e);
    __syncthreads();
    if (warp == 0) ((float *)own.sums)[lane] = lane_sum(e + lane, (vocab + LANES - 1) / LANES);
    iv_cluster_sync();
    if (T != NONE || (rank == 0 && warp == 0)) {
        float sum = sum_of_cluster(&own);
        if (rank == 0 && threadIdx.x == 0) {
            a.max[row] = m, a.sum[row] = sum;
            a.logprobs[row] = target >= 0 && (uint32_t)target < vocab ? (logit - m) - v_log(sum) : 0.0f;
        }
        if constexpr (T != NONE) gradients<T, V>(a, row, mine, target, sum, e);
    }
    iv_cluster_leave();
}

typedef void statistics_kernel(iv_statistics_args);

template <int V, int T> static statistics_kernel *kernel_of(bool divides) {
    return divides ? statistics<true, V, T> : statistics<false, V, T>;
}

static statistics_kernel *choose(const iv_statistics_args *a) {
    const iv_gpu_logit_leaves *l = &a->leaves;
    bool fours = a->vocab % 4 == 0 && a->stride % 4 == 0 && (uintptr_t)a->logits % 16 == 0, divides = a->temperature != 1.0f;
    if (!l->out) return fours ? kernel_of<4, NONE>(divides) : kernel_of<1, NONE>(divides);
    fours = fours && l->each % 4 == 0 && l->stride % 4 == 0 && l->leaf % 4 == 0 && (uintptr_t)l->out % 8 == 0;
    if (l->type == IV_F16) return fours ? kernel_of<4, IV_F16>(divides) : kernel_of<1, IV_F16>(divides);
    return fours ? kernel_of<4, IV_BF16>(divides) : kernel_of<1, IV_BF16>(divides);
}

int iv_statistics_in_clusters(const iv_statistics_args *a, iv_gpu_stream stream) {
    statistics_kernel *kernel = choose(a);
    size_t bytes = (a->vocab + LANES - 1) / LANES * 32 * sizeof(float);
    int error =
        (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (!error)
        error = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (error) return error;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = CTAS, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(a->rows * CTAS)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes, config.stream = (cudaStream_t)stream;
    config.attrs = attributes, config.numAttrs = 2;
    return (int)cudaLaunchKernelEx(&config, kernel, *a);
}
