/* ops.h: the op table of a baseline: the CPU's table with linear, attention and allreduce replaced (NUMERICS.md, 14).
 */
#ifndef IV_BASELINE_OPS_H
#define IV_BASELINE_OPS_H

#include "baseline/baseline.h"
#include "kernels/compute.h"
#include "kernels/matrix.h"

typedef struct iv_baseline iv_baseline;

/* A copy of `kernels` for numerics other than IV_INVAR. IV_VANILLA_BLAS loads OpenBLAS, which then uses `threads`
 * threads (blas.h). */
iv_status iv_baseline_open(iv_numerics numerics, const iv_kernels *kernels, size_t threads, iv_baseline **out,
                           iv_error *err);
void iv_baseline_close(iv_baseline *b); /* NULL is fine */

/* Valid until the baseline is closed. */
const iv_kernels *iv_baseline_kernels(const iv_baseline *b);

/* Whether linear layers need float32 copies of the weights, row by row. */
bool iv_baseline_widens(const iv_baseline *b);
/* Makes the copies of the matrices of one owner (a model), with the threads of `pool`. No op may run meanwhile.
 * IV_LIMIT when a matrix is larger than a BLAS can index. */
iv_status iv_baseline_widen(iv_baseline *b, const void *owner, iv_matrix *const *matrices, size_t count, iv_pool *pool,
                            iv_error *err);
/* Frees an owner's copies, if it has any, before its matrices are freed. b may be NULL. */
void iv_baseline_forget(iv_baseline *b, const void *owner);

#endif
