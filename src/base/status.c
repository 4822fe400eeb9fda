/* status.c: building error lines that are safe to print. */
#include "base/status.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *iv_status_name(iv_status status) {
    static const char *const names[] = {"ok",    "invalid",   "not_found", "io",       "format",         "unsupported",
                                        "limit", "no_memory", "busy",      "template", "context_length", "format"};
    size_t i = (size_t)status;
    return i < sizeof names / sizeof *names ? names[i] : "unknown";
}

/* Copies src to dst (capacity n) and escapes bytes that could break a line or control a terminal. */
static void copy_printable(char *dst, size_t n, const char *src) {
    size_t len = strlen(src), out = 0;
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)src[i];
        size_t take = iv_utf8_length((const uint8_t *)src + i, len - i);
        bool plain = take > 0 && c >= 0x20 && c != 0x7f && !(c == 0xc2 && (unsigned char)src[i + 1] < 0xa0);
        if (!plain) take = 1;
        if (out + (plain ? take : 4) + 1 > n) break;
        if (plain)
            memcpy(dst + out, src + i, take), out += take;
        else
            out += (size_t)snprintf(dst + out, n - out, "\\x%02x", c);
        i += take;
    }
    dst[out] = 0;
}

iv_status iv_fail(iv_error *err, iv_status status, const char *fmt, ...) {
    char raw[sizeof err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(raw, sizeof raw, fmt, args);
    va_end(args);
    err->status = status;
    copy_printable(err->message, sizeof err->message, raw);
    return status;
}

iv_status iv_error_prefix(iv_error *err, const char *fmt, ...) {
    char prefix[sizeof err->message], tail[sizeof err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    memcpy(tail, err->message, sizeof tail);
    return iv_fail(err, err->status, "%.480s: %.500s", prefix, tail);
}

_Noreturn void iv_assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "invar: %s:%d: assertion failed: %s\n", file, line, what);
    abort();
}
