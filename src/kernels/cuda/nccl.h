/* nccl.h: NCCL through dlopen: sums of ranks for the vanilla-blas baseline (NUMERICS.md, 14), and bytes between GPUs of
 * several processes. The library is looked for when it is asked for and is no dependency.
 *
 * What is enqueued waits on the GPU for the other ranks, for ever if one is lost: the caller looks at the clock, and
 * ends the wait with iv_nccl_abort. Opening has a clock of its own. */
#ifndef IV_KERNELS_CUDA_NCCL_H
#define IV_KERNELS_CUDA_NCCL_H

#include "base/status.h"
#include "kernels/cuda/ops.h"

typedef struct iv_nccl iv_nccl; /* one rank */

/* By which ranks find each other: one makes it, all get it. */
typedef struct iv_nccl_id {
    char bytes[128];
} iv_nccl_id;

/* IV_NOT_FOUND names the library when it is not there; `what_for` stands before the message. */
iv_status iv_nccl_make_id(const char *what_for, iv_nccl_id *out, iv_error *err);

/* Ranks [first, first + count) of `ranks`, on the GPUs of these ordinals, into out[0..count). Returns when all ranks of
 * all processes are there, and with one rank a process when each has had bytes of every other, as no connection can be
 * made in the capture of a graph. IV_IO: that took longer than timeout_ms; then a thread may be left behind that waits
 * for them, and has nothing that is the caller's. Multicast over NVLink is off unless NCCL_NVLS_ENABLE says otherwise.
 */
iv_status iv_nccl_open(const iv_nccl_id *id, size_t ranks, size_t first, size_t count, const int *ordinals,
                       size_t timeout_ms, iv_nccl **out, iv_error *err);
void iv_nccl_close(iv_nccl *n); /* NULL is fine. Graphs that hold its calls are gone by then */
/* As close, but does not wait for ranks that are lost: what waits on the GPU ends, with rubbish. */
void iv_nccl_abort(iv_nccl *n);

/* Each enqueues on `stream`, may be captured, and returns 0 or a code that is not. All ranks make the same calls. */

/* values[i] becomes the sum over all ranks, in whatever order the library adds; 16-bit types alone. */
int iv_nccl_sum(iv_nccl *n, iv_dtype type, void *values, size_t count, iv_gpu_stream stream);

/* Bytes that one rank has and others get: `at` is where they lie on the owner, elsewhere where they go. */
typedef struct iv_nccl_piece {
    void *at;
    size_t bytes, owner;
} iv_nccl_piece;

/* Moves pieces to all ranks, or to rank 0 alone. Nothing is added. */
int iv_nccl_move(iv_nccl *n, const iv_nccl_piece *pieces, size_t count, bool to_first, iv_gpu_stream stream);

#endif
