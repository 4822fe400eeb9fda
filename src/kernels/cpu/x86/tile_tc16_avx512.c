/* tile_tc16_avx512.c: tc16 tiles with AVX-512: a GPU's answers replayed on a CPU. */
#include "kernels/cpu/x86/vec_avx512.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"
#include "numerics/tc16.h"

#include <string.h>

#define TILE_ISA avx512
#define TILE_ROWS 4
#define TILE_CASES(fn) IV_ROWS_CASE(1, fn) IV_ROWS_CASE(2, fn) IV_ROWS_CASE(3, fn) IV_ROWS_CASE(4, fn)
#include "kernels/cpu/tile_tc16_types.inc.h"
