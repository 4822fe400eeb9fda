/* algorithm.h: the losses of fine-tuning and of reinforcement learning, as functions of log-probabilities.
 *
 * Sources: REINFORCE (Williams 1992) with the group's mean as baseline; RLOO (Ahmadian et al. 2024); GRPO (Shao et al.
 * 2024); Dr. GRPO (Liu et al. 2025); DAPO (Yu et al. 2025); GSPO (Zheng et al. 2025); truncated and masked importance
 * sampling (Yao et al. 2025). The tests compare them with TRL and verl.
 *
 * The law: NUMERICS.md 15.14, with its names. */
#ifndef IV_TRAIN_LOSS_ALGORITHM_H
#define IV_TRAIN_LOSS_ALGORITHM_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum iv_algorithm_kind {
    IV_SFT,
    IV_REINFORCE,
    IV_RLOO,
    IV_GRPO,
    IV_DR_GRPO,
    IV_DAPO,
    IV_GSPO,
    IV_ALGORITHM_COUNT
} iv_algorithm_kind;

typedef enum iv_advantage {
    IV_ADVANTAGE_MEAN,          /* r - mean of the group */
    IV_ADVANTAGE_LEAVE_ONE_OUT, /* r - mean of the others */
    IV_ADVANTAGE_MEAN_STD       /* (r - mean) / (std of the group + std_eps), n - 1 in std */
} iv_advantage;
typedef enum iv_ratio { IV_RATIO_NONE, IV_RATIO_TOKEN, IV_RATIO_SEQUENCE_MEAN, IV_RATIO_SEQUENCE_SUM } iv_ratio;
typedef enum iv_aggregation {
    IV_AGGREGATE_TOKEN_MEAN,
    IV_AGGREGATE_SEQUENCE_MEAN,
    IV_AGGREGATE_SEQUENCE_SUM,
    IV_AGGREGATE_CONSTANT
} iv_aggregation;
typedef enum iv_correction { IV_CORRECTION_NONE, IV_CORRECTION_TRUNCATE, IV_CORRECTION_MASK } iv_correction;
typedef enum iv_kl { IV_KL_K1, IV_KL_K2, IV_KL_K3, IV_KL_K1_PLUS, IV_KL_K3_PLUS } iv_kl;

typedef struct iv_algorithm {
    iv_algorithm_kind kind;
    iv_advantage advantage;
    iv_ratio ratio;
    iv_aggregation aggregation;
    bool clip;
    double eps_low, eps_high; /* in [0, 1), >= 0 */
    double ratio_max;         /* dual clip: above 1 + eps_high; 0: none */
    double std_eps;           /* 1e-4 as TRL; verl has 1e-6 */
    double constant_length;   /* of aggregation `constant` */
    double kl_beta;           /* 0: no reference */
    iv_kl kl;
    bool kl_in_reward; /* reward - kl_beta * sum of w (old - reference) instead of a term of the loss */
    iv_correction correction;
    bool correction_of_sequence;
    double correction_cap, correction_floor;
    double overlong_max, overlong_buffer; /* soft overlong penalty, in tokens; overlong_max 0: none */
    double overlong_factor;
    bool dynamic_sampling; /* the caller drops groups without a signal */
} iv_algorithm;

/* "sft", "reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo". */
iv_status iv_algorithm_parse(const char *text, iv_algorithm_kind *kind, iv_error *err);
const char *iv_algorithm_name(iv_algorithm_kind kind);
/* "k1", "k2", "k3", "k1+", "k3+"; "none", "truncate" (tis), "mask" (mis). */
iv_status iv_kl_parse(const char *text, iv_kl *kl, iv_error *err);
iv_status iv_correction_parse(const char *text, iv_correction *correction, iv_error *err);

/* The published settings: reinforce has mean, no ratio, sequence_sum; rloo leave-one-out, sequence_sum ratio clipped at
 * 0.2; grpo mean and std, token ratio clipped at 0.2, sequence_mean; dr-grpo mean, token ratio clipped at 0.2,
 * constant; dapo mean and std, token ratio clipped at 0.2 and 0.28, token_mean, dynamic sampling; gspo mean and std,
 * sequence_mean ratio clipped at 3e-4 and 4e-4, sequence_mean. constant_length is
 * max_completion. */
