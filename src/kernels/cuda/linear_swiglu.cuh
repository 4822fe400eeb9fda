/* linear_swiglu.cuh: SwiGLU in the epilogues of linear layers: many values at once, without branches in the usual case.
 */
#ifndef IV_KERNELS_CUDA_LINEAR_SWIGLU_CUH
#define IV_KERNELS_CUDA_LINEAR_SWIGLU_CUH

#include "kernels/cuda/law.cuh"

/* x / d, rounded to nearest, if no intermediate overflows or is subnormal: an approximate reciprocal, refined, and
 * two corrections by exact remainders. There is no branch, so many divisions overlap. */
IV_DEVICE float iv_divide_plain(float x, float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
    float q = __fmul_rn(x, r);
    q = __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
    return __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
}

/* All |x| are in (2^-60, 64). A tree, because a chain of conditions is a chain of latencies. */
template <int COUNT> IV_DEVICE bool iv_all_plain(const float (&x)[COUNT]) {
    float least[COUNT], most[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) least[i] = most[i] = fabsf(x[i]);
#pragma unroll
    for (int n = COUNT; n > 1; n = (n + 1) / 2)
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            least[i] = fminf(least[i], least[(n + 1) / 2 + i]);
            asm("max.NaN.f32 %0, %1, %2;" : "=f"(most[i]) : "f"(most[i]), "f"(most[(n + 1) / 2 + i]));
        }
    return least[0] > 0x1p-60f && most[0] < 64.0f;
}

/* A missing gate becomes 1, which takes the fast path of the division. */
IV_DEVICE float iv_gate(float gate, bool there) { return there ? gate : 1.0f; }

/* y[i] = silu(gate[i]) up[i], NaN not canonical. Gates in the range of iv_all_plain reach no special case of the
 * law. */
template <int COUNT>
IV_DEVICE void iv_swiglu_many(const float (&gate)[COUNT], const float (&up)[COUNT], float (&y)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) y[i] = iv_divide_plain(gate[i], __fadd_rn(1.0f, v_exp_inside(-gate[i])));
    if (!iv_all_plain(gate)) { /* rare: short code matters more than fast code */
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
            float one = 0.0f;
#pragma unroll
            for (int j = 0; j < COUNT; j++) one = i == j ? gate[j] : one;
            one = v_silu(one);
#pragma unroll
            for (int j = 0; j < COUNT; j++) y[j] = i == j ? one : y[j];
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) y[i] = __fmul_rn(y[i], up[i]);
}

#endif
