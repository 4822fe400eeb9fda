/* blas.h: linear layers by OpenBLAS, for the vanilla-blas baseline (NUMERICS.md, 14). The library is looked for when
 * it is asked for and is no dependency: nothing of it is linked, and no other numerics calls it.
 *
 * OpenBLAS keeps one count of threads a process: the last one opened here holds. */
#ifndef IV_BASELINE_BLAS_H
#define IV_BASELINE_BLAS_H

#include "kernels/linear.h"

typedef struct iv_blas iv_blas;

/* Loads libopenblas.so.0 and has it use `threads` threads. IV_NOT_FOUND names the package when it is not there. */
iv_status iv_blas_open(size_t threads, iv_blas **out, iv_error *err);
void iv_blas_close(iv_blas *blas); /* NULL is fine */

/* iv_linear through sgemv (one row) or sgemm with the weight as floats, [n][k]; c->scratch holds rows * k floats. */
void iv_blas_linear(const iv_blas *b, const iv_compute *c, const iv_linear_args *args, const float *weight);

#endif
