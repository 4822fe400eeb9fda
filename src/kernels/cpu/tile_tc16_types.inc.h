/* tile_tc16_types.inc.h: the tc16 tile of each weight type. Before including it: a vec_*.h, TILE_ISA, TILE_ROWS,
 * TILE_CASES. */

#define TILE(x) bf16_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_bf16_tc16)
#define TILE_TEXT "linear_bf16_tc16_" TILE_ISA_TEXT
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
#define TILE_NAME TILE_OF_ISA(iv_tile_f16_tc16)
#define TILE_TEXT "linear_f16_tc16_" TILE_ISA_TEXT
#define TILE_TYPE IV_F16
#define TILE_LOAD(panel, k, column, even, odd)                                      \
    ((odd) = v_load_f16((panel) + ((k) + 1) * IV_PANEL_COLUMNS + (size_t)(column)), \
     (even) = v_load_f16((panel) + (k)*IV_PANEL_COLUMNS + (size_t)(column)))
#define TILE_POWER(x) \
    v_select(v_is_zero(x), v_set(0.0f), v_max(v_set(0x1p-14f), v_float(vi_and(v_bits(x), exponent_mask))))
#include "kernels/cpu/tile_tc16.inc.h"
