/* widen_avx512.c: packed panels widened with AVX-512. */
#include "kernels/cpu/x86/codes_avx512.h"
#include "kernels/cpu/x86/x86.h"

#define WIDEN_NAME iv_widen_avx512
#include "kernels/cpu/widen.inc.h"
