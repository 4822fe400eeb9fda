/* output.h: output to the terminal. Standard output is unbuffered and every failure is detected; a closed reader
 * (EPIPE, as with head) ends a command silently. */
#ifndef INVAR_CLI_OUTPUT_H
#define INVAR_CLI_OUTPUT_H

#include "flags.h"
#include <stdio.h>

/* Writes n bytes to standard output. CLI_FAILED: err gives the reason, or is empty if the reader has closed. */
int cli_out(const char *bytes, size_t n, iv_error *err);

/* The same for model output: on a terminal, control characters except newline and tab are escaped. */
int cli_out_text(const char *bytes, size_t n, iv_error *err);

/* Output that is built in memory and then written as a whole. */
typedef struct cli_buffer {
    FILE *file; /* write here */
    char *data;
    size_t bytes;
} cli_buffer;
int cli_buffer_open(cli_buffer *buffer, iv_error *err);
/* Ends writing: data and bytes are then valid. CLI_FAILED if memory ran out. */
int cli_buffer_end(cli_buffer *buffer, iv_error *err);
int cli_buffer_out(cli_buffer *buffer, iv_error *err); /* end, cli_out, free */
/* The same into a file; "-" is standard output. */
int cli_buffer_write(cli_buffer *buffer, const char *path, iv_error *err);
/* Checks before the work that a file can be written. Its contents stay. */
int cli_check_writable(const char *path, iv_error *err);
void cli_buffer_free(cli_buffer *buffer); /* zeroed or freed pages are fine */

/* Terminal styles, "" without colour: not a terminal, NO_COLOR, TERM=dumb. */
typedef struct cli_style {
    const char *bold, *dim, *red, *plain;
} cli_style;
cli_style cli_style_of(int fd);

/* "invar: MESSAGE" on standard error, one safe line; nothing if the message is empty. */
void cli_print_error(const iv_error *err);

/* A progress bar on standard error, shown only on a terminal and only after 0.3 s. */
typedef struct cli_progress {
    const char *name;
    double started, drawn; /* seconds */
    bool terminal, visible;
} cli_progress;
void cli_progress_start(cli_progress *progress, const char *name);
void cli_progress_step(void *progress, size_t done_bytes, size_t total_bytes);
/* The same for work not counted in bytes: "NAME [###..] 40% 12 of 30 WHAT". `what` may name the current item. */
void cli_progress_count(cli_progress *progress, size_t done, size_t total, const char *what);
void cli_progress_end(cli_progress *progress);

/* "2.6 GB": powers of 1000, three digits. Returns out. */
const char *cli_human_bytes(double bytes, char out[24]);

#endif
