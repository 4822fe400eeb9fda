/* bench_server.h: a server of one's own, as a process beside this one, for as long as it is needed. */
#ifndef INVAR_CLI_BENCH_SERVER_H
#define INVAR_CLI_BENCH_SERVER_H

#include "flags.h"

#include <sys/types.h>

typedef struct cli_own_server {
    pid_t pid; /* 0: none */
    uint16_t port;
} cli_own_server;

/* Serves MODEL with the engine flags on a free port of 127.0.0.1, and returns when it listens. Before any thread. */
int cli_own_server_start(const cli_args *args, cli_own_server *out, iv_error *err);
/* Ends it and waits. CLI_FAILED if it had failed. None is fine. */
int cli_own_server_stop(cli_own_server *server, iv_error *err);

#endif
