/* notify.h: messages to a service manager (systemd's Type=notify), as datagrams to $NOTIFY_SOCKET. Without that
 * variable every call does nothing. */
#ifndef IV_SERVE_NOTIFY_H
#define IV_SERVE_NOTIFY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Zero-initialise, then iv_notify_open. */
typedef struct iv_notify {
    int fd; /* 0: no service manager */
    struct sockaddr_un to;
    socklen_t to_bytes;
    uint64_t watchdog_ms; /* wanted interval of WATCHDOG=1, at most; 0: none */
    char status[160];     /* last sent */
    double extended_at;
} iv_notify;

void iv_notify_open(iv_notify *n);
void iv_notify_close(iv_notify *n);

/* Lines such as "READY=1" or "STATUS=...". Never blocks; a message that cannot be sent is lost. */
void iv_notify_send(const iv_notify *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The line of `systemctl status`, if it has changed. */
void iv_notify_status(iv_notify *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The model loads: a start, or a step of it, may take `seconds` from now. At most one message a second. */
void iv_notify_loading(iv_notify *n, size_t done_bytes, size_t total_bytes, unsigned seconds);
/* SIGHUP is being handled; READY=1 follows. */
void iv_notify_reloading(const iv_notify *n);

#endif
