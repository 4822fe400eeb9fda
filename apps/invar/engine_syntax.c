/* engine_syntax.c: the flags of an engine. */
#include "commands.h"
#include "flag_rows.h"

enum { THREADS_MAX = 256, SEQS_MAX = 1024, BATCHED_TOKENS_MAX = 65536 };

static const cli_flag engine_flags[] = {
    {CHOICE("load-format", "NAME", "auto dummy"), .unset = "auto: the model's files",
     .help = "dummy: seeded random weights for benchmarks; needs only config.json"},
    {COUNT("dummy-seed", "N", 0, UINT64_MAX), .unset = "0", .help = "seed of --load-format dummy"},
    {DEVICE_ROW},
    {.name = "enforce-eager", .help = "cuda: launch kernels one by one, without CUDA graphs; never changes a bit"},
    {ARITHMETIC_ROW},
    {DTYPE_ROW},
    {CHOICE("weights", "HOW", "auto packed expanded"),
     .unset = "auto: packed on a CPU, and on a GPU without room for more",
     .help = "hold quantized weights as the file has them, or in 16 bits; never changes a bit"},
    {NUMERICS_ROW},
    {CHOICE("isa", "NAME", "auto scalar avx2 avx512"), .unset = "auto: the CPU's best",
     .help = "instruction set; never changes a bit"},
    {COUNT("threads", "N", 0, THREADS_MAX), .unset = "0: one per CPU", .help = "worker threads; never changes a bit"},
    {COUNT("tensor-parallel-size", "N", 1, 8), .alias = "tp", .unset = "1, or the number of mpirun processes",
     .help = "tensor-parallel ranks; never changes a bit"},
    {CHOICE("rank-transport", "HOW", "auto nccl host"), .unset = "auto: nccl if every rank has it",
     .help = "transport between GPUs of several processes (mpirun); never changes a bit"},
    {COUNT("rank-timeout", "MS", 100, 3600000), .unset = "6000",
     .help = "milliseconds until a rank that waits for another gives up"},
    {COUNT("max-model-len", "N", 1, CLI_TOKENS_MAX), .unset = "the model's",
     .help = "longest sequence (prompt and answer) in tokens"},
    {COUNT("max-num-seqs", "N", 1, SEQS_MAX), .unset = "16; on GPUs 256",
     .help = "sequences in one batch; never changes a bit"},
    {COUNT("max-num-batched-tokens", "N", 1, BATCHED_TOKENS_MAX), .unset = "512; on GPUs 8192",
     .help = "tokens in one step; longer prompts are split into chunks"},
    {COUNT("step-target", "MS", 0, 60000), .unset = "0; serve on GPUs: 50",
     .help = "milliseconds of a step that reads prompts next to running streams; 0: no target; never changes a bit"},
    {MEMORY("kv-cache-memory", "SIZE"),
     .unset = "all sequences at full length, at most 0.25 of free memory (0.9 on GPUs)",
     .help = "memory for keys and values: 2G, 512M, or 0.5 of free memory"},
    {BYTES("state-cache-memory", "SIZE", 1, UINT64_MAX / 4), .unset = "at most 1/16 of free memory",
     .help = "memory for states of linear attention, which cached prefixes need; never changes a bit"},
    {.name = "no-enable-prefix-caching", .help = "do not reuse cached prefixes"},
    {.name = "sample-all-ids",
     .help = "also draw ids without a token, as of a padded vocabulary; part of the fingerprint"},
    {CHOICE("speculative", "HOW", "off ngram"), .unset = "off",
     .help = "ngram: draft tokens from the text so far; never changes a bit"},
    {COUNT("num-speculative-tokens", "N", 1, 16), .unset = "5", .help = "most tokens in a draft"},
    {0},
};
const cli_section cli_engine_section = {"Engine", engine_flags};
