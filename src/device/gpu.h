/* gpu.h: NVIDIA GPUs: discovery, memory, copies, errors. Knows no kernel.
 *
 * A build with nvcc contains the CUDA runtime; the driver is loaded when a GPU is opened. Without either, every call is
 * IV_UNSUPPORTED and names what is missing. */
#ifndef IV_DEVICE_GPU_H
#define IV_DEVICE_GPU_H

#include "device/memspace.h"

typedef struct iv_gpu iv_gpu;

typedef struct iv_gpu_info {
    char name[96];
    int ordinal, major, minor, sms;
    size_t memory, free; /* bytes, when it was opened */
} iv_gpu_info;

/* The number of GPUs that the driver shows. IV_UNSUPPORTED: no CUDA in this build, no driver or an old one, no GPU. */
iv_status iv_gpu_count(size_t *count, iv_error *err);

/* Opens GPU `ordinal`. tensor_cores: it must be of compute capability 9.0, whose sums tc16 is. */
iv_status iv_gpu_open(size_t ordinal, bool tensor_cores, iv_gpu **out, iv_error *err);
void iv_gpu_close(iv_gpu *gpu); /* NULL is fine */
const iv_gpu_info *iv_gpu_get_info(const iv_gpu *gpu);
iv_memspace *iv_gpu_memspace(iv_gpu *gpu);
const iv_gpu *iv_gpu_of(const iv_memspace *memspace); /* that it is the memory of; NULL: no GPU's */
size_t iv_gpu_memory_available(const iv_gpu *gpu);

/* Makes it the calling thread's current device. */
iv_status iv_gpu_use(const iv_gpu *gpu, iv_error *err);

/* Enables peer access between all GPUs of a group; IV_UNSUPPORTED names a pair that has none. */
iv_status iv_gpu_peer(iv_gpu *const *gpus, size_t count, iv_error *err);

/* IV_OK, or an error made from the runtime's `code`, prefixed with `what`: IV_NO_MEMORY or IV_IO. */
iv_status iv_gpu_check(const iv_gpu *gpu, int code, const char *what, iv_error *err);

#endif
