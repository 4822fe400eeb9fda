/* rows.h: the scalar row ops of the op table. */
#ifndef IV_KERNELS_ROWS_H
#define IV_KERNELS_ROWS_H

#include "kernels/kernels.h"

void iv_rows_scalar(iv_kernels *k);

#endif
