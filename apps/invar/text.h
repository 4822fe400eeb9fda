/* text.h: small string helpers: safe display of external bytes, the nearest word, errors. */
#ifndef INVAR_CLI_TEXT_H
#define INVAR_CLI_TEXT_H

#include "base/utf8.h"
#include "invar.h"
#include <stdio.h>
#include <string.h>

/* Writes s with printable characters only: control characters (C0, DEL, C1) and bytes that are not UTF-8 appear as
 * \xNN. Newline and tab pass if keep_layout. */
void cli_print_safe(FILE *out, const char *s, size_t n, bool keep_layout);

/* s, truncated at a character boundary with "..." if it is long. Returns out. */
enum { CLI_SHOWN_BYTES = 72 };
const char *cli_shown(const char *s, char out[CLI_SHOWN_BYTES]);

/* Whether a path names a GGUF file that is to be written. */
static inline bool cli_is_gguf(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* Edit distance of two words, of which at most 40 bytes are compared. */
size_t cli_word_distance(const char *a, const char *b);
/* Whether the distance is small enough to suggest the word. */
bool cli_is_near(size_t distance, const char *word);

/* Fills *err (status IV_INVALID) and returns code, so that a failure is one line. */
int cli_fail(iv_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
