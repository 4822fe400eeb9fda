/* syntax.c: the table of every command: flags, ranges, help, examples. Ranges are those of include/invar.h
 * and of the engine; numbers of tokens are bounded by the range of a token index. */
#include "commands.h"
#include "flag_rows.h"
#include "text.h"

#include <string.h>

enum { ID_MAX = INT32_MAX };

/* ---- sections shared by commands ----------------------------------------------------------------------- */

static const cli_flag sampling_flags[] = {
    {REAL("temperature", "F", 0, 100), .unset = "1",
     .help = "0 is greedy: the most likely token; below 0.0001 counts as 0"},
    {REAL("top-p", "F", 0, 1), .above_low = true, .unset = "1",
     .help = "keep the most likely tokens up to this total probability"},
    {COUNT("top-k", "N", 0, ID_MAX), .unset = "0: all", .help = "keep the N most likely tokens"},
    {REAL("min-p", "F", 0, 1), .unset = "0", .help = "keep tokens at least F times as likely as the most likely one"},
    {REAL("repetition-penalty", "F", 0, 100), .above_low = true, .unset = "1",
     .help = "divide the logits of tokens in the prompt or the answer so far"},
    {REAL("presence-penalty", "F", -2, 2), .unset = "0", .help = "subtract from the logits of tokens generated so far"},
    {REAL("frequency-penalty", "F", -2, 2), .unset = "0", .help = "the same, once per occurrence"},
    {BIAS("logit-bias", "ID=F", -100, 100), .most = 512, .unset = "none",
     .help = "add F to a token's logit (repeatable)"},
    {COUNT("seed", "N", 0, UINT64_MAX), .unset = "drawn and reported", .help = "same seed, same answer"},
    {.name = "no-generation-config", .help = "ignore the model's generation_config.json"},
    {0},
};
static const cli_section sampling_section = {
    "Sampling (defaults come from the model's generation_config.json if it has them)", sampling_flags};

static const cli_flag stopping_flags[] = {
    {COUNT("max-tokens", "N", 1, CLI_TOKENS_MAX), .unset = "up to the model's limit",
     .help = "most tokens to generate"},
    {COUNT("min-tokens", "N", 0, CLI_TOKENS_MAX), .unset = "0", .help = "fewest tokens to generate"},
    {TEXT("stop", "TEXT"), .most = 16, .unset = "none", .help = "stop before this text (repeatable)"},
    {COUNT("stop-id", "N", 0, ID_MAX), .most = 64, .unset = "none", .help = "stop at this token (repeatable)"},
    {.name = "ignore-eos", .help = "continue past the end-of-sequence token"},
    {0},
};
static const cli_section stopping_section = {"Stopping", stopping_flags};

static const cli_flag lora_flags[] = {
    {TEXT("lora", "[NAME=]DIR"), .unset = "none", .help = "an adapter that PEFT saved (docs/LORA.md)"},
    {MAX_LORA_RANK_ROW},
    {0},
};
static const cli_section lora_section = {"Adapter", lora_flags};

static const cli_flag loras_flags[] = {
    {TEXT("lora-modules", "NAME=DIR ..."), .alias = "lora", .most = 64, .words = true, .unset = "none",
     .help = "adapters that PEFT saved (docs/LORA.md); repeatable"},
    {MAX_LORA_RANK_ROW},
    {0},
};
static const cli_section loras_section = {"Adapters", loras_flags};

/* ---- generate ------------------------------------------------------------------------------------------ */

static const cli_flag prompt_flags[] = {
    {TEXT("prompt", "TEXT"), .letter = 'p', .unset = "none", .help = "the prompt"},
    {PATH("prompt-file", "FILE"), .unset = "none", .help = "read the prompt from a file; - is standard input"},
    {IDS("ids", "1,2,3"), .unset = "none", .help = "the prompt as token ids"},
    {.name = "chat", .help = "wrap the prompt as a user message in the model's chat template"},
    {TEXT("system", "TEXT"), .unset = "none", .help = "with --chat: the system message"},
    {TEXT("chat-template-kwargs", "JSON"), .unset = "none",
     .help = "with --chat: extra template variables, a JSON object"},
    {.name = "split-special-tokens", .help = "treat special tokens spelled in the prompt as plain text"},
    {0},
};
static const cli_section prompt = {"Prompt (one of -p, --prompt-file, --ids)", prompt_flags};

