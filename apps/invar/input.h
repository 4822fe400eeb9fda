/* input.h: bytes from files and standard input, with a named maximum. */
#ifndef INVAR_CLI_INPUT_H
#define INVAR_CLI_INPUT_H

#include "flags.h"
#include <stdio.h>

enum {
    CLI_INPUT_MAX = 64 << 20,  /* bytes of a prompt, text or JSON file */
    CLI_MESSAGE_MAX = 1 << 20, /* bytes of one chat message */
};

typedef struct cli_bytes {
    char *data; /* NUL-terminated; free() */
    size_t count;
} cli_bytes;

/* Reads a whole file, or standard input for "-", and drops a leading byte order mark (Windows editors write one).
 * CLI_FAILED names the path: missing, a directory, over CLI_INPUT_MAX, or, with utf8, the first invalid byte. */
int cli_read_file(const char *path, bool utf8, cli_bytes *out, iv_error *err);

/* Iterates over the nonblank lines of a text. Initialize with {.text = the text} and zeros. */
typedef struct cli_lines {
    cli_bytes text;   /* borrowed */
    size_t at;        /* offset of the next line */
    size_t number;    /* of the current line, from 1 */
    const char *line; /* the current one, without its end; not NUL-terminated */
    size_t line_bytes;
} cli_lines;

/* Goes to the next line; false at the end. */
bool cli_next_line(cli_lines *lines);

/* The ids of a list such as 1,2,3. The caller frees *out. CLI_USAGE as cli_parse_ids. */
int cli_read_ids(const char *list, int32_t **out, size_t *count, iv_error *err);

typedef enum cli_line {
    CLI_LINE,
    CLI_LINE_END,         /* end of input */
    CLI_LINE_INTERRUPTED, /* a signal came first */
    CLI_LINE_TOO_LONG,    /* over CLI_MESSAGE_MAX; the rest of the line was skipped */
    CLI_LINE_FAILED       /* reading failed, or memory ran out */
} cli_line;

/* Reads a line without its end. On CLI_LINE the caller owns out->data. */
cli_line cli_read_line(FILE *file, cli_bytes *out);

#endif
