/* gpu.c: gpu.h over the CUDA runtime. */
#include "device/gpu.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct iv_gpu {
    iv_memspace memspace; /* first */
    iv_gpu_info info;
};

static iv_status no_gpu(cudaError_t code, iv_error *err) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return iv_fail(err, IV_UNSUPPORTED, "device cuda: no NVIDIA driver on this machine (libcuda.so.1)");
    if (code == cudaErrorInsufficientDriver || (driver && driver / 1000 < runtime / 1000))
        return iv_fail(err, IV_UNSUPPORTED,
                       "device cuda: the driver is too old: wanted one for CUDA %d.%d, found %d.%d", runtime / 1000,
                       runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    if (code == cudaErrorNoDevice)
        return iv_fail(err, IV_UNSUPPORTED, "device cuda: the driver shows no GPU (CUDA_VISIBLE_DEVICES is %s)",
                       getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "not set");
    return iv_fail(err, IV_UNSUPPORTED, "device cuda: %s", cudaGetErrorString(code));
}

iv_status iv_gpu_count(size_t *count, iv_error *err) {
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    *count = (size_t)(n > 0 ? n : 0);
    cudaGetLastError();
    if (code != cudaSuccess) return no_gpu(code, err);
    return n > 0 ? IV_OK : no_gpu(cudaErrorNoDevice, err);
}

iv_status iv_gpu_check(const iv_gpu *gpu, int code, const char *what, iv_error *err) {
    if (code == cudaSuccess) return IV_OK;
    const char *text = cudaGetErrorString((cudaError_t)code);
    cudaGetLastError();
    iv_status status = code == cudaErrorMemoryAllocation ? IV_NO_MEMORY : IV_IO;
    return iv_fail(err, status, "GPU %d (%s): %s: %s", gpu->info.ordinal, gpu->info.name, what, text);
}

iv_status iv_gpu_use(const iv_gpu *gpu, iv_error *err) {
    return iv_gpu_check(gpu, cudaSetDevice(gpu->info.ordinal), "cannot be used", err);
}

/* Zeroed when it returns, for every stream: the clearing of much memory takes milliseconds, and streams that do not
 * wait for the default one would write to it before. */
