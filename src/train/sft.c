/* sft.c: supervised fine-tuning: the mean of -log p over the masked tokens of each step's batch. */
#include "base/clock.h"
#include "train/evaluate.h"

#include <string.h>

/* Loss and counts of a step, in index order. */
typedef struct step_sums {
    double weight, loss;
    size_t tokens, masked;
} step_sums;

static void fill_batch(iv_run *r, step_sums *sums) {
    *sums = (step_sums){0};
    for (size_t i = 0; i < r->o->batch_size; i++) {
        iv_train_example e = iv_train_data_example(r->data, r->examples[i]);
        iv_train_sequence *s = &r->sequences[i];
        s->ids = e.ids, s->mask = e.mask, s->count = e.count, s->coefficients = NULL;
        sums->tokens += e.count;
        for (size_t t = 0; t < e.count; t++) sums->weight += (double)e.mask[t], sums->masked += e.mask[t] != 0.0f;
    }
}

static void add_loss(const iv_run *r, step_sums *sums) {
    for (size_t i = 0; i < r->o->batch_size; i++)
        for (size_t t = 1; t < r->sequences[i].count; t++)
            sums->loss -= (double)r->sequences[i].mask[t] * (double)r->sequences[i].logprobs[t];
}

/* Gradients of a run's data under their own denominator; for this file and gradients.c. */
static iv_status step(iv_run *r, iv_error *err) {
    step_sums sums;
    iv_train_result g, a = {0};
    uint32_t epoch;
    double began = iv_now(), rate = iv_schedule_rate(&r->schedule, r->at);
    IV_TRY(iv_train_order_step(r->order, r->at, r->examples, &epoch, err));
    fill_batch(r, &sums);
    iv_train_batch b = {.sequences = r->sequences, .count = r->o->batch_size, .temperature = 1.0f};
    IV_TRY(iv_train_gradients(r->trainer, &b, sums.weight, &g, err));
    IV_TRY(iv_train_apply(r->trainer, &(iv_train_update){sums.weight, rate, r->o->max_grad_norm}, &a, err));
    memcpy(r->hash, a.weights_hash, sizeof r->hash);
    add_loss(r, &sums);
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
