/* commands.h: the commands: what each does, and what each accepts, as data (syntax.c). A command returns an exit code:
 * CLI_OK, CLI_FAILED or CLI_USAGE with err filled, or 128 + n after signal n. Commands print no errors. */
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
int cli_export(const cli_args *args, iv_error *err);
int cli_quantize(const cli_args *args, iv_error *err);
int cli_bench(const cli_args *args, iv_error *err);
int cli_bench_serve(const cli_args *args, iv_error *err);
int cli_bench_latency(const cli_args *args, iv_error *err);
int cli_verify(const cli_args *args, iv_error *err);
int cli_eval(const cli_args *args, iv_error *err);
int cli_replay(const cli_args *args, iv_error *err);
int cli_train_sft(const cli_args *args, iv_error *err);
int cli_train_rl(const cli_args *args, iv_error *err);
int cli_train_inspect(const cli_args *args, iv_error *err);
int cli_train_gradients(const cli_args *args, iv_error *err);
int cli_completion(const cli_args *args, iv_error *err);
int cli_help(const cli_args *args, iv_error *err);

/* Prints the help of one command, or with NULL of the whole program, on standard output. */
int cli_help_show(const cli_syntax *syntax, iv_error *err);

/* The commands of two words that begin with this one: prints them. False: there are none. */
bool cli_help_has_pairs(const char *first);
int cli_help_show_pairs(const char *first, iv_error *err);

/* ---- what they accept ---------------------------------------------------------------------------------- */

extern const cli_syntax cli_generate_syntax, cli_chat_syntax, cli_inspect_syntax, cli_tokenize_syntax,
    cli_render_syntax, cli_logits_syntax, cli_bench_syntax, cli_verify_syntax, cli_completion_syntax, cli_help_syntax,
    cli_eval_syntax, cli_replay_syntax, cli_serve_syntax, cli_batch_syntax, cli_bench_serve_syntax,
    cli_bench_latency_syntax, cli_export_syntax, cli_quantize_syntax, cli_train_sft_syntax, cli_train_rl_syntax,
    cli_train_inspect_syntax, cli_train_gradients_syntax;

/* The flags of an engine. */
extern const cli_section cli_engine_section;

/* The flags of verify for --train (train_syntax.c). */
extern const cli_section cli_verify_train_section;

/* All of them in the order of help, ending with NULL. */
extern const cli_syntax *const cli_syntaxes[];

/* By name; NULL if there is none. */
const cli_syntax *cli_syntax_find(const char *name);

/* "did you mean X?" for an unknown command, or NULL. */
const char *cli_syntax_nearest(const char *name);

#endif
