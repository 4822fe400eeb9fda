/* syntax.c: the table of every command: flags, ranges, help, examples. Ranges are those of include/invar.h
 * and of the engine behind it; numbers of tokens are bounded by what an id can count. */
#include "commands.h"
#include "text.h"

#include <string.h>

enum { ID_MAX = INT32_MAX, THREADS_MAX = 256, SEQS_MAX = 1024, BATCHED_TOKENS_MAX = 65536 };

/* The beginning of a flag's row, by the kind of its value. */
#define TEXT(n, m) .name = n, .kind = CLI_TEXT, .metavar = m
#define PATH(n, m) .name = n, .kind = CLI_FILE, .metavar = m
#define IDS(n, m) .name = n, .kind = CLI_IDS, .metavar = m
#define MEMORY(n, m) .name = n, .kind = CLI_MEMORY, .metavar = m
#define CHOICE(n, m, c) .name = n, .kind = CLI_CHOICE, .metavar = m, .choices = c
#define COUNT(n, m, l, g) .name = n, .kind = CLI_COUNT, .metavar = m, .least = l, .greatest = g
#define BYTES(n, m, l, g) .name = n, .kind = CLI_BYTES, .metavar = m, .least = l, .greatest = g
#define REAL(n, m, l, h) .name = n, .kind = CLI_REAL, .metavar = m, .low = l, .high = h
#define BIAS(n, m, l, h) .name = n, .kind = CLI_BIAS, .metavar = m, .low = l, .high = h

/* Rows that several sections share. */
#define DEVICE_ROW                                                                                       \
    CHOICE("device", "NAME", "auto cpu cuda"), .unset = "$INVAR_DEVICE, or auto: a GPU if there is one", \
                                               .help = "where to compute; never changes a bit"
#define ARITHMETIC_ROW                                                                               \
    CHOICE("arithmetic", "NAME", "auto fma32 tc16"), .unset = "auto: tc16 on a GPU, fma32 on a CPU", \
                                                     .help = "how dot products are summed; part of the fingerprint"
#define DTYPE_ROW                                                                                \
    CHOICE("dtype", "TYPE", "auto bfloat16 float16 float32"), .unset = "auto: the checkpoint's", \
                                                              .help = "type the weights are held in"
#define NUMERICS_ROW                                              \
    CHOICE("numerics", "NAME", "invar bio vanilla vanilla-blas"), \
        .unset = "invar", .help = "all but invar are baselines to compare with: they do change bits"

/* ---- sections shared by commands ---------------------------------------------------------------------- */

static const cli_flag sampling_flags[] = {
    {REAL("temperature", "F", 0, 100), .unset = "1", .help = "0 takes the likeliest token; below 0.0001 is 0"},
    {REAL("top-p", "F", 0, 1), .above_low = true, .unset = "1",
     .help = "keep the likeliest tokens of this total probability"},
    {COUNT("top-k", "N", 0, ID_MAX), .unset = "0: all", .help = "keep the N likeliest tokens"},
    {REAL("min-p", "F", 0, 1), .unset = "0", .help = "keep tokens at least F times as likely as the likeliest"},
    {REAL("repetition-penalty", "F", 0, 100), .above_low = true, .unset = "1",
     .help = "divide logits of tokens seen before"},
    {REAL("presence-penalty", "F", -2, 2), .unset = "0", .help = "subtract from logits of tokens generated before"},
    {REAL("frequency-penalty", "F", -2, 2), .unset = "0", .help = "the same, for each time they were generated"},
    {BIAS("logit-bias", "ID=F", -100, 100), .most = 512, .help = "add F to a token's logit (repeatable)"},
    {COUNT("seed", "N", 0, UINT64_MAX), .unset = "drawn and reported", .help = "same seed, same answer"},
    {.name = "no-generation-config", .help = "ignore what generation_config.json suggests"},
    {0},
};
const cli_section cli_sampling_section = {"Sampling (what is not set comes from the model's generation_config.json)",
                                          sampling_flags};

