/* optimizer_avx2.c: the optimizer ops of optimizer.inc.h compiled for this instruction set. */
#include "kernels/cpu/x86/vec_avx2.h"
#include "kernels/cpu/x86/x86.h"

#define OPTIMIZER_NAME iv_optimizer_avx2
#include "kernels/cpu/optimizer.inc.h"
