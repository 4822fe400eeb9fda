/* agree.c: a gather that copies, and errors over it. */
#include "comm/agree.h"

#include <string.h>

iv_status iv_comm_gather_copies(iv_comm *comm, const void *mine, size_t bytes, void *all, iv_error *err) {
    static const char nothing;
    const void *blocks[IV_RANKS_MAX];
    size_t sizes[IV_RANKS_MAX];
    if (!comm) {
        memcpy(all, mine, bytes);
        return IV_OK;
    }
    for (size_t r = 0; r < comm->size; r++) sizes[r] = bytes;
    IV_TRY(iv_comm_all_gather(comm, mine, sizes, blocks, err));
    for (size_t r = 0; r < comm->size; r++) memcpy((char *)all + r * bytes, blocks[r], bytes);
    for (size_t r = 0; r < comm->size; r++) sizes[r] = sizeof nothing;
    return iv_comm_all_gather(comm, &nothing, sizes, blocks, err); /* all have copied: threads read `mine` itself */
}

iv_status iv_comm_agree(iv_comm *comm, iv_status status, iv_error *err) {
    iv_error mine = {.status = IV_OK}, all[IV_RANKS_MAX];
    if (status != IV_OK) mine = *err, mine.status = status;
    IV_TRY(iv_comm_gather_copies(comm, &mine, sizeof mine, all, err));
    for (size_t r = 0; r < (comm ? comm->size : 1); r++) {
        if (all[r].status == IV_OK) continue;
        *err = all[r];
        err->message[sizeof err->message - 1] = 0;
        return comm && comm->size > 1 ? iv_error_prefix(err, "rank %zu", r) : err->status;
    }
    return IV_OK;
}

iv_status iv_comm_have_read(iv_comm *comm, iv_error *err) {
    static const size_t nothing[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    return comm && comm->shares_memory ? iv_comm_all_gather(comm, NULL, nothing, blocks, err) : IV_OK;
}
