/* nccl.h: NCCL through dlopen: all-reduce for the vanilla-blas baseline (NUMERICS.md, 14), and copies between GPUs
 * of several processes, an engine's or a trainer's. The library is loaded on demand and is not a dependency.
 *
 * Enqueued calls wait on the GPU for the other ranks without a timeout: the caller watches the time and aborts with
 * iv_nccl_abort. Opening has its own timeout. */
#ifndef IV_KERNELS_CUDA_NCCL_H
#define IV_KERNELS_CUDA_NCCL_H

#include "base/status.h"
#include "kernels/cuda/ops.h"

typedef struct iv_nccl iv_nccl; /* of one rank */

/* Identifies a group of ranks: one rank makes it, all ranks receive it. */
typedef struct iv_nccl_id {
    char bytes[128];
} iv_nccl_id;

/* IV_NOT_FOUND names the missing library; `what_for` is the prefix of the message. */
iv_status iv_nccl_make_id(const char *what_for, iv_nccl_id *out, iv_error *err);

/* Opens ranks [first, first + count) of `ranks` on the GPUs with these ordinals, into out[0..count). Returns when
 * all ranks of all processes are connected; with one rank per process, also after bytes have passed between all
 * ranks, because connections cannot be made during graph capture. IV_IO: timed out after timeout_ms; a thread may
 * then remain that waits for the other ranks and owns nothing of the caller's. Multicast over NVLink is off unless
 * NCCL_NVLS_ENABLE enables it. */
iv_status iv_nccl_open(const iv_nccl_id *id, size_t ranks, size_t first, size_t count, const int *ordinals,
                       size_t timeout_ms, iv_nccl **out, iv_error *err);
void iv_nccl_close(iv_nccl *n); /* NULL is allowed. Graphs with its calls must be destroyed before */
/* Like close, but does not wait for lost ranks: pending GPU work ends with undefined results. */
void iv_nccl_abort(iv_nccl *n);

/* Each of the following enqueues on `stream`, can be captured, and returns 0 or an error code. All ranks make the
 * same calls. */

/* All-reduce: values[i] becomes the sum over all ranks, in the library's order; 16-bit types only. */
int iv_nccl_sum(iv_nccl *n, iv_dtype type, void *values, size_t count, iv_gpu_stream stream);

/* Bytes sent by one rank: `at` is the source on the owner and the destination elsewhere. */
typedef struct iv_nccl_chunk {
    void *at;
    size_t bytes, owner;
} iv_nccl_chunk;

/* Copies chunks to all ranks, or to rank 0 only. */
int iv_nccl_move(iv_nccl *n, const iv_nccl_chunk *chunks, size_t count, bool to_first, iv_gpu_stream stream);

/* Memory for or from one other rank. */
typedef struct iv_nccl_block {
    void *at;
    size_t bytes;
} iv_nccl_block;

/* Sends to[r] to rank r and receives from[r] from it, for every other rank: both sides give the same bytes. */
int iv_nccl_exchange(iv_nccl *n, const iv_nccl_block *to, const iv_nccl_block *from, iv_gpu_stream stream);

#endif
