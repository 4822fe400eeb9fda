/* sample.h: completions of a run's prompts and their rewards, over all processes. */
#ifndef IV_TRAIN_SAMPLE_H
#define IV_TRAIN_SAMPLE_H

#include "train/reward/reward.h"
#include "train/rollout/rollout.h"
#include "train/run_state.h"

/* Prompts of data. */
typedef struct iv_run_prompts {
    const iv_train_data *data;
    const uint32_t *examples; /* [count]; NULL: 0, 1, 2, ... */
    size_t count;
} iv_run_prompts;

/* Each process samples consecutive prompts, and all get all completions. A prompt's place decides its seeds. */
iv_status iv_run_sample(iv_run *r, const iv_run_prompts *p, const iv_rollout_options *o, iv_rollout **out,
                        iv_error *err);

/* rewards[count * group] in every process. The first one judges, since a program may answer differently the second
 * time; in the others `reward` is NULL. */
iv_status iv_run_judge(iv_run *r, iv_reward *reward, const iv_run_prompts *p, size_t group, const iv_rollout *rollout,
                       double *rewards, iv_error *err);

#endif
