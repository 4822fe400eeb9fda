/* engine_process.h: the engine process, seen by the server: this program, executed again with one end of a socket as
 * descriptor IV_ENGINE_PROCESS_FD. It ends when the server does (engine_child.c). */
#ifndef IV_SERVE_ENGINE_PROCESS_H
#define IV_SERVE_ENGINE_PROCESS_H

#include "base/status.h"

#include <sys/types.h>

enum { IV_ENGINE_PROCESS_FD = 3 };

typedef struct iv_engine_process {
    pid_t pid; /* 0: none, or reaped */
    int fd;    /* of the server; -1: closed */
} iv_engine_process;

/* posix_spawn: no code of this process runs in the child. model: for lists of processes. */
iv_status iv_engine_process_start(const char *model, iv_engine_process *p, iv_error *err);
void iv_engine_process_disconnect(iv_engine_process *p); /* it ends by itself, soon */
void iv_engine_process_kill(const iv_engine_process *p);
/* Without waiting: whether it has ended, and how: "signal 9 (Killed)", "exit code 1". */
bool iv_engine_process_reap(iv_engine_process *p, char *how, size_t room);
/* Disconnects, waits a moment, kills, reaps. */
void iv_engine_process_end(iv_engine_process *p);

#endif
