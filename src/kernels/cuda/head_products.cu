/* head_products.cu: a matrix for each head, as latent attention has them (law, section 18): one chain an output.
 *
 * This kernel takes any sizes: in tc16 a warp has 16 rows and 8 outputs, read from memory; in fma32 a thread has an
 * output. That of head_products_sm90a.cu takes aligned rows in tc16. */
#include "kernels/cuda/latent.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "numerics/tree.h"

enum { STEP = IV_CHAIN_STEP, THREADS = 128 };

template <iv_dtype T> IV_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 900
    if constexpr (T == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                     " {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Two elements from i on; zero from n on. */
IV_DEVICE uint32_t pair(const uint16_t *p, size_t i, size_t n) {
    uint32_t low = i < n ? p[i] : 0, high = i + 1 < n ? p[i + 1] : 0;
    return low | high << 16;
}

template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS) general_tc16(const __grid_constant__ iv_gpu_head_products_args a) {
    iv_let_next();
    iv_wait();
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    size_t head = blockIdx.y, row = (size_t)blockIdx.z * 16 + g,
           j = ((size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * 8;
    size_t padded = (a.k + STEP - 1) / STEP * STEP;
    if (j >= a.n) return;
    const uint16_t *x = (const uint16_t *)a.x + row * a.x_stride + head * a.x_head;
    const uint16_t *w = (const uint16_t *)((const char *)a.w + head * a.w_apart) + (j + g) * padded;
    size_t low = row < a.rows ? a.k : 0, high = row + 8 < a.rows ? a.k : 0, of_w = j + g < a.n ? padded : 0;
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (size_t i = 2 * t; i < padded; i += STEP) {
        uint32_t f[4] = {pair(x, i, low), pair(x + 8 * a.x_stride, i, high), pair(x, i + 8, low),
                         pair(x + 8 * a.x_stride, i + 8, high)};
        mma<T>(d, f, pair(w, i, of_w), pair(w, i + 8, of_w));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        size_t r = row + i / 2 * 8, c = j + 2 * t + i % 2;
        if (r < a.rows && c < a.n) put<T>(a.out, r * a.out_stride + head * a.out_head + c, d[i]);
    }
}

template <iv_dtype T, iv_dtype W>
static __global__ void __launch_bounds__(THREADS) general_fma32(const __grid_constant__ iv_gpu_head_products_args a) {
    iv_let_next();
    iv_wait();
    size_t head = blockIdx.y, row = blockIdx.z, j = (size_t)blockIdx.x * THREADS + threadIdx.x;
    size_t padded = (a.k + STEP - 1) / STEP * STEP;
    if (j >= a.n) return;
    const void *w = (const char *)a.w + head * a.w_apart;
    size_t x = row * a.x_stride + head * a.x_head;
    float acc = 0.0f;
    for (size_t i = 0; i < padded; i += 2) {
        float low = i < a.k ? get<T>(a.x, x + i) : 0.0f, high = i + 1 < a.k ? get<T>(a.x, x + i + 1) : 0.0f;
        acc = iv_fma_flush(low, get<W>(w, j * padded + i), iv_fma_flush(high, get<W>(w, j * padded + i + 1), acc));
    }
    put<T>(a.out, row * a.out_stride + head * a.out_head + j, acc);
}

template <iv_dtype T> static int launch_general(const iv_gpu_head_products_args *a, cudaStream_t stream) {
    bool tc16 = a->arithmetic == IV_TC16;
    size_t columns = tc16 ? THREADS / 4 : THREADS, rows = tc16 ? 16 : 1, most = 65535 * rows;
    for (size_t first = 0; first < a->rows; first += most) {
        iv_gpu_head_products_args part = *a;
        part.rows = a->rows - first < most ? a->rows - first : most;
        part.x = (const char *)a->x + first * a->x_stride * (T == IV_F32 ? 4 : 2);
        part.out = (char *)a->out + first * a->out_stride * (T == IV_F32 ? 4 : 2);
        dim3 grid((unsigned)((a->n + columns - 1) / columns), (unsigned)a->heads,
                  (unsigned)((part.rows + rows - 1) / rows));
        int failed = cudaErrorInvalidValue;
        if constexpr (T != IV_F32)
            if (tc16) failed = iv_launch(general_tc16<T>, grid, THREADS, stream, part);
        if (!tc16 && a->w_type == T) failed = iv_launch(general_fma32<T, T>, grid, THREADS, stream, part);
        if constexpr (T == IV_F32) {
            if (a->w_type == IV_BF16) failed = iv_launch(general_fma32<T, IV_BF16>, grid, THREADS, stream, part);
            if (a->w_type == IV_F16) failed = iv_launch(general_fma32<T, IV_F16>, grid, THREADS, stream, part);
        }
        if (failed) return failed;
    }
    return 0;
}

int iv_head_products_general(const iv_gpu_head_products_args *a, iv_gpu_stream stream) {
    switch (a->type) {
    case IV_BF16: return launch_general<IV_BF16>(a, stream);
    case IV_F16: return launch_general<IV_F16>(a, stream);
    case IV_F32: return launch_general<IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

bool iv_head_products_fit_tiles(const iv_gpu_head_products_args *a) {
    return a->arithmetic == IV_TC16 && a->type != IV_F32 && a->w_type == a->type && a->k % STEP == 0 &&
           a->x_stride % 8 == 0 && a->x_head % 8 == 0 && (uintptr_t)a->x % 16 == 0 && (uintptr_t)a->w % 16 == 0 &&
           a->w_apart % 16 == 0 && a->n % 2 == 0 && a->out_stride % 2 == 0 && a->out_head % 2 == 0 &&
           (uintptr_t)a->out % 4 == 0;
}

int iv_gpu_head_products(const iv_gpu_head_products_args *a, iv_gpu_stream stream) {
    if (a->rows == 0 || a->heads == 0 || a->n == 0) return 0;
    return iv_head_products_fit_tiles(a) ? iv_head_products_tiles(a, stream) : iv_head_products_general(a, stream);
}
