/* agree.h: ranks that tell each other how a phase went, over comm/comm.h. comm NULL: there is one rank. */
#ifndef IV_COMM_AGREE_H
#define IV_COMM_AGREE_H

#include "comm/comm.h"

/* Every rank's `bytes` bytes, into all[rank][bytes]. `mine` may change afterwards. */
iv_status iv_comm_gather_copies(iv_comm *comm, const void *mine, size_t bytes, void *all, iv_error *err);

/* All ranks return the status and error of the lowest rank that failed, which the message names, or IV_OK. */
iv_status iv_comm_agree(iv_comm *comm, iv_status status, iv_error *err);

/* After a collective call whose blocks were read, before the caller's own memory changes: threads that stand for
 * processes read each other's memory until here. */
iv_status iv_comm_have_read(iv_comm *comm, iv_error *err);

#endif
