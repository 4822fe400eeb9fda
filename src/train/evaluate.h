/* evaluate.h: held-out examples of a run. No weight depends on them. */
#ifndef IV_TRAIN_EVALUATE_H
#define IV_TRAIN_EVALUATE_H

#include "train/reward/reward.h"
#include "train/run_state.h"

/* Each adds to the metrics of the step that just ended, if an evaluation is due there. Collective over processes. The
 * numbers are a function of weights and examples: not of batches, passes or ranks. */

/* eval_loss: the mean of -log p over the masked tokens of all examples. */
iv_status iv_run_eval_loss(iv_run *r, iv_train_metrics *m, iv_error *err);
/* eval_reward, eval_completion_length: means over one greedy completion of each prompt, by the engine's weights. */
iv_status iv_run_eval_reward(iv_run *r, iv_reward *reward, iv_train_metrics *m, iv_error *err);

/* The end of the evaluated step. After a failed evaluation, whose error is in *err, the step's line and checkpoint are
 * written all the same; then that error is returned. */
iv_status iv_run_end_evaluated(iv_run *r, iv_status evaluated, iv_train_metrics *m, const char *state, iv_error *err);

#endif
