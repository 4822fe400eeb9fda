/* runtime.c: the rest of CUDA's runtime that an engine calls, over the emulator, with CUDA's own types: the whole
 * program then runs with --device cuda on any machine, with a thread or a process for each rank. INVAR_EMULATED_SEED
 * seeds the schedule, INVAR_EMULATED_SMS sets the multiprocessors of device 0. */
#include "include/control.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { COMPUTE_CAPABILITY = 9, BYTES = 1 << 30 };

cudaError_t emu_malloc(void **p, size_t bytes);

__attribute__((constructor)) static void begin(void) {
    const char *seed = getenv("INVAR_EMULATED_SEED");
    if (seed) emu_seed(strtoull(seed, NULL, 0));
}

cudaError_t cudaMalloc(void **p, size_t bytes) { return emu_malloc(p, bytes); }
cudaError_t cudaDriverGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated");
    p->major = COMPUTE_CAPABILITY;
    return cudaDeviceGetAttribute(&p->multiProcessorCount, cudaDevAttrMultiProcessorCount, device);
}
static size_t memory_bytes = (size_t)4 * BYTES;
void emu_memory(size_t bytes) { memory_bytes = bytes ? bytes : (size_t)4 * BYTES; }
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) { return *available = *total = memory_bytes, cudaSuccess; }

/* Gathers few rows at once, so that small steps are also gathered in pieces. */
size_t __wrap_iv_gpu_gathered_rows(size_t row_bytes);
size_t __wrap_iv_gpu_gathered_rows(size_t row_bytes) { return (void)row_bytes, (size_t)3; }

/* Small models exchange their sums in several rounds, too. */
size_t __wrap_iv_train_round_elements(void);
size_t __wrap_iv_train_round_elements(void) { return (size_t)1 << 14; }
