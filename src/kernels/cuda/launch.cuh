/* launch.cuh: launching a kernel that may start while the one before it in the stream still ends.
 *
 * On compute capability 9 a kernel's prologue runs under its predecessor's tail: it may read what no kernel of the
 * stream writes (weights), then calls iv_wait, and only then touches anything else. Every kernel calls iv_wait in every
 * block, so that waiting for one predecessor is waiting for all. Elsewhere kernels follow one another as usual. */
#ifndef IV_KERNELS_CUDA_LAUNCH_CUH
#define IV_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stddef.h>

/* All that earlier kernels of the stream wrote is there. */
static __device__ __forceinline__ void iv_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel's blocks may come in where there is room. */
static __device__ __forceinline__ void iv_let_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Machine code for 9.0 is the only one here that waits by itself. */
static inline bool iv_overlaps(void) {
    enum { DEVICES = 64 };
    static int known[DEVICES]; /* 1: no, 2: yes; two threads that race here write the same */
    int device = 0, major = 0, minor = 1;
    if (cudaGetDevice(&device) != cudaSuccess || device >= DEVICES) return false;
    if (known[device] == 0) {
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        known[device] = major == 9 && minor == 0 ? 2 : 1;
    }
    return known[device] == 2;
}

/* Arguments have the parameters' very types. `shared`: dynamic shared memory, which the kernel was allowed to take. */
template <class... P>
static inline int iv_launch_shared(void (*kernel)(P...), dim3 grid, int threads, size_t shared, cudaStream_t stream,
                                   P... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = iv_overlaps() ? 1 : 0;
    return (int)cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... P>
static inline int iv_launch(void (*kernel)(P...), dim3 grid, int threads, cudaStream_t stream, P... arguments) {
    return iv_launch_shared(kernel, grid, threads, 0, stream, arguments...);
}

#endif
