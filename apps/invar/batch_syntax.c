/* batch_syntax.c: the flags of invar batch. */
#include "engine_flags.h"
#include "syntax.h"

static const cli_flag batch_flags[] = {{.name = "input",
                                        .kind = CLI_FILE,
                                        .letter = 'i',
                                        .metavar = "FILE",
                                        .help = "the requests, one a line; - is standard input"},
                                       {.name = "output",
                                        .kind = CLI_FILE,
                                        .letter = 'o',
                                        .metavar = "FILE",
                                        .help = "the answers, in the same order; - is standard output"},
                                       {.name = "served-model-name",
                                        .kind = CLI_TEXT,
                                        .metavar = "NAME",
                                        .unset = "the directory's",
                                        .help = "what requests call the model"},
                                       {.name = "tool-call-parser",
                                        .kind = CLI_CHOICE,
                                        .metavar = "NAME",
                                        .choices = "auto hermes llama3_json mistral qwen3_coder qwen3_xml none",
                                        .unset = "auto: as its chat template writes them",
                                        .help = "the form in which the model calls tools"},
                                       {0}};
static const cli_section batch_section = {"Batch", batch_flags};

static const cli_example batch_examples[] = {
    {"invar batch tiny-math -i requests.jsonl -o answers.jsonl", "a file of requests to a file of answers"},
    {"make_requests | invar batch tiny-math -i - -o - | read_answers", "between two programs"},
    {0}};

const cli_syntax cli_batch_syntax = {
    .name = "batch",
    .group = "Run a model",
    .summary = "answer a file of API requests, without a server",
    .operand = "MODEL",
    .usage = "MODEL -i FILE -o FILE [flags]",
    .text =
        "The files are those of OpenAI's batch API: /v1/chat/completions, /v1/completions and /v1/responses. What is\n"
        "wrong with a line is its answer. The same command again goes on where an earlier one was ended.",
    .sections = {&batch_section, &cli_engine_section},
    .examples = batch_examples};
