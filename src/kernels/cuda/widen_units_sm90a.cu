/* widen_units_sm90a.cu: a matrix of codes as plain rows of bfloat16, widened as the kernels of linear layers do it
 * (packed_units.cuh). A warp has 16 rows of a unit, which leave through shared memory as whole lines. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed_units.cuh"
#include "kernels/cuda/widen_units.h"

enum {
    WIDEN_WARPS = 8,
    WIDEN_UNIT = 768 /* bytes of the largest unit */,
    WIDEN_TILE = 16 * IV_UNIT_ROW_BYTES,
    WIDEN_SHARED = WIDEN_WARPS * (WIDEN_TILE + 2 * WIDEN_UNIT)
};

typedef struct widen_plan {
    const unsigned char *data;
    unsigned char *out;
    size_t units, leaf_units, leaf_k, k_padded, eights;
    iv_unit_form form;
} widen_plan;

/* Where a warp works: two eights of rows, the second absent if there is none. */
typedef struct widen_place {
    size_t eight, unit;
    bool both;
} widen_place;

struct widen_rows {
    template <class U> IV_DEVICE void run(const widen_plan &p, const widen_place &at, uint32_t units, uint32_t tile) {
        uint32_t a[4][4], lane = threadIdx.x % 32;
        iv_unit_lane codes;
        iv_load_unit<U>(codes, units, units + WIDEN_UNIT);
        iv_widen_unit<U>(a, codes, units, units + WIDEN_UNIT, p.form);
        iv_unit_store(tile, a);
        __syncwarp();
        size_t first = at.unit % p.leaf_units * IV_UNIT_K, column = at.unit / p.leaf_units * p.leaf_k + first;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = i * 4 + lane / 8, piece = lane % 8, w[4];
            iv_load_shared_words(w, tile + row * IV_UNIT_ROW_BYTES + ((piece ^ row % 8) << 4), 16);
            size_t to = (at.eight * IV_UNIT_ROWS + row) * p.k_padded + column + piece * 8;
            if (first + piece * 8 < p.leaf_k && (row < IV_UNIT_ROWS || at.both))
                *(uint4 *)(p.out + to * 2) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
};

/* Consecutive warps have consecutive units of the same rows. */
__global__ void __launch_bounds__(WIDEN_WARPS * 32) widen_units_kernel(widen_plan p, size_t warps) {
    __shared__ __align__(1024) unsigned char shared[WIDEN_SHARED];
    iv_wait();
    iv_let_next();
    size_t warp = threadIdx.x / 32, index = blockIdx.x * (size_t)WIDEN_WARPS + warp;
    if (index >= warps) return;
    widen_place at = {index / p.units * 2, index % p.units, index / p.units * 2 + 1 < p.eights};
    unsigned char *units = shared + WIDEN_WARPS * WIDEN_TILE + warp * 2 * WIDEN_UNIT;
    const unsigned char *from = p.data + (at.eight * p.units + at.unit) * p.form.bytes;
    for (int i = (int)threadIdx.x % 32 * 16; i < p.form.bytes; i += 512) {
        *(uint4 *)(units + i) = *(const uint4 *)(from + i);
        *(uint4 *)(units + WIDEN_UNIT + i) =
            *(const uint4 *)(from + (at.both ? p.units * (size_t)p.form.bytes : 0) + i);
    }
    __syncwarp();
    iv_unit_choose<widen_rows, IV_BF16>(p.form, p, at, iv_shared(units), iv_shared(shared + warp * WIDEN_TILE));
}

int iv_gpu_widen_units_bf16(const iv_gpu_matrix *w, void *out, iv_gpu_stream stream) {
    size_t leaf_k = w->k_padded / (size_t)w->leaves, leaf_units = (leaf_k + IV_UNIT_K - 1) / IV_UNIT_K;
    widen_plan p = {(const unsigned char *)w->data,
                    (unsigned char *)out,
                    leaf_units * (size_t)w->leaves,
                    leaf_units,
                    leaf_k,
                    w->k_padded,
                    w->n / IV_UNIT_ROWS,
                    w->units};
    size_t warps = (p.eights + 1) / 2 * p.units;
    if (p.form.bytes > WIDEN_UNIT) return cudaErrorInvalidValue;
    return iv_launch(widen_units_kernel, dim3((unsigned)((warps + WIDEN_WARPS - 1) / WIDEN_WARPS)), WIDEN_WARPS * 32,
                     (cudaStream_t)stream, p, warps);
}
