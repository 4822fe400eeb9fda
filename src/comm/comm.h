/* comm.h: ranks that work on one step exchange bytes; nothing is added here.
 *
 * Two kinds: ranks as threads of one process read each other's memory; ranks as processes (MPI) copy. Calls are made
 * by all ranks in the same order. A rank that does not arrive within the deadline, or whose process has ended, is
 * IV_IO, which names it; after that the communicator is broken and every call fails. Threads of one process have no
 * deadline: they end together. */
#ifndef IV_COMM_COMM_H
#define IV_COMM_COMM_H

#include "base/ranks.h"
#include "base/status.h"

typedef struct iv_comm iv_comm;

typedef struct iv_comm_ops {
    iv_status (*gather)(iv_comm *c, bool all, const void *mine, const size_t *bytes, const void **blocks,
                        iv_error *err);
    iv_status (*broadcast)(iv_comm *c, const void *mine, size_t bytes, const void **out, size_t *out_bytes,
                           iv_error *err);
    void (*close)(iv_comm *c);
} iv_comm_ops;

/* The head of every kind's own struct. */
struct iv_comm {
    const iv_comm_ops *ops;
    size_t rank, size;
    bool shares_memory; /* pointers mean the same to all ranks */
};

/* Every rank gives bytes[rank] bytes at `mine` and gets all ranks' blocks in blocks[0..size), the own one among them;
 * every rank knows every size. The blocks live until the next call; `mine` must stay as it is until the next call
 * returns, so two buffers taken in turn suffice. */
static inline iv_status iv_comm_all_gather(iv_comm *c, const void *mine, const size_t *bytes, const void **blocks,
                                           iv_error *err) {
    return c->ops->gather(c, true, mine, bytes, blocks, err);
}

/* The same, but only rank 0 gets blocks. */
static inline iv_status iv_comm_gather(iv_comm *c, const void *mine, const size_t *bytes, const void **blocks,
                                       iv_error *err) {
    return c->ops->gather(c, false, mine, bytes, blocks, err);
}

/* Rank 0 gives bytes; the others get them, and wait for them asleep, without a deadline: it is how the next step is
 * awaited. What they get lives until the next call. */
static inline iv_status iv_comm_broadcast(iv_comm *c, const void *mine, size_t bytes, const void **out,
                                          size_t *out_bytes, iv_error *err) {
    return c->ops->broadcast(c, mine, bytes, out, out_bytes, err);
}

void iv_comm_close(iv_comm *c); /* NULL is fine */

/* ---- threads.c: out[0..size) for the threads of one process; the last to be closed frees what they share. */
iv_status iv_comm_threads_open(size_t size, iv_comm **out, iv_error *err);

#endif
