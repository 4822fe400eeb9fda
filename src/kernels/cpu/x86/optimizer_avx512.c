/* optimizer_avx512.c: the optimizer ops of optimizer.inc.h compiled for this instruction set. */
#include "kernels/cpu/x86/vec_avx512.h"
#include "kernels/cpu/x86/x86.h"

#define OPTIMIZER_NAME iv_optimizer_avx512
#include "kernels/cpu/optimizer.inc.h"
