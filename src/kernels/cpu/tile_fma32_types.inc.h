/* tile_fma32_types.inc.h: the fma32 tile of each weight type. Before including it: a vec_*.h, TILE_ISA, TILE_ROWS,
 * TILE_CASES, TILE_WIDE_ROWS, TILE_PREFETCH, a codes_*.h, codes.inc.h. */

#define TILE(x) bf16_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_bf16_fma32)
#define TILE_TEXT "linear_bf16_fma32_" TILE_ISA_TEXT
#define TILE_WEIGHT uint32_t /* a pair of k */
#define TILE_BYTES 2
#define TILE_TYPE IV_BF16
#define TILE_ROUND(x) round_bf16(x)
#define TILE_PAIR(panel, k, column) vi_load((panel) + (k) / 2 * IV_PANEL_COLUMNS + (column))
#define TILE_ODD(panel, k, column) v_float(vi_and(TILE_PAIR(panel, k, column), vi_set(0xffff0000u)))
#define TILE_EVEN(panel, k, column) v_float(vi_low_up(TILE_PAIR(panel, k, column)))
#include "kernels/cpu/tile_fma32.inc.h"
#undef TILE_PAIR

#define TILE(x) f16_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_f16_fma32)
#define TILE_TEXT "linear_f16_fma32_" TILE_ISA_TEXT
#define TILE_WEIGHT uint16_t
#define TILE_BYTES 2
#define TILE_TYPE IV_F16
#define TILE_ROUND(x) round_f16(x)
#define TILE_ODD(panel, k, column) v_load_f16((panel) + ((k) + 1) * IV_PANEL_COLUMNS + (column))
#define TILE_EVEN(panel, k, column) v_load_f16((panel) + (k)*IV_PANEL_COLUMNS + (column))
#include "kernels/cpu/tile_fma32.inc.h"

#define TILE(x) f32_##x
#define TILE_NAME TILE_OF_ISA(iv_tile_f32_fma32)
#define TILE_TEXT "linear_f32_fma32_" TILE_ISA_TEXT
#define TILE_WEIGHT float
#define TILE_BYTES 4
#define TILE_TYPE IV_F32
#define TILE_ROUND(x) (x)
#define TILE_ODD(panel, k, column) v_load((panel) + ((k) + 1) * IV_PANEL_COLUMNS + (column))
#define TILE_EVEN(panel, k, column) v_load((panel) + (k)*IV_PANEL_COLUMNS + (column))
#include "kernels/cpu/tile_fma32.inc.h"
