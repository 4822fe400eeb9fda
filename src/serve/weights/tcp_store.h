/* tcp_store.h: a client of torch.distributed's TCPStore, where a trainer's process group meets: keys and values over
 * one connection, in the byte order of the machine. Calls block, watch the deadline, and end when *stop is set. */
#ifndef IV_SERVE_WEIGHTS_TCP_STORE_H
#define IV_SERVE_WEIGHTS_TCP_STORE_H

#include "base/buf.h"
#include "base/status.h"

#include <stdatomic.h>

typedef struct iv_tcp_store {
    int fd;          /* -1: closed */
    double deadline; /* of the present call, by iv_now */
    const atomic_bool *stop;
} iv_tcp_store;

enum { IV_TCP_STORE_VALUE_MAX = 1 << 20 };

/* Connects, retrying until the deadline, because the trainer may listen later; and checks that it is such a store. */
iv_status iv_tcp_store_open(const char *host, uint16_t port, double seconds, const atomic_bool *stop, iv_tcp_store *out,
                            iv_error *err);
void iv_tcp_store_close(iv_tcp_store *s);

/* Adds to a number, and returns it. */
iv_status iv_tcp_store_add(iv_tcp_store *s, const char *key, int64_t n, int64_t *result, iv_error *err);
iv_status iv_tcp_store_has(iv_tcp_store *s, const char *key, bool *has, iv_error *err);
/* Replaces *value's content. The key must be there. */
iv_status iv_tcp_store_get(iv_tcp_store *s, const char *key, iv_buf *value, iv_error *err);

#endif
