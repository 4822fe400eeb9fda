/* comm.c: what all kinds share. */
#include "comm/comm.h"

void iv_comm_close(iv_comm *c) {
    if (c) c->ops->close(c);
}
