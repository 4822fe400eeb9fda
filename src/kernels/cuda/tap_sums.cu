/* tap_sums.cu: the gradients of a convolution's taps, which are sums over tokens (NUMERICS.md 15.3, 17.1) of products.
 * A thread has a channel and all its taps; the chains of virtual ranks run next to each other, a block for each range,
 * and a second kernel adds them in the tree. Loads of later tokens do not wait for the sums. */
#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

enum { THREADS = 64, AHEAD = 8, TAPS_MAX = 8 };

typedef struct tap_problem {
    iv_sum_plan plan;
    iv_gpu_tap_sums_args a;
    float *chain; /* [range][n taps] */
} tap_problem;

static inline __host__ __device__ bool is_alone(const iv_sum_plan &plan) {
    return plan.ranges == 1 && plan.range[0].joins == 0 && plan.range[0].to == IV_SUM_SUM;
}

/* Tokens that a thread has on their way; row -1: padding. */
struct tokens {
    int32_t row[AHEAD], position[AHEAD];
    float d[AHEAD], x[AHEAD];
};

template <iv_dtype T>
IV_DEVICE void load(const tap_problem &p, const iv_sum_range &range, uint32_t at, size_t c, tokens &t) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        t.row[i] = at + i < range.end ? p.a.row[at + i] : -1;
        t.position[i] = t.row[i] < 0 ? 0 : p.a.positions[t.row[i]];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        size_t row = t.row[i] < 0 ? 0 : (size_t)t.row[i];
        t.d[i] = t.row[i] < 0 ? 0.0f : p.a.dx[row * p.a.width + c];
        t.x[i] = t.row[i] < 0 ? 0.0f : get<T>(p.a.inputs, row * p.a.channels + c);
    }
}

/* Rows of a sequence follow one another in a range. */
template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS) tap_chains(const __grid_constant__ tap_problem p) {
    iv_let_next();
    iv_wait();
    const iv_sum_range range = p.plan.range[blockIdx.y];
    size_t index = (size_t)blockIdx.x * THREADS + threadIdx.x, c = p.a.first + index;
    int taps = (int)p.a.taps;
    if (index >= p.a.n) return;
    float sum[TAPS_MAX], x[TAPS_MAX]; /* x[k]: the input k rows before */
    float *to = p.plan.sums.sum + p.a.offset + index * taps;
#pragma unroll
    for (int k = 0; k < TAPS_MAX; k++) x[k] = 0.0f, sum[k] = k < taps && range.continues ? to[k] : 0.0f;
    tokens now, next;
    load<T>(p, range, range.begin, c, now);
    for (uint32_t at = range.begin; at < range.end; at += AHEAD) {
        load<T>(p, range, at + AHEAD, c, next);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (now.row[i] < 0) continue;
#pragma unroll
            for (int k = TAPS_MAX - 1; k > 0; k--) x[k] = x[k - 1];
            x[0] = now.x[i];
#pragma unroll
            for (int k = 0; k < TAPS_MAX; k++) {
                int back = taps - 1 - k;
                if (k < taps && back <= now.position[i]) {
                    float input = 0.0f;
#pragma unroll
                    for (int b = 0; b < TAPS_MAX; b++) input = b == back ? x[b] : input;
                    sum[k] = __fmaf_rn(now.d[i], input, sum[k]);
                }
            }
        }
        now = next;
    }
    if (!is_alone(p.plan)) to = p.chain + ((size_t)blockIdx.y * p.a.n + index) * taps;
#pragma unroll
    for (int k = 0; k < TAPS_MAX; k++)
        if (k < taps) to[k] = iv_canon(sum[k]);
}

/* The chains of a tap in order. */
static __global__ void __launch_bounds__(THREADS) tap_tree(const __grid_constant__ tap_problem p) {
    iv_let_next();
    iv_wait();
    size_t index = (size_t)blockIdx.x * THREADS + threadIdx.x, n = p.a.n * p.a.taps, offset = p.a.offset + index;
    if (index >= n) return;
    float waiting[IV_VIRTUAL_LEVELS_MAX] = {};
    for (int i = 0; i < p.plan.ranges; i++) {
        const iv_sum_range &range = p.plan.range[i];
        float sum = p.chain[(size_t)i * n + index];
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level >= range.joins) continue;
            bool sums = range.from_sums >> level & 1;
            sum = __fadd_rn(sums ? p.plan.sums.level[level][offset] : waiting[level], sum);
        }
#pragma unroll
        for (int level = 0; level < IV_VIRTUAL_LEVELS_MAX; level++) {
            if (level != range.joins) continue;
            if (range.to == IV_SUM_WAITS) waiting[level] = sum;
            if (range.to == IV_SUM_LEVEL) p.plan.sums.level[level][offset] = sum;
        }
        if (range.to == IV_SUM_SUM) p.plan.sums.sum[offset] = sum;
    }
}

int iv_gpu_tap_sums(const iv_gpu_tap_sums_args *a, iv_gpu_stream stream) {
    tap_problem p = {};
    cudaStream_t s = (cudaStream_t)stream;
    if (a->taps > TAPS_MAX || !iv_sum_plan_make(a->axis, &a->sums, &p.plan)) return (int)cudaErrorInvalidValue;
    if (a->n == 0 || a->taps == 0 || p.plan.ranges == 0) return 0;
    p.a = *a, p.chain = (float *)a->scratch;
    dim3 grid((unsigned)((a->n + THREADS - 1) / THREADS), (unsigned)p.plan.ranges);
    auto *kernel = a->type == IV_BF16  ? tap_chains<IV_BF16>
                   : a->type == IV_F16 ? tap_chains<IV_F16>
                                       : tap_chains<IV_F32>;
    int code = iv_launch(kernel, grid, THREADS, s, p);
    unsigned blocks = (unsigned)((a->n * a->taps + THREADS - 1) / THREADS);
    return code || is_alone(p.plan) ? code : iv_launch(tap_tree, dim3(blocks), THREADS, s, p);
}
