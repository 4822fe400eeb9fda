/* calibration.h: the texts of --calibrate, as token ids. */
#ifndef INVAR_CLI_CALIBRATION_H
#define INVAR_CLI_CALIBRATION_H

#include "flags.h"

typedef struct cli_calibration {
    iv_ids *texts;
    size_t count, tokens, cut; /* cut: texts of which only the beginning is taken */
} cli_calibration;

/* Reads the first `lines` lines of a file, of each at most `longest` tokens. A line is an object with `text`, `ids`,
 * `messages` (rendered by the chat template), or `prompt` (also `question`, `problem`) and perhaps `completion` (also
 * `answer`), which are texts or, the prompt and the completion, lists of messages; other members are not read.
 * CLI_FAILED names the line. */
int cli_calibration_read(const iv_text_model *t, const char *path, size_t lines, size_t longest, cli_calibration *out,
                         iv_error *err);
void cli_calibration_free(cli_calibration *c);

#endif
