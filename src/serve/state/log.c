/* log.c: a line is built on the stack, escaped and handed to the sink; the writer swaps two buffers, one that callers
 * fill and one that its thread writes. */
#include "serve/state/log.h"
#include "base/buf.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- lines -------------------------------------------------------------------------------------------- */

enum { LINE_BYTES_MAX = 2048, WORD_BYTES_MAX = 512, FORWARDED_BYTES_MAX = 128, STAMP_BYTES = 32 };

/* "2026-11-21T20:46:06.123Z" */
static void stamp(char out[STAMP_BYTES]) {
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t n = strftime(out, STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + n, STAMP_BYTES - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* Copies printable ASCII, other bytes as \xNN; truncates to the room. Returns out. */
static const char *shown(const char *text, char *out, size_t capacity) {
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (; *text && n + 5 < capacity; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c < 0x7f && c != '\\') {
            out[n++] = *text;
            continue;
        }
        out[n++] = '\\', out[n++] = 'x', out[n++] = digits[c >> 4], out[n++] = digits[c & 15];
    }
    out[n] = 0;
    return out;
}

/* Copies UTF-8; ASCII control characters become "?", other controls and invalid bytes \\xNN. */
static void make_printable(const char *text, char *out, size_t capacity) {
    size_t n = 0;
    for (size_t left = strlen(text); left && n + 5 < capacity;) {
        const uint8_t *at = (const uint8_t *)text;
        size_t length = iv_utf8_length(at, left);
        bool c1 = length == 2 && at[0] == 0xc2 && at[1] < 0xa0;
        if (length == 0 || c1) {
            n += (size_t)snprintf(out + n, capacity - n, "\\x%02x", at[0]);
            length = 1;
        } else {
            memcpy(out + n, text, length);
            if (at[0] < 0x20 || at[0] == 0x7f) out[n] = '?';
            n += length;
        }
        text += length, left -= length;
    }
    out[n] = 0;
}

static void write_json(const iv_log_sink *to, json_t *line) {
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL; /* microsecond clock */
    if (text) to->write(to->user, text);
    free(text);
    json_decref(line);
}

iv_log_levels iv_log_level(const char *name) {
    if (!name || strcmp(name, "info") == 0) return IV_LOG_INFO;
    return strcmp(name, "warning") == 0 ? IV_LOG_WARNING : IV_LOG_ERROR;
}

void iv_log(const iv_log_sink *to, const char *level, const char *event, const char *fmt, ...) {
    char message[LINE_BYTES_MAX], line[LINE_BYTES_MAX + 256], when[STAMP_BYTES];
    va_list args;
    if (!to->write || iv_log_level(level) < to->level) return;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    stamp(when);
    if (to->json) {
        size_t unused;
        bool good = iv_utf8_valid((const uint8_t *)message, strlen(message), &unused); /* a path may hold any bytes */
        write_json(to, json_pack("{ss ss ss ss}", "time", when, "level", level, "event", event, "message",
                                 good ? message : shown(message, line, sizeof line)));
        return;
    }
    bool plain = strcmp(level, "info") == 0;
    int head = snprintf(line, sizeof line, "%s %s%s", when, plain ? "" : level, plain ? "" : ": ");
    make_printable(message, line + head, sizeof line - (size_t)head);
    to->write(to->user, line);
}

void iv_log_http_request(const iv_log_sink *to, const iv_http_request *q, int status, double seconds, size_t bytes) {
    char method[WORD_BYTES_MAX], path[WORD_BYTES_MAX], id[WORD_BYTES_MAX], line[LINE_BYTES_MAX], when[STAMP_BYTES];
    char forwarded[FORWARDED_BYTES_MAX];
    if (!to->write || to->level > IV_LOG_INFO) return;
    stamp(when);
    shown(iv_http_request_method(q), method, sizeof method);
    shown(iv_http_request_path(q), path, sizeof path);
    shown(iv_http_request_id(q), id, sizeof id);
    const iv_http_answer *a = iv_http_request_answer(q);
    const char *client = iv_http_request_client(q), *via = iv_http_request_forwarded(q);
    if (via) shown(via, forwarded, sizeof forwarded);
    if (to->json) {
        json_t *object =
            json_pack("{ss ss ss ss ss si sf sI ss ss ss*}", "time", when, "level", "info", "event", "request",
                      "method", method, "path", path, "status", status, "seconds", seconds, "bytes", (json_int_t)bytes,
                      "id", id, "client", client, "forwarded", via ? forwarded : NULL);
        if (object && a->finish)
            json_object_update_new(object, json_pack("{sI sI ss}", "prompt_tokens", (json_int_t)a->prompt_tokens,
                                                     "completion_tokens", (json_int_t)a->completion_tokens,
                                                     "finish_reason", a->finish));
        write_json(to, object);
        return;
    }
    int n = snprintf(line, sizeof line, "%s %s %s %d %zu bytes %.3f s %s %s", when, method, path, status, bytes,
                     seconds, id, *client ? client : "-");
    if (via) n += snprintf(line + n, sizeof line - (size_t)n, " for %s", forwarded);
    if (a->finish)
        snprintf(line + n, sizeof line - (size_t)n, ", %zu + %zu tokens, %s", a->prompt_tokens, a->completion_tokens,
                 a->finish);
    to->write(to->user, line);
}
#define NO_REOPENING SIZE_MAX

struct iv_log_writer {
    char *path; /* NULL: standard error */
    pthread_t thread;
    bool started;

    /* The writer's thread only. */
    int fd;
    iv_log_sink own; /* the writer's own lines, into `line` */
    iv_buf taken, line;
    uint64_t unlogged; /* dropped lines not yet reported in the log */

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    iv_buf pending;
    uint64_t gap; /* lines dropped after the last one in `pending` */
    uint64_t dropped;
    size_t reopen_at; /* bytes of `pending` that belong to the old file */
    bool stop, ended;
};

/* ---- the writer's thread ------------------------------------------------------------------------------ */

static size_t count_lines(const char *bytes, size_t n) {
    size_t lines = 0;
    for (const char *end = bytes + n; (bytes = memchr(bytes, '\n', (size_t)(end - bytes))); bytes++) lines++;
    return lines;
}

/* The thread may be cancelled only here, where it holds no lock. Standard error is shared and may have been made
 * non-blocking by another process. */
static ssize_t write_some(int fd, const char *bytes, size_t n) {
    int unused;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &unused);
    ssize_t wrote = write(fd, bytes, n);
    int why = errno;
    if (wrote < 0 && why == EAGAIN) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        poll(&p, 1, -1);
        why = EINTR;
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unused);
    errno = why;
    return wrote;
}

