/* quantize_syntax.c: what invar quantize accepts. */
#include "commands.h"

static const cli_flag quantize_flags[] = {
    {.name = "format",
     .kind = CLI_TEXT,
     .metavar = "NAME",
     .unset = "fp8",
     .help = "fp8, int8 (a scale a row), int4 (groups), mxfp4, nvfp4: as llm-compressor writes them"},
    {.name = "group-size",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 0,
     .greatest = 1048576,
     .unset = "0: 128",
     .help = "int4: columns that share a scale, a multiple of 16"},
    {.name = "text",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .unset = "a sample of English",
     .help = "held-out text for the report, or - for standard input"},
    {.name = "report-tokens",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 0,
     .greatest = 1048576,
     .unset = "256",
     .help = "tokens of it that are compared, at most; 0: no report"},
    {.name = "calibrate",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .unset = "none",
     .help = "refused: weights are rounded to nearest, without calibration"},
    {.name = "max-shard-size",
     .kind = CLI_BYTES,
     .metavar = "SIZE",
     .least = 1,
     .greatest = INT64_MAX,
     .unset = "5000000000",
     .help = "weights per file, such as 2G; more are split into several, with an index"},
    {.name = "overwrite", .help = "replace the model in DIR"},
    {.name = "threads",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 0,
     .greatest = 256,
     .unset = "0: one per CPU",
     .help = "threads of the report; never changes a bit"},
    {.name = "json", .help = "one JSON object on standard output instead of text"},
    {0},
};
static const cli_section quantize_section = {"Flags", quantize_flags};
static const cli_example quantize_examples[] = {
    {"invar quantize ./model ./model-fp8 --format fp8", "8 bits: half the size"},
    {"invar quantize ./model ./model-int4 --format int4 --group-size 64", "4 bits, a scale for 64 weights"},
    {0}};

const cli_syntax cli_quantize_syntax = {
    .name = "quantize",
    .group = "Look into a model",
    .summary = "write a model with weights of 8 or 4 bits",
    .operand = "MODEL",
    .second = "DIR",
    .usage = "MODEL DIR [flags]",
    .text = "Linear layers are rounded to nearest and written as a Hugging Face directory in compressed-tensors' form, "
            "a few\n"
            "rows at a time. Then both models read held-out text: the report has the sizes, the Kullback-Leibler "
            "divergence\n"
            "of the next token's distribution from the model's, and how often the likeliest token is the same.",
    .sections = {&quantize_section},
    .examples = quantize_examples};
