/* train_syntax.c: what invar train accepts. Defaults are those of iv_run_defaults (train/run.h). */
#include "commands.h"

enum { TRAIN_THREADS_MAX = 256, RANKS_MAX = 1024, SEQUENCES_MAX = 1 << 20 };

/* The beginning of a flag's row, by the kind of its value. */
#define TEXT(n, m) .name = n, .kind = CLI_TEXT, .metavar = m
#define PATH(n, m) .name = n, .kind = CLI_FILE, .metavar = m
#define CHOICE(n, m, c) .name = n, .kind = CLI_CHOICE, .metavar = m, .choices = c
#define COUNT(n, m, l, g) .name = n, .kind = CLI_COUNT, .metavar = m, .least = l, .greatest = g
#define REAL(n, m, l, h) .name = n, .kind = CLI_REAL, .metavar = m, .low = l, .high = h

static const cli_flag run_flags[] = {
    {PATH("data", "FILE"), .unset = "required",
     .help = "JSON lines (docs/formats/training_data.md); - is standard input"},
    {PATH("output", "DIR"), .alias = "output-dir", .letter = 'o', .unset = "required",
     .help = "checkpoints, metrics.jsonl, curves"},
    {COUNT("batch-size", "N", 1, SEQUENCES_MAX), .unset = "32", .help = "sequences of a step"},
    {COUNT("steps", "N", 1, INT64_MAX), .alias = "max-steps", .unset = "as many as the epochs have",
     .help = "steps of the run"},
    {COUNT("epochs", "N", 1, UINT32_MAX), .unset = "1", .help = "passes over the data, without --steps"},
    {COUNT("seed", "N", 0, UINT64_MAX), .unset = "0",
     .help = "of the order of the data and of samples; sft with --no-shuffle draws nothing"},
    {PATH("eval-data", "FILE"), .unset = "none", .help = "held-out examples, never learned"},
    {COUNT("eval-every", "N", 1, INT64_MAX), .alias = "eval-steps", .unset = "at the end alone",
     .help = "steps between two evaluations of them"},
    {COUNT("save-every", "N", 1, INT64_MAX), .alias = "save-steps", .unset = "at the end alone",
     .help = "steps between two checkpoints"},
    {COUNT("keep", "N", 0, INT32_MAX), .alias = "save-total-limit", .unset = "3",
     .help = "newest checkpoints to keep; 0: all"},
    {.name = "resume", .help = "continue from the newest checkpoint in the output directory, if it has one"},
    {.name = "json", .help = "the summary as one JSON object"},
    {.name = "quiet", .help = "no progress on standard error"},
    {0},
};
static const cli_section run_section = {"Run", run_flags};

static const cli_flag data_flags[] = {
    {COUNT("max-length", "N", 2, CLI_TOKENS_MAX), .unset = "no limit", .help = "most tokens of an example"},
    {CHOICE("longer", "HOW", "error truncate drop"), .unset = "error", .help = "what happens to longer examples"},
    {.name = "no-shuffle", .help = "keep the order of the file"},
    {.name = "drop-last", .help = "end each epoch with its last whole batch, instead of sharing a batch with the next"},
    {0},
};
static const cli_section data_section = {"Data", data_flags};

static const cli_flag optimizer_flags[] = {
    {REAL("lr", "F", 0, 1000), .alias = "learning-rate", .unset = "2e-05", .help = "peak learning rate"},
    {CHOICE("lr-scheduler", "NAME",
            "constant constant_with_warmup linear cosine cosine_with_min_lr warmup_stable_decay wsd"),
     .alias = "lr-scheduler-type", .unset = "linear", .help = "shape of the learning rate; wsd: warmup_stable_decay"},
    {TEXT("warmup", "N"), .unset = "0", .help = "steps, or a ratio of them such as 0.1"},
    {TEXT("decay-steps", "N"), .unset = "0", .help = "wsd: steps of the decay, or a ratio such as 0.1"},
    {REAL("min-lr-ratio", "F", 0, 1), .unset = "0", .help = "wsd and cosine_with_min_lr: last learning rate / --lr"},
    {REAL("weight-decay", "F", 0, 1000), .unset = "0", .help = "AdamW: decoupled decay of matrices"},
    {.name = "decay-all", .help = "weight decay for norms and biases too"},
    {REAL("adam-beta1", "F", 0, 1), .unset = "0.9", .help = "AdamW: decay of the first moment"},
    {REAL("adam-beta2", "F", 0, 1), .unset = "0.999", .help = "AdamW: decay of the second moment"},
    {REAL("adam-eps", "F", 0, 1), .above_low = true, .alias = "adam-epsilon", .unset = "1e-08",
     .help = "AdamW: added to the denominator"},
    {REAL("max-grad-norm", "F", 0, 1e30), .unset = "1", .help = "clip the gradient to this norm; 0: no clipping"},
    {0},
};
static const cli_section optimizer_section = {"Optimizer (AdamW)", optimizer_flags};

