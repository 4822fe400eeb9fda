/* compute.h: what an op needs besides its operands: a kernel table, how sums are cut, threads, scratch. */
#ifndef IV_KERNELS_COMPUTE_H
#define IV_KERNELS_COMPUTE_H

#include "base/threads.h"
#include "baseline/baseline.h"
#include "kernels/kernels.h"

typedef struct iv_blas iv_blas; /* blas.h */

typedef struct iv_compute {
    const iv_kernels *kernels;
    iv_arithmetic arithmetic;
    iv_numerics numerics; /* IV_INVAR unless a baseline is measured */
    const iv_blas *blas;  /* computes linear layers in place of the kernels; NULL but under IV_VANILLA_BLAS */
    iv_pool *pool;
    void *scratch; /* 64-byte aligned; ops use it from the start and leave nothing in it */
    size_t scratch_bytes;
} iv_compute;

#endif
