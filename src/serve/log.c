/* log.c: a line is built on the stack, escaped and handed to the sink. */
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

/* UTF-8 without control characters: "?" for those of ASCII, \\xNN for others and for what is not UTF-8. */
static void make_printable(const char *text, char *out, size_t room) {
    size_t n = 0;
    for (size_t left = strlen(text); left && n + 5 < room;) {
        const uint8_t *at = (const uint8_t *)text;
        size_t length = iv_utf8_length(at, left);
        bool c1 = length == 2 && at[0] == 0xc2 && at[1] < 0xa0;
        if (length == 0 || c1) {
            n += (size_t)snprintf(out + n, room - n, "\\x%02x", at[0]);
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

static void say_json(const iv_log_sink *to, json_t *line) {
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL; /* of a clock of microseconds */
    if (text) to->say(to->user, text);
    free(text);
    json_decref(line);
}

void iv_log(const iv_log_sink *to, const char *level, const char *event, const char *fmt, ...) {
    char message[LINE_BYTES_MAX], line[LINE_BYTES_MAX + 256], when[STAMP_BYTES];
    va_list args;
    if (!to->say) return;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    stamp(when);
    if (to->json) {
        size_t unused;
        bool good = iv_utf8_valid((const uint8_t *)message, strlen(message), &unused); /* a path may be anything */
        say_json(to, json_pack("{ss ss ss ss}", "time", when, "level", level, "event", event, "message",
                               good ? message : shown(message, line, sizeof line)));
        return;
    }
    bool plain = strcmp(level, "info") == 0;
    int head = snprintf(line, sizeof line, "%s %s%s", when, plain ? "" : level, plain ? "" : ": ");
    make_printable(message, line + head, sizeof line - (size_t)head);
    to->say(to->user, line);
}

void iv_log_http_request(const iv_log_sink *to, const iv_http_request *x, int status, double seconds, size_t bytes) {
    char method[WORD_BYTES_MAX], path[WORD_BYTES_MAX], id[WORD_BYTES_MAX], line[LINE_BYTES_MAX], when[STAMP_BYTES];
    if (!to->say) return;
    stamp(when);
    shown(iv_http_request_method(x), method, sizeof method);
    shown(iv_http_request_path(x), path, sizeof path);
    shown(iv_http_request_id(x), id, sizeof id);
    if (to->json) {
        say_json(to, json_pack("{ss ss ss ss ss si sf sI ss}", "time", when, "level", "info", "event", "request",
                               "method", method, "path", path, "status", status, "seconds", seconds, "bytes",
                               (json_int_t)bytes, "id", id));
        return;
    }
    snprintf(line, sizeof line, "%s %s %s %d %zu bytes %.3f s %s", when, method, path, status, bytes, seconds, id);
    to->say(to->user, line);
}
