/* widen_avx2.c: packed panels widened with AVX2. */
#include "kernels/cpu/x86/codes_avx2.h"
#include "kernels/cpu/x86/x86.h"

#define WIDEN_NAME iv_widen_avx2
#include "kernels/cpu/widen.inc.h"
