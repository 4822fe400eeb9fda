/* syntax.c: the table of each command: flags, ranges, help, examples. Ranges are those of include/invar.h
 * and of the engine behind it; numbers of tokens are bounded by what an id can count. */
#include "syntax.h"
#include "engine_flags.h"
#include "text.h"

#include <string.h>

enum { ID_MAX = INT32_MAX };

/* ---- sections shared by commands ----------------------------------------------------------------------- */

static const cli_flag sampling_flags[] = {
    {.name = "temperature",
     .kind = CLI_REAL,
     .metavar = "F",
     .low = 0,
     .high = 100,
     .unset = "1",
     .help = "0 takes the likeliest token; below 0.0001 is 0"},
    {.name = "top-p",
     .kind = CLI_REAL,
     .metavar = "F",
     .low = 0,
     .high = 1,
     .above_low = true,
     .unset = "1",
     .help = "keep the likeliest tokens of this total probability"},
    {.name = "top-k",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = ID_MAX,
     .unset = "0: all",
     .help = "keep the N likeliest tokens"},
    {.name = "min-p",
     .kind = CLI_REAL,
     .metavar = "F",
     .low = 0,
     .high = 1,
     .unset = "0",
     .help = "keep tokens at least F times as likely as the likeliest"},
    {.name = "repetition-penalty",
     .kind = CLI_REAL,
     .metavar = "F",
     .low = 0,
     .high = 100,
     .above_low = true,
     .unset = "1",
     .help = "divide logits of tokens seen before"},
    {.name = "presence-penalty",
     .kind = CLI_REAL,
     .metavar = "F",
     .low = -2,
     .high = 2,
     .unset = "0",
     .help = "subtract from logits of tokens generated before"},
    {.name = "frequency-penalty",
     .kind = CLI_REAL,
     .metavar = "F",
     .low = -2,
     .high = 2,
     .unset = "0",
     .help = "the same, for each time they were generated"},
    {.name = "logit-bias",
     .kind = CLI_BIAS,
     .metavar = "ID=F",
     .low = -100,
     .high = 100,
     .most = 512,
     .help = "add F to a token's logit (repeatable)"},
    {.name = "seed",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = UINT64_MAX,
     .unset = "drawn and reported",
     .help = "same seed, same answer"},
    {.name = "no-generation-config", .help = "ignore what generation_config.json suggests"},
    {0}};
const cli_section cli_sampling_section = {"Sampling (what is not set comes from the model's generation_config.json)",
                                          sampling_flags};

static const cli_flag stopping_flags[] = {
    {.name = "max-tokens",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = CLI_TOKENS_MAX,
     .unset = "what the model holds",
     .help = "most tokens to generate"},
    {.name = "min-tokens",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = CLI_TOKENS_MAX,
     .unset = "0",
     .help = "tokens before which nothing ends the answer"},
    {.name = "stop", .kind = CLI_TEXT, .metavar = "TEXT", .most = 16, .help = "end before this text (repeatable)"},
    {.name = "stop-id",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = ID_MAX,
     .most = 64,
     .help = "end at this token (repeatable)"},
    {.name = "ignore-eos", .help = "go on past the end-of-sequence token"},
    {0}};
const cli_section cli_stopping_section = {"Stopping", stopping_flags};

/* ---- generate ------------------------------------------------------------------------------------------ */

static const cli_flag prompt_flags[] = {
    {.name = "prompt", .letter = 'p', .kind = CLI_TEXT, .metavar = "TEXT", .help = "the prompt"},
    {.name = "prompt-file",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .help = "read the prompt from a file; - is standard input"},
    {.name = "ids", .kind = CLI_IDS, .metavar = "1,2,3", .help = "the prompt as token ids"},
    {.name = "chat", .help = "make the prompt a user's message in the model's chat template"},
    {.name = "system", .kind = CLI_TEXT, .metavar = "TEXT", .help = "with --chat: the system message"},
    {.name = "chat-template-kwargs",
     .kind = CLI_TEXT,
     .metavar = "JSON",
     .help = "with --chat: more template variables, an object"},
    {.name = "split-special-tokens", .help = "special tokens that the prompt spells are plain text"},
    {0}};
static const cli_section prompt = {"Prompt (one of -p, --prompt-file, --ids)", prompt_flags};

static const cli_flag constraint_flags[] = {
    {.name = "json-schema",
     .kind = CLI_FILE,
     .metavar = "FILE|JSON",
     .help = "answer with JSON that satisfies this schema"},
    {.name = "regex", .kind = CLI_TEXT, .metavar = "REGEX", .help = "answer with a text that this matches as a whole"},
    {.name = "grammar", .kind = CLI_TEXT, .metavar = "GBNF", .help = "answer by this grammar's rule root"},
    {.name = "grammar-file", .kind = CLI_FILE, .metavar = "FILE", .help = "by a grammar in a file"},
    {0}};
static const cli_section constraint = {"Constraint (docs/STRUCTURED.md)", constraint_flags};