static const cli_flag stopping_flags[] = {
    {COUNT("max-tokens", "N", 1, CLI_TOKENS_MAX), .unset = "what the model holds", .help = "most tokens to generate"},
    {COUNT("min-tokens", "N", 0, CLI_TOKENS_MAX), .unset = "0", .help = "tokens before which nothing ends the answer"},
    {TEXT("stop", "TEXT"), .most = 16, .help = "end before this text (repeatable)"},
    {COUNT("stop-id", "N", 0, ID_MAX), .most = 64, .help = "end at this token (repeatable)"},
    {.name = "ignore-eos", .help = "go on past the end-of-sequence token"},
    {0},
};
const cli_section cli_stopping_section = {"Stopping", stopping_flags};

static const cli_flag engine_flags[] = {
    {CHOICE("load-format", "NAME", "auto dummy"), .unset = "auto: the model's files",
     .help = "dummy: seeded random weights, for measuring: config.json is enough"},
    {COUNT("dummy-seed", "N", 0, UINT64_MAX), .unset = "0", .help = "seed of --load-format dummy"},
    {DEVICE_ROW},
    {.name = "enforce-eager", .help = "cuda: launch kernels one by one, capture no graphs; never changes a bit"},
    {ARITHMETIC_ROW},
    {DTYPE_ROW},
    {NUMERICS_ROW},
    {CHOICE("isa", "NAME", "auto scalar avx2 avx512"), .unset = "auto: the CPU's best",
     .help = "instructions to use; never changes a bit"},
    {COUNT("threads", "N", 0, THREADS_MAX), .unset = "0: one for each CPU",
     .help = "worker threads; never changes a bit"},
    {COUNT("tensor-parallel-size", "N", 1, 8), .alias = "tp", .unset = "1, or the processes of mpirun",
     .help = "ranks that share the model; never changes a bit"},
    {CHOICE("rank-transport", "HOW", "auto nccl host"), .unset = "auto: nccl where every rank finds it",
     .help = "how GPUs of several processes (mpirun) get each other's bytes; never changes one"},
    {COUNT("rank-timeout", "MS", 100, 3600000), .unset = "6000",
     .help = "milliseconds that a rank waits for another before the job ends"},
    {COUNT("max-model-len", "N", 1, CLI_TOKENS_MAX), .unset = "the model's",
     .help = "longest sequence, prompt and answer, in tokens"},
    {COUNT("max-num-seqs", "N", 1, SEQS_MAX), .unset = "16; on GPUs 256",
     .help = "sequences run together; never changes a bit"},
    {COUNT("max-num-batched-tokens", "N", 1, BATCHED_TOKENS_MAX), .unset = "512; on GPUs 8192",
     .help = "tokens in one step; longer prompts are read in chunks"},
    {MEMORY("kv-cache-memory", "SIZE"),
     .unset = "all sequences at full length, or a quarter of what is free (on GPUs 0.9)",
     .help = "memory for keys and values: 2G, 512M, or 0.5 of what is free"},
    {.name = "no-enable-prefix-caching", .help = "compute every prompt anew"},
    {CHOICE("speculative", "HOW", "off ngram"), .unset = "off",
     .help = "ngram: verify drafts looked up in the text so far; never changes a bit"},
    {COUNT("num-speculative-tokens", "N", 1, 16), .unset = "5", .help = "most tokens of a draft"},
    {0},
};
const cli_section cli_engine_section = {"Engine", engine_flags};

/* ---- generate ----------------------------------------------------------------------------------------- */

static const cli_flag prompt_flags[] = {
    {TEXT("prompt", "TEXT"), .letter = 'p', .help = "the prompt"},
    {PATH("prompt-file", "FILE"), .help = "read the prompt from a file; - is standard input"},
    {IDS("ids", "1,2,3"), .help = "the prompt as token ids"},
    {.name = "chat", .help = "make the prompt a user's message in the model's chat template"},
    {TEXT("system", "TEXT"), .help = "with --chat: the system message"},
    {TEXT("chat-template-kwargs", "JSON"), .help = "with --chat: more template variables, an object"},
    {.name = "split-special-tokens", .help = "special tokens that the prompt spells are plain text"},
    {0},
};
static const cli_section prompt = {"Prompt (one of -p, --prompt-file, --ids)", prompt_flags};

