/* cuda_runtime.h of the emulator: CUDA's language extensions, and launches. */
#ifndef IV_EMULATOR_CUDA_RUNTIME_H
#define IV_EMULATOR_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include "emulator.h"
#include "ptx.h"

#include <cmath>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
extern __thread dim3 threadIdx, blockIdx, blockDim, gridDim; // of the thread that runs

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#define EMU_MIN_MAX(T)                                      \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(unsigned long long)
EMU_MIN_MAX(float)

static inline uint32_t __float_as_uint(float f) { return emu::cast<uint32_t>(f); }
static inline int __float_as_int(float f) { return emu::cast<int>(f); }
static inline float __uint_as_float(uint32_t u) { return emu::cast<float>(u); }
// A GPU has one NaN that arithmetic gives.
static inline float emu_result(float x) { return x == x ? x : __uint_as_float(0x7fffffff); }
static inline float __fadd_rn(float a, float b) { return emu_result(a + b); }
static inline float __fsub_rn(float a, float b) { return emu_result(a - b); }
static inline float __fmul_rn(float a, float b) { return emu_result(a * b); }
static inline float __fdiv_rn(float a, float b) { return emu_result(a / b); }
static inline float __fsqrt_rn(float a) { return emu_result(sqrtf(a)); }
static inline float __fmaf_rn(float a, float b, float c) { return emu_result(fmaf(a, b, c)); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __uint2float_rn(unsigned u) { return (float)u; }
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline float __int2float_rn(int i) { return (float)i; }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
static inline void __threadfence() {}
static inline void __trap() { emu::fail("__trap"); }
static inline size_t __cvta_generic_to_shared(const void *p) { return emu::shared_address(p); }

static inline void __syncthreads() { emu::barrier(0, (int)blockDim.x, true); }
static inline int __syncthreads_count(int b) { return emu::barrier_count((int)blockDim.x, b != 0); }
static inline void __syncwarp() { emu::sync_warp(); }
template <class T> static inline T __shfl_sync(unsigned, T v, int from, int width = 32) {
    return emu::shuffle(v, (int)(threadIdx.x % 32) / width * width + from % width);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask) {
    return emu::shuffle(v, (int)(threadIdx.x % 32) ^ mask);
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, int by) {
    int lane = (int)(threadIdx.x % 32);
    return emu::shuffle(v, lane < by ? lane : lane - by);
}
static inline unsigned __ballot_sync(unsigned, bool b) { return emu::ballot(b); }
static inline bool __any_sync(unsigned, bool b) { return emu::ballot(b) != 0; }
static inline bool __all_sync(unsigned, bool b) { return emu::ballot(b) == ~0u; }
static inline unsigned __reduce_max_sync(unsigned, unsigned v) { return emu::reduce_max(v); }

template <class T> static inline T atomicAdd(T *p, T v) {
    T old = *p;
    return *p = old + v, old;
}
template <class T> static inline T atomicOr(T *p, T v) {
    T old = *p;
    return *p = old | v, old;
}
template <class T> static inline T atomicMin(T *p, T v) {
    T old = *p;
    return *p = min(old, v), old;
}

typedef int cudaLaunchAttributeID;
enum { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

static inline int emu_attribute(const cudaLaunchConfig_t *c, int id, int otherwise) {
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == id)
            return id == cudaLaunchAttributeClusterDimension ? (int)c->attrs[i].val.clusterDim.x
                                                             : c->attrs[i].val.programmaticStreamSerializationAllowed;
    return otherwise;
}
static inline int emu_cluster_of(const cudaLaunchConfig_t *c) {
    return emu_attribute(c, cudaLaunchAttributeClusterDimension, 1);
}
template <class F> static inline cudaError_t cudaFuncSetAttribute(F, int, int) { return cudaSuccess; }
template <class F>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, F, const cudaLaunchConfig_t *c) {
    *clusters = max(1, emu::multiprocessors() / emu_cluster_of(c));
    return cudaSuccess;
}
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A... arguments) {
    bool overlaps = emu_attribute(c, cudaLaunchAttributeProgrammaticStreamSerialization, 0) != 0;
    return emu::launch({c->gridDim, c->blockDim, c->dynamicSmemBytes, emu_cluster_of(c), overlaps, c->stream},
                       [=] { kernel(arguments...); });
}
#endif

#endif