static const cli_flag train_adapter_flags[] = {
    {COUNT("lora-rank", "R", 1, 4096), .alias = "lora-r", .unset = "all weights learn",
     .help = "learn an adapter of this rank; the model's weights do not change"},
    {REAL("lora-alpha", "A", -16777215, 16777215), .unset = "R", .help = "the adapter's term is times A / R"},
    {TEXT("lora-targets", "NAMES"), .alias = "lora-target-modules", .unset = "all-linear: all but the head",
     .help = "names of modules between commas (q_proj,v_proj), or an expression of whole names"},
    {.name = "lora-rslora", .help = "times A / sqrt(R) instead"},
    {COUNT("lora-seed", "N", 0, UINT64_MAX), .unset = "0", .help = "of the first A; the first B is zero"},
    {PATH("lora", "DIR"), .unset = "none", .help = "instead: learn the adapter that PEFT saved there further"},
    {0},
};
static const cli_section train_adapter_section = {"Adapter (LoRA; docs/LORA.md)", train_adapter_flags};

#define TRAIN_DTYPE_ROW                                       \
    CHOICE("dtype", "TYPE", "auto bfloat16 float16 float32"), \
        .unset = "auto: the checkpoint's", .help = "of weights and activations; master weights are float32"
#define TRAIN_ARITHMETIC_ROW                                                                         \
    CHOICE("arithmetic", "NAME", "auto fma32 tc16"), .unset = "auto: tc16 on a GPU, fma32 on a CPU", \
                                                     .help = "how dot products are summed"
#define TRAIN_NUMERICS_ROW                           \
    CHOICE("numerics", "NAME", "invar bio vanilla"), \
        .unset = "invar", .help = "bio and vanilla are controls, whose weights change with the layout"
#define VIRTUAL_RANKS_ROW                      \
    COUNT("virtual-ranks", "N", 1, RANKS_MAX), \
        .unset = "8", .help = "a power of two: chains of sums over tokens; --data-parallel divides it"
#define LOAD_FORMAT_ROW                                                              \
    CHOICE("load-format", "NAME", "auto dummy"), .unset = "auto: the model's files", \
                                                 .help = "dummy: a random start; needs only config.json and tokenizer"
#define DUMMY_SEED_ROW COUNT("dummy-seed", "N", 0, UINT64_MAX), .unset = "0", .help = "seed of --load-format dummy"
static const cli_flag arithmetic_flags[] = {{LOAD_FORMAT_ROW},
                                            {DUMMY_SEED_ROW},
                                            {TRAIN_DTYPE_ROW},
                                            {TRAIN_ARITHMETIC_ROW},
                                            {TRAIN_NUMERICS_ROW},
                                            {VIRTUAL_RANKS_ROW},
                                            {0}};
static const cli_section arithmetic_section = {"Start and arithmetic (part of the run's identity)", arithmetic_flags};

