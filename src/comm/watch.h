/* watch.h: detects at once, without a deadline, that the process of another rank on this machine has ended. */
#ifndef IV_COMM_WATCH_H
#define IV_COMM_WATCH_H

#include "comm/comm.h"

#include <poll.h>

/* Identifies a process: boot id of the machine, pid namespace, pid. */
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
/* Watches the process of a rank if it is visible: it may run elsewhere, or the kernel may be older than 5.3. */
void iv_watch_add(iv_watch *w, size_t rank, const iv_process *self, const iv_process *other);
/* True if a process has ended; *rank is its rank. */
bool iv_watch_ended(iv_watch *w, size_t *rank);
void iv_watch_close(iv_watch *w);

#endif
