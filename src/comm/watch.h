/* watch.h: the processes of other ranks on this machine: whether one has ended shows at once, not after a deadline. */
#ifndef IV_COMM_WATCH_H
#define IV_COMM_WATCH_H

#include "comm/comm.h"

#include <poll.h>

/* Which process this is: of which machine since its boot, of which namespace of processes. */
typedef struct iv_process {
    char boot[40];
    uint64_t space, pid;
} iv_process;

typedef struct iv_watch {
    struct pollfd files[IV_RANKS_MAX]; /* pidfds: readable when the process has ended */
    size_t ranks[IV_RANKS_MAX];
    size_t count;
} iv_watch;

void iv_process_self(iv_process *out);
/* Watches rank's process if it can be seen from here: it may run elsewhere, or the kernel be older than 5.3. */
void iv_watch_add(iv_watch *w, size_t rank, const iv_process *self, const iv_process *other);
/* Has one ended? *rank says which. */
bool iv_watch_ended(iv_watch *w, size_t *rank);
void iv_watch_close(iv_watch *w);

#endif
