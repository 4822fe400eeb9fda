/* syntax.h: what every command accepts, as data. */
#ifndef INVAR_CLI_SYNTAX_H
#define INVAR_CLI_SYNTAX_H

#include "flags.h"

extern const cli_syntax cli_generate_syntax, cli_chat_syntax, cli_inspect_syntax, cli_tokenize_syntax,
    cli_render_syntax, cli_logits_syntax, cli_bench_syntax, cli_verify_syntax, cli_completion_syntax, cli_help_syntax,
    cli_eval_syntax, cli_replay_syntax, cli_serve_syntax, cli_batch_syntax, cli_bench_serve_syntax,
    cli_bench_latency_syntax;

/* Sections that several commands share. */
extern const cli_section cli_sampling_section, cli_stopping_section;

/* All of them in the order of help, ending with NULL. */
extern const cli_syntax *const cli_syntaxes[];

/* By name; NULL if there is none. */
const cli_syntax *cli_syntax_find(const char *name);

/* "did you mean X?" behind an unknown command, or NULL. */
const char *cli_syntax_nearest(const char *name);

#endif
