/* input.c: whole files and lines. Invariant: no input from any source exceeds its maximum. */
#include "input.h"
#include "text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int read_all(FILE *file, const char *name, cli_bytes *out, iv_error *err) {
    size_t room = 1 << 16;
    char *data = malloc(room);
    size_t n = 0;
    while (data) {
        n += fread(data + n, 1, room - 1 - n, file);
        if (ferror(file)) {
            free(data);
            return cli_fail(err, CLI_FAILED, "%s: read failed: %s", name, strerror(errno));
        }
        if (n > CLI_INPUT_MAX) {
            free(data);
            return cli_fail(err, CLI_FAILED, "%s: wanted at most %d bytes, found more", name, CLI_INPUT_MAX);
        }
        if (n < room - 1) {
            data[n] = 0;
            *out = (cli_bytes){.data = data, .count = n};
            return CLI_OK;
        }
        room *= 2;
        char *more = realloc(data, room);
        if (!more) free(data);
        data = more;
    }
    return cli_fail(err, CLI_FAILED, "%s: out of memory", name);
}

static void drop_mark(cli_bytes *b) {
    if (b->count < 3 || memcmp(b->data, "\xef\xbb\xbf", 3) != 0) return;
    b->count -= 3;
    memmove(b->data, b->data + 3, b->count + 1);
}

static int check_utf8(const char *name, const cli_bytes *b, iv_error *err) {
    size_t bad;
    if (iv_utf8_valid((const uint8_t *)b->data, b->count, &bad)) return CLI_OK;
    if (b->count >= 2 && (memcmp(b->data, "\xff\xfe", 2) == 0 || memcmp(b->data, "\xfe\xff", 2) == 0))
        return cli_fail(err, CLI_FAILED, "%s: wanted UTF-8, found the byte order mark of UTF-16", name);
    return cli_fail(err, CLI_FAILED, "%s: wanted UTF-8, found byte 0x%02x at offset %zu", name,
                    (unsigned)(unsigned char)b->data[bad], bad);
}

int cli_read_file(const char *path, bool utf8, cli_bytes *out, iv_error *err) {
    bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    struct stat st;
    *out = (cli_bytes){0};
    if (!standard && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return cli_fail(err, CLI_FAILED, "%s: wanted a file, found a directory", path);
    FILE *file = standard ? stdin : fopen(path, "re");
    if (!file) return cli_fail(err, CLI_FAILED, "%s: cannot open: %s", path, strerror(errno));
    int code = read_all(file, name, out, err);
    if (!standard) fclose(file);
    if (code != CLI_OK) return code;
    drop_mark(out);
    if (utf8) code = check_utf8(name, out, err);
    if (code == CLI_OK) return code;
    free(out->data);
    *out = (cli_bytes){0};
    return code;
}

bool cli_next_line(cli_lines *l) {
    while (l->at < l->text.count) {
        const char *line = l->text.data + l->at, *end = memchr(line, '\n', l->text.count - l->at);
        size_t n = end ? (size_t)(end - line) : l->text.count - l->at;
        l->at += n + 1;
        l->number++;
        l->line = line, l->line_bytes = n;
        if (strspn(line, " \t\r") < n) return true;
    }
    return false;
}

int cli_read_ids(const char *list, int32_t **out, size_t *count, iv_error *err) {
    *out = NULL;
    int code = cli_parse_ids(list, NULL, count, err);
    if (code != CLI_OK) return code;
    *out = calloc(*count, sizeof **out);
    return *out ? cli_parse_ids(list, *out, count, err) : cli_fail(err, CLI_FAILED, "out of memory");
}

cli_line cli_read_line(FILE *file, cli_bytes *out) {
    size_t n = 0, room = 256;
    bool too_long = false;
    char *data = malloc(room);
    if (!data) return CLI_LINE_FAILED;
    int c;
    while ((c = getc(file)) != EOF && c != '\n') {
        if (n == CLI_MESSAGE_MAX) too_long = true;
        if (too_long) continue;
        if (n + 2 > room) {
            char *more = realloc(data, room *= 2);
            if (!more) {
                free(data);
                return CLI_LINE_FAILED;
            }
            data = more;
        }
        data[n++] = (char)c;
    }
    cli_line came = CLI_LINE;
    if (too_long)
        came = CLI_LINE_TOO_LONG;
    else if (c == EOF && ferror(file))
        came = errno == EINTR ? CLI_LINE_INTERRUPTED : CLI_LINE_FAILED;
    else if (c == EOF && n == 0)
        came = CLI_LINE_END;
    clearerr(file);
    if (came != CLI_LINE) {
        free(data);
        return came;
    }
    data[n] = 0;
    *out = (cli_bytes){.data = data, .count = n};
    return CLI_LINE;
}
