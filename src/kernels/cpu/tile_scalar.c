/* tile_scalar.c: tiles straight from the law: chains of src/numerics over packed panels. */
#include "kernels/cpu/tile_common.h"
#include "numerics/fma32.h"
#include "numerics/tc16.h"

#include <string.h>

void iv_tile_pack_f32(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded,
                      void *packed) {
    float *out = packed;
    for (size_t r = 0; r < rows; r++) {
        const char *row = (const char *)a + r * stride * iv_dtype_bytes(type);
        for (size_t i = 0; i < k; i++) out[i * rows + r] = iv_element(type, row, i);
        for (size_t i = k; i < k_padded; i++) out[i * rows + r] = 0.0f;
    }
}

void iv_tile_pack_columns_f32(iv_dtype type, const void *const *columns, size_t rows, size_t k, void *packed) {
    float *out = packed;
    for (size_t i = 0; i < k; i++, out += rows) {
        if (type == IV_F32)
            memcpy(out, columns[i], rows * sizeof *out);
        else
            for (size_t r = 0; r < rows; r++) out[r] = iv_element(type, columns[i], r);
    }
}

/* A leaf of row r: one chain for each column of the panel, from acc[IV_PANEL_COLUMNS]. */
typedef void leaf_fn(iv_dtype type, const void *a, size_t rows, size_t r, const void *panel, size_t from, size_t to,
                     float *acc);

/* The chains of the columns advance together: one alone waits for each sum. */
static inline void fma32_leaf(iv_dtype type, const void *a, size_t rows, size_t r, const void *panel, size_t from,
                              size_t to, float *acc) {
    for (size_t k = from; k < to; k += 2) {
        float odd = ((const float *)a)[(k + 1) * rows + r], even = ((const float *)a)[k * rows + r];
        for (size_t c = 0; c < IV_PANEL_COLUMNS; c++) {
            float x = iv_fma_ftz(odd, iv_element(type, panel, iv_panel_index(type, k + 1, c)), acc[c]);
            acc[c] = iv_fma_ftz(even, iv_element(type, panel, iv_panel_index(type, k, c)), x);
        }
    }
}

static inline void tc16_leaf(iv_dtype type, const void *a, size_t rows, size_t r, const void *panel, size_t from,
                             size_t to, float *acc) {
    for (size_t k = from; k < to; k += IV_CHAIN_STEP) {
        uint16_t x[IV_CHAIN_STEP], w[IV_CHAIN_STEP];
        for (size_t i = 0; i < IV_CHAIN_STEP; i++) x[i] = ((const uint16_t *)a)[(k + i) * rows + r];
        for (size_t c = 0; c < IV_PANEL_COLUMNS; c++) {
            for (size_t i = 0; i < IV_CHAIN_STEP; i++) w[i] = ((const uint16_t *)panel)[iv_panel_index(type, k + i, c)];
            acc[c] = iv_tc16_chain(type, acc[c], x, w, IV_CHAIN_STEP);
        }
    }
}

static float add_plain(float a, float b) { return a + b; }

/* Inlined for each type. */
static inline __attribute__((always_inline)) void linear(leaf_fn *leaf, float (*add)(float, float), iv_dtype type,
                                                         const void *a, size_t rows, const void *panel, size_t k,
                                                         size_t leaves, float *out) {
    size_t step = k / leaves;
    for (size_t r = 0; r < rows; r++) {
        float node[IV_LEAVES_MAX][IV_PANEL_COLUMNS] = {{0}};
        for (size_t i = 0; i < leaves; i++) leaf(type, a, rows, r, panel, i * step, (i + 1) * step, node[i]);
        for (size_t n = leaves; n > 1; n /= 2)
            for (size_t i = 0; i < n / 2; i++)
                for (size_t c = 0; c < IV_PANEL_COLUMNS; c++) node[i][c] = add(node[2 * i][c], node[2 * i + 1][c]);
        for (size_t c = 0; c < IV_PANEL_COLUMNS; c++) out[r * IV_PANEL_COLUMNS + c] = iv_canonical(node[0][c]);
    }
}

