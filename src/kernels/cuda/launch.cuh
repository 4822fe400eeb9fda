/* launch.cuh: programmatic dependent launch: a kernel may start while its predecessor in the stream finishes.
 *
 * On compute capability 9.0 a kernel's prologue overlaps with its predecessor's tail. The prologue may read memory
 * that no kernel of the stream writes (weights); then it calls iv_wait, and may access everything else afterwards.
 * Every kernel calls iv_wait in every block, so waiting for one predecessor means waiting for all. On other GPUs
 * kernels run one after another. */
#ifndef IV_KERNELS_CUDA_LAUNCH_CUH
#define IV_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/law.cuh"

#include <cuda_runtime.h>
#include <stddef.h>

/* Waits until all writes of earlier kernels of the stream are visible. */
IV_DEVICE void iv_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel's blocks start as resources allow. */
IV_DEVICE void iv_let_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Only machine code for 9.0 contains the wait. */
static inline bool iv_overlaps(void) {
    enum { DEVICES = 64 };
    static int known[DEVICES]; /* 1: no, 2: yes; racing threads write the same value */
    int device = 0, major = 0, minor = 1;
    if (cudaGetDevice(&device) != cudaSuccess || device >= DEVICES) return false;
    if (known[device] == 0) {
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        known[device] = major == 9 && minor == 0 ? 2 : 1;
    }
    return known[device] == 2;
}

/* The argument types must be exactly the parameter types. `shared`: dynamic shared memory, which the kernel's
 * attribute allows. overlaps: the prologue may begin before the preceding kernels have ended. */
template <class... P>
static inline int iv_launch_as(bool overlaps, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                               cudaStream_t stream, P... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = overlaps && iv_overlaps() ? 1 : 0;
    return (int)cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... P>
static inline int iv_launch_shared(void (*kernel)(P...), dim3 grid, int threads, size_t shared, cudaStream_t stream,
                                   P... arguments) {
    return iv_launch_as(true, kernel, grid, threads, shared, stream, arguments...);
}

template <class... P>
static inline int iv_launch(void (*kernel)(P...), dim3 grid, int threads, cudaStream_t stream, P... arguments) {
    return iv_launch_shared(kernel, grid, threads, 0, stream, arguments...);
}

#endif
