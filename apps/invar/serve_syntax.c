/* serve_syntax.c: the flags of invar serve, named as vLLM names them where it has them. */
#include "engine_flags.h"
#include "syntax.h"

static const cli_flag server_flags[] = {
    {.name = "host",
     .kind = CLI_TEXT,
     .metavar = "ADDRESS",
     .unset = "127.0.0.1",
     .help = "where to listen: all addresses of a name; 0.0.0.0 is everywhere"},
    {.name = "port",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = 65535,
     .unset = "8000",
     .help = "0: any that is free; a line says which"},
    {.name = "served-model-name",
     .kind = CLI_TEXT,
     .metavar = "NAME",
     .unset = "the directory's",
     .help = "what clients call the model"},
    {.name = "tool-call-parser",
     .kind = CLI_CHOICE,
     .metavar = "NAME",
     .choices = "auto hermes llama3_json mistral qwen3_coder qwen3_xml none",
     .unset = "auto: as its chat template writes them",
     .help = "the form in which the model calls tools"},
    {.name = "proof-urls",
     .kind = CLI_TEXT,
     .metavar = "LIST",
     .unset = "none",
     .help = "other servers of the model that the page's Proof asks, too"},
    {.name = "max-queued-requests",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = 4096,
     .unset = "1024",
     .help = "requests that may wait; more are answered with 429"},
    {.name = "max-request-body",
     .kind = CLI_BYTES,
     .metavar = "SIZE",
     .least = 1 << 10,
     .greatest = 1 << 29,
     .unset = "8M",
     .help = "the longest body of a request, such as 32M; more is answered with 413"},
    {.name = "drain-timeout",
     .kind = CLI_COUNT,
     .metavar = "SECONDS",
     .greatest = 86400,
     .unset = "30",
     .help = "how long accepted requests may take after SIGTERM"},
    {0}};
static const cli_section server_section = {"Server", server_flags};

static const cli_flag access_flags[] = {{.name = "api-key",
                                         .kind = CLI_TEXT,
                                         .metavar = "KEY",
                                         .unset = "$INVAR_API_KEY, or none",
                                         .help = "clients must send it as a bearer token"},
                                        {.name = "admin-api-key",
                                         .kind = CLI_TEXT,
                                         .metavar = "KEY",
                                         .unset = "$INVAR_ADMIN_API_KEY, or none",
                                         .help = "for routes that change the server; without it they are off"},
                                        {.name = "allow-flush",
                                         .help = "/flush_cache without the admin key: it makes answers later, "
                                                 "never other ones"},
                                        {.name = "allowed-origins",
                                         .kind = CLI_TEXT,
                                         .metavar = "LIST",
                                         .unset = "none",
                                         .help = "web pages of other origins that may ask: with commas, or *"},
                                        {0}};
static const cli_section access_section = {"Access", access_flags};

static const cli_flag watch_flags[] = {{.name = "metrics-compat",
                                        .kind = CLI_CHOICE,
                                        .metavar = "NAME",
                                        .choices = "vllm sglang",
                                        .unset = "our own names alone",
                                        .help = "/metrics has the names of this server too"},
                                       {.name = "log-format",
                                        .kind = CLI_CHOICE,
                                        .metavar = "HOW",
                                        .choices = "text json",
                                        .unset = "text",
                                        .help = "of the lines on standard error"},
                                       {.name = "disable-log-requests", .help = "no line for each request"},
                                       {0}};
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
    .text = "Lines about what happens go to standard error. SIGTERM or Ctrl-C takes no new requests and ends when the\n"
            "accepted ones are answered; a second one ends at once.",
    .sections = {&server_section, &access_section, &watch_section, &cli_engine_section},
    .examples = serve_examples};
