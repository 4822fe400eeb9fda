/* verify_syntax.c: the flags of invar verify. Ranges of the sizes are in verify_axes.c. */
#include "engine_flags.h"
#include "syntax.h"

static const cli_flag verify_prompt_flags[] = {{.name = "prompts",
                                                .kind = CLI_FILE,
                                                .metavar = "FILE",
                                                .unset = "24 built-in ones",
                                                .help = "JSONL: prompt, messages or ids; - is standard input"},
                                               {.name = "max-tokens",
                                                .kind = CLI_COUNT,
                                                .metavar = "N",
                                                .least = 1,
                                                .greatest = 4096,
                                                .unset = "16",
                                                .help = "tokens to generate where the prompt does not say"},
                                               {0}};
static const cli_section verify_prompt_section = {"Requests", verify_prompt_flags};

static const cli_flag verify_axis_flags[] = {
    {.name = "axes", .kind = CLI_TEXT, .metavar = "LIST", .unset = "all", .help = "what to vary: names with commas"},
    {.name = "batch-sizes", .kind = CLI_TEXT, .metavar = "LIST", .unset = "2,5,16", .help = "requests at once"},
    {.name = "chunk-sizes", .kind = CLI_TEXT, .metavar = "LIST", .unset = "16,61,256", .help = "tokens in one step"},
    {.name = "thread-counts", .kind = CLI_TEXT, .metavar = "LIST", .unset = "2,3", .help = "worker threads"},
    {.name = "tp-sizes", .kind = CLI_TEXT, .metavar = "LIST", .unset = "2,4,8", .help = "ranks that share the model"},
    {.name = "combinations",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = 1000,
     .unset = "8",
     .help = "random configurations of several axes"},
    {.name = "product", .help = "all combinations of all values instead"},
    {.name = "seed",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = UINT64_MAX,
     .unset = "1",
     .help = "of what is drawn"},
    {.name = "scalar-tokens",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = CLI_TOKENS_MAX,
     .unset = "200",
     .help = "most tokens for the slow scalar instructions; 0: all"},
    {0}};
static const cli_section verify_axis_section = {
    "What is varied (batch order chunk prefix preempt threads isa tp restart sampling logprobs speculative device)",
    verify_axis_flags};

static const cli_flag verify_output_flags[] = {
    {.name = "json",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .help = "everything as JSON; - is standard output, without a table"},
    {.name = "plot", .kind = CLI_FILE, .metavar = "FILE", .help = "a picture (SVG)"},
    {0}};
static const cli_section verify_output_section = {"Output", verify_output_flags};

static const cli_flag verify_engine_flags[] = {
    CLI_DEVICE_FLAG, CLI_ARITHMETIC_FLAG, CLI_DTYPE_FLAG, CLI_NUMERICS_FLAG, {0}};
static const cli_section verify_engine_section = {"Engine", verify_engine_flags};

static const cli_example verify_examples[] = {
    {"invar verify tiny-math", "every axis, and random combinations"},
    {"invar verify tiny-math --axes batch,tp --product --plot verify.svg", "all pairs, as a picture"},
    {"invar verify tiny-math --numerics vanilla --axes batch,chunk", "what others do: exit code 1"},
    {0}};

const cli_syntax cli_verify_syntax = {
    .name = "verify",
    .group = "Prove it",
    .summary = "check that nothing changes a bit",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text = "Runs requests alone, on one thread, with nothing cached; then in every other way, and compares all\n"
            "logits, tokens and log-probabilities bit for bit. Exit code 1 names the first difference.",
    .sections = {&verify_prompt_section, &verify_axis_section, &verify_output_section, &verify_engine_section},
    .examples = verify_examples};
