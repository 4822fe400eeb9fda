/* runtime.c: what is left of CUDA's runtime that an engine calls, over the emulator: a device without streams of its
 * own, on which everything that was enqueued is done when somebody asks. So the whole program runs with --device cuda
 * on any machine, a rank a process. Graphs are not emulated: --enforce-eager. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { COMPUTE_CAPABILITY = 9, BYTES = 1 << 30 };

cudaError_t emu_malloc(void **p, size_t bytes);

cudaError_t cudaMalloc(void **p, size_t bytes) { return emu_malloc(p, bytes); }
cudaError_t cudaDriverGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated");
    p->major = COMPUTE_CAPABILITY;
    return cudaDeviceGetAttribute(&p->multiProcessorCount, cudaDevAttrMultiProcessorCount, device);
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    return *available = *total = (size_t)4 * BYTES, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { return (void)a, (void)b, *can = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return (void)peer, (void)flags, cudaErrorNotSupported;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p) { return free(p), cudaSuccess; }

/* Threads that load weights have streams of their own, and nothing is enqueued there. */
static cudaError_t before(cudaStream_t s) { return s == cudaStreamPerThread ? cudaSuccess : cudaDeviceSynchronize(); }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)kind;
    cudaError_t code = before(s);
    if (n) memcpy(to, from, n);
    return code;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)kind;
    cudaError_t code = before(s);
    for (size_t i = 0; i < rows; i++) memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return code;
}
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t n) {
    return (void)to_device, (void)from_device, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, NULL);
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) {
    cudaError_t code = before(s);
    memset(p, value, n);
    return code;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return (void)flags, *s = NULL, cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    return (void)priority, cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { return *least = *most = 0, cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    return (void)s, (void)e, (void)flags, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { return (void)s, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return before(s); }
cudaError_t cudaStreamQuery(cudaStream_t s) { return before(s); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { return (void)flags, *e = NULL, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return (void)e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return (void)e, (void)s, cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return (void)e, cudaDeviceSynchronize(); }

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    return (void)s, (void)mode, cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) { return (void)s, *g = NULL, cudaErrorNotSupported; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags) {
    return (void)e, (void)g, (void)flags, cudaErrorNotSupported;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) { return (void)e, (void)s, cudaErrorNotSupported; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return (void)g, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { return (void)e, cudaSuccess; }

/* Few rows are gathered at once, so that small steps too are gathered in pieces. */
size_t __wrap_iv_gpu_gathered_rows(size_t row_bytes);
size_t __wrap_iv_gpu_gathered_rows(size_t row_bytes) { return (void)row_bytes, (size_t)3; }
