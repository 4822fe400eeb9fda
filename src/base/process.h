/* process.h: a child process at the other end of a socket, which is descriptor IV_PROCESS_FD there. Such a program ends
 * when the socket is closed. */
#ifndef IV_BASE_PROCESS_H
#define IV_BASE_PROCESS_H

#include "base/status.h"

#include <sys/types.h>

enum { IV_PROCESS_FD = 3, IV_PROCESS_ERRORS_FD = 4 };

typedef struct iv_process {
    pid_t pid; /* 0: none, or reaped */
    int fd;    /* of this side; -1: closed */
} iv_process;

typedef struct iv_process_program {
    const char *path;  /* without a slash: found in $PATH */
    char *const *argv; /* NULL at the end */
    int errors;        /* -1, or a file that is its standard error; this process's is then IV_PROCESS_ERRORS_FD */
} iv_process_program;

/* posix_spawn: no code of this process runs in the child. */
iv_status iv_process_start(const iv_process_program *program, iv_process *p, iv_error *err);
void iv_process_disconnect(iv_process *p); /* it ends by itself, soon */
void iv_process_kill(const iv_process *p);
/* Without waiting: whether it has ended, and how: "signal 9 (Killed)", "exit code 1". */
bool iv_process_reap(iv_process *p, char *how, size_t room);
/* Disconnects, waits a moment, kills, reaps. how: as above; "" if there was none. */
void iv_process_end(iv_process *p, char *how, size_t room);

#endif
