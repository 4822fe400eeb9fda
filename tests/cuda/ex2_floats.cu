/* ex2_floats.cu: compares the law's ex2, in integers, with the instruction, over every float, on the GPU
 * (test_ex2.c). */
#include "kernels/cuda/law.cuh"

static __device__ uint32_t by_the_law(const uint32_t (*part)[2], uint32_t bits) {
    float x = __uint_as_float(bits);
    if (x != x) return IV_NAN_F32_BITS;
    if (!(x < 128.0f)) return 0x7f800000u;
    if (x < -126.0f) return 0;
    uint32_t m = __float2uint_rz(fabsf(x) * 0x1p23f), f = m & 0x7fffffu, square = 0;
    int n = (int)(m >> 23);
    if (x < 0.0f) {
        n = f ? -n - 1 : -n;
        f = f ? 0x7fffffu - f : 0;
    }
    uint32_t r = f & 0x1ffffu, c0 = part[f >> 17][0], c12 = part[f >> 17][1];
    for (int b = 0; b < 17; b++)
        if (r >> b & 1) square += r >> (18 - b);
    uint64_t sum = ((uint64_t)c0 << 13) + (uint64_t)(c12 & 0xffff) * r + 0x77e2u;
    sum += (uint64_t)(c12 >> 16) * (square >> 1);
    return ((uint32_t)(n + 127) << 23) + (uint32_t)(sum >> 15) - 0x800000u;
}

/* found[0]: differences; found[1]: ~ the bits of the first float that differs. */
static __global__ void every_float(const uint32_t (*part)[2], unsigned long long *found) {
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i >> 32 == 0; i += step) {
        uint32_t bits = (uint32_t)i;
        if (__float_as_uint(v_ex2(__uint_as_float(bits))) == by_the_law(part, bits)) continue;
        atomicAdd(found, 1ull);
        atomicMax(found + 1, (unsigned long long)~bits);
    }
}

/* part: the 64 rows of iv_ex2_table; found: two zeros; both on the GPU. */
extern "C" __attribute__((visibility("default"))) int iv_test_ex2(const void *part, void *found) {
    every_float<<<1024, 256>>>((const uint32_t (*)[2])part, (unsigned long long *)found);
    return (int)cudaGetLastError();
}
