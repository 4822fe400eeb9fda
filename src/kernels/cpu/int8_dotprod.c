/* int8_dotprod.c: a vector of a panel is four outputs of four k, a vector of a row sixteen k, of which each instruction
 * takes four. */
#include "kernels/cpu/int8_dotprod.h"
#include "kernels/cpu/tile_common.h"

#include <arm_neon.h>

enum { ROWS = 3, VECTORS = IV_PANEL_COLUMNS / 4 };

IV_INLINE void rows_of(const int rows, const int8_t *x, size_t stride, const int8_t *codes, size_t k_padded,
                       int32_t *out) {
    int32x4_t acc[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = vdupq_n_s32(0);
    for (size_t k = 0; k < k_padded; k += 16, codes += 16 * IV_PANEL_COLUMNS) {
        int8x16_t a[ROWS];
        for (int r = 0; r < rows; r++) a[r] = vld1q_s8(x + (size_t)r * stride + k);
#define FOUR(lane)                                                                            \
    for (int v = 0; v < VECTORS; v++) {                                                       \
        int8x16_t w = vld1q_s8(codes + (lane)*4 * IV_PANEL_COLUMNS + 16 * v);                 \
        for (int r = 0; r < rows; r++) acc[r][v] = vdotq_laneq_s32(acc[r][v], w, a[r], lane); \
    }
        FOUR(0) FOUR(1) FOUR(2) FOUR(3)
#undef FOUR
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) vst1q_s32(out + r * IV_PANEL_COLUMNS + 4 * v, acc[r][v]);
}

static void products(const void *codes, size_t stride, size_t rows, const iv_int8_panel *panel, size_t k_padded,
                     int32_t *out) {
    const int8_t *x = codes;
    for (size_t n; rows; rows -= n, x += n * stride, out += n * IV_PANEL_COLUMNS) {
        n = rows < ROWS ? rows : ROWS;
#define CALL(n) rows_of(n, x, stride, panel->codes, k_padded, out)
        switch (n) { IV_ROWS_CASE(1, CALL) IV_ROWS_CASE(2, CALL) IV_ROWS_CASE(3, CALL) }
#undef CALL
    }
}

static uint32_t magnitude(iv_dtype type, const void *x, size_t n) { return iv_ref_int8_magnitude(type, x, n); }

static void quantize(iv_dtype type, const void *x, size_t n, size_t n_padded, float inverse, int terms, void *high,
                     void *low) {
    iv_int8_scalar.quantize(type, x, n, n_padded, inverse, terms, high, low);
}

static void results(const int32_t *sums, int terms, float row_scale, const float *scales, float *out) {
    iv_int8_scalar.results(sums, terms, row_scale, scales, out);
}

const iv_int8_kernel iv_int8_dotprod = {"int8_dotprod", IV_TILE_ROWS_MAX, 1, magnitude, quantize, products, results};
