/* log.h: the server's lines: text for people, or one JSON object each. A line is safe to print: what clients wrote in
 * it is shown escaped. */
#ifndef IV_SERVE_LOG_H
#define IV_SERVE_LOG_H

#include "serve/http.h"

/* Where lines go, and in which form. */
typedef struct iv_log_sink {
    bool json;
    void (*say)(void *user, const char *line); /* without its end; NULL: no lines */
    void *user;
} iv_log_sink;

/* level: "info", "warning", "error". event: what a program may look for. */
void iv_log(const iv_log_sink *to, const char *level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void iv_log_http_request(const iv_log_sink *to, const iv_http_request *x, int status, double seconds, size_t bytes);

#endif