static inline __attribute__((always_inline)) void chain(leaf_fn *leaf, iv_dtype type, const void *a, size_t rows,
                                                        const void *panel, size_t k, float *acc) {
    for (size_t r = 0; r < rows; r++) leaf(type, a, rows, r, panel, 0, k, &acc[r * IV_PANEL_COLUMNS]);
}

void iv_tile_pack_u16(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded,
                      void *packed) {
    IV_ASSERT(type != IV_F32);
    uint16_t *out = packed;
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *row = (const uint16_t *)a + r * stride;
        for (size_t i = 0; i < k; i++) out[i * rows + r] = row[i];
        for (size_t i = k; i < k_padded; i++) out[i * rows + r] = 0;
    }
}

/* Below its threshold on 2^e_max a row's fast step might not be exact. A product with a subnormal bf16
 * weight (below 2^-126) must stay 2 bits under the last kept one: 2^(e_a + 1 - 126) is at
 * most 2^(e_max - 27) once e_max >= e_a - 98. Rows with a subnormal bf16, a value of 2^63 or more or a
 * non-finite one never take the fast form. */
void iv_tile_pack_tc16(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded,
                       void *packed) {
    float *threshold = packed, *out = threshold + IV_TILE_HEADER_BYTES / sizeof(float);
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *row = (const uint16_t *)a + r * stride;
        float largest = 0x1p8f; /* the power below which 2^-90 is threshold enough */
        int plain = 1;
        for (size_t i = 0; i < k_padded; i++) {
            float x = i < k ? iv_element(type, row, i) : 0.0f, power = iv_float(iv_bits(x) & 0x7f800000u);
            if (type == IV_F16 && x != 0.0f && power < 0x1p-14f) power = 0x1p-14f;
            if ((x != 0.0f && power == 0.0f) || !(power < 0x1p63f)) plain = 0;
            if (power > largest) largest = power;
            out[2 * i * rows + r] = x;
            out[(2 * i + 1) * rows + r] = power;
        }
        threshold[r] = plain ? largest * 0x1p-98f : iv_float(0x7f800000u);
    }
}

#define SCALAR_KERNEL(text, id, type, pack, pack_bytes, leaf, add)                                       \
    static void linear_##id(const void *a, size_t rows, const void *p, size_t k, int leaves,             \
                            iv_tile_prefetch prefetch, float *out) {                                     \
        (void)prefetch;                                                                                  \
        linear(leaf, add, type, a, rows, p, k, (size_t)leaves, out);                                     \
    }                                                                                                    \
    static void chain_##id(const void *a, size_t rows, const void *p, size_t k, float *acc) {            \
        chain(leaf, type, a, rows, p, k, acc);                                                           \
    }                                                                                                    \
    const iv_tile_kernel iv_tile_##id##_scalar = {text,        IV_TILE_ROWS_MAX, pack_bytes, 0,    pack, \
                                                  linear_##id, chain_##id,       NULL,       NULL, 0}

SCALAR_KERNEL("linear_bf16_fma32_scalar", bf16_fma32, IV_BF16, iv_tile_pack_f32, 4, fma32_leaf, iv_add_ftz);
SCALAR_KERNEL("linear_f16_fma32_scalar", f16_fma32, IV_F16, iv_tile_pack_f32, 4, fma32_leaf, iv_add_ftz);
SCALAR_KERNEL("linear_f32_fma32_scalar", f32_fma32, IV_F32, iv_tile_pack_f32, 4, fma32_leaf, iv_add_ftz);
SCALAR_KERNEL("linear_bf16_tc16_scalar", bf16_tc16, IV_BF16, iv_tile_pack_u16, 2, tc16_leaf, add_plain);
SCALAR_KERNEL("linear_f16_tc16_scalar", f16_tc16, IV_F16, iv_tile_pack_u16, 2, tc16_leaf, add_plain);
