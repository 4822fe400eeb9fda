/* compute.h: what an op needs besides its operands: an op table, threads, scratch. */
#ifndef IV_KERNELS_COMPUTE_H
#define IV_KERNELS_COMPUTE_H

#include "base/threads.h"
#include "kernels/kernels.h"

typedef struct iv_compute {
    const iv_kernels *kernels;
    iv_arithmetic arithmetic;
    iv_pool *pool;
    void *scratch; /* 64-byte aligned; ops use it from the start and leave nothing in it */
    size_t scratch_bytes;
} iv_compute;

#endif
