/* sft.c: supervised fine-tuning: the mean of -log p over the masked tokens of each step's batch. */
#include "base/clock.h"
#include "train/evaluate.h"

#include <string.h>

static iv_status step(iv_run *r, iv_error *err) {
    iv_train_sums sums = {0};
    iv_train_result g, a = {0};
    uint32_t epoch;
    double began = iv_now(), rate = iv_schedule_rate(&r->schedule, r->at);
    IV_TRY(iv_train_order_step(r->order, r->at, r->examples, &epoch, err));
    iv_run_fill(r, r->data, r->examples, 0, r->o->batch_size);
    iv_train_add_masks(&sums, r->sequences, r->o->batch_size);
    iv_train_batch b = {.sequences = r->sequences, .count = r->o->batch_size, .temperature = 1.0f};
    IV_TRY(iv_train_gradients(r->trainer, &b, sums.weight, &g, err));
    IV_TRY(iv_train_apply(r->trainer, &(iv_train_update){sums.weight, rate, r->o->max_grad_norm}, &a, err));
    memcpy(r->hash, a.weights_hash, sizeof r->hash);
    iv_train_add_losses(&sums, r->sequences, r->o->batch_size);
    r->at++;
    iv_train_metrics m;
    double seconds = iv_now() - began;
    iv_train_metrics_begin(&m, r->at);
    r->summary->loss = sums.loss / sums.weight, r->summary->tokens += sums.tokens;
    iv_train_metrics_set(&m, "loss", r->summary->loss);
    iv_train_metrics_set(&m, "learning_rate", rate);
    iv_train_metrics_set(&m, "gradient_norm", a.norm);
    iv_train_metrics_set(&m, "epoch", (double)epoch);
    iv_train_metrics_set(&m, "tokens", (double)sums.tokens);
    iv_train_metrics_set(&m, "tokens_learned", (double)sums.masked);
    iv_train_metrics_set(&m, "tokens_per_second", (double)sums.tokens / seconds);
    iv_train_metrics_set(&m, "seconds", seconds);
    iv_train_metrics_set(&m, "seconds_gradients", g.seconds[0]);
    iv_train_metrics_set(&m, "seconds_reduction", g.seconds[1]);
    iv_train_metrics_set(&m, "seconds_optimizer", a.seconds[2]);
    iv_train_metrics_set(&m, "seconds_weights", a.seconds[3]);
    iv_train_metrics_set(&m, "seconds_weights_hash", a.seconds[4]);
    iv_train_metrics_set(&m, "passes", (double)g.passes);
    iv_train_metrics_set(&m, "trainer_bytes", (double)iv_train_bytes(r->trainer));
    return iv_run_end_evaluated(r, iv_run_eval_loss(r, &m, err), &m, NULL, err);
}

iv_status iv_run_sft(iv_run *r, iv_error *err) {
    IV_TRY(iv_run_reserve(r, r->o->batch_size, err));
    IV_TRY(iv_run_begin(r, err));
    while (r->at < r->steps && !r->summary->stopped) IV_TRY(step(r, err));
    return IV_OK;
}
