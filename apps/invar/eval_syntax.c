/* eval_syntax.c: the tables of eval and replay. */
#include "engine_flags.h"
#include "syntax.h"

/* ---- eval ---------------------------------------------------------------------------------------------- */

static const cli_flag eval_flags[] = {
    {.name = "dataset",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .help = "problems, one JSON object a line: question, problem or prompt; answer; perhaps id"},
    {.name = "configs",
     .kind = CLI_TEXT,
     .metavar = "AXES",
     .unset = "one: the engine flags",
     .help = "the product of axes such as \"bs=8,16,32 tp=1,2,4,8\""},
    {.name = "out",
     .kind = CLI_FILE,
     .metavar = "DIR",
     .help = "keep results.jsonl there, continue from it, and write report.md, .json and .svg"},
    {.name = "limit",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = CLI_TOKENS_MAX,
     .unset = "all",
     .help = "the first N problems"},
    {.name = "no-chat", .help = "give the question as plain text, without the chat template"},
    {.name = "system", .kind = CLI_TEXT, .metavar = "TEXT", .help = "the system message"},
    {.name = "chat-template-kwargs", .kind = CLI_TEXT, .metavar = "JSON", .help = "more template variables, an object"},
    {.name = "title", .kind = CLI_TEXT, .metavar = "TEXT", .help = "the report's heading"},
    {.name = "json", .help = "the report as one JSON object instead of Markdown"},
    {0}};
static const cli_section eval_section = {"Evaluation", eval_flags};
static const cli_unset eval_unset[] = {{"seed", "42"}, {"max-tokens", "512"}, {0}}; /* eval.c */
static const cli_example eval_examples[] = {
    {"invar eval tiny-math --dataset problems.jsonl --temperature 0", "accuracy"},
    {"invar eval tiny-math --dataset problems.jsonl --seed 42 --configs 'bs=8,16,32 tp=1,2,4,8' --out runs/a",
     "twelve ways to run the same requests: do the answers change?"},
    {0}};

const cli_syntax cli_eval_syntax = {
    .name = "eval",
    .group = "Prove it",
    .summary = "score a dataset in many configurations and compare the answers",
    .operand = "MODEL",
    .usage = "MODEL --dataset FILE [--configs AXES] [--out DIR] [flags]",
    .text = "Axes are bs (requests in flight, max-num-seqs), tp, threads, chunk (max-num-batched-tokens), numerics,\n"
            "arithmetic, isa, dtype, prefix (on, off) and speculative (off, ngram). Results are appended as problems\n"
            "end: the same command with the same --out continues where it stopped.",
    .sections = {&eval_section, &cli_sampling_section, &cli_stopping_section, &cli_engine_section},
    .unset = eval_unset,
    .examples = eval_examples};

/* ---- replay -------------------------------------------------------------------------------------------- */

static const cli_flag replay_flags[] = {
    {.name = "force", .help = "compute receipts of another fingerprint too, and say where they part"},
    {.name = "json", .help = "one JSON object instead of a line for each receipt"},
    {0}};
static const cli_section replay_section = {"Flags", replay_flags};
static const cli_example replay_examples[] = {
    {"invar generate tiny-math -p '2 + 2 =' --receipt r.json && invar replay r.json", "the same bits again"},
    {"invar replay runs/a/results.jsonl --threads 1 --isa scalar", "a whole evaluation, computed another way"},
    {"invar replay r.json --arithmetic tc16 --force", "where another arithmetic parts from it"},
    {0}};

const cli_syntax cli_replay_syntax = {
    .name = "replay",
    .group = "Prove it",
    .summary = "compute receipts again and compare every bit",
    .operand = "RECEIPTS",
    .operand_optional = false,
    .second = "MODEL",
    .usage = "RECEIPTS [MODEL] [flags]",
    .text = "RECEIPTS is a file with a receipt a line, or the results.jsonl of an evaluation. Without MODEL the\n"
            "receipt's own directory is opened, or the model that is known here by its name. Arithmetic, dtype and\n"
            "numerics are the receipt's unless flags say otherwise. Exit code 0: every token and every bit agree.",
    .sections = {&replay_section, &cli_engine_section},
    .examples = replay_examples};