iv_algorithm iv_algorithm_defaults(iv_algorithm_kind kind, double max_completion);

/* IV_INVALID names the option, what was wanted and found. */
iv_status iv_algorithm_check(const iv_algorithm *a, iv_error *err);

/* One sequence of a step batch. Arrays have n elements, borrowed; element t belongs to the prediction of ids[t] from
 * ids[0..t-1], element 0 to nothing. */
typedef struct iv_loss_sequence {
    size_t n;
    const float *mask;      /* >= 0, finite; mask[0] is 0 */
    const float *logp;      /* of the learner now */
    const float *old;       /* of the learner at the start of the step; NULL: behavior */
    const float *behavior;  /* of the sampler; NULL for sft */
    const float *reference; /* NULL without KL */
} iv_loss_sequence;

/* ---- once per rollout ---- */

/* Rewards as the advantages see them, one sequence: minus the overlong penalty and the KL in the reward. `tokens`: of
 * the completion. */
iv_status iv_algorithm_shape_reward(const iv_algorithm *a, const iv_loss_sequence *s, size_t tokens, double reward,
                                    double *shaped, iv_error *err);

/* 0, or minus `factor` above max tokens, linear between max - buffer and max. */
double iv_overlong_penalty(double tokens, double max, double buffer, double factor);

/* advantage[i] of n sequences in groups group[i] < n. A reward that is not finite is IV_NOT_FINITE. Where all
 * rewards of a group are equal, advantages are 0. A group of one is IV_INVALID. */
iv_status iv_algorithm_advantages(const iv_algorithm *a, const uint32_t *group, const double *reward, size_t n,
                                  double *advantage, iv_error *err);

/* keep[g] of `groups` groups: whether two rewards of the group differ. Returns how many do. group[i] < groups. */
size_t iv_groups_with_signal(const uint32_t *group, const double *reward, size_t n, size_t groups, bool *keep);

/* ---- each inner step ---- */

/* D of the law. `s` are all sequences of the step's batch; only n and mask are read. IV_INVALID if it is zero. */
iv_status iv_algorithm_denominator(const iv_algorithm *a, const iv_loss_sequence *s, size_t n, double *denominator,
                                   iv_error *err);

/* Sums over tokens, or maxima; of one sequence, or of several added in index order by iv_loss_add. */
typedef struct iv_loss_sums {
    double loss;      /* D * loss */
    double sequences; /* with a token */
    double tokens;    /* mask > 0: count */
    double kl;        /* of the reference, over these tokens */
    /* Counts of tokens, or of sequences for a ratio of the sequence. */
    double clipped_low, clipped_high, clipped_dual;
    double ratios, ratio, ratio_max; /* count, sum, largest */
    double k1, k3;                   /* sampler to learner: sums of -x and of exp(x) - 1 - x, x = logp - behavior */
    double equal;                    /* tokens whose logp is the sampler's in every bit */
    double largest_logp, largest_p;  /* largest |logp - behavior|, |exp(logp) - exp(behavior)| */
    double corrected;                /* tokens whose correction was truncated or masked */
} iv_loss_sums;

void iv_loss_add(iv_loss_sums *total, const iv_loss_sums *one);

/* c[n] of one sequence and its sums. Pure: depends on no other sequence. `index` heads errors; a log-probability or a
 * coefficient that is not finite is IV_NOT_FINITE. advantage is not read for sft. */
iv_status iv_algorithm_sequence(const iv_algorithm *a, size_t index, const iv_loss_sequence *s, double advantage,
                                float *c, iv_loss_sums *sums, iv_error *err);

/* What people read. A mean over nothing is 0. */
typedef struct iv_loss_report {
    double loss, kl, clipped_low, clipped_high, clipped_dual, ratio_mean, ratio_max, k1, k3, largest_logp, largest_p;
    uint64_t sequences, tokens, equal, corrected;
} iv_loss_report;
iv_loss_report iv_loss_finish(const iv_loss_sums *total, double denominator);

#endif
