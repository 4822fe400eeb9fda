/* commands.h: what each command does. Each returns an exit code: CLI_OK, CLI_FAILED or CLI_USAGE with err
 * filled, or 128 + n when signal n ended it. None of them prints errors. */
#ifndef INVAR_CLI_COMMANDS_H
#define INVAR_CLI_COMMANDS_H

#include "flags.h"

int cli_generate(const cli_args *args, iv_error *err);
int cli_chat(const cli_args *args, iv_error *err);
int cli_serve(const cli_args *args, iv_error *err);
int cli_batch(const cli_args *args, iv_error *err);
int cli_inspect(const cli_args *args, iv_error *err);
int cli_tokenize(const cli_args *args, iv_error *err);
int cli_render(const cli_args *args, iv_error *err);
int cli_logits(const cli_args *args, iv_error *err);
int cli_bench(const cli_args *args, iv_error *err);
int cli_bench_serve(const cli_args *args, iv_error *err);
int cli_bench_latency(const cli_args *args, iv_error *err);
int cli_verify(const cli_args *args, iv_error *err);
int cli_eval(const cli_args *args, iv_error *err);
int cli_replay(const cli_args *args, iv_error *err);
int cli_completion(const cli_args *args, iv_error *err);
int cli_help(const cli_args *args, iv_error *err);

/* The page of one command, or with NULL of the whole program, on standard output. */
int cli_help_show(const cli_syntax *syntax, iv_error *err);

#endif
