/* loop.cu: the speed of the bare loop of a wide linear layer: copies into a ring of shared memory and wgmma, without tree
 * sums or an epilogue (src/kernels/cuda/linear_wgmma.cuh has both). It is the lower bound of a tile's time. Tiles of 128
 * rows by 128, 192 and 256 outputs, and small ones as for few tokens (128 outputs by 64 to 128 tokens); operands by tensor
 * maps of two dimensions, of four (as in the engine: leaves and experts), or as one run of bytes.
 * Usage: bench_loop [zeros] */
#include "kernels/cuda/hopper.cuh"

#include <cudaTypedefs.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, BLOCK = 64, ROW_BYTES = 128, RASTER = 8, LEAVES = 8, TURNS = 5, CONSUMERS = 256, SMS_MAX = 256 };
typedef enum how { BYTES, TWO_SIDES, FOUR_SIDES } how;
static const char *const how_names[] = {"bytes", "two sides", "four sides"};

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_) fprintf(stderr, "bench_loop: %s: %s\n", #call, cudaGetErrorString(e_)), exit(1);                       \
    } while (0)

typedef struct layer {
    const char *w, *x;
    int k, row_tiles, output_tiles, stages;
} layer;

static __device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* One thread: every block of every tile of this CTA. */
template <int N, how HOW>
static __device__ void produce(const CUtensorMap *w, const CUtensorMap *x, const layer &l, uint32_t ring, uint32_t full,
                               uint32_t empty) {
    constexpr int P = ROWS * ROW_BYTES, STAGE = P + N * ROW_BYTES;
    int stage = 0, phase = 0, round = 0, tiles = l.row_tiles * l.output_tiles;
    for (int at = blockIdx.x; at < tiles; at += gridDim.x) {
        int band = at / (RASTER * l.output_tiles), rest = at - band * RASTER * l.output_tiles;
        int height = min(RASTER, l.row_tiles - band * RASTER);
        int q = rest / height * N, p = (band * RASTER + rest % height) * ROWS, k = 0, leaf = 0;
        for (int b = 0; b < l.k / BLOCK; b++, round++) {
            uint32_t to = ring + stage * STAGE, bar = full + 8 * stage;
            if (round >= l.stages) iv_mbar_wait(empty + 8 * stage, phase ^ 1);
            iv_mbar_expect(bar, STAGE);
            if (HOW == BYTES) {
                copy_bytes(to + P, l.w + ((size_t)q * l.k + (size_t)b * BLOCK * N) * 2, N * ROW_BYTES, bar);
                copy_bytes(to, l.x + ((size_t)p * l.k + (size_t)b * BLOCK * ROWS) * 2, P, bar);
            } else if (HOW == TWO_SIDES) {
                iv_tma_load_2d(to + P, w, bar, b * BLOCK, q, IV_L2_NORMAL);
                iv_tma_load_2d(to, x, bar, b * BLOCK, p, IV_L2_NORMAL);
            } else {
                iv_tma_load_4d(to + P, w, bar, k, leaf, q, 0, IV_L2_NORMAL);
                iv_tma_load_4d(to, x, bar, k, leaf, p, 0, IV_L2_NORMAL);
                if ((k += BLOCK) == l.k / LEAVES) k = 0, leaf++;
            }
            if (++stage == l.stages) stage = 0, phase ^= 1;
        }
    }
}

template <int N, how HOW>
static __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    loop(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x, const layer l, long long *cycles,
         float *sink) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int P = ROWS * ROW_BYTES, STAGE = P + N * ROW_BYTES;
    uint32_t ring = iv_shared(shared), full = ring + l.stages * STAGE, empty = full + 8 * l.stages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < l.stages; s++) iv_mbar_init(full + 8 * s, 1), iv_mbar_init(empty + 8 * s, CONSUMERS / 32);
        iv_mbar_init_fence();
    }
    __syncthreads();
    long long start = clock64();
    if (threadIdx.x >= CONSUMERS) {
        iv_registers_give<40>();
        if (threadIdx.x == CONSUMERS) produce<N, HOW>(&w, &x, l, ring, full, empty);
        return;
    }
    iv_registers_take<232>();
    float d[N / 2], sum = 0;
    for (int i = 0; i < N / 2; i++) d[i] = 0;
    int stage = 0, phase = 0, last = -1, tiles = l.row_tiles * l.output_tiles;
    uint32_t mine = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64 * ROW_BYTES;
    for (int at = blockIdx.x; at < tiles; at += gridDim.x)
        for (int b = 0; b < l.k / BLOCK; b++) {
            iv_mbar_wait(full + 8 * stage, phase);
            uint64_t p = iv_wgmma_desc(ring + stage * STAGE + mine), q = iv_wgmma_desc(ring + stage * STAGE + P);
            iv_wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; s++) iv_wgmma<IV_BF16>(d, p + 2 * s, q + 2 * s, 1);
            iv_wgmma_commit();
            if (last >= 0) {
                iv_wgmma_wait<1>();
                if (threadIdx.x % 32 == 0) iv_mbar_arrive(empty + 8 * last);
            }
            last = stage;
            if (++stage == l.stages) stage = 0, phase ^= 1;
        }
    iv_wgmma_wait<0>();
    long long end = clock64();
    iv_wgmma_hold(d);
    for (int i = 0; i < N / 2; i++) sum += d[i];
    if (threadIdx.x == 0) cycles[blockIdx.x] = end - start;
    if (sum == 12345.678f) *sink = sum; /* keeps the products alive */
}

