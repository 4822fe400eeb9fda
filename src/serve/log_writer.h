/* log_writer.h: log lines to a file or to standard error, written by a thread of their own behind a bounded queue: a
 * reader that stops reading, or a full disk, never delays the server. Lines that find the queue full are dropped and
 * counted; once writing works again one line says how many. */
#ifndef IV_SERVE_LOG_WRITER_H
#define IV_SERVE_LOG_WRITER_H

#include "base/status.h"

typedef struct iv_log_writer iv_log_writer;

enum { IV_LOG_QUEUE_BYTES = 1 << 20 };

/* path: a file that is appended to; NULL: standard error. json: the form of the writer's own lines. */
iv_status iv_log_writer_open(const char *path, bool json, iv_log_writer **out, iv_error *err);
/* A line without its end; from any thread. The signature of iv_log_sink.say. */
void iv_log_writer_put(void *writer, const char *line);
/* Opens the file again by its path, behind the lines so far: it may have been renamed. If that fails, the old one stays
 * and a line in it says why. */
void iv_log_writer_reopen(iv_log_writer *w);
uint64_t iv_log_writer_dropped(iv_log_writer *w); /* lines so far, lost to a full queue or a failed write */
/* Waits at most so long for queued lines to be written. NULL is fine. */
void iv_log_writer_close(iv_log_writer *w, uint32_t wait_ms);

#endif
