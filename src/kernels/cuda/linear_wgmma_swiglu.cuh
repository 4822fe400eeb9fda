/* linear_wgmma_swiglu.cuh: the SwiGLU epilogue of a wide tile that overlaps with the next one (linear_wgmma.cuh).
 * Activations are computed in the registers that hold the roots, laid out as 16-bit rows in the warp's part of
 * `scratch`, and written by TMA. This saves instructions, whose cost is energy more than time. float32 rows are
 * slower this way (bench/gpu/LOG.md). */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_SWIGLU_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_SWIGLU_CUH

#include "kernels/cuda/linear_wgmma_epilogue.cuh"

/* Are all output rows multiples of 16 bytes? Otherwise the epilogue runs with no block in flight. */
template <class S> IV_DEVICE bool iv_wgmma_can_overlap(const iv_wgmma_plan &plan) {
    bool aligned = plan.epilogue != IV_GPU_SWIGLU || plan.out_stride % 8 == 0;
    return aligned && iv_wgmma_rows_fit<S>(plan) && plan.n % 4 == 0;
}

/* Waits until TMA has read the warp's rows, which are then free. */
IV_DEVICE void iv_wgmma_wait_stores(void) {
    iv_bulk_wait_read();
    __syncwarp();
}

/* 16 activations of a row, from chunks `first` to first + 3 of the root, which alternate between gates and ups. */
template <class S>
IV_DEVICE void iv_wgmma_put_activations(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t,
                                        int first, const float (&root)[S::COUNT]) {
    int thread = iv_thread_here(), lane = thread % 32, left = t.rows - (t.p + thread / 32 * 16 + lane / 4);
    float gate[8], up[8], y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = 4 * (first + i / 4 * 2) + i % 4;
        gate[i] = iv_gate(root[at], i % 4 / 2 * 8 < left && t.q + 8 * first + i / 4 * 16 < plan.n);
        up[i] = root[at + 4];
    }
    iv_swiglu_many(gate, up, y);
    char *above = iv_wgmma_rows_of<S>(m, thread) + lane / 4 * S::PITCH + (4 * first + lane % 4 * 2) * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(above + i % 2 * 8 * S::PITCH + i / 2 * 16) = iv_pack16(S::TYPE, y[2 * i], y[2 * i + 1]);
    if constexpr (S::FUSES) { /* rounded gates, then ups, behind the activations */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = 4 * (first + i / 4 * 2 + i % 2) + i / 2 % 2 * 2;
            char *to = above + (1 + i % 2) * 16 * S::PITCH + i / 2 % 2 * 8 * S::PITCH + i / 4 * 16;
            if (plan.fused.gate) *(uint32_t *)to = iv_pack16(S::TYPE, root[at], root[at + 1]);
        }
    }
}

/* Writes the warp's rows to global memory, one by each lane. */
template <class S>
IV_DEVICE void iv_wgmma_store_activations(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t) {
    iv_fence_async();
    __syncwarp();
    int thread = iv_thread_here(), lane = thread % 32, token = t.p + thread / 32 * 16 + lane;
    int columns = min(plan.n - t.q, S::QN);
    uint16_t *out = (uint16_t *)plan.out + (size_t)(t.first + token) * plan.out_stride + t.q / 2;
    uint32_t from = iv_shared(iv_wgmma_rows_of<S>(m, thread)) + lane * S::PITCH;
    bool there = lane < 16 && token < t.rows && columns > 0;
    if (there) iv_bulk_store(out, from, (uint32_t)columns);
    if constexpr (S::FUSES) {
        size_t at = (size_t)token * ((size_t)plan.n / 2) + t.q / 2;
        if (there && plan.fused.gate) {
            iv_bulk_store((uint16_t *)plan.fused.gate + at, from + 16 * S::PITCH, (uint32_t)columns);
            iv_bulk_store((uint16_t *)plan.fused.up + at, from + 32 * S::PITCH, (uint32_t)columns);
        }
    }
    iv_bulk_commit();
}

#endif
