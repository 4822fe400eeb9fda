/* tile_tc16_avx2.c: tc16 tiles with AVX2: a GPU's answers replayed on a CPU. */
#include "kernels/cpu/x86/vec_avx2.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"
#include "numerics/tc16.h"

#include <string.h>

#define TILE_ISA avx2
#define TILE_ROWS 2
#define TILE_CASES(fn) IV_ROWS_CASE(1, fn) IV_ROWS_CASE(2, fn)
#include "kernels/cpu/tile_tc16_types.inc.h"
