/* evaluate.c: the loss of held-out examples, and the reward of greedy completions of held-out prompts. */
#include "train/evaluate.h"
#include "base/clock.h"
#include "base/size.h"
#include "train/sample.h"

#include <stdlib.h>

static bool is_due(const iv_run *r) {
    uint64_t every = r->o->eval_every;
    return r->eval_data && (r->at == r->steps || (every && r->at % every == 0));
}

iv_status iv_run_eval_loss(iv_run *r, iv_train_metrics *m, iv_error *err) {
    if (!is_due(r)) return IV_OK;
    double began = iv_now();
    iv_train_sums sums = {0};
    size_t count = iv_train_data_count(r->eval_data);
    for (size_t at = 0, n; at < count; at += n) {
        n = iv_size_min(r->o->batch_size, count - at);
        iv_run_fill(r, r->eval_data, NULL, at, n);
        iv_train_batch b = {.sequences = r->sequences, .count = n, .temperature = 1.0f};
        IV_TRY(iv_train_score(r->trainer, &b, err));
        iv_train_add_masks(&sums, r->sequences, n);
        iv_train_add_losses(&sums, r->sequences, n);
    }
    r->summary->evaluated = true, r->summary->eval_loss = sums.loss / sums.weight;
    iv_train_metrics_set(m, "eval_loss", r->summary->eval_loss);
    iv_train_metrics_set(m, "eval_seconds", iv_now() - began);
    return IV_OK;
}

static iv_status mean_reward(iv_run *r, iv_reward *reward, const iv_run_prompts *p, const iv_rollout *rollout,
                             double *mean, double *length, iv_error *err) {
    double *rewards = calloc(p->count, sizeof *rewards), sum = 0, tokens = 0;
    if (!rewards) return iv_fail(err, IV_NO_MEMORY, "rl: no memory for %zu rewards", p->count);
    iv_status status = iv_run_judge(r, reward, p, 1, rollout, rewards, err);
    for (size_t i = 0; i < p->count; i++) sum += rewards[i], tokens += (double)iv_rollout_at(rollout, i, 0).count;
    *mean = sum / (double)p->count, *length = tokens / (double)p->count;
    free(rewards);
    return status;
}

iv_status iv_run_eval_reward(iv_run *r, iv_reward *reward, iv_train_metrics *m, iv_error *err) {
    if (!is_due(r)) return IV_OK;
    double began = iv_now(), mean = 0, length = 0;
    iv_run_prompts p = {.data = r->eval_data, .count = iv_train_data_count(r->eval_data)};
    iv_rollout *rollout;
    iv_rollout_options w;
    iv_rollout_options_init(&w);
    w.max_tokens = r->o->max_new_tokens, w.temperature = 0, w.seed = r->o->seed, w.step = r->at;
    IV_TRY(iv_run_sample(r, &p, &w, &rollout, err));
    iv_status status = mean_reward(r, reward, &p, rollout, &mean, &length, err);
    iv_rollout_close(rollout);
    if (status != IV_OK) return status;
    r->summary->evaluated = true, r->summary->eval_reward = mean;
    iv_train_metrics_set(m, "eval_reward", mean);
    iv_train_metrics_set(m, "eval_completion_length", length);
    iv_train_metrics_set(m, "eval_seconds", iv_now() - began);
    return IV_OK;
}

iv_status iv_run_end_evaluated(iv_run *r, iv_status evaluated, iv_train_metrics *m, const char *state, iv_error *err) {
    iv_error ended = {0};
    iv_status status = iv_run_end_step(r, m, state, &ended);
    if (evaluated != IV_OK) return evaluated;
    if (status != IV_OK) *err = ended;
    return status;
}
