/* tile_fma32_types.inc.h: the fma32 tile of each weight type. Before including it: a vec_*.h, TILE_ISA, TILE_ROWS,
 * TILE_CASES. */

#define TILE(x) bf16_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_bf16_fma32)
#define TILE_TEXT "linear_bf16_fma32_" TILE_ISA_TEXT
#define TILE_WEIGHT uint32_t /* a pair of k */
#define TILE_BYTES 2
#define TILE_LOAD(panel, k, column, odd, even)                               \
    do {                                                                     \
        vi pair_ = vi_load((panel) + (k) / 2 * IV_PANEL_COLUMNS + (column)); \
        (odd) = v_float(vi_and(pair_, vi_set(0xffff0000u)));                 \
        (even) = v_float(vi_low_up(pair_));                                  \
    } while (0)
#include "kernels/cpu/tile_fma32.inc.h"

#define TILE(x) f16_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_f16_fma32)
#define TILE_TEXT "linear_f16_fma32_" TILE_ISA_TEXT
#define TILE_WEIGHT uint16_t
#define TILE_BYTES 2
#define TILE_LOAD(panel, k, column, odd, even)                              \
    ((odd) = v_load_f16((panel) + ((k) + 1) * IV_PANEL_COLUMNS + (column)), \
     (even) = v_load_f16((panel) + (k)*IV_PANEL_COLUMNS + (column)))
#include "kernels/cpu/tile_fma32.inc.h"

#define TILE(x) f32_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_f32_fma32)
#define TILE_TEXT "linear_f32_fma32_" TILE_ISA_TEXT
#define TILE_WEIGHT float
#define TILE_BYTES 4
#define TILE_LOAD(panel, k, column, odd, even)                          \
    ((odd) = v_load((panel) + ((k) + 1) * IV_PANEL_COLUMNS + (column)), \
     (even) = v_load((panel) + (k)*IV_PANEL_COLUMNS + (column)))
#include "kernels/cpu/tile_fma32.inc.h"
