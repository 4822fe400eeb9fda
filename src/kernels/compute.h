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
    void *widened; /* a panel for each thread, into which packed ones are widened; NULL where no matrix is packed */
    size_t widened_bytes; /* of one, a multiple of 64 */
} iv_compute;

#endif
