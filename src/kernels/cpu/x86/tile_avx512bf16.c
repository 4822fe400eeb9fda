/* tile_avx512bf16.c: fma32 tiles where the machine has vdpbf16ps: one instruction a pair of k.
 *
 * vdpbf16ps flushes subnormals regardless of MXCSR; the tree's adds need the flush set. */
#include "kernels/cpu/x86/vec_avx512.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"

#include <string.h>

enum { ROWS = 12, PAIR_BYTES = 4 * IV_PANEL_COLUMNS };

/* Pairs of k as 32-bit words, [k/2][rows]. */
static void pack(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded, void *packed) {
    IV_ASSERT(type == IV_BF16);
    uint32_t *out = packed;
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *row = (const uint16_t *)a + r * stride;
        size_t i = 0;
        for (; i < k / 2; i++) memcpy(&out[i * rows + r], row + 2 * i, 4);
        if (k % 2) out[i++ * rows + r] = row[k - 1];
        for (; i < k_padded / 2; i++) out[i * rows + r] = 0;
    }
}

IV_INLINE vf dot(vf acc, uint32_t a, vi b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
}

/* ahead: as in iv_tile_pending, for k = from. */
IV_INLINE void run(const int rows, const uint32_t *a, const uint32_t *panel, size_t from, size_t to, uintptr_t ahead,
                   size_t ahead_step, vf acc[][2]) {
    for (size_t k = from / 2; k < to / 2; k++) {
        iv_fetch(ahead, PAIR_BYTES), ahead += ahead_step;
        vi b0 = vi_load(panel + k * IV_PANEL_COLUMNS), b1 = vi_load(panel + k * IV_PANEL_COLUMNS + V_LANES);
        for (int r = 0; r < rows; r++) {
            acc[r][0] = dot(acc[r][0], a[k * (size_t)rows + (size_t)r], b0);
            acc[r][1] = dot(acc[r][1], a[k * (size_t)rows + (size_t)r], b1);
        }
    }
}

IV_INLINE void linear_rows(const int rows, const uint32_t *a, const uint32_t *panel, size_t k, int leaves, int first,
                           int last, iv_tile_pending *pending, float *out) {
    size_t leaf_k = k / (size_t)leaves;
    for (int leaf = first; leaf < last; leaf++) {
        vf acc[ROWS][2];
        for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = v_set(0.0f);
        size_t from = (size_t)leaf * leaf_k, step = pending->ahead_step;
        run(rows, a, panel, from, from + leaf_k, pending->ahead + from / 2 * step, step, acc);
        int level = 0;
        for (int i = leaf; i & 1; i >>= 1, level++)
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < 2; v++)
                    acc[r][v] = v_add(v_load(pending->node[level] + r * IV_PANEL_COLUMNS + v * V_LANES), acc[r][v]);
        bool whole = leaf + 1 == leaves;
        float *to = whole ? out : pending->node[level];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) {
                vf y = acc[r][v];
                if (whole) y = v_select(v_is_nan(y), v_float(vi_set(IV_NAN_F32_BITS)), y);
                v_store(to + r * IV_PANEL_COLUMNS + v * V_LANES, y);
            }
    }
}

IV_INLINE void chain_rows(const int rows, const uint32_t *a, const uint32_t *panel, size_t k, float *c) {
    vf acc[ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) acc[r][v] = v_load(c + r * IV_PANEL_COLUMNS + v * V_LANES);
    run(rows, a, panel, 0, k, (uintptr_t)panel + IV_PREFETCH_BYTES, PAIR_BYTES, acc);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) v_store(c + r * IV_PANEL_COLUMNS + v * V_LANES, acc[r][v]);
}

static __attribute__((noinline)) void linear_body(const uint32_t *a, size_t rows, const uint32_t *panel, size_t k,
                                                  int leaves, int first, int last, iv_tile_pending *pending,
                                                  float *out) {
#define CALL(n) linear_rows(n, a, panel, k, leaves, first, last, pending, out)
    switch (rows) { IV_ROWS_1_TO_6(CALL) IV_ROWS_7_TO_12(CALL) }
#undef CALL
}

static void linear(const void *a, size_t rows, const void *panel, size_t k, int leaves, int first, int last,
                   iv_tile_pending *pending, float *out) {
    IV_WITH_FP(IV_FP_FLUSH, linear_body(a, rows, panel, k, leaves, first, last, pending, out));
}

static void chain(const void *a, size_t rows, const void *panel, size_t k, float *acc) {
#define CALL(n) chain_rows(n, a, panel, k, acc)
    switch (rows) { IV_ROWS_1_TO_6(CALL) IV_ROWS_7_TO_12(CALL) }
#undef CALL
}

const iv_tile_kernel iv_tile_bf16_fma32_avx512bf16 = {"linear_bf16_fma32_avx512bf16", ROWS, 2, pack, linear, chain};
