/* cuda_driver.c: a stand-in for libcuda.so.1: one process's calls of serve/weights/driver.c, in this machine's memory.
 * Two GPUs. The handle of another process's memory is the name of torch's shared memory; its data begins after 64
 * bytes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GPUS = 2, OK = 0, INVALID = 1, NO_CONTEXT = 201, HEAD = 64, MAPS = 64 };

typedef struct handle {
    char bytes[64];
} handle;

static __thread void *current;
static int contexts[GPUS];
static struct {
    unsigned char *at;
    size_t bytes;
} maps[MAPS];

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDeviceGetCount(int *n) { return *n = GPUS, OK; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal < GPUS ? OK : INVALID; }
int cuDeviceGetUuid(unsigned char *out, int device) {
    for (int i = 0; i < 16; i++) out[i] = (unsigned char)(device * 16 + i);
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &contexts[device], OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device < GPUS ? OK : INVALID; }
int cuCtxSetCurrent(void *context) { return current = context, OK; }

int cuIpcOpenMemHandle_v2(unsigned long long *out, handle h, unsigned flags) {
    struct stat st;
    if (!current) return NO_CONTEXT;
    if (flags != 1 || memchr(h.bytes, 0, sizeof h.bytes) == NULL) return INVALID;
    int fd = shm_open(h.bytes, O_RDONLY, 0);
    if (fd < 0 || fstat(fd, &st) != 0) return INVALID;
    unsigned char *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return INVALID;
    for (int i = 0; i < MAPS; i++)
        if (!maps[i].at) {
            maps[i].at = at, maps[i].bytes = (size_t)st.st_size;
            *out = (uintptr_t)(at + HEAD);
            return OK;
        }
    return INVALID;
}
int cuIpcCloseMemHandle(unsigned long long at) {
    for (int i = 0; i < MAPS; i++)
        if (maps[i].at && maps[i].at + HEAD == (unsigned char *)(uintptr_t)at) {
            munmap(maps[i].at, maps[i].bytes);
            maps[i].at = NULL;
            return OK;
        }
    return INVALID;
}
int cuIpcOpenEventHandle(void **out, handle h) { return *out = malloc(1), h.bytes[0] ? INVALID : OK; }
int cuEventSynchronize(void *event) { return event ? OK : INVALID; }
int cuEventDestroy_v2(void *event) { return free(event), OK; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
    if (!current) return NO_CONTEXT;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return OK;
}
int cuMemAlloc_v2(unsigned long long *out, size_t bytes) {
    void *at = current ? malloc(bytes) : NULL;
    return *out = (uintptr_t)at, at ? OK : NO_CONTEXT;
}
int cuMemFree_v2(unsigned long long at) { return free((void *)(uintptr_t)at), OK; }
int cuStreamCreate(void **out, unsigned flags) { return *out = malloc(1), flags == 1 ? OK : INVALID; }
int cuStreamDestroy_v2(void *stream) { return free(stream), OK; }
int cuStreamQuery(void *stream) { return stream ? OK : INVALID; }
int cuGetErrorName(int code, const char **out) {
    return *out = code == NO_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_INVALID_VALUE", OK;
}
