/* int8_scalar.c: the reference's codes and sums. */
#include "kernels/int8.h"

#include <string.h>

static void quantize(iv_dtype type, const void *x, size_t n, size_t n_padded, float inverse, int terms, void *high,
                     void *low) {
    iv_ref_int8_codes(type, x, n, inverse, terms, high, low);
    memset((int8_t *)high + n, 0, n_padded - n);
    if (terms == 2) memset((int8_t *)low + n, 0, n_padded - n);
}

static void products(const void *codes, size_t stride, size_t rows, const iv_int8_panel *panel, size_t k_padded,
                     int32_t *out) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < IV_PANEL_COLUMNS; c++) {
            const int8_t *x = (const int8_t *)codes + r * stride;
            uint32_t sum = 0;
            for (size_t k = 0; k < k_padded; k += 4)
                sum += (uint32_t)iv_ref_int8_sum(x + k, panel->codes + iv_int8_at(k, c), 4);
            out[r * IV_PANEL_COLUMNS + c] = (int32_t)sum;
        }
}

static void results(const int32_t *sums, int terms, float row_scale, const float *scales, float *out) {
    for (size_t c = 0; c < IV_PANEL_COLUMNS; c++) {
        int32_t of_output[IV_INT8_TERMS_MAX];
        for (int t = 0; t < terms; t++) of_output[t] = sums[(size_t)t * IV_PANEL_COLUMNS + c];
        out[c] = iv_ref_int8_result(of_output, terms, row_scale, scales[c]);
    }
}

const iv_int8_kernel iv_int8_scalar = {"int8_scalar", IV_TILE_ROWS_MAX, 1,      iv_ref_int8_magnitude,
                                       quantize,      products,         results};
