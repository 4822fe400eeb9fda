/* engine_process.c: posix_spawn, kill, waitpid. */
#include "serve/engine_process.h"
#include "serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { END_MS = 500, END_STEP_MS = 5 };

extern char **environ;

static int spawn(const char *model, int fd, pid_t *pid) {
    char word[] = IV_SERVER_ENGINE_WORD, name[] = "invar";
    char *argv[] = {name, word, (char *)model, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    int why = posix_spawn_file_actions_init(&actions);
    if (why) return why;
    if ((why = posix_spawnattr_init(&attributes)) == 0) {
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        why = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (!why) why = posix_spawn_file_actions_adddup2(&actions, fd, IV_ENGINE_PROCESS_FD);
        if (!why) why = posix_spawn(pid, "/proc/self/exe", &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return why;
}

iv_status iv_engine_process_start(const char *model, iv_engine_process *p, iv_error *err) {
    int pair[2];
    *p = (iv_engine_process){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return iv_fail(err, IV_IO, "engine process: no socket: %s", strerror(errno));
    int why = spawn(model, pair[1], &p->pid);
    close(pair[1]);
    if (why) {
        close(pair[0]);
        p->pid = 0;
        return iv_fail(err, IV_IO, "engine process: /proc/self/exe: cannot execute: %s", strerror(why));
    }
    p->fd = pair[0];
    return IV_OK;
}

void iv_engine_process_disconnect(iv_engine_process *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

void iv_engine_process_kill(const iv_engine_process *p) {
    if (p->pid > 0) kill(p->pid, SIGKILL); /* not reaped, so the number is still its own */
}

bool iv_engine_process_reap(iv_engine_process *p, char *how, size_t room) {
    int status;
    if (p->pid <= 0) return true;
    pid_t got = waitpid(p->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return false;
    if (got < 0)
        snprintf(how, room, "its end was not seen: %s", strerror(errno));
    else if (WIFSIGNALED(status))
        snprintf(how, room, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, room, "exit code %d", WEXITSTATUS(status));
    p->pid = 0;
    return true;
}

void iv_engine_process_end(iv_engine_process *p) {
    char how[64];
    int status;
    iv_engine_process_disconnect(p);
    for (int waited = 0; waited < END_MS; waited += END_STEP_MS) {
        if (iv_engine_process_reap(p, how, sizeof how)) return;
        poll(NULL, 0, END_STEP_MS);
    }
    iv_engine_process_kill(p);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) continue;
    p->pid = 0;
}
