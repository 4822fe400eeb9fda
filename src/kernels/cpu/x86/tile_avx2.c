/* tile_avx2.c: fma32 tiles for AVX2 and FMA: six rows by sixteen columns. */
#include "kernels/cpu/x86/vec_avx2.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"

#define TILE_ISA avx2
#define TILE_ROWS 6
#define TILE_CASES(fn) IV_ROWS_1_TO_6(fn)
#include "kernels/cpu/tile_fma32_types.inc.h"
