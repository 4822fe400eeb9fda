/* lora.h: flags about adapters of low rank. */
#ifndef INVAR_CLI_LORA_H
#define INVAR_CLI_LORA_H

#include "flags.h"

enum { CLI_LORA_NAME_BYTES = 256, CLI_LORAS_MAX = 64 };

/* One adapter of the command line: NAME=DIR, DIR (its name is DIR's last part), or an object as vLLM has it:
 * {"name": NAME, "path": DIR, "base_model_name": NAME or null}. */
typedef struct cli_lora {
    char name[CLI_LORA_NAME_BYTES];
    const char *path; /* in a buffer that lives as long as the program, as the next */
    const char *base; /* of an object: "base_model_name"; NULL: none */
} cli_lora;

/* The n-th one; false after the last. A value that cannot be read is CLI_USAGE in *code. */
bool cli_lora_nth(const cli_args *args, size_t n, cli_lora *out, int *code, iv_error *err);

/* max_loras and max_lora_rank: without flags about a number, as many as are loaded; with --enable-lora 4 at least. */
void cli_lora_options(const cli_args *args, iv_engine_options *o);

/* CLI_USAGE: more are named than may be loaded, or a name occurs twice. */
int cli_lora_check(const cli_args *args, const iv_engine_options *o, iv_error *err);

/* Loads them all. */
int cli_lora_load(const cli_args *args, iv_engine *engine, iv_error *err);

/* The name of --lora, for requests; NULL: none was given. It lives until the next call. */
const char *cli_lora_name(const cli_args *args);

/* Of answers with the adapter, instead of the engine's. adapter NULL: nothing changes. */
void cli_lora_fingerprint(const iv_engine *engine, const char *adapter, iv_engine_info *info);

#endif