static const cli_flag layout_flags[] = {
    {CHOICE("device", "NAME", "auto cpu cuda"), .unset = "$INVAR_DEVICE, or auto: a GPU if there is one",
     .help = "where to compute; never changes a bit"},
    {COUNT("data-parallel-size", "N", 1, RANKS_MAX), .alias = "data-parallel dp",
     .unset = "1; under mpirun its processes / --tp", .help = "ranks that divide the batch and the optimizer state"},
    {COUNT("tensor-parallel-size", "N", 1, 8), .alias = "tensor-parallel tp", .unset = "1",
     .help = "ranks that divide each layer"},
    {.name = "enable-expert-parallel",
     .help = "whole experts on each rank, which they always are; refused without experts"},
    {COUNT("threads", "N", 0, TRAIN_THREADS_MAX), .unset = "0: one per CPU", .help = "worker threads of a process"},
    {COUNT("micro-batch", "N", 0, SEQUENCES_MAX), .alias = "micro-batch-size", .unset = "0: as many as fit",
     .help = "most sequences of a pass"},
    {COUNT("pass-tokens", "N", 0, CLI_TOKENS_MAX),
     .unset = "0: 4096, or the longest sequence; on a GPU the step's, if they fit", .help = "most tokens of a pass"},
    {CHOICE("recompute", "WHAT", "none attention layer"), .unset = "none",
     .help = "activations that are computed again instead of stored"},
    {.name = "offload-optimizer", .help = "cuda: AdamW's moments in pinned memory of the host"},
    {CHOICE("rank-transport", "HOW", "auto nccl host"), .unset = "auto: nccl if every process has it",
     .help = "cuda under mpirun: how GPUs of several processes exchange gradients and weights"},
    {CHOICE("shard", "WHAT", "optimizer parameters"), .unset = "optimizer",
     .help = "what a process of mpirun, or a GPU, holds its slice of: AdamW's moments; parameters: master weights too"},
    {CHOICE("isa", "NAME", "auto scalar avx2 avx512"), .unset = "auto: the CPU's best", .help = "instruction set"},
    {0},
};
static const cli_section layout_section = {"Speed and memory (never change a weight)", layout_flags};

/* ---- sft ----------------------------------------------------------------------------------------------- */

static const cli_example sft_examples[] = {
    {"invar train sft tiny-math --data chats.jsonl --output runs/a --epochs 2 --lr 1e-4", "two epochs"},
    {"invar train sft tiny-math --data chats.jsonl --output runs/a --epochs 2 --lr 1e-4 --dp 2 --resume",
     "continue it with two ranks: the same weights"},
    {"invar chat runs/a/checkpoint-000200/model", "talk to a checkpoint"},
    {"invar train sft tiny-math --data chats.jsonl --output runs/l --lora-rank 16 --lora-alpha 32 --lr 1e-4",
     "learn an adapter: its checkpoints are PEFT directories"},
    {0}};

const cli_syntax cli_train_sft_syntax = {
    .name = "train-sft",
    .group = "Train a model",
    .summary = "supervised fine-tuning",
    .operand = "MODEL",
    .usage = "MODEL --data FILE --output DIR [flags]",
    .text = "Also written invar train sft. Minimizes the mean of -log p over the masked tokens of each step's batch.\n"
            "Weights are a function of model, data, hyperparameters and seed alone. Ctrl-C ends the run after its\n"
            "step, with a checkpoint; a second one ends it at once.",
    .sections = {&run_section, &data_section, &optimizer_section, &train_adapter_section, &arithmetic_section,
                 &layout_section},
    .examples = sft_examples};

/* ---- rl ------------------------------------------------------------------------------------------------ */

static const cli_flag algorithm_flags[] = {
    {CHOICE("algorithm", "NAME", "reinforce rloo grpo dr-grpo dapo gspo"), .unset = "grpo", .help = "the loss"},
    {TEXT("reward", "RULE"), .unset = "exact",
     .help = "exact, numeric, boxed, format, length; several with weights: numeric:1,boxed:0.5; or a command"},
    {TEXT("reward-format", "REGEX"), .unset = "none", .help = "--reward format: the expression of a whole completion"},
    {REAL("reward-timeout", "SECONDS", 0, 86400), .above_low = true, .unset = "60",
     .help = "limit for the rewards of a step by a command"},
    {COUNT("group-size", "N", 2, 65536), .alias = "num-generations", .unset = "8", .help = "completions of a prompt"},
    {COUNT("inner-steps", "N", 1, 1000), .alias = "num-iterations", .unset = "1",
     .help = "updates from the completions of a step"},
    {REAL("kl-beta", "F", 0, 1000), .alias = "beta", .unset = "0: none",
     .help = "weight of the KL to the first weights"},
    {CHOICE("kl", "NAME", "k1 k2 k3 k1+ k3+"), .unset = "k3; rloo: k1",
     .help = "estimator of that KL; rloo's is in the reward"},
    {REAL("eps-low", "F", 0, 1), .alias = "epsilon", .unset = "the algorithm's", .help = "clip the ratio below 1 - F"},
    {REAL("eps-high", "F", 0, 1e6), .alias = "epsilon-high", .unset = "the algorithm's",
     .help = "clip the ratio above 1 + F"},
    {CHOICE("correction", "NAME", "none truncate mask"), .unset = "none",
     .help = "importance weights of sampler to learner, for controls"},
    {REAL("correction-cap", "F", 0, 1e6), .above_low = true, .unset = "2", .help = "largest importance weight"},
    {REAL("overlong-buffer", "N", 0, CLI_TOKENS_MAX), .unset = "none",
     .help = "tokens before --max-new-tokens in which the reward falls by up to 1"},
    {.name = "dynamic-sampling", .help = "learn only from groups whose rewards differ; dapo's default"},
    {0},
};
static const cli_section algorithm_section = {"Algorithm", algorithm_flags};

