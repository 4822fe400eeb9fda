/* head_products_sm90a.cu: products of heads in tc16, see head_products.cu: tiles of rows and outputs go through shared
 * memory, a few chunks of k ahead. */
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/launch.cuh"
#include "numerics/tree.h"

enum {
    STEP = IV_CHAIN_STEP,
    THREADS = 128,
    TILE_N = 128, /* 32 of each warp */
    CHUNK = 64,   /* of k */
    PITCH = CHUNK + 8,
    STAGES = 3
};

/* Rows of a chunk of k on their way to shared memory; those from `rows` on, and k from its end on, are zeros. */
IV_DEVICE void stage_rows(uint32_t to, const uint16_t *from, size_t stride, int count, size_t rows, size_t left) {
    for (int i = threadIdx.x; i < count * (CHUNK / 8); i += THREADS) {
        int r = i / (CHUNK / 8), c = i % (CHUNK / 8) * 8;
        bool there = r < rows && c < left;
        iv_copy16(to + (r * PITCH + c) * 2, there ? from + (size_t)r * stride + c : from, there);
    }
}

/* A CTA has 16 MT rows and TILE_N outputs of one head, a warp all of these rows and 32 outputs. */
template <iv_dtype T, int MT>
static __global__ void __launch_bounds__(THREADS) tiles(const __grid_constant__ iv_gpu_head_products_args a) {
    extern __shared__ __align__(16) char memory[];
    constexpr int ROWS = 16 * MT, STAGE = (ROWS + TILE_N) * PITCH * 2;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    size_t head = blockIdx.y, row = (size_t)blockIdx.z * ROWS, j = (size_t)blockIdx.x * TILE_N;
    int chunks = (int)((a.k + CHUNK - 1) / CHUNK);
    const uint16_t *x = (const uint16_t *)a.x + row * a.x_stride + head * a.x_head;
    const uint16_t *w = (const uint16_t *)((const char *)a.w + head * a.w_apart) + j * a.k;
    uint32_t base = iv_shared(memory);
    auto stage = [&](int chunk) {
        uint32_t to = base + chunk % STAGES * STAGE;
        if (chunk < chunks) {
            size_t left = a.k - (size_t)chunk * CHUNK;
            stage_rows(to, x + (size_t)chunk * CHUNK, a.x_stride, ROWS, a.rows - row, left);
            stage_rows(to + ROWS * PITCH * 2, w + (size_t)chunk * CHUNK, a.k, TILE_N, a.n - j, left);
        }
        iv_copies_commit();
    };
    float d[MT][4][4] = {};
    iv_let_next();
    iv_wait();
    for (int i = 0; i < STAGES - 1; i++) stage(i);
    for (int chunk = 0; chunk < chunks; chunk++) {
        iv_copies_wait<STAGES - 2>();
        __syncthreads(); /* the chunk is here, and the one before is used up */
        stage(chunk + STAGES - 1);
        uint32_t from = base + chunk % STAGES * STAGE;
        int steps = (int)min((size_t)CHUNK, a.k - (size_t)chunk * CHUNK) / STEP;
#pragma unroll
        for (int s = 0; s < CHUNK / STEP; s++) {
            if (s >= steps) break;
            uint32_t b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_matrices(b[i], from + ((ROWS + warp * 32 + i * 16 + lane / 16 * 8 + lane % 8) * PITCH + s * STEP +
                                            lane / 8 % 2 * 8) *
                                               2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t f[4];
                load_matrices(f, from + ((m * 16 + lane % 16) * PITCH + s * STEP + lane / 16 * 8) * 2);
#pragma unroll
                for (int i = 0; i < 4; i++) mma<T>(d[m][i], f, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            size_t r = row + m * 16 + g + i % 2 * 8, c = j + warp * 32 + i / 2 * 8 + 2 * t;
            if (r >= a.rows || c >= a.n) continue;
            *(uint32_t *)((uint16_t *)a.out + r * a.out_stride + head * a.out_head + c) =
                iv_pack16(T, d[m][i / 2][i % 2 * 2], d[m][i / 2][i % 2 * 2 + 1]);
        }
}

template <iv_dtype T, int MT> static int launch_tiles(const iv_gpu_head_products_args *a, cudaStream_t stream) {
    constexpr size_t bytes = STAGES * (16 * MT + TILE_N) * PITCH * 2;
    cudaError_t failed = cudaFuncSetAttribute(tiles<T, MT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (failed) return failed;
    dim3 grid((unsigned)((a->n + TILE_N - 1) / TILE_N), (unsigned)a->heads,
              (unsigned)((a->rows + 16 * MT - 1) / (16 * MT)));
    return iv_launch_shared(tiles<T, MT>, grid, THREADS, bytes, stream, *a);
}

int iv_head_products_tiles(const iv_gpu_head_products_args *a, iv_gpu_stream stream) {
    if (!iv_head_products_fit_tiles(a) || a->rows > 65535 * 64) return (int)cudaErrorInvalidValue;
    bool few = a->rows <= 16;
    if (a->type == IV_BF16) return few ? launch_tiles<IV_BF16, 1>(a, stream) : launch_tiles<IV_BF16, 4>(a, stream);
    return few ? launch_tiles<IV_F16, 1>(a, stream) : launch_tiles<IV_F16, 4>(a, stream);
}
