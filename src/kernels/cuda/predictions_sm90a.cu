/* predictions_sm90a.cu: statistics of logits, a row in the shared memory of a cluster of eight CTAs, so that memory is
 * read once. A CTA has 32 lanes of the law: 32 of every 256 logits. Its warps load them and compute exponentials; one
 * warp adds these in order. */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/predictions.cuh"
#include "kernels/cuda/rows.cuh"

enum {
    CTAS = LANES / 32,
    THREADS = 256,
    CTAS_OF_SM = 3, /* as many as have room for 152,000 logits a cluster; one loads while another computes */
    BATCH = 16,     /* exponentials of a lane in registers */
    AHEAD = 8       /* loads of a thread before it uses any */
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
#pragma unroll 4
    for (uint32_t place = t.place; place * LANES < vocab; place += t.PLACES) {
        elements<V> y = load<V>(e + place * 32 + t.lane);
#pragma unroll
        for (int k = 0; k < V; k++) y.at[k] = place * LANES + t.first < vocab ? exp_down(y.at[k] - m) : 0.0f;
        store<V>(e + place * 32 + t.lane, y);
    }
}

/* The sum of a lane's places, in order. The next ones are loaded before these are added, because a load from shared
 * memory takes as long as several additions; __syncwarp keeps the compiler from loading each where it is added. */
IV_DEVICE float lane_sum(const float *e, uint32_t places) {
    float now[BATCH], next[BATCH], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < BATCH; i++) next[i] = (uint32_t)i < places ? e[i * 32] : 0.0f;
#pragma unroll 1
    for (uint32_t first = 0; first < places; first += BATCH) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) now[i] = next[i];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            uint32_t place = first + BATCH + i;
            next[i] = place < places ? e[place * 32] : 0.0f;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < BATCH; i++) sum = sum + now[i]; /* +0 changes no sum */
    }
    return sum;
}

/* The largest of all CTAs, in every thread. A CTA's own are in shared memory; a sync of the cluster was before. */
IV_DEVICE float largest_of_cluster(const published *p) {
    float m = iv_load_cluster4(iv_shared_of(iv_shared(&p->largest), threadIdx.x % CTAS)).x;
    for (int stride = CTAS / 2; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    return m + 0.0f;
}

/* By a warp: the fold of all lanes. `sums`: CTAS of them. */
IV_DEVICE float sum_of_cluster(const published *p, float4 (*sums)[8]) {
    uint32_t lane = threadIdx.x % 32;
    float l[CTAS];
#pragma unroll
    for (uint32_t i = lane; i < CTAS * 8; i += 32)
        sums[i / 8][i % 8] = iv_load_cluster4(iv_shared_of(iv_shared(&p->sums[i % 8]), i / 8));
    __syncwarp();
#pragma unroll
    for (int j = 0; j < CTAS; j++) l[j] = ((const float *)sums[j])[lane];
    return fold_warp(fold_far(l));
}

template <bool DIVIDE, int V>
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
    if (rank == 0 && warp == 0) {
        float sum = sum_of_cluster(&own, (float4(*)[8])e); /* the exponentials are no longer needed */
        if (lane == 0) {
            a.max[row] = m, a.sum[row] = sum;
            a.logprobs[row] = target >= 0 && (uint32_t)target < vocab ? (logit - m) - v_log(sum) : 0.0f;
        }
    }
    iv_cluster_leave();
}

int iv_statistics_in_clusters(const iv_statistics_args *a, iv_gpu_stream stream) {
    bool fours = a->vocab % 4 == 0 && a->stride % 4 == 0 && (uintptr_t)a->logits % 16 == 0;
    auto *kernel = a->temperature == 1.0f ? fours ? statistics<false, 4> : statistics<false, 1>
                   : fours                ? statistics<true, 4>
                                          : statistics<true, 1>;
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