static const cli_flag rollout_flags[] = {
    {COUNT("max-new-tokens", "N", 1, CLI_TOKENS_MAX), .alias = "max-completion-length", .unset = "256",
     .help = "most tokens of a completion"},
    {REAL("temperature", "F", 0, 100), .above_low = true, .unset = "1", .help = "of sampler and learner"},
    {REAL("top-p", "F", 0, 1), .above_low = true, .unset = "1", .help = "as in invar generate"},
    {COUNT("top-k", "N", 0, INT32_MAX), .unset = "0: all", .help = "as in invar generate"},
    {REAL("min-p", "F", 0, 1), .unset = "0", .help = "as in invar generate"},
    {CHOICE("on-mismatch", "HOW", "stop report"), .unset = "stop",
     .help = "if the log-probabilities of sampler and learner differ in a bit"},
    {CHOICE("rollout-numerics", "NAME", "invar bio vanilla vanilla-blas"), .unset = "invar",
     .help = "of the sampler; others are controls"},
    {COUNT("rollout-mantissa-bits", "N", 0, 23), .unset = "23: all",
     .help = "a control: the sampler's matrices are rounded to N mantissa bits (bfloat16 has 7)"},
    {COUNT("rollout-sync-every", "N", 1, INT64_MAX), .unset = "1",
     .help = "a control: the sampler takes the learner's weights every N steps"},
    {COUNT("rollout-tp", "N", 1, 8), .unset = "1", .help = "tensor-parallel ranks of the sampler; never changes a bit"},
    {COUNT("rollout-max-num-seqs", "N", 0, 1024), .unset = "0: those of a step, at most 64; on GPUs 512",
     .help = "sequences in one batch of the sampler; never changes a bit"},
    {COUNT("rollout-max-num-batched-tokens", "N", 0, 65536), .unset = "0: 1024; on GPUs 8192",
     .help = "tokens in one step of the sampler; never changes a bit"},
    {.name = "sample-all-ids",
     .help = "also draw ids without a token, as of a padded vocabulary, and learn over them; changes the result"},
    {CHOICE("speculative", "HOW", "off ngram"), .unset = "off", .help = "drafts of the sampler; never change a bit"},
    {0},
};
static const cli_section rollout_section = {"Rollouts", rollout_flags};

static const cli_unset rl_unset[] = {{"batch-size", "16"}, {"lr", "1e-06"}, {"lr-scheduler", "constant"}, {0}};
static const cli_example rl_examples[] = {
    {"invar train rl tiny-math --data problems.jsonl --output runs/b --reward numeric --steps 100 --lr 1e-5",
     "GRPO, 16 prompts with 8 completions each a step"},
    {"invar train rl tiny-math --data problems.jsonl --output runs/c --reward './judge.py --strict'",
     "rewards of a program: JSON lines in and out"},
    {"invar train rl tiny-math --data problems.jsonl --output runs/d --rollout-numerics vanilla --on-mismatch report",
     "a control: the sampler computes as other engines do"},
    {0}};