static void *gpu_alloc(iv_memspace *p, size_t bytes) {
    iv_gpu *gpu = (iv_gpu *)p;
    void *memory = NULL;
    if (cudaSetDevice(gpu->info.ordinal) != cudaSuccess || cudaMalloc(&memory, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    if (cudaMemsetAsync(memory, 0, bytes, cudaStreamPerThread) == cudaSuccess &&
        cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess)
        return memory;
    cudaGetLastError();
    cudaFree(memory);
    return NULL;
}

static void gpu_free(iv_memspace *p, void *memory) {
    iv_gpu *gpu = (iv_gpu *)p;
    if (!memory) return;
    cudaSetDevice(gpu->info.ordinal);
    cudaFree(memory);
    cudaGetLastError();
}

/* On the calling thread's own stream: threads that load do not wait for each other. */
static iv_status gpu_copy(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                          size_t rows, iv_error *err) {
    iv_gpu *gpu = (iv_gpu *)p;
    IV_TRY(iv_gpu_use(gpu, err));
    cudaError_t code =
        to_pitch == width && from_pitch == width
            ? cudaMemcpyAsync(to, from, width * rows, cudaMemcpyDefault, cudaStreamPerThread)
            : cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault, cudaStreamPerThread);
    if (code == cudaSuccess) code = cudaStreamSynchronize(cudaStreamPerThread);
    return iv_gpu_check(gpu, code, "copy", err);
}

static iv_status gpu_write(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                           size_t rows, iv_error *err) {
    return gpu_copy(p, to, to_pitch, from, from_pitch, width, rows, err);
}

static iv_status gpu_read(iv_memspace *p, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                          size_t rows, iv_error *err) {
    return gpu_copy(p, to, to_pitch, from, from_pitch, width, rows, err);
}

static void *gpu_stage(iv_memspace *p, size_t bytes) {
    iv_gpu *gpu = (iv_gpu *)p;
    void *memory = NULL;
    if (cudaSetDevice(gpu->info.ordinal) == cudaSuccess &&
        cudaHostAlloc(&memory, bytes ? bytes : 1, cudaHostAllocPortable) == cudaSuccess)
        return memory;
    cudaGetLastError();
    return NULL;
}

static void gpu_unstage(iv_memspace *p, void *memory) {
    (void)p;
    if (memory) cudaFreeHost(memory);
    cudaGetLastError();
}

iv_status iv_gpu_open(size_t ordinal, bool tensor_cores, iv_gpu **out, iv_error *err) {
    size_t count = 0;
    IV_TRY(iv_gpu_count(&count, err));
    if (ordinal >= count)
        return iv_fail(err, IV_INVALID, "device cuda: wanted GPU %zu, the driver shows %zu", ordinal, count);
    iv_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu) return iv_fail(err, IV_NO_MEMORY, "GPU %zu: no memory", ordinal);
    struct cudaDeviceProp prop;
    gpu->memspace = (iv_memspace){gpu_alloc, gpu_free, gpu_write, gpu_read, gpu_stage, gpu_unstage};
    gpu->info.ordinal = (int)ordinal;
    iv_status status = iv_gpu_check(gpu, cudaGetDeviceProperties(&prop, (int)ordinal), "properties", err);
    if (status == IV_OK) {
        snprintf(gpu->info.name, sizeof gpu->info.name, "%.95s", prop.name);
        gpu->info.major = prop.major, gpu->info.minor = prop.minor, gpu->info.sms = prop.multiProcessorCount;
        if (tensor_cores && (prop.major != 9 || prop.minor != 0))
            status = iv_fail(err, IV_UNSUPPORTED,
                             "GPU %zu (%s): arithmetic tc16 is the sum of Hopper's tensor cores: wanted compute "
                             "capability 9.0, found %d.%d; --arithmetic fma32 runs on any",
                             ordinal, gpu->info.name, prop.major, prop.minor);
    }
    if (status == IV_OK) status = iv_gpu_use(gpu, err);
    if (status == IV_OK) status = iv_gpu_check(gpu, cudaMemGetInfo(&gpu->info.free, &gpu->info.memory), "memory", err);
    if (status != IV_OK) {
        free(gpu);
        return status;
    }
    *out = gpu;
    return IV_OK;
}

void iv_gpu_close(iv_gpu *gpu) { free(gpu); } /* the context is the process's */

const iv_gpu_info *iv_gpu_get_info(const iv_gpu *gpu) { return &gpu->info; }
iv_memspace *iv_gpu_memspace(iv_gpu *gpu) { return &gpu->memspace; }
const iv_gpu *iv_gpu_of(const iv_memspace *m) { return m && m->alloc == gpu_alloc ? (const iv_gpu *)m : NULL; }

size_t iv_gpu_memory_available(const iv_gpu *gpu) {
    size_t available = 0, total = 0;
    if (cudaSetDevice(gpu->info.ordinal) != cudaSuccess || cudaMemGetInfo(&available, &total) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return available;
}

static iv_status reach(const iv_gpu *a, const iv_gpu *b, iv_error *err) {
    int can = 0;
    IV_TRY(iv_gpu_check(a, cudaDeviceCanAccessPeer(&can, a->info.ordinal, b->info.ordinal), "peers", err));
    if (!can)
        return iv_fail(
            err, IV_UNSUPPORTED,
            "GPU %d cannot reach the memory of GPU %d (no NVLink, and PCIe peer access is off): ranks of one "
            "process need that; choose other GPUs with CUDA_VISIBLE_DEVICES",
            a->info.ordinal, b->info.ordinal);
    IV_TRY(iv_gpu_use(a, err));
    cudaError_t code = cudaDeviceEnablePeerAccess(b->info.ordinal, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        return IV_OK;
    }
    return iv_gpu_check(a, code, "peer access", err);
}

iv_status iv_gpu_peer(iv_gpu *const *gpus, size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            if (gpus[i]->info.ordinal != gpus[j]->info.ordinal) IV_TRY(reach(gpus[i], gpus[j], err));
    return IV_OK;
}
