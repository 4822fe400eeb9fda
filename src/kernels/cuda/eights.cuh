/* eights.cuh: V elements of a typed row at once: 8, in loads and stores of 16 bytes, where rows are aligned; 1
 * elsewhere. */
#ifndef IV_KERNELS_CUDA_EIGHTS_CUH
#define IV_KERNELS_CUDA_EIGHTS_CUH

#include "kernels/cuda/rows.cuh"

enum { EIGHTS_THREADS = 128 };

/* Are rows that are `stride` elements apart fit for eights? */
static inline bool iv_fits_eights(iv_dtype type, const void *rows, size_t stride) {
    return (uintptr_t)rows % 16 == 0 && stride * (type == IV_F32 ? 4 : 2) % 16 == 0;
}

/* Blocks of EIGHTS_THREADS that cover `columns` of each row: x is the row. */
static inline dim3 iv_eights_grid(size_t rows, size_t columns, int v) {
    size_t each = (size_t)EIGHTS_THREADS * v;
    return dim3((unsigned)rows, (unsigned)((columns + each - 1) / each));
}

/* This thread's first column. */
template <int V> IV_DEVICE size_t first_column(void) { return ((size_t)blockIdx.y * EIGHTS_THREADS + threadIdx.x) * V; }

/* Elements [i, i + V) of a row. */
template <iv_dtype T, int V> IV_DEVICE void load_whole(const void *row, size_t i, float x[V]) {
    if (V == 1) {
        x[0] = get<T>(row, i);
        return;
    }
    uint4 words[T == IV_F32 ? 2 : 1];
    const uint4 *from = (const uint4 *)((const char *)row + i * (T == IV_F32 ? 4 : 2));
    words[0] = from[0];
    if (T == IV_F32) words[T == IV_F32 ? 1 : 0] = from[1];
    const uint32_t w[8] = {words[0].x,
                           words[0].y,
                           words[0].z,
                           words[0].w,
                           words[T == IV_F32 ? 1 : 0].x,
                           words[T == IV_F32 ? 1 : 0].y,
                           words[T == IV_F32 ? 1 : 0].z,
                           words[T == IV_F32 ? 1 : 0].w};
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = T == IV_F32 ? __uint_as_float(w[j]) : iv_widen16(T, (uint16_t)(w[j / 2] >> (j % 2 * 16)));
}

/* The same of a row of n: +0 beyond its end. */
template <iv_dtype T, int V> IV_DEVICE void load_some(const void *row, size_t i, size_t n, float x[V]) {
    if (i + V <= n) {
        load_whole<T, V>(row, i, x);
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = i + j < n ? get<T>(row, i + j) : 0.0f;
}

template <iv_dtype T> IV_DEVICE uint32_t rounded_pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
    return iv_pack16(T, low, high);
#else
    return iv_round16(T, low) | (uint32_t)iv_round16(T, high) << 16;
#endif
}

/* R(x) into elements [i, i + V). */
template <iv_dtype T, int V> IV_DEVICE void store_whole(void *row, size_t i, const float x[V]) {
    if (V == 1) {
        put<T>(row, i, x[0]);
        return;
    }
    uint4 *to = (uint4 *)((char *)row + i * (T == IV_F32 ? 4 : 2));
    uint32_t w[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        w[j] = T == IV_F32 ? rounded<T>(x[j % V]) : j < 4 ? rounded_pair<T>(x[2 * j % V], x[(2 * j + 1) % V]) : 0;
    to[0] = make_uint4(w[0], w[1], w[2], w[3]);
    if (T == IV_F32) to[1] = make_uint4(w[4], w[5], w[6], w[7]);
}

#endif