static CUtensorMap map_of(const char *data, how h, int rows, int k, int box) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    cudaDriverEntryPointQueryResult found;
    if (!encode)
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault,
                                               &found));
    bool two = h == TWO_SIDES;
    cuuint64_t leaf = (cuuint64_t)k / LEAVES, row = (cuuint64_t)k * 2, count = (cuuint64_t)rows;
    cuuint64_t flat[2] = {(cuuint64_t)k, count}, cut[4] = {leaf, LEAVES, count, 1};
    cuuint64_t flat_stride[1] = {row}, cut_stride[3] = {leaf * 2, row, row};
    cuuint32_t high = (cuuint32_t)box, flat_box[2] = {BLOCK, high}, cut_box[4] = {BLOCK, 1, high, 1};
    cuuint32_t ones[4] = {1, 1, 1, 1};
    CUtensorMap m;
    if (encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, two ? 2 : 4, (void *)data, two ? flat : cut,
               two ? flat_stride : cut_stride, two ? flat_box : cut_box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
        fprintf(stderr, "bench_loop: a tensor map was refused\n"), exit(1);
    return m;
}

template <int N, how HOW> static void measure(const char *w, const char *x, int rows, int n, int k, int stages) {
    int sms = 0, device = 0, shared = stages * (ROWS * ROW_BYTES + N * ROW_BYTES + 16);
    CHECK(cudaGetDevice(&device)); /* cycles of each of up to SMS_MAX */
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    long long *cycles, host[SMS_MAX];
    float *sink, ms, least = 1e9f;
    CHECK(cudaMalloc(&cycles, sizeof host));
    CHECK(cudaMalloc(&sink, sizeof *sink));
    CHECK(cudaFuncSetAttribute(loop<N, HOW>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    layer l = {w, x, k, rows / ROWS, n / N, stages};
    CUtensorMap w_map = map_of(w, HOW, n, k, N), x_map = map_of(x, HOW, rows, k, ROWS);
    for (int turn = 0; turn < TURNS; turn++) {
        CHECK(cudaEventRecord(from));
        loop<N, HOW><<<sms, CONSUMERS + 128, shared>>>(w_map, x_map, l, cycles, sink);
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (turn) least = fminf(least, ms);
    }
    CHECK(cudaMemcpy(host, cycles, sizeof host, cudaMemcpyDeviceToHost));
    double most = 0, tiles = (double)l.row_tiles * l.output_tiles;
    for (int i = 0; i < sms; i++) most = fmax(most, (double)host[i]);
    double block = most / ceil(tiles / sms) / (k / BLOCK), ideal = ROWS * N * BLOCK / 2048.0;
    double moved = 4.0 * 2 * (2048 + N * 32) + ROWS * ROW_BYTES + N * ROW_BYTES;
    printf("| %d x %d x %d | 128 x %d | %s | %d | %.0f | %.0f | %.3f | %.0f | %.1f | %.2f |\n", rows, n, k, N,
           how_names[HOW], stages, block, ideal, ideal / block, moved / block, least * 1e3, most / ms / 1e6);
    CHECK(cudaFree(cycles));
    CHECK(cudaFree(sink));
}

/* `outputs` are on the P side; `tiles` of tokens. */
static void measure_small(const char *w, const char *x, int outputs, int tiles, int k) {
    measure<64, FOUR_SIDES>(w, x, outputs, tiles * 64, k, 6);
    measure<80, FOUR_SIDES>(w, x, outputs, tiles * 80, k, 6);
    measure<96, FOUR_SIDES>(w, x, outputs, tiles * 96, k, 6);
    measure<112, FOUR_SIDES>(w, x, outputs, tiles * 112, k, 6);
    measure<128, FOUR_SIDES>(w, x, outputs, tiles * 128, k, 6);
}

int main(int argc, char **argv) {
    static const int shapes[][3] = {{1024, 24576, 4096}, {8192, 6144, 4096}, {1024, 4096, 12288}};
    bool zeros = argc > 1 && strcmp(argv[1], "zeros") == 0;
    size_t elements = (size_t)24576 * 4096;
    char *w, *x;
    CHECK(cudaMalloc(&w, elements * 2));
    CHECK(cudaMalloc(&x, elements * 2));
    uint16_t *values = (uint16_t *)malloc(elements * 2);
    if (!values) fprintf(stderr, "bench_loop: out of memory\n"), exit(1);
    for (size_t i = 0; i < elements; i++) {
        float f = zeros ? 0.0f : rand() / (float)RAND_MAX - 0.5f;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        values[i] = (uint16_t)(bits >> 16);
    }
    CHECK(cudaMemcpy(w, values, elements * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(x, values, elements * 2, cudaMemcpyHostToDevice));
    printf("| rows x outputs x k | tile | copies | stages | cycles a block of 64 k | products | share | bytes a cycle "
           "through shared memory | us | GHz |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (const int *s : shapes) {
        measure<128, BYTES>(w, x, s[0], s[1], s[2], 5);
        measure<128, TWO_SIDES>(w, x, s[0], s[1], s[2], 5);
        measure<128, FOUR_SIDES>(w, x, s[0], s[1], s[2], 5);
        measure<192, FOUR_SIDES>(w, x, s[0], s[1] / 192 * 192, s[2], 5);
        measure<256, FOUR_SIDES>(w, x, s[0], s[1], s[2], 4);
    }
    measure_small(w, x, 24576, 3, 4096);
    measure_small(w, x, 8192, 4, 12288);
    CHECK(cudaFree(w));
    CHECK(cudaFree(x));
    free(values);
    return 0;
}
