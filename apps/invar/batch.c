/* batch.c: invar batch: flags to a batch's options, its progress to a terminal. */
#include "commands.h"
#include "engine_flags.h"
#include "interrupt.h"
#include "model.h"
#include "output.h"
#include "rank.h"
#include "serve/batch.h"
#include "text.h"

#include <stdio.h>

static void show(void *user, size_t done, size_t total) { cli_progress_count(user, done, total, "lines"); }

static bool interrupted(void *user) {
    (void)user;
    return cli_interrupt_caught() != 0;
}

static void say_counts(const iv_batch_counts *c) {
    fprintf(stderr, "batch: %zu lines: %zu answered before, %zu answered now, %zu refused%s\n", c->lines, c->kept,
            c->answered, c->refused, c->stopped ? "; interrupted: the same command goes on" : "");
}

static int read_options(const cli_args *args, iv_batch_options *o, iv_error *err) {
    o->input = cli_text(args, "input", NULL);
    o->output = cli_text(args, "output", NULL);
    o->tool_call_parser = cli_text(args, "tool-call-parser", NULL);
    o->served_model_name = cli_text(args, "served-model-name", NULL);
    if (o->served_model_name && !*o->served_model_name)
        return cli_fail(err, CLI_USAGE, "--served-model-name: wanted a name, found nothing");
    if (!o->input) return cli_fail(err, CLI_USAGE, "--input: wanted a file of requests, found nothing");
    if (!o->output) return cli_fail(err, CLI_USAGE, "--output: wanted a file for the answers, found nothing");
    iv_engine_options_init(&o->bridge.engine);
    cli_engine_options(args, &o->bridge.engine);
    return CLI_OK;
}

int cli_batch(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_batch_options o = {0};
    iv_batch_counts counts;
    cli_interrupt before;
    cli_progress progress;
    int code = read_options(args, &o, err);
    if (code == CLI_OK) code = cli_model_path(args->operands[0], path, err);
    if (code != CLI_OK) return code;
    cli_progress_start(&progress, args->operands[0]);
    o.bridge.engine.model = path;
    o.bridge.engine.progress = cli_progress_step, o.bridge.engine.user = &progress;
    o.progress = show, o.stop = interrupted, o.user = &progress;
    cli_interrupt_watch(&before);
    iv_status status = iv_batch_run(&o, &counts, err);
    int caught = cli_interrupt_caught();
    cli_interrupt_unwatch(&before);
    cli_progress_end(&progress);
    if (counts.index_unread) cli_warn_of_index(args->operands[0]);
    if (counts.other_rank) return status == IV_OK ? CLI_SERVED : CLI_FAILED;
    if (status != IV_OK) return caught ? 128 + caught : CLI_FAILED; /* perhaps while standard input was read */
    if (!cli_is_other_rank()) say_counts(&counts);
    return counts.stopped ? 128 + caught : CLI_OK;
}