/* Returns the number of lost lines. */
static size_t write_all(const iv_log_writer *w, const char *lines, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        ssize_t n = write_some(w->fd, lines + at, bytes - at);
        if (n > 0) at += (size_t)n;
        if (n < 0 && errno != EINTR) break;
    }
    return at < bytes ? count_lines(lines + at, bytes - at) : 0;
}

/* Returns whether the line was written. */
static bool write_line(iv_log_writer *w) {
    bool good = w->line.len && write_all(w, w->line.data, w->line.len) == 0;
    iv_buf_clear(&w->line);
    return good;
}

static void take_own_line(void *user, const char *line) {
    iv_log_writer *w = user;
    if (!iv_buf_printf(&w->line, "%s\n", line)) iv_buf_clear(&w->line);
}

static void log_unlogged(iv_log_writer *w) {
    if (w->unlogged == 0) return;
    iv_log(&w->own, "warning", "dropped", "%llu log lines were dropped: they could not be written",
           (unsigned long long)w->unlogged);
    if (write_line(w)) w->unlogged = 0;
}

static int open_file(const char *path) {
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
}

static void reopen_file(iv_log_writer *w) {
    int fd = open_file(w->path);
    if (fd < 0) {
        iv_log(&w->own, "error", "log-file", "%s: cannot open it again: %s; the old file stays", w->path,
               strerror(errno));
    } else {
        close(w->fd);
        w->fd = fd;
        iv_log(&w->own, "info", "log-file", "%s: opened again", w->path);
    }
    write_line(w);
}

