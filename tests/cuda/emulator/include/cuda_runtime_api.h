/* cuda_runtime_api.h of the emulator: what launchers and tests call. Device memory is memory whose end stands before a
 * page that nobody may touch. Device d of 64 has d + 2 multiprocessors, so that cudaSetDevice tries another machine. */
#ifndef IV_EMULATOR_CUDA_RUNTIME_API_H
#define IV_EMULATOR_CUDA_RUNTIME_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef int cudaDriverEntryPointQueryResult;
enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801
};
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor, cudaDevAttrMultiProcessorCount };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum { cudaEnableDefault, cudaDriverEntryPointSuccess = 0, cudaStreamCaptureModeThreadLocal };

cudaError_t emu_malloc(void **p, size_t bytes);
#define cudaMalloc(p, bytes) emu_malloc((void **)(p), bytes)
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e); /* of a launch that failed: why */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned version, int flags,
                                             cudaDriverEntryPointQueryResult *found);

/* Graphs are not emulated: these fail. */
typedef void *cudaGraph_t, *cudaGraphExec_t;
static inline cudaError_t cudaStreamCreate(cudaStream_t *s) { return (void)s, cudaErrorNotSupported; }
static inline cudaError_t cudaStreamDestroy(cudaStream_t s) { return (void)s, cudaErrorNotSupported; }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t s) { return (void)s, cudaErrorNotSupported; }
static inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, int m) {
    return (void)s, (void)m, cudaErrorNotSupported;
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    return (void)s, (void)g, cudaErrorNotSupported;
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, int flags) {
    return (void)e, (void)g, (void)flags, cudaErrorNotSupported;
}
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    return (void)e, (void)s, cudaErrorNotSupported;
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { return (void)e, cudaErrorNotSupported; }
static inline cudaError_t cudaGraphDestroy(cudaGraph_t g) { return (void)g, cudaErrorNotSupported; }

/* Schedules, delays of copies and what a launch finds in shared memory follow from the seed. */
void emu_seed(uint64_t seed);

/* Mistakes that a kernel could have, made on purpose in the launches that follow, at places that the seed draws. */
typedef enum emu_fault {
    EMU_NO_FAULT,
    EMU_FORGET_WAITS,  /* waits for mbarriers go on at once, half of them */
    EMU_LOSE_ARRIVAL,  /* one arrival at an mbarrier does not happen */
    EMU_FORGET_SYNCS,  /* barriers of threads wait for nobody */
    EMU_RELEASE_EARLY, /* copies say that they are there before they are */
    EMU_FORGET_LAST,   /* the end of the launch before is not waited for, half of the time */
    EMU_FLIP_BIT,      /* one in 64 results of the tensor cores has another lowest bit */
    EMU_FORGET_STORES  /* what the copy engine stores is not waited for, half of the time */
} emu_fault;
void emu_plant(emu_fault fault);
bool emu_fault_happened(void); /* since it was planted */
size_t emu_stores(void);       /* of the copy engine to global memory, since the program began */

#ifdef __cplusplus
}
#endif

#endif