static const cli_flag constraint_flags[] = {
    {PATH("json-schema", "FILE|JSON"), .help = "answer with JSON that satisfies this schema"},
    {TEXT("regex", "REGEX"), .help = "answer with a text that this matches as a whole"},
    {TEXT("grammar", "GBNF"), .help = "answer by this grammar's rule root"},
    {PATH("grammar-file", "FILE"), .help = "by a grammar in a file"},
    {0},
};
static const cli_section constraint = {"Constraint (docs/STRUCTURED.md)", constraint_flags};

static const cli_flag generate_output_flags[] = {
    {COUNT("logprobs", "N", 0, 20), .help = "log-probabilities of each token and of the N likeliest"},
    {.name = "json", .help = "one JSON object on standard output instead of text"},
    {PATH("receipt", "FILE"), .help = "write a receipt for invar replay, in place of what FILE held"},
    {.name = "quiet", .help = "no report on standard error"},
    {0},
};
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

/* ---- chat --------------------------------------------------------------------------------------------- */

static const cli_flag chat_flags[] = {
    {TEXT("system", "TEXT"), .help = "the system message"},
    {TEXT("chat-template-kwargs", "JSON"), .help = "more template variables, an object"},
    {.name = "quiet", .help = "no line of figures behind an answer"},
    {0},
};
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

/* ---- serve -------------------------------------------------------------------------------------------- */

static const cli_flag server_flags[] = {
    {TEXT("host", "ADDRESS"), .unset = "127.0.0.1",
     .help = "where to listen: all addresses of a name; 0.0.0.0 is everywhere"},
    {COUNT("port", "N", 0, 65535), .unset = "8000", .help = "0: any that is free; a line says which"},
    {TEXT("served-model-name", "NAME"), .unset = "the directory's", .help = "what clients call the model"},
    {CHOICE("tool-call-parser", "NAME", "auto hermes llama3_json mistral qwen3_coder qwen3_xml none"),
     .unset = "auto: as its chat template writes them", .help = "the form in which the model calls tools"},
    {.name = "split-special-tokens",
     .help = "special tokens that requests spell are plain text, unless one says otherwise"},
    {TEXT("proof-urls", "LIST"), .unset = "none", .help = "other servers of the model that the page's Proof asks, too"},
    {COUNT("max-queued-requests", "N", 1, 4096), .unset = "1024",
     .help = "requests that may wait; more are answered with 429"},
    {COUNT("max-connections-per-client", "N", 1, 4096), .unset = "no limit",
     .help = "connections of one address; more are answered with 429"},
    {BYTES("max-request-body", "SIZE", 1 << 10, 1 << 29), .unset = "8M",
     .help = "the longest body of a request, such as 32M; more is answered with 413"},
    {BYTES("max-unread-bytes", "SIZE", 0, (uint64_t)1 << 40), .unset = "64M",
     .help = "of streams that wait for slow readers; beyond it their requests pause"},
    {COUNT("drain-timeout", "SECONDS", 0, 86400), .unset = "30",
     .help = "how long accepted requests may take after SIGTERM"},
    {0},
};
static const cli_section server_section = {"Server", server_flags};

static const cli_flag access_flags[] = {
    {TEXT("api-key", "KEY"), .unset = "$INVAR_API_KEY, or none", .help = "clients must send it as a bearer token"},
    {TEXT("admin-api-key", "KEY"), .unset = "$INVAR_ADMIN_API_KEY, or none",
     .help = "for routes that change the server; without it they are off"},
    {PATH("api-key-file", "FILE"), .unset = "none", .help = "keys for clients, one a line; SIGHUP reads them again"},
    {PATH("admin-api-key-file", "FILE"), .unset = "none", .help = "likewise, for routes that change the server"},
    {.name = "allow-flush", .help = "/flush_cache without the admin key: it makes answers later, never other ones"},
    {TEXT("allowed-hosts", "LIST"), .unset = "localhost, --host, addresses",
     .help = "names by which it may be asked without a key: with commas, *.NAME, or *"},
    {TEXT("allowed-origins", "LIST"), .unset = "none",
     .help = "web pages of other origins that may ask: with commas, or *"},
    {0},
};
static const cli_section access_section = {"Access", access_flags};

