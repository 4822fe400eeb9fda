/* rows_avx512.c: the row ops of rows.inc.h compiled for this instruction set. */
#include "kernels/cpu/x86/vec_avx512.h"
#include "kernels/cpu/x86/x86.h"

#define ROWS_NAME iv_rows_avx512
#include "kernels/cpu/rows.inc.h"
#include "numerics/backward.h"

#define BACKWARD_NAME iv_backward_avx512
#include "kernels/cpu/backward.inc.h"
