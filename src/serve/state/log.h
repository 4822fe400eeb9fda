/* log.h: the server's log: lines of text, or one JSON object each, and a thread that writes them. A line is safe to
 * print: what clients wrote in it is escaped. */
#ifndef IV_SERVE_STATE_LOG_H
#define IV_SERVE_STATE_LOG_H

#include "base/status.h"
#include "serve/http/http.h"

typedef enum iv_log_levels { IV_LOG_INFO, IV_LOG_WARNING, IV_LOG_ERROR } iv_log_levels;
/* By its name, as in lines; NULL: info. */
iv_log_levels iv_log_level(const char *name);

/* Destination and format of lines. */
typedef struct iv_log_sink {
    bool json;
    iv_log_levels level;                         /* lines below it are omitted */
    void (*write)(void *user, const char *line); /* line: without its end; NULL: no lines */
    void *user;
} iv_log_sink;

/* level: "info", "warning", "error". event: a fixed name for programs. */
void iv_log(const iv_log_sink *to, const char *level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void iv_log_http_request(const iv_log_sink *to, const iv_http_request *q, int status, double seconds, size_t bytes);

/* ---- the writer --------------------------------------------------------------------------------------- */

/* Lines to a file or to standard error, written by a thread behind a bounded queue: a reader that stops reading, or a
 * full disk, never delays the server. Lines that find the queue full are dropped and counted; once writing works again,
 * one line reports how many. */
typedef struct iv_log_writer iv_log_writer;

enum { IV_LOG_QUEUE_BYTES = 1 << 20 };

/* path: a file, appended to; NULL: standard error. json: format of the writer's own lines. */
iv_status iv_log_writer_open(const char *path, bool json, iv_log_writer **out, iv_error *err);
/* Queues a line without its end; any thread. Has the signature of iv_log_sink.write. */
void iv_log_writer_put(void *writer, const char *line);
/* Reopens the file by its path after the queued lines: it may have been rotated. On failure the old file stays in
 * use and a line in it gives the reason. */
void iv_log_writer_reopen(iv_log_writer *w);
uint64_t iv_log_writer_dropped(iv_log_writer *w); /* total lines lost to a full queue or a failed write */
/* Waits at most wait_ms for queued lines to be written. NULL is fine. */
void iv_log_writer_close(iv_log_writer *w, uint32_t wait_ms);

#endif