static const cli_flag constraint_flags[] = {
    {PATH("json-schema", "FILE|JSON"), .unset = "none", .help = "answer with JSON that satisfies this schema"},
    {TEXT("regex", "REGEX"), .unset = "none", .help = "answer with text that this expression matches in full"},
    {TEXT("grammar", "GBNF"), .unset = "none", .help = "answer according to the rule root of this grammar"},
    {PATH("grammar-file", "FILE"), .unset = "none", .help = "the same, with the grammar in a file"},
    {0},
};
static const cli_section constraint = {"Constraint (docs/STRUCTURED.md)", constraint_flags};

static const cli_flag generate_output_flags[] = {
    {COUNT("logprobs", "N", 0, 20), .unset = "none", .help = "report log-probabilities of each token and of the top N"},
    {.name = "json", .help = "one JSON object on standard output instead of text"},
    {PATH("receipt", "FILE"), .unset = "none", .help = "write a receipt for invar replay, replacing FILE"},
    {.name = "quiet", .help = "no report on standard error"},
    {0},
};
static const cli_section generate_output = {"Output", generate_output_flags};

static const cli_example generate_examples[] = {
    {"invar generate tiny-math --chat -p 'What is 17 * 6?' --seed 7", "sample a reproducible answer"},
    {"invar generate tiny-math --prompt-file - --max-tokens 20 < notes.txt", "continue a text"},
    {"invar generate tiny-math -p '2 + 2 =' --temperature 0 --logprobs 3 --json",
     "greedy, with log-probabilities, for a program"},
    {"invar generate tiny-math --chat -p 'What is 17 * 6?' --regex '[0-9]+'", "only a number"},
    {0}};

const cli_syntax cli_generate_syntax = {
    .name = "generate",
    .group = "Run a model",
    .summary = "continue a prompt, or answer it with --chat",
    .operand = "MODEL",
    .usage = "MODEL -p TEXT [flags]",
    .text = "The text streams to standard output. A report follows on standard error; its last two lines are the\n"
            "fingerprint (everything that may change a bit) and the digest (every token id and every bit of its\n"
            "log-probability).",
    .sections = {&prompt, &sampling_section, &stopping_section, &constraint, &generate_output, &lora_section,
                 &cli_engine_section},
    .examples = generate_examples};

/* ---- chat ---------------------------------------------------------------------------------------------- */

static const cli_flag chat_flags[] = {
    {TEXT("system", "TEXT"), .unset = "none", .help = "the system message"},
    {TEXT("chat-template-kwargs", "JSON"), .unset = "none", .help = "extra template variables, a JSON object"},
    {.name = "quiet", .help = "no statistics line after an answer"},
    {0},
};
static const cli_section chat_section = {"Conversation", chat_flags};

static const cli_example chat_examples[] = {
    {"invar chat tiny-math --temperature 0", "talk; /help lists the commands"},
    {"printf '%s\\n' 'What is 5 + 6?' | invar chat tiny-math --quiet", "one message per line"},
    {0}};

const cli_syntax cli_chat_syntax = {
    .name = "chat",
    .group = "Run a model",
    .summary = "hold a conversation",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text =
        "One message per line; a backslash at the end of a line continues it. Ctrl-C stops an answer, Ctrl-D exits.",
    .sections = {&chat_section, &sampling_section, &stopping_section, &lora_section, &cli_engine_section},
    .examples = chat_examples};

/* ---- bench --------------------------------------------------------------------------------------------- */

