/* int8_dotprod.h: int8 products by the dot products of Armv8.2 (SDOT), where iv_cpu_has("dotprod"). */
#ifndef IV_KERNELS_INT8_DOTPROD_H
#define IV_KERNELS_INT8_DOTPROD_H

#include "kernels/int8.h"

extern const iv_int8_kernel iv_int8_dotprod;

#endif
