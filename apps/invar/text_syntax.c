/* text_syntax.c: what invar tokenize and invar render accept. */
#include "commands.h"

#define TEXT(n, m) .name = n, .kind = CLI_TEXT, .metavar = m
#define PATH(n, m) .name = n, .kind = CLI_FILE, .metavar = m
#define IDS(n, m) .name = n, .kind = CLI_IDS, .metavar = m

static const cli_flag tokenize_flags[] = {
    {TEXT("text", "TEXT"), .unset = "none", .help = "the text"},
    {PATH("text-file", "FILE"), .unset = "standard input", .help = "read the text from a file; - is standard input"},
    {IDS("ids", "1,2,3"), .unset = "none", .help = "convert token ids to text instead"},
    {.name = "split-special-tokens", .help = "treat special tokens spelled in the text as plain text"},
    {.name = "no-special", .help = "do not add BOS; with --ids, omit special tokens"},
    {.name = "json", .help = "JSON: {\"ids\": [...]} or {\"text\": ...}"},
    {0},
};
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
    {PATH("template", "FILE"), .unset = "MODEL's", .help = "a Jinja template"},
    {PATH("input", "FILE"), .unset = "required",
     .help = "the template's variables, a JSON object; - is standard input"},
    {TEXT("strftime-now", "TEXT"), .unset = "the clock", .help = "result of strftime_now() in the template"},
    {0},
};
static const cli_section render_section = {"Flags", render_flags};
static const cli_example render_examples[] = {
    {"invar render tiny-math --input chat.json", "the prompt of a conversation"},
    {"invar render --template chat_template.jinja --input chat.json", "a template file without a model"},
    {0}};

const cli_syntax cli_render_syntax = {
    .name = "render",
    .group = "Look into a model",
    .summary = "render a chat template",
    .operand = "MODEL",
    .operand_optional = true,
    .usage = "MODEL|--template FILE --input FILE [flags]",
    .text = "Writes the rendered template and nothing else. Example of chat.json:\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}\n"
            "With MODEL, messages are prepared as the server does; with --template they are passed unchanged.",
    .sections = {&render_section},
    .examples = render_examples};
