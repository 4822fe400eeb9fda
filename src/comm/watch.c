/* watch.c: pidfds, which also work for processes that are not children. */
#include "comm/watch.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

void iv_process_self(iv_process *out) {
    struct stat st;
    *out = (iv_process){.pid = (uint64_t)getpid()};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, out->boot, sizeof out->boot - 1);
    close(fd);
    if (n <= 0 || stat("/proc/self/ns/pid", &st))
        *out = (iv_process){.pid = out->pid};
    else
        out->space = (uint64_t)st.st_ino;
}

void iv_watch_add(iv_watch *w, size_t rank, const iv_process *self, const iv_process *other) {
    bool near = self->space && self->space == other->space && memcmp(self->boot, other->boot, sizeof self->boot) == 0;
    if (!near || w->count == IV_RANKS_MAX) return;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)other->pid, 0);
    if (fd < 0) return;
    w->files[w->count] = (struct pollfd){.fd = fd, .events = POLLIN};
    w->ranks[w->count++] = rank;
}

bool iv_watch_ended(iv_watch *w, size_t *rank) {
    if (w->count == 0 || poll(w->files, (nfds_t)w->count, 0) <= 0) return false;
    for (size_t i = 0; i < w->count; i++) {
        if (!w->files[i].revents) continue;
        *rank = w->ranks[i];
        return true;
    }
    return false;
}

void iv_watch_close(iv_watch *w) {
    while (w->count > 0) close(w->files[--w->count].fd);
}
