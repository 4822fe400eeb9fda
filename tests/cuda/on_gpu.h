/* on_gpu.h: helpers for tests of GPU ops: copies to and from the GPU, errors that fail the test, a skip with a
 * reason. */
#ifndef IV_TESTS_CUDA_ON_GPU_H
#define IV_TESTS_CUDA_ON_GPU_H

#include "random.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#define GPU_OK(call)                                                                      \
    do {                                                                                  \
        int gpu_ok_ = (int)(call);                                                        \
        if (gpu_ok_) fail_msg("%s: %s", #call, cudaGetErrorString((cudaError_t)gpu_ok_)); \
    } while (0)

static inline int gpus_here(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
    cudaGetLastError();
    return n;
}

#define SKIP_WITHOUT_GPUS(count)                                                      \
    do {                                                                              \
        if (gpus_here() < (count)) {                                                  \
            printf("SKIPPED: %d GPUs wanted, %d found\n", (int)(count), gpus_here()); \
            skip();                                                                   \
        }                                                                             \
    } while (0)

/* Runs the cases of a group, of which the first `anywhere` need no GPU. Without one the others are skipped together.
 * emulated: the group of test_cuda_emulated that runs the same kernels; NULL: there is none. */
#define run_gpu_tests(tests, anywhere, emulated, setup, teardown) \
    run_gpu_cases(tests, sizeof(tests) / sizeof *(tests), anywhere, emulated, setup, teardown)

static inline int run_gpu_cases(const struct CMUnitTest *tests, size_t n, size_t anywhere, const char *emulated,
                                CMFixtureFunction setup, CMFixtureFunction teardown) {
    if (!gpus_here()) {
        printf("SKIPPED: %zu cases need a GPU; %s%s\n", n - anywhere,
               emulated ? "they run emulated in cuda_emulated_" : "no emulated group has them",
               emulated ? emulated : "");
        n = anywhere;
    }
    return n ? run_test_cases(tests, n, setup, teardown) : 77;
}

/* Memory on the current GPU, filled with bytes that reveal missing writes. */
static inline void *gpu_room(size_t bytes) {
    void *p = NULL;
    GPU_OK(cudaMalloc(&p, bytes ? bytes : 1));
    GPU_OK(cudaMemset(p, 0xa5, bytes ? bytes : 1));
    return p;
}

static inline void *gpu_copy(const void *from, size_t bytes) {
    void *p = gpu_room(bytes);
    GPU_OK(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

/* Synchronizes, then copies. The caller frees. */
static inline void *host_copy(const void *from, size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    GPU_OK(cudaDeviceSynchronize());
    GPU_OK(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
    return p;
}

/* Copies from the GPU and compares. */
static inline void assert_gpu_has(const char *what, const void *want, const void *gpu, size_t n, size_t element,
                                  bool any_nan) {
    void *got = host_copy(gpu, n * element);
    assert_same_bits(what, want, got, n, element, any_nan);
    free(got);
}

static inline float as_float(iv_dtype type, const void *p, size_t i) {
    if (type == IV_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == IV_BF16 ? iv_bf16_to_f32(h) : iv_f16_to_f32(h);
}

#endif
