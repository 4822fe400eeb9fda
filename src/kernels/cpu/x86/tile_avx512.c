/* tile_avx512.c: fma32 tiles for AVX-512F: twelve rows by thirty-two columns. */
#include "kernels/cpu/x86/codes_avx512.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/codes.inc.h"
#include "kernels/packed_panel.h"

#include <string.h>

#define TILE_ISA avx512
#define TILE_ROWS 12
#define TILE_CASES(fn) IV_ROWS_1_TO_6(fn) IV_ROWS_7_TO_12(fn)
#define TILE_WIDE_ROWS 12
#define TILE_PREFETCH 2048
#include "kernels/cpu/tile_fma32_types.inc.h"
