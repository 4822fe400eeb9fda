/* output.c: standard output, styles, error lines, the progress bar. Invariant: external bytes reach a terminal only
 * through cli_print_safe. */
#include "output.h"
#include "base/clock.h"
#include "text.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int cli_out(const char *bytes, size_t n, iv_error *err) {
    while (n > 0) {
        ssize_t wrote = write(STDOUT_FILENO, bytes, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0 && errno == EAGAIN) {
            struct pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT};
            poll(&ready, 1, -1);
            continue;
        }
        if (wrote < 0 && errno == EPIPE) return cli_fail(err, CLI_FAILED, "%s", "");
        if (wrote < 0) return cli_fail(err, CLI_FAILED, "standard output: %s", strerror(errno));
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return CLI_OK;
}

int cli_out_text(const char *bytes, size_t n, iv_error *err) {
    if (!isatty(STDOUT_FILENO)) return cli_out(bytes, n, err);
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    cli_print_safe(buffer.file, bytes, n, true);
    return cli_buffer_out(&buffer, err);
}

int cli_buffer_open(cli_buffer *buffer, iv_error *err) {
    *buffer = (cli_buffer){0};
    buffer->file = open_memstream(&buffer->data, &buffer->bytes);
    return buffer->file ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

int cli_buffer_end(cli_buffer *buffer, iv_error *err) {
    bool bad = ferror(buffer->file) != 0;
    bad |= fclose(buffer->file) != 0;
    buffer->file = NULL;
    return bad ? cli_fail(err, CLI_FAILED, "out of memory") : CLI_OK;
}

int cli_buffer_out(cli_buffer *buffer, iv_error *err) {
    int code = cli_buffer_end(buffer, err);
    if (code == CLI_OK) code = cli_out(buffer->data, buffer->bytes, err);
    cli_buffer_free(buffer);
    return code;
}

/* The file to replace: a symbolic link stays, its target is replaced. NULL: out of memory. */
static char *target_of(const char *path) {
    char *target = realpath(path, NULL);
    return target ? target : strdup(path);
}

static bool put_file(const cli_buffer *buffer, const char *path) {
    FILE *file = fopen(path, "we");
    bool good = file && fwrite(buffer->data, 1, buffer->bytes, file) == buffer->bytes;
    if (file) good &= fclose(file) == 0;
    return good;
}

/* A file is replaced only after it is completely written, so that a full disk preserves the old one. A device, a pipe,
 * or a file in a read-only directory is written in place. errno gives the reason of a failure. */
static bool replace_file(const cli_buffer *buffer, const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return put_file(buffer, path);
    char *target = target_of(path), *part = NULL;
    if (!target || asprintf(&part, "%s.tmp.%ld", target, (long)getpid()) < 0) part = NULL;
    bool good = part && put_file(buffer, part) && rename(part, target) == 0;
    int why = errno;
    if (part && !good) unlink(part);
    free(part), free(target);
    errno = why;
    return good || (why == EACCES && put_file(buffer, path));
}

int cli_buffer_write(cli_buffer *buffer, const char *path, iv_error *err) {
    if (strcmp(path, "-") == 0) return cli_buffer_out(buffer, err);
    int code = cli_buffer_end(buffer, err);
    if (code == CLI_OK && !replace_file(buffer, path))
        code = cli_fail(err, CLI_FAILED, "%.800s: cannot write: %s", path, strerror(errno));
    cli_buffer_free(buffer);
    return code;
}

int cli_check_writable(const char *path, iv_error *err) {
    struct stat st;
    if (!path || strcmp(path, "-") == 0) return CLI_OK;
    bool ours = lstat(path, &st) != 0;
    FILE *file = fopen(path, "ae");
    if (!file) return cli_fail(err, CLI_FAILED, "%.800s: cannot write: %s", path, strerror(errno));
    fclose(file);
    if (ours) unlink(path);
    return CLI_OK;
}

void cli_buffer_free(cli_buffer *buffer) {
    if (buffer->file) fclose(buffer->file);
    free(buffer->data);
    *buffer = (cli_buffer){0};
}

cli_style cli_style_of(int fd) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    if (!isatty(fd) || (none && *none) || !term || strcmp(term, "dumb") == 0) return (cli_style){"", "", "", ""};
    return (cli_style){.bold = "\033[1m", .dim = "\033[2m", .red = "\033[31m", .plain = "\033[0m"};
}

