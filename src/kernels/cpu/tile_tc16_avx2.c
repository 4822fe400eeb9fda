/* tile_tc16_avx2.c: tc16 tiles with AVX2: a GPU's answers replayed on a CPU. */
#include "kernels/cpu/vec_avx2.h"
#include "kernels/cpu/tile_common.h"
#include "numerics/tc16.h"

#include <string.h>

#define TILE_ROWS 2
#define TILE_CASES(fn) IV_ROWS_CASE(1, fn) IV_ROWS_CASE(2, fn)

#define TILE(x) bf16_##x
#define TILE_NAME iv_tile_bf16_tc16_avx2
#define TILE_TEXT "linear_bf16_tc16_avx2"
#define TILE_TYPE IV_BF16
#define TILE_LOAD(panel, k, column, even, odd)                                             \
    do {                                                                                   \
        vi pair_ = vi_load((panel) + ((k) / 2 * IV_PANEL_COLUMNS + (size_t)(column)) * 2); \
        (odd) = v_float(vi_and(pair_, vi_set(0xffff0000u)));                               \
        (even) = v_float(vi_shl16(pair_));                                                 \
    } while (0)
#define TILE_POWER(x) v_float(vi_and(v_bits(x), exponent_mask))
#include "kernels/cpu/tile_tc16.inc.h"

/* A subnormal half keeps the exponent -14, as the tensor core sees it. */
#define TILE(x) f16_##x
#define TILE_NAME iv_tile_f16_tc16_avx2
#define TILE_TEXT "linear_f16_tc16_avx2"
#define TILE_TYPE IV_F16
#define TILE_LOAD(panel, k, column, even, odd)                                      \
    ((odd) = v_load_f16((panel) + ((k) + 1) * IV_PANEL_COLUMNS + (size_t)(column)), \
     (even) = v_load_f16((panel) + (k)*IV_PANEL_COLUMNS + (size_t)(column)))
#define TILE_POWER(x) \
    v_select(v_is_zero(x), v_set(0.0f), v_max(v_set(0x1p-14f), v_float(vi_and(v_bits(x), exponent_mask))))
#include "kernels/cpu/tile_tc16.inc.h"
