/* tap_sums.cu: the gradients of a convolution's taps, which are sums over tokens (NUMERICS.md 15.3, 17.1) of products.
 * A thread has a channel and all its taps; the chains of virtual ranks run next to each other, a block for each range,
 * and a second kernel adds them in the tree. Loads of later tokens do not wait for the sums. */
#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

enum { THREADS = 64, AHEAD = 16 };

typedef struct tap_problem {
    iv_sum_plan plan;
    iv_gpu_tap_sums_args a;
    float *chain; /* [range][n taps] */
} tap_problem;

static inline __host__ __device__ bool is_alone(const iv_sum_plan &plan) {
    return plan.ranges == 1 && plan.range[0].joins == 0 && plan.range[0].to == IV_SUM_SUM;
}

/* A chain waits for memory once in AHEAD tokens: rows are loaded two rounds ahead, what they lead to one. row -1:
 * padding.
 */
struct tap_tokens {
    int32_t row[AHEAD], position[AHEAD];
    float d[AHEAD], x[AHEAD];
};

IV_DEVICE void load_tap_rows(const tap_problem &p, const iv_sum_range &range, uint32_t at, int32_t (&row)[AHEAD]) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) row[i] = at + i < range.end ? p.a.row[at + i] : -1;
}

template <iv_dtype T>
IV_DEVICE void load_taps(const tap_problem &p, const int32_t (&rows)[AHEAD], size_t c, tap_tokens &t) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        size_t row = rows[i] < 0 ? 0 : (size_t)rows[i];
        t.row[i] = rows[i];
        t.position[i] = rows[i] < 0 ? 0 : p.a.positions[row];
        t.d[i] = rows[i] < 0 ? 0.0f : p.a.dx[row * p.a.width + c];
        t.x[i] = rows[i] < 0 ? 0.0f : get<T>(p.a.inputs, row * p.a.channels + c);
    }
}

/* x[k]: the input k rows before. Tap TAPS - 1 - k takes it. */
template <int TAPS> IV_DEVICE void add_taps(const tap_tokens &t, float (&x)[TAPS], float (&sum)[TAPS]) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (t.row[i] < 0) continue;
#pragma unroll
        for (int k = TAPS - 1; k > 0; k--) x[k] = x[k - 1];
        x[0] = t.x[i];
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (k <= t.position[i]) sum[TAPS - 1 - k] = __fmaf_rn(t.d[i], x[k], sum[TAPS - 1 - k]);
    }
}

/* Rows of a sequence follow one another in a range. */
template <iv_dtype T, int TAPS>
static __global__ void __launch_bounds__(THREADS) tap_chains(const __grid_constant__ tap_problem p) {
    iv_let_next();
    iv_wait();
    const iv_sum_range range = p.plan.range[blockIdx.y];
    size_t index = (size_t)blockIdx.x * THREADS + threadIdx.x, c = p.a.first + index;
    if (index >= p.a.n) return;
    float sum[TAPS], x[TAPS];
    float *to = p.plan.sums.sum + p.a.offset + index * TAPS;
    tap_tokens now, next;
    int32_t rows[AHEAD];
#pragma unroll
    for (int k = 0; k < TAPS; k++) x[k] = 0.0f, sum[k] = range.continues ? to[k] : 0.0f;
    load_tap_rows(p, range, range.begin, rows), load_taps<T>(p, rows, c, now);
    load_tap_rows(p, range, range.begin + AHEAD, rows);
    for (uint32_t at = range.begin; at < range.end; at += AHEAD) {
        load_taps<T>(p, rows, c, next);
        load_tap_rows(p, range, at + 2 * AHEAD, rows);
        add_taps(now, x, sum);
        now = next;
    }
    if (!is_alone(p.plan)) to = p.chain + ((size_t)blockIdx.y * p.a.n + index) * TAPS;
#pragma unroll
    for (int k = 0; k < TAPS; k++) to[k] = iv_canon(sum[k]);
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

typedef void tap_kernel(const tap_problem p);

template <int TAPS> static tap_kernel *kernel_of(iv_dtype type) {
    return type == IV_BF16  ? tap_chains<IV_BF16, TAPS>
           : type == IV_F16 ? tap_chains<IV_F16, TAPS>
                            : tap_chains<IV_F32, TAPS>;
}

int iv_gpu_tap_sums(const iv_gpu_tap_sums_args *a, iv_gpu_stream stream) {
    tap_problem p = {};
    cudaStream_t s = (cudaStream_t)stream;
    tap_kernel *const kernels[] = {kernel_of<1>(a->type), kernel_of<2>(a->type), kernel_of<3>(a->type),
                                   kernel_of<4>(a->type), kernel_of<5>(a->type), kernel_of<6>(a->type),
                                   kernel_of<7>(a->type), kernel_of<8>(a->type)};
    if (a->taps > sizeof kernels / sizeof *kernels || !iv_sum_plan_make(a->axis, &a->sums, &p.plan))
        return (int)cudaErrorInvalidValue;
    if (a->n == 0 || a->taps == 0 || p.plan.ranges == 0) return 0;
    p.a = *a, p.chain = (float *)a->scratch;
    dim3 grid((unsigned)((a->n + THREADS - 1) / THREADS), (unsigned)p.plan.ranges);
    int code = iv_launch(kernels[a->taps - 1], grid, THREADS, s, p);
    unsigned blocks = (unsigned)((a->n * a->taps + THREADS - 1) / THREADS);
    return code || is_alone(p.plan) ? code : iv_launch(tap_tree, dim3(blocks), THREADS, s, p);
}
