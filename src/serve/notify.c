/* notify.c: the protocol of sd_notify(3), without its library. */
#include "serve/notify.h"
#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 512, WATCHDOGS = 3 /* messages in an interval of the watchdog */ };

/* $WATCHDOG_USEC, unless it is meant for another process. */
static uint64_t read_watchdog(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && *pid && strtoll(pid, NULL, 10) != (long long)getpid())) return 0;
    uint64_t ms = strtoull(usec, NULL, 10) / 1000 / WATCHDOGS;
    return ms ? ms : *usec != '0';
}

void iv_notify_open(iv_notify *n) {
    const char *path = getenv("NOTIFY_SOCKET");
    *n = (iv_notify){.to.sun_family = AF_UNIX};
    size_t bytes = path ? strlen(path) : 0;
    if ((bytes < 2 || (*path != '/' && *path != '@')) || bytes >= sizeof n->to.sun_path) return;
    memcpy(n->to.sun_path, path, bytes);
    if (*path == '@') n->to.sun_path[0] = 0; /* the abstract namespace */
    n->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd <= 0) return;
    n->fd = fd, n->watchdog_ms = read_watchdog();
}

void iv_notify_close(iv_notify *n) {
    if (n->fd) close(n->fd);
    n->fd = 0;
}

static void send_text(const iv_notify *n, const char *text) {
    ssize_t sent = sendto(n->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
                          (const struct sockaddr *)(const void *)&n->to, n->to_bytes);
    (void)sent; /* a manager that does not read gets the next message */
}

void iv_notify_send(const iv_notify *n, const char *fmt, ...) {
    char text[MESSAGE_BYTES];
    va_list args;
    if (!n->fd) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    send_text(n, text);
}

void iv_notify_status(iv_notify *n, const char *fmt, ...) {
    char text[sizeof n->status];
    va_list args;
    if (!n->fd) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text[strcspn(text, "\n")] = 0;
    if (strcmp(text, n->status) == 0) return;
    memcpy(n->status, text, sizeof text);
    iv_notify_send(n, "STATUS=%s", text);
}

void iv_notify_loading(iv_notify *n, size_t done_bytes, size_t total_bytes, unsigned seconds) {
    double now = iv_now();
    if (!n->fd || (n->extended_at > 0 && now - n->extended_at < 1)) return;
    n->extended_at = now;
    double part = total_bytes ? (double)done_bytes / (double)total_bytes : 0;
    iv_notify_send(n, "EXTEND_TIMEOUT_USEC=%llu\nSTATUS=loading the model: %.0f %%", seconds * 1000000ULL, 100 * part);
}

void iv_notify_reloading(const iv_notify *n) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    iv_notify_send(n, "RELOADING=1\nMONOTONIC_USEC=%llu",
                   (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000);
}
