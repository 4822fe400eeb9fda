/* text.c: safe printing, edit distance. Invariant: nothing here reads past the length it was given. */
#include "text.h"

#include <stdarg.h>
#include <string.h>

void cli_print_safe(FILE *out, const char *s, size_t n, bool keep_layout) {
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t length = iv_utf8_length((const uint8_t *)s + i, n - i);
        bool layout = keep_layout && (c == '\n' || c == '\t');
        bool control = c < 0x20 || c == 0x7f || (c == 0xc2 && length == 2 && (unsigned char)s[i + 1] < 0xa0);
        if (length > 0 && (layout || !control)) {
            fwrite(s + i, 1, length, out);
            i += length;
        } else {
            fprintf(out, "\\x%02x", c);
            i++;
        }
    }
}

const char *cli_shown(const char *s, char out[CLI_SHOWN_BYTES]) {
    size_t n = strlen(s), keep = 0;
    if (n < CLI_SHOWN_BYTES) return memcpy(out, s, n + 1);
    while (keep < CLI_SHOWN_BYTES - 8) {
        size_t length = iv_utf8_length((const uint8_t *)s + keep, n - keep);
        keep += length ? length : 1;
    }
    memcpy(out, s, keep);
    memcpy(out + keep, "...", 4);
    return out;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

size_t cli_word_distance(const char *a, const char *b) {
    enum { WORD_MAX = 40 };
    size_t n = strnlen(a, WORD_MAX), m = strnlen(b, WORD_MAX);
    size_t row[WORD_MAX + 1];
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(change, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

bool cli_is_near(size_t distance, const char *word) { return distance <= 1 + strlen(word) / 4; }

int cli_fail(iv_error *err, int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    err->status = IV_INVALID;
    return code;
}
