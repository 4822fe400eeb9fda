/* process.c: posix_spawn, kill, waitpid. */
#include "base/process.h"

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

enum { END_MS = 500, END_STEP_MS = 5, ABOVE = 10 };

extern char **environ;

/* fd, errors: above the descriptors that they become. */
static int add_files(posix_spawn_file_actions_t *actions, int fd, int errors) {
    int why = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!why) why = posix_spawn_file_actions_adddup2(actions, fd, IV_PROCESS_FD);
    if (!why && errors >= 0) why = posix_spawn_file_actions_adddup2(actions, STDERR_FILENO, IV_PROCESS_ERRORS_FD);
    if (!why && errors >= 0) why = posix_spawn_file_actions_adddup2(actions, errors, STDERR_FILENO);
    return why;
}

static int spawn(const iv_process_program *program, int fd, int errors, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    int why = posix_spawn_file_actions_init(&actions);
    if (why) return why;
    if ((why = posix_spawnattr_init(&attributes)) == 0) {
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        why = add_files(&actions, fd, errors);
        if (!why) why = posix_spawnp(pid, program->path, &actions, &attributes, program->argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return why;
}

static int above(int fd) { return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, ABOVE); }

iv_status iv_process_start(const iv_process_program *program, iv_process *p, iv_error *err) {
    int pair[2];
    *p = (iv_process){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return iv_fail(err, IV_IO, "%s: no socket: %s", program->argv[0], strerror(errno));
    int theirs = above(pair[1]), errors = above(program->errors);
    int why = theirs < 0 || (program->errors >= 0 && errors < 0) ? errno : spawn(program, theirs, errors, &p->pid);
    close(pair[1]);
    if (theirs >= 0) close(theirs);
    if (errors >= 0) close(errors);
    if (why) {
        close(pair[0]);
        p->pid = 0;
        return iv_fail(err, IV_IO, "%.800s: cannot execute: %s", program->path, strerror(why));
    }
    p->fd = pair[0];
    return IV_OK;
}

void iv_process_disconnect(iv_process *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

void iv_process_kill(const iv_process *p) {
    if (p->pid > 0) kill(p->pid, SIGKILL); /* not reaped, so the number is still its own */
}

static void describe(int status, char *how, size_t room) {
    if (WIFSIGNALED(status))
        snprintf(how, room, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, room, "exit code %d", WEXITSTATUS(status));
}

bool iv_process_reap(iv_process *p, char *how, size_t room) {
    int status;
    if (p->pid <= 0) return true;
    pid_t got = waitpid(p->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return false;
    if (got < 0)
        snprintf(how, room, "its end was not seen: %s", strerror(errno));
    else
        describe(status, how, room);
    p->pid = 0;
    return true;
}

void iv_process_end(iv_process *p, char *how, size_t room) {
    int status;
    *how = 0;
    iv_process_disconnect(p);
    for (int waited = 0; waited < END_MS; waited += END_STEP_MS) {
        if (iv_process_reap(p, how, room)) return;
        poll(NULL, 0, END_STEP_MS);
    }
    iv_process_kill(p);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) continue;
    describe(status, how, room);
    p->pid = 0;
}
