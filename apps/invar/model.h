/* model.h: from a MODEL operand and engine flags to an open engine.
 *
 * Under mpirun every process runs the same command up to the engine; from there rank 0 continues, and the others serve
 * it and exit. They write nothing to standard output. */
#ifndef INVAR_CLI_MODEL_H
#define INVAR_CLI_MODEL_H

#include "flags.h"

enum { CLI_PATH_BYTES = 4096 };

/* The directory of a MODEL operand: the operand itself if it is a directory; otherwise, for a bare name, that name in
 * $INVAR_MODELS, ../share/invar/models and ../models, relative to this program's file. */
int cli_model_path(const char *name, char out[CLI_PATH_BYTES], iv_error *err);

/* Opens the engine of the MODEL operand with the engine flags, for one request at a time, showing progress; with the
 * adapters of its flags loaded. */
int cli_engine_open(const cli_args *args, iv_engine **out, iv_error *err);

/* The same for `sequences` concurrent requests of up to `tokens` each, unless flags set these limits. */
int cli_engine_open_for(const cli_args *args, size_t sequences, size_t tokens, iv_engine **out, iv_error *err);

/* Opens an engine with these options, showing progress under the name; overwrites options->progress. */
int cli_engine_open_with(iv_engine_options *options, const char *name, iv_engine **out, iv_error *err);

/* Warns that a directory holds two models, of which one was read. Printed once per process; the functions above call it
 * themselves. */
void cli_warn_of_index(const char *name);

/* Warns of settings in generation_config.json that are not applied, one per line. Printed once per process. */
void cli_warn_of_generation(const char *unapplied);

/* Opens the tokenizer and template of the MODEL operand. */
int cli_text_model_open(const cli_args *args, iv_text_model **out, iv_error *err);

/* ---- engine flags -------------------------------------------------------------------------------------- */

/* --device, or $INVAR_DEVICE. */
const char *cli_device(const cli_args *args);

/* Checks $INVAR_DEVICE where it replaces --device. CLI_USAGE names the variable. */
int cli_device_check(const cli_args *args, iv_error *err);

/* Overwrites the options that were given. Strings point into args. */
void cli_engine_options(const cli_args *args, iv_engine_options *options);

/* ---- the ranks of mpirun ------------------------------------------------------------------------------- */

/* Whether mpirun started this process with a rank other than 0. Looks at the environment only. */
bool cli_is_other_rank(void);

/* Whether mpirun started several processes, this one included. */
bool cli_has_other_ranks(void);

/* After a failure rank 0 prints the error, and mpirun ends all processes. A rank that is still running after this pause
 * prints its own error: it may have failed alone, or rank 0 may be lost. */
void cli_wait_for_rank_0(void);

#endif
