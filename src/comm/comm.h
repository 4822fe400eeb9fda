/* comm.h: collectives of bytes between the ranks of a step. No number is added here.
 *
 * Ranks that are threads of one process read each other's memory; ranks that are processes (MPI) copy. All calls are
 * collective and in the same order on all ranks. If a rank does not arrive within the deadline, or its process has
 * ended, the call returns IV_IO and names the rank; from then on the communicator is broken and every call fails.
 * Threads of one process have no deadline. */
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
    iv_status (*all_to_all)(iv_comm *c, const void *const *mine, const size_t *bytes, const size_t *theirs,
                            const void **blocks, iv_error *err);
    iv_status (*split)(iv_comm *c, size_t count, iv_comm **out, iv_error *err);
} iv_comm_ops;

/* The first member of each implementation's struct. */
struct iv_comm {
    const iv_comm_ops *ops;
    size_t rank, size;
    bool shares_memory; /* pointers are valid on all ranks */
};

/* Every rank passes bytes[rank] bytes at `mine` and receives all ranks' blocks, its own included, in blocks[0..size).
 * Every rank passes the same sizes. The blocks live until the next call; `mine` must not change until the next call
 * returns, so two alternating buffers suffice. */
static inline iv_status iv_comm_all_gather(iv_comm *c, const void *mine, const size_t *bytes, const void **blocks,
                                           iv_error *err) {
    return c->ops->gather(c, true, mine, bytes, blocks, err);
}

/* The same, but only rank 0 receives blocks. */
static inline iv_status iv_comm_gather(iv_comm *c, const void *mine, const size_t *bytes, const void **blocks,
                                       iv_error *err) {
    return c->ops->gather(c, false, mine, bytes, blocks, err);
}

/* Rank 0 passes bytes; the others receive them, valid until the next call. They wait without a deadline, mostly asleep:
 * this is how ranks wait for the next step. */
static inline iv_status iv_comm_broadcast(iv_comm *c, const void *mine, size_t bytes, const void **out,
                                          size_t *out_bytes, iv_error *err) {
    return c->ops->broadcast(c, mine, bytes, out, out_bytes, err);
}

/* Every rank passes a block for each rank, bytes[r] bytes at mine[r], and receives blocks[r], theirs[r] bytes, which
 * rank r passed for it. The blocks live until the next call; `mine` and what it points to must not change until the
 * next call returns. */
static inline iv_status iv_comm_all_to_all(iv_comm *c, const void *const *mine, const size_t *bytes,
                                           const size_t *theirs, const void **blocks, iv_error *err) {
    return c->ops->all_to_all(c, mine, bytes, theirs, blocks, err);
}

/* A communicator of this rank and its neighbours: ranks [k * count, (k + 1) * count) are a group each. count divides
 * the size. The groups work at once; a rank's calls on c and on its group are in the same order on all of the group.
 * The group is closed before c, which it needs. */
static inline iv_status iv_comm_split(iv_comm *c, size_t count, iv_comm **out, iv_error *err) {
    IV_ASSERT(count && c->size % count == 0);
    return c->ops->split(c, count, out, err);
}

static inline void iv_comm_close(iv_comm *c) { /* NULL is fine */
    if (c) c->ops->close(c);
}

/* ---- threads.c: out[0..size) for the threads of one process; the last one closed frees the shared state. */
iv_status iv_comm_threads_open(size_t size, iv_comm **out, iv_error *err);

#endif