/* Writes a batch of lines, then reports the lines dropped after it. */
static void write_batch(iv_log_writer *w, uint64_t gap, size_t reopen_at) {
    log_unlogged(w);
    size_t first = reopen_at < w->taken.len ? reopen_at : w->taken.len;
    size_t lost = write_all(w, w->taken.data, first);
    if (reopen_at != NO_REOPENING) reopen_file(w);
    if (first < w->taken.len) lost += write_all(w, w->taken.data + first, w->taken.len - first);
    iv_buf_clear(&w->taken);
    w->unlogged += lost + gap;
    if (lost == 0) log_unlogged(w);
    pthread_mutex_lock(&w->mutex);
    w->dropped += lost;
    pthread_mutex_unlock(&w->mutex);
}

static void *write_lines(void *user) {
    iv_log_writer *w = user;
    int unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &unused);
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->stop && w->reopen_at == NO_REOPENING && w->pending.len == 0)
            pthread_cond_wait(&w->changed, &w->mutex);
        if (w->pending.len == 0 && w->reopen_at == NO_REOPENING) break;
        iv_buf empty = w->taken;
        w->taken = w->pending, w->pending = empty;
        uint64_t gap = w->gap;
        size_t reopen_at = w->reopen_at;
        w->gap = 0, w->reopen_at = NO_REOPENING;
        pthread_mutex_unlock(&w->mutex);
        write_batch(w, gap, reopen_at);
        pthread_mutex_lock(&w->mutex);
    }
    w->ended = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- the writer's callers ----------------------------------------------------------------------------- */

static iv_status start_thread(iv_log_writer *w, iv_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, write_lines, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return iv_fail(err, IV_LIMIT, "log: cannot start its thread: %s", strerror(failed));
    w->started = true;
    pthread_setname_np(w->thread, "invar-log");
    return IV_OK;
}

iv_status iv_log_writer_open(const char *path, bool json, iv_log_writer **out, iv_error *err) {
    pthread_condattr_t clock;
    iv_log_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w || (path && !(w->path = strdup(path)))) {
        free(w);
        return iv_fail(err, IV_NO_MEMORY, "log: no memory");
    }
    w->reopen_at = NO_REOPENING;
    w->own = (iv_log_sink){.json = json, .write = take_own_line, .user = w};
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    w->fd = path ? open_file(path) : STDERR_FILENO;
    iv_status status = IV_OK;
    if (w->fd < 0) status = iv_fail(err, IV_IO, "log file %.800s: cannot write: %s", path, strerror(errno));
    if (status == IV_OK) status = start_thread(w, err);
    if (status != IV_OK) {
        iv_log_writer_close(w, 0);
        return status;
    }
    *out = w;
    return IV_OK;
}

void iv_log_writer_put(void *writer, const char *line) {
    iv_log_writer *w = writer;
    size_t n = strlen(line), before;
    pthread_mutex_lock(&w->mutex);
    before = w->pending.len;
    bool fits = (w->gap == 0 || before == 0) && before + n < IV_LOG_QUEUE_BYTES;
    if (fits && iv_buf_append(&w->pending, line, n) && iv_buf_putc(&w->pending, '\n')) {
        pthread_cond_signal(&w->changed);
    } else {
        w->pending.len = before;
        w->gap++, w->dropped++;
    }
    pthread_mutex_unlock(&w->mutex);
}

void iv_log_writer_reopen(iv_log_writer *w) {
    if (!w->path) return;
    pthread_mutex_lock(&w->mutex);
    w->reopen_at = w->pending.len;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

uint64_t iv_log_writer_dropped(iv_log_writer *w) {
    pthread_mutex_lock(&w->mutex);
    uint64_t count = w->dropped;
    pthread_mutex_unlock(&w->mutex);
    return count;
}

static void end_thread(iv_log_writer *w, uint32_t wait_ms) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    end.tv_sec += (time_t)(wait_ms / 1000) + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    while (!w->ended && pthread_cond_timedwait(&w->changed, &w->mutex, &end) != ETIMEDOUT) {}
    bool ended = w->ended;
    pthread_mutex_unlock(&w->mutex);
    if (!ended) pthread_cancel(w->thread);
    pthread_join(w->thread, NULL);
}

void iv_log_writer_close(iv_log_writer *w, uint32_t wait_ms) {
    if (!w) return;
    if (w->started) end_thread(w, wait_ms);
    if (w->path && w->fd >= 0) close(w->fd);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    iv_buf_free(&w->pending);
    iv_buf_free(&w->taken);
    iv_buf_free(&w->line);
    free(w->path);
    free(w);
}