void cli_print_error(const iv_error *err) {
    cli_buffer buffer; /* so that the line is one write: ranks share standard error */
    iv_error unused;
    if (!err->message[0]) return;
    cli_style style = cli_style_of(STDERR_FILENO);
    if (cli_buffer_open(&buffer, &unused) == CLI_OK) {
        fprintf(buffer.file, "%sinvar:%s ", style.red, style.plain);
        cli_print_safe(buffer.file, err->message, strlen(err->message), false);
        fputc('\n', buffer.file);
    }
    if (buffer.file && cli_buffer_end(&buffer, &unused) == CLI_OK)
        fwrite(buffer.data, 1, buffer.bytes, stderr);
    else
        fputs("invar: out of memory\n", stderr);
    cli_buffer_free(&buffer);
}

const char *cli_human_bytes(double bytes, char out[24]) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof units / sizeof *units) bytes /= 1000, unit++;
    snprintf(out, 24,
             unit == 0 || bytes >= 99.95 ? "%.0f %s"
             : bytes >= 9.995            ? "%.1f %s"
                                         : "%.2f %s",
             bytes, units[unit]);
    return out;
}

void cli_progress_start(cli_progress *progress, const char *name) {
    double now = iv_now();
    *progress = (cli_progress){.name = name, .started = now, .terminal = isatty(STDERR_FILENO) != 0};
}

/* Disable line wrap around the bar: a wrapped line could not be redrawn. */
#define LINE_BEGINS "\r\033[K\033[?7l"
#define LINE_ENDS "\033[?7h"

/* Draws the bar up to the percentage; false if no update is due. */
static bool draw_bar(cli_progress *progress, size_t done, size_t total) {
    if (!progress->terminal || total == 0) return false;
    double now = iv_now(), part = (double)done / (double)total;
    if (now - progress->started < 0.3 || now - progress->drawn < 0.05) return false;
    progress->drawn = now;
    progress->visible = true;
    char bar[21], name[CLI_SHOWN_BYTES];
    for (size_t i = 0; i < 20; i++) bar[i] = (double)i < 20 * part ? '#' : '.';
    bar[20] = 0;
    fputs(LINE_BEGINS, stderr);
    cli_shown(progress->name, name);
    cli_print_safe(stderr, name, strlen(name), false);
    fprintf(stderr, " [%s] %3.0f%% ", bar, 100 * part);
    return true;
}

void cli_progress_step(void *user, size_t done_bytes, size_t total_bytes) {
    cli_progress *progress = user;
    if (!draw_bar(progress, done_bytes, total_bytes)) return;
    char done[24], total[24], rate[24];
    fprintf(stderr, "%s of %s, %s/s" LINE_ENDS, cli_human_bytes((double)done_bytes, done),
            cli_human_bytes((double)total_bytes, total),
            cli_human_bytes((double)done_bytes / (progress->drawn - progress->started), rate));
    fflush(stderr);
}

void cli_progress_count(cli_progress *progress, size_t done, size_t total, const char *what) {
    if (!draw_bar(progress, done, total)) return;
    char shown[CLI_SHOWN_BYTES];
    cli_shown(what, shown);
    fprintf(stderr, "%zu of %zu ", done, total);
    cli_print_safe(stderr, shown, strlen(shown), false);
    fputs(LINE_ENDS, stderr);
    fflush(stderr);
}

void cli_progress_end(cli_progress *progress) {
    if (progress->visible) fputs("\r\033[K", stderr);
    progress->visible = false;
}
