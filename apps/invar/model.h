/* model.h: from a MODEL operand and engine flags to an open engine.
 *
 * Under mpirun every process runs the same command up to the engine; from there rank 0 continues, and the others serve
 * it and exit. They write nothing to standard output. */
#ifndef INVAR_CLI_MODEL_H
#define INVAR_CLI_MODEL_H

#include "flags.h"

enum { CLI_PATH_BYTES = 4096 };

/* The directory that a MODEL operand means: itself if it is there; else, for a bare name, that name in
 * $INVAR_MODELS, in ../share/invar/models and in ../models seen from this program's file. */
int cli_model_path(const char *name, char out[CLI_PATH_BYTES], iv_error *err);

/* Opens the engine of the MODEL operand and the engine flags, for one request at a time, showing progress. */
int cli_engine_open(const cli_args *args, iv_engine **out, iv_error *err);

/* The same with room for `sequences` at once of up to `tokens` each, where the flags leave that open. */
int cli_engine_open_for(const cli_args *args, size_t sequences, size_t tokens, iv_engine **out, iv_error *err);

/* Opens an engine with these options, showing progress under the name; overwrites options->progress. */
int cli_engine_open_with(iv_engine_options *options, const char *name, iv_engine **out, iv_error *err);

/* That two models are in one directory, of which one was read. Said once, however often it is opened; the functions
 * above say it themselves. */
void cli_warn_of_index(const char *name);

/* What generation_config.json asks for and is not done: a line each. Said once too. */
void cli_warn_of_generation(const char *unapplied);

/* Opens the tokenizer and template of the MODEL operand. */
int cli_textual_open(const cli_args *args, iv_textual **out, iv_error *err);

/* ---- engine flags ------------------------------------------------------------------------------------- */

/* --device, or what the environment says. */
const char *cli_device(const cli_args *args);

/* Where the environment stands for --device: is what it says a device? CLI_USAGE names the variable. */
int cli_device_check(const cli_args *args, iv_error *err);

/* Overwrites the options that were given. Strings point into args. */
void cli_engine_options(const cli_args *args, iv_engine_options *options);

/* ---- the ranks of mpirun ------------------------------------------------------------------------------ */

/* Is this a process of mpirun other than the first? From the environment alone. */
bool cli_is_other_rank(void);

/* Is this one of several processes of mpirun, the first included? */
bool cli_has_other_ranks(void);

/* When something failed rank 0 tells it, and mpirun then ends everybody. Whoever is still here after this pause has to
 * speak up itself: it may have failed alone, or rank 0 may be the one that is lost. */
void cli_let_rank_0_speak(void);

/* Serves until rank 0 closes its engine, which is CLI_SERVED. Closes the engine. */
int cli_serve_rank(iv_engine *engine, iv_error *err);

#endif