const cli_syntax cli_train_rl_syntax = {
    .name = "train-rl",
    .group = "Train a model",
    .summary = "reinforcement learning, with the same bits in sampler and learner",
    .operand = "MODEL",
    .usage = "MODEL --data FILE --output DIR [flags]",
    .text = "Also written invar train rl. Each step samples --group-size completions of --batch-size prompts, scores\n"
            "them and learns from them. The log-probability of every sampled token is compared bit for bit with the\n"
            "learner's before a gradient is used; the last line reports how many were compared and how many differ.",
    .sections = {&run_section, &algorithm_section, &rollout_section, &data_section, &optimizer_section,
                 &train_adapter_section, &arithmetic_section, &layout_section},
    .unset = rl_unset,
    .examples = rl_examples};

/* ---- inspect, gradients -------------------------------------------------------------------------------- */

static const cli_flag inspect_flags[] = {
    {.name = "verify", .help = "read every file and compare its SHA-256; of a run: always done"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section train_inspect_section = {"Flags", inspect_flags};
static const cli_example train_inspect_examples[] = {
    {"invar train inspect runs/a", "the newest whole checkpoint of a run"},
    {"invar train inspect runs/a/checkpoint-000200 --verify", "one checkpoint, with its hashes"},
    {0}};

const cli_syntax cli_train_inspect_syntax = {
    .name = "train-inspect",
    .group = "Train a model",
    .summary = "describe a checkpoint of a training run",
    .operand = "PATH",
    .usage = "CHECKPOINT|RUN [flags]",
    .text = "Also written invar train inspect. RUN is the output directory of a run.",
    .sections = {&train_inspect_section},
    .examples = train_inspect_examples};

static const cli_flag gradients_flags[] = {
    {PATH("data", "FILE"), .unset = "required", .help = "all its examples are one batch; - is standard input"},
    {PATH("out", "FILE"), .unset = "required", .help = "the safetensors file to write"},
    {COUNT("max-length", "N", 2, CLI_TOKENS_MAX), .unset = "no limit", .help = "most tokens of an example"},
    {CHOICE("longer", "HOW", "error truncate drop"), .unset = "error", .help = "what happens to longer examples"},
    {.name = "json", .help = "one JSON object"},
    {0},
};
static const cli_section gradients_section = {"Flags", gradients_flags};
static const cli_example gradients_examples[] = {
    {"invar train gradients tiny-math --data batch.jsonl --out gradients.safetensors --dtype float32",
     "to compare with another framework's"},
    {0}};

const cli_syntax cli_train_gradients_syntax = {
    .name = "train-gradients",
    .group = "Train a model",
    .summary = "write the gradient of one batch to a file",
    .operand = "MODEL",
    .usage = "MODEL --data FILE --out FILE [flags]",
    .text =
        "Also written invar train gradients. The file holds the gradient of sum(-mask * log p) / sum(mask) over all\n"
        "examples, in float32, under the names of the checkpoint. A tied head's is in the embedding's.",
    .sections = {&gradients_section, &arithmetic_section, &layout_section},
    .examples = gradients_examples};

/* ---- verify --train ------------------------------------------------------------------------------------- */

static const cli_flag verify_train_flags[] = {
    {.name = "train", .help = "compare the weights of training runs instead of answers"},
    {PATH("data", "FILE"), .unset = "random sequences", .help = "JSONL for supervised fine-tuning"},
    {COUNT("steps", "N", 1, 100000), .unset = "20", .help = "steps of a run; the weights of each are compared"},
    {COUNT("batch-size", "N", 1, 65536), .unset = "16", .help = "sequences of a step"},
    {TEXT("worlds", "LIST"), .unset = "2,4,8", .help = "values of the axis world: data-parallel ranks"},
    {TEXT("micro-batches", "LIST"), .unset = "1,2,4,8",
     .help = "values of the axis micro-batch: most sequences of a pass"},
    {COUNT("scalar-steps", "N", 0, 100000), .unset = "2",
     .help = "steps to run with the slow scalar instruction set; 0: all"},
    {TEXT("part", "I/N"), .unset = "1/1",
     .help = "run every Nth configuration, from the Ith on: N machines share them"},
    {COUNT("lora-rank", "R", 1, 4096), .unset = "all weights learn", .help = "an adapter of this rank learns"},
    {TEXT("lora-targets", "NAMES"), .unset = "all-linear", .help = "modules with an adapter, as in train sft"},
    {0},
};
const cli_section cli_verify_train_section = {
    "Training (axes threads isa tp device world micro-batch recompute resume)", verify_train_flags};