static const cli_flag watch_flags[] = {
    {CHOICE("metrics-compat", "NAME", "vllm sglang"), .unset = "our own names alone",
     .help = "/metrics has the names of this server too"},
    {CHOICE("log-format", "HOW", "text json"), .unset = "text", .help = "of the log's lines"},
    {PATH("log-file", "FILE"), .unset = "standard error", .help = "append the log to FILE; SIGHUP opens it again"},
    {.name = "disable-log-requests", .help = "no line for each request"},
    {0},
};
static const cli_section watch_section = {"Watching", watch_flags};

static const cli_example serve_examples[] = {
    {"invar serve tiny-math", "on this machine alone, port 8000"},
    {"invar serve tiny-math --host 0.0.0.0 --api-key secret", "for others who know the key"},
    {"invar serve tiny-math --metrics-compat vllm --log-format json", "into a place made for another server"},
    {0}};

const cli_syntax cli_serve_syntax = {
    .name = "serve",
    .group = "Run a model",
    .summary = "answer over HTTP: the OpenAI and SGLang APIs, and a page",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text =
        "Lines about what happens go to standard error. SIGTERM or Ctrl-C takes no new requests and ends when the\n"
        "accepted ones are answered; a second one ends at once. SIGHUP reads files of keys again and opens the log\n"
        "file again; SIGUSR1 and SIGUSR2 are ignored.",
    .sections = {&server_section, &access_section, &watch_section, &cli_engine_section},
    .examples = serve_examples};

/* ---- batch -------------------------------------------------------------------------------------------- */

static const cli_flag batch_flags[] = {
    {PATH("input", "FILE"), .letter = 'i', .help = "the requests, one a line; - is standard input"},
    {PATH("output", "FILE"), .letter = 'o', .help = "the answers, in the same order; - is standard output"},
    {TEXT("served-model-name", "NAME"), .unset = "the directory's", .help = "what requests call the model"},
    {CHOICE("tool-call-parser", "NAME", "auto hermes llama3_json mistral qwen3_coder qwen3_xml none"),
     .unset = "auto: as its chat template writes them", .help = "the form in which the model calls tools"},
    {0},
};
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

/* ---- bench -------------------------------------------------------------------------------------------- */

