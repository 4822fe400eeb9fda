/* tile_avx2.c: fma32 tiles for AVX2 and FMA: five rows by sixteen columns, one or two by thirty-two.
 *
 * Six rows would fill the sixteen registers and are slower. */
#include "kernels/cpu/x86/codes_avx2.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/codes.inc.h"
#include "kernels/packed_panel.h"

#include <string.h>

#define TILE_ISA avx2
#define TILE_ROWS 5
#define TILE_CASES(fn) IV_ROWS_1_TO_5(fn)
#define TILE_WIDE_ROWS 2
#define TILE_PREFETCH 1024
#include "kernels/cpu/tile_fma32_types.inc.h"
