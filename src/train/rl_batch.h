/* rl_batch.h: the sequences of an RL step: prompts with their completions, rewards, advantages and what is known of
 * each token. */
#ifndef IV_TRAIN_RL_BATCH_H
#define IV_TRAIN_RL_BATCH_H

#include "train/loss/algorithm.h"
#include "train/data/data.h"
#include "train/rollout/rollout.h"
#include "train/trainer/trainer.h"

/* n sequences; arrays per token have an element for each id of a sequence, 0 in the prompt. */
typedef struct iv_rl_batch {
    size_t n, group;
    float *memory;
    iv_train_sequence *sequences;                         /* [n]: mask 1 at completion tokens */
    iv_loss_sequence *losses;                             /* [n] */
    iv_loss_sums *sums;                                   /* [n], of the latest inner step */
    float **coefficients, **old, **behavior, **reference; /* [n][count] */
    uint32_t *groups;                                     /* [n] */
    double *rewards, *advantages;                         /* [n] */
    size_t *completion;                                   /* [n]: tokens */
    bool *kept;                                           /* [n]: in the update; false: a group without a signal */
    uint64_t tokens, completion_tokens;
} iv_rl_batch;

/* Completion j of prompt i is sequence i * group + j. sampled: whether log-probabilities are those of the distribution
 * drawn from (temperature), else the model's own. */
iv_status iv_rl_batch_make(const iv_train_data *data, const uint32_t *examples, size_t prompts, size_t group,
                           const iv_rollout *rollout, bool sampled, bool reference, iv_rl_batch *out, iv_error *err);
void iv_rl_batch_free(iv_rl_batch *b);

/* Rewards as the algorithm shapes them, advantages, and which groups carry a signal: those whose own rewards, before
 * any shaping, differ. A KL in the reward reads `old` and `reference` of every sequence. Returns the number of
 * sequences of the update in *kept. */
iv_status iv_rl_batch_weigh(iv_rl_batch *b, const iv_algorithm *a, size_t *kept, iv_error *err);

/* The sequences of the update in a row at the front of `out` and of `index`; [n] each. */
size_t iv_rl_batch_pick(const iv_rl_batch *b, iv_train_sequence *out, uint32_t *index);

#endif
