/* predictions_sm90a.cu: statistics of logits, a row in the shared memory of a cluster of eight CTAs, so that memory is
 * read once. A CTA has 32 lanes of the law: 32 of every 256 logits. Its warps load them and compute exponentials; one
 * warp adds these in order. */
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/predictions.cuh"
#include "kernels/cuda/rows.cuh"

enum {
    CTAS = LANES / 32,
    THREADS = 256,
    CTAS_OF_SM = 3, /* as many as have room for 152,000 logits a cluster; one loads while another computes */
    AHEAD = 16      /* logits that a thread loads before it uses any */
};

#define WHOLE_WARP 0xffffffffu

/* What a CTA publishes: its largest logit, and the target's logit if it is one of its own. */
typedef struct published {
    float4 largest; /* x: largest, y: of the target */
    float4 sums[8]; /* of its 32 lanes */
} published;

/* Loads this CTA's logits into e[][32], divided, which also replace those in memory if they differ. Returns the
 * thread's largest. */
template <bool DIVIDE>
IV_DEVICE float load_logits(const iv_statistics_args &a, size_t row, uint32_t rank, int32_t target, float *e,
                            published *p) {
    uint32_t lane = threadIdx.x % 32, first = rank * 32 + lane, vocab = (uint32_t)a.vocab;
    float *x = a.logits + row * a.stride, m = __uint_as_float(0xff800000u), v[AHEAD];
#pragma unroll 1
    for (uint32_t at = threadIdx.x / 32; at * LANES < vocab; at += THREADS / 32 * AHEAD) {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            uint32_t i = (at + j * (THREADS / 32)) * LANES + first;
            v[j] = i < vocab ? x[i] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            uint32_t place = at + j * (THREADS / 32), i = place * LANES + first;
            if (place * LANES >= vocab) break;
            if (DIVIDE) v[j] = __fdiv_rn(v[j], a.temperature);
            if (DIVIDE && i < vocab) x[i] = v[j];
            if (i < vocab) m = iv_max(m, v[j]);
            if (i == (uint32_t)target) p->largest.y = v[j];
            e[place * 32 + lane] = v[j];
        }
    }
    return m;
}

/* Replaces each thread's own logits by exponentials: +0, which changes no lane, beyond the row. */
IV_DEVICE void exponentials(uint32_t vocab, uint32_t rank, float m, float *e) {
    uint32_t lane = threadIdx.x % 32, first = rank * 32 + lane;
#pragma unroll 8
    for (uint32_t place = threadIdx.x / 32; place * LANES < vocab; place += THREADS / 32) {
        float y = v_exp(e[place * 32 + lane] - m);
        e[place * 32 + lane] = place * LANES + first < vocab ? y : 0.0f;
    }
}

/* The largest of all CTAs, in every thread, and the target's logit. A CTA's own are in shared memory; a sync of the
 * cluster was before. */
IV_DEVICE float largest_of_cluster(const published *p, int32_t target, float *target_logit) {
    uint32_t lane = threadIdx.x % 32;
    float4 own = iv_load_cluster4(iv_shared_of(iv_shared(&p->largest), lane % CTAS));
    float m = own.x;
    for (int stride = CTAS / 2; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    *target_logit = __shfl_sync(WHOLE_WARP, own.y, (uint32_t)target % LANES / 32);
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

template <bool DIVIDE>
static __global__ void __launch_bounds__(THREADS, CTAS_OF_SM) statistics(const __grid_constant__ iv_statistics_args a) {
    extern __shared__ __align__(16) float e[];
    __shared__ __align__(16) published own;
    __shared__ float warps[THREADS / 32];
    uint32_t rank = iv_cluster_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32, vocab = (uint32_t)a.vocab;
    size_t row = blockIdx.x / CTAS;
    iv_let_next();
    iv_wait();
    int32_t target = a.targets[row];
    float m = load_logits<DIVIDE>(a, row, rank, target, e, &own), logit;
    for (int stride = 16; stride > 0; stride /= 2) m = iv_max(m, __shfl_xor_sync(WHOLE_WARP, m, stride));
    if (lane == 0) warps[warp] = m;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int w = 1; w < THREADS / 32; w++) m = iv_max(m, warps[w]);
        own.largest.x = m;
    }
    iv_cluster_sync();
    m = largest_of_cluster(&own, target, &logit);
    exponentials(vocab, rank, m, e);
    __syncthreads();
    if (warp == 0) {
        float sum = 0.0f;
#pragma unroll 16
        for (uint32_t place = 0; place * LANES < vocab; place++) sum = sum + e[place * 32 + lane];
        ((float *)own.sums)[lane] = sum;
    }
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
    auto *kernel = a->temperature == 1.0f ? statistics<false> : statistics<true>;
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
