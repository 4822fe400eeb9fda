/* output.h: what reaches the terminal. Standard output is written unbuffered and every failure is seen: a
 * reader that went away (EPIPE) ends a command quietly, as it does with head. */
#ifndef INVAR_CLI_OUTPUT_H
#define INVAR_CLI_OUTPUT_H

#include "flags.h"
#include <stdio.h>

/* Writes n bytes to standard output. CLI_FAILED: err says why, or is empty when the reader has gone. */
int cli_out(const char *bytes, size_t n, iv_error *err);

/* The same for a model's text: on a terminal, control characters other than newline and tab are made visible.
 */
int cli_out_text(const char *bytes, size_t n, iv_error *err);

/* A page is built in memory and then written as a whole. */
typedef struct cli_page {
    FILE *file; /* write here */
    char *data;
    size_t bytes;
} cli_page;
int cli_page_open(cli_page *page, iv_error *err);
/* Ends writing: data and bytes are then good. CLI_FAILED if memory ran out. */
int cli_page_end(cli_page *page, iv_error *err);
int cli_page_out(cli_page *page, iv_error *err); /* end, cli_out, free */
/* The same into a file; "-" is standard output. */
int cli_page_write(cli_page *page, const char *path, iv_error *err);
/* A file that cannot be written shows before the work begins. What it holds stays. */
int cli_check_writable(const char *path, iv_error *err);
void cli_page_free(cli_page *page); /* zeroed or freed pages are fine */

/* Terminal styles, "" where colour is not wanted: not a terminal, NO_COLOR, TERM=dumb. */
typedef struct cli_style {
    const char *bold, *dim, *red, *plain;
} cli_style;
cli_style cli_style_of(int fd);

/* "invar: MESSAGE" on standard error, one safe line; nothing when the message is empty. */
void cli_complain(const iv_error *err);

/* A progress bar on standard error, shown only on a terminal and only after 0.3 s. */
typedef struct cli_progress {
    const char *name;
    double started, drawn; /* seconds */
    bool terminal, visible;
} cli_progress;
void cli_progress_start(cli_progress *progress, const char *name);
void cli_progress_step(void *progress, size_t done_bytes, size_t total_bytes);
/* The same for work that is not bytes: "NAME [###..] 40% 12 of 30 WHAT". what may name what is under way. */
void cli_progress_count(cli_progress *progress, size_t done, size_t total, const char *what);
void cli_progress_end(cli_progress *progress);

double cli_seconds(void); /* a monotonic clock */

/* "2.6 GB": powers of 1000, three digits. Returns out. */
const char *cli_human_bytes(double bytes, char out[24]);

#endif