static const cli_flag generate_output_flags[] = {
    {.name = "logprobs",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = 20,
     .help = "log-probabilities of each token and of the N likeliest"},
    {.name = "json", .help = "one JSON object on standard output instead of text"},
    {.name = "receipt",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .help = "write a receipt for invar replay, in place of what FILE held"},
    {.name = "quiet", .help = "no report on standard error"},
    {0}};
static const cli_section generate_output = {"Output", generate_output_flags};

static const cli_example generate_examples[] = {
    {"invar generate tiny-math --chat -p 'What is 17 * 6?' --seed 7", "sample an answer that anyone can repeat"},
    {"invar generate tiny-math --prompt-file - --max-tokens 20 < notes.txt", "continue a text"},
    {"invar generate tiny-math -p '2 + 2 =' --temperature 0 --logprobs 3 --json",
     "greedy, with log-probabilities, for a program"},
    {"invar generate tiny-math --chat -p 'What is 17 * 6?' --regex '[0-9]+'", "nothing but a number"},
    {0}};

const cli_syntax cli_generate_syntax = {
    .name = "generate",
    .group = "Run a model",
    .summary = "continue a prompt, or answer it with --chat",
    .operand = "MODEL",
    .usage = "MODEL -p TEXT [flags]",
    .text = "The text goes to standard output as it is made. A report follows on standard error; its last "
            "two lines\n"
            "are the fingerprint (everything that may change a bit) and the digest (every token id and "
            "log-probability\n"
            "bit of the answer).",
    .sections = {&prompt, &cli_sampling_section, &cli_stopping_section, &constraint, &generate_output,
                 &cli_engine_section},
    .examples = generate_examples};

/* ---- chat ---------------------------------------------------------------------------------------------- */

static const cli_flag chat_flags[] = {
    {.name = "system", .kind = CLI_TEXT, .metavar = "TEXT", .help = "the system message"},
    {.name = "chat-template-kwargs", .kind = CLI_TEXT, .metavar = "JSON", .help = "more template variables, an object"},
    {.name = "quiet", .help = "no line of figures behind an answer"},
    {0}};
static const cli_section chat_section = {"Conversation", chat_flags};

static const cli_example chat_examples[] = {
    {"invar chat tiny-math --temperature 0", "talk; /help lists what can be typed"},
    {"printf '%s\\n' 'What is 5 + 6?' | invar chat tiny-math --quiet", "one message a line"},
    {0}};

const cli_syntax cli_chat_syntax = {
    .name = "chat",
    .group = "Run a model",
    .summary = "hold a conversation",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text = "One message a line; a backslash at the end of a line continues "
            "it. Ctrl-C stops an answer, Ctrl-D leaves.",
    .sections = {&chat_section, &cli_sampling_section, &cli_stopping_section, &cli_engine_section},
    .examples = chat_examples};

/* ---- inspect, tokenize, render, logits ----------------------------------------------------------------- */

static const cli_flag json_flags[] = {CLI_DTYPE_FLAG, {.name = "json", .help = "one JSON object"}, {0}};
static const cli_section inspect_section = {"Flags", json_flags};
static const cli_example inspect_examples[] = {
    {"invar inspect tiny-math", "shape, size and whether it fits"},
    {"invar inspect ./model --dtype float32 --json", "the same for a program, had the weights that type"},
    {0}};

const cli_syntax cli_inspect_syntax = {.name = "inspect",
                                       .group = "Look into a model",
                                       .summary = "what a model is and what it needs",
                                       .operand = "MODEL",
                                       .usage = "MODEL [flags]",
                                       .text = "Reads headers only, no weights.",
                                       .sections = {&inspect_section},
                                       .examples = inspect_examples};

static const cli_flag tokenize_flags[] = {
    {.name = "text", .kind = CLI_TEXT, .metavar = "TEXT", .help = "the text"},
    {.name = "text-file",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .help = "read the text from a file; - is standard input"},
    {.name = "ids", .kind = CLI_IDS, .metavar = "1,2,3", .help = "turn token ids into text instead"},
    {.name = "split-special-tokens", .help = "special tokens that the text spells are plain text"},
    {.name = "no-special", .help = "add no BOS; with --ids: leave special tokens out"},
    {.name = "json", .help = "JSON: {\"ids\": [...]} or {\"text\": ...}"},
    {0}};
static const cli_section tokenize_section = {"Flags", tokenize_flags};
static const cli_example tokenize_examples[] = {
    {"invar tokenize tiny-math --text 'Mia has 34 marbles.'", "a table of ids and tokens"},
    {"invar tokenize tiny-math --ids 46,74,66", "back to text"},
    {"invar tokenize tiny-math --json < notes.txt", "standard input, for a program"},
    {0}};

const cli_syntax cli_tokenize_syntax = {
    .name = "tokenize",
    .group = "Look into a model",
    .summary = "text to token ids, or back",
    .operand = "MODEL",
    .usage = "MODEL [--text TEXT | --text-file FILE | --ids 1,2,3] [flags]",
    .text = "Without --text, --text-file or --ids the text is standard input. Needs only the model's tokenizer.",
    .sections = {&tokenize_section},
    .examples = tokenize_examples};

