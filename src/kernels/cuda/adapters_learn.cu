/* adapters_learn.cu: the rounded factors of an adapter that learns, and R(scale * dy) of its modules, on any GPU. */
#include "kernels/cuda/adapters_learn.h"
#include "kernels/cuda/adapters.cuh"
#include "kernels/cuda/eights.cuh"

enum { FACTOR_THREADS = 256, FACTOR_BLOCKS = 16 /* of a factor */, FRAGMENT_ROWS = 8, FMA_ROWS = 32 };

/* ---- factors ----------------------------------------------------------------------------------------------------- */

/* The element that stands at place `at` of a factor in its kernel's form; i or k beyond the ends: padding. */
template <bool TC16> IV_DEVICE void factor_element(const iv_gpu_learned_factor &f, long long at, int &i, int &k) {
    int padded = (f.k + ADAPTER_STEP - 1) / ADAPTER_STEP * ADAPTER_STEP;
    if (!TC16) {
        int pair = (int)(at / (2 * FMA_ROWS));
        i = pair / (padded / 2) * FMA_ROWS + (int)(at % (2 * FMA_ROWS)) / 2;
        k = pair % (padded / 2) * 2 + (int)(at % 2);
        return;
    }
    int length = padded / f.leaves, pairs = (length / ADAPTER_STEP + 1) / 2;
    int part = (int)(at % 8), lane = (int)(at / 8 % 32);
    long long rest = at / 256;
    int step = (int)(rest % pairs) * 2 + part / 4;
    rest /= pairs;
    int leaf = (int)(rest % f.leaves);
    i = (int)(rest / f.leaves) * FRAGMENT_ROWS + lane / 4;
    k = step * ADAPTER_STEP < length ? leaf * length + step * ADAPTER_STEP + lane % 4 * 4 + part % 4 : f.k;
}

template <bool TC16> IV_DEVICE long long factor_elements(const iv_gpu_learned_factor &f) {
    long long padded = (f.k + ADAPTER_STEP - 1) / ADAPTER_STEP * ADAPTER_STEP;
    if (!TC16) return (f.n + FMA_ROWS - 1) / FMA_ROWS * FMA_ROWS * padded;
    long long steps = padded / ADAPTER_STEP / f.leaves;
    return (f.n + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS * FRAGMENT_ROWS * ((steps + 1) / 2 * 2 * ADAPTER_STEP * f.leaves);
}

template <iv_dtype T, bool TC16>
static __global__ void __launch_bounds__(FACTOR_THREADS)
    pack_learned(const float *masters, const iv_gpu_learned_factor *factors, char *to) {
    iv_let_next();
    iv_wait();
    iv_gpu_learned_factor f = factors[blockIdx.x];
    long long count = f.leaves ? factor_elements<TC16>(f) : (long long)f.n * f.k;
    char *out = to + f.to;
    for (long long at = (long long)blockIdx.y * FACTOR_THREADS + threadIdx.x; at < count;
         at += (long long)gridDim.y * FACTOR_THREADS) {
        int i = (int)(at / f.k), k = (int)(at % f.k);
        size_t place = f.leaves ? (size_t)at : (size_t)i * f.stride + k;
        if (f.leaves) factor_element<TC16>(f, at, i, k);
        put<T>(out, place, i < f.n && k < f.k ? masters[f.from + i * f.row + k * f.column] : 0.0f);
    }
}

template <iv_dtype T>
static int pack_of(bool tc16, const float *masters, const iv_gpu_learned_factor *factors, size_t count, void *to,
                   cudaStream_t stream) {
    dim3 grid((unsigned)count, FACTOR_BLOCKS);
    return iv_launch(tc16 ? pack_learned<T, true> : pack_learned<T, false>, grid, FACTOR_THREADS, stream, masters,
                     factors, (char *)to);
}

int iv_gpu_pack_learned(iv_arithmetic arithmetic, iv_dtype type, const float *masters,
                        const iv_gpu_learned_factor *factors, size_t count, void *to, iv_gpu_stream stream) {
    bool tc16 = arithmetic == IV_TC16;
    if (count == 0) return 0;
    if (type == IV_F32) return pack_of<IV_F32>(tc16, masters, factors, count, to, stream);
    if (type == IV_F16) return pack_of<IV_F16>(tc16, masters, factors, count, to, stream);
    return pack_of<IV_BF16>(tc16, masters, factors, count, to, stream);
}

/* ---- dz ---------------------------------------------------------------------------------------------------------- */

/* Eight columns of dz: one run has all of them. */
template <iv_dtype T>
static __global__ void __launch_bounds__(EIGHTS_THREADS)
    scale_columns(const __grid_constant__ iv_gpu_scale_columns_args a, size_t width) {
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x, column = first_column<8>();
    if (column >= width) return;
    size_t leaf = column / a.columns.to_leaf;
    uint32_t in_leaf = (uint32_t)(column % a.columns.to_leaf);
    size_t p = 0;
    while (p + 1 < a.columns.runs && in_leaf >= a.columns.run[p + 1].to) p++;
    uint32_t at = in_leaf - a.columns.run[p].to, n = a.columns.run[p].n, before = (uint32_t)leaf * n;
    uint32_t left = a.columns.run[p].all > before ? a.columns.run[p].all - before : 0;
    n = left < n ? left : n;
    float x[8] = {};
    bool real = !a.row || a.row[row] >= 0;
    if (real) load_whole<T, 8>(a.dy, row * a.dy_stride + leaf * a.columns.from_leaf + a.columns.run[p].from + at, x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = real && at + i < n ? iv_canon(__fmul_rn(a.scale, x[i])) : 0.0f;
    store_whole<T, 8>(a.dz, row * width + column, x);
}

template <iv_dtype T> static int scale_of(const iv_gpu_scale_columns_args *a, cudaStream_t stream) {
    size_t width = a->columns.leaves * a->columns.to_leaf;
    return iv_launch(scale_columns<T>, iv_eights_grid(a->rows, width, 8), EIGHTS_THREADS, stream, *a, width);
}

int iv_gpu_scale_columns(const iv_gpu_scale_columns_args *a, iv_gpu_stream stream) {
    const iv_gpu_column_runs *c = &a->columns;
    if (a->rows == 0 || c->leaves * c->to_leaf == 0) return 0;
    if (c->runs == 0 || c->runs > IV_GPU_COLUMN_RUNS_MAX || c->to_leaf % 16 || c->from_leaf % 16 ||
        !iv_fits_eights(a->type, a->dy, a->dy_stride) || !iv_fits_eights(a->type, a->dz, c->to_leaf))
        return (int)cudaErrorInvalidValue;
    if (a->type == IV_F32) return scale_of<IV_F32>(a, stream);
    return a->type == IV_F16 ? scale_of<IV_F16>(a, stream) : scale_of<IV_BF16>(a, stream);
}
