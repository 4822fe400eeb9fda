/* text.h: small string work: showing foreign bytes safely, the nearest word, errors. */
#ifndef INVAR_CLI_TEXT_H
#define INVAR_CLI_TEXT_H

#include "base/utf8.h"
#include "invar.h"
#include <stdio.h>

/* Writes s so that a terminal only ever sees printable characters: control characters (C0, DEL, C1) and bytes
 * that are not UTF-8 appear as \xNN. Newline and tab pass if keep_layout. */
void cli_print_safe(FILE *out, const char *s, size_t n, bool keep_layout);

/* s, cut to whole characters with "..." if it is long. Returns out. */
enum { CLI_SHOWN_BYTES = 72 };
const char *cli_shown(const char *s, char out[CLI_SHOWN_BYTES]);

/* How alike two words are; smaller is nearer. At most 40 bytes of each are looked at. */
size_t cli_word_distance(const char *a, const char *b);
/* Whether a distance is near enough to suggest the word. */
bool cli_is_near(size_t distance, const char *word);

/* Fills *err (status IV_INVALID) and returns code, so that a failure is one line. */
int cli_fail(iv_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
