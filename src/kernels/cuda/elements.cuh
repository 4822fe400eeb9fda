/* elements.cuh: one or four floats of a row in one load or store. */
#ifndef IV_KERNELS_CUDA_ELEMENTS_CUH
#define IV_KERNELS_CUDA_ELEMENTS_CUH

#include "kernels/cuda/law.cuh"

template <int V> struct elements { float at[V]; };

template <int V> IV_DEVICE elements<V> load(const float *p) {
    elements<V> e;
    if (V == 4)
        *(float4 *)&e = *(const float4 *)p;
    else
        e.at[0] = *p;
    return e;
}

template <int V> IV_DEVICE void store(float *p, const elements<V> &e) {
    if (V == 4)
        *(float4 *)p = *(const float4 *)&e;
    else
        *p = e.at[0];
}

#endif
