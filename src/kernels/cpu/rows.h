/* rows.h: each instruction set puts its row ops into the table. */
#ifndef IV_KERNELS_ROWS_H
#define IV_KERNELS_ROWS_H

#include "kernels/kernels.h"

void iv_rows_scalar(iv_kernels *k);
void iv_rows_avx2(iv_kernels *k);
void iv_rows_avx512(iv_kernels *k);

#endif
