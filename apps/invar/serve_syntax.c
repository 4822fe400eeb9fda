/* serve_syntax.c: what invar serve and invar batch accept. */
#include "commands.h"
#include "flag_rows.h"

/* ---- serve --------------------------------------------------------------------------------------------- */

/* vLLM's names. */
#define TOOL_PARSERS                                                                        \
    "auto none hermes llama3_json llama4_json llama4_pythonic pythonic mistral qwen3_coder" \
    " qwen3_xml openai glm45 glm47 seed_oss minimax_m2 granite granite4 phi4_mini_json"     \
    " hunyuan_a13b ernie45 deepseek_v3 deepseek_v31 kimi_k2 olmo3"
#define REASONING_PARSERS                                                                \
    "auto none qwen3 deepseek_r1 deepseek_v3 ernie45 glm45 granite hunyuan_a13b kimi_k2" \
    " minimax_m2 mistral olmo3 openai_gptoss seed_oss"

static const cli_flag server_flags[] = {
    {PATH("config", "FILE"), .unset = "none",
     .help = "YAML file of these flags by name; the command line wins; SIGHUP rereads it"},
    {TEXT("host", "ADDRESS"), .unset = "127.0.0.1",
     .help = "address to listen on; a name means all its addresses, 0.0.0.0 all interfaces"},
    {COUNT("port", "N", 0, 65535), .unset = "8000", .help = "port to listen on; 0 picks a free one and logs it"},
    {TEXT("served-model-name", "NAMES"), .unset = "the directory's name",
     .help = "model name in the API; several: A,B"},
    {CHOICE("tool-call-parser", "NAME", TOOL_PARSERS), .unset = "auto: from the chat template",
     .help = "form of the model's tool calls"},
    {CHOICE("reasoning-parser", "NAME", REASONING_PARSERS), .unset = "auto: from the chat template",
     .help = "form of the model's reasoning"},
    {.name = "split-special-tokens",
     .help = "treat special tokens spelled in requests as plain text, unless the request overrides it"},
    {TEXT("proof-urls", "LIST"), .unset = "none", .help = "other servers of the same model for the page's Proof tab"},
    {COUNT("max-queued-requests", "N", 1, 4096), .unset = "1024",
     .help = "longest queue; further requests receive 429"},
    {COUNT("max-connections-per-client", "N", 1, 4096), .unset = "no limit",
     .help = "connections per client address; further ones receive 429"},
    {BYTES("max-request-body", "SIZE", 1 << 10, 1 << 29), .unset = "8M",
     .help = "largest request body, such as 32M; larger ones receive 413"},
    {BYTES("max-unread-bytes", "SIZE", 0, (uint64_t)1 << 40), .unset = "64M",
     .help = "output buffered for slow readers; above it their requests pause"},
    {PATH("response-dir", "DIR"), .unset = "none: nothing is stored",
     .help = "store responses of /v1/responses there, for previous_response_id"},
    {COUNT("max-stored-responses", "N", 1, 1000000), .unset = "10000", .help = "stored responses; the oldest go"},
    {BYTES("max-stored-bytes", "SIZE", 1 << 20, (uint64_t)1 << 50), .unset = "1G", .help = "bytes of all of them"},
    {COUNT("drain-timeout", "SECONDS", 0, 86400), .unset = "30",
     .help = "time that accepted requests have to finish after SIGTERM"},
    {0},
};
static const cli_section server_section = {"Server", server_flags};

static const cli_flag fault_flags[] = {
    {CHOICE("engine-process", "HOW", "on off"), .unset = "on; under mpirun off",
     .help = "run the engine in a process of its own, which is restarted if it ends"},
    {COUNT("engine-restarts", "N", 0, INT32_MAX), .unset = "3",
     .help = "restarts within ten minutes; then the server ends. Requests continue with the same bits"},
    {COUNT("engine-timeout", "MS", 100, 3600000), .unset = "10000",
     .help = "milliseconds of silence after which the engine process is restarted; a step may take 60 times as long"},
    {0},
};
static const cli_section fault_section = {"Faults", fault_flags};

static const cli_flag update_flags[] = {
    {PATH("update-dir", "DIR"), .unset = "/dev/shm with room for the weights three times, else $TMPDIR or /tmp",
     .help = "where weights that a trainer sends are collected; the latest stay there for a restart of the engine"},
    {COUNT("update-timeout", "SECONDS", 1, 86400), .unset = "600",
     .help = "time that a trainer's process group may take to connect, and for each broadcast"},
    {TEXT("weights-python", "PROGRAM"), .unset = "python3 next to this program if it is there, else of $PATH",
     .help = "the Python with torch and the package invar that takes a trainer's tensors (python -m invar.weights)"},
    {0},
};
static const cli_section update_section = {"Updates of weights", update_flags};

#define LORA_MODULES_ROW                                             \
    TEXT("lora-modules", "NAME=DIR ..."),                            \
        .alias = "lora", .most = 64, .words = true, .unset = "none", \
        .help = "adapters that PEFT saved (docs/LORA.md), or {\"name\", \"path\", \"base_model_name\"}; repeatable"