static const cli_flag render_flags[] = {
    {.name = "template", .kind = CLI_FILE, .metavar = "FILE", .help = "a Jinja template, in place of MODEL's"},
    {.name = "input",
     .kind = CLI_FILE,
     .metavar = "FILE",
     .help = "a JSON object: the template's variables; - is standard input"},
    {.name = "strftime-now",
     .kind = CLI_TEXT,
     .metavar = "TEXT",
     .unset = "the clock",
     .help = "what strftime_now() gives to the template"},
    {0}};
static const cli_section render_section = {"Flags", render_flags};
static const cli_example render_examples[] = {
    {"invar render tiny-math --input chat.json", "the prompt that a conversation becomes"},
    {"invar render --template chat_template.jinja --input chat.json", "a template of its own"},
    {0}};

const cli_syntax cli_render_syntax = {
    .name = "render",
    .group = "Look into a model",
    .summary = "render a chat template",
    .operand = "MODEL",
    .operand_optional = true,
    .usage = "MODEL|--template FILE --input FILE [flags]",
    .text = "Writes what the template renders, and nothing else. chat.json holds for example\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}\n"
            "MODEL's template gets messages as from the server; --template gets them as they are.",
    .sections = {&render_section},
    .examples = render_examples};

static const cli_flag logits_flags[] = {
    {.name = "ids", .kind = CLI_IDS, .metavar = "1,2,3", .help = "token ids"},
    {.name = "text", .kind = CLI_TEXT, .metavar = "TEXT", .help = "or a text"},
    {.name = "out", .kind = CLI_FILE, .metavar = "FILE", .help = "the safetensors file to write"},
    {0}};
static const cli_section logits_section = {"Flags", logits_flags};
static const cli_example logits_examples[] = {
    {"invar logits tiny-math --text '2 + 2 =' --out logits.safetensors", "logits after every token"}, {0}};

const cli_syntax cli_logits_syntax = {
    .name = "logits",
    .group = "Look into a model",
    .summary = "write a model's logits to a file",
    .operand = "MODEL",
    .usage = "MODEL --ids 1,2,3|--text TEXT --out FILE [flags]",
    .text = "The file holds \"logits\", F32 [tokens, vocabulary], and \"input_ids\", I32 [tokens].",
    .sections = {&logits_section, &cli_engine_section},
    .examples = logits_examples};

/* ---- completion, help ---------------------------------------------------------------------------------- */

static const cli_example completion_examples[] = {
    {"invar completion bash > ~/.local/share/bash-completion/completions/invar", "bash"},
    {"invar completion zsh > ~/.zfunc/_invar", "zsh; ~/.zfunc must be in fpath"},
    {"invar completion fish > ~/.config/fish/completions/invar.fish", "fish"},
    {0}};

const cli_syntax cli_completion_syntax = {.name = "completion",
                                          .group = "Other",
                                          .summary = "a completion script for your shell",
                                          .operand = "SHELL",
                                          .operand_choices = "bash zsh fish",
                                          .usage = "bash|zsh|fish",
                                          .text = "Made from the same tables as this help.",
                                          .sections = {NULL},
                                          .examples = completion_examples};

static const cli_example help_examples[] = {{"invar help generate", "everything generate accepts"}, {0}};

const cli_syntax cli_help_syntax = {.name = "help",
                                    .group = "Other",
                                    .summary = "help, in general or for one command",
                                    .operand = "COMMAND",
                                    .operand_command = true,
                                    .operand_optional = true,
                                    .usage = "[COMMAND]",
                                    .text = "invar COMMAND --help shows the same.",
                                    .sections = {NULL},
                                    .examples = help_examples};

const cli_syntax *const cli_syntaxes[] = {&cli_generate_syntax,
                                          &cli_chat_syntax,
                                          &cli_serve_syntax,
                                          &cli_batch_syntax,
                                          &cli_bench_syntax,
                                          &cli_bench_serve_syntax,
                                          &cli_bench_latency_syntax,
                                          &cli_inspect_syntax,
                                          &cli_tokenize_syntax,
                                          &cli_render_syntax,
                                          &cli_logits_syntax,
                                          &cli_verify_syntax,
                                          &cli_eval_syntax,
                                          &cli_replay_syntax,
                                          &cli_completion_syntax,
                                          &cli_help_syntax,
                                          NULL};

const cli_syntax *cli_syntax_find(const char *name) {
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++)
        if (strcmp((*s)->name, name) == 0) return *s;
    return NULL;
}

const char *cli_syntax_nearest(const char *name) {
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (const cli_syntax *const *s = cli_syntaxes; *s; s++) {
        size_t distance = cli_word_distance(name, (*s)->name);
        if (distance < best_distance) best = (*s)->name, best_distance = distance;
    }
    return best && cli_is_near(best_distance, name) ? best : NULL;
}
