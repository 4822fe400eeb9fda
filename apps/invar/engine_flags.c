/* engine_flags.c: a line of the table for each engine option. Ranges are those of the engine. */
#include "engine_flags.h"
#include "text.h"

#include <stdlib.h>

enum { THREADS_MAX = 256, SEQS_MAX = 1024, BATCHED_TOKENS_MAX = 65536 };

static const cli_flag engine_flags[] = {
    {.name = "load-format",
     .kind = CLI_CHOICE,
     .metavar = "NAME",
     .choices = "auto dummy",
     .unset = "auto: the model's files",
     .help = "dummy: seeded random weights, for measuring: config.json is enough"},
    {.name = "dummy-seed",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = UINT64_MAX,
     .unset = "0",
     .help = "seed of --load-format dummy"},
    CLI_DEVICE_FLAG,
    {.name = "enforce-eager", .help = "cuda: launch kernels one by one, capture no graphs; never changes a bit"},
    CLI_ARITHMETIC_FLAG,
    CLI_DTYPE_FLAG,
    CLI_NUMERICS_FLAG,
    {.name = "isa",
     .kind = CLI_CHOICE,
     .metavar = "NAME",
     .choices = "auto scalar avx2 avx512",
     .unset = "auto: the CPU's best",
     .help = "instructions to use; never changes a bit"},
    {.name = "threads",
     .kind = CLI_COUNT,
     .metavar = "N",
     .greatest = THREADS_MAX,
     .unset = "0: one for each CPU",
     .help = "worker threads; never changes a bit"},
    {.name = "tensor-parallel-size",
     .alias = "tp",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = 8,
     .unset = "1, or the processes of mpirun",
     .help = "ranks that share the model; never changes a bit"},
    {.name = "rank-transport",
     .kind = CLI_CHOICE,
     .metavar = "HOW",
     .choices = "auto nccl host",
     .unset = "auto: nccl where every rank finds it",
     .help = "how GPUs of several processes (mpirun) get each other's bytes; never changes one"},
    {.name = "rank-timeout",
     .kind = CLI_COUNT,
     .metavar = "MS",
     .least = 100,
     .greatest = 3600000,
     .unset = "6000",
     .help = "milliseconds that a rank waits for another before the job ends"},
    {.name = "max-model-len",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = CLI_TOKENS_MAX,
     .unset = "the model's",
     .help = "longest sequence, prompt and answer, in tokens"},
    {.name = "max-num-seqs",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = SEQS_MAX,
     .unset = "16; on GPUs 256",
     .help = "sequences run together; never changes a bit"},
    {.name = "max-num-batched-tokens",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = BATCHED_TOKENS_MAX,
     .unset = "512; on GPUs 8192",
     .help = "tokens in one step; longer prompts are read in chunks"},
    {.name = "kv-cache-memory",
     .kind = CLI_MEMORY,
     .metavar = "SIZE",
     .unset = "all sequences at full length, or a quarter of what is free (on GPUs 0.9)",
     .help = "memory for keys and values: 2G, 512M, or 0.5 of what is free"},
    {.name = "no-enable-prefix-caching", .help = "compute every prompt anew"},
    {.name = "speculative",
     .kind = CLI_CHOICE,
     .metavar = "HOW",
     .choices = "off ngram",
     .unset = "off",
     .help = "ngram: verify drafts looked up in the text so far; never changes a bit"},
    {.name = "num-speculative-tokens",
     .kind = CLI_COUNT,
     .metavar = "N",
     .least = 1,
     .greatest = 16,
     .unset = "5",
     .help = "most tokens of a draft"},
    {0}};
const cli_section cli_engine_section = {"Engine", engine_flags};

const char *cli_device(const cli_args *args) {
    const char *set = getenv("INVAR_DEVICE");
    return cli_text(args, "device", set && *set ? set : "auto");
}

int cli_device_check(const cli_args *args, iv_error *err) {
    const cli_flag *flag = cli_flag_find(args->syntax, "device");
    const char *set = getenv("INVAR_DEVICE");
    cli_value value;
    iv_error ignored;
    char found[CLI_SHOWN_BYTES];
    if (!flag || !set || !*set || cli_has(args, "device")) return CLI_OK;
    if (cli_parse_value(flag, set, &value, &ignored) == CLI_OK) return CLI_OK;
    return cli_fail(err, CLI_USAGE, "$INVAR_DEVICE: wanted one of: %s, found '%s'", flag->choices,
                    cli_shown(set, found));
}

void cli_engine_options(const cli_args *args, iv_engine_options *o) {
    o->load_format = cli_text(args, "load-format", o->load_format);
    o->dummy_seed = cli_count(args, "dummy-seed", o->dummy_seed);
    o->device = cli_device(args);
    o->enforce_eager = cli_has(args, "enforce-eager");
    o->dtype = cli_text(args, "dtype", o->dtype);
    o->arithmetic = cli_text(args, "arithmetic", o->arithmetic);
    o->numerics = cli_text(args, "numerics", o->numerics);
    o->isa = cli_text(args, "isa", o->isa);
    o->threads = cli_count(args, "threads", o->threads);
    o->tensor_parallel_size = cli_count(args, "tensor-parallel-size", o->tensor_parallel_size);
    o->rank_transport = cli_text(args, "rank-transport", o->rank_transport);
    o->rank_timeout_ms = cli_count(args, "rank-timeout", o->rank_timeout_ms);
    o->max_model_len = cli_count(args, "max-model-len", o->max_model_len);
    o->max_num_seqs = cli_count(args, "max-num-seqs", o->max_num_seqs);
    o->max_num_batched_tokens = cli_count(args, "max-num-batched-tokens", o->max_num_batched_tokens);
    const cli_value *memory = cli_find(args, "kv-cache-memory");
    if (memory) o->kv_bytes = memory->count, o->kv_fraction = (double)memory->real;
    o->prefix_caching = !cli_has(args, "no-enable-prefix-caching");
    o->speculative = cli_text(args, "speculative", o->speculative);
    o->speculative_tokens = cli_count(args, "num-speculative-tokens", o->speculative_tokens);
}
