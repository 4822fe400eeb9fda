/* log.c: a line is built on the stack, escaped and handed to options.say. */
#include "serve/log.h"
#include "base/utf8.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_BYTES_MAX = 2048, WORD_BYTES_MAX = 512, STAMP_BYTES = 32 };

/* "2026-11-21T20:46:06.123Z" */
static void stamp(char out[STAMP_BYTES]) {
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t n = strftime(out, STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + n, STAMP_BYTES - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* Printable ASCII as it is, all else as \xNN; cut where there is no more room. Returns out. */
static const char *shown(const char *text, char *out, size_t room) {
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (; *text && n + 5 < room; text++) {
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

static void say_json(const iv_server_options *o, json_t *line) {
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL; /* of a clock of microseconds */
    if (text) o->say(o->user, text);
    free(text);
    json_decref(line);
}

void iv_log(const iv_server_options *o, const char *level, const char *event, const char *fmt, ...) {
    char message[LINE_BYTES_MAX], line[LINE_BYTES_MAX + 128], when[STAMP_BYTES];
    va_list args;
    if (!o->say) return;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    stamp(when);
    if (o->log_json) {
        size_t unused;
        bool good = iv_utf8_valid((const uint8_t *)message, strlen(message), &unused); /* a path may be anything */
        say_json(o, json_pack("{ss ss ss ss}", "time", when, "level", level, "event", event, "message",
                              good ? message : shown(message, line, sizeof line)));
        return;
    }
    bool plain = strcmp(level, "info") == 0;
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    snprintf(line, sizeof line, "%s %s%s%s", when, plain ? "" : level, plain ? "" : ": ", message);
    o->say(o->user, line);
}

void iv_log_exchange(const iv_server_options *o, const iv_exchange *x, int status, double seconds, size_t bytes) {
    char method[WORD_BYTES_MAX], path[WORD_BYTES_MAX], id[WORD_BYTES_MAX], line[LINE_BYTES_MAX], when[STAMP_BYTES];
    if (!o->say) return;
    stamp(when);
    shown(iv_exchange_method(x), method, sizeof method);
    shown(iv_exchange_path(x), path, sizeof path);
    shown(iv_exchange_id(x), id, sizeof id);
    if (o->log_json) {
        say_json(o, json_pack("{ss ss ss ss ss si sf sI ss}", "time", when, "level", "info", "event", "request",
                              "method", method, "path", path, "status", status, "seconds", seconds, "bytes",
                              (json_int_t)bytes, "id", id));
        return;
    }
    snprintf(line, sizeof line, "%s %s %s %d %zu bytes %.3f s %s", when, method, path, status, bytes, seconds, id);
    o->say(o->user, line);
}