static const cli_flag bench_flags[] = {
    {COUNT("concurrency", "N", 1, 1024), .unset = "1", .help = "concurrent requests"},
    {COUNT("prompt-tokens", "N", 1, CLI_IDS_MAX), .unset = "512", .help = "tokens in each prompt"},
    {COUNT("decode-tokens", "N", 2, CLI_TOKENS_MAX), .unset = "64", .help = "tokens to generate per request"},
    {COUNT("repeat", "N", 1, 1000), .unset = "3", .help = "runs; medians are reported"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section bench_section = {"Flags", bench_flags};
static const cli_example bench_examples[] = {
    {"invar bench tiny-math --prompt-tokens 256 --threads 2", "prefill and decode speed in tokens per second"},
    {"invar bench throughput tiny-math --concurrency 16", "with concurrent requests"},
    {0}};

const cli_syntax cli_bench_syntax = {
    .name = "bench",
    .group = "Run a model",
    .summary = "time prefill and decode",
    .operand = "MODEL",
    .usage = "[throughput] MODEL [flags]",
    .text = "Prompts are fixed pseudo-random token ids, different for each run and request; decoding is greedy and\n"
            "ignores end-of-sequence tokens. Prefill ends when every request has its first token. The digest is that\n"
            "of the first request: it must not change with threads, instruction set or concurrent requests.",
    .sections = {&bench_section, &lora_section, &cli_engine_section},
    .examples = bench_examples};

/* ---- bench latency ------------------------------------------------------------------------------------- */

static const cli_flag latency_flags[] = {
    {COUNT("batch-size", "N", 1, 1024), .unset = "8", .help = "concurrent requests"},
    {COUNT("input-len", "N", 1, CLI_IDS_MAX), .unset = "32", .help = "tokens in each prompt"},
    {COUNT("output-len", "N", 1, CLI_TOKENS_MAX), .unset = "128", .help = "tokens in each answer"},
    {COUNT("num-iters-warmup", "N", 0, 100000), .unset = "10", .help = "untimed warm-up batches"},
    {COUNT("num-iters", "N", 1, 100000), .unset = "30", .help = "timed batches"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section latency_section = {"Flags", latency_flags};
static const cli_example latency_examples[] = {
    {"invar bench latency tiny-math --batch-size 4 --output-len 32", "latency of a batch of four"}, {0}};

const cli_syntax cli_bench_latency_syntax = {
    .name = "bench-latency",
    .group = "Run a model",
    .summary = "time one batch, many times",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text = "Also written invar bench latency. Repeats one batch without a prefix cache and times it from the first\n"
            "submission to the end of the last request. Every repetition must have the same digests.",
    .sections = {&latency_section, &cli_engine_section},
    .examples = latency_examples};

/* ---- bench serve --------------------------------------------------------------------------------------- */

static const cli_flag load_flags[] = {
    {COUNT("num-prompts", "N", 1, 1000000), .unset = "100", .help = "number of requests"},
    {TEXT("request-rate", "R"), .unset = "inf: all at once", .help = "average requests per second (Poisson arrivals)"},
    {COUNT("max-concurrency", "N", 1, 4000), .unset = "no limit", .help = "concurrent requests"},
    {CHOICE("dataset-name", "NAME", "random"), .unset = "random", .help = "prompts: random token ids"},
    {COUNT("random-input-len", "N", 1, CLI_IDS_MAX), .unset = "512", .help = "tokens in a prompt"},
    {COUNT("random-output-len", "N", 1, CLI_TOKENS_MAX), .unset = "64", .help = "tokens in an answer"},
    {REAL("random-range-ratio", "R", 0, 0.99), .unset = "0", .help = "both lengths vary up and down by this fraction"},
    {COUNT("random-prefix-len", "N", 0, CLI_IDS_MAX), .unset = "0", .help = "tokens of a prefix common to all prompts"},
    {REAL("temperature", "T", 0, 100), .unset = "0", .help = "above 0, answers are sampled, each with its own seed"},
    {COUNT("seed", "N", 0, INT64_MAX), .unset = "0", .help = "seed of lengths, ids, arrival times and answers"},
    {COUNT("check-prompts", "N", 0, 1000000), .unset = "all",
     .help = "requests to repeat one at a time afterwards; 0: no check"},
    {TEXT("api-key", "KEY"), .unset = "$INVAR_API_KEY, or none", .help = "bearer token for the server"},
    {.name = "chat", .help = "use /v1/chat/completions, with words instead of token ids"},
    {TEXT("model", "NAME"), .unset = "the first of /v1/models", .help = "model name, for a server other than invar"},
    {.name = "json", .help = "one JSON object, with vLLM's names"},
    {0},
};
static const cli_section load_section = {"Load", load_flags};
static const cli_example bench_serve_examples[] = {
    {"invar bench serve http://127.0.0.1:8000 --request-rate 5", "a running server"},
    {"invar bench serve http://127.0.0.1:8080 --chat", "any OpenAI-compatible server, without checks"},
    {"invar bench serve tiny-math --max-concurrency 16 --temperature 1", "a server started for the benchmark"},
    {0}};

const cli_syntax cli_bench_serve_syntax = {
    .name = "bench-serve",
    .group = "Run a model",
    .summary = "load a server, and compare its answers with unloaded runs",
    .operand = "URL|MODEL",
    .usage = "URL|MODEL [flags]",
    .text =
        "Also written invar bench serve. Given a MODEL, it starts a server with the engine flags and stops it at the\n"
        "end. Latencies are measured by the clients. Afterwards the same requests are sent one at a time. The exit\n"
        "code is 1 if a digest differs, which is then named, or if a request failed.",
    .sections = {&load_section, &cli_engine_section},
    .examples = bench_serve_examples};

/* ---- inspect, tokenize, render, logits ----------------------------------------------------------------- */

static const cli_flag model_inspect_flags[] = {
    {DTYPE_ROW},
    {COUNT("max-model-len", "N", 1, CLI_TOKENS_MAX), .unset = "the model's",
     .help = "the context whose KV cache is reported"},
    {COUNT("tensor-parallel-size", "N", 1, 8), .alias = "tp", .unset = "1",
     .help = "report what each of N ranks has: weights, heads, whole experts"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section inspect_section = {"Flags", model_inspect_flags};
static const cli_example inspect_examples[] = {
    {"invar inspect tiny-math", "shape, size and whether it fits in memory"},
    {"invar inspect ./model --dtype float32 --json", "the same as JSON, with float32 weights"},
    {0}};

const cli_syntax cli_inspect_syntax = {.name = "inspect",
                                       .group = "Look into a model",
                                       .summary = "a model's shape, size and memory needs",
                                       .operand = "MODEL",
                                       .usage = "MODEL [flags]",
                                       .text = "Reads headers only, not the weights.",
                                       .sections = {&inspect_section},
                                       .examples = inspect_examples};

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

static const cli_flag logits_flags[] = {
    {IDS("ids", "1,2,3"), .unset = "none", .help = "the input as token ids"},
    {TEXT("text", "TEXT"), .unset = "none", .help = "the input as text"},
    {PATH("out", "FILE"), .unset = "required", .help = "the safetensors file to write"},
    {0},
};
static const cli_section logits_section = {"Flags", logits_flags};
static const cli_example logits_examples[] = {
    {"invar logits tiny-math --text '2 + 2 =' --out logits.safetensors", "logits at every position"}, {0}};

const cli_syntax cli_logits_syntax = {
    .name = "logits",
    .group = "Look into a model",
    .summary = "write a model's logits to a file",
    .operand = "MODEL",
    .usage = "MODEL --ids 1,2,3|--text TEXT --out FILE [flags]",
    .text = "The file holds \"logits\", F32 [tokens, vocabulary], and \"input_ids\", I32 [tokens].",
    .sections = {&logits_section, &lora_section, &cli_engine_section},
    .examples = logits_examples};

static const cli_flag export_flags[] = {
    {CHOICE("dtype", "TYPE", "auto bfloat16 float16 float32"), .unset = "auto: each tensor's in the checkpoint",
     .help = "data type of all weights, named in config.json"},
    {.name = "max-shard-size",
     .kind = CLI_BYTES,
     .metavar = "SIZE",
     .least = 1,
     .greatest = INT64_MAX,
     .unset = "5000000000",
     .help = "weights per file, such as 2G; more are split into several, with an index"},
    {.name = "overwrite", .help = "replace the model in DIR"},
    {PATH("lora", "DIR"), .unset = "none", .help = "with --merge: an adapter that PEFT has saved"},
    {.name = "merge", .help = "add it to the weights: a model of its own, with other bits (docs/LORA.md)"},
    {COUNT("threads", "N", 0, 256), .unset = "0: one per CPU", .help = "threads that load; never changes a bit"},
    {.name = "json", .help = "one JSON object on standard output instead of text"},
    {0},
};
static const cli_section export_section = {"Flags", export_flags};
static const cli_example export_examples[] = {
    {"invar export tiny-math copy", "a copy with the same weights digest"},
    {"invar export ./model half --dtype float16 --max-shard-size 2G", "in another type, in files of 2 GiB"},
    {"invar export ./model model.gguf", "as one GGUF file, with tokenizer and chat template"},
    {0}};

const cli_syntax cli_export_syntax = {
    .name = "export",
    .group = "Look into a model",
    .summary = "write a model as a new Hugging Face directory",
    .operand = "MODEL",
    .second = "DIR",
    .usage = "MODEL DIR [flags]",
    .text = "Weights are loaded, read back from their packed form and written; config.json, generation_config.json,\n"
            "tokenizer and chat template are copied. Without --dtype no bit of a weight changes.",
    .sections = {&export_section},
    .examples = export_examples};

/* ---- verify -------------------------------------------------------------------------------------------- */

static const cli_flag verify_prompt_flags[] = {
    {PATH("prompts", "FILE"), .unset = "24 built-in ones",
     .help = "JSONL: prompt, messages or ids; - is standard input"},
    {COUNT("max-tokens", "N", 1, 4096), .unset = "16", .help = "tokens to generate if the prompt sets no max_tokens"},
    {0},
};
static const cli_section verify_prompt_section = {"Requests", verify_prompt_flags};

static const cli_flag verify_axis_flags[] = {
    {TEXT("axes", "LIST"), .unset = "all", .help = "axes to vary, comma-separated"},
    {TEXT("batch-sizes", "LIST"), .unset = "2,5,16", .help = "values of the axis batch: concurrent requests"},
    {TEXT("chunk-sizes", "LIST"), .unset = "16,61,256", .help = "values of the axis chunk: tokens in one step"},
    {TEXT("thread-counts", "LIST"), .unset = "2,3", .help = "values of the axis threads"},
    {TEXT("tp-sizes", "LIST"), .unset = "2,4,8", .alias = "ep-sizes",
     .help = "values of the axis tp: tensor-parallel ranks, which divide experts, too"},
    {COUNT("combinations", "N", 0, 1000), .unset = "8", .help = "random configurations of several axes"},
    {.name = "product", .help = "run all combinations of all values instead"},
    {COUNT("seed", "N", 0, UINT64_MAX), .unset = "1", .help = "seed of random choices"},
    {COUNT("scalar-tokens", "N", 0, CLI_TOKENS_MAX), .unset = "200",
     .help = "most tokens to compute with the slow scalar instruction set; 0: all"},
    {0},
};
static const cli_section verify_axis_section = {
    "Axes (batch order chunk prefix preempt threads isa tp restart sampling logprobs speculative device)",
    verify_axis_flags};

static const cli_flag verify_output_flags[] = {
    {PATH("json", "FILE"), .unset = "none",
     .help = "write all results as JSON; - is standard output, without the table"},
    {PATH("plot", "FILE"), .unset = "none", .help = "write a picture (SVG)"},
    {0},
};
static const cli_section verify_output_section = {"Output", verify_output_flags};

static const cli_flag verify_engine_flags[] = {
    {DEVICE_ROW}, {ARITHMETIC_ROW}, {DTYPE_ROW}, {NUMERICS_ROW}, {0},
};
static const cli_section verify_engine_section = {"Engine", verify_engine_flags};

static const cli_example verify_examples[] = {
    {"invar verify tiny-math", "every axis, then random combinations"},
    {"invar verify tiny-math --axes batch,tp --product --plot verify.svg",
     "all combinations of two axes, as a picture"},
    {"invar verify tiny-math --numerics vanilla --axes batch,chunk", "what other engines do: exit code 1"},
    {"invar verify tiny-math --train", "one hash of the weights in every layout of a training run"},
    {0}};

const cli_syntax cli_verify_syntax = {
    .name = "verify",
    .group = "Prove it",
    .summary = "check that nothing changes a bit",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text = "Runs each request alone, on one thread, with an empty cache; then in every other configuration. Compares\n"
            "all logits, tokens and log-probabilities bit for bit. Exit code 1: the first difference is named.\n"
            "With --train: runs of supervised fine-tuning, and the hash of all weights after each step.",
    .sections = {&verify_prompt_section, &verify_axis_section, &cli_verify_train_section, &verify_output_section,
                 &loras_section, &verify_engine_section},
    .examples = verify_examples};

/* ---- eval ---------------------------------------------------------------------------------------------- */

static const cli_flag eval_flags[] = {
    {PATH("dataset", "FILE"), .unset = "required",
     .help = "problems, one JSON object per line: question, problem or prompt; optional answer and id"},
    {TEXT("configs", "AXES"), .unset = "one, from the engine flags",
     .help = "product of axes such as \"bs=8,16,32 tp=1,2,4,8\""},
    {PATH("out", "DIR"), .unset = "none",
     .help = "keep results.jsonl there, resume from it, and write report.md, .json and .svg"},
    {COUNT("limit", "N", 1, CLI_TOKENS_MAX), .unset = "all", .help = "use the first N problems"},
    {.name = "no-chat", .help = "use the question as plain text, without the chat template"},
    {TEXT("system", "TEXT"), .unset = "none", .help = "the system message"},
    {TEXT("chat-template-kwargs", "JSON"), .unset = "none", .help = "extra template variables, a JSON object"},
    {TEXT("title", "TEXT"), .unset = "Evaluation", .help = "heading of the report"},
    {.name = "json", .help = "the report as one JSON object instead of Markdown"},
    {0},
};
static const cli_section eval_section = {"Evaluation", eval_flags};
static const cli_unset eval_unset[] = {{"seed", "42"}, {"max-tokens", "512"}, {0}}; /* eval.c */
static const cli_example eval_examples[] = {
    {"invar eval tiny-math --dataset problems.jsonl --temperature 0", "accuracy"},
    {"invar eval tiny-math --dataset problems.jsonl --seed 42 --configs 'bs=8,16,32 tp=1,2,4,8' --out runs/a",
     "the same requests in twelve configurations: do answers change?"},
    {0}};

const cli_syntax cli_eval_syntax = {
    .name = "eval",
    .group = "Prove it",
    .summary = "score a dataset in many configurations and compare the answers",
    .operand = "MODEL",
    .usage = "MODEL --dataset FILE [--configs AXES] [--out DIR] [flags]",
    .text = "Axes are bs (requests in flight, max-num-seqs), tp, threads, chunk (max-num-batched-tokens), numerics,\n"
            "arithmetic, isa, dtype, prefix (on, off) and speculative (off, ngram). Results are appended as they\n"
            "arrive: the same command with the same --out resumes.",
    .sections = {&eval_section, &sampling_section, &stopping_section, &lora_section, &cli_engine_section},
    .unset = eval_unset,
    .examples = eval_examples};

/* ---- replay -------------------------------------------------------------------------------------------- */

static const cli_flag replay_flags[] = {
    {.name = "force", .help = "compute receipts of another fingerprint too, and report the first difference"},
    {.name = "json", .help = "one JSON object instead of one line per receipt"},
    {0},
};
static const cli_section replay_section = {"Flags", replay_flags};
static const cli_example replay_examples[] = {
    {"invar generate tiny-math -p '2 + 2 =' --receipt r.json && invar replay r.json", "the same bits again"},
    {"invar replay runs/a/results.jsonl --threads 1 --isa scalar", "a whole evaluation, in another configuration"},
    {"invar replay r.json --arithmetic tc16 --force", "where another arithmetic differs"},
    {0}};

const cli_syntax cli_replay_syntax = {
    .name = "replay",
    .group = "Prove it",
    .summary = "compute receipts again and compare every bit",
    .operand = "RECEIPTS",
    .operand_optional = false,
    .second = "MODEL",
    .usage = "RECEIPTS [MODEL] [flags]",
    .text = "RECEIPTS is a file with one receipt per line, or the results.jsonl of an evaluation. Without MODEL, the\n"
            "receipt's own directory is opened, or a model of the same name. Arithmetic, dtype and numerics come\n"
            "from the receipt unless set by flags. Exit code 0: every token and every bit agree.",
    .sections = {&replay_section, &loras_section, &cli_engine_section},
    .examples = replay_examples};

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
                                          .text = "Generated from the same tables as this help.",
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
                                    .text = "invar COMMAND --help prints the same.",
                                    .sections = {NULL},
                                    .examples = help_examples};

/* ---- all ----------------------------------------------------------------------------------------------- */

const cli_syntax *const cli_syntaxes[] = {&cli_generate_syntax,
                                          &cli_chat_syntax,
                                          &cli_serve_syntax,
                                          &cli_batch_syntax,
                                          &cli_bench_syntax,
                                          &cli_bench_serve_syntax,
                                          &cli_bench_latency_syntax,
                                          &cli_train_sft_syntax,
                                          &cli_train_rl_syntax,
                                          &cli_train_inspect_syntax,
                                          &cli_train_gradients_syntax,
                                          &cli_inspect_syntax,
                                          &cli_tokenize_syntax,
                                          &cli_render_syntax,
                                          &cli_logits_syntax,
                                          &cli_export_syntax,
                                          &cli_quantize_syntax,
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
