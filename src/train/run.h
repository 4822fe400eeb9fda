/* run.h: a training run from its files to its checkpoints: what `invar train sft` and `invar train rl` do. The only
 * header of this folder that the program uses. */
#ifndef IV_TRAIN_RUN_H
#define IV_TRAIN_RUN_H

#include "invar_train.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum iv_run_kind { IV_RUN_SFT, IV_RUN_RL } iv_run_kind;

/* What a run is made of. Texts are parsed by the run, so that errors name them. */
typedef struct iv_run_options {
    iv_run_kind kind;
    iv_trainer_options trainer; /* model, optimizer, arithmetic, layout. data_parallel 0: 1, or under mpirun its
                                 * processes / tensor_parallel; pass_tokens 0: the step's, or what fits. The run sets
                                 * `run` and no_optimizer itself */
    const char *data, *output;  /* a file and a directory; output: checkpoints, log, curves; NULL: no files */
    const char *eval_data;      /* held-out examples, never learned; NULL: none */
    /* ---- what decides the weights ---- */
    const char *numerics;   /* "invar"; a baseline's name as a control */
    uint64_t steps, epochs; /* steps 0: as many as the epochs have */
    uint64_t batch_size;    /* sequences of a step; in RL prompts */
    uint64_t seed;
    double learning_rate, max_grad_norm, min_lr_ratio;
    const char *schedule, *warmup, *decay_steps;
    uint64_t max_length;
    const char *longer; /* "error", "truncate", "drop" */
    bool no_shuffle, drop_last;
    /* RL */
    const char *algorithm, *reward, *reward_format, *kl, *correction; /* reward_format: the expression of "format";
                                                                       * kl NULL: the algorithm's own */
    uint64_t group_size, max_new_tokens, inner_steps;
    double temperature, top_p, min_p, kl_beta, eps_low, eps_high, correction_cap, overlong_buffer; /* below 0: the
                                                                                                    * algorithm's own */
    int64_t top_k;
    bool dynamic_sampling, sample_all_ids; /* sample_all_ids: as iv_engine_options */
    const char *rollout_numerics;          /* as numerics */
    /* Controls: the sampler's matrices are rounded to so many mantissa bits, 23: not; it takes the learner's weights
     * after every so many steps. */
    uint64_t rollout_mantissa_bits, rollout_sync_every;
    /* ---- what does not ---- */
    bool separate;              /* iv_gpu_learner_options, for tests */
    const char *rank_transport; /* of processes with a GPU each: "auto", "nccl", "host" */
    const char *shard; /* what a process has its slice of alone: "optimizer", "parameters" (master weights too) */
    uint64_t save_every, keep;
    uint64_t eval_every; /* steps between two evaluations; there is one after the last step; 0: that alone */
    bool resume;         /* from the newest checkpoint of output, if it has one */
    uint64_t rollout_tp, rollout_seqs, rollout_batched_tokens;
    const char *speculative;
    double reward_timeout;   /* seconds for a command's rewards of a step; below 0: 60 */
    const char *on_mismatch; /* "stop", "report" */
    /* ---- what people see ---- */
    FILE *progress;                    /* a line that moves; NULL: none */
    bool quiet;                        /* no notes */
    const volatile sig_atomic_t *stop; /* not zero: end after this step, with a checkpoint */
    /* After each step, before `stop` is read: its number from 1, and the hash of the weights. NULL: none. */
    void (*step)(void *user, uint64_t step, const char *weights_hash);
    void *step_user;
} iv_run_options;

void iv_run_defaults(iv_run_options *o, iv_run_kind kind);

/* What a run came to. */
typedef struct iv_run_summary {
    uint64_t first_step, steps; /* the step it began after, and the last one */
    bool stopped;               /* by `stop` */
    double loss, reward, seconds;
    bool evaluated;
    double eval_loss, eval_reward;        /* of the last evaluation: sft, rl */
    uint64_t tokens, compared, different; /* compared: sampled tokens whose log-probability was checked */
    uint64_t idle_steps;                  /* rl: without an advantage: all rewards of every group were equal */
    double largest_difference;            /* of a log-probability */
    size_t lent_bytes; /* rl on a GPU: of the rollouts' keys and values, in which the learner's passes lie */
    const char *device, *isa, *dtype, *arithmetic; /* that it ran with */
    char weights_hash[65], identity[128], checkpoint[4096];
} iv_run_summary;

/* Runs to the end, under mpirun collectively. Notes about resumption go to `progress`'s stream. */
iv_status iv_run_train(const iv_run_options *o, iv_run_summary *out, iv_error *err);

/* The gradient of the mean loss over one batch (all examples of the data) in float32, under the checkpoint's names, as
 * a safetensors file. */
typedef struct iv_gradients_summary {
    uint64_t sequences, tokens;
    double loss, norm;
} iv_gradients_summary;
iv_status iv_run_gradients(const iv_run_options *o, const char *out, iv_gradients_summary *summary, iv_error *err);

/* What a checkpoint says, as JSON text into out (the caller frees it by iv_run_text_free). verify: its hashes too. */
iv_status iv_run_inspect(const char *path, bool verify, char **out, iv_error *err);
void iv_run_text_free(char *text);

#endif