static const cli_flag adapter_flags[] = {
    {LORA_MODULES_ROW},
    {.name = "enable-lora", .help = "room for adapters that clients load: /v1/load_lora_adapter"},
    {COUNT("max-loras", "N", 1, 1024), .unset = "as many as --lora-modules; with --enable-lora at least 4",
     .help = "adapters that may be loaded at once; memory for them is set aside"},
    {MAX_LORA_RANK_ROW},
    {0},
};
static const cli_section adapter_section = {"Adapters", adapter_flags};

static const cli_flag access_flags[] = {
    {TEXT("api-key", "KEY"), .unset = "$INVAR_API_KEY, or none", .help = "clients must send this bearer token"},
    {TEXT("admin-api-key", "KEY"), .unset = "$INVAR_ADMIN_API_KEY, or none",
     .help = "bearer token for administrative routes; without it they are disabled, unless the server has no keys and "
             "listens at loopback only"},
    {PATH("api-key-file", "FILE"), .unset = "none", .help = "client keys, one per line; SIGHUP rereads the file"},
    {PATH("admin-api-key-file", "FILE"), .unset = "none", .help = "the same for administrative routes"},
    {.name = "allow-flush",
     .help = "allow /flush_cache without the admin key; it delays answers but never changes them"},
    {TEXT("allowed-hosts", "LIST"), .unset = "localhost, --host, IP addresses",
     .help = "Host names accepted without a key: comma-separated, *.NAME, or *"},
    {TEXT("allowed-origins", "LIST"), .unset = "none",
     .help = "origins of other web pages to allow (CORS): comma-separated, or *"},
    {0},
};
static const cli_section access_section = {"Access", access_flags};

static const cli_flag watch_flags[] = {
    {CHOICE("metrics-compat", "NAME", "vllm sglang"), .unset = "invar's names only",
     .help = "add this server's metric names to /metrics"},
    {CHOICE("log-format", "HOW", "text json"), .unset = "text", .help = "format of log lines"},
    {CHOICE("log-level", "LEVEL", "info warning error"), .unset = "info", .help = "least important lines of the log"},
    {PATH("log-file", "FILE"), .unset = "standard error", .help = "append the log to FILE; SIGHUP reopens it"},
    {.name = "disable-log-requests", .help = "do not log each request"},
    {0},
};
static const cli_section watch_section = {"Metrics and log", watch_flags};

static const cli_example serve_examples[] = {
    {"invar serve tiny-math", "for this machine only, port 8000"},
    {"invar serve tiny-math --host 0.0.0.0 --api-key secret", "for the network, with a key"},
    {"invar serve tiny-math --metrics-compat vllm --log-format json",
     "for dashboards and log pipelines built for vLLM"},
    {"invar serve --config serve.yaml --port 8001", "flags and model from a file, except the port"},
    {0}};

const cli_syntax cli_serve_syntax = {
    .name = "serve",
    .group = "Run a model",
    .summary = "answer over HTTP: the OpenAI and SGLang APIs, and a page",
    .operand = "MODEL",
    .has_config = true,
    .usage = "MODEL [flags]",
    .text =
        "The log goes to standard error. On SIGTERM or Ctrl-C the server accepts no new requests and exits when the\n"
        "accepted ones have finished; a second signal stops it immediately. SIGHUP rereads --config and key files and\n"
        "reopens the log file; SIGUSR1 and SIGUSR2 are ignored.",
    .sections = {&server_section, &adapter_section, &fault_section, &update_section, &access_section, &watch_section,
                 &cli_engine_section},
    .examples = serve_examples};

/* ---- batch --------------------------------------------------------------------------------------------- */

static const cli_flag batch_flags[] = {
    {PATH("input", "FILE"), .letter = 'i', .unset = "required", .help = "requests, one per line; - is standard input"},
    {PATH("output", "FILE"), .letter = 'o', .unset = "required",
     .help = "answers, in the same order; - is standard output"},
    {TEXT("served-model-name", "NAMES"), .unset = "the directory's name",
     .help = "model name in the requests; several: A,B"},
    {CHOICE("tool-call-parser", "NAME", TOOL_PARSERS), .unset = "auto: from the chat template",
     .help = "form of the model's tool calls"},
    {CHOICE("reasoning-parser", "NAME", REASONING_PARSERS), .unset = "auto: from the chat template",
     .help = "form of the model's reasoning"},
    {0},
};
static const cli_section batch_section = {"Batch", batch_flags};

static const cli_flag batch_adapter_flags[] = {{LORA_MODULES_ROW}, {MAX_LORA_RANK_ROW}, {0}};
static const cli_section batch_adapter_section = {"Adapters", batch_adapter_flags};

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
        "The files have the format of OpenAI's batch API, with the routes /v1/chat/completions, /v1/completions and\n"
        "/v1/responses. A bad line receives an error as its answer. Repeating an interrupted command resumes it.",
    .sections = {&batch_section, &batch_adapter_section, &cli_engine_section},
    .examples = batch_examples};