static const cli_flag bench_flags[] = {
    {COUNT("concurrency", "N", 1, 1024), .unset = "1", .help = "requests at once"},
    {COUNT("prompt-tokens", "N", 1, CLI_IDS_MAX), .unset = "512", .help = "tokens to read"},
    {COUNT("decode-tokens", "N", 2, CLI_TOKENS_MAX), .unset = "64", .help = "tokens to generate"},
    {COUNT("repeat", "N", 1, 1000), .unset = "3", .help = "runs; medians are reported"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section bench_section = {"Flags", bench_flags};
static const cli_example bench_examples[] = {
    {"invar bench tiny-math --prompt-tokens 256 --threads 2", "tokens a second, reading and writing"},
    {"invar bench throughput tiny-math --concurrency 16", "the same by its other name"},
    {0}};

const cli_syntax cli_bench_syntax = {
    .name = "bench",
    .group = "Run a model",
    .summary = "time prefill and decode",
    .operand = "MODEL",
    .usage = "[throughput] MODEL [flags]",
    .text = "Prompts are fixed pseudo-random token ids, another for each run and request; decoding is greedy and\n"
            "goes past any end of sequence. Reading lasts until every request has its first token. The digest is\n"
            "the first request's: it must not change with threads, instructions or the company it runs in.",
    .sections = {&bench_section, &cli_engine_section},
    .examples = bench_examples};

/* ---- bench latency ------------------------------------------------------------------------------------ */

static const cli_flag latency_flags[] = {
    {COUNT("batch-size", "N", 1, 1024), .unset = "8", .help = "requests at once"},
    {COUNT("input-len", "N", 1, CLI_IDS_MAX), .unset = "32", .help = "tokens of each prompt"},
    {COUNT("output-len", "N", 1, CLI_TOKENS_MAX), .unset = "128", .help = "tokens of each answer"},
    {COUNT("num-iters-warmup", "N", 0, 100000), .unset = "10", .help = "batches before the clock starts"},
    {COUNT("num-iters", "N", 1, 100000), .unset = "30", .help = "batches that are timed"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section latency_section = {"Flags", latency_flags};
static const cli_example latency_examples[] = {
    {"invar bench latency tiny-math --batch-size 4 --output-len 32", "seconds for a batch of four"}, {0}};

const cli_syntax cli_bench_latency_syntax = {
    .name = "bench-latency",
    .group = "Run a model",
    .summary = "time one batch, many times",
    .operand = "MODEL",
    .usage = "MODEL [flags]",
    .text = "Also written invar bench latency. The same batch every time, without a cache of prefixes, from the\n"
            "first request's submission to the last one's end. Every time it must have the same digests.",
    .sections = {&latency_section, &cli_engine_section},
    .examples = latency_examples};

/* ---- bench serve -------------------------------------------------------------------------------------- */

static const cli_flag load_flags[] = {
    {COUNT("num-prompts", "N", 1, 1000000), .unset = "100", .help = "requests in all"},
    {TEXT("request-rate", "R"), .unset = "inf: all at once", .help = "requests a second on average, at random moments"},
    {COUNT("max-concurrency", "N", 1, 4000), .unset = "no limit", .help = "requests under way at the same time"},
    {CHOICE("dataset-name", "NAME", "random"), .unset = "random", .help = "what is asked: random token ids"},
    {COUNT("random-input-len", "N", 1, CLI_IDS_MAX), .unset = "512", .help = "tokens of a prompt"},
    {COUNT("random-output-len", "N", 1, CLI_TOKENS_MAX), .unset = "64", .help = "tokens of an answer"},
    {REAL("random-range-ratio", "R", 0, 0.99), .unset = "0", .help = "both lengths vary by this share, up and down"},
    {COUNT("random-prefix-len", "N", 0, CLI_IDS_MAX), .unset = "0",
     .help = "tokens before each prompt, the same for all"},
    {REAL("temperature", "T", 0, 100), .unset = "0",
     .help = "above 0 answers are sampled, each from a seed of its own"},
    {COUNT("seed", "N", 0, INT64_MAX), .unset = "0", .help = "of lengths, ids, moments and answers"},
    {COUNT("check-prompts", "N", 0, 1000000), .unset = "all",
     .help = "asked again afterwards, one at a time; 0: no check"},
    {TEXT("api-key", "KEY"), .unset = "$INVAR_API_KEY, or none", .help = "what the server wants as a bearer token"},
    {.name = "chat", .help = "ask /v1/chat/completions, with words in place of ids"},
    {TEXT("model", "NAME"), .unset = "the first of /v1/models", .help = "the model of a server that is not invar's"},
    {.name = "json", .help = "one JSON object, with vLLM's names"},
    {0},
};
static const cli_section load_section = {"Load", load_flags};
static const cli_example bench_serve_examples[] = {
    {"invar bench serve http://127.0.0.1:8000 --request-rate 5", "a server that runs"},
    {"invar bench serve http://127.0.0.1:8080 --chat", "any server of OpenAI's API, without checks"},
    {"invar bench serve tiny-math --max-concurrency 16 --temperature 1", "one that is started for it"},
    {0}};

const cli_syntax cli_bench_serve_syntax = {
    .name = "bench-serve",
    .group = "Run a model",
    .summary = "load a server, and check that it answers as when it is quiet",
    .operand = "URL|MODEL",
    .usage = "URL|MODEL [flags]",
    .text = "Also written invar bench serve. With a MODEL a server of it is started and ended; engine flags are\n"
            "its own. Times are those that clients see. Afterwards the same requests are sent one at a time: a\n"
            "digest that differs is named, and the exit code is 1, as where a request failed.",
    .sections = {&load_section, &cli_engine_section},
    .examples = bench_serve_examples};

/* ---- inspect, tokenize, render, logits ---------------------------------------------------------------- */

static const cli_flag json_flags[] = {
    {DTYPE_ROW},
    {.name = "json", .help = "one JSON object"},
    {0},
};
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
    {TEXT("text", "TEXT"), .help = "the text"},
    {PATH("text-file", "FILE"), .help = "read the text from a file; - is standard input"},
    {IDS("ids", "1,2,3"), .help = "turn token ids into text instead"},
    {.name = "split-special-tokens", .help = "special tokens that the text spells are plain text"},
    {.name = "no-special", .help = "add no BOS; with --ids: leave special tokens out"},
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
    {PATH("template", "FILE"), .help = "a Jinja template, in place of MODEL's"},
    {PATH("input", "FILE"), .help = "a JSON object: the template's variables; - is standard input"},
    {TEXT("strftime-now", "TEXT"), .unset = "the clock", .help = "what strftime_now() gives to the template"},
    {0},
};
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
    {IDS("ids", "1,2,3"), .help = "token ids"},
    {TEXT("text", "TEXT"), .help = "or a text"},
    {PATH("out", "FILE"), .help = "the safetensors file to write"},
    {0},
};
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

/* ---- verify ------------------------------------------------------------------------------------------- */

static const cli_flag verify_prompt_flags[] = {
    {PATH("prompts", "FILE"), .unset = "24 built-in ones",
     .help = "JSONL: prompt, messages or ids; - is standard input"},
    {COUNT("max-tokens", "N", 1, 4096), .unset = "16", .help = "tokens to generate where the prompt does not say"},
    {0},
};
static const cli_section verify_prompt_section = {"Requests", verify_prompt_flags};

static const cli_flag verify_axis_flags[] = {
    {TEXT("axes", "LIST"), .unset = "all", .help = "what to vary: names with commas"},
    {TEXT("batch-sizes", "LIST"), .unset = "2,5,16", .help = "requests at once"},
    {TEXT("chunk-sizes", "LIST"), .unset = "16,61,256", .help = "tokens in one step"},
    {TEXT("thread-counts", "LIST"), .unset = "2,3", .help = "worker threads"},
    {TEXT("tp-sizes", "LIST"), .unset = "2,4,8", .help = "ranks that share the model"},
    {COUNT("combinations", "N", 0, 1000), .unset = "8", .help = "random configurations of several axes"},
    {.name = "product", .help = "all combinations of all values instead"},
    {COUNT("seed", "N", 0, UINT64_MAX), .unset = "1", .help = "of what is drawn"},
    {COUNT("scalar-tokens", "N", 0, CLI_TOKENS_MAX), .unset = "200",
     .help = "most tokens for the slow scalar instructions; 0: all"},
    {0},
};
static const cli_section verify_axis_section = {
    "What is varied (batch order chunk prefix preempt threads isa tp restart sampling logprobs speculative device)",
    verify_axis_flags};

static const cli_flag verify_output_flags[] = {
    {PATH("json", "FILE"), .help = "everything as JSON; - is standard output, without a table"},
    {PATH("plot", "FILE"), .help = "a picture (SVG)"},
    {0},
};
static const cli_section verify_output_section = {"Output", verify_output_flags};

static const cli_flag verify_engine_flags[] = {
    {DEVICE_ROW}, {ARITHMETIC_ROW}, {DTYPE_ROW}, {NUMERICS_ROW}, {0},
};
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

/* ---- eval --------------------------------------------------------------------------------------------- */

static const cli_flag eval_flags[] = {
    {PATH("dataset", "FILE"),
     .help = "problems, one JSON object a line: question, problem or prompt; answer; perhaps id"},
    {TEXT("configs", "AXES"), .unset = "one: the engine flags",
     .help = "the product of axes such as \"bs=8,16,32 tp=1,2,4,8\""},
    {PATH("out", "DIR"), .help = "keep results.jsonl there, continue from it, and write report.md, .json and .svg"},
    {COUNT("limit", "N", 1, CLI_TOKENS_MAX), .unset = "all", .help = "the first N problems"},
    {.name = "no-chat", .help = "give the question as plain text, without the chat template"},
    {TEXT("system", "TEXT"), .help = "the system message"},
    {TEXT("chat-template-kwargs", "JSON"), .help = "more template variables, an object"},
    {TEXT("title", "TEXT"), .help = "the report's heading"},
    {.name = "json", .help = "the report as one JSON object instead of Markdown"},
    {0},
};
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

/* ---- replay ------------------------------------------------------------------------------------------- */

static const cli_flag replay_flags[] = {
    {.name = "force", .help = "compute receipts of another fingerprint too, and say where they part"},
    {.name = "json", .help = "one JSON object instead of a line for each receipt"},
    {0},
};
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

/* ---- completion, help --------------------------------------------------------------------------------- */

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

/* ---- all ---------------------------------------------------------------------------------------------- */

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
