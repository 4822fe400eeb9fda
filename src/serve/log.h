/* log.h: the server's lines: text for people, or one JSON object each. A line is safe to print: what clients wrote in
 * it is shown escaped. */
#ifndef IV_SERVE_LOG_H
#define IV_SERVE_LOG_H

#include "serve/server.h"

/* level: "info", "warning", "error". event: what a program may look for. */
void iv_log(const iv_server_options *o, const char *level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void iv_log_exchange(const iv_server_options *o, const iv_exchange *x, int status, double seconds, size_t bytes);

#endif
