/* group.h: a trainer's process group (torch.distributed, backend nccl) from which it broadcasts weights: rank 0 is the
 * trainer, this server has a rank for each of its tensor-parallel ranks. Its ranks meet in the trainer's TCPStore; NCCL
 * connects them at the first broadcast, as torch does. One thread. */
#ifndef IV_SERVE_WEIGHTS_GROUP_H
#define IV_SERVE_WEIGHTS_GROUP_H

#include "base/ranks.h"
#include "format/safetensors.h"
#include "serve/weights/driver.h"
#include "serve/weights/tcp_store.h"

typedef struct iv_group iv_group;

typedef struct iv_group_options {
    const char *master_address, *name;
    uint16_t master_port;
    size_t rank_offset, world_size;
    size_t ranks;            /* of this server, each on a GPU: 0, 1, ... */
    double seconds;          /* timeout of each call */
    const atomic_bool *stop; /* ends calls */
    iv_driver **driver;      /* opened for the first group, and kept */
} iv_group_options;

/* Joins the store, which the trainer may open later. IV_INVALID: ranks outside the world. */
iv_status iv_group_open(const iv_group_options *o, iv_group **out, iv_error *err);
void iv_group_close(iv_group *g); /* NULL is fine */
const char *iv_group_name(const iv_group *g);

/* Receives a tensor that rank 0 broadcasts next; read it before the next. After an error the group is of no use. */
iv_status iv_group_receive(iv_group *g, iv_dtype dtype, size_t elements, iv_error *err);
iv_status iv_group_read(iv_group *g, size_t offset, size_t n, void *out, iv_error *err);

#endif
